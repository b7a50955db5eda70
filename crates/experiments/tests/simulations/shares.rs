//! What each VM gets of the host under the real scheduler's rules, in setups where its first versions gave
//! wrong shares. Every run has the checkers on. What both worlds promise: `promises.rs`.

use microslice_engine::report::RunReport;
use microslice_engine::simulate;
use microslice_experiments::scenario::{Overrides, parse};
use microslice_model::events::NoTrace;

const COMPUTES: &str = r#""swaptions""#;
const SLEEPS_BRIEFLY: &str = r#"{ name = "sleeps", threads = 1, program = [
    { compute = "exponential 1 ms" }, { sleep = "exponential 100 us" }, { progress = 1 },
] }"#;
const TAKES_TURNS: &str = r#"{ name = "turns", threads = 32, program = [
    { compute = "exponential 100 us" }, { sleep = "exponential 500 us" }, { progress = 1 },
] }"#;
const MEETS_AT_BARRIERS: &str = r#"{ name = "meets", threads = 16, program = [
    { compute = "exponential 50 us" }, { barrier = "x" }, { progress = 1 },
] }"#;

/// Shootdowns without end: requests for micro slices at home all the time.
fn shoots_down(computes: &str) -> String {
    format!(
        r#"{{ name = "shoots", threads = "per vcpu", address_space = "shared", program = [
            {{ compute = "{computes}" }}, {{ shootdown = "1 us" }}, {{ progress = 1 }},
        ] }}"#
    )
}

struct Vm {
    vcpus: u32,
    keys: &'static str,
    workloads: String,
}

fn vm(vcpus: u32, keys: &'static str, workloads: &[&str]) -> Vm {
    Vm { vcpus, keys, workloads: workloads.join(", ") }
}

fn run(pcpus: u32, vms: &[Vm], policy: &str, seed: u64) -> RunReport {
    run_on(pcpus, pcpus, vms, policy, seed)
}

/// On a host where so many pCPUs share a last-level cache.
fn run_on(pcpus: u32, llc_pcpus: u32, vms: &[Vm], policy: &str, seed: u64) -> RunReport {
    run_for(SECONDS, pcpus, llc_pcpus, vms, policy, seed)
}

/// `warmup` and `duration` of a scenario, in milliseconds.
type Times = (u32, u32);
const SECONDS: Times = (1000, 4000);

fn run_for(
    (warmup_ms, duration_ms): Times,
    pcpus: u32,
    llc_pcpus: u32,
    vms: &[Vm],
    policy: &str,
    seed: u64,
) -> RunReport {
    let mut text = format!(
        "host = {{ extends = \"xeon-e5645\", pcpus = {pcpus}, llc_pcpus = {llc_pcpus}, smt_threads = 1 }}\nwarmup = \"{warmup_ms} ms\"\nduration = \"{duration_ms} ms\"\n"
    );
    for (number, Vm { vcpus, keys, workloads }) in vms.iter().enumerate() {
        text += &format!(
            "[[vm]]\nname = \"vm{number}\"\nvcpus = {vcpus}\nkernel = \"linux-4.4\"\n{keys}\nworkloads = [{workloads}]\n"
        );
    }
    let overrides = Overrides { policy: Some(policy.to_owned()), seed: Some(seed), ..Overrides::default() };
    let mut config = parse("shares.toml", &text, &overrides).unwrap_or_else(|error| panic!("{error}")).config;
    config.check = true;
    simulate(&config, &mut NoTrace).unwrap_or_else(|error| panic!("{error}"))
}

/// What part of the host each VM has.
fn shares(report: &RunReport) -> Vec<f64> {
    let host_ns = (report.pcpus.guest_ns + report.pcpus.overhead_ns + report.pcpus.idle_ns) as f64;
    report.vms.iter().map(|vm| vm.run_ns as f64 / host_ns).collect()
}

/// Each VM has what it is due, within a twentieth of the host, under each of these policies, whichever pCPUs
/// share queues.
fn assert_shares(pcpus: u32, vms: &[Vm], due: &[f64]) {
    assert_shares_within(SECONDS, pcpus, vms, due, &["microslice:0", "microslice:1", "microslice"]);
}

/// On a host of two last-level caches.
fn assert_shares_within(times: Times, pcpus: u32, vms: &[Vm], due: &[f64], policies: &[&str]) {
    for policy in policies {
        for (domain, seed) in [("host", 1), ("llc", 2), ("pcpu", 1), ("pcpu", 2)] {
            let policy = format!("{policy}+domain={domain}");
            let shares = shares(&run_for(times, pcpus, pcpus.div_ceil(2), vms, &policy, seed));
            assert_right(&shares, due, &policy, seed);
        }
    }
}

fn assert_right(shares: &[f64], due: &[f64], policy: &str, seed: u64) {
    let right = shares.iter().zip(due).all(|(share, due)| (share - due).abs() < 0.05);
    assert!(right, "{policy}, seed {seed}: {shares:.3?}, due {due:.3?}");
}

#[test]
fn a_brief_sleeper_has_its_share_of_the_pcpu_that_it_is_pinned_to_however_busy_the_others_are() {
    let hog = || vm(1, "affinity = [0]", &[COMPUTES]);
    let sleeper = || vm(1, "affinity = [0]", &[SLEEPS_BRIEFLY]);
    // With six: `promises.rs`.
    for others in [3, 24] {
        let others = vm(others, "affinity = [1, 2, 3]", &[COMPUTES]);
        assert_shares(4, &[hog(), sleeper(), others], &[0.125, 0.125, 0.75]);
    }
}

#[test]
fn a_vcpu_that_interrupts_accelerate_all_the_time_brings_its_vm_nothing_in_shares() {
    let accelerated = || vm(4, "nic = \"iperf-tcp\"", &["\"iperf\"", COMPUTES]);
    assert_shares(4, &[accelerated(), vm(4, "", &[TAKES_TURNS])], &[0.5, 0.5]);
    assert_shares(4, &[accelerated(), vm(4, "", &[COMPUTES])], &[0.5, 0.5]);
}

#[test]
fn vcpus_that_wake_one_another_all_the_time_are_not_robbed_of_their_turns_by_micro_slices() {
    assert_shares(4, &[vm(4, "", &[MEETS_AT_BARRIERS]), vm(4, "", &[COMPUTES])], &[0.5, 0.5]);
}

#[test]
fn a_vm_whose_vcpus_sleep_by_turns_does_not_outweigh_one_whose_vcpus_never_do() {
    let turns = r#"{ name = "w", threads = "per vcpu", program = [
        { compute = "exponential 100 us" }, { sleep = "exponential 100 us" }, { progress = 1 },
    ] }"#;
    assert_shares(8, &[vm(8, "", &[turns]), vm(4, "", &[COMPUTES])], &[0.5, 0.5]);
}

#[test]
fn a_woken_vcpu_takes_a_lent_pcpu_too_so_a_micro_pool_that_hardly_gets_a_request_costs_nobody_anything() {
    let sleeps = r#"{ name = "w", threads = 8, program = [{ compute = "100 us" }, { sleep = "1 ms" }, { progress = 1 }] }"#;
    let vms = [vm(4, "", &[sleeps]), vm(4, "", &[COMPUTES])];
    let work = |policy| {
        let report = run(4, &vms, policy, 3);
        report.vms.iter().map(|vm| vm.workloads[0].units_done as f64).collect::<Vec<_>>()
    };
    let (without, with) = (work("microslice:0"), work("microslice:1"));
    let relative: Vec<f64> = with.iter().zip(&without).map(|(with, without)| with / without).collect();
    assert!(relative.iter().all(|relative| *relative > 0.97), "{relative:.3?}");
}

#[test]
fn equal_shares_of_vms_of_unlike_size_are_no_error_where_weights_are_the_vms() {
    let vms = [vm(8, "", &[COMPUTES]), vm(2, "", &[COMPUTES])];
    let error = |policy| run(4, &vms, policy, 1).fairness_error_permille;
    assert!(error("microslice") < 20, "{}: half of the host each", error("microslice"));
    assert!(error("eevdf-flat") < 20, "{}: as much for each vCPU", error("eevdf-flat"));
}

#[test]
fn vms_of_one_vcpu_do_not_all_begin_on_the_first_pcpu() {
    let vms: Vec<Vm> = (0..16).map(|_| vm(1, "", &[COMPUTES])).collect();
    let report = run(8, &vms, "micro-xen:2", 1);
    let ran = || report.vms.iter().map(|vm| vm.run_ns);
    assert!(ran().max() < ran().min().map(|least| 3 * least), "{:?}", ran().collect::<Vec<_>>());
}

/// A sleeper of great weight was boosted against the vCPU that was served last where it ran. It had less the
/// more it weighed (0.22 of the host). It took most of that from the VM that it should have had it with.
#[test]
fn a_heavy_vm_whose_vcpus_sleep_has_what_it_asks_for_beside_light_ones_that_do_not() {
    let turns = r#"{ name = "w", threads = 1, program = [{ compute = "100 us" }, { sleep = "10 us" }, { progress = 1 }] }"#;
    let vms = [
        vm(1, "", &[turns]),
        vm(1, "", &[COMPUTES]),
        vm(3, "weight = 1024", &[r#"{ use = "exim", threads = 3 }"#]),
        vm(6, "", &[COMPUTES]),
    ];
    for policy in ["microslice:0", "microslice:1", "microslice"] {
        let report = run(4, &vms, policy, 1);
        let host_ns = (report.pcpus.guest_ns + report.pcpus.overhead_ns + report.pcpus.idle_ns) as f64;
        let share = report.vms[2].run_ns as f64 / host_ns;
        assert!(share > 0.42, "{policy}: {share:.3}; eevdf gives it 0.5");
    }
}

/// Thousands of times a second a woken vCPU went to the lent micro pCPU, was called back at once, and waited
/// for it again. It made a third of its work.
#[test]
fn a_borrower_whose_pcpu_is_called_back_all_the_time_goes_on_elsewhere() {
    let sleeps = r#"{ name = "w", threads = 1, program = [{ compute = "300 us" }, { sleep = "700 us" }, { progress = 1 }] }"#;
    let vms = [vm(1, "", &[sleeps]), vm(1, "", &[COMPUTES]), vm(1, "nic = \"iperf-tcp\"", &["\"iperf\""])];
    let work = |policy| run(2, &vms, policy, 1).vms[0].workloads[0].units_done as f64;
    let (lent, alone) = (work("microslice:1"), work("microslice:1+lend=false"));
    assert!(lent > 0.9 * alone, "{lent} of {alone}");
}

#[test]
fn nobody_waits_for_long_because_it_was_accelerated() {
    let vms = [
        vm(6, "nic = \"iperf-tcp\"", &["\"iperf\"", "\"gmake\""]),
        vm(6, "", &["\"vips\"", "\"exim\""]),
        vm(3, "weight = 512", &[COMPUTES]),
    ];
    for policy in ["microslice:1", "microslice"] {
        let waits = run(6, &vms, policy, 1).wait_to_run;
        assert!(waits.max().is_some_and(|max_ns| max_ns < 500_000_000), "{policy}: {:?}", waits.max());
    }
}

#[test]
fn a_turn_that_goes_on_after_a_micro_slice_puts_no_sleeper_back() {
    let sleeps = r#"{ name = "sleeps", threads = "per vcpu", program = [
        { compute = "20 ms" }, { sleep = "500 us" }, { progress = 1 },
    ] }"#;
    let vms =
        [vm(4, "", &[&shoots_down("exponential 200 us")]), vm(12, "", &[COMPUTES]), vm(2, "", &[sleeps])];
    for policy in ["microslice:1", "microslice"] {
        for seed in [1, 2] {
            let with = shares(&run(4, &vms, policy, seed));
            let without = shares(&run(4, &vms, &format!("{policy}+home_slices=false"), seed));
            assert!(with[2] > without[2] - 0.03, "{policy}, seed {seed}: {with:.3?}, without {without:.3?}");
        }
    }
}

/// Each asked for micro slices without end, and had the whole micro pool beside its turns: 0.25, 0.49 and
/// 0.24 of these hosts. Without vm_is_ahead() it is 0.46 to 0.6, 0.49 and 0.54, within two seconds as well.
#[test]
fn a_vm_that_asks_for_micro_slices_all_the_time_has_no_more_than_its_share() {
    let greedy = || vm(12, "", &[&shoots_down("exponential 50 us")]);
    let eight: Vec<Vm> = std::iter::once(greedy()).chain((0..7).map(|_| vm(12, "", &[COMPUTES]))).collect();
    // A scheduler without a micro pool has no micro slices to give.
    let assert_shares = |pcpus, vms: &[Vm], due: &[f64]| {
        assert_shares_within((500, 1500), pcpus, vms, due, &["microslice:1", "microslice"]);
    };
    assert_shares(12, &eight, &[0.125; 8]);
    let stream = vm(1, "nic = \"iperf-tcp\"", &["\"iperf\"", "\"lookbusy\""]);
    let hog = || vm(2, "", &[COMPUTES]);
    assert_shares(2, &[stream, hog(), hog(), hog()], &[0.25; 4]);
    let wide_and_light = vm(32, "weight = 100", &[&shoots_down("exponential 50 us")]);
    assert_shares(12, &[wide_and_light, vm(12, "weight = 1000", &[COMPUTES])], &[0.091, 0.909]);
}

/// Two sockets, each with VMs of its own, as `AllowedCPUs=` or a cpuset partition makes them. The greedy ones
/// had up to 0.18 when nobody that may run on some pCPUs only was compared with anybody.
#[test]
fn vms_of_one_socket_keep_to_their_shares_there() {
    let sockets = ["affinity = [0, 1, 2, 3, 4, 5]", "affinity = [6, 7, 8, 9, 10, 11]"];
    let greedy = |keys| vm(6, keys, &[&shoots_down("exponential 50 us")]);
    let on = |keys| std::iter::once(greedy(keys)).chain((0..3).map(move |_| vm(6, keys, &[COMPUTES])));
    let vms: Vec<Vm> = sockets.into_iter().flat_map(on).collect();
    assert_shares_within((500, 1500), 12, &vms, &[0.125; 8], &["microslice:1", "microslice"]);
}

#[test]
fn a_wide_light_vm_takes_nothing_from_a_heavy_one_by_micro_slices_at_home() {
    let shoots = shoots_down("exponential 50 us");
    for (heavy, due) in [("weight = 300", 0.25), ("weight = 1000", 0.091)] {
        let vms = [vm(32, "weight = 100", &[&shoots]), vm(12, heavy, &[COMPUTES])];
        let shares = shares(&run(12, &vms, "microslice:1", 1));
        assert!(shares[0] < due + 0.01, "{shares:.3?}, due {due}");
    }
}

#[test]
fn a_lottery_gives_each_vm_its_share_however_many_vcpus_it_has() {
    for (weight, due) in [("weight = 256", 0.5), ("weight = 768", 0.75)] {
        for vcpus in [1, 3] {
            for seed in [1, 2] {
                let vms = [vm(vcpus, weight, &[COMPUTES]), vm(2, "weight = 256", &[COMPUTES])];
                let report = run(1, &vms, "lottery", seed);
                assert_eq!(report.pool.overtakes[0], 0, "who is drawn wasn't yielded to");
                let share = shares(&report)[0];
                assert!((share - due).abs() < 0.06, "{vcpus} vCPUs, seed {seed}: {share:.3}, due {due}");
            }
        }
    }
}

/// A control group per VM: its vCPUs share what it is due, however many they are, and those that sleep leave
/// theirs to the others.
#[test]
fn under_cfs_vms_of_unlike_size_have_equal_shares_and_weights_count() {
    let two = |keys: [&'static str; 2]| [vm(8, keys[0], &[COMPUTES]), vm(2, keys[1], &[COMPUTES])];
    for (keys, due) in [(["", ""], 0.5), (["weight = 512", ""], 0.667)] {
        let share = shares(&run(4, &two(keys), "cfs", 1))[0];
        assert!((share - due).abs() < 0.05, "{share:.3}, due {due}");
    }
    let half_asleep = [vm(4, "", &[COMPUTES]), vm(4, "", &[TAKES_TURNS])];
    let share = shares(&run(4, &half_asleep, "cfs", 1))[0];
    assert!((share - 0.5).abs() < 0.05, "{share:.3}");
}

/// Two vCPUs that share a lock, and a hog on the pCPU of each. Each pause-loop exit gave the hog a turn: the
/// VM had 0.018 of its share, but with locks of today, whose waiters halt soon.
#[test]
fn pinned_spinners_give_no_turn_away_in_vain() {
    let lockers = r#"{ name = "lockers", threads = 2, program = [
        { compute = "exponential 50 us" }, { lock = "dentry", hold = "10 us" }, { progress = 1 },
    ] }"#;
    let text = |lock_kind: &str| {
        format!(
            r#"warmup = "500 ms"
duration = "2 s"
host = {{ extends = "epyc-genoa", pcpus = 2, llc_pcpus = 2, smt_threads = 1 }}
[[vm]]
name = "target"
vcpus = 2
pinned = true
kernel = {{ extends = "linux-modern", lock_kind = "{lock_kind}" }}
workloads = [{lockers}]
[[vm]]
name = "hog"
vcpus = 2
pinned = true
kernel = "linux-modern"
workloads = [{{ use = "lookbusy", threads = 2 }}]
"#
        )
    };
    for lock_kind in ["ticket", "pv-ticket", "pv-queued"] {
        for policy in ["microslice:0", "microslice:0+domain=pcpu"] {
            let overrides = Overrides { policy: Some(policy.to_owned()), ..Overrides::default() };
            let scenario = parse("pinned.toml", &text(lock_kind), &overrides);
            let mut config = scenario.unwrap_or_else(|error| panic!("{error}")).config;
            config.check = true;
            let report = simulate(&config, &mut NoTrace).unwrap_or_else(|error| panic!("{error}"));
            let shares = shares(&report);
            assert!(
                shares.iter().all(|share| (share - 0.5).abs() < 0.02),
                "{policy}, {lock_kind}: {shares:.3?}"
            );
        }
    }
}
