//! The real scheduler's normal pool: `policy/fair_share.h` over sched_ext's queues, by the same names as in
//! `bpf/core/` (clocks, idle, queues, turns).
//!
//! Problem.   Share pCPUs among VMs by weight, serve waking vCPUs fast: on a stock Linux host, so by
//!            sched_ext's rules.
//! Mechanism. Two queues for each domain of pCPUs (`domains.rs`): vCPUs that woke within their share
//!            (boosted), first come; all others by virtual time.
//!            A woken vCPU goes to an idle pCPU, its last one first, without passing a queue. If none is idle
//!            and it is boosted, it looks where it ran last, and on the next three. It preempts a vCPU there
//!            that wasn't woken itself, nor is of a VM that has had less.
//!            A clock per VM makes up for what those of its vCPUs miss (docs/explanation/shares.md, Shares).
//!            sched_ext asks for the next task before it queues the one whose turn is over. So that one goes
//!            on if its clock is still the furthest behind, or if no other waits. Else the vCPU that ran here
//!            last goes before others, if its clock isn't a slice ahead and none waits for long. Turns end at
//!            ticks. A pause-loop exit gives the pCPU up if KVM finds a sibling to yield to
//!            (`kvm_vcpu_on_spin`). That sibling gets it, if its clock isn't a slice ahead of the first
//!            waiter.
//! Limits.    Turns of host tasks are as long as vCPUs'. sched_ext's watchdog isn't modelled; that nobody
//!            waits much longer than two seconds is (`boost_starving`).

mod accounts;
mod clocks;
mod domains;
mod idle;
pub mod ladder;
mod queue_locks;
mod queues;
mod shares;
mod turns;

use self::clocks::{Clocks, FIRST_CLOCK_NS};
use self::domains::Domains;
use self::queue_locks::QueueLocks;
use self::queues::{DomainQueues, Place};
pub use self::queues::{LOOK_MAX, Waiter, ran_here_last};
use self::shares::{Cgroups, VmShare};
use self::turns::SWEEP_INTERVAL_NS;
use super::YieldAnswer;
use crate::bits::Bits;
use crate::config::FairSharePool;
use crate::events::StopReason;
use crate::ids::{DomainQueueId, IdVec, PcpuId, VcpuId, VmId};
use crate::machine::Machine;
use crate::scheduler::Scheduler;
use microslice_policy as policy;
use microslice_policy::FairShareConfig;

/// The core of a scheduler, as mechanisms see it: plain operations on its queues, accounts and pCPUs.
pub trait Core: Scheduler {
    // pCPUs
    /// Another pool has the first claim to a pCPU, or no longer; vCPUs that waited for just that one are
    /// returned.
    fn set_usable(&mut self, pcpu: PcpuId, usable: bool) -> Vec<VcpuId>;
    fn set_idle(&mut self, pcpu: PcpuId, idle: bool);
    /// Whether it runs a turn that nobody was woken for.
    fn runs_ordinary_turn(&self, _machine: &Machine, _pcpu: PcpuId) -> bool {
        false
    }

    // Queues
    /// A runnable vCPU comes, or comes back, to its queue.
    fn put_back(&mut self, machine: &mut Machine, vcpu: VcpuId);
    /// Likewise, and goes before all others.
    fn put_first(&mut self, machine: &mut Machine, vcpu: VcpuId);
    /// A pCPU that should look at its queue because of it does.
    fn tickle(&mut self, machine: &mut Machine, vcpu: VcpuId);
    /// Takes a waiting vCPU out of its queue, if it is in one.
    fn take_out(&mut self, machine: &Machine, vcpu: VcpuId) -> bool;
    /// A woken vCPU that waits runs before most others.
    fn is_next(&self, _vcpu: VcpuId) -> bool {
        false
    }

    // Turns
    /// Its turn on that pCPU is taken from it: it waits, and is as urgent as it was.
    fn cut_short(&mut self, machine: &mut Machine, vcpu: VcpuId, _pcpu: PcpuId) {
        self.put_back(machine, vcpu);
        self.tickle(machine, vcpu);
    }
    /// Its turn is about to be interrupted on the pCPU where it runs, and goes on there afterwards.
    fn interrupt_turn(&mut self, _machine: &Machine, _vcpu: VcpuId, _pcpu: PcpuId) {}
    /// Until when a vCPU that was stopped for that reason, and could go on, keeps its pCPU all the same.
    fn kept_until(&self, _machine: &Machine, _vcpu: VcpuId, _reason: StopReason) -> Option<u64> {
        None
    }
    /// It has yielded, but keeps its pCPU for now.
    fn has_yielded(&self, _vcpu: VcpuId) -> bool {
        false
    }

    // Accounts
    /// It runs from now on, wherever.
    fn begin_run(&mut self, now_ns: u64, vcpu: VcpuId);
    /// It has run until now, wherever.
    fn charge(&mut self, now_ns: u64, vcpu: VcpuId);
    /// It has blocked, elsewhere.
    fn blocked(&mut self, _vcpu: VcpuId) {}
    /// It comes back within its share, whatever it has used up.
    fn forgive(&mut self, _vcpu: VcpuId) {}
    /// Whether its VM has had more than that of another vCPU.
    fn is_of_vm_ahead(&self, _vcpu: VcpuId, _other: VcpuId) -> bool {
        false
    }
    /// Likewise, more than that of the first that waits.
    fn is_ahead_of_waiting_vcpus(&self, _machine: &Machine, _vcpu: VcpuId) -> bool {
        false
    }
}

/// Where mechanisms plug into [`FairShare`].
pub trait Hooks: Sized {
    fn new(machine: &Machine) -> Self;
    /// `vcpu`, which runs on `pcpu`, spins: what becomes of it?
    fn on_hint(core: &mut FairShare<Self>, machine: &mut Machine, vcpu: VcpuId, pcpu: PcpuId) -> YieldAnswer;
    /// The vCPU that runs next on this pCPU, before those in the queues: one of them, or the present one, for
    /// another turn. `gave_way`: that one has yielded.
    fn goes_first(
        core: &mut FairShare<Self>,
        machine: &mut Machine,
        pcpu: PcpuId,
        gave_way: bool,
    ) -> Option<VcpuId>;
    /// Of those that wait by virtual time, the one that goes before the first, if the clocks let it.
    fn goes_before<'a>(
        core: &'a FairShare<Self>,
        machine: &Machine,
        pcpu: PcpuId,
        first: &Waiter,
    ) -> Option<&'a Waiter>;
}

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
    /// Where its last turn of this pool began.
    home: PcpuId,
}

pub struct FairShare<H> {
    rules: FairShareConfig,
    tick_ns: u64,
    accounts: IdVec<VcpuId, Account>,
    vms: IdVec<VmId, VmShare>,
    cgroups: Cgroups,
    domains: Domains,
    queues: IdVec<DomainQueueId, DomainQueues>,
    /// Those in which a vCPU waits.
    occupied: Bits<DomainQueueId>,
    locks: QueueLocks,
    local: IdVec<PcpuId, Option<VcpuId>>,
    /// How many have come to a queue.
    came: u64,
    clocks: Clocks,
    /// Of each pCPU: its turn's length, and whether the vCPU there was woken for it.
    turns: IdVec<PcpuId, Turn>,
    usable: IdVec<PcpuId, bool>,
    idle: Bits<PcpuId>,
    /// pCPUs of another pool's that idle, and that nobody waited for so far.
    spare: Bits<PcpuId>,
    /// The last one that waits, and that such a pCPU comes for.
    fetched: Option<VcpuId>,
    /// Of each pCPU: whose turn was interrupted there. It waits like any other.
    interrupted: IdVec<PcpuId, Option<Interrupted>>,
    /// Where a vCPU preempts whose last pCPU is another pool's.
    preempted_last: PcpuId,
    next_sweep_ns: u64,
    /// What mechanisms keep.
    pub hooks: H,
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

impl<H: Hooks> FairShare<H> {
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
            home: host.pcpu,
        };
        let cgroups = Cgroups::new(machine);
        let domains = Domains::new(config.domain, machine);
        let queues = domains.queue_count();
        Self {
            rules: FairShareConfig::with_slice(config.slice_ns),
            tick_ns: config.tick_ns,
            accounts: machine.vcpus.iter().map(account).collect(),
            vms: VmShare::all_of(machine, &cgroups),
            cgroups,
            domains,
            queues: IdVec::of(DomainQueues::default(), queues),
            occupied: Bits::new(queues, false),
            locks: QueueLocks::new(machine, queues),
            local: IdVec::of(None, pcpus),
            came: 0,
            clocks: Clocks::new(pcpus),
            turns: IdVec::of(Turn::NONE, pcpus),
            usable: IdVec::of(true, pcpus),
            idle: Bits::new(pcpus, true),
            spare: Bits::new(pcpus, false),
            fetched: None,
            interrupted: IdVec::of(None, pcpus),
            preempted_last: PcpuId::new(0),
            next_sweep_ns: SWEEP_INTERVAL_NS,
            hooks: H::new(machine),
        }
    }

    pub fn rules(&self) -> &FairShareConfig {
        &self.rules
    }
}

impl<H: Hooks> Core for FairShare<H> {
    fn set_usable(&mut self, pcpu: PcpuId, usable: bool) -> Vec<VcpuId> {
        self.usable[pcpu] = usable;
        self.idle.set(pcpu, false);
        self.spare.set(pcpu, false);
        self.interrupted[pcpu] = None;
        let left = if usable { None } else { self.local[pcpu].take() };
        left.inspect(|&vcpu| self.accounts[vcpu].place = Place::Nowhere).into_iter().collect()
    }

    fn set_idle(&mut self, pcpu: PcpuId, idle: bool) {
        self.note_idle(pcpu, idle);
    }

    fn put_back(&mut self, machine: &mut Machine, vcpu: VcpuId) {
        self.queue_clock(machine, vcpu);
        self.put_ordered(machine, vcpu);
    }

    fn put_first(&mut self, machine: &mut Machine, vcpu: VcpuId) {
        self.put_boosted(machine, vcpu, true);
    }

    fn tickle(&mut self, machine: &mut Machine, vcpu: VcpuId) {
        self.kick_idle(machine, vcpu);
    }

    fn take_out(&mut self, machine: &Machine, vcpu: VcpuId) -> bool {
        let waits = matches!(self.accounts[vcpu].place, Place::Boosted(..) | Place::Ordered(..));
        if waits {
            self.take(machine, vcpu, machine.vcpus[vcpu].pcpu);
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

    fn cut_short(&mut self, machine: &mut Machine, vcpu: VcpuId, pcpu: PcpuId) {
        let was_woken = self.turns[pcpu].was_woken;
        self.queue_clock(machine, vcpu);
        if !was_woken {
            self.put_ordered(machine, vcpu);
            self.kick_idle(machine, vcpu);
            return;
        }
        let account = &mut self.accounts[vcpu];
        (account.slice_ns, account.was_blocked) = (self.rules.boost_slice_ns, true);
        self.put_boosted(machine, vcpu, true);
        if !self.kick_idle(machine, vcpu) {
            self.preempt_for(machine, vcpu);
        }
    }

    fn runs_ordinary_turn(&self, machine: &Machine, pcpu: PcpuId) -> bool {
        self.usable[pcpu] && !self.turns[pcpu].was_woken && self.on_turn(machine, pcpu).is_some()
    }

    /// Of those that could have what it takes, wherever it takes it: clocks of vCPUs that may run on fewer
    /// pCPUs say nothing about the others.
    fn is_ahead_of_waiting_vcpus(&self, machine: &Machine, vcpu: VcpuId) -> bool {
        let first = self.first_of_all(|waiter| machine.allows_all_of(waiter, vcpu));
        first.is_some_and(|first| self.is_of_vm_ahead(vcpu, first))
    }

    fn is_of_vm_ahead(&self, vcpu: VcpuId, other: VcpuId) -> bool {
        let [vm, other] = [vcpu, other].map(|vcpu| &self.vms[self.accounts[vcpu].vm]);
        policy::vm_is_ahead(&self.rules, &vm.size(), vm.vtime_ns, &other.size(), other.vtime_ns)
    }

    fn interrupt_turn(&mut self, machine: &Machine, vcpu: VcpuId, pcpu: PcpuId) {
        let ran_ns = machine.now_ns - self.accounts[vcpu].charged_until_ns;
        let left_ns = self.turns[pcpu].slice_ns.saturating_sub(ran_ns);
        self.interrupted[pcpu] = (left_ns > 0).then_some(Interrupted { vcpu, left_ns });
    }

    fn is_next(&self, vcpu: VcpuId) -> bool {
        matches!(self.accounts[vcpu].place, Place::Boosted(..) | Place::Local(_))
            || self.fetched == Some(vcpu)
    }
}

#[cfg(test)]
mod tests;
