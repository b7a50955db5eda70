//! What a program may say about barriers.

use super::*;

#[test]
fn a_barrier_for_two_numbers_of_threads_is_refused() {
    let error = refuse_with(
        "{ lock = \"dentry\", hold = \"2 us\" }",
        "{ barrier = \"b\", count = 1 }, { barrier = \"b\" }",
    );
    assert_eq!(error, "bad.toml:11:35: barrier `b` is for 1 threads in one phase, for 2 in another");
}

#[test]
fn a_barrier_under_a_lock_that_sleeps_or_that_nobody_has_is_refused_with_its_place() {
    let under = |lock: &str| {
        refuse_with(
            "{ lock = \"dentry\", hold = \"2 us\" }",
            &format!("{{ barrier = \"b\", under = \"{lock}\" }}"),
        )
    };
    let lock = "lock = [{ name = \"mm\", kind = \"sleeping\", symbol = \"do_munmap\" }],";
    let text = SMALL.replace("threads = 2,", &format!("threads = 2, {lock}"));
    let text = text.replace("{ lock = \"dentry\", hold = \"2 us\" }", "{ barrier = \"b\", under = \"mm\" }");
    let error = refuse(&text);
    assert!(
        error.ends_with("`under`: `mm` can't be held; allowed: a lock whose waiters spin, but no runqueue's"),
        "{error}"
    );
    assert!(under("runqueue").starts_with("bad.toml:11:30: `under`: `runqueue` can't be held"));
    assert!(under("nope").contains("`under`: unknown lock `nope`"), "{}", under("nope"));
}

#[test]
fn a_barrier_that_spins_without_a_lock_or_for_too_long_is_refused_with_its_place() {
    let with = |phase: &str| refuse_with("{ lock = \"dentry\", hold = \"2 us\" }", phase);
    let error = with("{ barrier = \"b\", spin = \"100 us\" }");
    assert_eq!(
        error,
        "bad.toml:11:29: `spin` needs `under`: a thread that has spun in vain sleeps under that lock"
    );
    let error = with("{ barrier = \"b\", under = \"dentry\", spin = \"2 s\" }");
    assert!(error.ends_with("`spin`: `2 s` isn't allowed, only 1 ns to 1 s"), "{error}");
}
