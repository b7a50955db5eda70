//! The service that packages install.

const UNIT: &str = include_str!("../../../../packaging/microslice.service");

/// A setting's number, in the section that systemd reads it in.
fn number(section: &str, key: &str) -> u64 {
    let (_, rest) = UNIT.split_once(&format!("[{section}]\n")).expect("the section");
    let lines = rest.lines().take_while(|line| !line.starts_with('['));
    let value = lines.filter_map(|line| line.split_once('=')).find(|(name, _)| *name == key);
    value.and_then(|(_, value)| value.parse().ok()).unwrap_or_else(|| panic!("{key} in {section}"))
}

#[test]
fn a_host_that_keeps_stalling_is_left_alone() {
    const UNTIL_THE_WATCHDOG_S: u64 = 60;
    let round_s = number("Service", "RestartSec") + UNTIL_THE_WATCHDOG_S;
    let (interval_s, burst) = (number("Unit", "StartLimitIntervalSec"), number("Unit", "StartLimitBurst"));
    assert!(burst * round_s < interval_s, "{burst} rounds of {round_s} s in {interval_s} s");
    assert!(burst <= 5);
}

/// What `systemd-analyze` calls exposure, of ten. An operator that trusts it with a host of tenants asks for
/// 3.0 at most. It has 0.1 more for cgroups' weights, which it writes (`--pay-back`).
const EXPOSURE_MAX: f64 = 3.1;

#[test]
fn the_services_sandbox_leaves_little_exposed() {
    let folder = tempfile::tempdir().expect("a folder");
    let unit = folder.path().join("microslice.service");
    // The analysis wants the program to be there.
    std::fs::write(&unit, UNIT.replace("/usr/bin/microslice", "/bin/true")).expect("written");
    let analysis = std::process::Command::new("systemd-analyze")
        .args(["security", "--offline=true", "--no-pager"])
        .arg(&unit)
        .output()
        .expect("systemd-analyze, of Debian's package systemd");
    let [said, complaints] =
        [&analysis.stdout, &analysis.stderr].map(|text| String::from_utf8_lossy(text).into_owned());
    let ignored: Vec<_> = complaints.lines().filter(|line| line.contains("ignoring")).collect();
    assert!(ignored.is_empty(), "{ignored:?}");
    let (_, level) = said.split_once("Overall exposure level for ").expect("a verdict");
    let level = level.split_once(": ").and_then(|(_, level)| level.split(' ').next());
    let level: f64 = level.and_then(|level| level.parse().ok()).expect("a level");
    assert!(level <= EXPOSURE_MAX, "{level}");
}

#[test]
fn only_a_daemon_that_hangs_is_ended() {
    const LONGEST_RESTART_S: u64 = 20;
    assert!(number("Service", "WatchdogSec") >= 2 * LONGEST_RESTART_S);
    assert!(UNIT.contains("\nType=notify\n") && UNIT.contains("\nMemoryMax="));
}
