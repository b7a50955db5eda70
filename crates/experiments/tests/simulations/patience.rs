//! Where patience helps, and where it is in vain: eight vCPUs that wait for one another's spin locks, beside
//! twice as many hogs. Every run has the checkers on.

use microslice_engine::simulate;
use microslice_experiments::scenario::{Overrides, parse};
use microslice_model::events::NoTrace;

/// How often the locks were held, by the first VM, whose locks are of that kind.
fn holds(lock_kind: &str, policy: &str, seed: u64) -> u64 {
    let text = format!(
        r#"
        host = {{ extends = "xeon-e5645", pcpus = 8, llc_pcpus = 8, smt_threads = 1 }}
        warmup = "500 ms"
        duration = "1 s"

        [[vm]]
        name = "locks"
        vcpus = 8
        kernel = {{ extends = "linux-modern", lock_kind = "{lock_kind}" }}
        workloads = [{{ name = "locks", threads = "per vcpu", program = [
            {{ compute = "exponential 100 us" }},
            {{ lock = "page_reclaim", hold = "exponential 10 us" }},
            {{ progress = 1 }},
        ] }}]

        [[vm]]
        name = "hogs"
        vcpus = 8
        copies = 2
        kernel = "linux-modern"
        workloads = ["swaptions"]
        "#
    );
    let overrides = Overrides { policy: Some(policy.to_owned()), seed: Some(seed), ..Overrides::default() };
    let mut config =
        parse("patience.toml", &text, &overrides).unwrap_or_else(|error| panic!("{error}")).config;
    config.check = true;
    let report = simulate(&config, &mut NoTrace).unwrap_or_else(|error| panic!("{error}"));
    report.vms[0].workloads[0].units_done
}

#[test]
fn locks_whose_waiters_never_halt_do_not_stand_still_while_the_next_one_waits_for_a_turn() {
    for seed in [1, 2] {
        let (patient, eevdf) = (holds("queued", "microslice", seed), holds("queued", "eevdf", seed));
        // A fifteenth, by patience that doesn't end.
        assert!(patient * 2 > eevdf, "seed {seed}: {patient}, eevdf {eevdf}");
    }
}

#[test]
fn where_waiters_halt_before_long_patience_is_kept() {
    for seed in [1, 2] {
        let patient = holds("pv-queued", "microslice", seed);
        let impatient = holds("pv-queued", "microslice+patience=0 us", seed);
        assert!(patient * 4 > impatient * 5, "seed {seed}: {patient}, without patience {impatient}");
    }
}
