//! What a run tells its observer, as it happens.

pub use crate::ids::{IdVec, LockId, PcpuId, SymbolId, ThreadId, VcpuId, VmId};
use microslice_policy::{Cause, GuestClass};

/// Why a vCPU left its pCPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum StopReason {
    /// Pause-loop exit, or the hypercall of a lock whose waiters yield, that ended in a yield.
    Ple,
    /// PV yield hypercall (after sending an IPI).
    IpiWait,
    /// The idle guest halted.
    Hlt,
    /// A PV lock waiter halted.
    LockHlt,
    SliceExpired,
    Preempted,
    /// Its VM has used up its `cpu.max`.
    Throttled,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum IpiKind {
    Reschedule,
    /// TLB shootdown (call function many).
    CallFunction,
    /// Kick of a halted PV lock waiter.
    LockKick,
}

/// One step of the run. `time_ns` comes with it to the sink.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TraceEvent {
    Running {
        vcpu: VcpuId,
        pcpu: PcpuId,
        micro: bool,
    },
    /// `ip` is the guest address at that moment, `symbol` an index for `TraceNames::symbols`.
    Stopping {
        vcpu: VcpuId,
        pcpu: PcpuId,
        reason: StopReason,
        ip: u64,
        symbol: SymbolId,
    },
    Runnable {
        vcpu: VcpuId,
    },
    Blocked {
        vcpu: VcpuId,
    },
    /// A pause-loop exit, or `count` equal ones in a row. The last one may give up the pCPU: `Stopping` says
    /// so.
    PauseLoopExits {
        vcpu: VcpuId,
        count: u64,
    },
    IpiSent {
        from: VcpuId,
        to: VcpuId,
        kind: IpiKind,
    },
    IpiHandled {
        vcpu: VcpuId,
        kind: IpiKind,
    },
    VirqRaised {
        vcpu: VcpuId,
    },
    VirqHandled {
        vcpu: VcpuId,
    },
    Accelerated {
        vcpu: VcpuId,
        pcpu: PcpuId,
        cause: Cause,
        class: GuestClass,
    },
    ReturnedToNormalPool {
        vcpu: VcpuId,
        pcpu: PcpuId,
    },
    /// Its turn in the normal pool would be over, and is made longer by a micro slice.
    TurnGoesOn {
        vcpu: VcpuId,
        pcpu: PcpuId,
    },
    /// A turn that was made longer is over.
    TurnEnded {
        vcpu: VcpuId,
        pcpu: PcpuId,
    },
    /// It is to lose its pCPU, but goes on until it is safe to preempt, or until then (VM'04, 3.3).
    PreemptionPutOff {
        vcpu: VcpuId,
        pcpu: PcpuId,
        class: GuestClass,
        until_ns: u64,
    },
    /// Now it loses its pCPU. `due_ns`: when its turn was over; of a preemption by others there is no such
    /// time.
    WindowEnded {
        vcpu: VcpuId,
        pcpu: PcpuId,
        due_ns: Option<u64>,
        forced: bool,
    },
    /// An IPI makes it urgent (ASPLOS'13), or does so again.
    UrgencyRequested {
        vcpu: VcpuId,
    },
    /// It isn't urgent any longer.
    UrgencyEnded {
        vcpu: VcpuId,
    },
    /// It is urgent and waits: behind all others in this pCPU's urgent queue.
    UrgentQueued {
        vcpu: VcpuId,
        pcpu: PcpuId,
    },
    /// It leaves that queue without having been served from it.
    UrgentUnqueued {
        vcpu: VcpuId,
        pcpu: PcpuId,
    },
    /// The urgent queue is served, and it is next: its clock is so far ahead of that of the vCPU that it goes
    /// before.
    UrgentServed {
        vcpu: VcpuId,
        pcpu: PcpuId,
        ahead_ns: u64,
    },
    /// Likewise, but that is too far.
    UrgentRefused {
        vcpu: VcpuId,
        pcpu: PcpuId,
        ahead_ns: u64,
    },
    PoolResized {
        micro_pcpus: u32,
    },
    ThreadSwitched {
        vcpu: VcpuId,
        thread: ThreadId,
    },
    LockWaitBegan {
        vcpu: VcpuId,
        lock: LockId,
    },
    LockAcquired {
        vcpu: VcpuId,
        lock: LockId,
        waited_ns: u64,
    },
    LockReleased {
        vcpu: VcpuId,
        lock: LockId,
    },
    ShootdownBegan {
        vcpu: VcpuId,
        targets: u32,
    },
    ShootdownEnded {
        vcpu: VcpuId,
        waited_ns: u64,
    },
}

/// Names behind the numbers of a trace, given to the sink once, before the first event.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct TraceNames {
    pub pcpus: u32,
    pub vms: IdVec<VmId, String>,
    /// (VM, number inside the VM) of each vCPU.
    pub vcpus: IdVec<VcpuId, (VmId, u32)>,
    /// "vm/lock" or "vm/lock#instance".
    pub locks: IdVec<LockId, String>,
    /// "vm/workload#number".
    pub threads: IdVec<ThreadId, String>,
    /// Function names; a `Stopping` event's `symbol` is an index.
    pub symbols: IdVec<SymbolId, String>,
}

/// Receives a run as it happens.
pub trait TraceSink {
    /// Asked once at the start: false saves the whole cost of tracing.
    fn wants_events(&self) -> bool {
        true
    }
    fn begin(&mut self, _names: &TraceNames) {}
    fn event(&mut self, time_ns: u64, event: &TraceEvent);
    /// Called about every millisecond of simulated time, for progress displays. Returning false stops the
    /// run.
    fn progress(&mut self, _time_ns: u64, _end_ns: u64) -> bool {
        true
    }
}

/// Drops everything.
#[derive(Debug, Default)]
pub struct NoTrace;

impl TraceSink for NoTrace {
    fn wants_events(&self) -> bool {
        false
    }
    fn event(&mut self, _time_ns: u64, _event: &TraceEvent) {}
}
