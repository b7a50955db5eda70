//! What boosts bring, and what they may cost others.

use crate::{lab, observe, of_vm, real_time_threads, report_of, run_beside, scheduled};
use microslice_testbed::lab::{Lab, LabVm};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// With and without boosts, by turns.
const BLOCKS: usize = 3;
const CALLS: [&str; 3] = ["load=calls", "vcpus=2", "compute=100000"];

/// What was seen of a VM whose vCPUs call each other, beside a crowd.
struct Block {
    /// From a call until the sibling that had no pCPU has one: the mean.
    wait_ns: f64,
    /// The crowd's part of what both ran.
    share: f64,
}

fn block(lab: &Lab, vm: &LabVm, crowd: &LabVm) -> Block {
    let before = [vm, crowd].map(|vm| scheduled(vm).0);
    let report = observe(lab, &[], &["--for", "1500ms"]);
    let [ran, crowd_ran] = [(vm, before[0]), (crowd, before[1])].map(|(vm, before)| scheduled(vm).0 - before);
    let waits = &of_vm(&report, vm)["preempted_shootdown_wait_ns"];
    Block { wait_ns: waits["mean"].as_f64().expect("a mean"), share: crowd_ran / (ran + crowd_ran) }
}

fn median(blocks: &[Block], of: impl Fn(&Block) -> f64) -> f64 {
    let mut all: Vec<f64> = blocks.iter().map(of).collect();
    all.sort_by(f64::total_cmp);
    all[all.len() / 2]
}

#[test]
fn called_vcpus_wait_less_beside_a_crowd() {
    let Some((lab, _alone)) = lab() else { return };
    let crowd = lab.start(&["load=compute", "vcpus=2"]).expect("a VM");
    let vm = lab.start(&CALLS).expect("a VM");
    let (mut without, mut with) = (Vec::new(), Vec::new());
    for _ in 0..BLOCKS {
        without.push(block(&lab, &vm, &crowd));
        let daemon = run_beside(&lab, &[&vm], &["--boost-percent", "5"]);
        with.push(block(&lab, &vm, &crowd));
        report_of(daemon);
    }
    let wait_us = |blocks: &[Block]| median(blocks, |block| block.wait_ns) / 1000.0;
    let (before, after) = (wait_us(&without), wait_us(&with));
    assert!(after < 0.4 * before, "a called vCPU waits {before:.0} us without, {after:.0} us with");
    // Five per cent of the host are a tenth of its half, and each boost costs. By 0.13 it fell in trials,
    // which the budget alone doesn't explain: the bound is twice that.
    let share = |blocks: &[Block]| median(blocks, |block| block.share);
    let (before, after) = (share(&without), share(&with));
    assert!(after > before - 0.26, "the crowd's share: {before:.3} without, {after:.3} with");
    microslice_testbed::say(format!(
        "called vCPUs wait {:.0} us without boosts, {:.0} with; the crowd's share: {before:.3}, {after:.3}",
        wait_us(&without),
        wait_us(&with)
    ));
}

#[test]
fn a_guest_that_asks_all_the_time_has_its_budget() {
    let Some((lab, _alone)) = lab() else { return };
    let _crowd = lab.start(&["load=compute", "vcpus=2"]).expect("a VM");
    let vm = lab.start(&["load=calls", "vcpus=2", "compute=20000"]).expect("a VM");
    let began = Instant::now();
    let daemon = run_beside(&lab, &[&vm], &[]);
    std::thread::sleep(Duration::from_secs(3));
    let report = report_of(daemon);
    let pcpus = std::thread::available_parallelism().expect("pCPUs").get() as f64;
    let seen = of_vm(&report, &vm);
    let boosted = seen["boosted_ns"].as_f64().expect("a time");
    // One per cent of the host, of this time and a second more; and a slice of each vCPU's that was granted.
    let bound = (began.elapsed().as_nanos() as f64 + 1e9) * 0.01 * pcpus + 2.0 * 1e6;
    assert!(boosted > 0.0 && boosted < bound, "boosted for {boosted} ns of {bound}: {seen}");
    assert!(seen["failed_pulls"]["over_budget"].as_u64().expect("a count") > 0, "{seen}");
}

/// A control group of the first version's CPU controller, in which nobody may have a real-time priority.
struct Group(PathBuf);

impl Group {
    /// `None` where there is none.
    fn create() -> Option<Self> {
        let path = PathBuf::from(format!("/sys/fs/cgroup/cpu/microslice-lab-{}", std::process::id()));
        std::fs::create_dir(&path).ok()?;
        let group = Self(path);
        group.0.join("cpu.rt_runtime_us").exists().then_some(group)
    }

    fn take(&self, pid: u32) {
        std::fs::write(self.0.join("cgroup.procs"), pid.to_string()).expect("moved");
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let began = Instant::now();
        while std::fs::remove_dir(&self.0).is_err() && began.elapsed() < Duration::from_secs(10) {
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

#[test]
fn groups_without_real_time_budget_are_boosted_by_deadline() {
    let Some((lab, _alone)) = lab() else { return };
    let Some(group) = Group::create() else {
        microslice_testbed::say("no group without real-time budget can be made here: not tried");
        return;
    };
    let _crowd = lab.start(&["load=compute", "vcpus=4"]).expect("a VM");
    let vm = lab.start(&CALLS).expect("a VM");
    group.take(vm.pid());
    let daemon = run_beside(&lab, &[&vm], &[]);
    // Few are to be had: one by deadline lasts for milliseconds, and uses up the budget.
    std::thread::sleep(Duration::from_secs(4));
    let report = report_of(daemon);
    let helper = &report["helper"];
    assert!(helper["boosts"].as_u64().expect("a count") > 0, "{helper}");
    assert_eq!(
        (&helper["by_deadline"], &helper["returns"]),
        (&helper["boosts"], &helper["boosts"]),
        "{helper}"
    );
    assert!(real_time_threads(&vm).is_empty());
    drop(vm);
}
