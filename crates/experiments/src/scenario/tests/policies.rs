//! What a scenario and a command line may say about the policy: `micro`, the prototype's rules, and the real
//! scheduler's.

use super::*;
use microslice_model::config::{
    BesideConfig, BoostCosts, Duration, FairSharePool, InterruptMode, MicroSlicedConfig, NormalPoolKind,
    PleConfig, PoolSize, QueueLockCosts, ReschedCo, US, VmKnobs,
};
use microslice_policy::{AccelerateConfig, FairShareConfig, PoolSizeConfig};

/// (grace, call_function_ipi, patience_ns) of a policy with these settings.
fn rules_of(policy: &str, settings: &[(&str, &str)]) -> Result<(u32, bool, u64), ScenarioError> {
    let micro = micro_sliced(policy, settings)?;
    Ok((micro.grace, micro.call_function_ipi, micro.patience_ns))
}

fn micro_sliced(policy: &str, settings: &[(&str, &str)]) -> Result<MicroSlicedConfig, ScenarioError> {
    let settings = settings.iter().map(|&(path, value)| (path.to_owned(), value.to_owned())).collect();
    let overrides = Overrides { policy: Some(policy.to_owned()), settings, seed: None };
    let SchedulerKind::MicroSliced(micro) = parse("small.toml", SMALL, &overrides)?.config.scheduler else {
        panic!("{policy}")
    };
    Ok(micro)
}

#[test]
fn only_the_real_schedulers_normal_pool_borrows_micro_pcpus() {
    let lends = |policy, settings: &[(&str, &str)]| micro_sliced(policy, settings).map(|micro| micro.lends);
    assert!(lends("microslice:1", &[]).unwrap());
    assert!(!lends("microslice:1", &[("policy.lend", "false")]).unwrap());
    assert!(!lends("micro:1", &[]).unwrap());
    let error = lends("micro:1", &[("policy.lend", "true")]).unwrap_err().to_string();
    assert_eq!(error, "--set policy.lend: `lend` is false with the normal pool `credit`");
}

#[test]
fn micro_has_the_real_schedulers_rules_and_the_prototype_the_papers() {
    let words = |rules: AccelerateConfig| (rules.grace_max, rules.call_function_ipi != 0, rules.patience_ns);
    assert_eq!(rules_of("micro", &[]).unwrap(), words(AccelerateConfig::DEFAULT));
    assert_eq!(rules_of("micro:2", &[]).unwrap(), words(AccelerateConfig::DEFAULT));
    assert_eq!(rules_of("microslice:1", &[]).unwrap(), words(AccelerateConfig::DEFAULT));
    assert_eq!(rules_of("micro-xen", &[]).unwrap(), words(AccelerateConfig::PAPER));
}

fn beside(policy: &str) -> BesideConfig {
    let overrides = Overrides { policy: Some(policy.to_owned()), settings: Vec::new(), seed: None };
    match parse("small.toml", SMALL, &overrides).unwrap().config.scheduler {
        SchedulerKind::Beside(beside) => beside,
        other => panic!("{other:?}"),
    }
}

/// What a policy does about the rule of that key. `rules`: what follows its name.
fn ruled(rules: &str, key: &str) -> String {
    let micro = micro_sliced(&format!("microslice{rules}"), &[]).unwrap();
    let PoolSize::Auto { second_looks, grow_when_busy_percent, .. } = micro.pool else { panic!("{micro:?}") };
    match key {
        "call_function_ipi" => micro.call_function_ipi.to_string(),
        "patience" => micro.patience_ns.to_string(),
        "lend" => micro.lends.to_string(),
        "home_slices" => micro.home_slices.to_string(),
        "grace" => micro.grace.to_string(),
        "second_looks" => second_looks.to_string(),
        "grow_when_busy" => grow_when_busy_percent.to_string(),
        "slice" => format!("{:?}", micro.normal),
        "max_wait" => beside(&format!("beside{rules}")).max_wait_ns.to_string(),
        "woken" => beside(&format!("beside{rules}")).woken.to_string(),
        "critical_by" => {
            micro_sliced(&format!("microslice{rules}+critical_by=counter"), &[]).is_ok().to_string()
        }
        other => panic!("{other}: a rule that nothing here configures"),
    }
}

#[test]
fn each_value_of_the_table_differs_by_the_papers_rules() {
    for key in microslice_policy::rules::keys() {
        assert_ne!(ruled("", key), ruled("+rules=paper", key), "{key}");
    }
    let word = |policy| micro_sliced(policy, &[]).unwrap().paper_rules;
    assert!(
        word("microslice+rules=paper") && word("micro:2+rules=paper") && beside("beside:paper").paper_rules
    );
    assert!(!word("microslice+rules=project") && !word("micro-xen") && !beside("beside").paper_rules);
}

#[test]
fn whoever_says_a_rule_with_the_papers_is_refused() {
    let said =
        |policy| micro_sliced(policy, &[]).map(|micro| micro.normal).map_err(|error| error.to_string());
    assert_eq!(
        said("micro+rules=paper+patience=1 ms").unwrap_err(),
        "--policy: +patience: `patience` is of the project's rules alone"
    );
    assert_eq!(
        said("micro-xen+rules=paper").unwrap_err(),
        "--policy: +rules: mechanics `xen-prototype` has rules of its own"
    );
    assert_eq!(said("micro+rules=paper"), said("micro"), "its turns are the paper's anyway");
    let NormalPoolKind::FairShare(pool) = said("microslice+rules=paper").unwrap() else { panic!("credit") };
    assert_eq!(pool.slice_ns, FairShareConfig::PAPER.slice_ns);
    let NormalPoolKind::FairShare(pool) = said("microslice+rules=paper+slice=5 ms").unwrap() else {
        panic!("credit")
    };
    assert_eq!(pool.slice_ns, 5_000_000, "whoever says a length has it");
}

#[test]
fn a_setting_changes_the_policy_of_the_command_line() {
    let settings =
        [("policy.grace", "3"), ("policy.call_function_ipi", "false"), ("policy.patience", "50 us")];
    assert_eq!(rules_of("micro:2", &settings).unwrap(), (3, false, 50_000));
    let refused = |policy, path, value| rules_of(policy, &[(path, value)]).unwrap_err().to_string();
    assert_eq!(
        refused("micro:2", "policy.grace", "101"),
        "--set policy.grace: `grace` is a whole number from 0 to 100, not 101"
    );
    assert_eq!(
        refused("micro-xen", "policy.grace", "1"),
        "--set policy.grace: `grace` is 0 with mechanics `xen-prototype`, which has none"
    );
    assert_eq!(
        refused("micro-xen:1", "policy.call_function_ipi", "true"),
        "--set policy.call_function_ipi: `call_function_ipi` is false with mechanics `xen-prototype`"
    );
    assert_eq!(
        refused("micro-xen:1", "policy.patience", "1 ms"),
        "--set policy.patience: `patience` is \"0 us\" with mechanics `xen-prototype`"
    );
}

#[test]
fn a_policys_name_may_say_what_is_different_about_it() {
    assert_eq!(rules_of("micro:2+grace=3+patience=50 us", &[]).unwrap(), (3, true, 50_000));
    assert_eq!(
        rules_of("micro + grace = 3", &[]).unwrap(),
        rules_of("micro", &[("policy.grace", "3")]).unwrap()
    );
    assert_eq!(
        rules_of("micro+grace=3", &[("policy.grace", "4")]).unwrap().0,
        4,
        "a setting comes after the name"
    );
    let slice = |policy| micro_sliced(policy, &[]).map(|micro| micro.normal);
    assert_ne!(slice("microslice:1+slice=30 ms").unwrap(), slice("microslice:1").unwrap());
    let refused = |policy| rules_of(policy, &[]).unwrap_err().to_string();
    assert_eq!(
        refused("micro+grace=101"),
        "--policy: +grace: `grace` is a whole number from 0 to 100, not 101"
    );
    assert!(
        refused("micro+gracious=1").starts_with("--policy: +gracious: "),
        "{}",
        refused("micro+gracious=1")
    );
    assert_eq!(
        refused("credit+scheduler=nope"),
        "--policy: +scheduler: unknown scheduler `nope`; allowed: credit, micro-sliced, eevdf, beside, cfs, coordinated, lottery, stride"
    );
    assert_eq!(
        refused("microslice+mechanics=xen-prototype"),
        "--policy: +mechanics: the normal pool is `credit` with mechanics `xen-prototype`"
    );
    assert_eq!(
        refused("micro+mechanics=xen-prototype"),
        "--policy: +mechanics: `grace` is 0 with mechanics `xen-prototype`, which has none"
    );
    assert_eq!(
        refused("micro+normal_pool=fair-share"),
        "--policy: +normal_pool: `ratelimit` is of the normal pool `credit`; `fair-share` has `slice` and `tick`"
    );
    assert_eq!(
        refused("micro+extends=credit"),
        "--policy: +extends: `extends` was followed before: name the other policy in front"
    );
    assert_eq!(refused("micro:64"), "--policy: `micro:64`: micro:N needs a whole number from 0 to 63");
    assert!(refused("micro+grace").contains("no policy `micro+grace`"), "{}", refused("micro+grace"));
    assert!(refused("micro+=1").contains("a path is keys"), "{}", refused("micro+=1"));
}

#[test]
fn another_policys_scheduler_is_blamed_where_it_was_named() {
    let refused = |policy| rules_of(policy, &[]).unwrap_err().to_string();
    for policy in ["microslice+scheduler=credit", "credit+scheduler=eevdf", "stride+scheduler=lottery"] {
        let error = refused(policy);
        assert!(error.starts_with("--policy: +scheduler: this policy is another scheduler's ("), "{error}");
    }
    let own = refuse(&format!("policy = {{ extends = \"microslice\", scheduler = \"credit\" }}\n{SMALL}"));
    assert!(own.starts_with("bad.toml:1:48: this policy is another scheduler's ((built in)"), "{own}");
    let key = refuse(&format!("policy = {{ extends = \"microslice\", slise = \"1 ms\" }}\n{SMALL}"));
    assert!(key.starts_with("bad.toml:1:36: unknown key `slise`"), "{key}");
    let missing = refuse(&format!("policy = {{ scheduler = \"stride\" }}\n{SMALL}"));
    assert!(missing.starts_with("bad.toml:1:10: a policy needs `slice`"), "{missing}");
}

#[test]
fn names_of_ten_thousand_characters_are_cut() {
    let long = "x".repeat(10_000);
    let scenario = |reference: &str| load(reference, &Overrides::default()).unwrap_err().to_string();
    let policy = |policy: &str| rules_of(policy, &[]).unwrap_err().to_string();
    let errors = [
        scenario(&long),
        scenario(&format!("{long}.toml")),
        policy(&long),
        policy(&format!("{long}.toml")),
        policy(&format!("credit+{long}=1")),
        policy(&format!("credit+scheduler={long}")),
    ];
    for error in errors {
        assert!(error.len() < 2_500 && error.contains('…'), "{} characters: {error}", error.len());
    }
}

#[test]
fn a_static_size_refuses_nonsense_about_the_dynamic_one_too() {
    let refused = |policy| micro_sliced(policy, &[]).unwrap_err().to_string();
    assert_eq!(
        refused("micro:2+second_looks=-1"),
        "--policy: +second_looks: `second_looks` is a whole number from 0 to 1000000, not -1"
    );
    assert!(refused("microslice:2+pool_limit=many").starts_with("--policy: +pool_limit: "));
    assert!(refused("microslice:2+epoch_interval=10").contains("a bare number has no unit"));
    assert!(refused("micro-xen:1+grow_when_busy=often").starts_with("--policy: +grow_when_busy: "));
}

#[test]
fn the_real_schedulers_normal_pool_has_a_slice_and_a_tick_and_nothing_of_xens() {
    let normal = |settings: &[(&str, &str)]| {
        let settings = settings.iter().map(|&(path, value)| (path.to_owned(), value.to_owned())).collect();
        let overrides = Overrides { policy: Some("microslice".to_owned()), settings, seed: None };
        match parse("small.toml", SMALL, &overrides).map(|scenario| scenario.config.scheduler) {
            Ok(SchedulerKind::MicroSliced(MicroSlicedConfig { normal, .. })) => Ok(normal),
            Ok(other) => panic!("{other:?}"),
            Err(error) => Err(error.to_string()),
        }
    };
    let pool = |slice_ns| {
        Ok(NormalPoolKind::FairShare(FairSharePool {
            slice_ns,
            tick_ns: 4_000_000,
            domain: FairSharePool::DOMAIN,
        }))
    };
    assert_eq!(normal(&[]), pool(FairShareConfig::DEFAULT.slice_ns));
    assert_eq!(normal(&[("policy.slice", "5 ms")]), pool(5_000_000));
    for (path, value, cause) in [
        (
            "policy.ratelimit",
            "1 ms",
            "`ratelimit` is of the normal pool `credit`; `fair-share` has `slice` and `tick`",
        ),
        ("policy.normal_pool", "eevdf", "unknown normal pool `eevdf`; allowed: credit, fair-share"),
        ("policy.mechanics", "xen-prototype", "the normal pool is `credit` with mechanics `xen-prototype`"),
    ] {
        let error = normal(&[(path, value)]).expect_err(path);
        assert!(error.contains(cause), "{error}");
    }
}

/// (second_looks, grow_when_busy_percent) of a policy with these settings.
fn pool_rules(policy: &str, settings: &[(&str, &str)]) -> Result<(u32, u32), String> {
    let settings = settings.iter().map(|&(path, value)| (path.to_owned(), value.to_owned())).collect();
    let overrides = Overrides { policy: Some(policy.to_owned()), settings, seed: None };
    match parse("small.toml", SMALL, &overrides).map(|scenario| scenario.config.scheduler) {
        Ok(SchedulerKind::MicroSliced(MicroSlicedConfig {
            pool: PoolSize::Auto { second_looks, grow_when_busy_percent, .. },
            ..
        })) => Ok((second_looks, grow_when_busy_percent)),
        Ok(other) => panic!("{other:?}"),
        Err(error) => Err(error.to_string()),
    }
}

#[test]
fn a_pool_whose_idle_pcpus_are_lent_grows_sooner_and_the_prototypes_always() {
    let percent =
        |policy: &str, settings: &[(&str, &str)]| pool_rules(policy, settings).map(|(_, percent)| percent);
    assert_eq!(percent("microslice", &[]), Ok(PoolSizeConfig::DEFAULT.grow_when_busy_percent));
    assert_eq!(percent("micro", &[]), Ok(75));
    assert_eq!(percent("micro-xen", &[]), Ok(0));
    assert_eq!(percent("micro", &[("policy.grow_when_busy", "50 %")]), Ok(50));
    for (value, cause) in [
        ("101 %", "more than 100 %"),
        ("12.5 %", "finer than the resolution, 1 %"),
        ("75", "a bare number has no unit; allowed: %"),
    ] {
        let error = percent("micro", &[("policy.grow_when_busy", value)]).expect_err(value);
        assert!(error.starts_with("--set policy.grow_when_busy: ") && error.contains(cause), "{error}");
    }
}

#[test]
fn micro_looks_again_as_often_as_the_real_scheduler_and_the_prototype_for_ever() {
    let second_looks =
        |policy: &str, settings: &[(&str, &str)]| pool_rules(policy, settings).map(|(looks, _)| looks);
    assert_eq!(second_looks("micro", &[]), Ok(PoolSizeConfig::DEFAULT.second_looks));
    assert!(second_looks("micro-xen", &[]).unwrap() >= 1_000_000, "at 30 ms each, eight hours");
    assert_eq!(second_looks("micro", &[("policy.second_looks", "0")]), Ok(0));
    assert_eq!(
        second_looks("micro", &[("policy.second_looks", "-1")]).unwrap_err(),
        "--set policy.second_looks: `second_looks` is a whole number from 0 to 1000000, not -1"
    );
}

#[test]
fn a_setting_does_not_name_another_policy_than_the_command_line() {
    for path in ["policy", "\"policy\""] {
        let settings = vec![(path.to_owned(), "micro".to_owned())];
        let set = Overrides { settings, ..Overrides::default() };
        let both = Overrides { policy: Some("credit".to_owned()), ..set.clone() };
        let error = parse("small.toml", SMALL, &both).expect_err("two policies").to_string();
        assert_eq!(error, "--set policy: the policy is that of `--policy`: name it there, or set policy.KEY");
        let scheduler = parse("small.toml", SMALL, &set).expect("one policy").config.scheduler;
        assert!(matches!(scheduler, SchedulerKind::MicroSliced(_)));
    }
}

#[test]
fn an_unknown_policy_lists_the_known_ones() {
    let overrides = Overrides { policy: Some("fifo".to_owned()), ..Overrides::default() };
    let error = parse("small.toml", SMALL, &overrides).expect_err("unknown").to_string();
    assert!(
        error.starts_with("--policy: no policy `fifo`; built in: balance, beside, cfs, coordinated, credit"),
        "{error}"
    );
    assert!(error.contains("micro:N"), "{error}");
}

#[test]
fn at_most_a_quarter_of_the_pcpus_is_micro_sliced_unless_the_policy_says_otherwise() {
    let limit_on = |pcpus: u32, policy: &str| {
        let host = format!("{{ extends = \"xeon-e5645\", pcpus = {pcpus}, smt_threads = 1 }}");
        let text = format!("policy = {policy}\n{}", SMALL.replace("\"xeon-e5645\"", &host));
        match parse("small.toml", &text, &Overrides::default()).expect("valid").config.scheduler {
            SchedulerKind::MicroSliced(micro) => match micro.pool {
                PoolSize::Auto { limit, .. } => limit,
                PoolSize::Static { .. } => panic!("Algorithm 1 is the default"),
            },
            other => panic!("{other:?}"),
        }
    };
    let limits: Vec<usize> = [1, 2, 4, 5, 12, 1024].map(|pcpus| limit_on(pcpus, "\"micro\"")).to_vec();
    assert_eq!(limits, [0, 1, 1, 2, 3, 63]);
    assert_eq!(limit_on(4, "{ extends = \"micro\", pool_limit = 3 }"), 3);
    let error = refuse(&format!("policy = {{ extends = \"micro\", pool_limit = 12 }}\n{SMALL}"));
    assert_eq!(error, "bad.toml:1:44: `pool_limit` is a whole number from 0 to 11, not 12");
}

#[test]
fn a_micro_pool_that_the_host_has_no_room_for_is_refused_with_the_reason() {
    let host = "{ extends = \"xeon-e5645\", pcpus = 2, llc_pcpus = 0 }";
    let text = SMALL.replace("\"xeon-e5645\"", host);
    let overrides = Overrides { policy: Some("micro:2".to_owned()), ..Overrides::default() };
    let error = parse("small.toml", &text, &overrides).expect_err("no room").to_string();
    assert_eq!(
        error,
        "--policy: `pool` is a whole number from 0 to 1, not 2: of this host's 2 pCPUs one stays normal"
    );
}

#[test]
fn unknown_mechanics_list_the_known_ones() {
    let text = format!("policy = {{ extends = \"micro\", mechanics = \"kvm\" }}\n{SMALL}");
    let error = parse("small.toml", &text, &Overrides::default()).expect_err("unknown").to_string();
    assert!(error.ends_with("unknown mechanics `kvm`; allowed: paper, xen-prototype"), "{error}");
}

/// What `vm.resched_co = …` and its like, and `policy.resched_co`, are read as.
fn knobs_of(settings: &[(&str, &str)]) -> Result<(VmKnobs, ReschedCo), ScenarioError> {
    let settings = settings.iter().map(|&(path, value)| (path.to_owned(), value.to_owned())).collect();
    let overrides = Overrides { policy: Some("coordinated".to_owned()), settings, seed: None };
    let config = parse("small.toml", SMALL, &overrides)?.config;
    let SchedulerKind::Cfs(cfs) = config.scheduler else { panic!("coordinated") };
    Ok((config.vms[0].knobs, cfs.coordination.resched_co))
}

#[test]
fn a_vm_has_the_policys_schemes_unless_it_says_otherwise() {
    assert_eq!(knobs_of(&[]).unwrap(), (VmKnobs::default(), ReschedCo::Off));
    let said = [("vm.one.resched_dp", "false"), ("vm.one.resched_co", "auto"), ("policy.resched_co", "true")];
    let knobs = VmKnobs { resched_dp: Some(false), tlb_co: None, resched_co: Some(ReschedCo::Auto) };
    assert_eq!(knobs_of(&said).unwrap(), (knobs, ReschedCo::On));
    let error = knobs_of(&[("vm.one.resched_co", "sometimes")]).unwrap_err().to_string();
    assert_eq!(error, "--set vm.one.resched_co: `resched_co`: allowed: true, false, \"auto\"");
}

#[test]
fn a_domain_that_no_host_has_and_one_of_a_pool_without_domains_are_refused() {
    let refusal = |policy: &str| {
        let overrides = Overrides { policy: Some(policy.to_owned()), ..Overrides::default() };
        parse("small.toml", SMALL, &overrides).expect_err("refused").to_string()
    };
    assert_eq!(
        refusal("microslice:0+domain=numa"),
        "--policy: +domain: `domain`: unknown `numa`; allowed: pcpu, llc, host"
    );
    assert_eq!(
        refusal("micro:0+domain=llc"),
        "--policy: +domain: `domain` is of the normal pool `fair-share`; `credit` has queues of pCPUs"
    );
}

#[test]
fn locks_of_queues_cost_nothing_unless_the_host_says_what() {
    let locks = |keys: &str| {
        let host = format!("{{ extends = \"xeon-e5645\"{keys} }}");
        let scenario = parse("small.toml", &SMALL.replace("\"xeon-e5645\"", &host), &Overrides::default());
        scenario.map(|scenario| scenario.config.host.queue_locks).map_err(|error| error.to_string())
    };
    assert_eq!(locks(""), Ok(None));
    let costs = QueueLockCosts { hold_ns: 40, line_near_ns: 100, line_far_ns: 200 };
    let all = ", queue_locks = { hold = \"40 ns\", line_near = \"240 cycles\", line_far = \"200 ns\" }";
    assert_eq!(locks(all), Ok(Some(costs)));
    let error = locks(", queue_locks = { hold = \"40 ns\" }").expect_err("incomplete");
    assert!(error.contains("queue_locks needs `line_near`"), "{error}");
}

#[test]
fn pause_loop_windows_grow_if_the_host_says_so() {
    let windows = |keys: &str| {
        let host = format!("{{ extends = \"xeon-e5645\", ple = {{ {keys} }} }}");
        let scenario = parse("small.toml", &SMALL.replace("\"xeon-e5645\"", &host), &Overrides::default());
        scenario.map(|scenario| scenario.config.host.ple).map_err(|error| error.to_string())
    };
    assert_eq!(windows(""), Ok(PleConfig::CONSTANT));
    let ours = PleConfig { window_grow: 2, window_max_ns: 200 * US, ..PleConfig::CONSTANT };
    assert_eq!(windows("window_grow = 2, window_max = \"200 us\""), Ok(ours));
    let refusal = |keys| windows(keys).expect_err(keys);
    assert!(
        refusal("window = \"0 cycles\"").contains("`window`: `0 cycles` isn't allowed, only 100 ns to 1 s")
    );
    assert!(refusal("window_grow = 0").contains("`window_grow` is a whole number from 1 to 64, not 0"));
    let short = refusal("window_max = \"1 us\"");
    assert!(short.starts_with("small.toml:2:"), "{short}");
    assert!(short.ends_with("`window_max` is shorter than `window`"), "{short}");
}

#[test]
fn a_processor_has_the_interrupt_modes_that_it_has() {
    let kvm = |keys: &str| {
        let host = format!("{{ extends = \"xeon-e5645\", kvm = {{ yield_to = \"1 us\", {keys} }} }}");
        let scenario = parse("small.toml", &SMALL.replace("\"xeon-e5645\"", &host), &Overrides::default());
        scenario
            .map(|scenario| scenario.config.host.kvm.expect("it is there"))
            .map_err(|error| error.to_string())
    };
    let plain = kvm("").expect("the least");
    assert_eq!((plain.interrupts, plain.halt_poll_ns), (InterruptMode::Software, 200 * US));
    let ours = kvm("module = \"kvm_amd\", interrupts = \"avic\", icr_write = \"240 cycles\"").expect("AVIC");
    assert_eq!((ours.interrupts, ours.icr_write_ns), (InterruptMode::Avic, 100));
    for (keys, cause) in [
        (
            "module = \"kvm_intel\", interrupts = \"avic\"",
            "`interrupts`: unknown `avic`; allowed: software, apicv, ipiv",
        ),
        (
            "module = \"kvm_amd\", interrupts = \"ipiv\"",
            "`interrupts`: unknown `ipiv`; allowed: software, avic",
        ),
        ("interrupts = \"apicv\"", "`interrupts`: unknown `apicv`; allowed: software"),
        (
            "module = \"kvm_intel\", interrupts = \"ipiv\"",
            "kvm needs `icr_write` (what an IPI costs that doesn't exit, such as \"300 cycles\")",
        ),
        (
            "avic = true",
            "unknown key `avic` in kvm; allowed: module, interrupts, device_interrupts, yield_to, exit_jitter, halt_poll_ns, icr_write",
        ),
    ] {
        let error = kvm(keys).expect_err(keys);
        assert!(error.starts_with("small.toml:2:") && error.ends_with(cause), "{error}");
    }
}

#[test]
fn boosts_have_their_policy_and_their_hosts_costs_and_nonsense_is_refused_where_it_stands() {
    let beside = |policy: &str, settings: &[(&str, &str)]| {
        let settings = settings.iter().map(|&(path, value)| (path.to_owned(), value.to_owned())).collect();
        let overrides = Overrides { policy: Some(policy.to_owned()), settings, seed: None };
        let config = parse("small.toml", SMALL, &overrides)?.config;
        match config.scheduler {
            SchedulerKind::Beside(beside) => Ok::<_, ScenarioError>((beside, config.host.boosts)),
            other => panic!("{other:?}"),
        }
    };
    let (ours, costs) = beside("beside", &[]).unwrap();
    assert_eq!((ours.boost_percent, ours.host_percent, costs), (1, 5, BoostCosts::MEASURED));
    assert_eq!(beside("beside+boost_percent=20 %", &[]).unwrap().0.host_percent, 50);
    assert_eq!(beside("beside:paper+grace=3", &[]).unwrap().0.grace, 3);
    let boosts = r#"{ latency = "exponential 50 us", give_back = "3 us", helper = "0 us" }"#;
    let set = beside("beside", &[("host.boosts", boosts)]).unwrap().1;
    let exponential = Duration::Exponential { mean_ns: 50_000 };
    assert_eq!(set, BoostCosts { latency: exponential, give_back_ns: 3_000, helper_ns: 0 });
    let refused = |policy, settings: &[_]| beside(policy, settings).unwrap_err().to_string();
    assert_eq!(
        refused("beside+boost_percent=0 %", &[]),
        "--policy: +boost_percent: `boost_percent`: allowed: 1 % to 50 %"
    );
    assert!(refused("beside+rules=yours", &[]).contains("project, paper"));
    assert!(refused("beside", &[("host.boosts", "{ give_back = \"3 us\" }")]).contains("needs `latency`"));
    assert!(refused("beside", &[("host.boosts.speed", "1")]).contains("unknown key"));
    assert!(refused("beside:N", &[]).contains("no policy `beside:N`"));
}

#[test]
fn what_boosts_take_is_read_from_a_file_that_the_host_names_and_errors_name_that_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let scenario =
        SMALL.replace("\"xeon-e5645\"", "{ extends = \"xeon-e5645\", boosts = \"measured.toml\" }");
    std::fs::write(path("small.toml"), scenario).unwrap();
    let read = |text: &str| {
        std::fs::write(path("measured.toml"), text).unwrap();
        let scenario = load(path("small.toml").to_str().unwrap(), &Overrides::default());
        scenario
            .map(|scenario| (scenario.config.host.boosts, scenario.files))
            .map_err(|error| error.to_string())
    };
    let good = "source = \"here\"\nlatency = \"3 us\"\ngive_back = \"2 us\"\nhelper = \"1 us\"\n";
    let (boosts, files) = read(good).unwrap();
    let latency = Duration::Constant { ns: 3_000 };
    assert_eq!(boosts, BoostCosts { latency, give_back_ns: 2_000, helper_ns: 1_000 });
    assert!(files.contains(&path("measured.toml")), "{files:?}");
    let refused = |text: &str| read(text).unwrap_err();
    let place = path("measured.toml").display().to_string();
    let error = refused("latency = \"3 us\"\ngive_back = \"2\"\nhelper = \"1 us\"\n");
    assert!(error.starts_with(&format!("{place}:2:13: `give_back`: ")), "{error}");
    assert!(refused("speed = 1\n").starts_with(&format!("{place}:1:1: unknown key `speed`")));
    let error = refused("latency = \"3 us\"\nhelper = \"1 us\"\n");
    assert!(error.starts_with(&place) && error.contains("boosts needs `give_back`"), "{error}");
    assert!(refused("latency = = 1\n").starts_with(&format!("{place}:1:11: not valid TOML")));
    std::fs::remove_file(path("measured.toml")).unwrap();
    let error = load(path("small.toml").to_str().unwrap(), &Overrides::default()).unwrap_err().to_string();
    assert!(error.contains("small.toml:") && error.contains("measured.toml: No such file"), "{error}");
    let named = SMALL.replace("\"xeon-e5645\"", "{ extends = \"xeon-e5645\", boosts = \"mine\" }");
    let error = parse("small.toml", &named, &Overrides::default()).unwrap_err().to_string();
    assert!(error.contains("no table of boosts `mine`"), "{error}");
}

#[test]
fn heirs_need_counters_and_counters_need_guests_that_count() {
    let read = |policy: &str| {
        let overrides = Overrides { policy: Some(policy.to_owned()), ..Overrides::default() };
        parse("small.toml", SMALL, &overrides).map(|_| ()).map_err(|error| error.to_string())
    };
    for policy in ["micro", "microslice", "beside"] {
        assert_eq!(read(&format!("{policy}+critical_by=counter+heirs=true")), Ok(()));
        assert_eq!(read(&format!("{policy}+critical_by=both")), Ok(()));
        let error = read(&format!("{policy}+heirs=true")).expect_err("no counters");
        assert!(error.contains("`heirs` needs `critical_by = \"counter\"` or `\"both\"`"), "{error}");
        let error = read(&format!("{policy}+critical_by=guess")).expect_err("unknown");
        assert!(error.contains("critical_by") && error.contains("symbols"), "{error}");
    }
    for policy in ["micro-xen", "beside:paper"] {
        let error = read(&format!("{policy}+critical_by=counter")).expect_err("none there");
        assert!(error.contains("`critical_by` is \"symbols\""), "{error}");
    }
}
