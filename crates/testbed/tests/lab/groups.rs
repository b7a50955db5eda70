//! VMs in control groups: weights and limits hold beside boosts, and groups without real-time budget have
//! boosts.

use crate::{lab, of_vm, real_time_threads, report_of, run_beside, scheduled};
use microslice_testbed::lab::LabVm;
use microslice_testbed::say;
use std::path::{Path, PathBuf};
use std::sync::Once;
use std::time::{Duration, Instant};

const CALLS: [&str; 3] = ["load=calls", "vcpus=2", "compute=100000"];

/// A control group of the first version's CPU controller, in which nobody may have a real-time priority. Its
/// time is counted (`cpuacct`).
pub struct Group {
    name: PathBuf,
}

const HIERARCHIES: [&str; 2] = ["/sys/fs/cgroup/cpu", "/sys/fs/cgroup/cpuacct"];

impl Group {
    /// `None`, and it says so: there is no such controller here.
    pub fn create(name: &str) -> Option<Self> {
        Self::make(PathBuf::from(format!("microslice-{name}-{}", std::process::id())))
    }

    /// Makes another one in it.
    pub fn within(&self, name: &str) -> Option<Self> {
        Self::make(self.name.join(name))
    }

    fn make(name: PathBuf) -> Option<Self> {
        static LEFT: Once = Once::new();
        LEFT.call_once(remove_what_killed_tests_left);
        if HIERARCHIES.iter().any(|at| std::fs::create_dir(Path::new(at).join(&name)).is_err()) {
            say("no control group of the first version can be made here: not tried");
            return None;
        }
        Some(Self { name })
    }

    fn file(&self, file: &str) -> PathBuf {
        Path::new(HIERARCHIES[0]).join(&self.name).join(file)
    }

    pub fn set(&self, file: &str, value: impl std::fmt::Display) {
        std::fs::write(self.file(file), value.to_string()).expect("written");
    }

    /// Returns its weight.
    pub fn shares(&self) -> u32 {
        let text = std::fs::read_to_string(self.file("cpu.shares")).expect("read");
        text.trim().parse().expect("a number")
    }

    pub fn take(&self, vm: &LabVm) {
        for at in HIERARCHIES {
            let procs = Path::new(at).join(&self.name).join("cgroup.procs");
            std::fs::write(procs, vm.pid().to_string()).expect("written");
        }
    }

    /// Where groups have a budget of real-time each, gives it one. Groups that were removed have theirs for a
    /// moment longer.
    pub fn allow_real_time(&self, us: u32) {
        let file = self.file("cpu.rt_runtime_us");
        let began = Instant::now();
        while file.exists() && std::fs::write(&file, us.to_string()).is_err() {
            assert!(began.elapsed() < Duration::from_secs(10), "{}: not {us}", file.display());
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let began = Instant::now();
        while !remove(&self.name) && began.elapsed() < Duration::from_secs(10) {
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// Removes a group that has no processes, and says whether it is gone.
fn remove(name: &Path) -> bool {
    HIERARCHIES.map(|at| Path::new(at).join(name)).iter().all(|folder| {
        let Ok(inside) = std::fs::read_dir(folder) else { return true };
        inside.flatten().filter(|entry| entry.path().is_dir()).for_each(|group| {
            let _ = std::fs::remove_dir(group.path());
        });
        std::fs::remove_dir(folder).is_ok()
    })
}

/// Removes groups of tests that were killed: a machine's real-time budget would stay with them until it
/// boots.
fn remove_what_killed_tests_left() {
    for group in std::fs::read_dir(HIERARCHIES[0]).into_iter().flatten().flatten() {
        let name = group.file_name();
        let Some((_, pid)) =
            name.to_str().and_then(|name| name.strip_prefix("microslice-")?.rsplit_once('-'))
        else {
            continue;
        };
        let comm = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        if comm.starts_with("lab-") {
            continue;
        }
        let is_gone = if remove(Path::new(&name)) { "removed" } else { "not removed: somebody is in it" };
        say(format_args!("control group {} of a test that was killed: {is_gone}", name.display()));
    }
}

#[test]
fn groups_of_killed_tests_are_removed() {
    if HIERARCHIES.iter().any(|at| !Path::new(at).exists()) {
        return say("no control groups of the first version here: not tried");
    }
    // No process has this number.
    let outer = PathBuf::from(format!("microslice-killed-{}", u32::MAX));
    for folder in HIERARCHIES.map(|at| Path::new(at).join(&outer)) {
        std::fs::create_dir_all(folder.join("inner")).expect("made");
    }
    remove_what_killed_tests_left();
    assert!(HIERARCHIES.iter().all(|at| !Path::new(at).join(&outer).exists()));
}

/// How many CPUs these VMs have for so long.
pub fn cpus<const N: usize>(vms: [&LabVm; N], time: Duration) -> [f64; N] {
    let (began, before) = (Instant::now(), vms.map(|vm| scheduled(vm).0));
    std::thread::sleep(time);
    let mut at = 0;
    before.map(|before| {
        at += 1;
        (scheduled(vms[at - 1]).0 - before) / began.elapsed().as_nanos() as f64
    })
}

#[test]
fn groups_without_real_time_budget_are_boosted_by_deadline() {
    let Some(lab) = lab() else { return };
    let Some(group) = Group::create("deadline") else { return };
    if !group.file("cpu.rt_runtime_us").exists() {
        return say("groups have no real-time budget of their own here: not tried");
    }
    let crowd = lab.start(&["load=compute", "vcpus=4"]).expect("a VM");
    let vm = lab.start(&CALLS).expect("a VM");
    // Both: whoever was woken or waits for long is boosted in any VM.
    group.take(&crowd);
    group.take(&vm);
    let daemon = run_beside(&lab, &[&vm], &[]);
    std::thread::sleep(Duration::from_secs(3));
    let report = report_of(daemon);
    let (helper, seen) = (&report["helper"], of_vm(&report, &vm));
    let boosts = helper["boosts"].as_f64().expect("a count");
    if boosts == 0.0 && helper["refused_by_the_kernel"] != 0 {
        return say("deadlines have all of this host that they may have: not tried");
    }
    assert!(boosts > 0.0, "{helper}");
    assert_eq!(
        (&helper["by_deadline"], &helper["returns"]),
        (&helper["boosts"], &helper["boosts"]),
        "{helper}"
    );
    // A helper without a deadline waited for the kernel's next tick behind each thread that it had boosted.
    let mean_us = seen["boosted_ns"].as_f64().expect("a time") / boosts / 1000.0;
    assert!(mean_us < 2000.0, "boosted for {mean_us:.0} us each: {seen}");
    assert!(real_time_threads(&vm).is_empty());
    drop(vm);
}

#[test]
fn a_limit_holds_beside_boosts() {
    let Some(lab) = lab() else { return };
    let Some(group) = Group::create("limit") else { return };
    group.set("cpu.cfs_period_us", 100_000);
    group.set("cpu.cfs_quota_us", 50_000);
    group.allow_real_time(400_000);
    let _crowd = lab.start(&["load=compute", "vcpus=2"]).expect("a VM");
    let vm = lab.start(&["load=calls", "vcpus=2", "compute=20000"]).expect("a VM");
    group.take(&vm);
    let daemon = run_beside(&lab, &[&vm], &[]);
    let [had] = cpus([&vm], Duration::from_secs(3));
    let report = report_of(daemon);
    assert!(report["helper"]["boosts"].as_u64().expect("a count") > 0, "{}", report["helper"]);
    // Half a CPU, and one per cent of the host of these three seconds and one more; and a period's quota.
    let pcpus = std::thread::available_parallelism().expect("pCPUs").get() as f64;
    let may = 0.5 + 0.01 * pcpus * 4.0 / 3.0 + 0.05 / 3.0;
    assert!(had < may + 0.02, "it had {had:.3} CPUs of {may:.3}");
    drop(vm);
}

#[test]
fn weights_hold_beside_boosts() {
    let Some(lab) = lab() else { return };
    let (Some(light), Some(heavy)) = (Group::create("light"), Group::create("heavy")) else { return };
    light.set("cpu.shares", 256);
    heavy.set("cpu.shares", 1024);
    light.allow_real_time(400_000);
    let crowd = lab.start(&["load=compute", "vcpus=4"]).expect("a VM");
    let vm = lab.start(&["load=calls", "vcpus=2", "compute=20000"]).expect("a VM");
    heavy.take(&crowd);
    light.take(&vm);
    let share = || {
        let [light, heavy] = cpus([&vm, &crowd], Duration::from_secs(3));
        light / (light + heavy)
    };
    let before = share();
    let daemon = run_beside(&lab, &[&vm], &[]);
    let after = share();
    let report = report_of(daemon);
    assert!(report["helper"]["boosts"].as_u64().expect("a count") > 0, "{}", report["helper"]);
    // A fifth is due, and one per cent of the host by boosts.
    assert!(after < before + 0.1, "its share: {before:.3} without boosts, {after:.3} with");
    drop((vm, crowd));
}
