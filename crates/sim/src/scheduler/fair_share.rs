//! The real scheduler's normal pool: `policy/fair_share.h` over sched_ext's queues, as in `bpf/normal_pool.bpf.h`,
//! `bpf/next_turn.bpf.h` and `bpf/idle.bpf.h`.
//!
//! Problem.   Share pCPUs among VMs by weight, serve waking vCPUs fast: on a stock Linux host, so by sched_ext's rules.
//! Mechanism. Two queues for the whole host: who woke within its share (boosted), first come; everybody else by virtual time.
//!            Who wakes goes to an idle pCPU, its last one first, without passing a queue; if none is idle and it is
//!            boosted, it preempts whoever runs where it ran last, or on one of the next three, lent ones too, and wasn't woken itself,
//!            nor is of a VM that has had less.
//!            A clock per VM makes up for what those of its vCPUs miss (docs/scheduler.md, Shares). sched_ext asks for the next task before it queues the one whose turn is over, so that one goes on if its clock is still the furthest
//!            behind, or if nobody else waits. Else who ran here last goes before others, if its clock isn't a slice ahead and
//!            nobody waits for long. Turns end at ticks. A pause-loop exit gives the pCPU up if KVM finds a sibling to yield to
//!            (`kvm_vcpu_on_spin`): to that one, if its clock isn't a slice ahead of the first that waits.
//! Limits.    No host tasks, no `cpu.max`. sched_ext's watchdog isn't modelled; that nobody waits much longer than two
//!            seconds is (`boost_starving`).

mod clocks;
mod queues;
mod vm_share;

use self::clocks::{Clocks, FIRST_CLOCK_NS, Furthest};
use self::queues::{Place, Waiter, ran_here_last};
use self::vm_share::VmShare;
use super::{NormalPool, Pick, Scheduler, YieldAnswer};
use crate::bits::Bits;
use crate::config::FairSharePool;
use crate::ids::{IdVec, PcpuId, VcpuId, VmId};
use crate::machine::{Machine, VcpuState};
use crate::trace_event::StopReason;
use microslice_policy as policy;
use microslice_policy::{FairShareConfig, WakeupDecision, WakeupObservation, YieldCause};
use std::collections::{BTreeSet, VecDeque};

/// `STARVING_AFTER_NS` and `SWEEP_INTERVAL_NS` of `bpf/next_turn.bpf.h`.
const STARVING_AFTER_NS: u64 = 2_000_000_000;
const SWEEP_INTERVAL_NS: u64 = 250_000_000;
/// How many pCPUs are looked at for one that gives way: `PREEMPT_LOOK_MAX` of `bpf/home.bpf.h`.
const PREEMPT_LOOK_MAX: usize = 4;

struct Account {
    vtime_ns: u64,
    charged_until_ns: u64,
    place: Place,
    queued_at_ns: u64,
    /// The turn that it waits for.
    slice_ns: u64,
    /// It was blocked when it came to where it waits or runs.
    was_blocked: bool,
    /// It runs because it has waited for so long, or goes on after a micro slice, not because of its clock.
    out_of_order: bool,
    vm: VmId,
}

pub struct FairShare {
    rules: FairShareConfig,
    tick_ns: u64,
    accounts: IdVec<VcpuId, Account>,
    vms: IdVec<VmId, VmShare>,
    boosted: VecDeque<VcpuId>,
    ordered: BTreeSet<Waiter>,
    local: IdVec<PcpuId, Option<VcpuId>>,
    /// How many have come to `ordered`.
    came: u64,
    clocks: Clocks,
    /// Of each pCPU: its turn's length, and whether who runs there was woken for it.
    turns: IdVec<PcpuId, Turn>,
    usable: IdVec<PcpuId, bool>,
    idle: Bits<PcpuId>,
    /// Micro pCPUs that nobody asks for, and that nobody waited for so far.
    lendable: Bits<PcpuId>,
    /// The last one that waits, and that such a pCPU comes for.
    fetched: Option<VcpuId>,
    /// To whom the vCPU that runs on each pCPU yields.
    heirs: IdVec<PcpuId, Option<VcpuId>>,
    /// Of each pCPU: whose turn a micro slice has interrupted there. It waits like any other.
    interrupted: IdVec<PcpuId, Option<Interrupted>>,
    /// Where somebody preempts whose last pCPU is another pool's.
    preempted_last: PcpuId,
    next_sweep_ns: u64,
}

#[derive(Clone, Copy)]
struct Turn {
    vcpu: VcpuId,
    slice_ns: u64,
    was_woken: bool,
}

/// What is left of a turn.
#[derive(Clone, Copy)]
struct Interrupted {
    vcpu: VcpuId,
    left_ns: u64,
}

impl Turn {
    const NONE: Self = Self { vcpu: VcpuId::NONE, slice_ns: 0, was_woken: false };
}

impl FairShare {
    pub fn new(config: &FairSharePool, machine: &Machine) -> Self {
        let pcpus = machine.pcpus.len();
        let account = |host: &crate::machine::HostVcpu| Account {
            vtime_ns: FIRST_CLOCK_NS,
            charged_until_ns: 0,
            place: Place::Nowhere,
            queued_at_ns: 0,
            slice_ns: config.slice_ns,
            was_blocked: false,
            out_of_order: false,
            vm: host.vm,
        };
        Self {
            rules: FairShareConfig::with_slice(config.slice_ns),
            tick_ns: config.tick_ns,
            accounts: machine.vcpus.iter().map(account).collect(),
            vms: VmShare::all(&machine.vms),
            boosted: VecDeque::new(),
            ordered: BTreeSet::new(),
            local: IdVec::of(None, pcpus),
            came: 0,
            clocks: Clocks::new(pcpus),
            turns: IdVec::of(Turn::NONE, pcpus),
            usable: IdVec::of(true, pcpus),
            idle: Bits::new(pcpus, true),
            lendable: Bits::new(pcpus, false),
            fetched: None,
            heirs: IdVec::of(None, pcpus),
            interrupted: IdVec::of(None, pcpus),
            preempted_last: PcpuId::new(0),
            next_sweep_ns: SWEEP_INTERVAL_NS,
        }
    }

    // ---- Clocks ----

    /// `clocks_of`: what its clock and its VM's are compared with.
    fn furthest(&self, machine: &Machine, vcpu: VcpuId) -> Furthest {
        let host = &machine.vcpus[vcpu];
        self.clocks.of(host.pcpu, machine.vms[host.vm].is_narrow())
    }

    /// `queue_clock`: from when on, and for how long, it runs.
    fn queue_clock(&mut self, machine: &Machine, vcpu: VcpuId) -> WakeupDecision {
        let furthest = self.furthest(machine, vcpu);
        self.keep_up(vcpu, furthest.vm_ns);
        let account = &self.accounts[vcpu];
        let seen = WakeupObservation {
            pool_vtime_ns: furthest.vcpu_ns,
            vcpu_vtime_ns: account.vtime_ns,
            weight: self.weight_of(account.vm),
            was_blocked: u32::from(account.was_blocked),
            reserved: 0,
        };
        let decision = policy::decide_on_wakeup(&self.rules, &seen);
        let account = &mut self.accounts[vcpu];
        account.vtime_ns = decision.vtime_ns;
        account.slice_ns = decision.slice_ns;
        decision
    }

    /// `keep_up`: its VM's clock isn't left further behind the first one's than it can catch up with.
    fn keep_up(&mut self, vcpu: VcpuId, first_vm_ns: u64) {
        let vm = &mut self.vms[self.accounts[vcpu].vm];
        vm.first_vm_ns = first_vm_ns;
        vm.vtime_ns = policy::vm_clock(&self.rules, &vm.size(), first_vm_ns, vm.vtime_ns);
    }

    /// `advance_clocks`: those of the pool and of the pCPU are of whoever was chosen by them. A micro slice isn't, nor is what
    /// a light one gets because it has waited for long, nor the rest of a turn that a micro slice has interrupted.
    fn advance_clocks(&mut self, machine: &Machine, pcpu: PcpuId, vcpu: VcpuId) {
        let account = &mut self.accounts[vcpu];
        let vm_ns = self.vms[account.vm].vtime_ns;
        if !std::mem::take(&mut account.out_of_order) {
            self.clocks.advance(pcpu, account.vtime_ns, vm_ns);
        }
        let account = &self.accounts[vcpu];
        let is_narrow = machine.vms[account.vm].is_narrow();
        self.keep_up(vcpu, self.clocks.of(pcpu, is_narrow).vm_ns);
    }

    /// `forgive_debt`: where nobody else waited, what it ran for isn't owed.
    fn forgive_debt(&mut self, machine: &Machine, vcpu: VcpuId) {
        let clock_ns = self.furthest(machine, vcpu).vcpu_ns;
        let account = &mut self.accounts[vcpu];
        if policy::vtime_before(clock_ns, account.vtime_ns) {
            account.vtime_ns = clock_ns;
        }
    }

    /// `settle_clock`: who ran where nobody waited owes nothing for it, nor does its VM, and is owed nothing.
    fn settle_clock(&mut self, machine: &Machine, vcpu: VcpuId) {
        let furthest = self.furthest(machine, vcpu);
        let account = &mut self.accounts[vcpu];
        account.vtime_ns = furthest.vcpu_ns;
        let vm = &mut self.vms[account.vm];
        if policy::vtime_before(furthest.vm_ns, vm.vtime_ns) {
            vm.vtime_ns = furthest.vm_ns;
        }
    }

    fn weight_of(&self, vm: VmId) -> u64 {
        let vm = &self.vms[vm];
        policy::vcpu_weight(vm.weight, vm.active_vcpus)
    }

    /// What running is charged by.
    fn charged_weight_of(&self, vm: VmId) -> u64 {
        let weight = self.weight_of(vm);
        let vm = &self.vms[vm];
        policy::catch_up_weight(&self.rules, &vm.size(), weight, vm.first_vm_ns, vm.vtime_ns)
    }

    // ---- pCPUs ----

    /// `pick_idle_normal`: the pCPU that it ran on last, or any other. It is idle no longer.
    fn claim_idle(&mut self, machine: &Machine, vcpu: VcpuId) -> Option<PcpuId> {
        let home = machine.vcpus[vcpu].pcpu;
        let pcpu = self.idle.round_from(home).find(|&pcpu| machine.allows(vcpu, pcpu))?;
        self.idle.set(pcpu, false);
        Some(pcpu)
    }

    /// `kick_idle_normal`: an idle pCPU comes and gets it, or a micro-sliced one that nobody asks for.
    fn kick_idle(&mut self, machine: &mut Machine, vcpu: VcpuId) -> bool {
        match self.claim_idle(machine, vcpu) {
            Some(pcpu) => machine.request_schedule(pcpu),
            None => return self.kick_lendable(machine, vcpu),
        }
        true
    }

    fn kick_lendable(&mut self, machine: &mut Machine, vcpu: VcpuId) -> bool {
        let pcpu = self.lendable.round_from(PcpuId::new(0)).find(|&pcpu| machine.allows(vcpu, pcpu));
        if let Some(pcpu) = pcpu {
            self.lendable.set(pcpu, false);
            machine.request_schedule(pcpu);
            self.fetched = Some(vcpu);
        }
        pcpu.is_some()
    }

    /// Which of the idle ones it counts to.
    fn note_idle(&mut self, pcpu: PcpuId, idle: bool) {
        let set = if self.usable[pcpu] { &mut self.idle } else { &mut self.lendable };
        set.set(pcpu, idle);
    }

    /// Who has a turn of this pool on a pCPU. A micro slice of who had the last one there is none.
    fn on_turn(&self, machine: &Machine, pcpu: PcpuId) -> Option<VcpuId> {
        let has_turn = |vcpu: &VcpuId| self.turns[pcpu].vcpu == *vcpu && !machine.vcpus[*vcpu].requested;
        machine.current(pcpu).filter(has_turn)
    }

    /// Whether a turn of the normal pool runs on a micro pCPU.
    fn is_lent(&self, machine: &Machine, pcpu: PcpuId) -> bool {
        !self.usable[pcpu] && self.on_turn(machine, pcpu).is_some()
    }

    /// `preempt_for`: it takes over the pCPU that it ran on last, or one of the next few, if what runs there gives way.
    fn preempt_for(&mut self, machine: &mut Machine, vcpu: VcpuId) {
        let mut home = machine.vcpus[vcpu].pcpu;
        if !self.usable[home] && !self.is_lent(machine, home) {
            let mut others = machine.pcpus.round_from(self.preempted_last.plus(1));
            let Some(other) = others.find(|&other| self.usable[other]) else { return };
            (home, self.preempted_last) = (other, other);
        }
        let mut near = machine.pcpus.round_from(home).take(PREEMPT_LOOK_MAX);
        let gives_way = |&pcpu: &PcpuId| {
            (self.usable[pcpu] || self.is_lent(machine, pcpu))
                && machine.allows(vcpu, pcpu)
                && !self.turns[pcpu].was_woken
                && (machine.is_idle(pcpu)
                    || self.on_turn(machine, pcpu).is_some_and(|on| !self.is_of_vm_ahead(vcpu, on)))
        };
        if let Some(pcpu) = near.find(gives_way) {
            machine.request_schedule(pcpu);
        }
    }

    /// `goes_on`, `stay_alone`: whether who ran here until now begins another turn, before anybody of `ordered` does.
    fn goes_on(
        &mut self,
        machine: &Machine,
        pcpu: PcpuId,
        ran: VcpuId,
        gave_way: bool,
        others_wait: bool,
    ) -> bool {
        let vtime_ns = self.accounts[ran].vtime_ns;
        match self.first_in_line(machine, pcpu) {
            Some(first) if !gave_way && policy::vtime_before(vtime_ns, first.vtime_ns) => true,
            _ if others_wait => false,
            _ => {
                self.settle_clock(machine, ran);
                true
            }
        }
    }

    fn begin_turn(&mut self, machine: &mut Machine, pcpu: PcpuId, vcpu: VcpuId) -> Pick {
        let account = &self.accounts[vcpu];
        let (slice_ns, was_woken) = (account.slice_ns, account.was_blocked);
        self.turns[pcpu] = Turn { vcpu, slice_ns, was_woken };
        self.begin_run(machine.now_ns, vcpu);
        self.advance_clocks(machine, pcpu, vcpu);
        machine.vcpus[vcpu].pcpu = pcpu;
        self.note_idle(pcpu, false);
        // Turns end at ticks.
        Pick { vcpu, slice_end_ns: u64::MAX }
    }

    /// Proportional shares may not bring sched_ext's watchdog.
    fn boost_starving(&mut self, machine: &mut Machine) {
        let starving = |vcpu: VcpuId| machine.now_ns - self.accounts[vcpu].queued_at_ns > STARVING_AFTER_NS;
        let starving: Vec<_> =
            self.ordered.iter().rev().map(|waiter| waiter.vcpu).filter(|&vcpu| starving(vcpu)).collect();
        for vcpu in starving {
            self.take(vcpu);
            self.put_boosted(vcpu, false);
            self.accounts[vcpu].out_of_order = true;
        }
    }
}

impl NormalPool for FairShare {
    fn set_usable(&mut self, pcpu: PcpuId, usable: bool) -> Vec<VcpuId> {
        self.usable[pcpu] = usable;
        self.idle.set(pcpu, false);
        self.lendable.set(pcpu, false);
        self.interrupted[pcpu] = None;
        let left = if usable { None } else { self.local[pcpu] };
        left.map(|vcpu| self.take(vcpu)).into_iter().collect()
    }

    fn set_idle(&mut self, pcpu: PcpuId, idle: bool) {
        self.note_idle(pcpu, idle);
    }

    fn enqueue(&mut self, machine: &mut Machine, vcpu: VcpuId) {
        self.queue_clock(machine, vcpu);
        self.put_ordered(machine, vcpu);
    }

    fn enqueue_first(&mut self, _machine: &mut Machine, vcpu: VcpuId) {
        self.put_boosted(vcpu, true);
    }

    fn tickle(&mut self, machine: &mut Machine, vcpu: VcpuId) {
        self.kick_idle(machine, vcpu);
    }

    fn remove(&mut self, _machine: &Machine, vcpu: VcpuId) -> bool {
        let waits = matches!(self.accounts[vcpu].place, Place::Boosted | Place::Ordered(_));
        if waits {
            self.take(vcpu);
        }
        waits
    }

    fn charge(&mut self, now_ns: u64, vcpu: VcpuId) {
        let weight = self.charged_weight_of(self.accounts[vcpu].vm);
        let account = &mut self.accounts[vcpu];
        let ran_ns = now_ns - std::mem::replace(&mut account.charged_until_ns, now_ns);
        account.vtime_ns += policy::charge(ran_ns, weight);
        let vm = &mut self.vms[account.vm];
        vm.vtime_ns += policy::vm_charge(ran_ns, vm.weight);
    }

    fn begin_run(&mut self, now_ns: u64, vcpu: VcpuId) {
        let account = &mut self.accounts[vcpu];
        account.charged_until_ns = now_ns;
        account.was_blocked = false;
    }

    fn blocked(&mut self, vcpu: VcpuId) {
        self.vms[self.accounts[vcpu].vm].active_vcpus -= 1;
    }

    fn call_back(&mut self, machine: &mut Machine, vcpu: VcpuId, pcpu: PcpuId) {
        let was_woken = self.turns[pcpu].was_woken;
        self.queue_clock(machine, vcpu);
        if !was_woken {
            self.put_ordered(machine, vcpu);
            self.kick_idle(machine, vcpu);
            return;
        }
        let account = &mut self.accounts[vcpu];
        (account.slice_ns, account.was_blocked) = (self.rules.boost_slice_ns, true);
        self.put_boosted(vcpu, true);
        if !self.kick_idle(machine, vcpu) {
            self.preempt_for(machine, vcpu);
        }
    }

    fn gives_way(&self, machine: &Machine, pcpu: PcpuId) -> bool {
        self.usable[pcpu] && !self.turns[pcpu].was_woken && self.on_turn(machine, pcpu).is_some()
    }

    /// A micro slice is taken from whoever would have its pCPU. Clocks of vCPUs that may run on some pCPUs only say nothing about the
    /// others.
    fn is_over_its_share(&self, machine: &Machine, vcpu: VcpuId) -> bool {
        let is_narrow = |vcpu: VcpuId| machine.vms[machine.vcpus[vcpu].vm].is_narrow();
        let first = self.ordered.first().filter(|first| !is_narrow(first.vcpu) && !is_narrow(vcpu));
        first.is_some_and(|first| self.is_of_vm_ahead(vcpu, first.vcpu))
    }

    fn is_of_vm_ahead(&self, vcpu: VcpuId, other: VcpuId) -> bool {
        let [vm, other] = [vcpu, other].map(|vcpu| &self.vms[self.accounts[vcpu].vm]);
        policy::vm_is_ahead(&self.rules, &vm.size(), vm.vtime_ns, &other.size(), other.vtime_ns)
    }

    fn note_interrupted(&mut self, machine: &Machine, vcpu: VcpuId, pcpu: PcpuId) {
        let ran_ns = machine.now_ns - self.accounts[vcpu].charged_until_ns;
        let left_ns = self.turns[pcpu].slice_ns.saturating_sub(ran_ns);
        self.interrupted[pcpu] = (left_ns > 0).then_some(Interrupted { vcpu, left_ns });
    }

    fn goes_first(&self, vcpu: VcpuId) -> bool {
        matches!(self.accounts[vcpu].place, Place::Boosted | Place::Local(_)) || self.fetched == Some(vcpu)
    }
}

impl Scheduler for FairShare {
    fn wake(&mut self, machine: &mut Machine, vcpu: VcpuId) {
        let account = &mut self.accounts[vcpu];
        account.was_blocked = true;
        self.fetched = None;
        self.vms[account.vm].active_vcpus += 1;
        let decision = self.queue_clock(machine, vcpu);
        if let Some(pcpu) = self.claim_idle(machine, vcpu) {
            self.forgive_debt(machine, vcpu);
            self.accounts[vcpu].place = Place::Local(pcpu);
            self.local[pcpu] = Some(vcpu);
            machine.request_schedule(pcpu);
        } else if decision.boost != 0 {
            self.put_boosted(vcpu, false);
            if !self.kick_lendable(machine, vcpu) {
                self.preempt_for(machine, vcpu);
            }
        } else {
            self.put_ordered(machine, vcpu);
            self.kick_lendable(machine, vcpu);
        }
    }

    fn schedule(
        &mut self,
        machine: &mut Machine,
        pcpu: PcpuId,
        stopped: Option<(VcpuId, StopReason)>,
    ) -> Option<Pick> {
        let mut ran = None;
        if let Some((vcpu, reason)) = stopped {
            self.charge(machine.now_ns, vcpu);
            if machine.vcpus[vcpu].state == VcpuState::Blocked {
                self.blocked(vcpu);
            } else {
                ran = Some((vcpu, matches!(reason, StopReason::Ple | StopReason::IpiWait)));
            }
        }
        let interrupted = self.interrupted[pcpu].take();
        let heir = self.heirs[pcpu].take().filter(|&heir| {
            ran.is_some_and(|(_, gave_way)| gave_way) && self.may_inherit(machine, pcpu, heir)
        });
        let first = self.local[pcpu].or(heir).or_else(|| self.first_boosted(machine, pcpu));
        let first = first.or_else(|| self.resumed(machine, pcpu, interrupted));
        let next = first.or_else(|| self.first_ordered(machine, pcpu));
        if let Some((vcpu, gave_way)) = ran
            && first.is_none()
            && self.goes_on(machine, pcpu, vcpu, gave_way, next.is_some())
        {
            self.accounts[vcpu].slice_ns = self.rules.slice_ns;
            return Some(self.begin_turn(machine, pcpu, vcpu));
        }
        if let Some(vcpu) = next {
            if next == heir {
                machine.pool.overtakes[0] += 1;
            } else if !self.is_first(vcpu) && ran_here_last(machine, vcpu, pcpu) {
                machine.pool.overtakes[1] += 1;
            }
        }
        let next = next.map(|vcpu| self.take(vcpu));
        if let Some((vcpu, _)) = ran {
            self.enqueue(machine, vcpu);
            self.kick_idle(machine, vcpu);
        }
        let Some(vcpu) = next else {
            self.note_idle(pcpu, true);
            return None;
        };
        Some(self.begin_turn(machine, pcpu, vcpu))
    }

    fn yields(
        &mut self,
        machine: &mut Machine,
        vcpu: VcpuId,
        pcpu: PcpuId,
        cause: YieldCause,
    ) -> YieldAnswer {
        if cause == YieldCause::Hlt {
            return YieldAnswer::Yield;
        }
        let vm = &mut self.vms[self.accounts[vcpu].vm];
        match machine.next_boostable(vm.first_vcpu, vm.vcpus, vm.yielded_to) {
            Some(sibling) => {
                vm.yielded_to = sibling;
                self.heirs[pcpu] = Some(sibling);
                YieldAnswer::Yield
            }
            None => YieldAnswer::KeepSpinning { until_ns: machine.now_ns },
        }
    }

    fn tick_ns(&self) -> u64 {
        self.tick_ns
    }

    fn shares_by_vm(&self) -> bool {
        true
    }

    fn tick(&mut self, machine: &mut Machine, pcpu: PcpuId) {
        let Some(vcpu) = machine.current(pcpu) else { return };
        let ran_ns = machine.now_ns - self.accounts[vcpu].charged_until_ns;
        if ran_ns >= self.turns[pcpu].slice_ns {
            machine.request_schedule(pcpu);
        }
    }

    fn timer(&mut self, machine: &mut Machine) -> u64 {
        if machine.now_ns >= self.next_sweep_ns {
            self.boost_starving(machine);
            self.next_sweep_ns += SWEEP_INTERVAL_NS;
        }
        self.next_sweep_ns
    }
}

#[cfg(test)]
mod tests;
