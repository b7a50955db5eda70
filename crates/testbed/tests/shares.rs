//! The normal pool's proportional share among VMs, on real guests.

mod common;

use common::{host, start_scheduler, stop_scheduler};
use microslice_testbed::{Guest, GuestSpec, Host};
use std::time::Duration;

/// Issue and specification: within 5 % of what is due.
const TOLERANCE: f64 = 0.05;
/// Some hundred slices per pCPU: long enough for shares, which hold over seconds.
const MEASURED: Duration = Duration::from_secs(30);

fn hogs(host: &Host, weights: [u32; 2]) -> Vec<Guest> {
    let specs = ["a", "b"].into_iter().zip(weights).map(|(name, weight)| {
        GuestSpec::new(name).workload("hog").cgroup(&format!("shares-{name}-{weight}"), weight)
    });
    host.start_guests(specs.collect()).unwrap_or_else(|error| panic!("{error}"))
}

/// Two hogs of four vCPUs on four pCPUs for a while; what the first got of what both got.
fn first_hogs_part(weights: [u32; 2]) -> f64 {
    let host = host();
    let _guests = hogs(&host, weights);
    let scheduler = start_scheduler(&host, "--micro-cpus 0");
    std::thread::sleep(MEASURED);
    let report = stop_scheduler(&host, &scheduler);
    let share = |name: &str| {
        let vms = report["vms"].as_array().expect("vms");
        let vm = vms.iter().find(|vm| vm["name"] == name).unwrap_or_else(|| panic!("no VM {name}: {report}"));
        vm["share_received"].as_f64().expect("a share")
    };
    share("a") / (share("a") + share("b"))
}

#[test]
fn hogs_of_equal_weight_get_equal_shares() {
    let part = first_hogs_part([100, 100]);
    assert!((part - 0.5).abs() <= 0.5 * TOLERANCE, "{part} of the pCPUs' time, due was 1/2");
}

#[test]
fn a_hog_of_twice_the_weight_gets_twice_the_share() {
    let part = first_hogs_part([200, 100]);
    assert!((part - 2.0 / 3.0).abs() <= 2.0 / 3.0 * TOLERANCE, "{part} of the pCPUs' time, due was 2/3");
}
