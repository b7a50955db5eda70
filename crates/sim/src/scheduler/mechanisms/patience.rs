//! Who waits and keeps its pCPU: for how long already, and until when its exits needn't be looked at.

use super::*;

/// A vCPU waits, and exits now and then because of it.
#[derive(Clone, Copy)]
struct Spin {
    since_ns: u64,
    /// When it is asked about next, at the latest; later, it is another wait.
    until_ns: u64,
}

impl Spin {
    const NONE: Self = Self { since_ns: 0, until_ns: 0 };
}

/// The wait that each vCPU spins in, if it does.
pub(super) struct Patience(IdVec<VcpuId, Spin>);

impl Patience {
    pub fn new(machine: &Machine) -> Self {
        Self(IdVec::of(Spin::NONE, machine.vcpus.len()))
    }

    /// It has stopped, or is helped and begins to wait anew.
    pub fn ends(&mut self, vcpu: VcpuId) {
        self.0[vcpu] = Spin::NONE;
    }

    /// For how long it has waited in this turn. Two exits further apart than a micro slice are of two waits.
    pub fn spun_ns(&mut self, now_ns: u64, vcpu: VcpuId, micro_slice_ns: u64) -> u64 {
        let spin = &mut self.0[vcpu];
        if now_ns > spin.until_ns.saturating_add(micro_slice_ns) {
            spin.since_ns = now_ns;
        }
        now_ns - spin.since_ns
    }

    fn lasts_until(&mut self, vcpu: VcpuId, until_ns: u64) {
        self.0[vcpu].until_ns = until_ns;
    }
}

impl<Normal: Core> MicroSliced<Normal> {
    /// A spinner goes on until then. If its pass has asked for nobody, the next ones don't either, as long as what that depends
    /// on stays as it is: so its exits needn't be looked at until then.
    pub(super) fn go_on(
        &mut self,
        machine: &mut Machine,
        vcpu: VcpuId,
        asked_for_nobody: Option<Promised>,
        until_ns: u64,
    ) -> YieldAnswer {
        // Who is helped begins to wait anew.
        if until_ns == u64::MAX {
            self.patience.ends(vcpu)
        } else {
            self.patience.lasts_until(vcpu, until_ns)
        }
        let Some(depends_on) = asked_for_nobody else {
            return YieldAnswer::KeepSpinning { until_ns: machine.now_ns };
        };
        machine.promise(vcpu, depends_on);
        YieldAnswer::KeepSpinning { until_ns }
    }
}
