//! Which of a VM's waits aren't for other tasks: for its own limit, or for its own VMM.
//!
//! Problem.   A vCPU that `cpu.max` stops is ready as one that waits for others; a paused VM doesn't run at
//!            all. No scheduler helps either, so an operator has to hear of them first.
//! Mechanism. The kernel counts throttled time in each cgroup's `cpu.stat`, and from Linux 6.6 on in
//!            `cpu.stat.local`: that of its own tasks, whichever level's limit it was (`kernel/sched/core.c`,
//!            `cpu_local_stat_show`). If no vCPU of a VM ran since the look before, threads are looked at.
//!            The VM is paused if each is stopped, or is in another system call than `KVM_RUN`. Which cgroups
//!            have a limit is looked for every ten seconds; their counters alone are read each second, once
//!            for each cgroup.
//! Limits.    A pause is known to a look's interval. A new limit counts from ten seconds later on, at most.
//!            Before Linux 6.6 a limit that VMs share counts for each of them. A cgroup's throttled
//!            time includes the VMM's other threads in it; at most the time ready is shown.

use crate::machine::cgroups::CpuController;
use crate::observe::VmSeen;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How often limits are read: a kernel before 6.6 adds up a cgroup's counters for each reading.
const LOOK_FOR_LIMITS: Duration = Duration::from_secs(1);
/// How often it is looked where threads lie, and which cgroups have a limit: a file for each vCPU.
const LOOK_FOR_CGROUPS: Duration = Duration::from_secs(10);
/// Cgroups that are told of a VM. Of more, those that it lies in are told, and the rest is in its sum alone.
const CGROUPS_MAX: usize = 64;
/// `include/uapi/linux/kvm.h`.
const KVM_RUN: u64 = 0xae80;

/// What a VM waited for apart from other tasks, since it was first seen.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Stalls {
    /// Throttled time of its vCPUs' cgroups, in nanoseconds.
    pub throttled_ns: u64,
    /// Throttled time of each cgroup with a limit that any of its vCPUs lies in, in nanoseconds.
    pub by_cgroup: BTreeMap<PathBuf, u64>,
    /// Time in which its VMM kept all vCPUs from running, in nanoseconds.
    pub paused_ns: u64,
}

impl Stalls {
    /// Returns the cgroup that throttled most.
    pub fn limited_by(&self) -> Option<&Path> {
        let most = self.by_cgroup.iter().filter(|(_, ns)| **ns > 0).max_by_key(|(_, ns)| **ns);
        most.map(|(cgroup, _)| cgroup.as_path())
    }

    /// Returns those since `before`, of the same VM.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        let by_cgroup = self.by_cgroup.iter().map(|(cgroup, ns)| {
            let old = before.by_cgroup.get(cgroup).copied().unwrap_or(0);
            (cgroup.clone(), ns.saturating_sub(old))
        });
        Self {
            throttled_ns: self.throttled_ns.saturating_sub(before.throttled_ns),
            by_cgroup: by_cgroup.collect(),
            paused_ns: self.paused_ns.saturating_sub(before.paused_ns),
        }
    }
}

/// A VM as it was looked at last.
#[derive(Debug, Default)]
struct Looked {
    stalls: Stalls,
    /// What the files said: all of a cgroup, and its own tasks'.
    throttled: BTreeMap<PathBuf, u64>,
    throttled_local: BTreeMap<PathBuf, u64>,
    /// When, and how long its vCPUs had run until then.
    ran: Option<(Instant, u64)>,
    limits_read: Option<Instant>,
    placed: Option<Placed>,
}

/// Where a VM's threads lay when that was looked for.
#[derive(Debug)]
struct Placed {
    at: Instant,
    threads: Vec<u32>,
    /// Cgroups with a limit, and those within them that the threads lie in.
    limited: BTreeSet<PathBuf>,
    own: BTreeSet<PathBuf>,
}

/// What has been read in this look: VMs have outer cgroups in common.
#[derive(Debug, Default)]
struct Read {
    limits: BTreeMap<PathBuf, bool>,
    throttled: BTreeMap<PathBuf, Option<u64>>,
}

/// Looks at VMs by the files of `/proc` and of cgroups.
pub struct StallWatch {
    controller: CpuController,
    proc: PathBuf,
    /// By slot and generation.
    vms: BTreeMap<(u32, u32), Looked>,
}

impl StallWatch {
    /// Watches this host.
    pub fn of_host() -> Self {
        Self { controller: CpuController::of_host(), proc: "/proc".into(), vms: BTreeMap::new() }
    }

    /// Puts into the figures of each VM what it waited for until `now`. VMs that aren't among these are
    /// forgotten.
    pub fn look<'f>(&mut self, vms: impl Iterator<Item = VmSeen<'f>>, now: Instant) {
        let mut before = std::mem::take(&mut self.vms);
        let mut read = Read::default();
        for VmSeen { key, pid, figures } in vms {
            let mut looked = before.remove(&key).unwrap_or_default();
            let threads: Vec<u32> = figures.vcpus.iter().map(|vcpu| vcpu.tid).collect();
            self.look_for_pauses(&mut looked, pid, &threads, figures.total(|vcpu| vcpu.ran_ns), now);
            if looked.limits_read.is_none_or(|at| now.duration_since(at) >= LOOK_FOR_LIMITS) {
                looked.limits_read = Some(now);
                self.look_for_limits(&mut looked, pid, &threads, now, &mut read);
            }
            figures.stalls = looked.stalls.clone();
            self.vms.insert(key, looked);
        }
    }

    fn look_for_pauses(&self, looked: &mut Looked, pid: u32, threads: &[u32], ran_ns: u64, now: Instant) {
        let before = looked.ran.replace((now, ran_ns));
        let Some((at, _)) = before.filter(|(_, ran_before_ns)| *ran_before_ns == ran_ns) else { return };
        let is_kept_out = |thread: &u32| is_kept_out(&self.task(pid, *thread));
        if !threads.is_empty() && threads.iter().all(is_kept_out) {
            let ns = u64::try_from(now.duration_since(at).as_nanos()).unwrap_or(u64::MAX);
            looked.stalls.paused_ns = looked.stalls.paused_ns.saturating_add(ns);
        }
    }

    fn place(&self, pid: u32, threads: &[u32], now: Instant, read: &mut Read) -> Placed {
        let cgroup_of = |thread: &u32| self.controller.cgroup_of(&self.task(pid, *thread));
        let mut own: BTreeSet<PathBuf> = threads.iter().filter_map(cgroup_of).collect();
        let levels: BTreeSet<&Path> = own.iter().flat_map(|own| own.ancestors()).collect();
        let mut has_limit = |level: &&Path| {
            let limits = read.limits.entry(level.to_path_buf());
            *limits.or_insert_with(|| self.controller.has_limit(level))
        };
        let limited: BTreeSet<PathBuf> =
            levels.into_iter().filter(|level| has_limit(level)).map(Path::to_owned).collect();
        own.retain(|own| own.ancestors().any(|level| limited.contains(level)));
        Placed { at: now, threads: threads.to_owned(), limited, own }
    }

    fn look_for_limits(&self, looked: &mut Looked, pid: u32, threads: &[u32], now: Instant, read: &mut Read) {
        let is_known =
            |placed: &Placed| placed.threads == threads && now.duration_since(placed.at) < LOOK_FOR_CGROUPS;
        let placed = looked.placed.take().filter(is_known);
        let placed = placed.unwrap_or_else(|| self.place(pid, threads, now, read));
        let Placed { limited, own, .. } = looked.placed.insert(placed);
        let mut throttled_of = |level: &PathBuf| {
            let throttled = read.throttled.entry(level.clone());
            *throttled.or_insert_with(|| self.controller.throttled_ns(level))
        };
        let limited: Vec<(&Path, u64)> =
            limited.iter().filter_map(|level| Some((level.as_path(), throttled_of(level)?))).collect();
        if limited.is_empty() {
            return;
        }
        let mut throttled_ns = 0;
        looked.throttled.retain(|read, _| limited.iter().any(|(level, _)| *level == read));
        looked.throttled_local.retain(|read, _| own.contains(read));
        let by_cgroup = &mut looked.stalls.by_cgroup;
        for (level, ns) in limited {
            let more = grown(&mut looked.throttled, level, ns);
            *by_cgroup.entry(level.to_owned()).or_default() += more;
            throttled_ns += more;
        }
        forget_some(by_cgroup, &looked.throttled);
        let local = |own: &PathBuf| self.controller.throttled_local_ns(own);
        if let Some(locals) = own.iter().map(local).collect::<Option<Vec<u64>>>() {
            let more = own.iter().zip(locals).map(|(own, ns)| grown(&mut looked.throttled_local, own, ns));
            throttled_ns = more.sum();
        }
        looked.stalls.throttled_ns = looked.stalls.throttled_ns.saturating_add(throttled_ns);
    }

    fn task(&self, pid: u32, thread: u32) -> PathBuf {
        self.proc.join(format!("{pid}/task/{thread}"))
    }
}

/// Makes room: first those go that the VM doesn't lie in now, which aren't among `present`, then those that
/// throttled least.
fn forget_some(by_cgroup: &mut BTreeMap<PathBuf, u64>, present: &BTreeMap<PathBuf, u64>) {
    let surplus = by_cgroup.len().saturating_sub(CGROUPS_MAX);
    if surplus == 0 {
        return;
    }
    let mut ranks: Vec<(bool, u64, PathBuf)> =
        by_cgroup.iter().map(|(cgroup, ns)| (present.contains_key(cgroup), *ns, cgroup.clone())).collect();
    ranks.sort_unstable();
    for (_, _, cgroup) in ranks.iter().take(surplus) {
        by_cgroup.remove(cgroup);
    }
}

/// Returns by how much a cgroup's counter has grown since it was read; nothing, the first time.
fn grown(read: &mut BTreeMap<PathBuf, u64>, cgroup: &Path, now: u64) -> u64 {
    let before = read.insert(cgroup.to_owned(), now);
    before.map_or(0, |before| now.saturating_sub(before))
}

/// Is this thread kept out of `KVM_RUN`? Not if that can't be read.
fn is_kept_out(task: &Path) -> bool {
    let read = |name: &str| std::fs::read_to_string(task.join(name)).ok();
    read("stat").is_some_and(|stat| is_stopped(&stat))
        || read("syscall").is_some_and(|line| is_elsewhere(&line))
}

/// Says whether a signal or a tracer has stopped it: the third word of `/proc/*/stat`, behind a name of any
/// characters.
fn is_stopped(stat: &str) -> bool {
    let state = stat.rsplit_once(')').and_then(|(_, rest)| rest.split_whitespace().next());
    matches!(state, Some("T" | "t"))
}

/// Says whether it is blocked in another system call: `/proc/*/syscall` has its number and its arguments, or
/// `running`, or -1 outside of one.
fn is_elsewhere(syscall: &str) -> bool {
    let mut words = syscall.split_whitespace();
    let number = words.next().and_then(|word| word.parse::<u32>().ok());
    let request = words.nth(1).and_then(|word| u64::from_str_radix(word.trim_start_matches("0x"), 16).ok());
    let is_run = number.map(i64::from) == Some(libc::SYS_ioctl) && request == Some(KVM_RUN);
    number.is_some() && !is_run
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::cgroups::tests::mount_with;
    use crate::observe::VmFigures;
    use crate::observe::report::tests::report;
    use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
    use std::mem::MaybeUninit;
    use std::os::fd::OwnedFd;

    const VM: (u32, u32) = (3, 1);
    const VMM: u32 = 7;
    const THREAD: &str = "proc/7/task/8";

    /// A host of these files, and a VM whose only vCPU is thread 8 of process 7.
    struct Host {
        files: tempfile::TempDir,
        watch: StallWatch,
        figures: VmFigures,
        now: Instant,
    }

    impl Host {
        fn with(files: &[(&str, &str)]) -> Self {
            let files = mount_with(files);
            let controller = CpuController::below(&files.path().join("cgroup"), false);
            let watch = StallWatch { controller, proc: files.path().join("proc"), vms: BTreeMap::new() };
            let figures = report(true).vms.remove(0).figures;
            Self { files, watch, figures, now: Instant::now() }
        }

        fn write(&self, file: &str, text: &str) {
            std::fs::write(self.files.path().join(file), text).unwrap();
        }

        /// Looks again, a second later.
        fn look(&mut self) -> Stalls {
            self.now += LOOK_FOR_LIMITS;
            let vm = VmSeen { key: VM, pid: VMM, figures: &mut self.figures };
            self.watch.look([vm].into_iter(), self.now);
            self.figures.stalls.clone()
        }
    }

    fn limited(has_local: bool) -> Host {
        let host = Host::with(&[
            (&format!("{THREAD}/cgroup"), "0::/machine/vm/vcpu0\n"),
            ("cgroup/machine/cpu.max", "max 100000\n"),
            ("cgroup/machine/vm/cpu.max", "50000 100000\n"),
            ("cgroup/machine/vm/cpu.stat", "throttled_usec 70\n"),
            ("cgroup/machine/vm/vcpu0/cpu.max", "20000 100000\n"),
            ("cgroup/machine/vm/vcpu0/cpu.stat", "throttled_usec 900\n"),
        ]);
        if has_local {
            host.write("cgroup/machine/vm/vcpu0/cpu.stat.local", "throttled_usec 950\n");
        }
        host
    }

    #[test]
    fn a_limit_counts_from_the_first_look_at_its_level() {
        let mut host = limited(false);
        assert_eq!(host.look().throttled_ns, 0);
        host.write("cgroup/machine/vm/cpu.stat", "throttled_usec 80\n");
        host.write("cgroup/machine/vm/vcpu0/cpu.stat", "throttled_usec 902\n");
        let before = host.look();
        assert_eq!((before.throttled_ns, before.limited_by()), (12_000, Some(Path::new("machine/vm"))));
        host.write("cgroup/machine/vm/vcpu0/cpu.stat", "throttled_usec 950\n");
        let now = host.look();
        assert_eq!(now.limited_by(), Some(Path::new("machine/vm/vcpu0")));
        let since = now.since(&before);
        assert_eq!((since.throttled_ns, since.by_cgroup[Path::new("machine/vm")]), (48_000, 0));
    }

    #[test]
    fn a_shared_limit_counts_for_each_tasks_own_time() {
        let mut host = limited(true);
        host.look();
        host.write("cgroup/machine/vm/cpu.stat", "throttled_usec 9000\n");
        host.write("cgroup/machine/vm/vcpu0/cpu.stat.local", "throttled_usec 960\n");
        let stalls = host.look();
        assert_eq!((stalls.throttled_ns, stalls.limited_by()), (10_000, Some(Path::new("machine/vm"))));
    }

    #[test]
    fn cgroups_that_a_vm_has_left_make_room() {
        let mut host = limited(false);
        for at in 0..2 * CGROUPS_MAX {
            host.write(&format!("{THREAD}/cgroup"), &format!("0::/{at}\n"));
            std::fs::create_dir(host.files.path().join(format!("cgroup/{at}"))).unwrap();
            host.write(&format!("cgroup/{at}/cpu.max"), "1000 100000\n");
            host.write(&format!("cgroup/{at}/cpu.stat"), "throttled_usec 1\n");
            host.now += LOOK_FOR_CGROUPS;
            host.look();
            host.write(&format!("cgroup/{at}/cpu.stat"), &format!("throttled_usec {}\n", 200 - at));
            let by_cgroup = host.look().by_cgroup;
            assert_eq!(by_cgroup[Path::new(&at.to_string())], 199_000 - 1_000 * at as u64);
            assert!(by_cgroup.len() <= CGROUPS_MAX);
        }
        assert_eq!(host.watch.vms[&VM].throttled.len(), 1);
    }

    /// Asks the kernel to tell which files are opened in this folder and those below it.
    fn tell_opened(folder: &Path) -> OwnedFd {
        let queue = inotify::init(CreateFlags::NONBLOCK).unwrap();
        let mut folders = vec![folder.to_owned()];
        while let Some(folder) = folders.pop() {
            let inside = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path());
            folders.extend(inside.filter(|path| path.is_dir()));
            inotify::add_watch(&queue, &folder, WatchFlags::OPEN).unwrap();
        }
        queue
    }

    /// Returns how many that were since it was asked last.
    fn opened(queue: &OwnedFd) -> u64 {
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut told = inotify::Reader::new(queue, &mut buffer);
        let files = std::iter::from_fn(|| told.next().ok().map(|event| event.events()));
        files.filter(|event| !event.contains(ReadFlags::ISDIR)).count() as u64
    }

    /// Files that limits take of a VM with as many vCPUs, each in a cgroup of its own: in the first second,
    /// and in each later one. The root has no limit, and no file for one.
    fn files_read(vcpus: u32, limit: &str) -> [u64; 2] {
        let mut host =
            Host::with(&[("cgroup/vm/cpu.max", limit), ("cgroup/vm/cpu.stat", "throttled_usec 1\n")]);
        host.figures.vcpus = (0..vcpus)
            .map(|id| {
                let (task, cgroup) = (format!("proc/7/task/{id}"), format!("cgroup/vm/vcpu{id}"));
                for folder in [&task, &cgroup] {
                    std::fs::create_dir_all(host.files.path().join(folder)).unwrap();
                }
                host.write(&format!("{task}/cgroup"), &format!("0::/vm/vcpu{id}\n"));
                host.write(&format!("{cgroup}/cpu.max"), "max 100000\n");
                host.write(&format!("{cgroup}/cpu.stat.local"), "throttled_usec 1\n");
                crate::observe::VcpuFigures { id, tid: id, ..host.figures.vcpus[0].clone() }
            })
            .collect();
        let queue = tell_opened(host.files.path());
        [0, 1].map(|_| {
            host.look();
            opened(&queue)
        })
    }

    #[test]
    fn without_limits_a_second_reads_no_file() {
        assert_eq!(files_read(1_000, "max 100000\n"), [1_000 + 1_000 + 1, 0]);
    }

    #[test]
    fn with_a_limit_each_cgroup_is_read_once() {
        assert_eq!(files_read(1_000, "50000 100000\n"), [2_001 + 1_001, 1_001]);
    }

    #[test]
    fn without_a_limit_nothing_is_throttled() {
        let mut host =
            Host::with(&[(&format!("{THREAD}/cgroup"), "0::/a\n"), ("cgroup/a/cpu.stat", "x 1\n")]);
        host.look();
        assert_eq!((host.look(), host.figures.rested_ns()), (Stalls::default(), 0));
    }

    #[test]
    fn a_stopped_vm_is_paused_until_it_runs() {
        let stat = |state| format!("8 (CPU 0) KVM) {state} 1 7 7 0\n");
        let mut host = Host::with(&[(&format!("{THREAD}/stat"), &stat("T"))]);
        assert_eq!(host.look().paused_ns, 0, "it may have run until now");
        assert_eq!(host.look().paused_ns, 1_000_000_000);
        host.figures.vcpus[0].ran_ns += 1;
        assert_eq!(host.look().paused_ns, 1_000_000_000);
        host.write(&format!("{THREAD}/stat"), &stat("S"));
        assert_eq!(host.look().paused_ns, 1_000_000_000, "it sleeps");
        assert_eq!(host.figures.paused_percent(), 100.0);
    }

    #[test]
    fn a_halted_vm_is_in_kvm_run_and_not_paused() {
        let halted = "16 0x1c 0xae80 0x0 0x0 0x0 0x0 0x7f 0x7e\n";
        let mut host = Host::with(&[(&format!("{THREAD}/syscall"), halted)]);
        host.look();
        assert_eq!(host.look().paused_ns, 0);
        host.write(&format!("{THREAD}/syscall"), "202 0x55 0x80 0x0 0x0 0x0 0x0 0x7f 0x7e\n");
        assert_eq!(host.look().paused_ns, 1_000_000_000, "its VMM waits for a futex");
        for other in ["running\n", "-1 0x7f 0x7e\n", ""] {
            host.write(&format!("{THREAD}/syscall"), other);
            assert_eq!(host.look().paused_ns, 1_000_000_000, "{other}");
        }
        let other_ioctl = "16 0x1c 0x4020ae46 0x0 0x0 0x0 0x0 0x7f 0x7e\n";
        host.write(&format!("{THREAD}/syscall"), other_ioctl);
        assert_eq!(host.look().paused_ns, 2_000_000_000);
    }
}
