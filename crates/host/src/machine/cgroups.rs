//! What a VM's cgroups say about its CPU time: its weight and its limits. The kernel sees to both only where
//! it schedules itself (`kernel/sched/fair.c`), so the scheduler is told of them from here.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

/// Where systemd mounts cgroup v2.
pub const MOUNT: &str = "/sys/fs/cgroup";

/// A `cpu.max` other than `max`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CpuLimit {
    pub quota_us: u64,
    pub period_us: u64,
    /// The unused time that may be saved up beyond the quota (`cpu.max.burst`).
    pub burst_us: u64,
    /// The file that says so.
    pub file: PathBuf,
}

impl CpuLimit {
    /// How many CPUs' time it allows.
    pub fn cpus(&self) -> f64 {
        self.quota_us as f64 / self.period_us as f64
    }

    pub fn for_policy(&self) -> microslice_policy::CpuLimit {
        let microseconds = |value: u64| u32::try_from(value).unwrap_or(u32::MAX);
        microslice_policy::CpuLimit {
            quota_us: microseconds(self.quota_us),
            period_us: microseconds(self.period_us),
            burst_us: microseconds(self.burst_us),
            reserved: 0,
        }
    }

    /// Reads the limit of the cgroup with this folder alone. `None` if it has none, or is gone.
    pub fn of_cgroup(folder: &Path) -> io::Result<Option<Self>> {
        let file = folder.join("cpu.max");
        let Some(limit) = read_if_there(&file)?.and_then(|text| Self::parse(&text, file)) else {
            return Ok(None);
        };
        // Kernels before 5.14 have no bursts.
        let burst = read_if_there(&folder.join("cpu.max.burst"))?;
        let burst_us = burst.and_then(|text| text.trim().parse().ok()).unwrap_or(0);
        Ok(Some(Self { burst_us, ..limit }))
    }

    /// `20000 100000`; `None` for `max 100000`, and for what isn't a limit.
    fn parse(text: &str, file: PathBuf) -> Option<Self> {
        let mut words = text.split_whitespace().map(|word| word.parse::<u64>().ok());
        let (quota_us, period_us) = (words.next()??, words.next()??);
        (period_us > 0).then_some(Self { quota_us, period_us, burst_us: 0, file })
    }
}

impl fmt::Display for CpuLimit {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{:.2} CPUs", self.cpus())?;
        if self.burst_us > 0 {
            write!(out, " and bursts of {} ms", self.burst_us as f64 / 1e3)?;
        }
        write!(out, " ({})", self.file.display())
    }
}

/// Is there no such file, or no such cgroup any more? Every other error says nothing about either.
pub fn is_gone(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(libc::ENODEV)
}

fn read_if_there(file: &Path) -> io::Result<Option<String>> {
    match std::fs::read_to_string(file) {
        Err(error) if is_gone(&error) => Ok(None),
        read => read.map(Some),
    }
}

/// The cgroup v2 that `/proc/PID/cgroup` or `/proc/PID/task/TID/cgroup` names.
pub fn named_in(proc_file: &Path) -> Option<String> {
    let text = std::fs::read_to_string(proc_file).ok()?;
    text.lines().find_map(|line| line.strip_prefix("0::")).map(str::to_owned)
}

/// The innermost cgroup that all of these lie in. `None` of none.
pub fn common(cgroups: &[String]) -> Option<String> {
    let (first, others) = cgroups.split_first()?;
    let has_all = |folder: &&Path| others.iter().all(|other| Path::new(other).starts_with(folder));
    let common = Path::new(first).ancestors().find(has_all)?;
    Some(common.to_string_lossy().into_owned())
}

/// What to say of a host on which version 1 has the cpu controller, by `/proc/cgroups`: weights and limits
/// are read of version 2 alone.
pub fn of_version_one() -> Option<&'static str> {
    said_of_version_one(&std::fs::read_to_string("/proc/cgroups").unwrap_or_default())
}

fn said_of_version_one(proc_cgroups: &str) -> Option<&'static str> {
    let mut columns = proc_cgroups.lines().map(|line| line.split_whitespace());
    let hierarchy = columns.find_map(|mut words| (words.next() == Some("cpu")).then(|| words.next()))??;
    (hierarchy != "0").then_some(
        "cgroup v1 has the cpu controller here: weights and limits that it gives VMs aren't read; boot with \
         systemd.unified_cgroup_hierarchy=1, or give weights by --weight",
    )
}

/// Reads the weight of the cgroup with this folder. `None` if it is without the cpu controller, or gone. 0
/// if it is idle (`cpu.idle`).
pub fn weight(folder: &Path) -> io::Result<Option<u32>> {
    Ok(read_if_there(&folder.join("cpu.weight"))?.and_then(|text| text.trim().parse().ok()))
}

/// The cgroups that a VM lies in, with their `cpu.weight`, the outermost first: up to the machine's scope if
/// the process is in one, else to its own cgroup. Those without the cpu controller are left out; the root has
/// none.
pub fn weights(mount: &Path, cgroup: &str) -> io::Result<Vec<(PathBuf, u32)>> {
    let mut weights = Vec::new();
    for folder in machine_and_outer(cgroup) {
        weights.extend(weight(&mount.join(folder))?.map(|weight| (folder.to_owned(), weight)));
    }
    weights.reverse();
    Ok(weights)
}

/// Which hierarchy has the cpu controller, and how it names what it has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CpuController {
    /// Where weights are, and where used time is.
    weights: PathBuf,
    used: PathBuf,
    is_first: bool,
}

impl CpuController {
    /// Returns this host's.
    pub fn of_host() -> Self {
        Self::below(Path::new(MOUNT), of_version_one().is_some())
    }

    /// Returns that of cgroups that are mounted here, of their first version or their second.
    pub(crate) fn below(mount: &Path, is_first: bool) -> Self {
        let below = |name: &str| if is_first { mount.join(name) } else { mount.to_owned() };
        Self { weights: below("cpu"), used: below("cpuacct"), is_first }
    }

    /// Returns the cgroups with a weight that these vCPUs' threads all lie in, the outermost first, up to the
    /// machine's scope if there is one. They are relative to the root, which is none of them.
    pub fn groups_of(&self, pid: u32, threads: &[u32]) -> Vec<PathBuf> {
        let named = |thread: &u32| {
            let text = std::fs::read_to_string(format!("/proc/{pid}/task/{thread}/cgroup")).ok()?;
            self.named_in(&text).map(str::to_owned)
        };
        let named: Vec<_> = threads.iter().filter_map(named).collect();
        let Some(cgroup) = common(&named) else { return Vec::new() };
        let mut groups: Vec<_> = machine_and_outer(&cgroup).map(Path::to_owned).collect();
        groups.retain(|folder| self.weight_file(folder).exists());
        groups.reverse();
        groups
    }

    fn named_in<'t>(&self, proc_cgroup: &'t str) -> Option<&'t str> {
        proc_cgroup.lines().find_map(|line| {
            let (_, rest) = line.split_once(':')?;
            let (controllers, cgroup) = rest.split_once(':')?;
            let wanted = if self.is_first { "cpu" } else { "" };
            controllers.split(',').any(|controller| controller == wanted).then_some(cgroup)
        })
    }

    pub fn weight_file(&self, folder: &Path) -> PathBuf {
        self.weights.join(folder).join(if self.is_first { "cpu.shares" } else { "cpu.weight" })
    }

    /// Returns the least weight that the kernel takes.
    pub fn weight_least(&self) -> u32 {
        if self.is_first { 2 } else { 1 }
    }

    /// Returns the time that a cgroup has used, in nanoseconds. `None`: it is gone, or isn't counted.
    pub fn used_ns(&self, folder: &Path) -> Option<u64> {
        let read = |name: &str| std::fs::read_to_string(self.used.join(folder).join(name)).ok();
        if self.is_first {
            return read("cpuacct.usage")?.trim().parse().ok();
        }
        let text = read("cpu.stat")?;
        let used_us: u64 =
            text.lines().find_map(|line| line.strip_prefix("usage_usec "))?.trim().parse().ok()?;
        used_us.checked_mul(1_000)
    }

    /// Returns the cgroup that a thread's CPU time is counted for, relative to the root. `task`: the thread's
    /// folder in `/proc`.
    pub fn cgroup_of(&self, task: &Path) -> Option<PathBuf> {
        let text = std::fs::read_to_string(task.join("cgroup")).ok()?;
        Some(self.named_in(&text)?.trim_start_matches('/').into())
    }

    /// Returns for how long a cgroup's own limit has kept its tasks off CPUs, as a sum over CPUs, in
    /// nanoseconds. `None`: it is gone.
    pub fn throttled_ns(&self, folder: &Path) -> Option<u64> {
        throttled(&self.weights.join(folder).join("cpu.stat"))
    }

    /// Says whether a cgroup has a limit of its own.
    pub fn has_limit(&self, folder: &Path) -> bool {
        let quota_file = if self.is_first { "cpu.cfs_quota_us" } else { "cpu.max" };
        let quota = std::fs::read_to_string(self.weights.join(folder).join(quota_file)).unwrap_or_default();
        // Without a limit it is "max", or -1.
        quota.split_whitespace().next().is_some_and(|quota| quota.parse::<u64>().is_ok())
    }

    /// Returns the same of the tasks in this cgroup itself, whichever level's limit it was. `None`: that
    /// isn't counted (before Linux 6.6).
    pub fn throttled_local_ns(&self, folder: &Path) -> Option<u64> {
        throttled(&self.weights.join(folder).join("cpu.stat.local"))
    }
}

/// Reads a counter of throttled time, in nanoseconds. Version 1 has it in nanoseconds already.
fn throttled(file: &Path) -> Option<u64> {
    let text = std::fs::read_to_string(file).ok()?;
    let count = |key: &str| text.lines().find_map(|line| line.strip_prefix(key))?.trim().parse::<u64>().ok();
    let of_version_two = count("throttled_usec ").and_then(|us| us.checked_mul(1_000));
    of_version_two.or_else(|| count("throttled_time "))
}

/// The scope of the machine that a cgroup lies in, or else the cgroup, and all that it lies in but the root:
/// the innermost first.
fn machine_and_outer(cgroup: &str) -> impl Iterator<Item = &Path> {
    let relative = Path::new(cgroup.trim_start_matches('/'));
    let scope = relative
        .ancestors()
        .find(|path| path.file_name().is_some_and(|name| name.to_string_lossy().ends_with(".scope")));
    scope.unwrap_or(relative).ancestors().filter(|path| !path.as_os_str().is_empty())
}

/// The limits that cgroups set to the vCPUs of a VM.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CpuLimits {
    /// Limits of the cgroups that all of them lie in, the tightest first.
    pub of_vm: Vec<CpuLimit>,
    /// The tightest of those that one of them has for itself: libvirt makes a cgroup for each vCPU, and
    /// limits all alike.
    pub of_each_vcpu: Option<CpuLimit>,
}

impl fmt::Display for CpuLimits {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let of_vm = self.of_vm.iter().map(CpuLimit::to_string);
        let of_vcpu = self.of_each_vcpu.iter().map(|limit| format!("{limit} for each vCPU"));
        out.write_str(&of_vm.chain(of_vcpu).collect::<Vec<_>>().join(", "))
    }
}

impl CpuLimits {
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Reads the limits of these cgroups, one for each vCPU, and of those that they lie in.
    pub fn read(mount: &Path, cgroups_of_vcpus: &[String]) -> io::Result<Self> {
        // Each is read once, however many vCPUs lie in it.
        let mut vcpus_in = BTreeMap::<&Path, usize>::new();
        for cgroup in cgroups_of_vcpus {
            for folder in Path::new(cgroup.trim_start_matches('/')).ancestors() {
                *vcpus_in.entry(folder).or_default() += 1;
            }
        }
        let (mut of_vm, mut of_some) = (Vec::new(), Vec::new());
        for (folder, vcpus) in vcpus_in {
            let of = if vcpus == cgroups_of_vcpus.len() { &mut of_vm } else { &mut of_some };
            of.extend(CpuLimit::of_cgroup(&mount.join(folder))?);
        }
        let tightest_first = |limits: &mut Vec<CpuLimit>| {
            limits.sort_by(|a, b| a.cpus().total_cmp(&b.cpus()));
        };
        tightest_first(&mut of_vm);
        tightest_first(&mut of_some);
        Ok(Self { of_vm, of_each_vcpu: of_some.into_iter().next() })
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    const CGROUP: &str = "/machine.slice/machine-a.scope/libvirt/emulator";

    /// A folder with these files, in folders as they need.
    pub(crate) fn mount_with(files: &[(&str, &str)]) -> tempfile::TempDir {
        let mount = tempfile::tempdir().unwrap();
        for (name, content) in files {
            let file = mount.path().join(name);
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            std::fs::write(file, content).unwrap();
        }
        mount
    }

    #[test]
    fn weights_are_of_a_machine_and_what_it_lies_in() {
        let mount = mount_with(&[
            ("machine.slice/machine-a.scope/libvirt/emulator/cpu.weight", "1\n"),
            ("machine.slice/machine-a.scope/cpu.weight", "250\n"),
            ("machine.slice/cpu.weight", "400\n"),
        ]);
        let expected = [("machine.slice".into(), 400), ("machine.slice/machine-a.scope".into(), 250)];
        assert_eq!(weights(mount.path(), CGROUP).unwrap(), expected);
        assert_eq!(weights(mount.path(), "/").unwrap(), []);
        assert_eq!(weights(mount.path(), "/elsewhere/deep").unwrap(), []);
    }

    #[test]
    fn each_version_has_its_files_and_its_lines() {
        let mount = mount_with(&[
            ("a/cpu.weight", "100\n"),
            ("a/cpu.stat", "usage_usec 7\nuser_usec 3\n"),
            ("cpu/b/cpu.shares", "1024\n"),
            ("cpuacct/b/cpuacct.usage", "9\n"),
        ]);
        let text = "4:memory:/m\n1:cpu,cpuacct:/b\n0::/a\n";
        for (is_first, cgroup, used_ns) in [(false, "/a", 7_000), (true, "/b", 9)] {
            let controller = CpuController::below(mount.path(), is_first);
            assert_eq!(controller.named_in(text), Some(cgroup));
            let folder = Path::new(&cgroup[1..]);
            assert!(controller.weight_file(folder).exists());
            assert_eq!(controller.used_ns(folder), Some(used_ns));
            assert_eq!(controller.used_ns(Path::new("gone")), None);
        }
        let of_machine: Vec<_> = machine_and_outer(CGROUP).collect();
        assert_eq!(of_machine, [Path::new("machine.slice/machine-a.scope"), Path::new("machine.slice")]);
    }

    #[test]
    fn throttled_time_is_that_of_a_limit() {
        let mount = mount_with(&[
            ("a/cpu.max", "50000 100000\n"),
            ("a/cpu.stat", "usage_usec 7\nnr_throttled 2\nthrottled_usec 5\n"),
            ("a/b/cpu.max", "max 100000\n"),
            ("a/b/cpu.stat", "throttled_usec 9\n"),
            ("a/b/cpu.stat.local", "throttled_usec 4\n"),
            ("cpu/c/cpu.cfs_quota_us", "50000\n"),
            ("cpu/c/cpu.stat", "nr_periods 3\nthrottled_time 11\n"),
            ("cpu/d/cpu.cfs_quota_us", "-1\n"),
            ("cpu/d/cpu.stat", "throttled_time 11\n"),
        ]);
        let of = |is_first, folder: &str| {
            CpuController::below(mount.path(), is_first).throttled_ns(Path::new(folder))
        };
        assert_eq!((of(false, "a"), of(false, "gone"), of(true, "c")), (Some(5_000), None, Some(11)));
        let is_limited = |is_first, folder: &str| {
            CpuController::below(mount.path(), is_first).has_limit(Path::new(folder))
        };
        let of_second = ["a", "a/b", "gone"].map(|folder| is_limited(false, folder));
        assert_eq!(
            (of_second, ["c", "d"].map(|folder| is_limited(true, folder))),
            ([true, false, false], [true, false])
        );
        let second = CpuController::below(mount.path(), false);
        assert_eq!(second.throttled_local_ns(Path::new("a/b")), Some(4_000));
        assert_eq!(second.throttled_local_ns(Path::new("a")), None);
    }

    #[test]
    fn shared_limits_are_told_from_limits_of_each_vcpu() {
        let scope = "/machine.slice/machine-a.scope/libvirt";
        let cgroups = [0, 1].map(|index| format!("{scope}/vcpu{index}"));
        let mount = mount_with(&[
            ("machine.slice/cpu.max", "800000 100000\n"),
            ("machine.slice/cpu.max.burst", "20500\n"),
            ("machine.slice/machine-a.scope/cpu.max", "150000 100000\n"),
            ("machine.slice/machine-a.scope/libvirt/cpu.max", "max 100000\n"),
            ("machine.slice/machine-a.scope/libvirt/emulator/cpu.max", "1000 100000\n"),
            ("machine.slice/machine-a.scope/libvirt/vcpu0/cpu.max", "30000 50000\n"),
            ("machine.slice/machine-a.scope/libvirt/vcpu1/cpu.max", "40000 50000\n"),
        ]);
        let limits = CpuLimits::read(mount.path(), &cgroups).unwrap();
        let cpus: Vec<f64> = limits.of_vm.iter().map(CpuLimit::cpus).collect();
        assert_eq!(cpus, [1.5, 8.0]);
        assert!(limits.of_vm[1].to_string().starts_with("8.00 CPUs and bursts of 20.5 ms ("));
        let vcpu = limits.of_each_vcpu.unwrap();
        assert_eq!((vcpu.quota_us, vcpu.period_us), (30_000, 50_000));
        assert!(vcpu.to_string().starts_with("0.60 CPUs (") && vcpu.to_string().contains("vcpu0/cpu.max"));
    }

    #[test]
    fn vcpus_of_one_cgroup_share_its_limit() {
        let mount = mount_with(&[("a/cpu.max", "150000 100000\n")]);
        let read = |cgroups: &[&str]| {
            CpuLimits::read(mount.path(), &cgroups.iter().map(ToString::to_string).collect::<Vec<_>>())
                .unwrap()
        };
        let limits = read(&["/a", "/a"]);
        assert_eq!((limits.of_vm.len(), limits.of_each_vcpu), (1, None));
        assert_eq!(read(&["/"]), CpuLimits::default());
        assert_eq!(read(&[]), CpuLimits::default());
    }

    #[test]
    fn a_limit_as_the_policy_has_it() {
        let limit = |quota_us| CpuLimit { quota_us, period_us: 100_000, burst_us: 0, file: PathBuf::new() };
        assert_eq!(limit(150_000).for_policy().quota_us, 150_000);
        assert_eq!(limit(u64::MAX).for_policy().quota_us, u32::MAX);
    }

    #[test]
    fn an_unreadable_file_is_not_a_missing_one() {
        for (errno, gone) in
            [(libc::ENOENT, true), (libc::ENODEV, true), (libc::EMFILE, false), (libc::ENOMEM, false)]
        {
            assert_eq!(is_gone(&io::Error::from_raw_os_error(errno)), gone, "{errno}");
        }
        // A folder in the file's place can't be read, not even by root.
        let mount = mount_with(&[("a/cpu.max/b", ""), ("a/cpu.weight/b", "")]);
        assert!(CpuLimit::of_cgroup(&mount.path().join("a")).is_err());
        assert!(CpuLimits::read(mount.path(), &["/a".to_owned()]).is_err());
        assert!(weights(mount.path(), "/a").is_err());
    }

    #[test]
    fn what_is_no_limit_is_none() {
        for text in ["max 100000", "", "20000", "20000 0", "-1 100000", "many 100000"] {
            assert_eq!(CpuLimit::parse(text, PathBuf::new()), None, "{text}");
        }
    }

    #[test]
    fn vcpus_lie_in_what_their_cgroups_have_in_common() {
        let common =
            |cgroups: &[&str]| super::common(&cgroups.iter().map(ToString::to_string).collect::<Vec<_>>());
        let scope = "/machine.slice/a.scope/libvirt";
        assert_eq!(common(&[&format!("{scope}/vcpu0"), &format!("{scope}/vcpu1")]).as_deref(), Some(scope));
        assert_eq!(common(&["/a/b"]).as_deref(), Some("/a/b"));
        assert_eq!(common(&["/a", "/ab"]).as_deref(), Some("/"));
        assert_eq!(common(&[]), None);
    }

    #[test]
    fn a_cpu_controller_of_version_one_is_said() {
        let of = |hierarchy: u32| {
            format!(
                "#subsys_name\thierarchy\tnum_cgroups\tenabled\ncpuset\t0\t9\t1\ncpu\t{hierarchy}\t9\t1\n"
            )
        };
        assert!(
            said_of_version_one(&of(4))
                .is_some_and(|said| said.starts_with("cgroup v1 has the cpu controller"))
        );
        assert_eq!((said_of_version_one(&of(0)), said_of_version_one("")), (None, None));
    }

    #[test]
    fn the_cgroup_is_the_line_of_version_two() {
        let process = mount_with(&[("cgroup", "12:cpu:/old\n0::/vm/vcpu0\n")]);
        assert_eq!(named_in(&process.path().join("cgroup")).as_deref(), Some("/vm/vcpu0"));
        assert_eq!(named_in(&process.path().join("gone")), None);
    }
}
