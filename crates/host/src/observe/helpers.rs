//! CPU time that a VM takes beside its vCPUs: its VMM's other threads, vhost's workers, KVM's timer thread.
//!
//! Problem.   Guests' disks and networks take time on the host's pCPUs that no vCPU shows. Some of it lies in
//!            no cgroup of the VM: `kvm-pit/PID`, and before Linux 6.4 vhost's workers, are kernel threads.
//! Mechanism. `/proc/*/task/*/schedstat` has the time that a thread ran, in nanoseconds. Threads of the VMM
//!            are read once a second. Kernel threads are found by their names, which have the VMM's pid.
//! Limits.    A thread that ends takes its last second along. One that came with the VM counts from the first
//!            look on. Kernel threads that come later are found within a minute.

use crate::observe::figures::VmFigures;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
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

    /// Returns what a kernel thread is, and which process it works for.
    fn of_kernels(name: &str) -> Option<(Self, u32)> {
        let of = |before: &str| name.strip_prefix(before)?.parse().ok();
        of("kvm-pit/").map(|pid| (Self::Pit, pid)).or_else(|| Some((Self::Vhost, of("vhost-")?)))
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
    /// By pid and generation.
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
    pub fn look<'f>(&mut self, vms: impl Iterator<Item = (u32, u32, &'f mut VmFigures)>, now: Instant) {
        let mut before = std::mem::take(&mut self.vms);
        for (pid, generation, figures) in vms {
            let known = before.remove(&(pid, generation));
            let is_due = self.searched.is_none_or(|at| now.duration_since(at) >= SEARCH_AGAIN);
            if known.is_none() && self.searched != Some(now) || is_due {
                self.searched = Some(now);
                self.search();
            }
            let mut looked = known.unwrap_or_default();
            if looked.at.is_none_or(|at| now.duration_since(at) >= LOOK) {
                let vcpus = figures.vcpus.iter().map(|vcpu| vcpu.tid).collect();
                self.look_at(&mut looked, pid, &vcpus, now);
                looked.at = Some(now);
            }
            figures.helpers = looked.times;
            self.vms.insert((pid, generation), looked);
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
            present.extend(ran_ns(&folder).map(|ran_ns| (tid, (kind, ran_ns))));
        }
        for (tid, kind) in self.of_kernel.get(&pid).into_iter().flatten() {
            let ran_ns = ran_ns(&self.proc.join(tid.to_string()));
            present.extend(ran_ns.map(|ran_ns| (*tid, (*kind, ran_ns))));
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
            if let Some((kind, pid)) = found {
                self.of_kernel.entry(pid).or_default().push((tid, kind));
            }
        }
    }
}

/// Returns the folders of `folder` that are numbers.
fn numbers(folder: &Path) -> impl Iterator<Item = u32> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

fn name(task: &Path) -> Option<String> {
    Some(std::fs::read_to_string(task.join("comm")).ok()?.trim_end().to_owned())
}

/// Returns how long a thread has run: the first word of its `schedstat`.
fn ran_ns(task: &Path) -> Option<u64> {
    std::fs::read_to_string(task.join("schedstat")).ok()?.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::cgroups::tests::mount_with;
    use crate::observe::report::tests::report;

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
            ("71/comm", "vhost-7\n"),
            ("71/schedstat", "400 1 1\n"),
            ("72/comm", "kvm-pit/8\n"),
            ("72/schedstat", "1 1 1\n"),
        ]);
        let mut watch = HelperWatch::of(host.path().to_owned());
        let (mut figures, began) = (report(true).vms.remove(0).figures, Instant::now());
        let mut look = |seconds| {
            watch.look([(7, 1, &mut figures)].into_iter(), began + LOOK * seconds);
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
        watch.look([(7, 1, &mut figures)].into_iter(), began);
        figures.vcpus.clear();
        watch.look([(7, 1, &mut figures)].into_iter(), began + LOOK);
        assert_eq!(figures.helpers.vmm_ns, 1_000_000_000, "not the 90 s that it ran as a vCPU");
    }
}
