//! The guest's locks (`guest/locks`) over KVM's own kick and HLT, among eight vCPUs on four pCPUs. Without a guest: `tests/guest_locks.rs`.

use crate::common::{PATIENCE, count, seconds, with_guests};
use microslice_testbed::GuestSpec;
use serde_json::Value;

const KINDS: [&str; 3] = ["pv-ticket", "oticket", "iticket"];
/// Takings of a lock, hand-overs, halts and kicks, at the least: what was tried little says little. An emulated guest that shares
/// its pCPUs makes hundreds in a second.
const TRIED_MIN: u64 = 100;

#[test]
fn locks_exclude_keep_their_order_and_lose_no_kick_while_holders_and_waiters_are_preempted() {
    // Of each kind.
    let time = seconds(8, 1_200);
    let guest = GuestSpec::new("locks").vcpus(8).workload(&format!("torture:{}", time.as_secs()));
    with_guests(&[guest], |_, guests| {
        let mut from = 0;
        for kind in KINDS {
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
            for tried in ["taken", "waited", "halts", "kicks"] {
                assert!(count(&locks[tried]) >= TRIED_MIN, "few {tried}: {seen}");
            }
        }
    });
}
