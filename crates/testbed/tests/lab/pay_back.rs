//! What VMs had by boosts is paid back by the weights of their control groups, and weights are given back.

use crate::deaths::{kill, watcher_of};
use crate::groups::{Group, cpus};
use crate::{lab, report_of, run_beside};
use microslice_testbed::lab::{Lab, LabVm, Running};
use microslice_testbed::say;
use std::time::{Duration, Instant};

const CALLS: [&str; 3] = ["load=calls", "vcpus=2", "compute=20000"];
const BOOSTS: [&str; 2] = ["--boost-percent", "10"];
const PAY_BACK: [&str; 3] = ["--boost-percent", "10", "--pay-back"];
const WEIGHT: u32 = 2048;
const LOOK: Duration = Duration::from_secs(4);

/// A VM whose vCPUs call each other, and one that computes, in one group; another that computes beside it.
struct Scene {
    vm: LabVm,
    others: [LabVm; 2],
    group: Group,
    _neighbour: Group,
    outer: Group,
}

impl Scene {
    fn set(lab: &Lab) -> Option<Self> {
        let outer = Group::create("paying")?;
        let (group, neighbour) = (outer.within("calls")?, outer.within("computes")?);
        [(&outer, 900_000), (&group, 400_000), (&neighbour, 400_000)]
            .into_iter()
            .for_each(|(group, us)| group.allow_real_time(us));
        outer.set("cpu.shares", WEIGHT);
        group.set("cpu.shares", WEIGHT);
        let compute = || lab.start(&["load=compute", "vcpus=2"]).expect("a VM");
        let (others, vm) = ([compute(), compute()], lab.start(&CALLS).expect("a VM"));
        group.take(&vm);
        neighbour.take(&others[0]);
        Some(Self { vm, others, group, _neighbour: neighbour, outer })
    }

    /// The parts of what all three have: the VM's, its neighbour's, and the other's outside.
    fn shares(&self) -> [f64; 3] {
        let had = cpus([&self.vm, &self.others[0], &self.others[1]], LOOK);
        had.map(|one| one / had.iter().sum::<f64>())
    }

    /// Boosts until both weights are lowered.
    fn lowered(&self, lab: &Lab) -> Running {
        let daemon = run_beside(lab, &[&self.vm], &PAY_BACK);
        expect(|| self.group.shares() < WEIGHT && self.outer.shares() < WEIGHT, "no weight is lowered");
        daemon
    }

    fn weights(&self) -> [u32; 2] {
        [self.outer.shares(), self.group.shares()]
    }
}

fn expect(is_so: impl Fn() -> bool, otherwise: &str) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < Duration::from_secs(20), "{otherwise}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn median(mut of: Vec<f64>) -> f64 {
    of.sort_by(f64::total_cmp);
    of[of.len() / 2]
}

#[test]
#[ignore = "70 s, and shares want a quiet machine: make test-long"]
fn shares_with_boosts_are_those_without() {
    let Some(lab) = lab() else { return };
    let Some(scene) = Scene::set(&lab) else { return };
    let looks = if std::env::var_os("MICROSLICE_TEST_LONG").is_some() { 7 } else { 3 };
    let mut seen = [const { Vec::new() }; 3];
    for _ in 0..looks {
        seen[0].push(scene.shares());
        for (arm, arguments) in [(1, &BOOSTS[..]), (2, &PAY_BACK[..])] {
            let daemon = run_beside(&lab, &[&scene.vm], arguments);
            // Until the first second's boosts are paid.
            std::thread::sleep(Duration::from_secs(2));
            seen[arm].push(scene.shares());
            let report = report_of(daemon);
            assert!(report["helper"]["boosts"].as_u64() > Some(0), "{}", report["helper"]);
            assert_eq!(scene.weights(), [WEIGHT; 2], "{}", report["pay_back"]);
        }
    }
    let [without, boosted, paid] = seen
        .map(|looks| [0, 1, 2].map(|of| median(looks.iter().map(|shares: &[f64; 3]| shares[of]).collect())));
    say(format!("shares: {without:.3?} without boosts, {boosted:.3?} with, {paid:.3?} paid back"));
    // Others use this machine, too.
    assert!((paid[0] - without[0]).abs() < 0.1, "{without:.3?} without boosts, {paid:.3?} paid back");
}

#[test]
fn weights_are_given_back_whoever_is_killed() {
    let Some(lab) = lab() else { return };
    let Some(scene) = Scene::set(&lab) else { return };
    let daemon = scene.lowered(&lab);
    kill(daemon.pid());
    daemon.finish();
    expect(|| scene.weights() == [WEIGHT; 2], "the watcher gives nothing back");
    let daemon = scene.lowered(&lab);
    kill(watcher_of(&daemon));
    kill(daemon.pid());
    daemon.finish();
    assert_ne!(scene.weights(), [WEIGHT; 2], "nobody is left who could");
    let daemon = run_beside(&lab, &[&scene.vm], &[]);
    assert_eq!(scene.weights(), [WEIGHT; 2], "the next start gives them back");
    report_of(daemon);
}

#[test]
fn a_weight_that_somebody_else_writes_stays() {
    let Some(lab) = lab() else { return };
    let Some(scene) = Scene::set(&lab) else { return };
    let daemon = scene.lowered(&lab);
    scene.group.set("cpu.shares", 512);
    daemon.wait_for("somebody else wrote 512").expect("the line");
    expect(|| scene.group.shares() < 512, "it pays by the new weight");
    let report = report_of(daemon);
    assert_eq!(scene.weights(), [WEIGHT, 512], "{}", report["pay_back"]);
    assert_eq!(report["pay_back"]["weights_by_others"], 1, "{}", report["pay_back"]);
}

#[test]
fn a_group_that_a_vm_leaves_has_its_weight_again() {
    let Some(lab) = lab() else { return };
    let Some(scene) = Scene::set(&lab) else { return };
    let daemon = scene.lowered(&lab);
    let elsewhere = scene.outer.within("elsewhere").expect("made");
    elsewhere.allow_real_time(50_000);
    elsewhere.take(&scene.vm);
    expect(|| scene.group.shares() == WEIGHT, "its weight stays lowered");
    report_of(daemon);
    assert_eq!((scene.weights(), elsewhere.shares()), ([WEIGHT; 2], 1024));
    let Scene { vm, others, .. } = scene;
    drop((vm, others));
}
