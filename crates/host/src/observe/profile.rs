//! What of a report a model needs: `observe --profile`. The file's format is `microslice_metrics::profile`.

use crate::interface::WaitStats;
use crate::machine::cpu_list::parse_cpu_list;
use crate::machine::preflight::Host;
use crate::machine::proc::allowed_pcpus;
use crate::observe::figures::VmFigures;
use crate::observe::report::{Report, VmReport};
use microslice_metrics::profile::{Classes, HostProfile, Interrupt, Interrupts, Profile, VmProfile, Waits};
use std::collections::{BTreeMap, BTreeSet};

const SCHED_EXT: &str = "/sys/kernel/sched_ext";
const BASE_SLICE: &str = "/sys/kernel/debug/sched/base_slice_ns";

impl Report {
    /// None, but of the last report.
    pub fn to_profile(&self) -> Option<Profile> {
        let host = self.host.clone()?;
        let ran = |vm: &&VmReport| vm.figures.total(|vcpu| vcpu.ran_ns) > 0;
        Some(Profile::new(self.seconds, host, self.vms.iter().filter(ran).map(vm_profile).collect()))
    }
}

/// When the observation begins.
pub(super) fn host(host: &Host) -> HostProfile {
    let places = &host.topology.neighbourhoods;
    let most = |of: &dyn Fn(&crate::machine::domains::Neighbourhood) -> Option<u32>| {
        let mut counts: BTreeMap<u32, u32> = BTreeMap::new();
        places.iter().filter_map(of).for_each(|group| *counts.entry(group).or_default() += 1);
        (counts.len(), counts.values().copied().max().unwrap_or(0))
    };
    let (caches, largest) = most(&|place| place.llc);
    HostProfile {
        pcpus: places.len() as u32,
        llc_pcpus: if caches > 1 { largest } else { 0 },
        smt_threads: most(&|place| Some(place.core)).1.max(1),
        scheduler: scheduler(),
        base_slice_ns: std::fs::read_to_string(BASE_SLICE).ok().and_then(|text| text.trim().parse().ok()),
        sees_interrupts: false,
    }
}

/// When it ends: if another one schedules by now, it is unknown whose the figures are.
pub(super) fn note_scheduler(host: &mut HostProfile) {
    let now = scheduler();
    if now != host.scheduler {
        host.scheduler = format!("{}, then {now}", host.scheduler);
    }
}

fn scheduler() -> String {
    let read = |file: &str| std::fs::read_to_string(format!("{SCHED_EXT}/{file}")).unwrap_or_default();
    match read("state").trim() {
        "enabled" => read("root/ops").trim().to_owned(),
        _ => HostProfile::KERNEL.to_owned(),
    }
}

/// Where a VM's vCPUs may run, as the kernel says it of their threads, in numbers of the online pCPUs.
pub(super) fn look_at_affinity(vm: &mut VmReport) {
    let online = std::fs::read_to_string("/sys/devices/system/cpu/online").unwrap_or_default();
    let Some(online) = parse_cpu_list(online.trim()) else { return };
    let statuses = vm.figures.vcpus.iter().map(|vcpu| format!("/proc/{}/task/{}/status", vm.pid, vcpu.tid));
    let statuses = statuses.filter_map(|path| std::fs::read_to_string(path).ok());
    vm.affinity = affinity(&online, statuses);
}

/// Returns which pCPUs of `online`, counted from 0, any of these threads may run on. Empty if all of them, or
/// if no thread is there.
fn affinity(online: &[u32], statuses: impl Iterator<Item = String>) -> Vec<u32> {
    let allowed: BTreeSet<u32> = statuses.filter_map(|status| allowed_pcpus(&status)).flatten().collect();
    let numbers: Vec<u32> =
        (0..).zip(online).filter(|(_, cpu)| allowed.contains(cpu)).map(|(number, _)| number).collect();
    if numbers.len() == online.len() { Vec::new() } else { numbers }
}

fn vm_profile(vm: &VmReport) -> VmProfile {
    let figures: &VmFigures = &vm.figures;
    let waits = |waits: &WaitStats| Waits::from(&waits.histogram());
    VmProfile {
        name: Some(clipped(&vm.name)),
        vcpus: figures.vcpus.len() as u32,
        weight: vm.weight,
        affinity: vm.affinity.clone(),
        kernel: vm.kernel.as_deref().map(clipped),
        classes_are_known: vm.has_classes,
        observed_ns: figures.total(|vcpu| vcpu.observed_ns),
        ran_ns: figures.total(|vcpu| vcpu.ran_ns),
        ready_ns: figures.total(|vcpu| vcpu.ready_ns),
        waits: waits(&figures.waits()),
        turns_ended: Classes::of(figures.turns_ended()),
        pause_exits: figures.spins().into_iter().fold(0, u64::saturating_add),
        directed_yields: figures.total(|vcpu| vcpu.directed_yields),
        lock_halts: figures.total(|vcpu| vcpu.lock_halts),
        interrupts: Interrupts::of(std::array::from_fn(|kind| Interrupt {
            sent: figures.interrupts[kind],
            waits: waits(&figures.interrupt_waits[kind]),
        })),
        shootdowns: waits(&figures.shootdowns),
    }
}

/// Names come from command lines, of any length.
fn clipped(text: &str) -> String {
    text.chars().take(60).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::report::tests::report;

    fn seen() -> HostProfile {
        HostProfile {
            pcpus: 4,
            llc_pcpus: 0,
            smt_threads: 1,
            scheduler: HostProfile::KERNEL.into(),
            base_slice_ns: None,
            sees_interrupts: true,
        }
    }

    #[test]
    fn a_profile_of_the_last_report_can_be_read_again() {
        assert_eq!(report(true).to_profile(), None, "nobody looked at the host");
        let report = Report { host: Some(seen()), ..report(true) };
        let profile = report.to_profile().expect("the last one");
        let vm = &profile.vms[0];
        assert_eq!((vm.turns_ended.user, vm.turns_ended.lock_holder, vm.turns_ended.total()), (30, 10, 40));
        assert_eq!((vm.ran_ns, vm.ready_ns, vm.shootdowns.count), (500_000_000, 140_000_000, 212));
        assert_eq!(Profile::parse("p.json", &profile.to_text()), Ok(profile));
    }

    #[test]
    fn a_vm_that_never_ran_is_left_out() {
        let mut report = Report { host: Some(seen()), ..report(true) };
        report.vms[0].figures.vcpus[0].ran_ns = 0;
        assert_eq!(report.to_profile().map(|profile| profile.vms.len()), Some(0));
    }

    #[test]
    fn allowed_pcpus_are_counted_among_online_ones() {
        let status = |list: &str| format!("Name:\tx\nCpus_allowed:\tf\nCpus_allowed_list:\t{list}\n");
        let online = [0, 2, 4, 6];
        assert_eq!(affinity(&online, [status("2"), status("6-7")].into_iter()), [1, 3]);
        assert_eq!(affinity(&online, [status("0-7")].into_iter()), [0u32; 0]);
        assert_eq!(affinity(&online, std::iter::empty()), [0u32; 0]);
    }
}
