//! The project's scheduler: every decision is made by `policy/`, through the same C as on a real host; this file only
//! gathers observations and applies decisions. The normal pool is the credit scheduler, as in the paper's prototype, or the
//! real scheduler's (`core/`): both are a [`Core`], whose plain operations the mechanisms here call.
//!
//! How the host carries decisions out is its own matter. The paper's numbers were measured on a Xen prototype
//! (microslicedcore/xen, branch dyn-usliced-cores) that goes beyond the paper's text; `mechanics = "xen-prototype"`:
//!
//! | what happens | otherwise | Xen prototype |
//! |---|---|---|
//! | order of a pass | round from the yielding vCPU | from vCPU 0, until a request finds all queues full |
//! | a vCPU waits for a shootdown | yields unless one is helped | never yields |
//! | a vCPU spins for a lock | yields unless one is helped | never yields (the limit of its rule, see `keeps_spinning`) |
//! | a vCPU goes back to the normal pool | behind the others | within its credits, see `back_to_normal` |
//! | credits of the normal pool | of its pCPUs | of all pCPUs: its master accounts for the micro pool, too (section 5) |
//! | a sibling is blocked, or blocks on its micro pCPU | it wakes in the normal pool | see `take_along` |
//! | a vCPU on a micro-sliced pCPU spins | its pass decides | no pass; it goes back if somebody waits there, see `spins_on` |
//! | a sibling has answered the shootdown | no request for it | requested like the others |
//! | all queues are full | who spins goes on, and asks again | never asked (see the third row) |
//! | a turn or a micro slice ends at a bad moment | see `grace.rs` | it ends |
//! | no micro pCPU serves a request at once | see `home_slices.rs`, in the real scheduler's normal pool | it waits, or is forgotten |
//!
//! The prototype's published code sizes its pool otherwise, too: see docs/simulator-choices.md.

mod answers;
pub mod directed_yield;
mod grace;
mod home_slices;
mod kvm_host;
mod lending;
mod passes;
mod patience;
mod pool_size;
mod warm_caches;
mod woken;
mod xen_prototype;

use self::answers::{SCOPES, ShortCut, SiblingAnswers, YieldAnswers};
pub use self::kvm_host::KvmHost;
use self::passes::siblings_round_from;
use self::patience::Spin;
use self::woken::Woken;
use super::core::ladder::{self, First, Mechanisms, Stopped};
use super::{Core, Pick, Scheduler, WokenBy, YieldAnswer};
use crate::config::{Mechanics, MicroSlicedConfig, PoolSize};
use crate::ids::{IdVec, PcpuId, VcpuId, VmId};
use crate::machine::{Machine, Promised, VcpuState, interrupt_bit};
use crate::report::FailedPull;
use crate::trace_event::{AccelerationCause, StopReason, TraceEvent};
use microslice_policy as policy;
use microslice_policy::{
    AccelerateConfig, Cause, InterruptKind, InterruptObservation, MicroSliceObservation, MicroSliceOutcome,
    PassScope, PlacementDecision, PlacementObservation, PoolSizeConfig, PoolSizeObservation, PoolSizeState,
    SiblingAnswer, YieldCause,
};

/// What the micro pool keeps of a vCPU.
#[derive(Clone, Copy)]
struct Member {
    /// Queued for a micro slice on this pCPU, or running one there; or `NONE`.
    micro_pcpu: PcpuId,
    /// Where it goes back to.
    home: PcpuId,
    /// When it began to run on its micro pCPU.
    began_ns: u64,
    /// Why it is there.
    cause: Cause,
    /// Requests in a row because a micro slice ended too early.
    retries: u32,
    /// Micro slices in a row that its turn in the normal pool was made longer by.
    grace_count: u32,
    /// The wait that it spins in, if it does.
    spin: Spin,
    /// In the prototype: the micro pCPU that it belongs to while it is blocked; or `NONE`.
    blocked_at: PcpuId,
}

impl Member {
    const NOT_ONE: Self = Self {
        micro_pcpu: PcpuId::NONE,
        home: PcpuId::NONE,
        began_ns: 0,
        cause: Cause::None,
        retries: 0,
        grace_count: 0,
        spin: Spin::NONE,
        blocked_at: PcpuId::NONE,
    };
}

/// The interrupt that a request is about, as the bit that waits in the local APIC.
fn interrupt_of(cause: Cause) -> u8 {
    match cause {
        Cause::ReschedIpi => interrupt_bit(InterruptKind::IpiReschedule),
        Cause::CallFunctionIpi => interrupt_bit(InterruptKind::IpiCallFunction),
        Cause::Virq => interrupt_bit(InterruptKind::Virq),
        _ => 0,
    }
}

/// What became of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Request {
    Granted,
    NoRoom,
    LeftQueue,
    VmAhead,
}

pub struct MicroSliced<Normal> {
    siblings: SiblingAnswers,
    short_cuts: [Option<ShortCut>; SCOPES.len()],
    yield_answers: YieldAnswers,
    config: MicroSlicedConfig,
    /// The host mechanics of the authors' Xen prototype (see above).
    prototype: bool,
    rules: AccelerateConfig,
    normal: Normal,
    /// What waits for a micro slice on each pCPU: at most one (paper, section 5).
    waiting: IdVec<PcpuId, Option<VcpuId>>,
    /// Who was woken and comes to each micro pCPU once nobody waits for it who was preempted.
    woken: IdVec<PcpuId, Option<Woken>>,
    /// When a micro slice at home last ended on each pCPU.
    disturbed_at_ns: IdVec<PcpuId, u64>,
    /// The VM whose vCPU each micro pCPU had no room for last.
    turned_away: IdVec<PcpuId, Option<VmId>>,
    /// Of each VM the first vCPU that found no room since somebody was asked for again. The first, not the last: then each
    /// has its turn, in whichever order those that ask go through them.
    first_turned_away: IdVec<VmId, Option<VcpuId>>,
    members: IdVec<VcpuId, Member>,
    /// In the prototype: VMs of which somebody may be blocked that belongs to no micro pCPU.
    has_unclaimed: IdVec<VmId, bool>,
    micro_count: usize,
    pool_config: PoolSizeConfig,
    pool_state: PoolSizeState,
    /// Since the last step of Algorithm 1.
    seen: PoolSizeObservation,
    stepped_at_ns: u64,
    next_resize_ns: u64,
}

impl<Normal: Core> MicroSliced<Normal> {
    pub fn new(config: MicroSlicedConfig, normal: Normal, machine: &Machine) -> Self {
        let pool_config = match config.pool {
            PoolSize::Static { .. } => PoolSizeConfig::PAPER,
            PoolSize::Auto {
                limit,
                profile_interval_ns,
                epoch_interval_ns,
                second_looks,
                grow_when_busy_percent,
            } => PoolSizeConfig {
                profile_interval_ns,
                epoch_interval_ns,
                limit: limit as u32,
                second_looks,
                grow_when_busy_percent,
                reserved: 0,
            },
        };
        let prototype = config.mechanics == Mechanics::XenPrototype;
        let siblings = SiblingAnswers::new(prototype);
        Self {
            short_cuts: SCOPES.map(|scope| ShortCut::new(&siblings, scope)),
            siblings,
            yield_answers: YieldAnswers::new(0),
            prototype,
            normal,
            rules: AccelerateConfig {
                grace_max: config.grace,
                call_function_ipi: u32::from(config.call_function_ipi),
                home_slices: u32::from(config.home_slices),
                patience_ns: config.patience_ns,
                ..AccelerateConfig::PAPER
            },
            waiting: IdVec::of(None, machine.pcpus.len()),
            woken: IdVec::of(None, machine.pcpus.len()),
            disturbed_at_ns: IdVec::of(0, machine.pcpus.len()),
            turned_away: IdVec::of(None, machine.pcpus.len()),
            first_turned_away: IdVec::of(None, machine.vms.len()),
            members: IdVec::of(Member::NOT_ONE, machine.vcpus.len()),
            has_unclaimed: IdVec::of(true, machine.vms.len()),
            micro_count: 0,
            pool_config,
            pool_state: PoolSizeState::default(),
            seen: PoolSizeObservation::default(),
            stepped_at_ns: 0,
            next_resize_ns: 0,
            config,
        }
    }

    /// The last pCPUs are the micro pool, so that the normal pool's numbers stay.
    fn first_micro(&self) -> PcpuId {
        PcpuId::from_index(self.waiting.len() - self.micro_count)
    }

    fn micro_pcpus(&self) -> impl Iterator<Item = PcpuId> + Clone + use<Normal> {
        self.first_micro().until(self.waiting.next_id())
    }

    fn policy_state(&self, machine: &Machine, vcpu: VcpuId) -> policy::VcpuState {
        let member = &self.members[vcpu];
        match machine.vcpus[vcpu].state {
            VcpuState::Blocked => policy::VcpuState::Blocked,
            VcpuState::Running if member.micro_pcpu != PcpuId::NONE => policy::VcpuState::Micro,
            VcpuState::Running => policy::VcpuState::Running,
            VcpuState::Runnable if member.micro_pcpu != PcpuId::NONE => policy::VcpuState::Pending,
            VcpuState::Runnable => policy::VcpuState::Runnable,
        }
    }

    /// A micro pCPU that would serve it at once; or else a pCPU of the normal pool; or else a micro pCPU with room.
    fn place(&mut self, machine: &Machine, vcpu: VcpuId) -> Option<PcpuId> {
        self.micro_place(machine, vcpu, true)
            .or_else(|| self.home_for(machine, vcpu))
            .or_else(|| self.micro_place(machine, vcpu, false))
    }

    fn micro_place(&mut self, machine: &Machine, vcpu: VcpuId, free_only: bool) -> Option<PcpuId> {
        for pcpu in self.micro_pcpus() {
            if free_only && !self.is_free(machine, pcpu) {
                continue;
            }
            if self.has_room(self.waiting[pcpu].is_some()) {
                return Some(pcpu);
            }
            self.turned_away[pcpu] = Some(machine.vcpus[vcpu].vm);
        }
        None
    }

    fn has_room(&self, is_taken: bool) -> bool {
        let seen = PlacementObservation { queued_count: u32::from(is_taken), affinity_allows: 1 };
        policy::decide_on_placement(&self.rules, &seen) == PlacementDecision::Queue
    }

    /// Moves a waiting vCPU of the normal pool to a pCPU that has a micro slice for it, if there is one.
    fn accelerate(&mut self, machine: &mut Machine, vcpu: VcpuId, cause: Cause) -> Request {
        if self.normal.is_ahead_of_who_waits(machine, vcpu) {
            machine.pool.count_failed_pulls(cause.into(), FailedPull::VmAhead, 1);
            return Request::VmAhead;
        }
        let Some(pcpu) = self.place(machine, vcpu) else {
            let vm = machine.vcpus[vcpu].vm;
            self.first_turned_away[vm].get_or_insert(vcpu);
            machine.pool.count_failed_pulls(cause.into(), FailedPull::QueueFull, 1);
            return Request::NoRoom;
        };
        self.request(machine, vcpu, pcpu, cause)
    }

    /// Moves a waiting vCPU of the normal pool to this pCPU, for a micro slice.
    fn request(&mut self, machine: &mut Machine, vcpu: VcpuId, pcpu: PcpuId, cause: Cause) -> Request {
        if !self.normal.take_out(machine, vcpu) {
            machine.pool.count_failed_pulls(cause.into(), FailedPull::LeftQueue, 1);
            return Request::LeftQueue;
        }
        self.members[vcpu].cause = cause;
        self.enter(machine, vcpu, pcpu);
        Request::Granted
    }

    /// A runnable vCPU, in no queue of the normal pool, waits for a micro slice on this pCPU from now on.
    fn enter(&mut self, machine: &mut Machine, vcpu: VcpuId, pcpu: PcpuId) {
        let home = machine.vcpus[vcpu].pcpu;
        let class = machine.vcpus[vcpu].class.into();
        let member = &mut self.members[vcpu];
        (member.micro_pcpu, member.home) = (pcpu, home);
        let cause = AccelerationCause::from(member.cause);
        machine.set_requested(vcpu, true);
        self.waiting[pcpu] = Some(vcpu);
        machine.pool.count_acceleration(class, cause);
        machine.emit(TraceEvent::Accelerated { vcpu, pcpu, cause, class });
        if self.is_free(machine, pcpu) || !self.is_micro_pcpu(pcpu) {
            machine.request_schedule(pcpu);
        }
    }

    /// Ends a membership: the vCPU is the normal pool's again.
    fn leave(&mut self, machine: &mut Machine, vcpu: VcpuId) {
        let member = &mut self.members[vcpu];
        member.micro_pcpu = PcpuId::NONE;
        let home = member.home;
        machine.set_requested(vcpu, false);
        machine.vcpus[vcpu].pcpu = home;
        machine.count_return(vcpu);
        machine.emit(TraceEvent::ReturnedToNormalPool { vcpu, pcpu: home });
    }

    fn give_back(&mut self, machine: &mut Machine, vcpu: VcpuId) {
        self.leave(machine, vcpu);
        self.normal.put_back(machine, vcpu);
        self.normal.tickle(machine, vcpu);
    }

    /// After a micro slice, to the normal pool's queues. The prototype's code wakes it there, which boosts it; but boosted siblings
    /// that have answered come and go hundreds of thousands of times a second here, and those that owe an answer starve,
    /// which nothing in the paper suggests.
    fn back_to_normal(&mut self, machine: &mut Machine, vcpu: VcpuId) {
        if self.prototype {
            self.normal.forgive(vcpu);
        }
        self.normal.put_back(machine, vcpu);
        self.normal.tickle(machine, vcpu);
    }

    /// Its turn on a micro pCPU has ended: the normal pool accounts for it.
    fn stops(&mut self, machine: &Machine, vcpu: VcpuId) {
        self.normal.charge(machine.now_ns, vcpu);
        if machine.vcpus[vcpu].state == VcpuState::Blocked {
            self.normal.blocked(vcpu);
        }
    }

    fn begin_micro_slice(&mut self, machine: &mut Machine, pcpu: PcpuId, vcpu: VcpuId) -> Pick {
        self.normal.set_idle(pcpu, false);
        self.normal.begin_run(machine.now_ns, vcpu);
        machine.vcpus[vcpu].pcpu = pcpu;
        self.members[vcpu].began_ns = machine.now_ns;
        self.for_a_micro_slice(machine, vcpu)
    }

    /// A micro slice isn't cut short by anything but its vCPU (paper, section 5).
    fn goes_on_with_micro_slice(
        &self,
        machine: &Machine,
        pcpu: PcpuId,
        vcpu: VcpuId,
        reason: StopReason,
    ) -> Option<Pick> {
        let slice_end_ns = machine.pcpus[pcpu].slice_end_ns;
        let runnable = machine.vcpus[vcpu].state != VcpuState::Blocked;
        // In the prototype it ends with the pCPU's stay in the pool.
        let goes_on = self.is_member(vcpu, pcpu)
            && (self.is_micro_pcpu(pcpu) || !self.prototype)
            && runnable
            && machine.now_ns < slice_end_ns
            && reason == StopReason::Preempted;
        goes_on.then_some(Pick { vcpu, slice_end_ns })
    }

    /// A micro pCPU chooses: who waits for it, who was woken, or whom the core lends it to.
    fn first_on_micro_pcpu(
        &mut self,
        machine: &mut Machine,
        pcpu: PcpuId,
        stopped: Option<Stopped>,
    ) -> First {
        // As sched_ext does, it chooses before the vCPU whose micro slice is over can be asked for again.
        let mut next = self.waiting[pcpu].take();
        self.ask_again(machine, pcpu);
        if next.is_none() {
            next = self.take_woken(machine, pcpu);
        }
        let borrower = stopped.filter(|&(vcpu, _)| self.lends() && !self.is_member(vcpu, pcpu));
        if borrower.is_some() && next.is_none() {
            return First::Core(borrower);
        }
        if let Some((vcpu, reason)) = stopped {
            self.stops(machine, vcpu);
            if self.is_member(vcpu, pcpu) {
                self.end_micro_slice(machine, vcpu, pcpu);
            } else if machine.vcpus[vcpu].state == VcpuState::Blocked {
                // It comes back when it wakes.
            } else if borrower.is_some() {
                self.call_back(machine, vcpu, pcpu);
            } else {
                self.evict(machine, vcpu, pcpu, reason);
            }
        }
        match next.or_else(|| self.waiting[pcpu].take()) {
            None if self.lends() => First::Core(None),
            next => First::Mechanisms(next.map(|vcpu| self.begin_micro_slice(machine, pcpu, vcpu))),
        }
    }

    /// A micro slice is over, one way or another.
    fn end_micro_slice(&mut self, machine: &mut Machine, vcpu: VcpuId, pcpu: PcpuId) {
        let host = &machine.vcpus[vcpu];
        let member = &self.members[vcpu];
        let blocked = host.state == VcpuState::Blocked;
        let ran_ns = machine.now_ns - member.began_ns;
        // The prototype doesn't know which interrupt a request was about.
        let awaited = if self.prototype { u8::MAX } else { interrupt_of(member.cause) };
        let answer = self.siblings.answer_of(host.owes_answer);
        let seen = MicroSliceObservation {
            guest_class: host.class.into(),
            interrupt_pending: u32::from(host.pending_interrupts & awaited != 0),
            blocked: u32::from(blocked),
            retry_count: member.retries,
            answer: answer.into(),
            reserved: 0,
        };
        let cause = if answer == SiblingAnswer::Owed { Cause::CallFunctionIpi } else { member.cause };
        let decision = policy::decide_after_micro_slice(&self.rules, &seen);
        let outcome = decision.outcome.get();
        if matches!(outcome, Some(MicroSliceOutcome::StillCritical | MicroSliceOutcome::Unhandled)) {
            machine.pool.slice_ended_unfinished += 1;
        }
        machine.pool.micro_slices.record(ran_ns);
        if self.is_micro_pcpu(pcpu) {
            self.seen.micro_busy_ns += machine.now_ns - member.began_ns.max(self.stepped_at_ns);
        }
        machine.pcpus[pcpu].slice_end_ns = u64::MAX;
        self.leave(machine, vcpu);
        if self.prototype && blocked {
            self.members[vcpu].blocked_at = pcpu;
        }
        self.new_turn(machine, vcpu, pcpu);
        if !blocked {
            self.back_to_normal(machine, vcpu);
        }
        let member = &mut self.members[vcpu];
        if decision.retry != 0 {
            member.retries += 1;
            self.accelerate(machine, vcpu, cause);
        } else {
            member.retries = 0;
        }
    }

    fn is_micro_pcpu(&self, pcpu: PcpuId) -> bool {
        pcpu.index() + self.micro_count >= self.waiting.len()
    }

    /// Whether it is queued for a micro slice on this pCPU, or runs one there.
    fn is_member(&self, vcpu: VcpuId, pcpu: PcpuId) -> bool {
        self.members[vcpu].micro_pcpu == pcpu
    }
}

impl<Normal: Core> Mechanisms for MicroSliced<Normal> {
    type Core = Normal;

    fn core(&mut self) -> &mut Normal {
        &mut self.normal
    }

    fn wakes(&mut self, machine: &mut Machine, vcpu: VcpuId) -> bool {
        let at = self.wakes_at(vcpu);
        if let Some(pcpu) = at {
            self.enter(machine, vcpu, pcpu);
        }
        at.is_some()
    }

    fn stopped(&mut self, machine: &mut Machine, vcpu: VcpuId) {
        self.members[vcpu].spin = Spin::NONE;
        if machine.vcpus[vcpu].state == VcpuState::Blocked {
            self.note_unclaimed(machine, machine.vcpus[vcpu].vm);
        }
    }

    fn goes_first(&mut self, machine: &mut Machine, pcpu: PcpuId, stopped: Option<Stopped>) -> First {
        if let Some((vcpu, reason)) = stopped
            && let Some(pick) = self.goes_on_with_micro_slice(machine, pcpu, vcpu, reason)
        {
            return First::Mechanisms(Some(pick));
        }
        if self.is_micro_pcpu(pcpu) {
            self.first_on_micro_pcpu(machine, pcpu, stopped)
        } else {
            self.first_at_home(machine, pcpu, stopped)
        }
    }

    fn turn_ends(&mut self, machine: &mut Machine, pcpu: PcpuId, (vcpu, reason): Stopped) -> Option<Pick> {
        if self.is_rate_limited(machine, vcpu, reason) {
            return None;
        }
        self.finishes_first(machine, vcpu, pcpu, reason)
    }

    fn turn_begins(&mut self, machine: &Machine, pick: Pick) -> Pick {
        self.comes_back(machine, pick)
    }
}

impl<Normal: Core> Scheduler for MicroSliced<Normal> {
    fn wake(&mut self, machine: &mut Machine, vcpu: VcpuId) {
        ladder::wake(self, machine, vcpu);
    }

    fn schedule(
        &mut self,
        machine: &mut Machine,
        pcpu: PcpuId,
        stopped: Option<(VcpuId, StopReason)>,
    ) -> Option<Pick> {
        ladder::schedule(self, machine, pcpu, stopped)
    }

    fn yields(
        &mut self,
        machine: &mut Machine,
        vcpu: VcpuId,
        pcpu: PcpuId,
        cause: YieldCause,
    ) -> YieldAnswer {
        if self.prototype && self.is_micro_pcpu(pcpu) {
            return self.spins_on(machine, pcpu);
        }
        let host = &machine.vcpus[vcpu];
        let decision = self.yield_answers.get(cause, host);
        self.count_urgent(host.class, cause, 1);
        let scope = decision.scope.get().unwrap_or(PassScope::None);
        let mut asked_for_nobody = true;
        if scope != PassScope::None {
            let reason = decision.cause.get().unwrap_or(Cause::None);
            let found = match self.pass_without_request(machine, vcpu, scope) {
                None => {
                    asked_for_nobody = false;
                    self.pass(machine, vcpu, scope, reason)
                }
                Some(found) => {
                    debug_assert_eq!(
                        {
                            // Not a pass, which has a short cut of its own.
                            let siblings = siblings_round_from(machine, vcpu, self.prototype);
                            self.visit(machine, siblings, scope, reason)
                        },
                        found,
                        "the short cut is exact"
                    );
                    found
                }
            };
            if self.keeps_spinning(cause, scope, found, u64::MAX) {
                return self.go_on(machine, vcpu, scope, asked_for_nobody, u64::MAX);
            }
            let spun_ns = self.spun_ns(machine.now_ns, vcpu);
            if self.keeps_spinning(cause, scope, found, spun_ns) {
                let until_ns = machine.now_ns - spun_ns + self.rules.patience_ns;
                return self.go_on(machine, vcpu, scope, asked_for_nobody, until_ns);
            }
        }
        if self.is_member(vcpu, pcpu) {
            // It waits itself: the micro pCPU is for those who can go on.
            return YieldAnswer::Yield;
        }
        match self.normal.yields(machine, vcpu, pcpu, cause) {
            YieldAnswer::KeepSpinning { until_ns } => {
                self.go_on(machine, vcpu, scope, asked_for_nobody, until_ns)
            }
            YieldAnswer::Yield => YieldAnswer::Yield,
        }
    }

    fn not_asked(&mut self, class: policy::GuestClass, exits: u64) {
        self.count_urgent(class, YieldCause::Ple, exits);
    }

    fn interrupt(&mut self, machine: &mut Machine, vcpu: VcpuId, kind: InterruptKind) {
        if kind == InterruptKind::Virq {
            self.seen.irq_count += 1;
        }
        let seen = InterruptObservation {
            kind: kind.into(),
            recipient_state: self.policy_state(machine, vcpu).into(),
            micro_pcpu_count: self.micro_count as u32,
            guest_known: 1,
            recipient_goes_first: u32::from(self.normal.is_next(vcpu)),
            reserved: 0,
        };
        let decision = policy::decide_on_interrupt(&self.rules, &seen);
        if let Some(cause) = decision.cause.get().filter(|&cause| cause != Cause::None) {
            self.accelerate(machine, vcpu, cause);
        }
    }

    fn woken(&mut self, machine: &mut Machine, vcpu: VcpuId, by: WokenBy) {
        if !self.normal.is_next(vcpu) {
            self.was_woken(machine, vcpu, by);
        }
    }

    fn tick_ns(&self) -> u64 {
        self.normal.tick_ns()
    }

    fn tick(&mut self, machine: &mut Machine, pcpu: PcpuId) {
        self.normal.tick(machine, pcpu);
    }

    fn timer(&mut self, machine: &mut Machine) -> u64 {
        let now_ns = machine.now_ns;
        let next_accounting_ns = self.normal.timer(machine);
        if now_ns >= self.next_resize_ns {
            self.step_pool_size(machine);
        }
        next_accounting_ns.min(self.next_resize_ns)
    }

    fn is_micro(&self, pcpu: PcpuId) -> bool {
        self.is_micro_pcpu(pcpu)
    }

    fn shares_by_vm(&self) -> bool {
        self.normal.shares_by_vm()
    }

    fn lends(&self) -> bool {
        self.config.lends
    }
}

#[cfg(test)]
mod tests;
