//! Every stock guest kernel: where its CPUs count what they hold is where it says itself.

use crate::common::{PATIENCE, on_machine, print, run};
use microslice_testbed::cache::Cache;
use microslice_testbed::kernels::{self, Rule};
use microslice_testbed::{GuestSpec, Host, Testbed};
use serde_json::Value;

const KERNELS: [&str; 10] =
    ["6.1", "6.1-cloud", "6.12", "6.12-cloud", "6.16", "6.18", "6.18-cloud", "7.0", "7.2", "7.2-cloud"];
const IDENTIFY: &str = "microslice symbols identify --json --pid $(pidof qemu-system-x86_64)";
/// A vCPU that has nothing to do is idle at nearly each of them.
const LOOKS: usize = 20;

/// Of each CPU by number, what a look says: the place of its word, and what is counted there.
fn counters(host: &Host) -> Vec<(Value, Value)> {
    let identified: Value = serde_json::from_str(&run(host, IDENTIFY)).expect("JSON");
    let counters = &identified["sources"][0]["preempt_counts"]["counters"];
    let counters = counters.as_array().unwrap_or_else(|| panic!("{identified}"));
    counters.iter().map(|it| (it["guest_physical"].clone(), it["count"].clone())).collect()
}

#[test]
#[ignore = "make test-long: a guest of each kernel takes minutes"]
fn every_guest_kernel_counts_where_it_says() {
    let cache = Cache::locate().unwrap_or_else(|error| panic!("{error}"));
    let is_there = |name: &&str| match kernels::obtain(&cache, &Rule::guest(name).expect("a kernel")) {
        Ok(_) => true,
        Err(error) => {
            // Debian keeps only some versions.
            print(&format!("SKIPPED: guest kernel {name}: {error}"));
            false
        }
    };
    let there: Vec<&str> = KERNELS.into_iter().filter(is_there).collect();
    let testbed = || Testbed::new("6.18").and_then(|it| it.with_guest_kernels(&there)).expect("kernels");
    on_machine("every guest kernel", testbed, &[], |host, _| {
        for kernel in &there {
            let spec = GuestSpec::new("plain").kernel(kernel).vcpus(2).workload("counts,heartbeat");
            let guest = host.start_guest(spec).unwrap_or_else(|error| panic!("{kernel}: {error}"));
            guest.wait_for("{\"counts\"", 0, PATIENCE).expect("what it prints");
            let said = guest.said("counts").expect("places");
            let said = said.as_array().expect("places");
            let mut idle = vec![false; said.len()];
            for _ in 0..LOOKS {
                let found = counters(host);
                let places: Vec<_> = found.iter().map(|(place, _)| place.clone()).collect();
                assert_eq!(&places, said, "{kernel}");
                // The idle loop has preemption disabled once.
                idle.iter_mut().zip(&found).for_each(|(idle, (_, count))| *idle |= *count == 1);
                if idle.iter().all(|&is_idle| is_idle) {
                    break;
                }
            }
            assert!(idle.iter().all(|&is_idle| is_idle), "{kernel}: {idle:?}");
            print(&format!("{kernel}: {} CPUs count where it says", said.len()));
            guest.stop().expect("its end");
        }
    });
}
