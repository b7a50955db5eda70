//! The enumerations of `policy/*.h`. Codes cross the language border as plain `u32` ([`Code`]), because a kernel or a
//! recording may hand over any number; [`Code::get`] says which value it is.

use std::fmt;
use std::marker::PhantomData;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// A value of enumeration `E` as C stores it.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(transparent)]
pub struct Code<E> {
    value: u32,
    meaning: PhantomData<E>,
}

impl<E> Code<E> {
    pub const fn raw(value: u32) -> Self {
        Self { value, meaning: PhantomData }
    }

    pub const fn value(self) -> u32 {
        self.value
    }
}

impl<E> Clone for Code<E> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<E> Copy for Code<E> {}

impl<E> Default for Code<E> {
    fn default() -> Self {
        Self::raw(0)
    }
}

impl<E> PartialEq for Code<E> {
    fn eq(&self, other: &Self) -> bool {
        self.value == other.value
    }
}

impl<E> Eq for Code<E> {}

/// An enumeration whose values C knows by number.
pub trait Coded: Sized + Copy + 'static {
    /// Every value, at the index of its code.
    const ALL: &'static [Self];

    /// The name that counters and reports use.
    fn name(self) -> &'static str;

    /// The value of a code that policy code returned; an unknown code would be a fault of the build.
    fn of(code: u32) -> Self {
        Self::ALL[code as usize]
    }
}

impl<E: Coded> Code<E> {
    /// The value, or `None` for a number that the enumeration doesn't have.
    pub fn get(self) -> Option<E> {
        E::ALL.get(self.value as usize).copied()
    }
}

impl<E: Coded> fmt::Debug for Code<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.get() {
            Some(value) => f.write_str(value.name()),
            None => write!(f, "unknown code {}", self.value),
        }
    }
}

macro_rules! codes {
    ($(#[$doc:meta])* $name:ident { $($value:ident = $word:literal),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u32)]
        pub enum $name { $($value),+ }

        impl Coded for $name {
            const ALL: &'static [Self] = &[$($name::$value),+];

            fn name(self) -> &'static str {
                match self { $($name::$value => $word),+ }
            }
        }

        impl $name {
            /// The value of a code that policy code returned.
            pub fn of(code: u32) -> Self {
                <Self as Coded>::of(code)
            }
        }

        impl From<$name> for Code<$name> {
            fn from(value: $name) -> Self {
                Code::raw(value as u32)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.name())
            }
        }
    };
}

codes! {
    /// What the code at a guest instruction pointer is doing (paper, Table 3).
    GuestClass {
        Unknown = "unknown",
        User = "user",
        KernelOther = "kernel_other",
        LockHolder = "lock_holder",
        LockWaiter = "lock_waiter",
        TlbShootdown = "tlb_shootdown",
        ReschedIpi = "resched_ipi",
        IrqHandler = "irq_handler",
        Idle = "idle",
    }
}

codes! {
    /// Why a vCPU gives up its pCPU, or can't go on.
    YieldCause { Ple = "ple", Hlt = "hlt", IpiWait = "ipi_wait" }
}

codes! {
    /// What an interrupt that is about to be delivered means to the guest.
    InterruptKind {
        Other = "other",
        IpiReschedule = "ipi_reschedule",
        IpiCallFunction = "ipi_call_function",
        Virq = "virq",
        Timer = "timer",
    }
}

codes! {
    /// Where a vCPU is, as its host's scheduler sees it.
    VcpuState {
        Blocked = "blocked",
        Runnable = "runnable",
        Running = "running",
        Pending = "pending",
        Micro = "micro",
    }
}

codes! {
    /// Why a vCPU is accelerated.
    Cause {
        None = "none",
        TlbYield = "tlb_yield",
        LockYield = "lock_yield",
        LockHalt = "lock_halt",
        PvYield = "pv_yield",
        ReschedIpi = "resched_ipi",
        CallFunctionIpi = "call_function_ipi",
        Virq = "virq",
        LockKick = "lock_kick",
    }
}

codes! {
    /// Which siblings a pass looks for.
    PassScope { None = "none", OneCritical = "one_critical", AllPreempted = "all_preempted", AllOwing = "all_owing" }
}

codes! {
    /// What became of a yield.
    YieldReason {
        StartsPass = "starts_pass",
        NoMicroPool = "no_micro_pool",
        PassActive = "pass_active",
        Idle = "idle",
        NotCritical = "not_critical",
        Unknown = "unknown",
    }
}

codes! {
    /// What a pass decides on one sibling.
    SiblingDecision {
        Request = "request",
        NotPreempted = "not_preempted",
        AlreadyRequested = "already_requested",
        NotCritical = "not_critical",
        Yielded = "yielded",
        PassDone = "pass_done",
        Answered = "answered",
        Answering = "answering",
    }
}

codes! {
    /// Does a sibling owe a shootdown an answer?
    SiblingAnswer { Unknown = "unknown", Given = "given", Owed = "owed" }
}

codes! {
    /// Whether the spinner that started a pass goes on spinning.
    SpinnerDecision { Yields = "yields", KeepsSpinning = "keeps_spinning" }
}

codes! {
    /// What became of an interrupt.
    InterruptReason {
        Requests = "requests",
        NotUrgent = "not_urgent",
        RecipientRunning = "recipient_running",
        RecipientBlocked = "recipient_blocked",
        AlreadyRequested = "already_requested",
        NoMicroPool = "no_micro_pool",
        GuestUnknown = "guest_unknown",
        RecipientGoesFirst = "recipient_goes_first",
    }
}

codes! {
    /// What became of a wake-up after which the vCPU had to wait.
    WokenReason {
        Requests = "requests",
        NotUrgent = "not_urgent",
        NoMicroPool = "no_micro_pool",
        GuestUnknown = "guest_unknown",
    }
}

codes! {
    /// Whether a micro pCPU takes a request.
    PlacementDecision { Queue = "queue", Full = "full", Affinity = "affinity" }
}

codes! {
    /// Whether a pCPU of the normal pool takes a request, or why not.
    HomeDecision {
        Queue = "queue",
        Off = "off",
        Affinity = "affinity",
        Busy = "busy",
        Sibling = "sibling",
        VmAhead = "vm_ahead",
        TooSoon = "too_soon",
    }
}

codes! {
    /// What a micro slice achieved.
    MicroSliceOutcome {
        Served = "served",
        StillCritical = "still_critical",
        Unhandled = "unhandled",
        Blocked = "blocked",
    }
}

codes! {
    /// What Algorithm 1 counts (`policy/urgent_events.h`).
    UrgentEvent { None = "none", Ipi = "ipi", Ple = "ple", Irq = "irq" }
}

codes! {
    /// Why Algorithm 1 chose a pool size.
    PoolSizeReason {
        ProfileStarts = "profile_starts",
        NoUrgentEvents = "no_urgent_events",
        IpiDominant = "ipi_dominant",
        PleOrIrqDominant = "ple_or_irq_dominant",
        ProfileGoesOn = "profile_goes_on",
        BestFound = "best_found",
        LooksAgain = "looks_again",
        Enough = "enough",
        InUse = "in_use",
    }
}

codes! {
    /// What a record is about (`policy/record.h`).
    RecordKind {
        Classify = "classify",
        Yield = "yield",
        Sibling = "sibling",
        Spinner = "spinner",
        Interrupt = "interrupt",
        Placement = "placement",
        MicroSlice = "micro_slice",
        Wakeup = "wakeup",
        PoolSize = "pool_size",
        Turn = "turn",
        Woken = "woken",
        Limit = "limit",
        Home = "home",
    }
}

codes! {
    /// The end of a turn in the normal pool.
    TurnDecision { Ends = "ends", GoesOn = "goes_on" }
}
