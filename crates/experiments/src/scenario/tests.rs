//! What a scenario may say, and how it is refused: each kind of bad input with file, line, column and what is
//! allowed.

use super::*;
use microslice_model::config::{Duration, LockKind, Phase, PoolSize, SchedulerKind};
use proptest::prelude::*;

mod barriers;
mod files;
mod policies;
mod processes;

const SMALL: &str = r#"
host = "xeon-e5645"
duration = "10 ms"

[[vm]]
name = "one"
vcpus = 2
kernel = "linux-4.4"
workloads = [{ name = "busy", threads = 2, program = [
    { compute = "exponential 1 ms" },
    { lock = "dentry", hold = "2 us" },
] }]
"#;

fn refuse(text: &str) -> String {
    parse("bad.toml", text, &Overrides::default()).expect_err("must be refused").to_string()
}

fn refuse_with(from: &str, to: &str) -> String {
    assert!(SMALL.contains(from), "{from}");
    refuse(&SMALL.replace(from, to))
}

#[test]
fn a_small_scenario_becomes_a_configuration() {
    let scenario = parse("small.toml", SMALL, &Overrides::default()).expect("valid");
    let config = scenario.config;
    assert_eq!((config.duration_ns, config.host.pcpus, config.vms[0].vcpus), (10_000_000, 12, 2));
    let program = &config.vms[0].workloads[0].program;
    assert_eq!(program[0], Phase::Compute { duration: Duration::Exponential { mean_ns: 1_000_000 } });
    assert!(matches!(config.scheduler, SchedulerKind::Credit(_)), "the paper's baseline is the default");
}

#[test]
fn an_unknown_key_is_named_with_its_place_and_the_allowed_ones() {
    assert_eq!(
        refuse_with("vcpus = 2", "vcpu = 2"),
        "bad.toml:7:1: unknown key `vcpu` in a VM; allowed: name, copies, vcpus, weight, cgroup, cpu_max, max_wait, affinity, pinned, vcpupin, kernel, workloads, nic, resched_dp, tlb_co, resched_co"
    );
}

#[test]
fn a_missing_unit_is_named() {
    assert_eq!(
        refuse_with("\"10 ms\"", "\"10\""),
        "bad.toml:3:12: `duration`: `10` has no unit; allowed: ns, us, ms, s, min"
    );
    assert_eq!(
        refuse_with("\"10 ms\"", "10"),
        "bad.toml:3:12: `duration`: a bare number has no unit; allowed: ns, us, ms, s, min"
    );
}

#[test]
fn negative_and_absurd_numbers_are_refused_with_the_limits() {
    assert_eq!(
        refuse_with("vcpus = 2", "vcpus = -2"),
        "bad.toml:7:9: `vcpus` is a whole number from 1 to 4096, not -2"
    );
    assert_eq!(
        refuse_with("threads = 2", "threads = 99999999999"),
        "bad.toml:9:41: `threads` is a whole number from 1 to 65536, not 99999999999"
    );
    assert!(refuse_with("\"10 ms\"", "\"-10 ms\"").starts_with("bad.toml:3:12: `duration`: negative"));
    assert!(refuse_with("\"10 ms\"", "\"9999 min\"").contains("isn't allowed, only 1 ns to 60 min"));
    assert!(refuse_with("\"10 ms\"", "\"0 ms\"").contains("`0 ms` isn't allowed"));
    assert!(refuse_with("\"2 us\"", "\"1e400 us\"").contains("bad.toml:11:"));
}

#[test]
fn zero_pcpus_are_refused() {
    let text = SMALL.replace("host = \"xeon-e5645\"", "host = { extends = \"xeon-e5645\", pcpus = 0 }");
    assert_eq!(refuse(&text), "bad.toml:2:42: `pcpus` is a whole number from 1 to 8192, not 0");
}

#[test]
fn a_topology_that_does_not_add_up_is_refused() {
    let refused = |keys: &str| {
        let host = format!("host = {{ extends = \"xeon-e5645\", {keys} }}");
        refuse(&SMALL.replace("host = \"xeon-e5645\"", &host))
    };
    assert_eq!(
        refused("llc_pcpus = 8"),
        "bad.toml:2:46: the topology doesn't add up: the 8 pCPUs of a cache don't divide `pcpus`, 12"
    );
    assert!(refused("pcpus = 3").contains("the 2 threads of a core don't divide `pcpus`, 3"));
    assert!(refused("pcpus = 1").ends_with("the 2 threads of a core don't divide `pcpus`, 1"));
    assert!(refused("llc_pcpus = 3").contains("the 2 threads of a core don't divide `llc_pcpus`, 3"));
    assert!(refused("llc_pcpus = 4, node_pcpus = 6").contains("of a cache don't divide `node_pcpus`, 6"));
    assert!(refused("node_pcpus = 6").contains("the 12 pCPUs of a cache don't divide `node_pcpus`, 6"));
}

#[test]
fn a_cpu_max_that_no_kernel_takes_is_refused() {
    let refused = |max: &str| refuse(&SMALL.replace("vcpus = 2", &format!("vcpus = 2\ncpu_max = \"{max}\"")));
    assert_eq!(
        refused("999 100000"),
        "bad.toml:8:11: `cpu_max`: the quota is 1000 to 4096000000 us, not 999"
    );
    assert!(refused("50000 2000000").contains("the period is 1000 to 1000000 us, not 2000000"));
    assert!(refused("50 %").contains("expected `cpu.max` as its file has it"));
}

#[test]
fn pins_that_do_not_fit_a_vm_are_refused() {
    let refused = |keys: &str| refuse(&SMALL.replace("vcpus = 2", &format!("vcpus = 2\n{keys}")));
    assert_eq!(
        refused("vcpupin = [0]"),
        "bad.toml:8:11: `vcpupin` has 1 pCPUs; the VM has 2 vCPUs: name one for each"
    );
    assert!(refused("vcpupin = [0, 12]").contains("`vcpupin` is a whole number from 0 to 11, not 12"));
    assert!(refused("vcpupin = [0, 1]\naffinity = [0]").contains("leave `affinity` out"));
    assert!(refused("vcpupin = [0, 1]\npinned = true").contains("leave `pinned` out"));
}

#[test]
fn an_unknown_lock_is_refused_with_the_locks_that_exist() {
    assert_eq!(
        refuse_with("\"dentry\"", "\"dentri\""),
        "bad.toml:11:14: `lock`: unknown lock `dentri`; this VM's kernel and workload define: page_reclaim, \
         page_allocator, dentry, runqueue"
    );
}

#[test]
fn an_unknown_symbol_is_refused_with_its_place() {
    let text = SMALL.replace(
        "{ compute = \"exponential 1 ms\" }",
        "{ kernel = \"1 us\", symbol = \"no_such_function\" }",
    );
    let error = refuse(&text);
    assert!(error.starts_with("bad.toml:10:33: `symbol`: unknown symbol `no_such_function`"), "{error}");
}

#[test]
fn an_unknown_symbol_is_told_which_ones_are_alike() {
    let error = refuse_with(
        "{ lock = \"dentry\", hold = \"2 us\" }",
        "{ kernel = \"1 us\", symbol = \"mutex_unlock\" }",
    );
    assert!(error.contains("linux-4.4 has mutex_lock, ") && error.len() < 300, "{error}");
}

#[test]
fn what_is_wrong_with_a_kernel_or_a_second_workload_has_the_place_where_it_was_asked_for() {
    let kernel = "{ extends = \"linux-4.4\", lock_kind = \"mutex\" }";
    let spinning = LockKind::ALL.into_iter().filter(|kind| !kind.sleeps()).map(|kind| kind.rules().word);
    let spinning = spinning.collect::<Vec<_>>().join(", ");
    assert_eq!(
        refuse_with("\"linux-4.4\"", kernel),
        format!(
            "bad.toml:8:47: lock `runqueue` can't sleep; allowed: a `[[lock]]` of that name and kind {spinning}"
        )
    );
    let lock = "{ name = \"runqueue\", kind = \"sleeping\", symbol = \"ttwu_do_activate\" }";
    let kernel = format!("{{ extends = \"linux-4.4\", lock = [{lock}] }}");
    assert!(refuse_with("\"linux-4.4\"", &kernel).starts_with("bad.toml:8:43: lock `runqueue` can't sleep"));
    let error = refuse_with("workloads = [", "workloads = [\"gmake\", \"gmake\", ");
    assert_eq!(error, "bad.toml:9:23: a second workload `gmake` in this VM; give it a `name`");
}

#[test]
fn a_lock_is_refused_a_key_that_would_do_nothing() {
    let refuse_lock = |lock: &str| {
        let kernel = format!("{{ extends = \"linux-4.4\", lock = [{lock}] }}");
        refuse_with("\"linux-4.4\"", &kernel)
    };
    let runqueue = "{ name = \"runqueue\", symbol = \"ttwu_do_activate\", instances = 12 }";
    assert_eq!(
        refuse_lock(runqueue),
        "bad.toml:8:105: `instances`: each vCPU has one `runqueue`, held with interrupts off; leave the key out"
    );
    let mutex = "{ name = \"m\", symbol = \"mutex_lock\", kind = \"mutex\", irqs_off = true }";
    assert_eq!(
        refuse_lock(mutex),
        "bad.toml:8:107: `irqs_off`: nobody sleeps with interrupts off, as waiters for `mutex` do"
    );
    let own = "lock = [{ name = \"runqueue\", symbol = \"release_pages\" }], threads = 2";
    let error = refuse_with("threads = 2", own);
    assert_eq!(error, "bad.toml:9:48: a second lock `runqueue`");
}

#[test]
fn a_program_may_take_a_runqueues_lock_though_its_kernel_lists_none() {
    let kernel = "{ extends = \"linux-4.4\", lock = [] }";
    let text = SMALL.replace("\"linux-4.4\"", kernel).replace("dentry", "runqueue");
    let config = parse("small.toml", &text, &Overrides::default()).expect("valid").config;
    microslice_engine::simulate(&config, &mut microslice_model::events::NoTrace).expect("it runs");
    let own = "lock = [{ name = \"runqueue\", symbol = \"release_pages\" }], threads = 2";
    let error = refuse(&text.replace("threads = 2", own));
    assert_eq!(error, "bad.toml:9:39: a second lock `runqueue`: each vCPU has one");
}

#[test]
fn a_number_in_place_of_a_word_is_told_what_the_words_are() {
    let error = refuse_with("\"dentry\"", "5");
    assert!(error.starts_with("bad.toml:11:14: `lock`: unknown lock a whole number; this VM's"), "{error}");
    assert!(refuse_with("\"exponential 1 ms\"", "[]").ends_with("`compute` is text, not a list"));
    assert_eq!(refuse_with("[[vm]]", "[vm]"), "bad.toml:5:1: `vm` is a list: write [[vm]], not [vm]");
}

#[test]
fn an_absurd_cost_or_pool_is_told_its_limit() {
    let host = "{ extends = \"xeon-e5645\", costs = { exit = \"1 s\" } }";
    assert!(
        refuse_with("\"xeon-e5645\"", host).ends_with("`exit`: `1 s` isn't allowed, only 0 ns to 100 ms")
    );
    let error = refuse(&format!("policy = \"micro:99999\"\n{SMALL}"));
    assert_eq!(error, "bad.toml:1:10: `micro:99999`: micro:N needs a whole number from 0 to 63");
    let error = refuse(&format!("policy = {{ extends = \"credit\", slice = \"1 ns\" }}\n{SMALL}"));
    assert_eq!(error, "bad.toml:1:40: `slice`: `1 ns` isn't allowed, only 1 us to 60 min");
}

#[test]
fn packets_that_take_no_time_are_refused() {
    let nic = |key: &str, value: &str, text: &str| refuse_setting(text, &format!("vm.one.nic.{key}"), value);
    let with = |nic: &str| SMALL.replace("vcpus = 2", &format!("vcpus = 2\nnic = \"{nic}\""));
    let (tcp, udp) = (with("iperf-tcp"), with("iperf-udp"));
    let stream = "{ rate = \"1000 Gbit/s\", packet = \"64 B\" }";
    let error = nic("udp", stream, &udp);
    assert_eq!(error, "--set vm.one.nic.udp: `rate`: a packet takes 0.5 ns; allowed: 10 ns and more");
    assert!(nic("tcp.window", "2048 MiB", &tcp).contains("larger than 1 GiB"));
}

#[test]
fn a_queue_of_two_capacities_is_refused() {
    let to = "{ send = \"q\", capacity = 1 }, { receive = \"q\" }, { send = \"q\", capacity = 3 }";
    let error = refuse_with("{ lock = \"dentry\", hold = \"2 us\" }", to);
    assert_eq!(error, "bad.toml:11:54: queue `q` has room for 1 items in one phase, for 3 in another");
}

#[test]
fn a_run_that_ends_by_the_clock_and_by_its_work_is_refused() {
    let both = refuse_with("threads = 2,", "threads = 2, run_units = 5, run_time = \"15 s\",");
    let cause =
        "`run_time` and `run_units` exclude each other: a run ends by the clock or when its work is done";
    assert_eq!(both, format!("bad.toml:9:70: {cause}"));
    let never = refuse_with("threads = 2,", "threads = 2, run_time = \"0 s\",");
    assert!(never.contains("`run_time`: `0 s` isn't allowed, only 1 ns to 60 min"), "{never}");
}

#[test]
fn a_shootdown_under_a_spinlock_is_refused_with_its_place() {
    let error =
        refuse_with("{ lock = \"dentry\", hold = \"2 us\" }", "{ shootdown = \"1 us\", under = \"dentry\" }");
    assert_eq!(error, "bad.toml:11:35: `under`: `dentry` can't be held; allowed: a sleeping lock or a mutex");
}

#[test]
fn an_absurd_smt_speed_is_refused_with_its_place() {
    let text = SMALL.replace("\"xeon-e5645\"", "{ extends = \"xeon-e5645\", smt_busy_speed = \"101 %\" }");
    assert!(refuse(&text).starts_with("bad.toml:2:51: `smt_busy_speed`: "), "{}", refuse(&text));
    let speeds = "{ extends = \"xeon-e5645\", smt_busy_speed = \"70 %\", smt_spin_speed = \"69 %\" }";
    let error = refuse(&SMALL.replace("\"xeon-e5645\"", speeds));
    assert!(error.ends_with("allowed: 70 % to 100 %"), "{error}");
}

#[test]
fn an_unknown_phase_is_refused_with_the_phases_that_exist() {
    let error = refuse_with("{ compute =", "{ computer =");
    assert!(
        error.starts_with("bad.toml:10:7: unknown phase `computer`; allowed: compute, kernel, rcu_read, "),
        "{error}"
    );
}

#[test]
fn a_program_that_takes_no_time_is_refused_instead_of_looping_for_ever() {
    let text = SMALL.replace(
        "{ compute = \"exponential 1 ms\" },\n    { lock = \"dentry\", hold = \"2 us\" },",
        "{ progress = 1 },",
    );
    assert!(refuse(&text).starts_with("bad.toml:9:54: a pass may take no time"), "{}", refuse(&text));
    let error = refuse(&text.replace("progress = 1", "compute = \"1 ns\""));
    assert!(error.contains("take 1 ns; allowed: 100 ns on average"), "{error}");
    let text = text.replace("{ progress = 1 }", "{ sometimes = \"50 %\", body = [{ compute = \"1 ms\" }] }");
    assert!(refuse(&text).starts_with("bad.toml:9:54: a pass may take no time"), "{}", refuse(&text));
}

#[test]
fn a_program_in_which_time_hardly_passes_is_refused() {
    let slow = |steps: &str, time: &str| {
        let program =
            format!("{{ repeat = {steps}, body = [{{ progress = 1 }}] }}, {{ compute = \"{time}\" }}");
        SMALL
            .replace("{ compute = \"exponential 1 ms\" }", &program)
            .replace("    { lock = \"dentry\", hold = \"2 us\" },\n", "")
    };
    assert_eq!(
        refuse(&slow("1000000", "100 ns")),
        "bad.toml:9:54: 1000000 steps of a pass take no time, the others 0.1 us; allowed: 1000 such steps per us"
    );
    assert!(refuse(&slow("100001", "100 us")).contains("100001 steps of a pass take no time"));
    parse("small.toml", &slow("100000", "100 us"), &Overrides::default()).expect("one per ns");
}

#[test]
fn in_the_programs_that_are_built_in_time_passes_a_hundred_times_as_fast_as_it_must() {
    for scenario in Shelf::Scenario.built_in_names() {
        let config = load(scenario, &Overrides::default()).expect("built in").config;
        for workload in config.vms.iter().flat_map(|vm| &vm.workloads) {
            let (steps, time_ns) =
                (workload::untimed_steps_of(&workload.program), workload::time_of(&workload.program));
            let waits_for_nic = workload.program.contains(&Phase::NetworkReceive);
            assert!(waits_for_nic || steps * 100.0 < time_ns, "{scenario}: {steps} steps in {time_ns} ns");
        }
    }
}

#[test]
fn repeats_that_multiply_into_an_endless_pass_are_refused() {
    let nested = "{ repeat = 1000000, body = [{ repeat = 1000000, body = [{ compute = \"1 us\" }] }] }";
    assert!(refuse_with("{ compute = \"exponential 1 ms\" }", nested).contains("steps"));
}

#[test]
fn repeats_nested_too_deep_are_refused_with_their_place() {
    let nested =
        (0..4).fold("{ spawn = 2 }".to_owned(), |body, _| format!("{{ repeat = 2, body = [{body}] }}"));
    let error = refuse_with("{ lock = \"dentry\", hold = \"2 us\" }", &nested);
    assert_eq!(error, "bad.toml:9:54: repeats nested deeper than 4 (`spawn = 2` is one, too)");
}

#[test]
fn phases_nested_too_deep_are_refused() {
    let mut program = "{ compute = \"1 us\" }".to_owned();
    for _ in 0..12 {
        program = format!("{{ repeat = 1, body = [{program}] }}");
    }
    assert!(refuse_with("{ compute = \"exponential 1 ms\" }", &program).contains("nested deeper than 8"));
}

#[test]
fn a_queue_without_a_sender_is_refused() {
    let error =
        refuse_with("{ compute = \"exponential 1 ms\" }", "{ compute = \"1 us\" }, { receive = \"jobs\" }");
    assert!(error.ends_with("queue `jobs`: nobody in this VM sends to it"), "{error}");
}

#[test]
fn settings_reach_into_every_table_and_the_policy_is_the_command_lines() {
    let overrides = Overrides {
        policy: Some("micro:2".to_owned()),
        seed: Some(7),
        settings: vec![
            ("host.pcpus".to_owned(), "4".to_owned()),
            ("host.llc_pcpus".to_owned(), "0".to_owned()),
            ("vm.one.kernel".to_owned(), "linux-modern".to_owned()),
            ("vm.one.workloads.busy.program.0.compute".to_owned(), "5 us".to_owned()),
        ],
    };
    let config = parse("small.toml", SMALL, &overrides).expect("valid").config;
    assert_eq!((config.seed, config.host.pcpus), (7, 4));
    assert!(config.vms[0].kernel.pv_tlb_flush);
    let SchedulerKind::MicroSliced(micro) = &config.scheduler else { panic!("{:?}", config.scheduler) };
    assert_eq!(micro.pool, PoolSize::Static { pcpus: 2 });
    assert_eq!(
        config.vms[0].workloads[0].program[0],
        Phase::Compute { duration: Duration::Constant { ns: 5_000 } }
    );
}

#[test]
fn a_wrong_setting_names_the_option() {
    let settings = vec![("host.pcpus".to_owned(), "many".to_owned())];
    let overrides = Overrides { settings, ..Overrides::default() };
    let error = parse("small.toml", SMALL, &overrides).expect_err("not a number");
    assert_eq!(error.to_string(), "--set host.pcpus: `pcpus` is a whole number from 1 to 8192, not a string");
}

/// The error of one setting.
fn refuse_setting(text: &str, path: &str, value: &str) -> String {
    let settings = vec![(path.to_owned(), value.to_owned())];
    let overrides = Overrides { settings, ..Overrides::default() };
    parse("small.toml", text, &overrides).expect_err(path).to_string()
}

#[test]
fn a_setting_of_what_was_followed_before_is_refused_as_it_would_change_nothing() {
    assert_eq!(
        refuse_setting(SMALL, "vm.one.kernel.extends", "linux-modern"),
        "--set vm.one.kernel.extends: `extends` was followed before: set `vm.one.kernel` itself, to a name"
    );
    assert_eq!(
        refuse_setting(SMALL, "vm.one.workloads.busy.use", "gmake"),
        "--set vm.one.workloads.busy.use: `use` was followed before: set `vm.one.workloads.busy` itself, to a name"
    );
    assert!(refuse_setting(SMALL, "host.extends", "xeon-e5645").contains("set `host` itself"));
    assert!(refuse_setting(SMALL, "extends", "x").contains("unknown key `extends` in a scenario"));
}

#[test]
fn a_vm_whose_name_has_a_dot_is_set_in_quotes() {
    let text = SMALL.replace("\"one\"", "\"one.two\"");
    let settings = vec![("vm.\"one.two\".vcpus".to_owned(), "3".to_owned())];
    let overrides = Overrides { settings, ..Overrides::default() };
    assert_eq!(parse("small.toml", &text, &overrides).expect("valid").config.vms[0].vcpus, 3);
    assert_eq!(
        refuse_setting(&text, "vm.one.two.vcpus", "3"),
        "--set vm.one.two.vcpus: no entry `one`; there are: \"one.two\""
    );
}

#[test]
fn a_cost_may_be_in_cycles_where_the_host_says_its_frequency() {
    let units = "a bare number has no unit; allowed: ns, us, ms, s, min";
    let error = refuse_setting(SMALL, "host.costs.exit", "5");
    assert_eq!(error, format!("--set host.costs.exit: `exit`: {units}, cycles"));
    assert_eq!(refuse_setting(SMALL, "duration", "5"), format!("--set duration: `duration`: {units}"));
}

#[test]
fn copies_of_a_vm_are_numbered_and_limited() {
    let config = parse("s.toml", &SMALL.replace("vcpus = 2", "vcpus = 2\ncopies = 3"), &Overrides::default());
    let names: Vec<String> = config.expect("valid").config.vms.into_iter().map(|vm| vm.name).collect();
    assert_eq!(names, ["one-1", "one-2", "one-3"]);
    assert!(refuse_with("vcpus = 2", "vcpus = 4096\ncopies = 16384").contains("more than 65536 vCPUs"));
}

#[test]
fn every_built_in_scenario_is_valid_under_every_policy() {
    for scenario in Shelf::Scenario.built_in_names() {
        let pcpus = load(scenario, &Overrides::default()).expect("valid").config.host.pcpus;
        for policy in Shelf::Policy.built_in_names().into_iter().chain([
            "micro:0",
            "micro:6",
            "microslice:0",
            "microslice:6",
        ]) {
            if policy.ends_with(":6") && pcpus <= 6 {
                continue;
            }
            let overrides = Overrides { policy: Some(policy.to_owned()), ..Overrides::default() };
            load(scenario, &overrides).unwrap_or_else(|error| panic!("{scenario} under {policy}: {error}"));
        }
    }
}

#[test]
fn every_built_in_scenario_is_valid_with_every_kernel_and_on_a_host_of_any_size() {
    for scenario in Shelf::Scenario.built_in_names() {
        for kernel in Shelf::Kernel.built_in_names() {
            for pcpus in ["4", "1024"] {
                let setting = |path: &str, value: &str| (path.to_owned(), value.to_owned());
                let size = [setting("host.pcpus", pcpus), setting("host.llc_pcpus", "0")];
                let settings = [vec![setting("vm.0.kernel", kernel)], size.into()].concat();
                load(scenario, &Overrides { settings, ..Overrides::default() })
                    .unwrap_or_else(|error| panic!("{scenario} with {kernel} on {pcpus}: {error}"));
            }
        }
    }
}

#[test]
fn of_several_symbols_the_first_that_the_kernel_has_counts() {
    let symbol_of = |names: &str| {
        let lock = format!("lock = [{{ name = \"x\", symbol = {names} }}]");
        let kernel = format!("kernel = {{ extends = \"linux-modern\", {lock} }}");
        let text = SMALL.replace("kernel = \"linux-4.4\"", &kernel).replace("dentry", "x");
        let parsed = parse("s.toml", &text, &Overrides::default());
        parsed.map(|scenario| scenario.config.vms[0].kernel.locks[0].symbol.clone())
    };
    assert_eq!(symbol_of(r#"["do_munmap", "dput", "d_alloc"]"#).unwrap(), "dput");
    let error = symbol_of(r#"["do_munmap"]"#).unwrap_err().to_string();
    assert_eq!(error, "s.toml:8:69: `symbol`: linux-modern has none of these functions");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn no_text_makes_the_reader_panic(text in "\\PC{0,200}") {
        let _ = parse("fuzz.toml", &text, &Overrides::default());
    }

    /// Mutations of a valid file reach far deeper than random text.
    #[test]
    fn no_mutation_of_a_valid_file_makes_the_reader_panic(
        cuts in prop::collection::vec((any::<prop::sample::Index>(), "(|-|\"|\\[|\\{|=|0|9999999999999|\\.|1e308|nan|body|ms|\n|é)"), 1..6)
    ) {
        let mut text = SMALL.to_owned();
        for (index, piece) in cuts {
            let at = index.index(text.len());
            if text.is_char_boundary(at) {
                text.insert_str(at, &piece);
            }
        }
        if let Err(error) = parse("fuzz.toml", &text, &Overrides::default()) {
            let line = error.to_string();
            let places = ["fuzz.toml:", "(built in)"];
            prop_assert!(!line.contains('\n') && places.iter().any(|place| line.starts_with(place)), "{line}");
        }
    }

    #[test]
    fn no_setting_makes_the_reader_panic(path in "[a-z.0-9]{0,20}|host\\.(pcpus|costs|ple)|vm\\.0\\.workloads\\.0\\.program", value in "\\PC{0,20}") {
        let settings = vec![(path, value)];
        let _ = parse("fuzz.toml", SMALL, &Overrides { settings, ..Overrides::default() });
    }
}

#[test]
fn what_would_fill_the_memory_is_refused() {
    let many = SMALL.replace("vcpus = 2", "vcpus = 1\ncopies = 16384");
    let error = refuse(&many.replace("threads = 2", "threads = 100"));
    assert!(error.ends_with("more than 1048576 threads in one scenario"), "{error}");
    let kernel = "kernel = { extends = \"linux-4.4\", lock = [\
        { name = \"dentry\", symbol = \"release_pages\", instances = 65536 }] }";
    let error = refuse(&many.replace("kernel = \"linux-4.4\"", kernel));
    assert!(error.ends_with("more than 1048576 locks in one scenario"), "{error}");
}

#[test]
fn copies_of_a_vm_with_many_phases_are_refused_before_they_fill_the_memory() {
    let phases = "    { compute = \"exponential 1 ms\" },\n".repeat(100);
    let text = SMALL.replace("    { compute = \"exponential 1 ms\" },\n", &phases);
    let text = text.replace("vcpus = 2", "vcpus = 2\ncopies = 12_000");
    assert!(refuse(&text).ends_with(": more than 1048576 phases in one scenario"), "{}", refuse(&text));
}

#[test]
fn more_profile_intervals_than_can_be_read_are_refused() {
    let policy = "policy = { extends = 'micro', profile_interval = '1 us' }\n";
    let text = SMALL.replace("duration = \"10 ms\"", &format!("duration = \"1 min\"\n{policy}"));
    assert_eq!(
        refuse(&text),
        "bad.toml:4:50: more than 4000000 of its `profile_interval` fit into `warmup` and `duration`"
    );
}
