//! Limits as sched_ext's schedulers here keep them: the C of `policy/cpu_limit.h` (on a real host:
//! `bpf/core/cpu_limit.bpf.h`).

use microslice_model::config::CpuMax;
use microslice_policy::{CpuLimit, LimitObservation, decide_on_limit, limit_charge};

/// The clock begins there, as that of a host that has been up for a while.
const EPOCH_NS: u64 = 1_000_000_000_000;

/// A vCPU's turn: what is left of it, or until when it rests before.
#[derive(Clone, Copy, Default)]
pub(super) struct Turn {
    pub left_ns: u64,
    pub rests_until_ns: u64,
}

/// What a vCPU may do that asks its limits, one after the other (`ask_limits`).
pub(super) struct Asked {
    pub now_ns: u64,
    /// So many vCPUs of its VM want to run.
    pub active: usize,
    /// Its turn, as the limits that were asked so far allow it.
    pub turn: Turn,
}

/// A limit's clock.
pub(super) struct Clock {
    limit: CpuLimit,
    clock_ns: u64,
}

impl Clock {
    pub fn new(max: &CpuMax) -> Self {
        let us = |ns: u64| (ns / 1_000) as u32;
        let limit =
            CpuLimit { quota_us: us(max.quota_ns), period_us: us(max.period_ns), ..CpuLimit::default() };
        Self { limit, clock_ns: 0 }
    }

    /// A vCPU ran, or has reserved, so much more.
    pub fn charge(&mut self, ran_ns: u64) {
        self.clock_ns += limit_charge(&self.limit, ran_ns);
    }

    /// A turn has ended so long before its time.
    pub fn settle(&mut self, left_ns: u64) {
        self.clock_ns = self.clock_ns.saturating_sub(limit_charge(&self.limit, left_ns));
    }

    /// Makes the turn as short, and the rest before it as long, as this limit has it.
    pub fn ask(&mut self, asked: &mut Asked) {
        let seen = LimitObservation {
            now_ns: EPOCH_NS + asked.now_ns,
            clock_ns: self.clock_ns,
            slice_ns: asked.turn.left_ns,
            active_count: asked.active as u32,
            reserved: 0,
        };
        let decision = decide_on_limit(&self.limit, &seen);
        self.clock_ns = decision.clock_ns;
        let rests_until_ns = decision.rest_until_ns.saturating_sub(EPOCH_NS);
        let longest_ns = rests_until_ns.max(asked.turn.rests_until_ns);
        asked.turn = Turn { left_ns: decision.turn_ns, rests_until_ns: longest_ns };
    }
}
