//! What nobody will ever be told: mistakes of the engine, where `deadlock.rs` finds those of workloads. For
//! the checker.

use crate::guest::{Act, Holder, Lock, ThreadState, pending};
use crate::simulation::Simulation;
use microslice_model::config::{Handover, Wait};
use microslice_model::ids::{IdVec, LockId, ThreadId, VcpuId};
use microslice_model::machine::VcpuState;

impl Simulation<'_> {
    /// No waiter stands beside a free lock that it could take.
    pub(crate) fn no_wake_up_is_lost(&self) -> Result<(), String> {
        for (number, lock) in self.locks.enumerate().filter(|(_, lock)| lock.owner == Holder::NONE) {
            // Somebody is about to wake it, or to see that it is free.
            if self.list_is_held(number) {
                continue;
            }
            if let Some(waiter) = self.overlooked_waiter(lock) {
                return Err(format!("lock {} is free, and {waiter} waits for it", self.names.locks[number]));
            }
        }
        Ok(())
    }

    /// A waiter that could have this free lock, and hasn't noticed.
    fn overlooked_waiter(&self, lock: &Lock) -> Option<String> {
        let thread = |thread: &Holder| format!("thread {}", self.names.threads[thread.as_thread()]);
        match lock.wait {
            Wait::Spin(Handover::WhoeverRuns) | Wait::SpinThenYield(_) => {
                let waiter =
                    lock.waiters.iter().find(|&&waiter| self.overlooks(waiter.vcpu(), waiter.depth()));
                waiter.map(|waiter| format!("vCPU {}", waiter.vcpu()))
            }
            Wait::Spin(Handover::FirstInLine) | Wait::SpinThenHalt(_) => {
                lock.waiters.front().map(|waiter| format!("vCPU {}", waiter.vcpu()))
            }
            Wait::StealOrHalt => {
                let stealers =
                    if lock.stealers().pending { &[] } else { lock.stealers().spinning.as_slice() };
                let mut waiters = lock.waiters.iter().take(1).chain(stealers);
                let waiter = waiters.find(|&&waiter| self.overlooks_hybrid(waiter));
                waiter.map(|waiter| format!("vCPU {}", waiter.vcpu()))
            }
            Wait::Sleep => lock.waiters.front().map(thread),
            Wait::SpinOrSleep => {
                let spinner = lock.spinners().vcpus.front();
                let spinner = spinner.filter(|&&vcpu| self.overlooks(vcpu, 0));
                let sleeper = lock.waiters.front().filter(|&&thread| {
                    let state = &self.threads[thread.as_thread()];
                    state.state == ThreadState::Blocked && state.granted == LockId::NONE
                });
                spinner.map(|vcpu| format!("vCPU {vcpu}")).or_else(|| sleeper.map(thread))
            }
        }
    }

    /// The frame of this depth waits for a lock that is free. It is executing, so it should have seen that.
    /// Or it halts, and a vCPU that takes a free lock kicks no other.
    fn overlooks(&self, vcpu: VcpuId, depth: u8) -> bool {
        let guest = &self.guest[vcpu];
        let halts = guest.frames[usize::from(depth)].act == Act::HaltLock;
        halts || self.is_running(vcpu) && guest.depth == depth
    }

    /// The same of a hybrid lock, which a halted head was kicked for.
    fn overlooks_hybrid(&self, waiter: Holder) -> bool {
        let (vcpu, depth) = (waiter.vcpu(), waiter.depth());
        let executes = self.is_running(vcpu) && self.guest[vcpu].depth == depth;
        executes || self.machine.vcpus[vcpu].state == VcpuState::Blocked && !self.cpu_limits.rests(vcpu)
    }

    /// No vCPU halts that has something to do: a lock that it was given, or a thread that is ready.
    pub(crate) fn nobody_is_left_halted(&self) -> Result<(), String> {
        for (vcpu, guest) in self.guest.enumerate() {
            let halts = self.machine.vcpus[vcpu].state == VcpuState::Blocked && !self.cpu_limits.rests(vcpu);
            if halts && guest.frame().act == Act::Granted {
                let lock = &self.names.locks[guest.frame().lock];
                return Err(format!("vCPU {vcpu} halts though it was given lock {lock}"));
            }
            // An interrupt is on its way otherwise, or it halts for its runqueue's lock.
            let idles =
                guest.depth == 0 && guest.frames[0].act == Act::None && guest.thread == ThreadId::NONE;
            if halts && idles && !guest.queue.is_empty() && guest.pending & !pending::TICK == 0 {
                return Err(format!("vCPU {vcpu} idles though a thread is ready there"));
            }
        }
        Ok(())
    }

    /// `in_flight`: by the trace, the IPIs that were sent to each vCPU and not handled: reschedule, call
    /// function.
    pub(crate) fn no_interrupt_is_lost(&self, in_flight: &IdVec<VcpuId, [u32; 2]>) -> Result<(), String> {
        for ((vcpu, guest), sent) in self.guest.enumerate().zip(in_flight) {
            let waits = |bit: u8| u32::from(guest.pending & bit != 0);
            let pending = [waits(pending::RESCHEDULE), waits(pending::CALL_FUNCTION)];
            if pending != *sent {
                return Err(format!(
                    "vCPU {vcpu}: of {sent:?} reschedule and call-function IPIs on their way {pending:?} are pending"
                ));
            }
            let is_deaf = guest.depth > 0 || guest.frames[0].act == Act::HaltLock && guest.frames[0].irqs_off;
            let halts = self.machine.vcpus[vcpu].state == VcpuState::Blocked && !self.cpu_limits.rests(vcpu);
            if halts && !is_deaf && guest.pending & !pending::TICK != 0 {
                return Err(format!("vCPU {vcpu} halts though an interrupt waits for it"));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use microslice_model::config::SchedulerKind;
    use microslice_model::events::NoTrace;
    use microslice_model::samples;

    /// What is found at time 0, when all vCPUs halt, after this mistake.
    fn found_after(mistake: impl Fn(&mut Simulation<'_>)) -> Result<(), String> {
        let config = samples::simulation(SchedulerKind::Credit(samples::credit()));
        let mut sink = NoTrace;
        let mut simulation = Simulation::new(&config, &mut sink).expect("it is valid");
        assert_eq!(simulation.nobody_is_left_halted(), Ok(()));
        mistake(&mut simulation);
        simulation.nobody_is_left_halted()
    }

    #[test]
    fn a_lost_kick_of_a_lock_that_was_handed_on_is_found() {
        let found = found_after(|simulation| {
            let frame = simulation.guest[VcpuId::new(1)].frame_mut();
            (frame.act, frame.lock) = (Act::Granted, LockId::new(0));
        });
        assert_eq!(found, Err("vCPU 1 halts though it was given lock target/runqueue#0".to_owned()));
    }

    #[test]
    fn a_thread_that_nobody_will_ever_run_is_found() {
        let forgotten = |simulation: &mut Simulation<'_>| {
            simulation.guest[VcpuId::new(1)].queue.push_back(ThreadId::new(1))
        };
        assert_eq!(found_after(forgotten), Err("vCPU 1 idles though a thread is ready there".to_owned()));
        let interrupted = |simulation: &mut Simulation<'_>| {
            forgotten(simulation);
            simulation.guest[VcpuId::new(1)].pending |= pending::RESCHEDULE;
        };
        assert_eq!(found_after(interrupted), Ok(()));
    }
}
