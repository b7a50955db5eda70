//! A waiter that keeps its pCPU: for how long already, and until when its exits needn't be looked at.

use super::*;
use microslice_policy::SpinnerObservation;

/// A vCPU waits, and exits now and then because of it.
#[derive(Clone, Copy)]
struct Spin {
    since_ns: u64,
    /// When it is asked about next, at the latest; later, it is another wait.
    until_ns: u64,
    /// There is no patience left in this wait.
    has_run_out: bool,
}

impl Spin {
    const NONE: Self = Self { since_ns: 0, until_ns: 0, has_run_out: false };
}

pub(super) struct Patience {
    /// The wait that each vCPU spins in, if it does.
    spins: IdVec<VcpuId, Spin>,
    /// Of each VM (`policy/accelerate.h`: `vain_waits_after`).
    vain_waits: IdVec<VmId, u32>,
}

impl Patience {
    pub fn new(machine: &Machine) -> Self {
        Self {
            spins: IdVec::of(Spin::NONE, machine.vcpus.len()),
            vain_waits: IdVec::of(0, machine.vms.len()),
        }
    }

    /// It has stopped, or is helped and begins to wait anew.
    pub fn ends(&mut self, vcpu: VcpuId) {
        self.spins[vcpu] = Spin::NONE;
    }

    /// For how long it has waited in this turn. Two exits that are further apart than a micro slice, and what
    /// the window has grown by, are of two waits.
    pub fn spun_ns(&mut self, machine: &Machine, vcpu: VcpuId, micro_slice_ns: u64) -> u64 {
        let spin = &mut self.spins[vcpu];
        let apart_ns = machine.now_ns.saturating_sub(spin.until_ns);
        if policy::exit_begins_wait(apart_ns, machine.pause_windows.grown_ns(vcpu), micro_slice_ns) {
            (spin.since_ns, spin.has_run_out) = (machine.now_ns, false);
        }
        machine.now_ns - spin.since_ns
    }

    fn lasts_until(&mut self, vcpu: VcpuId, until_ns: u64) {
        self.spins[vcpu].until_ns = until_ns;
    }
}

impl<Normal: Core> MicroSliced<Normal> {
    /// For how long it has waited, and what is known of waits in its VM, of which this is one more.
    pub(super) fn look_at_wait(
        &mut self,
        machine: &mut Machine,
        vcpu: VcpuId,
        spinner: SpinnerObservation,
    ) -> SpinnerObservation {
        let vm = machine.vcpus[vcpu].vm;
        let vain_waits = self.patience.vain_waits[vm];
        let spun_ns = self.patience.spun_ns(machine, vcpu, self.pool.slice_ns());
        let runs_out = spun_ns >= self.rules.patience_ns;
        let ran_out_before = std::mem::replace(&mut self.patience.spins[vcpu].has_run_out, runs_out);
        let spinner = SpinnerObservation {
            stranded_count: machine.vms[vm].waiting.count(self.answers.stranded_kinds),
            vain_waits,
            ran_out_before: u32::from(ran_out_before),
            spun_ns,
            ..spinner
        };
        self.patience.vain_waits[vm] = policy::vain_waits_after(&self.rules, &spinner);
        if self.patience.vain_waits[vm] != vain_waits {
            machine.break_all_promises(vm);
        }
        spinner
    }

    /// What the answer to a spinner that keeps its pCPU by patience depends on: nobody is stranded, if that
    /// matters.
    pub(super) fn while_patient(&self, spinner: &SpinnerObservation, promised: Promised) -> Promised {
        let stranded = SpinnerObservation { stranded_count: 1, ..*spinner };
        let matters =
            policy::decide_on_spinner(&self.rules, &stranded) != policy::SpinnerDecision::KeepsSpinning;
        let stranded_kinds = if matters { self.answers.stranded_kinds } else { 0 };
        Promised { without_kinds: promised.without_kinds | stranded_kinds, ..promised }
    }

    /// A spinner goes on until then. If its pass has asked for nobody, the next ones don't either, as long as
    /// what that depends on stays as it is: so its exits needn't be looked at until then.
    pub(super) fn go_on(
        &mut self,
        machine: &mut Machine,
        vcpu: VcpuId,
        asked_for_nobody: Option<Promised>,
        until_ns: u64,
    ) -> YieldAnswer {
        // A helped waiter begins to wait anew.
        if until_ns == u64::MAX {
            self.patience.ends(vcpu)
        } else {
            self.patience.lasts_until(vcpu, until_ns)
        }
        if machine.tries_cost() {
            return YieldAnswer::KeepSpinning { until_ns: machine.now_ns };
        }
        let Some(depends_on) = asked_for_nobody else {
            return YieldAnswer::KeepSpinning { until_ns: machine.now_ns };
        };
        machine.promise(vcpu, depends_on);
        YieldAnswer::KeepSpinning { until_ns }
    }
}
