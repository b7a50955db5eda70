//! `microslice trial` on stock guests: it tells a planted difference, and leaves the host as it was.

use crate::common::{run, scheduler_state, with_guests};
use microslice_testbed::GuestSpec;
use serde_json::Value;
use std::time::Duration;

/// Six rounds, and what an emulated host takes for twelve changes.
const TRIAL_PATIENCE: Duration = Duration::from_secs(900);

#[test]
#[ignore = "minutes; the lab tells a planted difference where KVM can be opened: make test-long"]
fn a_quarter_of_the_weight_in_one_arm_is_told() {
    let hog = |name: &str| GuestSpec::new(name).bare();
    with_guests(&[hog("a"), hog("b")], |host, _| {
        // An arm that loads nothing: each load takes half a minute here.
        let command = "microslice trial --json --no-guest-memory --for 80s --block 4s --settle 1s \
                       --guard-share 0 --guard-wait 1min \
                       --arm kernel --arm 'microslice micro-cpus=0 weight=b=25'";
        let output = host.must_run(command, TRIAL_PATIENCE).unwrap_or_else(|error| panic!("{error}"));
        let trial: Value = serde_json::from_str(&output).unwrap_or_else(|error| panic!("{error}: {output}"));
        let cpus = |vm: &str| {
            let rows = trial["figures"].as_array().expect("figures");
            rows.iter().find(|row| row["vm"] == vm && row["figure"] == "CPUs").expect("a row").clone()
        };
        let light = cpus("b");
        assert_eq!(light["verdict"], "different", "{light}");
        assert!(light["high"].as_f64().is_some_and(|high| high < 0.75), "{light}");
        assert!(cpus("a")["low"].as_f64().is_some_and(|low| low > 1.1), "{}", cpus("a"));
        assert_eq!(scheduler_state(host), "disabled");
        run(host, "! pidof microslice");
    });
}
