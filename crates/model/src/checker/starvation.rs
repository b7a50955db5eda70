//! How long a vCPU may wait: what turns, weights and the vCPUs that compete with it explain.
//!
//! In a round each vCPU that competes runs in proportion to its weight, and the one that waits is due a turn.
//! It starves when it has missed a few rounds. What makes turns longer, or comes between them, follows from
//! the configuration: windows, grace, a micro slice, urgency.

use super::{GraceLimits, MicroSlice};
use crate::config::{
    CfsConfig, DelayPreemptionConfig, MicroSlicedConfig, NormalPoolKind, ReschedCo, SchedulerKind,
};
use crate::ids::{IdVec, PcpuId, VcpuId};
use crate::machine::{HostVm, Machine};
use crate::scheduler::credit;
use std::cell::OnceCell;

/// Rounds that a vCPU may miss: clocks that are behind catch up meanwhile, and queues are balanced.
const ROUNDS_MISSED: u64 = 4;
/// Rounds without a draw that is won, where turns are drawn: one wait in e^40 is longer.
const DRAWS_LOST: u64 = 40;

pub struct Starvation {
    rounds: u64,
    turn_ns: u64,
    shares_by_vm: bool,
    /// How far urgent vCPUs may get ahead, and whether those of all VMs may.
    urgent: Option<(u64, bool)>,
    /// For how long each vCPU may wait.
    patience_ns: OnceCell<IdVec<VcpuId, u64>>,
}

impl Starvation {
    pub fn new(scheduler: &SchedulerKind, delay: Option<&DelayPreemptionConfig>) -> Self {
        let (grace, micro) = (GraceLimits::of(scheduler), MicroSlice::of(scheduler));
        let mut turn_ns = scheduler.turn_ns() + u64::from(grace.max) * grace.slice_ns + micro.slice_ns;
        turn_ns += delay.map_or(0, |delay| delay.window_ns);
        let mut urgent = None;
        match scheduler {
            // Without credits a vCPU waits until an accounting gives it some.
            SchedulerKind::Credit(_)
            | SchedulerKind::MicroSliced(MicroSlicedConfig { normal: NormalPoolKind::Credit(_), .. }) => {
                turn_ns = turn_ns.max(credit::PERIOD_NS);
            }
            SchedulerKind::Cfs(CfsConfig { coordination, .. }) => {
                turn_ns += coordination.delay_ns;
                let is_for_all = coordination.tlb_co || coordination.resched_co != ReschedCo::Off;
                urgent = Some((coordination.urgent_allowance_ns, is_for_all));
            }
            _ => {}
        }
        Self {
            rounds: if matches!(scheduler, SchedulerKind::Lottery(_)) { DRAWS_LOST } else { ROUNDS_MISSED },
            turn_ns,
            shares_by_vm: scheduler.shares_by_vm(),
            urgent,
            patience_ns: OnceCell::new(),
        }
    }

    /// Returns an error if this runnable vCPU has waited for longer than it may.
    pub fn check(&self, machine: &Machine, vcpu: VcpuId, waited_ns: u64) -> Result<(), String> {
        let patience_ns = self.patience_ns.get_or_init(|| self.patience(machine))[vcpu];
        if waited_ns <= patience_ns {
            return Ok(());
        }
        Err(format!("vCPU {vcpu} starves: runnable for {waited_ns} ns, where {patience_ns} ns are explained"))
    }

    fn patience(&self, machine: &Machine) -> IdVec<VcpuId, u64> {
        let everywhere: f64 = machine.vms.iter().map(|vm| self.weight_of_vm(vm)).sum();
        let mut there: IdVec<PcpuId, Option<f64>> = IdVec::of(None, machine.pcpus.len());
        let urgent_ns = self.urgent.map_or(0, |(allowance_ns, is_for_all)| {
            let may_be = |vm: &HostVm| {
                vm.knobs.tlb_co == Some(true) || vm.knobs.resched_co.is_some_and(|co| co != ReschedCo::Off)
            };
            if is_for_all || machine.vms.iter().any(may_be) { allowance_ns } else { 0 }
        });
        let round_ns = (self.rounds * self.turn_ns + urgent_ns) as f64;
        let of_one = |vcpu: VcpuId| {
            let mut allowed = machine.pcpus.ids().filter(|&pcpu| machine.allows(vcpu, pcpu));
            let competing = match (allowed.next(), allowed.next()) {
                (Some(only), None) => *there[only].get_or_insert_with(|| self.weight_on(machine, only)),
                _ => everywhere,
            };
            (round_ns * competing / self.weight_of(&machine.vms[machine.vcpus[vcpu].vm])) as u64
        };
        machine.vcpus.ids().map(of_one).collect()
    }

    /// Returns the weight of one of a VM's vCPUs, if all of them want to run.
    fn weight_of(&self, vm: &HostVm) -> f64 {
        self.weight_of_vm(vm) / f64::from(vm.vcpus)
    }

    fn weight_of_vm(&self, vm: &HostVm) -> f64 {
        if self.shares_by_vm { vm.weight.into() } else { f64::from(vm.weight) * f64::from(vm.vcpus) }
    }

    /// Returns the weight of all that may run on this pCPU. A VM's weight is that of those of its vCPUs that
    /// want to run: of one, if the others sleep.
    fn weight_on(&self, machine: &Machine, pcpu: PcpuId) -> f64 {
        let of_vm = |vm: &HostVm| {
            let vcpus = (0..vm.vcpus).map(|number| vm.first_vcpu.plus(number));
            match vcpus.filter(|&vcpu| machine.allows(vcpu, pcpu)).count() {
                0 => 0.0,
                _ if self.shares_by_vm => self.weight_of_vm(vm),
                count => self.weight_of(vm) * count as f64,
            }
        };
        machine.vms.iter().map(of_vm).sum()
    }
}
