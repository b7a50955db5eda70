//! What boosts bring, and what they may cost others.

use crate::{lab, observe, of_vm, report_of, run_beside, scheduled};
use microslice_testbed::lab::{Lab, LabVm};
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
    let Some(lab) = lab() else { return };
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
    // Five per cent of the host are a tenth of its half, and each boost costs. It fell by 0.13 while boosts
    // pushed both vCPUs onto one pCPU.
    let share = |blocks: &[Block]| median(blocks, |block| block.share);
    let (before, after) = (share(&without), share(&with));
    assert!(after > before - 0.1, "the crowd's share: {before:.3} without, {after:.3} with");
    microslice_testbed::say(format!(
        "called vCPUs wait {:.0} us without boosts, {:.0} with; the crowd's share: {before:.3}, {after:.3}",
        wait_us(&without),
        wait_us(&with)
    ));
}

#[test]
fn a_guest_that_asks_all_the_time_has_its_budget() {
    let Some(lab) = lab() else { return };
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

#[test]
fn a_hostile_guest_takes_no_share_of_others() {
    let Some(lab) = lab() else { return };
    let crowd = lab.start(&["load=compute", "vcpus=2"]).expect("a VM");
    let hostile = lab.start(&["load=calls", "vcpus=2", "compute=0"]).expect("a VM");
    let share = || {
        let before = [&hostile, &crowd].map(|vm| scheduled(vm).0);
        std::thread::sleep(Duration::from_secs(2));
        let ran = [(&hostile, before[0]), (&crowd, before[1])].map(|(vm, before)| scheduled(vm).0 - before);
        ran[1] / (ran[0] + ran[1])
    };
    let (mut without, mut with) = (Vec::new(), Vec::new());
    for _ in 0..BLOCKS {
        without.push(share());
        let daemon = run_beside(&lab, &[&hostile], &[]);
        with.push(share());
        report_of(daemon);
    }
    let [before, after] = [without, with].map(|mut shares| {
        shares.sort_by(f64::total_cmp);
        shares[BLOCKS / 2]
    });
    // It may have one per cent of the host. Where its threads are put makes more of a difference, either way.
    assert!(after > before - 0.15, "the crowd's share: {before:.3} without, {after:.3} with");
}

#[test]
fn pinned_vcpus_are_not_boosted_while_others_are() {
    let Some(lab) = lab() else { return };
    let calls = || lab.start(&["load=calls", "vcpus=2", "compute=20000"]).expect("a VM");
    let [pinned, free] = [calls(), calls()];
    for (pcpu, tid) in pinned.vcpu_threads().into_iter().enumerate() {
        pin(tid, pcpu);
    }
    let daemon = run_beside(&lab, &[&pinned, &free], &[]);
    std::thread::sleep(Duration::from_secs(1));
    let report = report_of(daemon);
    let boosts = |vm| of_vm(&report, vm)["accelerations"]["total"].as_u64().expect("a count");
    assert_eq!(boosts(&pinned), 0, "{report}");
    assert!(boosts(&free) > 0, "{report}");
    assert!(of_vm(&report, &pinned)["failed_pulls"]["pinned"].as_u64() > Some(0), "{report}");
}

pub fn pin(tid: u32, pcpu: usize) {
    // SAFETY: integers only, for which zero is a value.
    let mut one: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: the set lives until the calls return; the number has a place in it.
    unsafe {
        libc::CPU_SET(pcpu, &mut one);
        assert_eq!(libc::sched_setaffinity(tid as libc::pid_t, size_of_val(&one), &raw const one), 0);
    }
}
