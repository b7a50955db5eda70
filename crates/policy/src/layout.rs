//! The structs and enumerations of `policy/*.h`, generated from them (`crates/border`), and how Rust makes
//! some of them. Units are in the names. Fields named `reserved` are padding made visible: zero, so that
//! equal structs are equal bytes.

pub(crate) use generated::c;
pub use generated::*;

#[allow(clippy::all, clippy::undocumented_unsafe_blocks, dead_code, non_camel_case_types)]
mod generated {
    include!(concat!(env!("OUT_DIR"), "/border.rs"));
}

/// How many ranges one guest kernel may have.
pub const CLASS_RANGES_MAX: usize = generated::CLASS_RANGES_MAX as usize;
/// The largest limit of the micro pool.
pub const POOL_LIMIT_MAX: usize = generated::POOL_LIMIT_MAX as usize;

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
    /// A runqueue limit of one per micro pCPU (section 5). No grace, no patience, no micro slices at home.
    /// Hints from yields, reschedule IPIs and vIRQs. None of the rules in [`rules`](crate::rules).
    pub const PAPER: Self = Self {
        micro_queue_max: 1,
        grace_max: 0,
        call_function_ipi: 0,
        home_slices: 0,
        patience_ns: 0,
        paper_rules: 1,
        reserved: 0,
    };
    /// What the real scheduler does unless it is told otherwise; and the simulator's `micro`, but for the
    /// micro slices at home.
    pub const DEFAULT: Self = Self {
        grace_max: 10,
        call_function_ipi: 1,
        home_slices: 1,
        patience_ns: 1_000_000,
        paper_rules: 0,
        ..Self::PAPER
    };
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
    /// What the real scheduler and the simulator's `microslice` do unless they are told otherwise. Two
    /// fifths, since a micro-sliced pCPU that nobody asks for is lent: a larger pool costs next to nothing.
    pub const DEFAULT: Self = Self { second_looks: 5, grow_when_busy_percent: 40, ..Self::PAPER };
}

impl FairShareConfig {
    /// Xen's credit scheduler: 30 ms slices, BOOST until the next 10 ms tick.
    pub const PAPER: Self = Self::with_slice(30_000_000);
    /// What the real scheduler and the simulator's `microslice` do unless they are told otherwise: a third of
    /// the paper's slice, so that waits for a turn are a third, too (docs/explanation/differences.md).
    pub const DEFAULT: Self = Self::with_slice(10_000_000);

    /// A boost is a third of a slice, as Xen's tick is of its slice; a sleeper comes back with a slice at
    /// most.
    pub const fn with_slice(slice_ns: u64) -> Self {
        Self { slice_ns, boost_slice_ns: slice_ns / 3, lag_max_ns: slice_ns }
    }
}
