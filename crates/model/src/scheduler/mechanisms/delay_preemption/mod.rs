//! Delayed preemption around any scheduler (VM'04, section 3): a turn ends, in a window around its end, where
//! that is safe. `policy/delay_preemption.h` says where the window lies and what is safe; here is when it is
//! asked:
//!
//! | moment | what follows |
//! |---|---|
//! | the scheduler has chosen | the turn is looked at when its window begins, not when it is over |
//! | the window has begun, and its vCPU isn't safe | it goes on until the next look, or a change |
//! | it is safe, or the window ends | the scheduler chooses, as if the turn were over now |
//! | another vCPU is to run before the window begins | that is put off by a window of its own, from now on |
//!
//! A vCPU that gives its pCPU up, halts, or has a micro or an urgent slice there isn't delayed. Nor is any
//! kept from either. Time is charged by the scheduler, as it is run.

mod grace;

pub(super) use self::grace::Grace;
use crate::config::DelayPreemptionConfig;
use crate::events::{IpiKind, StopReason, TraceEvent};
use crate::ids::{IdVec, PcpuId, VcpuId};
use crate::machine::{Machine, VcpuState};
use crate::scheduler::{ChoiceCosts, Pick, Scheduler, TurnEnds, WokenBy, YieldAnswer};
use microslice_policy as policy;
use microslice_policy::delay_preemption::decide_on_delay;
use microslice_policy::{DelayConfig, DelayObservation, DelayState, DelayUnsafe, DelayVerdict, DelayWindow};
use microslice_policy::{InterruptKind, SiblingAnswer, YieldCause};

pub struct DelayPreemption {
    inner: Box<dyn Scheduler>,
    rules: DelayConfig,
    /// The guest's own help, or the host's: a vCPU that becomes safe is seen at once.
    is_told: bool,
    safe_point_ns: Option<u64>,
    vcpus: IdVec<VcpuId, Delayed>,
    turns: IdVec<PcpuId, Turn>,
}

/// What is kept of a vCPU.
#[derive(Clone, Copy, Default)]
struct Delayed {
    state: DelayState,
    /// Its last turn was ended by force: the next window gets a safe point.
    was_forced: bool,
}

/// What is kept of a pCPU's present turn.
#[derive(Clone, Copy)]
struct Turn {
    vcpu: VcpuId,
    /// `None`: the scheduler doesn't know, or this is a micro or an urgent slice.
    due: Option<(u64, DelayWindow)>,
    /// Another vCPU was to run from that moment on.
    interruption: Option<DelayWindow>,
    /// When it is looked at next.
    look_at_ns: u64,
    /// It isn't over before this, wherever its window lies.
    earliest_ns: u64,
    is_put_off: bool,
    /// The host has put a safe point in, which is reached then.
    safe_point_ns: Option<u64>,
}

impl Turn {
    const NONE: Self = Self {
        vcpu: VcpuId::NONE,
        due: None,
        interruption: None,
        look_at_ns: u64::MAX,
        earliest_ns: 0,
        is_put_off: false,
        safe_point_ns: None,
    };
}

impl DelayPreemption {
    pub fn new(config: &DelayPreemptionConfig, inner: Box<dyn Scheduler>, machine: &Machine) -> Self {
        let rules = config.rules();
        Self {
            is_told: rules.look_ns == 0 || config.unsafe_where == DelayUnsafe::WhereHinted,
            rules,
            safe_point_ns: config.safe_point_ns,
            inner,
            vcpus: IdVec::of(Delayed::default(), machine.vcpus.len()),
            turns: IdVec::of(Turn::NONE, machine.pcpus.len()),
        }
    }

    /// Whether the host takes the pCPU from a vCPU in an ordinary turn.
    fn is_cut_off(&self, machine: &Machine, pcpu: PcpuId, vcpu: VcpuId, reason: StopReason) -> bool {
        let host = &machine.vcpus[vcpu];
        let is_turn = host.state != VcpuState::Blocked && !host.requested && !self.inner.is_micro(pcpu);
        is_turn
            && self.turns[pcpu].vcpu == vcpu
            && !self.inner.is_wanted(pcpu)
            && match reason {
                // Otherwise the scheduler itself has set another end, of a turn that was given up before.
                StopReason::SliceExpired => {
                    let host = &machine.pcpus[pcpu];
                    host.tells_changes || host.slice_end_ns == self.turns[pcpu].look_at_ns
                }
                StopReason::Preempted => true,
                _ => false,
            }
    }

    /// It goes on, unless it is safe or has had its window.
    fn put_off(
        &mut self,
        machine: &mut Machine,
        pcpu: PcpuId,
        vcpu: VcpuId,
        reason: StopReason,
    ) -> Option<Pick> {
        let now_ns = machine.now_ns;
        let turn = &mut self.turns[pcpu];
        let has_begun = |window: &DelayWindow| now_ns >= window.begin_ns;
        let due = turn.due.filter(|(_, window)| has_begun(window));
        if due.is_none() && turn.interruption.is_none() {
            if reason == StopReason::SliceExpired {
                return None;
            }
            turn.interruption = Some(self.vcpus[vcpu].state.window_from(&self.rules, now_ns));
        }
        let window = due.map(|(_, window)| window).or(turn.interruption)?;
        if due.is_some() {
            self.put_safe_point_in(now_ns, pcpu, vcpu);
        }
        let seen = self.observe(machine, pcpu, vcpu, window);
        let decision = decide_on_delay(&self.rules, &seen);
        let verdict = decision.verdict.get().unwrap_or(DelayVerdict::EndsForced);
        let turn = &mut self.turns[pcpu];
        // A waiter that was put off before the window began isn't put off any longer by it.
        let limit_ns = turn.interruption.map_or(u64::MAX, |window| window.end_ns);
        if verdict != DelayVerdict::GoesOn || now_ns >= limit_ns {
            self.window_ends(machine, pcpu, due.map(|(due_ns, _)| due_ns), &seen, verdict);
            return None;
        }
        let until_ns = decision.look_at_ns.min(limit_ns);
        let ahead = turn.safe_point_ns.filter(|&reached_ns| reached_ns > now_ns).unwrap_or(u64::MAX);
        turn.look_at_ns = until_ns.min(ahead);
        let look_at_ns = turn.look_at_ns;
        if !std::mem::replace(&mut turn.is_put_off, true) {
            let class = machine.vcpus[vcpu].class;
            let end_ns = window.end_ns.min(limit_ns);
            machine.emit(TraceEvent::PreemptionPutOff { vcpu, pcpu, class, until_ns: end_ns });
            machine.delays.put_off += 1;
        }
        machine.pcpus[pcpu].tells_changes = self.is_told;
        machine.looks += u32::from(!self.is_told);
        machine.delays.looks += u64::from(!self.is_told);
        Some(Pick { vcpu, slice_end_ns: look_at_ns })
    }

    /// A vCPU that was preempted by force the last time gets an interrupt whose handler gives the pCPU up.
    fn put_safe_point_in(&mut self, now_ns: u64, pcpu: PcpuId, vcpu: VcpuId) {
        let turn = &mut self.turns[pcpu];
        if turn.safe_point_ns.is_none() && self.vcpus[vcpu].was_forced {
            turn.safe_point_ns = self.safe_point_ns.map(|takes_ns| now_ns + takes_ns);
        }
    }

    fn observe(
        &self,
        machine: &Machine,
        pcpu: PcpuId,
        vcpu: VcpuId,
        window: DelayWindow,
    ) -> DelayObservation {
        let host = &machine.vcpus[vcpu];
        let is_reached =
            self.turns[pcpu].safe_point_ns.is_some_and(|reached_ns| machine.now_ns >= reached_ns);
        // The handler runs where the guest takes interrupts, and is one that waits until no lock is held.
        let at_safe_point = is_reached && host.interrupts_enabled && !host.holds_spinlock;
        DelayObservation {
            window,
            now_ns: machine.now_ns,
            hint_ns: host.hint_ns.into(),
            guest_class: host.class.into(),
            at_safe_point: at_safe_point.into(),
            answer: if host.owes_answer { SiblingAnswer::Owed } else { SiblingAnswer::Given }.into(),
            is_cut_short: 0,
        }
    }

    fn window_ends(
        &mut self,
        machine: &mut Machine,
        pcpu: PcpuId,
        due_ns: Option<u64>,
        seen: &DelayObservation,
        verdict: DelayVerdict,
    ) {
        let turn = &mut self.turns[pcpu];
        let (vcpu, was_put_off) = (turn.vcpu, std::mem::take(&mut turn.is_put_off));
        let forced = verdict != DelayVerdict::EndsSafe;
        let delayed = &mut self.vcpus[vcpu];
        delayed.was_forced = forced;
        let penalised = delayed.state.penalty_turns > 0;
        // Another vCPU's coming has nothing to do with where the turn would have ended.
        let due_ns = due_ns.filter(|_| self.turns[pcpu].interruption.is_none());
        if let Some(due_ns) = due_ns {
            delayed.state = delayed.state.after_turn(&self.rules, seen, verdict);
            machine.delays.count_turn(due_ns, machine.now_ns, penalised);
        }
        machine.delays.count_end(forced, was_put_off);
        // What a turn lasts beyond its window because it can't be shorter isn't the window's doing.
        let at_least_ns = machine.now_ns.min(self.turns[pcpu].earliest_ns).saturating_sub(seen.window.end_ns);
        let due_ns = due_ns.filter(|_| !penalised).map(|due_ns| due_ns + at_least_ns);
        if was_put_off || due_ns.is_some() {
            machine.emit(TraceEvent::WindowEnded { vcpu, pcpu, due_ns, forced });
        }
    }

    /// The scheduler has chosen: when is the turn looked at?
    fn turn_begins(&mut self, machine: &mut Machine, pcpu: PcpuId, pick: Pick) -> Pick {
        machine.pcpus[pcpu].tells_changes = false;
        let vcpu = pick.vcpu;
        let is_slice = machine.vcpus[vcpu].requested || self.inner.is_urgent_slice(pcpu);
        let is_turn = !is_slice && !self.inner.is_micro(pcpu);
        let known = self.inner.turn_due_ns(pcpu).unwrap_or(pick.slice_end_ns);
        let due_ns = Some(known).filter(|&due_ns| is_turn && due_ns < u64::MAX);
        let around = |due_ns| (due_ns, self.vcpus[vcpu].state.window_around(&self.rules, due_ns));
        let due = due_ns.map(around);
        // A turn that is shorter than the window comes first.
        let earliest_ns = machine.now_ns + DelayPreemptionConfig::TURN_MIN_NS;
        let begin_ns = due.map(|(_, window)| window.begin_ns.max(earliest_ns));
        let look_at_ns = begin_ns.unwrap_or(pick.slice_end_ns).min(pick.slice_end_ns);
        let vcpu_of_turn = if is_turn { vcpu } else { VcpuId::NONE };
        self.turns[pcpu] = Turn { vcpu: vcpu_of_turn, due, look_at_ns, earliest_ns, ..Turn::NONE };
        Pick { vcpu, slice_end_ns: look_at_ns }
    }
}

impl Scheduler for DelayPreemption {
    fn schedule(
        &mut self,
        machine: &mut Machine,
        pcpu: PcpuId,
        stopped: Option<(VcpuId, StopReason)>,
    ) -> Option<Pick> {
        if let Some((vcpu, reason)) = stopped
            && self.is_cut_off(machine, pcpu, vcpu, reason)
            && let Some(pick) = self.put_off(machine, pcpu, vcpu, reason)
        {
            return Some(pick);
        }
        if std::mem::take(&mut self.turns[pcpu].is_put_off) {
            // It gives its pCPU up by itself, or a micro slice comes.
            machine.delays.ended_otherwise += 1;
            let vcpu = self.turns[pcpu].vcpu;
            machine.emit(TraceEvent::WindowEnded { vcpu, pcpu, due_ns: None, forced: false });
        }
        // It was asked for by another vCPU: what that one takes away isn't a turn that is over.
        let stopped = stopped.map(|(vcpu, reason)| match (self.turns[pcpu].interruption, reason) {
            (Some(_), StopReason::SliceExpired) => (vcpu, StopReason::Preempted),
            _ => (vcpu, reason),
        });
        let pick = self.inner.schedule(machine, pcpu, stopped);
        machine.pcpus[pcpu].tells_changes = false;
        self.turns[pcpu] = Turn::NONE;
        Some(self.turn_begins(machine, pcpu, pick?))
    }

    fn wake(&mut self, machine: &mut Machine, vcpu: VcpuId) {
        self.inner.wake(machine, vcpu);
    }

    fn yields(
        &mut self,
        machine: &mut Machine,
        vcpu: VcpuId,
        pcpu: PcpuId,
        cause: YieldCause,
    ) -> YieldAnswer {
        let answer = self.inner.yields(machine, vcpu, pcpu, cause);
        let turn = &mut self.turns[pcpu];
        let slice_end_ns = &mut machine.pcpus[pcpu].slice_end_ns;
        if turn.is_put_off {
            // Whatever the scheduler makes of a hint, the window ends when it ends.
            *slice_end_ns = (*slice_end_ns).min(turn.look_at_ns);
        } else if *slice_end_ns != turn.look_at_ns {
            // It has another turn, or has given this one up: that ends when the scheduler says.
            turn.due = None;
        }
        answer
    }

    fn not_asked(&mut self, class: policy::GuestClass, exits: u64) {
        self.inner.not_asked(class, exits);
    }

    fn ipi_begun(&mut self, machine: &mut Machine, from: VcpuId) {
        self.inner.ipi_begun(machine, from);
    }

    fn ipi(&mut self, machine: &mut Machine, from: VcpuId, to: VcpuId, kind: IpiKind) {
        self.inner.ipi(machine, from, to, kind);
    }

    fn acknowledged(&mut self, machine: &Machine, vcpu: VcpuId, another_waits: bool) {
        self.inner.acknowledged(machine, vcpu, another_waits);
    }

    fn interrupt(&mut self, machine: &mut Machine, vcpu: VcpuId, kind: InterruptKind) {
        self.inner.interrupt(machine, vcpu, kind);
    }

    fn woken(&mut self, machine: &mut Machine, vcpu: VcpuId, by: WokenBy) {
        self.inner.woken(machine, vcpu, by);
    }

    fn was_stopped(&mut self, machine: &mut Machine, vcpu: VcpuId) {
        self.inner.was_stopped(machine, vcpu);
    }

    fn tick_ns(&self) -> u64 {
        self.inner.tick_ns()
    }

    fn tick(&mut self, machine: &mut Machine, pcpu: PcpuId) {
        self.inner.tick(machine, pcpu);
    }

    fn timer(&mut self, machine: &mut Machine) -> u64 {
        self.inner.timer(machine)
    }

    fn take_choice_costs(&mut self, pcpu: PcpuId) -> ChoiceCosts {
        self.inner.take_choice_costs(pcpu)
    }

    fn is_micro(&self, pcpu: PcpuId) -> bool {
        self.inner.is_micro(pcpu)
    }
}

impl TurnEnds for DelayPreemption {}
