//! Windows around the ends of turns: a guest in its kernel has its window and no more, one in user mode has
//! none, and shares hold. Likewise where guests say themselves when they aren't to be preempted.

use crate::common::intervals::over_time;
use crate::common::{
    PATIENCE, count, on_host, print, replay, reports, seconds, start_scheduler, statistics, stop_scheduler,
    wait_until_it_says,
};
use microslice_testbed::{Host, Process};
use serde_json::Value;
use std::collections::BTreeMap;

/// Emulated: a look must be far enough from the next one.
const WINDOW_US: u64 = 5000;
const SLICE_US: u64 = 50_000;

/// Three VMs of four vCPUs on four pCPUs, by what they do: always in the kernel's half of the address space,
/// always in the lower one, and in both.
const VMS: [(&str, &str); 3] = [("kernel", "spin kernel"), ("user", "spin"), ("mixed", "spin mixed")];

/// Likewise: one that never wants to be preempted, one that does turn about, and one whose page is of a
/// version that nobody knows.
const HINTING: [(&str, &str); 3] =
    [("keeps", "spin keeps=1000000"), ("hints", "spin hints=5000"), ("forged", "spin forged=1000000")];

/// Starts one VM after the other; the processes of their VMMs, and which VM is whose.
fn start_vms(
    host: &Host,
    scheduler: &Process,
    vms_to_be: [(&'static str, &str); 3],
) -> (Vec<Process>, BTreeMap<u64, &'static str>) {
    let (mut vmms, mut names) = (Vec::new(), BTreeMap::new());
    for (name, does) in vms_to_be {
        let vmm = host.start(&format!("exec vcpus 1 4 {does}")).expect("start");
        vmm.wait_for("ready", 0, PATIENCE).unwrap_or_else(|error| panic!("{error}: {}", vmm.last_words()));
        vmms.push(vmm);
        let pids = std::cell::RefCell::new(Vec::new());
        let is_there = |report: &Value| {
            *pids.borrow_mut() = vms(report).iter().map(|vm| count(&vm["pid"])).collect();
            pids.borrow().len() == vmms.len()
        };
        statistics(scheduler, is_there, name);
        let new = pids.borrow().iter().copied().find(|pid| !names.contains_key(pid));
        names.insert(new.expect("one more"), name);
    }
    (vmms, names)
}

fn vms(report: &Value) -> &[Value] {
    report["vms"].as_array().map_or(&[], Vec::as_slice)
}

/// What one VM's turns did, and how long its vCPUs ran.
#[derive(Default, Clone, Copy, Debug)]
struct Turns {
    ran_ns: u64,
    turns: u64,
    put_off: u64,
    ended_safe: u64,
    ended_forced: u64,
    beyond_ns: u64,
    short_ns: u64,
    penalised: u64,
}

impl Turns {
    fn add(&mut self, vm: &Value) {
        let delays = &vm["delays"];
        self.ran_ns += count(&vm["cpu_time_ns"]);
        for (field, name) in [
            (&mut self.turns, "turns"),
            (&mut self.put_off, "put_off"),
            (&mut self.ended_safe, "ended_safe"),
            (&mut self.ended_forced, "ended_forced"),
            (&mut self.beyond_ns, "beyond_ns"),
            (&mut self.short_ns, "short_ns"),
            (&mut self.penalised, "penalised"),
        ] {
            *field += count(&delays[name]);
        }
    }

    /// True if turns were longer than due by less than a window on average.
    fn is_within_a_window(&self) -> bool {
        self.beyond_ns < self.short_ns + self.turns * WINDOW_US * 1000
    }
}

/// By how much a VM's share may differ from what is due.
const SHARE_TOLERANCE: f64 = 0.025;

/// Of each VM while all three run, by its name; for longer, while shares or lengths aren't as they should be.
fn turns_of_each(scheduler: &Process, names: &BTreeMap<u64, &'static str>) -> BTreeMap<&'static str, Turns> {
    let from = scheduler.lines(0).len();
    let look = || {
        let mut turns: BTreeMap<&'static str, Turns> = BTreeMap::new();
        for report in reports(scheduler, from) {
            for vm in vms(&report) {
                turns.entry(names[&count(&vm["pid"])]).or_default().add(vm);
            }
        }
        turns
    };
    let is_right = |turns: &BTreeMap<_, Turns>| {
        shares(turns).all(|(_, share)| is_a_third(share)) && turns.values().all(Turns::is_within_a_window)
    };
    over_time(seconds(12, 30), look, is_right)
}

fn shares<'t>(turns: &'t BTreeMap<&'static str, Turns>) -> impl Iterator<Item = (&'static str, f64)> + 't {
    let all: u64 = turns.values().map(|of| of.ran_ns).sum();
    turns.iter().map(move |(name, of)| (*name, of.ran_ns as f64 / all as f64))
}

fn is_a_third(share: f64) -> bool {
    (share - 1.0 / 3.0).abs() <= SHARE_TOLERANCE
}

fn end_vms(vmms: &[Process]) {
    for vmm in vmms {
        vmm.signal(libc::SIGKILL).expect("signal");
        vmm.wait(PATIENCE).expect("end");
    }
}

fn windows_hold_with(flags: &str) {
    on_host(|host| {
        let windows = format!("--delay-preemption {WINDOW_US} --delay-look-us 1000 --slice-us {SLICE_US}");
        let record = "/tmp/windows.rec";
        let scheduler = start_scheduler(
            host,
            &format!("{flags} {windows} --stats 1 --no-guest-memory --program-costs --record {record}"),
        );
        let (vmms, names) = start_vms(host, &scheduler, VMS);
        let turns = turns_of_each(&scheduler, &names);
        end_vms(&vmms);
        let report = stop_scheduler(host, &scheduler);
        let replayed = replay(host, record);
        print(&format!("{turns:?}"));
        print(&format!("looks: {}", looks_cost(&report)));
        let [kernel, user, mixed] = VMS.map(|(name, _)| turns[name]);
        assert!(kernel.put_off > 0 && kernel.ended_forced > 0, "nobody was put off: {kernel:?}");
        assert_eq!(kernel.ended_safe, 0, "it is never safe: {kernel:?}");
        assert_eq!((user.put_off, user.ended_forced), (0, 0), "it is always safe: {user:?}");
        assert!(user.turns > 0 && mixed.ended_safe > 0, "{user:?}, {mixed:?}");
        // The window has slid to where it ends with the turn: behind that there is only how late a timer is.
        assert!(kernel.is_within_a_window(), "turns are longer by more than a window: {kernel:?}");
        for (name, share) in shares(&turns) {
            assert!(is_a_third(share), "{name} had {share:.3} of what all had: {turns:?}");
        }
        for kind in ["turn", "window"] {
            assert!(count(&replayed["by_kind"][kind]) > 0, "{replayed}");
        }
    });
}

/// What a run of the timer that looks costs.
fn looks_cost(report: &Value) -> String {
    let programs = report["programs"].as_array().expect("programs");
    let looks = programs.iter().find(|program| program["program"] == "look_at_turn").expect("looks");
    let (runs, ns) = (count(&looks["runs"]), count(&looks["ns"]));
    format!("{runs} of {} ns, emulated", ns / runs.max(1))
}

#[test]
fn a_guest_in_its_kernel_has_its_window_and_no_more_and_one_in_user_mode_none() {
    windows_hold_with("--micro-cpus 0");
}

#[test]
#[ignore = "40 s; the default scheduler takes the same way: make test-long"]
fn windows_hold_under_the_scheduler_coordinated_too() {
    windows_hold_with("--scheduler coordinated");
}

#[test]
fn hints_put_a_turns_end_off_a_guest_that_overdraws_pays_for_it_and_a_forged_page_changes_nothing_for_others()
{
    on_host(|host| {
        let flags = format!(
            "--micro-cpus 0 --delay-preemption {WINDOW_US} --delay-look-us 1000 --slice-us {SLICE_US} \
             --delay-unsafe hinted --stats 1"
        );
        let scheduler = start_scheduler(host, &flags);
        let (vmms, names) = start_vms(host, &scheduler, HINTING);
        // Their pages have been found, and the third one has been refused.
        for (vm, what) in [("keeps", "ended_forced"), ("keeps", "penalised"), ("hints", "ended_safe")] {
            let is_seen = |report: &Value| {
                let is_it = |it: &&Value| names[&count(&it["pid"])] == vm;
                vms(report).iter().filter(is_it).any(|it| count(&it["delays"][what]) > 0)
            };
            statistics(&scheduler, is_seen, &format!("{what} of {vm}"));
        }
        wait_until_it_says(&scheduler, "isn't believed: it is of version 9, and version 1 is known");
        let turns = turns_of_each(&scheduler, &names);
        end_vms(&vmms);
        stop_scheduler(host, &scheduler);
        print(&format!("{turns:?}"));
        let [keeps, hints, forged] = HINTING.map(|(name, _)| turns[name]);
        assert_eq!(keeps.ended_safe, 0, "it never lets go: {keeps:?}");
        assert!(keeps.penalised > keeps.turns / 2, "it overdraws again and again: {keeps:?}");
        assert!(hints.put_off > 0 && hints.penalised < hints.turns, "it lets go now and then: {hints:?}");
        assert_eq!((forged.put_off, forged.penalised), (0, 0), "nobody believes it: {forged:?}");
        for (name, share) in shares(&turns) {
            assert!(is_a_third(share), "{name} had {share:.3} of what all had: {turns:?}");
        }
    });
}
