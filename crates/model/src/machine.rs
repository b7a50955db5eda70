//! The host as its scheduler sees it: pCPUs, vCPUs and their states, VMs. Nothing of the guest but an
//! address.

mod accelerated;
mod on_spin;
mod pause_windows;
mod promised_answers;
mod states;
mod topology;
mod vcpu;
mod vm;
mod waiting;

pub use pause_windows::PauseWindows;
pub use promised_answers::Promised;
pub use topology::Distance;
pub use vcpu::{HostVcpu, VcpuState, interrupt_bit};
pub use vcpu::{Turns, Warmth};
pub use vm::HostVm;
pub use waiting::{Kind, WAITING_KINDS};

use self::on_spin::OnSpin;
use self::topology::Place;
use crate::bits::Bits;
use crate::config::{CgroupConfig, HostConfig, KvmConfig, Preempt, QueueLockCosts};
use crate::counters::{DelayReport, PoolReport};
use crate::events::TraceEvent;
use crate::ids::{IdVec, PcpuId, VcpuId, VmId};
use microslice_policy::CriticalBy;

pub struct Pcpu {
    /// Running vCPU, or `NONE`.
    pub current: VcpuId,
    resched_pending: bool,
    /// The vCPU there is looked at whenever it begins something else: its turn ends where that is safe.
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
    /// What the present choice costs beside a switch, by what led to it.
    pub owed_ns: u64,
}

pub struct Machine {
    pub now_ns: u64,
    pub pcpus: IdVec<PcpuId, Pcpu>,
    pub pcpu_times: IdVec<PcpuId, PcpuTime>,
    pub vcpus: IdVec<VcpuId, HostVcpu>,
    pub vms: IdVec<VmId, HostVm>,
    /// Around those of VMs.
    pub cgroups: Vec<CgroupConfig>,
    /// The scheduler looks at what vCPUs do: it wants to know where those that run are, and the others
    /// counted (`Waiting`).
    pub watched: bool,
    /// By what the scheduler knows who holds something.
    pub critical_by: CriticalBy,
    /// The kinds of waiting vCPUs ([`Waiting::kinds`]) that may be heirs of a lock, if the scheduler looks
    /// for these. While one waits it looks at what running siblings count.
    pub heir_kinds: u64,
    /// The scheduler has the paper's rules alone.
    pub paper_rules: bool,
    /// Interrupts may wait for a vCPU, and nobody is told of them.
    pub hides_interrupts: bool,
    /// The scheduler leaves every vCPU where it starts.
    pub never_moves: bool,
    /// vCPUs that a directed yield may go to.
    boostable: Bits<VcpuId>,
    /// Whom a guest's hypercall names to be yielded to (`kvm_sched_yield`, arch/x86/kvm/x86.c); or `NONE`.
    pub named_target: VcpuId,
    /// Whether those that were woken are among them.
    pub(crate) boosts_woken: bool,
    /// vCPUs that were promised an answer.
    promised: Bits<VcpuId>,
    pub pool: PoolReport,
    /// vCPUs that have been in the micro pool since before measuring began.
    accelerated_before: Vec<VcpuId>,
    pub llc_pcpus: u32,
    pub node_pcpus: u32,
    /// Threads of one core are so many pCPUs apart.
    cores: u32,
    places: IdVec<PcpuId, Place>,
    widest: Distance,
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
    /// Looks at running vCPUs that the present decision took, each of them an exit.
    pub looks: u32,
    pub pause_windows: PauseWindows,
    on_spin: Option<OnSpin>,
    pub tracing: bool,
    pub trace: Vec<TraceEvent>,
    resched: Vec<PcpuId>,
    /// Where the vCPU shall give way when it leaves its guest next (`TIF_NEED_RESCHED_LAZY`); `None`: the
    /// host preempts at once.
    lazy: Option<Bits<PcpuId>>,
    /// pCPUs whose batch of equal pause-loop exits must end now, because an answer could change.
    pub unbatch: Vec<PcpuId>,
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
            let first_pcpu = vcpus.len() % host.pcpus;
            for index in 0..config.vcpus as usize {
                let next = || PcpuId::from_index((first_pcpu + index) % host.pcpus);
                let first = config.pins.get(index).copied().unwrap_or_else(next);
                let pcpu = pcpus.round_from(first).find(|&pcpu| config.allows(pcpu));
                vcpus.push(HostVcpu::new(vm, pcpu.unwrap_or(PcpuId::new(0))));
            }
        }
        let vcpu_count = vcpus.len();
        let places = Place::all(host);
        let within = |pcpus: usize| if pcpus == 0 { host.pcpus as u32 } else { pcpus as u32 };
        Self {
            now_ns: 0,
            pcpus,
            boostable: Bits::new(vcpus.len(), false),
            boosts_woken: true,
            named_target: VcpuId::NONE,
            promised: Bits::new(vcpus.len(), false),
            pcpu_times: IdVec::of(PcpuTime::default(), host.pcpus),
            vcpus,
            vms,
            cgroups: Vec::new(),
            watched: true,
            critical_by: CriticalBy::Symbols,
            heir_kinds: 0,
            paper_rules: false,
            hides_interrupts: host.kvm.as_ref().is_some_and(KvmConfig::hides_interrupts),
            never_moves: false,
            pool: PoolReport::default(),
            accelerated_before: Vec::new(),
            switch_ns: host.costs.context_switch_ns,
            llc_pcpus: within(host.llc_pcpus),
            node_pcpus: within(host.node_pcpus),
            cores: (host.pcpus / host.smt_threads.max(1)).max(1) as u32,
            widest: Place::widest(&places),
            places,
            queue_locks: host.queue_locks.clone(),
            delays: DelayReport::default(),
            looks: 0,
            on_spin: host.kvm.as_ref().map(|kvm| OnSpin::new(kvm.yield_to_ns, vcpu_count)),
            pause_windows: PauseWindows::new(&host.ple, vcpu_count),
            choices_cost: host.queue_locks.is_some() || host.kvm.is_some(),
            timer_ns: u64::MAX,
            tracing: false,
            trace: Vec::new(),
            resched: Vec::new(),
            lazy: (host.preempt == Preempt::Lazy).then(|| Bits::new(host.pcpus, false)),
            unbatch: Vec::new(),
        }
    }

    /// Forgets what was counted so far: measuring begins. A vCPU that is in the micro pool now isn't counted
    /// when it leaves.
    pub fn restart_counters(&mut self) {
        self.accelerated_before = self.accelerated().collect();
        for vcpu in &mut self.vcpus {
            vcpu.turns = Turns::default();
        }
        for times in &mut self.pcpu_times {
            times.idle_ns = 0;
        }
        let size = self.pool.sizes.last().map_or(0, |&(_, size)| size);
        self.pool = PoolReport { sizes: vec![(self.now_ns, size)], ..PoolReport::default() };
        self.delays = DelayReport::default();
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
    #[inline]
    pub fn request_schedule(&mut self, pcpu: PcpuId) {
        let flag = &mut self.pcpus[pcpu].resched_pending;
        if !*flag {
            *flag = true;
            self.resched.push(pcpu);
        }
    }

    /// Asks for a decision because a fair task has something to give way to (`resched_curr_lazy`): at once,
    /// or with `preempt=lazy` when the vCPU there leaves its guest next. An idle pCPU never waits.
    #[inline]
    pub fn request_lazily(&mut self, pcpu: PcpuId) {
        let is_idle = self.is_idle(pcpu);
        match &mut self.lazy {
            Some(lazy) if !is_idle => lazy.set(pcpu, true),
            _ => self.request_schedule(pcpu),
        }
    }

    /// The vCPU on this pCPU leaves its guest: an exit, or an interrupt of the host
    /// (`xfer_to_guest_mode_handle_work`).
    #[inline]
    pub fn leaves_guest(&mut self, pcpu: PcpuId) {
        if self.lazy.as_ref().is_some_and(|lazy| lazy.has(pcpu)) {
            self.request_schedule(pcpu);
        }
    }

    /// Whether this pCPU is scheduled before anything else happens.
    #[inline]
    pub fn wants_schedule(&self, pcpu: PcpuId) -> bool {
        self.pcpus[pcpu].resched_pending
    }

    /// Asks for the scheduler's timer at that time, in place of what it asked for before.
    #[inline]
    pub fn request_timer(&mut self, at_ns: u64) {
        self.timer_ns = at_ns;
    }

    #[inline]
    pub fn take_timer(&mut self) -> Option<u64> {
        Some(std::mem::replace(&mut self.timer_ns, u64::MAX)).filter(|&at_ns| at_ns != u64::MAX)
    }

    /// Whether nobody has asked for anything.
    #[inline]
    pub fn is_settled(&self) -> bool {
        self.resched.is_empty() && self.unbatch.is_empty() && self.timer_ns == u64::MAX
    }

    #[inline]
    pub fn next_schedule(&mut self) -> Option<PcpuId> {
        let pcpu = self.resched.pop()?;
        self.pcpus[pcpu].resched_pending = false;
        if let Some(lazy) = &mut self.lazy {
            lazy.set(pcpu, false);
        }
        Some(pcpu)
    }

    #[inline]
    pub fn current(&self, pcpu: PcpuId) -> Option<VcpuId> {
        Some(self.pcpus[pcpu].current).filter(|&vcpu| vcpu != VcpuId::NONE)
    }

    #[inline]
    pub fn is_idle(&self, pcpu: PcpuId) -> bool {
        self.pcpus[pcpu].current == VcpuId::NONE
    }
}
