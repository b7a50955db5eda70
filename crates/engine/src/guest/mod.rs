//! The guest's state: vCPUs, threads, locks, queues, barriers, NICs. What happens to it is in the sibling
//! files, each a part of `impl Simulation`.

pub mod balance;
mod channels;
mod deadlock;
pub mod eevdf;
mod execute;
mod futex;
pub mod hybrid;
mod interrupts;
mod locks;
mod lost;
pub mod modes;
pub mod mutex;
pub mod network;
mod preempt_count;
pub mod program;
pub mod rcu;
pub mod spin_barrier;
mod stealing;
mod threads;
pub mod user_lock;
mod wait_list;

use crate::text;
use microslice_model::config::{LOOP_DEPTH, Wait};
use microslice_model::ids::{BarrierId, LockId, QueueId, ThreadId, VcpuId, VmId, WorkloadId};

use microslice_model::random::Random;
use microslice_model::smt::Siblings;
use std::collections::VecDeque;
use std::hint::select_unpredictable;

/// Interrupts that wait for a vCPU, as bits.
pub mod pending {
    use microslice_model::machine::interrupt_bit;
    use microslice_policy::InterruptKind;

    pub const CALL_FUNCTION: u8 = interrupt_bit(InterruptKind::IpiCallFunction);
    pub const RESCHEDULE: u8 = interrupt_bit(InterruptKind::IpiReschedule);
    pub const VIRQ: u8 = interrupt_bit(InterruptKind::Virq);
    pub const TIMER: u8 = interrupt_bit(InterruptKind::Timer);
    /// The vCPU's own, which the host raises when it runs: it needs no host to deliver it.
    pub const TICK: u8 = 1 << 7;
}

/// What a frame does now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Act {
    /// Nothing: the vCPU idles, or its next step is to be looked up.
    None,
    /// Executes for `left_ns`, then does `then`.
    Timed,
    /// Spins for `lock`.
    SpinLock,
    /// Halted in the slow path of paravirtual `lock`.
    HaltLock,
    /// `lock` was granted to it while it didn't run.
    Granted,
    /// Spins for the acknowledgements of a shootdown.
    SpinAcks,
}

/// What follows the timed part of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Then {
    NextOp,
    Release,
    ReleaseSleeping,
    /// In the target's runqueue lock: make the thread `arg` ready there, then release.
    EnqueueThread,
    /// Thread `arg` is queued at an idle vCPU, which is called to make it ready.
    CallToWake,
    /// In a runqueue lock: a short-lived child was placed on vCPU `arg`.
    EnqueueChild,
    /// In the lock of barrier `arg`: it is queued there, unless the last one has come meanwhile.
    WaitAtBarrier,
    /// Likewise: all that are queued there are woken.
    WakeAtBarrier,
    /// Likewise: the first of those that were requeued from there is woken.
    WakeRequeued,
    /// In the lock of the list of those that sleep for lock `arg`: queued there, unless it is free.
    WaitInList,
    /// Likewise: lock `arg` is given up, and whoever is next is woken.
    WakeFromList,
    /// In the own runqueue lock: choose the next thread.
    SwitchThread,
    /// The page tables are changed: which vCPUs must be told?
    PrepareShootdown,
    SendShootdown,
    ShootdownDone,
    CallFunctionHandled,
    RescheduleHandled,
    VirqHandled,
    SoftirqDone,
    TimerHandled,
    TickHandled,
    /// An RCU read section is over.
    LeaveReader,
    /// In the lock of RCU's node: the vCPU reports to a grace period.
    ReportQuiet,
}

/// Of a frame whose `then` needs no argument.
pub const NO_ARG: u32 = u32::MAX;

/// A context of execution on a vCPU: thread or idle (0), interrupt (1).
#[derive(Debug, Clone, Copy)]
pub struct Frame {
    pub act: Act,
    pub then: Then,
    /// Where the instruction pointer is.
    pub symbol: u16,
    pub irqs_off: bool,
    /// While it waits for a lock: how many tickets there were before it when it came.
    pub distance: u8,
    pub lock: LockId,
    /// The number of the thread or vCPU that `then` is about.
    pub arg: u32,
    pub left_ns: u64,
}

impl Frame {
    pub const EMPTY: Self = Self {
        act: Act::None,
        then: Then::NextOp,
        symbol: text::IDLE,
        irqs_off: false,
        distance: 0,
        lock: LockId::NONE,
        arg: NO_ARG,
        left_ns: 0,
    };

    /// How much of its step is slowed down when `refill_ns` of cache refill is due: only user mode is.
    #[inline]
    pub fn slowed_ns(&self, refill_ns: u64) -> u64 {
        select_unpredictable(self.symbol == text::USER, refill_ns.min(self.left_ns), 0)
    }

    pub fn spins(&self) -> bool {
        matches!(self.act, Act::SpinLock | Act::SpinAcks)
    }
}

/// What a vCPU counts of its pause loops.
#[derive(Default)]
pub struct SpinCounters {
    pub spin_ns: u64,
    /// Exits from the loops of locks.
    pub lock_exits: u64,
}

/// In the order of use: an ordinary event touches the first cache line only (which ends between the frames),
/// a spinning one the second as well. Cache misses are what a host of thousands of vCPUs costs most.
#[repr(C, align(64))]
pub struct GuestVcpu {
    /// Guest time was accounted until here.
    pub synced_ns: u64,
    /// Host work to be done before the guest goes on.
    pub overhead_ns: u64,
    /// Cache refill not yet suffered.
    pub refill_ns: u64,
    pub next_tick_ns: u64,
    /// Running thread, or `NONE` when idle.
    pub thread: ThreadId,
    /// Index of the active frame.
    pub depth: u8,
    pub pending: u8,
    pub need_resched: bool,
    /// Bits 0 and 1: which of `wakes` aren't empty. Bit 2: they are woken under a lock. Bits 6 and 7: what
    /// shares its core (`smt.rs`).
    flags: u8,
    pub frames: [Frame; 2],
    /// Place in the cycle of pause-loop window and exit.
    pub ple_phase_ns: u64,
    /// Until when exits needn't be asked about.
    pub ple_batch_until_ns: u64,
    /// What is left of the spinning time of a paravirtual lock, for the active frame.
    pub pv_spin_left_ns: u64,
    pub spins: SpinCounters,
    // Here the third line begins.
    /// Since when each frame waits.
    pub waits_since_ns: [u64; 2],
    pub thread_since_ns: u64,
    /// When its guest's clock was set last: by a tick, or at the end of idling.
    pub clock_set_ns: u64,
    pub queue: VecDeque<ThreadId>,
    /// Address space in its TLB (workload), or `NONE`.
    pub mm: WorkloadId,
    pub acks_left: u32,
    /// vCPUs whose shootdown it must acknowledge.
    pub shootdowns: Vec<VcpuId>,
    /// Threads that each frame has still to wake.
    wakes: [VecDeque<ThreadId>; 2],
    /// Threads whose timer or I/O is done.
    pub timer_wakes: Vec<ThreadId>,
    /// `pv_spin_left_ns` of a spinning thread while an interrupt is handled, which may wait for a lock of its
    /// own.
    pub interrupted_pv_spin_left_ns: u64,
}

const _: () = assert!(size_of::<GuestVcpu>() == 5 * 64, "a host of thousands of vCPUs costs cache misses");

impl GuestVcpu {
    pub fn new() -> Self {
        Self {
            frames: [Frame::EMPTY; 2],
            depth: 0,
            pending: 0,
            need_resched: false,
            synced_ns: 0,
            overhead_ns: 0,
            refill_ns: 0,
            ple_phase_ns: 0,
            ple_batch_until_ns: 0,
            pv_spin_left_ns: 0,
            spins: SpinCounters::default(),
            waits_since_ns: [0; 2],
            next_tick_ns: 0,
            thread: ThreadId::NONE,
            thread_since_ns: 0,
            clock_set_ns: 0,
            queue: VecDeque::new(),
            mm: WorkloadId::NONE,
            shootdowns: Vec::new(),
            acks_left: 0,
            flags: 0,
            wakes: [VecDeque::new(), VecDeque::new()],
            timer_wakes: Vec::new(),
            interrupted_pv_spin_left_ns: 0,
        }
    }

    #[inline]
    pub fn frame(&self) -> &Frame {
        &self.frames[usize::from(self.depth) % 2]
    }

    #[inline]
    pub fn frame_mut(&mut self) -> &mut Frame {
        &mut self.frames[usize::from(self.depth) % 2]
    }

    /// What the other hardware threads of its core do.
    #[inline(always)]
    pub fn siblings(&self) -> Siblings {
        Siblings::ALL[self.speed().min(2)]
    }

    /// Which of `Smt`'s speeds it has: the number of `siblings`.
    #[inline(always)]
    pub fn speed(&self) -> usize {
        usize::from(self.flags >> 6)
    }

    pub fn set_siblings(&mut self, siblings: Siblings) {
        self.flags = self.flags & 0x3f | (siblings as u8) << 6;
    }

    /// The frame at `depth` will wake these threads before it goes on.
    pub fn wake_later(&mut self, depth: usize, threads: impl IntoIterator<Item = ThreadId>) {
        self.wakes[depth].extend(threads);
        self.flags |= u8::from(!self.wakes[depth].is_empty()) << depth;
    }

    #[inline]
    pub fn next_wake(&mut self) -> Option<ThreadId> {
        if self.flags >> self.depth & 1 == 0 {
            return None;
        }
        let wakes = &mut self.wakes[self.depth as usize];
        let thread = wakes.pop_front();
        self.flags &= !(u8::from(wakes.is_empty()) << self.depth);
        thread
    }

    /// Its thread holds a lock until all are woken.
    #[inline]
    pub fn wakes_under_lock(&self) -> bool {
        self.flags >> 2 & 1 != 0
    }

    pub fn set_wakes_under_lock(&mut self, holds: bool) {
        self.flags = self.flags & !(1 << 2) | u8::from(holds) << 2;
    }

    /// Would the guest's scheduler call it idle?
    pub fn is_idle(&self) -> bool {
        self.thread == ThreadId::NONE && self.queue.is_empty()
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ThreadState {
    Running,
    Ready,
    Blocked,
    /// On the way to an idle vCPU that makes it ready itself (`ttwu_queue_wakelist`).
    Waking,
}

/// Why a thread is blocked: what a deadlock report says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WaitsFor {
    Nothing,
    Lock(LockId),
    Barrier(BarrierId),
    Item(QueueId),
    Room(QueueId),
    /// A packet, or what comes from a channel.
    Network,
    Timer,
    /// Of RCU; it looks again when its timer is due.
    GracePeriod,
}

/// Of a thread that nobody has woken since it last ran.
pub const NOT_WOKEN: u64 = u64::MAX;

/// What every operation needs comes first, in one cache line.
#[repr(C, align(64))]
pub struct Thread {
    pub loops: [u32; LOOP_DEPTH],
    pub random: Random,
    /// User time left when the guest's scheduler preempted it.
    pub compute_left_ns: u64,
    /// Index over all VMs' workloads.
    pub workload: WorkloadId,
    /// Its next operation in [`program::Programs`].
    pub pc: u32,
    /// The first lock of its VM, from where its program counts them.
    pub first_lock: LockId,
    /// It got this sleeping lock while it was blocked, or (a mutex) was woken to try for it, and holds it for
    /// `hold_ns` next.
    pub granted: LockId,
    pub state: ThreadState,
    pub pinned: bool,
    /// The sleeping lock that it holds or waits for is for reading.
    pub reads: bool,
    pub vm: VmId,
    /// Where it runs, or ran last.
    pub vcpu: VcpuId,
    pub waits_for: WaitsFor,
    pub hold_ns: u64,
    pub wait_since_ns: u64,
    /// When it became ready by a wake-up that it hasn't run after yet; `NOT_WOKEN` otherwise.
    pub woken_at_ns: u64,
    /// When its timer was due or its I/O done, if it hasn't run since; `NOT_WOKEN` otherwise.
    pub due_ns: u64,
    /// While it wakes others under a lock: that lock.
    pub wakes_under: LockId,
    /// The number of the user lock that it holds, or `NO_LOCK`.
    pub user_lock: u32,
    /// Since when it spins for one; `NOT_WOKEN` if it doesn't.
    pub spins_since_ns: u64,
    /// For how long its vCPU isn't to be preempted, by its own word.
    pub says_ns: u32,
    /// Which passage of a barrier it waits for; of a writer of RCU: which grace period.
    pub passage: u32,
}

/// A lock's holder or waiter, as one number: of a spinning lock a frame of a vCPU, of a sleeping one a
/// thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Holder(u32);

impl Holder {
    pub const NONE: Self = Self(u32::MAX);
    /// Of a sleeping lock: [`Beside::Readers`] says how many.
    pub const READERS: Self = Self(u32::MAX - 1);

    #[inline(always)]
    pub fn frame(vcpu: VcpuId, depth: u8) -> Self {
        Self(vcpu.number() * 2 + u32::from(depth))
    }

    #[inline(always)]
    pub fn thread(thread: ThreadId) -> Self {
        Self(thread.number())
    }

    /// Of a spinning lock's.
    #[inline(always)]
    pub fn vcpu(self) -> VcpuId {
        VcpuId::new(self.0 / 2)
    }

    /// Of a spinning lock's: which of its vCPU's frames it is.
    #[inline(always)]
    pub fn depth(self) -> u8 {
        (self.0 % 2) as u8
    }

    /// Of a sleeping lock's.
    #[inline(always)]
    pub fn as_thread(self) -> ThreadId {
        ThreadId::new(self.0)
    }
}

#[repr(align(64))]
pub struct Lock {
    /// Index into the VM's lock statistics.
    pub statistics: u32,
    pub wait: Wait,
    pub irqs_off: bool,
    /// How often its waiters' spinning time was doubled.
    pub doublings: u8,
    pub spin_symbol: u16,
    pub hold_symbol: u16,
    /// Its holder; or `NONE`.
    pub owner: Holder,
    pub acquisitions: u64,
    pub waiters: VecDeque<Holder>,
    /// Those that aren't in its queue, but wait too.
    pub beside: Option<Box<Beside>>,
}

/// Who waits for a lock beside its queue.
pub enum Beside {
    /// For a mutex, whose waiters sleep.
    Spinners(mutex::SpinQueue),
    Stealers(hybrid::Stealers),
    /// How many threads hold a sleeping lock for reading.
    Readers(u32),
}

const _: () = assert!(size_of::<Lock>() == 64, "one cache line");

#[derive(Default)]
pub struct Queue {
    pub items: usize,
    pub capacity: usize,
    pub receivers: VecDeque<ThreadId>,
    pub senders: VecDeque<ThreadId>,
    pub name: String,
    /// A channel whose other end is the ring of this VM's NIC.
    pub nic: Option<VmId>,
}

#[derive(Default)]
pub struct Barrier {
    pub count: usize,
    pub waiting: Vec<ThreadId>,
    /// Under a lock only, where an arriving thread isn't at once among those that wait: how many have
    /// arrived, and how often all had.
    pub arrived: usize,
    pub passages: u32,
    /// Of those that spin before they sleep (`spin_barrier.rs`): the spinners, and whether this is the gate
    /// behind which all have left.
    pub spinning: Vec<ThreadId>,
    pub is_departure: bool,
    /// Whether all but one of those that sleep are requeued to a mutex, and those that wait there: at both
    /// gates at the arrival's.
    pub requeues: bool,
    pub requeued: VecDeque<ThreadId>,
    pub name: String,
}
