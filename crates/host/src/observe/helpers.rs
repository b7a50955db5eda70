//! CPU time that a VM takes beside its vCPUs: its VMM's other threads, vhost's workers, KVM's timer thread.
//!
//! Problem.   Guests' disks and networks take time on the host's pCPUs that no vCPU shows. Some of it lies in
//!            no cgroup of the VM: `kvm-pit/PID`, and before Linux 6.4 vhost's workers, are kernel threads.
//! Mechanism. `/proc/*/task/*/schedstat` has the time that a thread ran, in nanoseconds. Threads of the VMM
//!            are read once a second. Kernel threads are found by their names: `kvm-pit` has the VMM's pid
//!            (`arch/x86/kvm/i8254.c`), vhost the number of the VMM's thread that asked for the worker
//!            (`drivers/vhost/vhost.c`).
//! Limits.    A thread that ends takes its last second along. One that came with the VM counts from the first
//!            look on. Kernel threads that come later are found within a minute, unless whoever asked for
//!            them has ended. A VMM's threads count for each VM that it has.

use crate::machine::proc::{name, numbers, process_of, times_ns};
use crate::observe::VmSeen;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::{Duration, Instant};

const LOOK: Duration = Duration::from_secs(1);
const SEARCH_AGAIN: Duration = Duration::from_secs(60);
/// Threads of a VM that are read.
const THREADS_MAX: usize = 4_096;

/// Time that a VM's helpers ran since it was first seen, in nanoseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct HelperTimes {
    /// Threads of its VMM that aren't vCPUs.
    pub vmm_ns: u64,
    pub vhost_ns: u64,
    /// KVM's emulated timer (`kvm-pit`), in the root cgroup.
    pub pit_ns: u64,
}

impl HelperTimes {
    /// Returns the time since `before`, of the same VM.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        Self {
            vmm_ns: self.vmm_ns.saturating_sub(before.vmm_ns),
            vhost_ns: self.vhost_ns.saturating_sub(before.vhost_ns),
            pit_ns: self.pit_ns.saturating_sub(before.pit_ns),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Vmm,
    Vhost,
    Pit,
}

impl Kind {
    /// Returns what a thread of a VMM is, by its name.
    fn of_vmms(name: &str) -> Self {
        if name.starts_with("vhost-") { Self::Vhost } else { Self::Vmm }
    }

    /// Returns what a kernel thread is, and the thread that it is named for.
    fn of_kernels(name: &str) -> Option<(Self, u32)> {
        let of = |before: &str| name.strip_prefix(before)?.parse().ok();
        of("kvm-pit/").map(|tid| (Self::Pit, tid)).or_else(|| Some((Self::Vhost, of("vhost-")?)))
    }
}

/// A VM as it was looked at last.
#[derive(Debug, Default)]
struct Looked {
    times: HelperTimes,
    at: Option<Instant>,
    /// What each thread is, and how long it had run.
    threads: BTreeMap<u32, (Kind, u64)>,
}

/// Looks at VMs' helpers by the files of `/proc`.
#[derive(Debug)]
pub struct HelperWatch {
    proc: PathBuf,
    /// By slot and generation.
    vms: BTreeMap<(u32, u32), Looked>,
    /// Kernel threads by the VMM's pid.
    of_kernel: BTreeMap<u32, Vec<(u32, Kind)>>,
    searched: Option<Instant>,
}

impl HelperWatch {
    /// Watches this host.
    pub fn of_host() -> Self {
        Self::of("/proc".into())
    }

    fn of(proc: PathBuf) -> Self {
        Self { proc, vms: BTreeMap::new(), of_kernel: BTreeMap::new(), searched: None }
    }

    /// Puts into the figures of each VM what its helpers ran until `now`. VMs that aren't among these are
    /// forgotten.
    pub fn look(&mut self, vms: Vec<VmSeen<'_>>, now: Instant) {
        let mut before = std::mem::take(&mut self.vms);
        // Of all VMs: those of one VMM are threads of one process.
        let vcpus = vms.iter().flat_map(|vm| vm.figures.vcpus.iter().map(|vcpu| vcpu.tid)).collect();
        for VmSeen { key, pid, figures } in vms {
            let known = before.remove(&key);
            let is_due = self.searched.is_none_or(|at| now.duration_since(at) >= SEARCH_AGAIN);
            if known.is_none() && self.searched != Some(now) || is_due {
                self.searched = Some(now);
                self.search();
            }
            let mut looked = known.unwrap_or_default();
            if looked.at.is_none_or(|at| now.duration_since(at) >= LOOK) {
                self.look_at(&mut looked, pid, &vcpus, now);
                looked.at = Some(now);
            }
            figures.helpers = looked.times;
            self.vms.insert(key, looked);
        }
    }

    fn look_at(&self, looked: &mut Looked, pid: u32, vcpus: &BTreeSet<u32>, now: Instant) {
        let tasks = self.proc.join(format!("{pid}/task"));
        let mut present = BTreeMap::new();
        for tid in numbers(&tasks).filter(|tid| !vcpus.contains(tid)).take(THREADS_MAX) {
            let folder = tasks.join(tid.to_string());
            let kind = match looked.threads.get(&tid) {
                Some((kind, _)) => *kind,
                None => Kind::of_vmms(&name(&folder).unwrap_or_default()),
            };
            present.extend(times_ns(&folder).map(|(ran_ns, _)| (tid, (kind, ran_ns))));
        }
        for (tid, kind) in self.of_kernel.get(&pid).into_iter().flatten() {
            let times = times_ns(&self.proc.join(tid.to_string()));
            present.extend(times.map(|(ran_ns, _)| (*tid, (*kind, ran_ns))));
        }
        if let Some(at) = looked.at {
            // No thread runs longer than that. One that is new here may be old: a vCPU that ends, or one that
            // couldn't be read.
            let most_ns = u64::try_from(now.duration_since(at).as_nanos()).unwrap_or(u64::MAX);
            for (tid, (kind, ran_ns)) in &present {
                let before = looked.threads.get(tid).map_or(0, |(_, ran_ns)| *ran_ns);
                let sum = match kind {
                    Kind::Vmm => &mut looked.times.vmm_ns,
                    Kind::Vhost => &mut looked.times.vhost_ns,
                    Kind::Pit => &mut looked.times.pit_ns,
                };
                *sum = sum.saturating_add(ran_ns.saturating_sub(before).min(most_ns));
            }
        }
        looked.threads = present;
    }

    /// Finds kernel threads that work for some process.
    fn search(&mut self) {
        self.of_kernel.clear();
        for tid in numbers(&self.proc) {
            let found = name(&self.proc.join(tid.to_string())).and_then(|name| Kind::of_kernels(&name));
            if let Some((kind, owner)) = found {
                let pid = process_of(&self.proc.join(owner.to_string())).unwrap_or(owner);
                self.of_kernel.entry(pid).or_default().push((tid, kind));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::cgroups::tests::mount_with;
    use crate::observe::VmFigures;
    use crate::observe::report::tests::report;

    /// A VM of process 7.
    fn seen(slot: u32, figures: &mut VmFigures) -> VmSeen<'_> {
        VmSeen { key: (slot, 1), pid: 7, figures }
    }

    #[test]
    fn helpers_of_a_vm_are_told_apart() {
        let host = mount_with(&[
            ("7/comm", "qemu\n"),
            ("7/task/7/comm", "qemu\n"),
            ("7/task/7/schedstat", "100 1 1\n"),
            ("7/task/8/comm", "CPU 0/KVM\n"),
            ("7/task/8/schedstat", "900 1 1\n"),
            ("7/task/9/comm", "vhost-7\n"),
            ("7/task/9/schedstat", "200 1 1\n"),
            ("70/comm", "kvm-pit/7\n"),
            ("70/schedstat", "300 1 1\n"),
            ("71/comm", "vhost-9\n"),
            ("9/status", "Name:\tworker\nTgid:\t7\nPid:\t9\n"),
            ("71/schedstat", "400 1 1\n"),
            ("72/comm", "kvm-pit/8\n"),
            ("72/schedstat", "1 1 1\n"),
        ]);
        let mut watch = HelperWatch::of(host.path().to_owned());
        let (mut figures, began) = (report(true).vms.remove(0).figures, Instant::now());
        let mut look = |seconds| {
            watch.look(vec![seen(3, &mut figures)], began + LOOK * seconds);
            figures.helpers
        };
        assert_eq!(look(0), HelperTimes::default(), "what was before doesn't count");
        for (thread, ran_ns) in
            [("7/task/7", 110), ("7/task/8", 990), ("7/task/9", 230), ("70", 350), ("71", 404)]
        {
            std::fs::write(host.path().join(thread).join("schedstat"), format!("{ran_ns} 1 1\n")).unwrap();
        }
        std::fs::create_dir(host.path().join("7/task/10")).unwrap();
        std::fs::write(host.path().join("7/task/10/schedstat"), "5 0 0\n").unwrap();
        let now = look(1);
        assert_eq!(now, HelperTimes { vmm_ns: 15, vhost_ns: 34, pit_ns: 50 });
        std::fs::remove_dir_all(host.path().join("7/task/9")).unwrap();
        assert_eq!(look(2), now, "one that has gone takes nothing back");
        assert_eq!(
            now.since(&HelperTimes { vmm_ns: 5, ..now }),
            HelperTimes { vmm_ns: 10, vhost_ns: 0, pit_ns: 0 }
        );
    }

    #[test]
    fn an_old_thread_that_is_new_here_counts_from_the_last_look() {
        let host =
            mount_with(&[("7/task/8/comm", "CPU 0/KVM\n"), ("7/task/8/schedstat", "90000000000 1 1\n")]);
        let mut watch = HelperWatch::of(host.path().to_owned());
        let (mut figures, began) = (report(true).vms.remove(0).figures, Instant::now());
        figures.vcpus[0].tid = 8;
        watch.look(vec![seen(3, &mut figures)], began);
        figures.vcpus.clear();
        watch.look(vec![seen(3, &mut figures)], began + LOOK);
        assert_eq!(figures.helpers.vmm_ns, 1_000_000_000, "not the 90 s that it ran as a vCPU");
    }

    #[test]
    fn vcpus_of_another_vm_of_the_process_are_no_helpers() {
        let host = mount_with(&[("7/task/8/schedstat", "100 1 1\n"), ("7/task/9/schedstat", "100 1 1\n")]);
        let mut watch = HelperWatch::of(host.path().to_owned());
        let mut vms = [8, 9].map(|tid| {
            let mut figures = report(true).vms.remove(0).figures;
            figures.vcpus[0].tid = tid;
            figures
        });
        for (second, ran) in (0..).zip(["200 1 1\n", "300 1 1\n"]) {
            std::fs::write(host.path().join("7/task/9/schedstat"), ran).unwrap();
            let both = (0..).zip(&mut vms).map(|(slot, figures)| seen(slot, figures)).collect();
            watch.look(both, Instant::now() + LOOK * second);
        }
        assert_eq!(vms.map(|figures| figures.helpers), [HelperTimes::default(); 2]);
        assert_eq!(watch.vms.len(), 2);
    }
}
