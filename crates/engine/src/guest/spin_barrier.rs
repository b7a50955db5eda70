//! Barriers whose waiters spin before they sleep: PARSEC's own (parsec_barrier.cpp), as streamcluster uses
//! it.
//!
//! Problem.   To sleep at a barrier costs exits and IPIs, and most waits are short.
//! Mechanism. A round has two gates, through each of which all threads go. The arrival gate opens when all
//!            have come. The departure gate opens when all have left it: a thread that comes to the next
//!            round before waits for that first. At both a thread spins in user mode for a while, then sleeps
//!            in the futex's queue (`futex.rs`). The thread that opens a gate wakes those that sleep there.
//! Formula.   A program has five operations in place of one: before each sleep it looks once more whether the
//!            gate is open.
//! Limits.    The mutex around the program's own counters is only there for those that are requeued to it
//!            (`futex.rs`): its sections are some instructions.

use super::futex::QUEUE_NS;
use crate::guest::{Act, Then, ThreadState};
use crate::simulation::{CACHE_LINE_NS, Simulation};
use crate::text;
use microslice_model::ids::{BarrierId, LockId, ThreadId, VcpuId};

/// What a thread does at such a barrier, in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum SpinStep {
    /// Spins until all have left the round before.
    Settle,
    /// Has spun for that long enough.
    SettleOrSleep,
    /// Arrives, and spins until all have.
    Arrive,
    ArriveOrSleep,
    Leave,
}

impl SpinStep {
    pub const ALL: [Self; 5] =
        [Self::Settle, Self::SettleOrSleep, Self::Arrive, Self::ArriveOrSleep, Self::Leave];
}

impl Simulation<'_> {
    /// Returns false if the step took no time. `arrival`: the first of both gates; the departure gate follows
    /// it.
    pub(crate) fn spin_barrier(
        &mut self,
        vcpu: VcpuId,
        thread: ThreadId,
        step: SpinStep,
        [arrival, departure]: [BarrierId; 2],
        under: LockId,
        spin_ns: u64,
    ) -> bool {
        match step {
            SpinStep::Settle => {
                let passages = self.barriers[departure].passages;
                if self.barriers[arrival].passages == passages {
                    self.threads[thread].passage = passages.wrapping_sub(1);
                    return false;
                }
                self.spin_at(vcpu, thread, departure, spin_ns);
                true
            }
            SpinStep::SettleOrSleep => self.sleep_unless_open(vcpu, thread, departure, under),
            SpinStep::Arrive => {
                self.threads[thread].passage = self.barriers[arrival].passages;
                if self.is_last_through(arrival) {
                    return self.open(vcpu, arrival, under);
                }
                self.spin_at(vcpu, thread, arrival, spin_ns);
                true
            }
            SpinStep::ArriveOrSleep => self.sleep_unless_open(vcpu, thread, arrival, under),
            SpinStep::Leave => self.is_last_through(departure) && self.open(vcpu, departure, under),
        }
    }

    /// One more goes through a gate.
    fn is_last_through(&mut self, gate: BarrierId) -> bool {
        let state = &mut self.barriers[gate];
        state.arrived += 1;
        state.arrived == state.count
    }

    fn spin_at(&mut self, vcpu: VcpuId, thread: ThreadId, gate: BarrierId, spin_ns: u64) {
        let state = &mut self.barriers[gate];
        self.threads[thread].passage = state.passages;
        state.spinning.push(thread);
        self.workloads[self.threads[thread].workload].computed_ns += spin_ns;
        self.timed(vcpu, Then::NextOp, text::USER, spin_ns);
    }

    /// It has spun for as long as it does, unless the gate was open.
    fn sleep_unless_open(&mut self, vcpu: VcpuId, thread: ThreadId, gate: BarrierId, under: LockId) -> bool {
        let state = &mut self.barriers[gate];
        if state.passages != self.threads[thread].passage {
            return false;
        }
        state.spinning.retain(|&spinner| spinner != thread);
        let is_departure = state.is_departure;
        self.measured.waited_at_barrier(self.threads[thread].vm, is_departure, true);
        self.acquire(vcpu, under, QUEUE_NS, Then::WaitAtBarrier, gate.number());
        true
    }

    /// A spinner there sees it; a sleeper there is woken under the lock.
    fn open(&mut self, vcpu: VcpuId, gate: BarrierId, under: LockId) -> bool {
        let state = &mut self.barriers[gate];
        (state.arrived, state.passages) = (0, state.passages.wrapping_add(1));
        let (is_departure, somebody_sleeps) = (state.is_departure, !state.waiting.is_empty());
        for spinner in std::mem::take(&mut state.spinning) {
            self.measured.waited_at_barrier(self.threads[spinner].vm, is_departure, false);
            self.end_spinning(spinner);
        }
        if somebody_sleeps {
            self.acquire(vcpu, under, QUEUE_NS, Then::WakeAtBarrier, gate.number());
        }
        somebody_sleeps
    }

    /// The rest of its step isn't executed. Where it doesn't run it sees that once it does.
    fn end_spinning(&mut self, thread: ThreadId) {
        let state = &mut self.threads[thread];
        let (vcpu, workload) = (state.vcpu, state.workload);
        let left_ns = if state.state == ThreadState::Ready {
            &mut state.compute_left_ns
        } else {
            if self.is_running(vcpu) {
                self.sync(vcpu);
            }
            let frame = &mut self.guest[vcpu].frames[0];
            debug_assert_eq!((frame.act, frame.symbol), (Act::Timed, text::USER), "it spins");
            &mut frame.left_ns
        };
        let saved_ns = left_ns.saturating_sub(CACHE_LINE_NS);
        *left_ns -= saved_ns;
        let computed_ns = &mut self.workloads[workload].computed_ns;
        *computed_ns = computed_ns.saturating_sub(saved_ns);
        self.retime(vcpu);
    }
}
