//! The service that packages install.

const UNIT: &str = include_str!("../../../packaging/microslice.service");

/// A setting's number, in the section that systemd reads it in.
fn number(section: &str, key: &str) -> u64 {
    let (_, rest) = UNIT.split_once(&format!("[{section}]\n")).expect("the section");
    let lines = rest.lines().take_while(|line| !line.starts_with('['));
    let value = lines.filter_map(|line| line.split_once('=')).find(|(name, _)| *name == key);
    value.and_then(|(_, value)| value.parse().ok()).unwrap_or_else(|| panic!("{key} in {section}"))
}

#[test]
fn a_host_that_stalls_soon_after_each_start_is_left_alone_after_a_few() {
    const UNTIL_THE_WATCHDOG_S: u64 = 60;
    let round_s = number("Service", "RestartSec") + UNTIL_THE_WATCHDOG_S;
    let (interval_s, burst) = (number("Unit", "StartLimitIntervalSec"), number("Unit", "StartLimitBurst"));
    assert!(burst * round_s < interval_s, "{burst} rounds of {round_s} s in {interval_s} s");
    assert!(burst <= 5);
}
