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
            "--guest a=bogus: no load is called \"bogus\"; allowed: hog, dozer, sleeper, ",
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

fn campaign(arguments: &[&str]) -> (Option<i32>, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_microslice"));
    let output = command.args(["testbed", "campaign"]).args(arguments).output().expect("it starts");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

#[test]
fn a_campaigns_faults_are_told_without_a_boot_and_are_those_of_its_seed() {
    let told = |seed| campaign(&["--seed", seed, "--boots", "3", "--dry-run"]);
    let (code, faults, said) = told("7");
    assert_eq!((code, said.as_str()), (Some(0), ""));
    assert_eq!(faults.lines().filter(|line| line.starts_with("boot ")).count(), 3);
    assert_eq!(faults.lines().filter(|line| line.starts_with("  ")).count(), 18);
    assert_eq!(told("7").1, faults);
    assert_ne!(told("8").1, faults);
}

#[test]
fn under_the_kernels_own_scheduler_nothing_is_done_to_our_daemon_and_all_else_is_the_same() {
    let told = |scheduler| {
        let (code, faults, said) = campaign(&["--boots", "5", "--dry-run", "--scheduler", scheduler]);
        assert_eq!(code, Some(0), "{said}");
        faults
    };
    let ours = told("microslice");
    let others: Vec<&str> = ours.lines().filter(|line| !line.contains("  SIG")).collect();
    assert!(ours.contains("  SIGKILL") && ours.contains("  SIGSTOP"), "{ours}");
    assert_eq!(told("none").lines().collect::<Vec<_>>(), others);
}

#[test]
fn a_campaign_that_cannot_be_is_refused_in_one_line() {
    for (arguments, expected) in [
        (&["--minutes", "0"][..], "0 is not in 1..=10080"),
        (&["--dry-run"], "--boots <BOOTS>"),
        (&["--scheduler", "fifo"], "invalid value 'fifo' for '--scheduler <SCHEDULER>'"),
        (&["--kernel", "x"], "kernel x: "),
        (&["--output", "/no/such/file"], "/no/such/file: "),
    ] {
        let (code, _, said) = campaign(arguments);
        assert_eq!(code, Some(2), "{arguments:?}: {said}");
        assert!(said.contains(expected) && said.lines().count() == 1, "{arguments:?}: {said}");
    }
}

#[test]
fn a_comparison_with_peers_that_cannot_be_is_refused_before_anything_is_built() {
    for (arguments, expected) in [
        (&["--peers", "mitosis"][..], "invalid value 'mitosis' for '--peers <NAME"),
        (&["--peers", "lavd,lavd"], "--peers: lavd is there twice"),
        (&["--peers", "none,lavd"], "--peers: `none` stands alone"),
        (&["--boots", "0"], "0 is not in 1..=100"),
        (&["--kernel", "x"], "kernel x: "),
        (&["--guest-kernel", "x"], "kernel x: "),
        (&["--output", "/no/such/file"], "/no/such/file: "),
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_microslice"));
        let output = command.args(["testbed", "peers"]).args(arguments).output().expect("it starts");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {said}");
        assert!(said.contains(expected) && said.lines().count() == 1, "{arguments:?}: {said}");
    }
}
