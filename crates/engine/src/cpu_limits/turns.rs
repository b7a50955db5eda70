//! Limits as sched_ext's schedulers here keep them: the C of `policy/cpu_limit.h` (on a real host:
//! `bpf/core/cpu_limit.bpf.h`).

use super::Verdict;
use microslice_model::config::CpuMax;
use microslice_model::ids::{IdVec, VcpuId};
use microslice_model::machine::Machine;
use microslice_policy::{CpuLimit, LimitObservation, decide_on_limit, limit_charge};

/// The clock begins there, as that of a host that has been up for a while.
const EPOCH_NS: u64 = 1_000_000_000_000;

#[derive(Clone, Copy, Default)]
struct Turn {
    left_ns: u64,
    rests_until_ns: u64,
}

pub(super) struct Turns {
    limit: CpuLimit,
    slice_ns: u64,
    clock_ns: u64,
    /// Of each vCPU, wherever.
    turns: IdVec<VcpuId, Turn>,
}

impl Turns {
    /// `slice_ns`: a turn's length without a limit.
    pub fn new(max: &CpuMax, slice_ns: u64, machine: &Machine) -> Self {
        let us = |ns: u64| (ns / 1_000) as u32;
        Self {
            limit: CpuLimit {
                quota_us: us(max.quota_ns),
                period_us: us(max.period_ns),
                ..CpuLimit::default()
            },
            slice_ns,
            clock_ns: 0,
            turns: IdVec::of(Turn::default(), machine.vcpus.len()),
        }
    }

    pub fn charge(&mut self, vcpu: VcpuId, ran_ns: u64) {
        let left_ns = &mut self.turns[vcpu].left_ns;
        let beyond_ns = ran_ns.saturating_sub(*left_ns);
        *left_ns = left_ns.saturating_sub(ran_ns);
        self.clock_ns += limit_charge(&self.limit, beyond_ns);
    }

    /// `active`: so many vCPUs of the VM want to run.
    pub fn verdict(&mut self, now_ns: u64, vcpu: VcpuId, active: usize) -> Verdict {
        let left_ns = self.turns[vcpu].left_ns;
        if left_ns > 0 {
            return Verdict::Runs { until_ns: now_ns + left_ns };
        }
        let seen = LimitObservation {
            now_ns: EPOCH_NS + now_ns,
            clock_ns: self.clock_ns,
            slice_ns: self.slice_ns,
            active_count: active as u32,
            reserved: 0,
        };
        let decision = decide_on_limit(&self.limit, &seen);
        self.clock_ns = decision.clock_ns + limit_charge(&self.limit, decision.turn_ns);
        let rests_until_ns = decision.rest_until_ns.saturating_sub(EPOCH_NS);
        self.turns[vcpu] = Turn { left_ns: decision.turn_ns, rests_until_ns };
        match decision.rest_until_ns {
            0 => Verdict::Runs { until_ns: now_ns + decision.turn_ns },
            _ => Verdict::Rests,
        }
    }

    /// Its turn has ended before its time.
    pub fn settle(&mut self, vcpu: VcpuId) {
        let left_ns = std::mem::take(&mut self.turns[vcpu].left_ns);
        self.clock_ns = self.clock_ns.saturating_sub(limit_charge(&self.limit, left_ns));
    }

    pub fn rests_until_ns(&self, vcpu: VcpuId) -> u64 {
        self.turns[vcpu].rests_until_ns
    }

    pub fn next_ns(&self, resting: &[VcpuId]) -> u64 {
        resting.iter().map(|&vcpu| self.rests_until_ns(vcpu)).min().unwrap_or(u64::MAX)
    }
}
