//! The generator, and a small fixed set of its scenarios.

use super::*;
use microslice_experiments::scenario::{policy_names, vocabulary};
use microslice_model::config::{LockKind, SymbolTable};
use microslice_model::events::NoTrace;
use proptest::prelude::*;
use std::collections::BTreeSet;
use toml::Value;

/// Enough that what is rare has occurred.
const SEEDS: u64 = 400;

/// Scenarios of the small fixed set.
const SMALL: u64 = 4;

/// What scenarios can say that the generator doesn't, and why not.
const LEFT_OUT: [(&str, &str); 57] = [
    // Policies are the command line's.
    ("a scenario", "policy"),
    // Channels aren't drawn, either.
    ("a NIC", "worker"),
    ("a NIC's worker", "from"),
    ("a NIC's worker", "to"),
    // Of the kernels and hosts of ASPLOS'13 and APSys'15.
    ("costs", "waiter_line"),
    ("kvm", "exit_jitter"),
    ("a kernel", "wait_lists"),
    ("a kernel", "readers"),
    ("a kernel", "flat_ipi"),
    ("a phase", "read"),
    ("a phase", "reading"),
    ("a phase", "writing"),
    ("a phase", "requeues"),
    ("a phase", "rcu_read"),
    ("a phase", "synchronize_rcu"),
    // Only the policies of ASPLOS'13 look at them.
    ("a VM", "resched_dp"),
    ("a VM", "tlb_co"),
    ("a VM", "resched_co"),
    // Of the kernel that is extended: both are drawn.
    ("a kernel", "symbols"),
    // Those that were measured hold on every host.
    ("a host", "boosts"),
    ("boosts", "latency"),
    ("boosts", "give_back"),
    ("boosts", "helper"),
    // Of the kernel that is extended.
    ("a kernel", "thread_scheduler"),
    ("a kernel", "steal_time"),
    ("a kernel", "mutex_handoff"),
    ("a kernel", "pv_ipi"),
    ("a kernel", "ttwu_queue"),
    ("a kernel", "lazy_tlb"),
    // Of the guests and hosts of VM'04 and APSys'15.
    ("a VM", "pinned"),
    ("a kernel", "yield_spin"),
    ("a kernel", "preemption_hint"),
    ("a kernel", "user_hint"),
    ("a phase", "user_lock"),
    ("a phase", "hint"),
    // It came later, too.
    ("a kernel", "listed_holds"),
    // Hostile guests are tested on their own.
    ("a kernel", "shown_count"),
    ("a kernel", "balance"),
    ("a kernel", "balance_interval"),
    ("a kernel", "balloons"),
    ("a kernel", "plans"),
    // It came later.
    ("a workload", "process"),
    ("a VM", "cgroup"),
    ("a task", "cgroup"),
    ("a scenario", "cgroup"),
    ("a scenario", "channel"),
    ("a cgroup", "parent"),
    ("a host", "preempt"),
    // Likewise: hosts of a seed stay as they were.
    ("kvm", "device_interrupts"),
    // Of the host that is extended.
    ("ple", "window_grow"),
    ("ple", "window_max"),
    // It is how results are shown.
    ("a task", "unit"),
    // It is a key of policies, too, and so the command line's.
    ("a VM", "max_wait"),
    // They change how results are shown, not what happens.
    ("a scenario", "guest_times"),
    ("a workload", "run_units"),
    ("a workload", "run_time"),
    ("a workload", "unit"),
];

fn read(hosts: Hosts, seed: u64, policy: &str) -> SimulationConfig {
    let overrides = Overrides { policy: Some(policy.to_owned()), ..Overrides::default() };
    match parse(&file_name(seed), &scenario(hosts, seed), &overrides) {
        Ok(scenario) => scenario.config,
        Err(error) => panic!("{error}\n{}", scenario(hosts, seed)),
    }
}

fn regret(policies: &[&str], scenarios: u64, first_seed: u64) -> Regret {
    let policies = policies.iter().map(|&policy| policy.to_owned()).collect();
    Regret { policies, hosts: Hosts::Mixed, scenarios, precision: None, first_seed, check: true }
}

/// Every key of a file, and every text.
fn collect<'v>(value: &'v Value, words: &mut BTreeSet<&'v str>) {
    match value {
        Value::Table(table) => table.iter().for_each(|(key, value)| {
            words.insert(key);
            collect(value, words);
        }),
        Value::Array(values) => values.iter().for_each(|value| collect(value, words)),
        Value::String(text) => _ = words.insert(text),
        _ => {}
    }
}

#[test]
fn every_phase_lock_kind_and_key_that_scenarios_can_say_is_drawn() {
    let files: Vec<Value> = (1..=SEEDS)
        .map(|seed| Value::Table(scenario(Hosts::Mixed, seed).parse().expect("a table")))
        .collect();
    let mut drawn = BTreeSet::new();
    files.iter().for_each(|file| collect(file, &mut drawn));
    let mut missing: Vec<(&str, &str)> = vocabulary()
        .iter()
        .flat_map(|(table, keys)| keys.iter().map(|key| (*table, *key)))
        .filter(|(_, key)| !drawn.contains(key))
        .collect();
    missing.retain(|key| !LEFT_OUT.contains(key));
    assert!(missing.is_empty(), "never drawn: {missing:?}");
    let kinds = LockKind::OF_KERNELS.map(|kind| kind.rules().word);
    assert!(kinds.iter().all(|kind| drawn.contains(kind)), "{drawn:?}");
    assert!(SymbolTable::ALL.iter().all(|symbols| drawn.contains(symbols.word())));
    let begin_with = |word: &str| drawn.iter().any(|text| text.starts_with(word));
    assert!(["exponential", "uniform", "lognormal", "mix"].into_iter().all(begin_with));
    let taken_off: Vec<_> = LEFT_OUT.iter().filter(|(_, key)| drawn.contains(key)).collect();
    assert!(taken_off.is_empty(), "drawn now, take them off the list: {taken_off:?}");
}

#[test]
fn hosts_and_vms_are_of_many_shapes() {
    for hosts in [Hosts::Papers, Hosts::Today] {
        let configs: Vec<SimulationConfig> = (1..=SEEDS).map(|seed| read(hosts, seed, "eevdf")).collect();
        let some = |shape: fn(&SimulationConfig) -> bool| configs.iter().any(shape);
        assert!(some(|config| config.host.pcpus <= 8) && some(|config| config.host.pcpus >= 32));
        assert!(some(|config| config.host.llc_pcpus > 0 && config.host.smt_threads > 1));
        assert!(some(|config| config.vms.len() == 1) && some(|config| config.vms.len() == 4));
        assert!(some(|config| config.vms.windows(2).any(|pair| pair[0].vcpus != pair[1].vcpus)));
        assert!(some(|config| config.vms.windows(2).any(|pair| pair[0].weight != pair[1].weight)));
        assert!(some(|config| config.vms.iter().any(|vm| !vm.affinity.is_empty())));
        let vcpus = |config: &SimulationConfig| config.vms.iter().map(|vm| vm.vcpus).sum::<usize>();
        let overcommitted = configs.iter().filter(|config| vcpus(config) > config.host.pcpus).count();
        assert!(overcommitted * 10 > configs.len() * 8, "{overcommitted} of {}", configs.len());
    }
}

#[test]
fn hosts_of_today_have_each_interrupt_mode() {
    let configs: Vec<SimulationConfig> = (1..=SEEDS).map(|seed| read(Hosts::Today, seed, "eevdf")).collect();
    for mode in [InterruptMode::Software, InterruptMode::Apicv, InterruptMode::Avic, InterruptMode::Ipiv] {
        let has_it =
            |config: &&SimulationConfig| config.host.kvm.as_ref().is_some_and(|kvm| kvm.interrupts == mode);
        let count = configs.iter().filter(has_it).count() as u64;
        assert!(count * 10 > SEEDS, "{mode:?}: {count} of {SEEDS}");
    }
    assert!(configs.iter().all(|config| config.host.ple.window_grow == 2));
    let some = |shape: fn(&SimulationConfig) -> bool| configs.iter().any(shape);
    assert!(some(|config| config.host.node_pcpus > 0) && some(|config| config.host.node_pcpus == 0));
    assert!(some(|config| config.vms.iter().any(|vm| vm.cpu_max.is_some())));
}

#[test]
fn four_of_five_mixed_scenarios_are_of_today() {
    let is_of_today = |&seed: &u64| scenario(Hosts::Mixed, seed) == scenario(Hosts::Today, seed);
    let of_today = (1..=SEEDS).filter(is_of_today).count() as u64;
    assert!((SEEDS * 7 / 10..SEEDS * 9 / 10).contains(&of_today), "{of_today} of {SEEDS}");
    let others = (1..=SEEDS).filter(|seed| !is_of_today(seed));
    others.for_each(|seed| assert_eq!(scenario(Hosts::Mixed, seed), scenario(Hosts::Papers, seed)));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    #[test]
    fn every_seed_gives_one_valid_scenario_under_every_policy(seed in 0..=i64::MAX as u64) {
        for hosts in [Hosts::Papers, Hosts::Today] {
            prop_assert_eq!(scenario(hosts, seed), scenario(hosts, seed));
            for policy in policy_names().iter().filter(|policy| !policy.ends_with(":N")) {
                let config = read(hosts, seed, policy);
                prop_assert_eq!(config.seed, seed);
            }
            prop_assert_ne!(scenario(hosts, seed), scenario(hosts, seed ^ 1));
        }
    }
}

#[test]
fn a_small_fixed_set_keeps_every_invariant_and_is_the_same_each_time() {
    let small = regret(&["eevdf", "microslice"], SMALL, 1);
    let run = || small.run(&BatchProgress::default()).expect("they run");
    let results = run();
    assert_eq!(results, run());
    assert_eq!(results.iter().map(|result| result.seed).collect::<Vec<_>>(), (1..=SMALL).collect::<Vec<_>>());
    let all = summaries(&small.policies, &results);
    assert_eq!(all.len(), 3);
    assert!(all.iter().all(|summary| summary.throughput.len() as u64 == SMALL));
    assert!(all[1].accelerations > 0 && all[0].accelerations == 0);
    let worked = |result: &ScenarioResult| result.outcomes[0].units.iter().flatten().any(|&units| units > 0);
    assert!(results.iter().all(worked));
}

#[test]
fn what_a_file_gives_alone_is_what_the_comparison_counted() {
    let results = regret(&["eevdf"], 1, 3).run(&BatchProgress::default()).expect("it runs");
    let report = simulate(&read(Hosts::Mixed, 3, "eevdf"), &mut NoTrace).expect("it runs");
    let units: Vec<u64> =
        report.vms.iter().flat_map(|vm| &vm.workloads).map(|workload| workload.units_done).collect();
    assert_eq!(results[0].outcomes[0].units.concat(), units);
}

#[test]
fn a_policy_that_there_is_not_is_refused_by_its_option() {
    let error = regret(&["eevdf", "no-such"], 2, 1).run(&BatchProgress::default()).expect_err("unknown");
    assert!(error.to_string().starts_with("--policies: no policy `no-such`"), "{error}");
}

#[test]
fn a_stopped_comparison_says_so() {
    let progress = BatchProgress::default();
    progress.stop();
    let error = regret(&["eevdf"], 2, 1).run(&progress).expect_err("stopped");
    assert!(matches!(error, RegretError::Run { error: SimError::Stopped { .. }, .. }), "{error}");
}

#[test]
fn narrow_intervals_are_enough_scenarios() {
    let felt = vec![FeltTimes::default()];
    let outcome = |units: u64| Outcome {
        units: vec![vec![units]],
        felt: felt.clone(),
        longest_waits: Vec::new(),
        skews: Vec::new(),
        share_error: 0.0,
        accelerations: 0,
    };
    let result = |seed: u64| {
        let outcomes = vec![outcome(10_000), outcome(10_000 + 500 * (seed % 2)), outcome(10_000)];
        ScenarioResult { seed, has_dues: true, interrupts: "apicv", programs: vec![vec![]], outcomes }
    };
    let [few, many] = [4, 400].map(|count| (0..count).map(result).collect::<Vec<_>>());
    let wanted = |precision| Regret { precision, ..regret(&["eevdf", "microslice"], 400, 1) };
    assert!(!wanted(Some(0.005)).is_precise(&[]) && !wanted(Some(0.005)).is_precise(&few));
    assert!(wanted(Some(0.005)).is_precise(&many) && !wanted(Some(0.001)).is_precise(&many));
    assert!(!wanted(None).is_precise(&many));
}
