//! The host as its scheduler sees it: pCPUs, vCPUs and their states, VMs. Nothing of the guest but an address.

mod topology;

use crate::bits::Bits;
use crate::config::{HostConfig, QueueLockCosts};
use crate::ids::{IdVec, PcpuId, VcpuId, VmId};
use crate::report::{DelayReport, PoolReport};
use crate::trace_event::TraceEvent;
use microslice_policy::{Coded, GuestClass, InterruptKind};

/// An interrupt's bit in [`HostVcpu::pending_interrupts`].
pub const fn interrupt_bit(kind: InterruptKind) -> u8 {
    1 << kind as u8
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VcpuState {
    Blocked,
    Runnable,
    Running,
}

pub struct Pcpu {
    /// Running vCPU, or `NONE`.
    pub current: VcpuId,
    resched_pending: bool,
    /// Whoever runs there is looked at whenever it begins something else: its turn ends where that is safe.
    pub tells_changes: bool,
    pub slice_end_ns: u64,
}

/// Where a pCPU's time went: apart from [`Pcpu`], which every event reads.
#[derive(Clone, Default)]
pub struct PcpuTime {
    /// Since when `current` (or idleness) has lasted.
    pub since_ns: u64,
    /// Sum of the time vCPUs ran here: the difference tells how cold a vCPU's caches are.
    pub busy_ns: u64,
    pub idle_ns: u64,
}

/// What is left of a vCPU in the caches of the pCPU that it ran on last.
pub(crate) struct Warmth {
    /// `NONE`: it has never run.
    pub left_pcpu: PcpuId,
    /// Per mille of the host's worst case that cold caches cost what runs on it now.
    pub sensitivity: u32,
    /// Busy time of that pCPU when it left it.
    pub left_busy_ns: u64,
}

/// Time and switches of a vCPU since the warm-up.
#[derive(Clone, Copy, Default)]
pub(crate) struct Turns {
    pub run_ns: u64,
    pub wait_ns: u64,
    pub switches: u64,
}

/// What the host keeps of a vCPU, in two cache lines. `state`, `preempted`, `yielded`, `requested`, `class` and `owes_answer` are for reading:
/// [`Machine`] changes them, because it counts who waits.
#[repr(align(64))]
pub struct HostVcpu {
    pub vm: VmId,
    pub state: VcpuState,
    /// Where it runs, or ran last. While it waits: what the scheduler writes, such as whose queue it is in.
    pub pcpu: PcpuId,
    /// Since when it is in `state`.
    pub since_ns: u64,
    /// Runnable because the host took its pCPU away.
    pub preempted: bool,
    /// Runnable because it gave its pCPU up itself.
    pub yielded: bool,
    /// The scheduler has moved it to where it runs soon: it doesn't wait for help.
    pub requested: bool,
    /// Class of the instruction pointer where it stopped or yields.
    pub class: GuestClass,
    pub interrupts_enabled: bool,
    /// Interrupts that its guest hasn't taken, but for its own tick: one bit a kind ([`interrupt_bit`]).
    pub pending_interrupts: u8,
    /// A call-function interrupt has come that its guest hasn't handled: it waits in the local APIC, or in its handler.
    pub owes_answer: bool,
    /// Its kernel holds a spinlock, as far as that matters to the scheduler.
    pub holds_spinlock: bool,
    /// Its guest has said: not now, for so long; 0: it hasn't.
    pub hint_ns: u32,
    pub(crate) warmth: Warmth,
    pub(crate) turns: Turns,
}

const _: () = assert!(size_of::<HostVcpu>() == 128, "two cache lines");

pub struct HostVm {
    pub first_vcpu: VcpuId,
    pub vcpus: u32,
    pub weight: u32,
    /// pCPU is allowed, by number; empty: all.
    pub affinity: IdVec<PcpuId, bool>,
    only_pcpu: Option<PcpuId>,
    /// Each vCPU has the pCPU of its number, round so many of them; 0: it isn't pinned.
    pub pinned_round: u32,
    /// What coordinated scheduling does for it.
    pub knobs: crate::config::VmKnobs,
    pub waiting: Waiting,
    /// What the answers depend on that were promised to its spinning vCPUs.
    pub promised: Promised,
}

/// What a scheduler's answer to a vCPU's pause-loop exits depends on, if it promises the same one to those that follow
/// ([`Machine::promise`]).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Promised {
    /// Nobody of these kinds waits ([`Waiting::kinds`]).
    pub without_kinds: u64,
    /// As many siblings are requested, and as many are about to answer, as now.
    pub helped: bool,
}

impl Promised {
    const NOTHING: Self = Self { without_kinds: 0, helped: false };
}

/// Kinds of waiting vCPUs: by the class of the instruction pointer, how they left their pCPU, whether they owe an answer.
pub const WAITING_KINDS: usize = GuestClass::ALL.len() * 6;
const _: () = assert!(WAITING_KINDS <= u64::BITS as usize, "a kind is a bit of `Waiting::kinds`");

/// What a kind says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kind {
    /// By number.
    pub class: usize,
    /// Never both; who was woken is neither.
    pub preempted: bool,
    pub yielded: bool,
    pub owes_answer: bool,
}

impl Kind {
    #[inline]
    pub fn number(self) -> usize {
        let how = usize::from(self.preempted) + 2 * usize::from(self.yielded);
        self.class * 6 + how * 2 + usize::from(self.owes_answer)
    }

    pub fn of_number(number: usize) -> Self {
        let (class, how) = (number / 6, number / 2 % 3);
        Self { class, preempted: how == 1, yielded: how == 2, owes_answer: number % 2 == 1 }
    }
}

/// A VM's runnable vCPUs that aren't requested, counted by kind, so that a scheduler sees at once that there is none of
/// those it looks for. Only where it does look ([`Machine::watched`]).
#[derive(PartialEq)]
pub struct Waiting {
    counts: [u32; WAITING_KINDS],
    /// One bit a kind: somebody is of that kind.
    pub kinds: u64,
    /// The requested ones, waiting or running, but not the blocked ones.
    pub requested: u32,
    /// Those that run, aren't requested, and owe an answer.
    pub answering: u32,
}

impl Waiting {
    fn nobody() -> Self {
        Self { counts: [0; WAITING_KINDS], kinds: 0, requested: 0, answering: 0 }
    }

    /// What can be helped by now: the requested, and those about to answer.
    #[inline]
    fn helped(&self) -> (u32, u32) {
        (self.requested, self.answering)
    }

    /// How many are of one of these kinds (a bit each).
    pub fn count(&self, kinds: u64) -> u32 {
        let mut left = kinds & self.kinds;
        let mut count = 0;
        while left != 0 {
            count += self.counts[left.trailing_zeros() as usize];
            left &= left - 1;
        }
        count
    }

    fn enter(&mut self, host: &HostVcpu) {
        if host.requested {
            self.requested += u32::from(host.state != VcpuState::Blocked);
        } else if host.state == VcpuState::Runnable {
            self.add(host.kind().number());
        } else if host.state == VcpuState::Running {
            self.answering += u32::from(host.owes_answer);
        }
    }

    fn leave(&mut self, host: &HostVcpu) {
        if host.requested {
            self.requested -= u32::from(host.state != VcpuState::Blocked);
        } else if host.state == VcpuState::Runnable {
            self.remove(host.kind().number());
        } else if host.state == VcpuState::Running {
            self.answering -= u32::from(host.owes_answer);
        }
    }

    fn add(&mut self, kind: usize) {
        self.counts[kind] += 1;
        self.kinds |= 1 << kind;
    }

    fn remove(&mut self, kind: usize) {
        self.counts[kind] -= 1;
        if self.counts[kind] == 0 {
            self.kinds &= !(1 << kind);
        }
    }
}

impl HostVcpu {
    /// Whether KVM might yield to it: it waits, but not because it was preempted in user mode with no interrupt to take.
    fn is_boostable(&self) -> bool {
        let in_kernel = self.class != GuestClass::User || self.pending_interrupts != 0;
        self.state == VcpuState::Runnable && (!self.preempted || in_kernel)
    }

    /// Its bit of [`Waiting::kinds`] while it waits.
    #[inline]
    pub fn kind(&self) -> Kind {
        let &Self { preempted, yielded, owes_answer, .. } = self;
        Kind { class: self.class as usize, preempted, yielded, owes_answer }
    }
}

pub struct Machine {
    pub now_ns: u64,
    pub pcpus: IdVec<PcpuId, Pcpu>,
    pub pcpu_times: IdVec<PcpuId, PcpuTime>,
    pub vcpus: IdVec<VcpuId, HostVcpu>,
    pub vms: IdVec<VmId, HostVm>,
    /// The scheduler looks at what vCPUs do: it wants to know where those that run are, and the others counted (`Waiting`).
    pub watched: bool,
    /// The scheduler leaves every vCPU where it starts.
    pub never_moves: bool,
    /// vCPUs that a directed yield may go to.
    boostable: Bits<VcpuId>,
    /// vCPUs that were promised an answer.
    promised: Bits<VcpuId>,
    pub pool: PoolReport,
    /// Who has been in the micro pool since before measuring began.
    accelerated_before: Vec<VcpuId>,
    pub llc_pcpus: u32,
    /// Threads of one core are so many pCPUs apart.
    cores: u32,
    /// What queues' locks cost, if that is modelled.
    pub queue_locks: Option<QueueLockCosts>,
    /// Choices cost pCPUs time beside a switch: locks, or boosts.
    pub choices_cost: bool,
    /// When the scheduler's timer shall come, if it was asked for just now; else the end of time.
    timer_ns: u64,
    /// What a switch of vCPUs costs.
    pub switch_ns: u64,
    /// Turns that end in windows.
    pub delays: DelayReport,
    /// Looks at who runs that the present decision took, each of them an exit.
    pub looks: u32,
    pub tracing: bool,
    pub trace: Vec<TraceEvent>,
    resched: Vec<PcpuId>,
    /// pCPUs whose batch of equal pause-loop exits must end now, because an answer could change.
    pub(crate) unbatch: Vec<PcpuId>,
}

impl Machine {
    pub fn new(host: &HostConfig, vms: Vec<HostVm>) -> Self {
        let pcpus: IdVec<PcpuId, _> = (0..host.pcpus)
            .map(|_| Pcpu {
                current: VcpuId::NONE,
                resched_pending: false,
                tells_changes: false,
                slice_end_ns: u64::MAX,
            })
            .collect();
        let mut vcpus = IdVec::new();
        let mut vms: IdVec<VmId, HostVm> = vms.into();
        for vm in vms.ids() {
            let config = &mut vms[vm];
            config.first_vcpu = vcpus.next_id();
            // Behind those of the VMs before it, as on a host where they were started one by one.
            let pins = if config.pinned_round > 0 { config.pinned_round as usize } else { host.pcpus };
            let first_pcpu = if config.pinned_round > 0 { 0 } else { vcpus.len() % host.pcpus };
            for index in 0..config.vcpus {
                vcpus.push(HostVcpu {
                    vm,
                    state: VcpuState::Blocked,
                    pcpu: pcpus
                        .round_from(PcpuId::from_index((first_pcpu + index as usize) % pins))
                        .find(|&pcpu| config.allows(pcpu))
                        .unwrap_or(PcpuId::new(0)),
                    since_ns: 0,
                    preempted: false,
                    yielded: false,
                    requested: false,
                    class: GuestClass::Idle,
                    interrupts_enabled: true,
                    pending_interrupts: 0,
                    owes_answer: false,
                    holds_spinlock: false,
                    hint_ns: 0,
                    warmth: Warmth { left_pcpu: PcpuId::NONE, sensitivity: 0, left_busy_ns: 0 },
                    turns: Turns::default(),
                });
            }
        }
        Self {
            now_ns: 0,
            pcpus,
            boostable: Bits::new(vcpus.len(), false),
            promised: Bits::new(vcpus.len(), false),
            pcpu_times: IdVec::of(PcpuTime::default(), host.pcpus),
            vcpus,
            vms,
            watched: true,
            never_moves: false,
            pool: PoolReport::default(),
            accelerated_before: Vec::new(),
            switch_ns: host.costs.context_switch_ns,
            llc_pcpus: match host.llc_pcpus {
                0 => host.pcpus as u32,
                pcpus => u32::try_from(pcpus).unwrap_or(u32::MAX),
            },
            cores: (host.pcpus / host.smt_threads.max(1)).max(1) as u32,
            queue_locks: host.queue_locks.clone(),
            delays: DelayReport::default(),
            looks: 0,
            choices_cost: host.queue_locks.is_some(),
            timer_ns: u64::MAX,
            tracing: false,
            trace: Vec::new(),
            resched: Vec::new(),
            unbatch: Vec::new(),
        }
    }

    /// A running vCPU's pCPU was taken away, or it gave it up itself: it waits.
    pub(crate) fn stops(&mut self, vcpu: VcpuId, yielded: bool) {
        let host = &mut self.vcpus[vcpu];
        debug_assert_eq!(host.state, VcpuState::Running);
        (host.state, host.preempted, host.yielded) = (VcpuState::Runnable, !yielded, yielded);
        let is_boostable = host.is_boostable();
        self.boostable.set(vcpu, is_boostable);
        if self.watched && !host.requested {
            let vm = host.vm;
            let waiting = &mut self.vms[vm].waiting;
            let before = waiting.helped();
            waiting.answering -= u32::from(host.owes_answer);
            waiting.add(host.kind().number());
            self.break_promises(vm, before);
        }
    }

    /// A waiting vCPU has got a pCPU.
    pub(crate) fn runs(&mut self, vcpu: VcpuId) {
        let host = &mut self.vcpus[vcpu];
        debug_assert_eq!(host.state, VcpuState::Runnable);
        let kind = host.kind();
        (host.state, host.preempted, host.yielded) = (VcpuState::Running, false, false);
        self.boostable.set(vcpu, false);
        if self.watched && !host.requested {
            let vm = host.vm;
            let waiting = &mut self.vms[vm].waiting;
            let before = waiting.helped();
            waiting.remove(kind.number());
            waiting.answering += u32::from(kind.owes_answer);
            self.break_promises(vm, before);
        }
    }

    pub(crate) fn blocks(&mut self, vcpu: VcpuId) {
        self.change(vcpu, |host| host.state = VcpuState::Blocked);
    }

    /// A blocked vCPU waits for a pCPU.
    pub(crate) fn wakes(&mut self, vcpu: VcpuId) {
        self.change(vcpu, |host| {
            (host.state, host.preempted, host.yielded) = (VcpuState::Runnable, false, false);
        });
    }

    /// A scheduler moves a vCPU to where it runs soon, or back.
    /// Measuring begins: who is in the micro pool now isn't counted when it leaves.
    pub fn forget_accelerations(&mut self) {
        self.accelerated_before = self.accelerated().collect();
    }

    /// Who is in the micro pool.
    fn accelerated(&self) -> impl Iterator<Item = VcpuId> {
        self.vcpus.enumerate().filter(|(_, host)| host.requested).map(|(vcpu, _)| vcpu)
    }

    pub fn count_still_accelerated(&self) -> u64 {
        self.accelerated().filter(|vcpu| !self.accelerated_before.contains(vcpu)).count() as u64
    }

    /// It leaves the micro pool.
    pub fn count_return(&mut self, vcpu: VcpuId) {
        match self.accelerated_before.iter().position(|&before| before == vcpu) {
            Some(at) => _ = self.accelerated_before.swap_remove(at),
            None => self.pool.returns += 1,
        }
    }

    pub fn set_requested(&mut self, vcpu: VcpuId, requested: bool) {
        self.change(vcpu, |host| host.requested = requested);
    }

    /// A call-function interrupt comes, or the last one has been handled.
    pub(crate) fn set_owes_answer(&mut self, vcpu: VcpuId, owes: bool) {
        if self.vcpus[vcpu].owes_answer != owes {
            self.change(vcpu, |host| host.owes_answer = owes);
        }
    }

    /// What the host could see of a vCPU now.
    #[inline]
    pub(crate) fn set_class(&mut self, vcpu: VcpuId, class: GuestClass) {
        let host = &mut self.vcpus[vcpu];
        if host.state == VcpuState::Runnable {
            self.change(vcpu, |host| host.class = class);
        } else {
            host.class = class;
        }
    }

    #[inline]
    fn change(&mut self, vcpu: VcpuId, change: impl FnOnce(&mut HostVcpu)) {
        let host = &mut self.vcpus[vcpu];
        let vm = host.vm;
        if !self.watched {
            change(host);
            self.boostable.set(vcpu, host.is_boostable());
            return;
        }
        let waiting = &mut self.vms[vm].waiting;
        let before = waiting.helped();
        waiting.leave(host);
        change(host);
        waiting.enter(host);
        self.boostable.set(vcpu, host.is_boostable());
        self.break_promises(vm, before);
    }

    /// This running vCPU's pause-loop exits are answered the same, as long as that stays as it is.
    pub fn promise(&mut self, vcpu: VcpuId, depends_on: Promised) {
        let vm = self.vcpus[vcpu].vm;
        debug_assert_eq!(self.vms[vm].waiting.kinds & depends_on.without_kinds, 0);
        let promised = &mut self.vms[vm].promised;
        promised.without_kinds |= depends_on.without_kinds;
        promised.helped |= depends_on.helped;
        self.promised.set(vcpu, true);
    }

    /// Who waits in a VM has changed, and `helped_before` was [`Waiting::helped`].
    #[inline]
    fn break_promises(&mut self, vm: VmId, helped_before: (u32, u32)) {
        let HostVm { waiting, promised, .. } = &self.vms[vm];
        let helped_changed = promised.helped & (waiting.helped() != helped_before);
        if (waiting.kinds & promised.without_kinds != 0) | helped_changed {
            self.break_all_promises(vm);
        }
    }

    /// The next pause-loop exits of this VM's vCPUs must be looked at.
    #[inline(never)]
    pub fn break_all_promises(&mut self, vm: VmId) {
        let HostVm { first_vcpu, vcpus, promised, .. } = &mut self.vms[vm];
        let (mut from, end) = (*first_vcpu, first_vcpu.plus(*vcpus));
        *promised = Promised::NOTHING;
        while let Some(vcpu) = self.promised.find_between(from, end) {
            self.promised.set(vcpu, false);
            let host = &self.vcpus[vcpu];
            if host.state == VcpuState::Running {
                self.answers_changed(host.pcpu);
            }
            from = vcpu.plus(1);
        }
    }

    /// The next one that a directed yield may go to, behind `last`, round the `count` vCPUs from `first` on.
    #[inline]
    pub fn next_boostable(&self, first: VcpuId, count: u32, last: VcpuId) -> Option<VcpuId> {
        self.boostable.next_round(first, count, last)
    }

    /// Whether `Waiting` has counted right: for the checker.
    pub fn waiting_adds_up(&self) -> bool {
        let mut counted: IdVec<VmId, _> = self.vms.iter().map(|_| Waiting::nobody()).collect();
        if self.watched {
            self.vcpus.iter().for_each(|host| counted[host.vm].enter(host));
        }
        let boostable = |(vcpu, host): (VcpuId, &HostVcpu)| self.boostable.has(vcpu) == host.is_boostable();
        self.vms.iter().zip(&counted).all(|(vm, counted)| vm.waiting == *counted)
            && self.vcpus.enumerate().all(boostable)
    }

    #[inline]
    pub fn emit(&mut self, event: TraceEvent) {
        if self.tracing {
            self.keep(event);
        }
    }

    /// "Cold": a run that is traced has other costs.
    #[cold]
    fn keep(&mut self, event: TraceEvent) {
        self.trace.push(event);
    }

    /// Asks for a scheduling decision on this pCPU as soon as the present event is dealt with.
    pub fn request_schedule(&mut self, pcpu: PcpuId) {
        let flag = &mut self.pcpus[pcpu].resched_pending;
        if !*flag {
            *flag = true;
            self.resched.push(pcpu);
        }
    }

    /// Whether this pCPU is scheduled before anything else happens.
    #[inline]
    pub(crate) fn wants_schedule(&self, pcpu: PcpuId) -> bool {
        self.pcpus[pcpu].resched_pending
    }

    /// Asks for the scheduler's timer at that time, in place of what it asked for before.
    pub fn request_timer(&mut self, at_ns: u64) {
        self.timer_ns = at_ns;
    }

    pub(crate) fn take_timer(&mut self) -> Option<u64> {
        Some(std::mem::replace(&mut self.timer_ns, u64::MAX)).filter(|&at_ns| at_ns != u64::MAX)
    }

    /// Whether nobody has asked for anything.
    #[inline]
    pub(crate) fn is_settled(&self) -> bool {
        self.resched.is_empty() && self.unbatch.is_empty() && self.timer_ns == u64::MAX
    }

    #[inline]
    pub(crate) fn next_schedule(&mut self) -> Option<PcpuId> {
        let pcpu = self.resched.pop()?;
        self.pcpus[pcpu].resched_pending = false;
        Some(pcpu)
    }

    /// The next pause-loop exit on this pCPU must be looked at: its answer may have changed.
    #[inline]
    pub fn answers_changed(&mut self, pcpu: PcpuId) {
        if self.pcpus[pcpu].current != VcpuId::NONE {
            self.unbatch.push(pcpu);
        }
    }

    #[inline]
    pub fn current(&self, pcpu: PcpuId) -> Option<VcpuId> {
        Some(self.pcpus[pcpu].current).filter(|&vcpu| vcpu != VcpuId::NONE)
    }

    #[inline]
    pub fn is_idle(&self, pcpu: PcpuId) -> bool {
        self.pcpus[pcpu].current == VcpuId::NONE
    }

    #[inline]
    pub fn allows(&self, vcpu: VcpuId, pcpu: PcpuId) -> bool {
        let host = &self.vcpus[vcpu];
        if self.never_moves {
            return host.pcpu == pcpu;
        }
        let vm = &self.vms[host.vm];
        vm.allows(pcpu) && (vm.pinned_round == 0 || vm.pin_of(vcpu) == pcpu)
    }

    /// The one pCPU that it may run on, if it is one.
    pub fn only_pcpu(&self, vcpu: VcpuId) -> Option<PcpuId> {
        let vm = &self.vms[self.vcpus[vcpu].vm];
        if vm.pinned_round > 0 { Some(vm.pin_of(vcpu)) } else { vm.only_pcpu }
    }
}

impl HostVm {
    /// `affinity`: pCPU is allowed, by number; empty: all. Its vCPUs get their numbers from [`Machine::new`].
    pub fn new(vcpus: u32, weight: u32, mut affinity: Vec<bool>) -> Self {
        if !affinity.contains(&false) {
            affinity.clear();
        }
        let mut allowed =
            (0..).zip(&affinity).filter(|&(_, &allowed)| allowed).map(|(pcpu, _)| PcpuId::new(pcpu));
        let only_pcpu = allowed.next().filter(|_| allowed.next().is_none());
        Self {
            only_pcpu,
            pinned_round: 0,
            first_vcpu: VcpuId::new(0),
            vcpus,
            weight,
            affinity: affinity.into(),
            knobs: crate::config::VmKnobs::default(),
            waiting: Waiting::nobody(),
            promised: Promised::NOTHING,
        }
    }

    fn pin_of(&self, vcpu: VcpuId) -> PcpuId {
        PcpuId::new(vcpu.since(self.first_vcpu) % self.pinned_round)
    }

    /// Whether some pCPUs aren't allowed.
    pub fn is_narrow(&self) -> bool {
        self.pinned_round > 0 || !self.affinity.is_empty()
    }

    #[inline]
    pub fn allows(&self, pcpu: PcpuId) -> bool {
        self.affinity.is_empty() || self.affinity[pcpu]
    }
}
