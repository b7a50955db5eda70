//! The guest's locks (`guest/locks`) over KVM's own kick and HLT, among eight vCPUs on four pCPUs. Without a
//! guest: `tests/guests/guest_code.rs`.

use crate::common::{
    PATIENCE, count, seconds, start_scheduler, stop_scheduler, wait_until_it_says, with_guests,
};
use microslice_testbed::{GuestSpec, Host};
use serde_json::Value;

/// And what is tried of each: a halted waiter is kicked, one that yields is not.
const KINDS: [(&str, [&str; 3]); 5] = [
    ("pv-ticket", ["waited", "halts", "kicks"]),
    ("oticket", ["waited", "halts", "kicks"]),
    ("iticket", ["waited", "halts", "kicks"]),
    ("yield", ["taken", "waited", "yields"]),
    ("spin-yield", ["taken", "waited", "yields"]),
];
/// Takings of a lock, hand-overs, halts and kicks, at the least: what was tried little says little. An
/// emulated guest that shares its pCPUs makes hundreds in a second.
const TRIED_MIN: u64 = 100;

/// A program says by the module's device what it likes, up to a limit, and as long as it runs.
fn a_programs_hint_is_its_vcpus_while_it_runs(line: &Value) {
    let said = &line["said"];
    let times = count(&said["times"]);
    assert_eq!(said["limit"], 100, "the module's default: {line}");
    assert_eq!(said["taken_back"], times, "it had been switched away from: {line}");
    assert_eq!(said["left"], 0, "nobody has the device open: {line}");
    for seen in ["seen", "given_back"] {
        assert!(2 * count(&said[seen]) > times, "{seen}: {line}");
    }
}

/// The page of the module that the guest has loaded by now.
fn its_hint_page_is_found(host: &Host) {
    let scheduler =
        start_scheduler(host, "--micro-cpus 0 --delay-preemption 5000 --delay-unsafe hinted --stats 1");
    wait_until_it_says(&scheduler, "locks: hints of 8 vCPUs, at 0x");
    stop_scheduler(host, &scheduler);
}

#[test]
#[ignore = "64 s; breaks with guest/ only, which is tested among threads: make test-long"]
fn locks_exclude_keep_their_order_and_lose_no_kick_while_holders_and_waiters_are_preempted() {
    // Of each kind.
    let time = seconds(5, 1_200);
    let guest = GuestSpec::new("locks").vcpus(8).workload(&format!("torture:{}", time.as_secs()));
    with_guests(&[guest], |host, guests| {
        let mut from = 0;
        for (kind, happens) in KINDS {
            let patience = time + PATIENCE;
            let line =
                guests[0].wait_for("\"torture\"", from, patience).unwrap_or_else(|error| panic!("{error}"));
            from = 1 + guests[0].lines(0).iter().position(|other| other.text == line.text).expect("its line");
            let seen: Value = serde_json::from_str(&line.text).expect("JSON");
            let locks = &seen["locks"];
            assert_eq!(locks["kind"], kind, "{seen}");
            println!("{locks}");
            for fault in ["overlaps", "overtakings", "lost_kicks"] {
                assert_eq!(locks[fault], 0, "{fault}: {seen}");
            }
            for tried in happens {
                assert!(count(&locks[tried]) >= TRIED_MIN, "few {tried}: {seen}");
            }
        }
        let line = guests[0].wait_for("\"said\"", from, PATIENCE).unwrap_or_else(|error| panic!("{error}"));
        println!("{}", line.text);
        a_programs_hint_is_its_vcpus_while_it_runs(&serde_json::from_str(&line.text).expect("JSON"));
        its_hint_page_is_found(host);
    });
}
