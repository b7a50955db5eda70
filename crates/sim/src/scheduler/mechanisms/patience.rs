//! Who waits and keeps its pCPU: for how long already, and until when its exits needn't be looked at.

use super::passes::PassCounts;
use super::*;

/// A vCPU waits, and exits now and then because of it.
#[derive(Clone, Copy)]
pub(super) struct Spin {
    since_ns: u64,
    /// When it is asked about next, at the latest; later, it is another wait.
    until_ns: u64,
}

impl Spin {
    pub const NONE: Self = Self { since_ns: 0, until_ns: 0 };
}

impl<Normal: Core> MicroSliced<Normal> {
    /// For how long it has waited in this turn. Two exits further apart than a micro slice are of two waits.
    pub(super) fn spun_ns(&mut self, now_ns: u64, vcpu: VcpuId) -> u64 {
        let spin = &mut self.members[vcpu].spin;
        if now_ns > spin.until_ns.saturating_add(self.config.micro_slice_ns) {
            spin.since_ns = now_ns;
        }
        now_ns - spin.since_ns
    }

    /// A spinner goes on until then. If its pass has asked for nobody, the next ones don't either, unless something changes in
    /// the VM: so its exits needn't be looked at until then.
    pub(super) fn go_on(
        &mut self,
        machine: &mut Machine,
        vcpu: VcpuId,
        scope: PassScope,
        asked_for_nobody: bool,
        until_ns: u64,
    ) -> YieldAnswer {
        let spin = &mut self.members[vcpu].spin;
        // Who is helped begins to wait anew.
        if until_ns == u64::MAX {
            *spin = Spin::NONE
        } else {
            spin.until_ns = until_ns
        }
        if !asked_for_nobody {
            return YieldAnswer::KeepSpinning { until_ns: machine.now_ns };
        }
        let keeps_spinning = |helped| {
            let pass = PassCounts { helped, ..PassCounts::default() };
            self.keeps_spinning(YieldCause::Ple, scope, pass, u64::MAX)
        };
        let depends_on = Promised {
            without_kinds: self.short_cuts[scope as usize].as_ref().map_or(0, |of| of.kinds_that_matter),
            helped: keeps_spinning(0) != keeps_spinning(1),
        };
        machine.promise(vcpu, depends_on);
        YieldAnswer::KeepSpinning { until_ns }
    }
}
