//! What `microslice testbed` refuses before it boots anything.

use std::process::Command;

fn refusal(arguments: &[&str]) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_microslice"));
    let output =
        command.args(["testbed", "exec"]).args(arguments).args(["--", "true"]).output().expect("it starts");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{arguments:?}: {said}");
    assert_eq!(said.lines().count(), 1, "{said}");
    said
}

#[test]
fn values_that_cannot_work_are_refused_before_anything_boots() {
    for (arguments, expected) in [
        (&["--cpus", "0"][..], "0 is not in 1..=255"),
        (&["--cpus", "100000"], "100000 is not in 1..=255"),
        (&["--vcpus", "0"], "0 is not in 1..=255"),
        (&["--timeout", "18446744073709551615"], "is not in 1..=86400"),
        (&["--guest", "a"], "--guest a: write it as NAME=WORKLOAD"),
        (
            &["--guest", "a=bogus"],
            "--guest a=bogus: no load is called \"bogus\"; allowed: hog, dozer, shootdown, ",
        ),
        (&["--guest", "a b=hog"], "a name is 1 to 32 letters, digits, - and _"),
        (&["--guest", "a=hog", "--guest", "a=mix"], "--guest a=mix: a second guest of that name"),
        (&["--file", "x"], "--file x: write it as PATH=LOCAL"),
        (&["--file", "x=/no/such"], "--file x=/no/such: LOCAL is no file"),
    ] {
        let said = refusal(arguments);
        assert!(said.contains(expected), "{said}");
    }
}
