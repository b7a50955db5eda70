//! The structs of `policy/*.h`, field by field. Units are in the names; what each field means stands in the header.
//! Fields named `reserved` are padding made visible: zero, so that equal structs are equal bytes.

use crate::code::*;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// `CLASS_RANGES_MAX`: how many ranges one guest kernel may have.
pub const CLASS_RANGES_MAX: usize = 512;
/// `POOL_LIMIT_MAX`: the largest limit of the micro pool.
pub const POOL_LIMIT_MAX: usize = 63;
/// `WEIGHT_DEFAULT`: of cgroup v2's `cpu.weight`.
pub const WEIGHT_DEFAULT: u32 = 100;
/// `WEIGHT_MAX`: of cgroup v2's `cpu.weight`, too.
pub const WEIGHT_MAX: u32 = 10_000;
/// `SHARE_SCALE`: the unit of [`crate::vcpu_weight`] is 1/SHARE_SCALE.
pub const SHARE_SCALE: u32 = 1024;
/// `RECORD_VERSION`: of [`Record`] and all observations in it.
pub const RECORD_VERSION: u32 = 10;

macro_rules! layout {
    ($(#[$doc:meta])* $name:ident { $($field:ident: $type:ty),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
        #[repr(C)]
        pub struct $name { $(pub $field: $type),+ }
    };
}

layout! {
    /// Link-time addresses, `[start, end)`, and what the code there does.
    ClassRange {
        start: u64,
        end: u64,
        guest_class: Code<GuestClass>,
        reserved: u32,
    }
}

layout! {
    /// What is known of one guest's memory layout: run-time address = link-time address + slide.
    GuestLayout {
        slide: u64,
        slide_known: u32,
        reserved: u32,
    }
}

layout! {
    /// The limits of acceleration: [`AccelerateConfig::PAPER`], [`AccelerateConfig::DEFAULT`].
    AccelerateConfig {
        micro_queue_max: u32,
        grace_max: u32,
        call_function_ipi: u32,
        home_slices: u32,
        patience_ns: u64,
    }
}

layout! {
    /// A vCPU yields.
    YieldObservation {
        cause: Code<YieldCause>,
        guest_class: Code<GuestClass>,
        interrupts_enabled: u32,
        micro_pcpu_count: u32,
        pass_active: u32,
        reserved: u32,
    }
}

layout! {
    /// What a yield starts.
    YieldDecision {
        scope: Code<PassScope>,
        cause: Code<Cause>,
        reason: Code<YieldReason>,
        reserved: u32,
    }
}

layout! {
    /// A pass looks at a sibling.
    SiblingObservation {
        state: Code<VcpuState>,
        preempted: u32,
        yielded: u32,
        guest_class: Code<GuestClass>,
        requested_count: u32,
        answer: Code<SiblingAnswer>,
    }
}

layout! {
    /// A pass is over.
    SpinnerObservation {
        cause: Code<YieldCause>,
        helped_count: u32,
        crowded_count: u32,
        refused_count: u32,
        answers_known: u32,
        pass_active: u32,
        pass_made: u32,
        reserved: u32,
        spun_ns: u64,
    }
}

layout! {
    /// An interrupt is about to be delivered.
    InterruptObservation {
        kind: Code<InterruptKind>,
        recipient_state: Code<VcpuState>,
        micro_pcpu_count: u32,
        guest_known: u32,
        recipient_goes_first: u32,
        reserved: u32,
    }
}

layout! {
    /// What an interrupt starts; cause `none` leaves the recipient where it is.
    InterruptDecision {
        cause: Code<Cause>,
        reason: Code<InterruptReason>,
    }
}

layout! {
    /// A vCPU that was blocked was woken, and has to wait.
    WokenObservation {
        interrupted: u32,
        kind: Code<InterruptKind>,
        lock_halt: u32,
        interrupts_enabled: u32,
        micro_pcpu_count: u32,
        guest_known: u32,
    }
}

layout! {
    /// What that starts; cause `none` leaves it where it is.
    WokenDecision {
        cause: Code<Cause>,
        reason: Code<WokenReason>,
    }
}

layout! {
    /// A request looks for a micro pCPU.
    PlacementObservation {
        queued_count: u32,
        affinity_allows: u32,
    }
}

layout! {
    /// A request looks for a pCPU of the normal pool.
    HomeObservation {
        affinity_allows: u32,
        queued_count: u32,
        gives_way: u32,
        is_sibling: u32,
        vm_is_ahead: u32,
        disturbed: u32,
    }
}

layout! {
    /// A turn in the normal pool is over.
    TurnObservation {
        guest_class: Code<GuestClass>,
        yielded: u32,
        grace_count: u32,
        micro_pcpu_count: u32,
        answer: Code<SiblingAnswer>,
        reserved: u32,
    }
}

layout! {
    /// A micro slice has ended.
    MicroSliceObservation {
        guest_class: Code<GuestClass>,
        interrupt_pending: u32,
        blocked: u32,
        retry_count: u32,
        answer: Code<SiblingAnswer>,
        reserved: u32,
    }
}

layout! {
    /// What it achieved, and whether to ask again.
    MicroSliceDecision {
        outcome: Code<MicroSliceOutcome>,
        retry: u32,
    }
}

layout! {
    /// Parameters of Algorithm 1; [`PoolSizeConfig::PAPER`] has the paper's.
    PoolSizeConfig {
        profile_interval_ns: u64,
        epoch_interval_ns: u64,
        limit: u32,
        second_looks: u32,
        grow_when_busy_percent: u32,
        reserved: u32,
    }
}

layout! {
    /// What happened in one interval: urgent events of all VMs, and how long micro pCPUs were busy, all together.
    PoolSizeObservation {
        ipi_count: u64,
        ple_count: u64,
        irq_count: u64,
        micro_busy_ns: u64,
    }
}

layout! {
    /// The pool's size until the next step.
    PoolSizeDecision {
        interval_ns: u64,
        micro_pcpu_count: u32,
        reason: Code<PoolSizeReason>,
    }
}

layout! {
    /// Parameters of the normal pool; [`FairShareConfig::PAPER`] has the slice of the paper's baseline.
    FairShareConfig {
        slice_ns: u64,
        boost_slice_ns: u64,
        lag_max_ns: u64,
    }
}

layout! {
    /// What a VM's clock moves by, and how far it may be behind, depends on.
    VmSize {
        weight: u32,
        vcpu_count: u32,
    }
}

layout! {
    /// A vCPU becomes runnable.
    WakeupObservation {
        pool_vtime_ns: u64,
        vcpu_vtime_ns: u64,
        weight: u64,
        was_blocked: u32,
        reserved: u32,
    }
}

layout! {
    /// Its clock, its slice, and whether it goes first.
    WakeupDecision {
        vtime_ns: u64,
        slice_ns: u64,
        boost: u32,
        reserved: u32,
    }
}

layout! {
    /// As in `cpu.max`; a quota or period of 0 is no limit.
    CpuLimit {
        quota_us: u32,
        period_us: u32,
    }
}

layout! {
    /// A task with a limit wants to run.
    LimitObservation {
        now_ns: u64,
        clock_ns: u64,
        rest_until_ns: u64,
        slice_ns: u64,
        active_count: u32,
        reserved: u32,
    }
}

layout! {
    /// Whether it has to rest (0: no), or how long it may run.
    LimitDecision {
        clock_ns: u64,
        rest_until_ns: u64,
        slice_ns: u64,
    }
}

/// What is known of one guest kernel image: shared by all guests that run it. 12 KiB.
#[derive(Clone, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct GuestCode {
    pub text_start: u64,
    pub text_end: u64,
    pub range_count: u32,
    pub reserved: u32,
    pub ranges: [ClassRange; CLASS_RANGES_MAX],
}

/// Ranges that a [`GuestCode`] can't hold.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum GuestCodeError {
    #[error("{0} ranges, at most {CLASS_RANGES_MAX} fit")]
    TooMany(usize),
    #[error("range {0} is empty, overlaps the one before it, or lies outside the text")]
    OutOfOrder(usize),
}

impl GuestCode {
    /// Takes sorted, disjoint, non-empty ranges inside `[text_start, text_end)`: what the search relies on.
    pub fn new(text_start: u64, text_end: u64, ranges: &[ClassRange]) -> Result<Self, GuestCodeError> {
        if ranges.len() > CLASS_RANGES_MAX {
            return Err(GuestCodeError::TooMany(ranges.len()));
        }
        let mut free_from = text_start;
        for (index, range) in ranges.iter().enumerate() {
            if range.start < free_from || range.end <= range.start || range.end > text_end {
                return Err(GuestCodeError::OutOfOrder(index));
            }
            free_from = range.end;
        }
        let mut code = Self {
            text_start,
            text_end,
            range_count: ranges.len() as u32,
            reserved: 0,
            ranges: [ClassRange::default(); CLASS_RANGES_MAX],
        };
        code.ranges[..ranges.len()].copy_from_slice(ranges);
        Ok(code)
    }
}

impl GuestLayout {
    /// The slide was found.
    pub const fn slid_by(slide: u64) -> Self {
        Self { slide, slide_known: 1, reserved: 0 }
    }

    /// The slide isn't known yet: everything in the kernel is `unknown`.
    pub const UNKNOWN: Self = Self { slide: 0, slide_known: 0, reserved: 0 };
}

impl AccelerateConfig {
    /// A runqueue limit of one per micro pCPU (section 5), no grace, no patience, no micro slices at home, hints from yields, reschedule IPIs and vIRQs.
    pub const PAPER: Self =
        Self { micro_queue_max: 1, grace_max: 0, call_function_ipi: 0, home_slices: 0, patience_ns: 0 };
    /// What the real scheduler does unless it is told otherwise; and the simulator's `micro`, but for the micro slices at home.
    pub const DEFAULT: Self =
        Self { grace_max: 10, call_function_ipi: 1, home_slices: 1, patience_ns: 1_000_000, ..Self::PAPER };
}

impl PoolSizeObservation {
    /// One more of those that Algorithm 1 counts, or `times` more.
    pub fn count_urgent(&mut self, event: UrgentEvent, times: u64) {
        match event {
            UrgentEvent::None => {}
            UrgentEvent::Ipi => self.ipi_count += times,
            UrgentEvent::Ple => self.ple_count += times,
            UrgentEvent::Irq => self.irq_count += times,
        }
    }
}

impl PoolSizeConfig {
    /// 10 ms profile interval, 1 s epoch (Algorithm 1), at most 3 of 12 pCPUs (the authors' prototype).
    pub const PAPER: Self = Self {
        profile_interval_ns: 10_000_000,
        epoch_interval_ns: 1_000_000_000,
        limit: 3,
        second_looks: 0,
        grow_when_busy_percent: 0,
        reserved: 0,
    };
    /// What the real scheduler and the simulator's `microslice` do unless they are told otherwise. Two fifths, since a
    /// micro-sliced pCPU that nobody asks for is lent: a larger pool costs next to nothing, and shootdowns take half as
    /// long with it (docs/rules.md, Growing by demand).
    pub const DEFAULT: Self = Self { second_looks: 5, grow_when_busy_percent: 40, ..Self::PAPER };
}

impl FairShareConfig {
    /// Xen's credit scheduler: 30 ms slices, BOOST until the next 10 ms tick.
    pub const PAPER: Self = Self::with_slice(30_000_000);
    /// What the real scheduler and the simulator's `microslice` do unless they are told otherwise: waits for a turn are a
    /// third of those with the paper's slice, and a hundredth of the work is what that costs (docs/rules.md, Slices).
    pub const DEFAULT: Self = Self::with_slice(10_000_000);

    /// A boost is a third of a slice, as Xen's tick is of its slice; a sleeper comes back with a slice at most.
    pub const fn with_slice(slice_ns: u64) -> Self {
        Self { slice_ns, boost_slice_ns: slice_ns / 3, lag_max_ns: slice_ns }
    }
}

/// What Algorithm 1 remembers between two steps. All zero before the first.
#[derive(Clone, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct PoolSizeState {
    pub profile_mode: u32,
    pub micro_pcpu_count: u32,
    pub ipi_count_at: [u64; POOL_LIMIT_MAX + 1],
    pub quiet_count: u32,
    pub is_second_look: u32,
}

impl Default for PoolSizeState {
    fn default() -> Self {
        Self {
            profile_mode: 0,
            micro_pcpu_count: 0,
            ipi_count_at: [0; POOL_LIMIT_MAX + 1],
            quiet_count: 0,
            is_second_look: 0,
        }
    }
}

layout! {
    /// One (observation, decision) pair; `payload` is the struct that `kind` names, zero after its end.
    Record {
        at_ns: u64,
        kind: Code<RecordKind>,
        vcpu: u32,
        payload: [u64; 10],
    }
}

layout! {
    /// A classification: which of the recording's guest kernels, and what it said.
    ClassifyRecord {
        rip: u64,
        layout: GuestLayout,
        code_id: u32,
        guest_class: Code<GuestClass>,
    }
}

layout! {
    /// A yield and what it started.
    YieldRecord {
        seen: YieldObservation,
        decision: YieldDecision,
    }
}

layout! {
    /// A sibling that a pass looked at.
    SiblingRecord {
        seen: SiblingObservation,
        scope: Code<PassScope>,
        decision: Code<SiblingDecision>,
    }
}

layout! {
    /// The end of a pass.
    SpinnerRecord {
        config: AccelerateConfig,
        seen: SpinnerObservation,
        decision: Code<SpinnerDecision>,
        reserved: u32,
    }
}

layout! {
    /// An interrupt and what it started.
    InterruptRecord {
        config: AccelerateConfig,
        seen: InterruptObservation,
        decision: InterruptDecision,
    }
}

layout! {
    /// A wake-up and what it started.
    WokenRecord {
        config: AccelerateConfig,
        seen: WokenObservation,
        decision: WokenDecision,
    }
}

layout! {
    /// A request at one micro pCPU.
    PlacementRecord {
        config: AccelerateConfig,
        seen: PlacementObservation,
        decision: Code<PlacementDecision>,
        reserved: u32,
    }
}

layout! {
    /// A request at one pCPU of the normal pool.
    HomeRecord {
        config: AccelerateConfig,
        seen: HomeObservation,
        decision: Code<HomeDecision>,
        reserved: u32,
    }
}

layout! {
    /// The end of a micro slice.
    MicroSliceRecord {
        config: AccelerateConfig,
        seen: MicroSliceObservation,
        decision: MicroSliceDecision,
    }
}

layout! {
    /// The end of a turn in the normal pool.
    TurnRecord {
        config: AccelerateConfig,
        seen: TurnObservation,
        decision: Code<TurnDecision>,
        reserved: u32,
    }
}

layout! {
    /// A wake-up in the normal pool.
    WakeupRecord {
        config: FairShareConfig,
        seen: WakeupObservation,
        decision: WakeupDecision,
    }
}

layout! {
    /// One step of Algorithm 1; the state before it is that of the step before.
    PoolSizeRecord {
        config: PoolSizeConfig,
        seen: PoolSizeObservation,
        decision: PoolSizeDecision,
    }
}

layout! {
    /// A limit was asked about.
    LimitRecord {
        limit: CpuLimit,
        seen: LimitObservation,
        decision: LimitDecision,
    }
}

#[cfg(test)]
pub(crate) const STRUCT_COUNT: usize = 29;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_struct_has_the_size_that_c_gives_it() {
        let sizes = [
            ("ClassRange", size_of::<ClassRange>()),
            ("GuestCode", size_of::<GuestCode>()),
            ("GuestLayout", size_of::<GuestLayout>()),
            ("AccelerateConfig", size_of::<AccelerateConfig>()),
            ("YieldObservation", size_of::<YieldObservation>()),
            ("YieldDecision", size_of::<YieldDecision>()),
            ("SiblingObservation", size_of::<SiblingObservation>()),
            ("SpinnerObservation", size_of::<SpinnerObservation>()),
            ("InterruptObservation", size_of::<InterruptObservation>()),
            ("InterruptDecision", size_of::<InterruptDecision>()),
            ("WokenObservation", size_of::<WokenObservation>()),
            ("WokenDecision", size_of::<WokenDecision>()),
            ("PlacementObservation", size_of::<PlacementObservation>()),
            ("HomeObservation", size_of::<HomeObservation>()),
            ("TurnObservation", size_of::<TurnObservation>()),
            ("MicroSliceObservation", size_of::<MicroSliceObservation>()),
            ("MicroSliceDecision", size_of::<MicroSliceDecision>()),
            ("PoolSizeConfig", size_of::<PoolSizeConfig>()),
            ("PoolSizeObservation", size_of::<PoolSizeObservation>()),
            ("PoolSizeState", size_of::<PoolSizeState>()),
            ("PoolSizeDecision", size_of::<PoolSizeDecision>()),
            ("FairShareConfig", size_of::<FairShareConfig>()),
            ("VmSize", size_of::<VmSize>()),
            ("WakeupObservation", size_of::<WakeupObservation>()),
            ("WakeupDecision", size_of::<WakeupDecision>()),
            ("CpuLimit", size_of::<CpuLimit>()),
            ("LimitObservation", size_of::<LimitObservation>()),
            ("LimitDecision", size_of::<LimitDecision>()),
            ("Record", size_of::<Record>()),
        ];
        // SAFETY: constants of the shim, initialised at link time and never written.
        let (of_c, count) = unsafe { (&crate::ffi::ms_sizes, crate::ffi::ms_sizes_count) };
        assert_eq!(count as usize, sizes.len());
        for (index, (name, size)) in sizes.iter().enumerate() {
            assert_eq!(*size, of_c[index] as usize, "{name}");
        }
    }

    #[test]
    fn recordings_have_the_version_that_c_says() {
        // SAFETY: a constant of the shim, initialised at link time and never written.
        assert_eq!(RECORD_VERSION, unsafe { crate::ffi::ms_record_version });
    }
}
