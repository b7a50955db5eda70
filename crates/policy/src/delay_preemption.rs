//! Delayed preemption (`policy/delay_preemption.h`): where a turn ends so that nobody waits for what its vCPU
//! holds.

use crate::layout::c;
use crate::{DelayConfig, DelayDecision, DelayObservation, DelayState, DelayVerdict, DelayWindow};

impl DelayConfig {
    /// Windows aren't longer.
    pub const WINDOW_MAX_NS: u64 = crate::DELAY_WINDOW_MAX_NS as u64;
    /// So many offsets at the most make a mean.
    pub const HISTORY_MAX: u32 = crate::DELAY_HISTORY_MAX;
    /// Ours: the paper names k and gives no value. Long enough that a single odd turn moves little, short
    /// enough to follow a guest within a tenth of a second.
    pub const HISTORY: u32 = 8;

    /// Grace: so many micro slices more at the end of a turn, for a vCPU that would hold others up, in a
    /// window that doesn't slide.
    pub fn of_grace(micro_slices: u32, micro_slice_ns: u64) -> Self {
        Self {
            window_ns: u64::from(micro_slices) * micro_slice_ns,
            look_ns: micro_slice_ns,
            history: 0,
            unsafe_where: crate::DelayUnsafe::InCriticalCode.into(),
        }
    }

    /// Do turns end in windows around their end? Grace is none.
    pub fn window_slides(&self) -> bool {
        // SAFETY: the pointer comes from a reference.
        unsafe { c::window_slides(self) != 0 }
    }

    /// The window of grace, by a clock of its own: what was given of it.
    pub fn window_of_grace(&self) -> DelayWindow {
        // SAFETY: the pointer comes from a reference.
        unsafe { c::delay_window_of_grace(self) }
    }
}

impl DelayState {
    /// The window around the end of a turn that is due to end then.
    pub fn window_around(&self, config: &DelayConfig, due_ns: u64) -> DelayWindow {
        // SAFETY: both pointers come from references.
        unsafe { c::delay_window_around(config, self, due_ns) }
    }

    /// Another task is to run now, before the turn is over: for how long that may be put off.
    pub fn window_from(&self, config: &DelayConfig, now_ns: u64) -> DelayWindow {
        // SAFETY: both pointers come from references.
        unsafe { c::delay_window_from(config, self, now_ns) }
    }

    /// A turn has ended in its window.
    pub fn after_turn(&self, config: &DelayConfig, seen: &DelayObservation, verdict: DelayVerdict) -> Self {
        // SAFETY: the pointers come from references.
        unsafe { c::delay_after_turn(config, self, seen, verdict as u32) }
    }
}

/// Is a vCPU preempted now?
pub fn decide_on_delay(config: &DelayConfig, seen: &DelayObservation) -> DelayDecision {
    // SAFETY: both pointers come from references.
    unsafe { c::decide_on_delay(config, seen) }
}
