//! Small cases, decision by decision.

use super::*;
use crate::config::EevdfConfig;
use crate::samples;
use microslice_policy::GuestClass;

const MS: u64 = 1_000_000;

/// A host with VMs of so many vCPUs and such a weight; all have woken, in this order, and are on one pCPU
/// unless there are more.
struct Host {
    scheduler: GroupedEevdf,
    machine: Machine,
}

impl Host {
    fn new(config: EevdfConfig, pcpus: usize, vms: &[(u32, u32)]) -> Self {
        let vms = vms.iter().map(|&(vcpus, weight)| crate::machine::HostVm::new(vcpus, weight, Vec::new()));
        let host = crate::config::HostConfig { pcpus, llc_pcpus: pcpus, ..samples::host() };
        let mut machine = Machine::new(&host, vms.collect());
        machine.watched = false;
        let scheduler = GroupedEevdf::new(config, &mut machine);
        Self { scheduler, machine }
    }

    fn awake(config: EevdfConfig, pcpus: usize, vms: &[(u32, u32)]) -> Self {
        let mut host = Self::new(config, pcpus, vms);
        for vcpu in host.machine.vcpus.ids() {
            host.machine.wakes(vcpu);
            host.scheduler.wake(&mut host.machine, vcpu);
        }
        host
    }

    /// The vCPU on a pCPU stops, and the next one runs.
    fn switch(&mut self, pcpu: u32) -> VcpuId {
        let pcpu = PcpuId::new(pcpu);
        let stopped = self.machine.current(pcpu);
        if let Some(vcpu) = stopped {
            self.machine.stops(vcpu, false);
        }
        self.machine.pcpus[pcpu].current = VcpuId::NONE;
        let stopped = stopped.map(|vcpu| (vcpu, StopReason::Preempted));
        let vcpu = self.scheduler.schedule(&mut self.machine, pcpu, stopped).expect("somebody waits").vcpu;
        self.machine.runs(vcpu);
        self.machine.vcpus[vcpu].pcpu = pcpu;
        self.machine.pcpus[pcpu].current = vcpu;
        vcpu
    }

    /// How often each vCPU ran a tick's turn on pCPU 0.
    fn turns(&mut self, ticks: u64) -> Vec<u64> {
        let mut turns = vec![0; self.machine.vcpus.len()];
        for _ in 0..ticks {
            let vcpu = self.switch(0);
            turns[vcpu.index()] += 1;
            self.machine.now_ns += 4 * MS;
            self.scheduler.tick(&mut self.machine, PcpuId::new(0));
        }
        turns
    }
}

fn vcpu(number: u32) -> VcpuId {
    VcpuId::new(number)
}

#[test]
fn vms_share_a_pcpu_by_their_weights_whatever_their_numbers_of_vcpus() {
    let turns = Host::awake(samples::eevdf(), 1, &[(1, 256), (3, 256)]).turns(600);
    assert!(turns[0].abs_diff(300) <= 3, "{turns:?}");
    assert!(turns[1..].iter().all(|turns| turns.abs_diff(100) <= 3), "{turns:?}");
    let turns = Host::awake(samples::eevdf(), 1, &[(2, 512), (1, 256)]).turns(600);
    assert!(turns[2].abs_diff(200) <= 3 && turns[0].abs_diff(200) <= 3, "{turns:?}");
}

#[test]
fn a_vms_weight_is_divided_by_where_its_load_is() {
    let mut host = Host::awake(samples::eevdf(), 4, &[(4, 256), (1, 256)]);
    (0..4).for_each(|pcpu| _ = host.switch(pcpu));
    for tick in 1..400 {
        host.machine.now_ns = tick * 4 * MS;
        (0..4).for_each(|pcpu| host.scheduler.update_groups(host.machine.now_ns, PcpuId::new(pcpu)));
    }
    let weight = |pcpu: u32, vm: u32| {
        let queue = &host.scheduler.queues[PcpuId::new(pcpu)];
        queue.place_of(VmId::new(vm)).map_or(0, |at| queue.groups[at].entity.weight)
    };
    let quarters: Vec<u64> = (0..4).map(|pcpu| weight(pcpu, 0)).collect();
    assert!(quarters.iter().all(|&weight| weight.abs_diff(WEIGHT / 4) < WEIGHT / 100), "{quarters:?}");
    assert!((0..4).map(|pcpu| weight(pcpu, 1)).sum::<u64>().abs_diff(WEIGHT) < WEIGHT / 100);
}

#[test]
fn a_woken_vcpu_without_lag_waits_until_a_slice_is_over_and_no_longer() {
    let mut host = Host::new(samples::eevdf(), 1, &[(1, 256), (1, 256)]);
    host.machine.wakes(vcpu(0));
    host.scheduler.wake(&mut host.machine, vcpu(0));
    assert_eq!(host.switch(0), vcpu(0));
    host.machine.now_ns = MS;
    host.machine.wakes(vcpu(1));
    host.scheduler.wake(&mut host.machine, vcpu(1));
    assert!(!host.scheduler.preempts(PcpuId::new(0), vcpu(1)), "who runs has a slice (RUN_TO_PARITY)");
    host.machine.now_ns = 4 * MS;
    assert!(host.scheduler.charge(host.machine.now_ns, PcpuId::new(0)), "it is over");
    assert_eq!(host.switch(0), vcpu(1));
}

/// vCPUs 0 and 1 are of the VM whose vCPU spins, 2 of another one; all are on one pCPU.
fn spins(config: EevdfConfig) -> (Host, VcpuId, VcpuId) {
    let mut host = Host::awake(config, 1, &[(2, 256), (1, 256)]);
    let spinner = std::iter::repeat_with(|| {
        host.machine.now_ns += 4 * MS;
        host.switch(0)
    });
    let spinner = spinner.take(8).find(|&ran| ran != vcpu(2)).expect("both VMs have turns");
    let sibling = vcpu(1 - spinner.number());
    (host, spinner, sibling)
}

#[test]
fn a_yield_to_an_eligible_sibling_on_the_same_pcpu_is_heeded() {
    let (mut host, spinner, sibling) = spins(samples::eevdf());
    host.machine.set_class(sibling, GuestClass::LockHolder);
    let answer = host.scheduler.yields(&mut host.machine, spinner, PcpuId::new(0), YieldCause::Ple);
    assert_eq!(answer, YieldAnswer::Yield);
    assert_eq!(host.switch(0), sibling);
}

#[test]
fn a_yield_to_a_sibling_that_is_ahead_is_heeded_by_the_proposal_only() {
    for ipi_aware in [false, true] {
        let (mut host, spinner, sibling) = spins(EevdfConfig { ipi_aware, ..samples::eevdf() });
        host.machine.set_class(sibling, GuestClass::LockHolder);
        let queue = &mut host.scheduler.queues[PcpuId::new(0)];
        let at = queue.place_of(VmId::new(0)).expect("it runs");
        let group = &mut queue.groups[at];
        let place = group.place_of(sibling).expect("it waits");
        group.tasks[place].entity.vruntime_ns += 20 * MS as i64;
        let answer = host.scheduler.yields(&mut host.machine, spinner, PcpuId::new(0), YieldCause::Ple);
        assert_eq!(answer == YieldAnswer::Yield, ipi_aware, "IPI-aware: {ipi_aware}");
    }
}

#[test]
fn the_proposal_yields_to_the_recipient_of_the_spinners_interrupt() {
    let mut host = Host::awake(EevdfConfig { ipi_aware: true, ..samples::eevdf() }, 1, &[(4, 256)]);
    let spinner = host.switch(0);
    let awaited = vcpu(if spinner == vcpu(3) { 2 } else { 3 });
    let target =
        |host: &mut Host| host.scheduler.sibling_to_yield_to(&mut host.machine, spinner, PcpuId::new(0));
    assert_ne!(target(&mut host), Some(awaited), "the next one in turn is another");
    host.scheduler.ipi(&mut host.machine, spinner, awaited, IpiKind::CallFunction);
    assert_eq!(target(&mut host), Some(awaited));
    host.scheduler.acknowledged(&host.machine, awaited, false);
    assert_ne!(target(&mut host), Some(awaited), "it has handled it");
    host.scheduler.ipi(&mut host.machine, spinner, awaited, IpiKind::CallFunction);
    host.machine.now_ns += 50 * MS;
    assert_ne!(target(&mut host), Some(awaited), "that is long ago");
}
