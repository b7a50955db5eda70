//! What a VM's cgroups say about its CPU time: its weight, which the normal pool keeps, and its limit, which no
//! sched_ext scheduler is told of here: the kernel enforces `cpu.max` only where it schedules itself (`kernel/sched/fair.c`).

use std::collections::BTreeSet;
use std::fmt;
use std::path::{Path, PathBuf};

/// Where systemd mounts cgroup v2.
pub const MOUNT: &str = "/sys/fs/cgroup";

/// Most threads of a VMM whose cgroups are looked at.
const THREADS_MAX: usize = 4096;

/// A `cpu.max` other than `max`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CpuLimit {
    pub quota_us: u64,
    pub period_us: u64,
    /// The file that says so.
    pub file: PathBuf,
}

impl CpuLimit {
    /// How many CPUs' time it allows.
    pub fn cpus(&self) -> f64 {
        self.quota_us as f64 / self.period_us as f64
    }

    /// `20000 100000`; `None` for `max 100000`, and for what isn't a limit.
    fn parse(text: &str, file: PathBuf) -> Option<Self> {
        let mut words = text.split_whitespace().map(|word| word.parse::<u64>().ok());
        let (quota_us, period_us) = (words.next()??, words.next()??);
        (period_us > 0).then_some(Self { quota_us, period_us, file })
    }
}

impl fmt::Display for CpuLimit {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{:.2} CPUs ({})", self.cpus(), self.file.display())
    }
}

/// The cgroup v2 that `/proc/PID/cgroup` or `/proc/PID/task/TID/cgroup` names; the root if there is none.
pub fn named_in(proc_file: &Path) -> String {
    let text = std::fs::read_to_string(proc_file).unwrap_or_default();
    text.lines().find_map(|line| line.strip_prefix("0::")).unwrap_or("/").to_owned()
}

/// `cpu.weight` of the VM: of the machine's scope if the process is in one, else of its own cgroup. `None` in the root
/// cgroup, or where the cpu controller isn't on.
pub fn weight(mount: &Path, cgroup: &str) -> Option<u32> {
    let relative = Path::new(cgroup.trim_start_matches('/'));
    let scope = relative
        .ancestors()
        .find(|path| path.file_name().is_some_and(|name| name.to_string_lossy().ends_with(".scope")));
    let folder = mount.join(scope.unwrap_or(relative));
    std::fs::read_to_string(folder.join("cpu.weight")).ok()?.trim().parse().ok()
}

/// The cgroups of a process and of its threads: libvirt limits vCPUs each in one of its own.
pub fn of_process_and_threads(process: &Path) -> Vec<String> {
    let threads = std::fs::read_dir(process.join("task")).into_iter().flatten().flatten().take(THREADS_MAX);
    let mut cgroups: Vec<String> = threads.map(|thread| named_in(&thread.path().join("cgroup"))).collect();
    cgroups.push(named_in(&process.join("cgroup")));
    cgroups.sort_unstable();
    cgroups.dedup();
    cgroups
}

/// The tightest limit of these cgroups and of those that they lie in.
pub fn tightest_limit(mount: &Path, cgroups: &[String]) -> Option<CpuLimit> {
    let folders = cgroups.iter().flat_map(|cgroup| Path::new(cgroup.trim_start_matches('/')).ancestors());
    // Each is read once, however many vCPUs have cgroups of their own in it.
    let folders: BTreeSet<_> = folders.collect();
    let limits = folders.into_iter().filter_map(|folder| {
        let file = mount.join(folder).join("cpu.max");
        CpuLimit::parse(&std::fs::read_to_string(&file).ok()?, file)
    });
    limits.min_by(|a, b| a.cpus().total_cmp(&b.cpus()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const CGROUP: &str = "/machine.slice/machine-a.scope/libvirt/emulator";

    fn mount_with(files: &[(&str, &str)]) -> tempfile::TempDir {
        let mount = tempfile::tempdir().unwrap();
        for (name, content) in files {
            let file = mount.path().join(name);
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            std::fs::write(file, content).unwrap();
        }
        mount
    }

    #[test]
    fn the_weight_is_that_of_the_machine_not_of_its_inner_groups() {
        let mount = mount_with(&[
            ("machine.slice/machine-a.scope/libvirt/emulator/cpu.weight", "1\n"),
            ("machine.slice/machine-a.scope/cpu.weight", "250\n"),
        ]);
        assert_eq!(weight(mount.path(), CGROUP), Some(250));
        assert_eq!(weight(mount.path(), "/"), None);
    }

    #[test]
    fn the_tightest_limit_counts_whether_it_is_the_vcpus_the_machines_or_its_slices() {
        let vcpu = "/machine.slice/machine-a.scope/libvirt/vcpu0".to_owned();
        let cgroups = [CGROUP.to_owned(), vcpu];
        let limits = [
            ("machine.slice/cpu.max", "800000 100000\n"),
            ("machine.slice/machine-a.scope/cpu.max", "max 100000\n"),
            ("machine.slice/machine-a.scope/libvirt/vcpu0/cpu.max", "30000 100000\n"),
        ];
        let mount = mount_with(&limits);
        let limit = tightest_limit(mount.path(), &cgroups).unwrap();
        assert_eq!((limit.quota_us, limit.period_us), (30_000, 100_000));
        assert!(limit.to_string().starts_with("0.30 CPUs (") && limit.to_string().contains("vcpu0/cpu.max"));
        assert_eq!(tightest_limit(mount.path(), &cgroups[..1]).unwrap().cpus(), 8.0);
        assert_eq!(tightest_limit(mount.path(), &["/".to_owned()]), None);
    }

    #[test]
    fn what_is_no_limit_is_none() {
        for text in ["max 100000", "", "20000", "20000 0", "-1 100000", "many 100000"] {
            assert_eq!(CpuLimit::parse(text, PathBuf::new()), None, "{text}");
        }
    }

    #[test]
    fn threads_in_cgroups_of_their_own_are_seen() {
        let process = mount_with(&[
            ("cgroup", "0::/vm/emulator\n"),
            ("task/10/cgroup", "0::/vm/emulator\n"),
            ("task/11/cgroup", "12:cpu:/old\n0::/vm/vcpu0\n"),
        ]);
        assert_eq!(of_process_and_threads(process.path()), ["/vm/emulator", "/vm/vcpu0"]);
    }
}
