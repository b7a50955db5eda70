//! Turns that end where it is safe (VM'04, section 3), under every scheduler. Every run has the checkers on.

use crate::common::policies;
use microslice_engine::report::RunReport;
use microslice_engine::simulate;
use microslice_experiments::scenario::{Overrides, parse};
use microslice_model::counters::DelayReport;
use microslice_model::events::{NoTrace, TraceEvent, TraceSink};

/// Two VMs of two vCPUs share two pCPUs: one runs this, the other one computes.
fn scenario(program: &str, kernel: &str) -> String {
    of_pcpus(2, program, kernel)
}

/// Likewise, of so many; with one nobody waits for a lock.
fn of_pcpus(pcpus: usize, program: &str, kernel: &str) -> String {
    format!(
        "warmup = \"100 ms\"\nduration = \"3 s\"\n\
         host = {{ extends = \"xeon-e5645\", pcpus = {pcpus}, llc_pcpus = {pcpus}, smt_threads = {pcpus} }}\n\
         [[vm]]\nname = \"target\"\nvcpus = {pcpus}\nkernel = {{ extends = \"linux-4.4\"{kernel} }}\n\
         workloads = [{{ name = \"program\", threads = \"per vcpu\", program = [{program}, {{ progress = 1 }}] }}]\n\
         [[vm]]\nname = \"other\"\nvcpus = {pcpus}\nkernel = \"linux-4.4\"\nworkloads = [{{ use = \"lookbusy\", threads = \"per vcpu\" }}]\n"
    )
}

fn run(scenario: &str, policy: &str) -> RunReport {
    run_traced(scenario, policy, &mut NoTrace)
}

/// How many urgent vCPUs had a turn.
struct UrgentServed(u32);

impl TraceSink for UrgentServed {
    fn event(&mut self, _time_ns: u64, event: &TraceEvent) {
        self.0 += u32::from(matches!(event, TraceEvent::UrgentServed { .. }));
    }
}

fn run_traced(scenario: &str, policy: &str, trace: &mut impl TraceSink) -> RunReport {
    // A waiter for a lock would give its turn up before it ends.
    let settings = vec![("host.ple.enabled".to_owned(), "false".to_owned())];
    let overrides = Overrides { policy: Some(policy.into()), settings, ..Overrides::default() };
    let mut config =
        parse("test", scenario, &overrides).unwrap_or_else(|error| panic!("{policy}: {error}")).config;
    config.check = true;
    simulate(&config, trace).unwrap_or_else(|error| panic!("{policy}: {error}"))
}

fn delays(report: &RunReport) -> DelayReport {
    report.delays.expect("the policy has windows")
}

const NEVER_SAFE: &str = "{ kernel = \"exponential 2 ms\", symbol = \"handle_mm_fault\" }";
const NOW_AND_THEN: &str =
    "{ compute = \"exponential 50 us\" }, { kernel = \"exponential 100 us\", symbol = \"handle_mm_fault\" }";
const ONLY_USER: &str = "{ compute = \"exponential 500 us\" }";
const LOCKS: &str = "{ kernel = \"exponential 5 us\", symbol = \"handle_mm_fault\" }, { lock = \"dentry\", hold = \"exponential 3 us\" }";
const STRIDE: &str = "credit+slice=5 ms+tick=5 ms+ratelimit=0 us+delay_preemption=1 ms";

#[test]
fn turns_are_as_long_as_due_on_average_whatever_the_guest_does() {
    for (program, puts_off) in [(NEVER_SAFE, true), (NOW_AND_THEN, true), (ONLY_USER, false)] {
        let report = run(&scenario(program, ""), STRIDE);
        let seen = delays(&report);
        assert!(seen.turns > 1000, "{seen:?}");
        let longer = (seen.beyond_ns as f64 - seen.short_ns as f64) / seen.turns as f64 / 5e6;
        assert!(longer.abs() < 0.01, "{program}: {longer} of a turn");
        assert_eq!(seen.put_off > 100, puts_off, "{seen:?}");
    }
}

#[test]
fn a_guest_that_is_never_safe_has_the_window_and_no_more_and_one_that_is_now_and_then_is_not_forced() {
    let never = delays(&run(&scenario(NEVER_SAFE, ""), STRIDE));
    assert!(never.ended_forced > 9 * never.ended_safe, "{never:?}");
    let now_and_then = delays(&run(&scenario(NOW_AND_THEN, ""), STRIDE));
    assert!(now_and_then.ended_safe > 20 * now_and_then.ended_forced, "{now_and_then:?}");
}

#[test]
fn a_guest_that_is_never_safe_gets_no_more_than_its_share() {
    for policy in [STRIDE, "microslice:0+delay_preemption=2 ms", "eevdf+delay_preemption=1 ms"] {
        let report = run(&scenario(NEVER_SAFE, ""), policy);
        let share = report.vms[0].run_ns as f64 / (report.vms[0].run_ns + report.vms[1].run_ns) as f64;
        assert!((share - 0.5).abs() < 0.02, "{policy}: {share}");
    }
}

#[test]
fn holders_of_locks_are_preempted_less_often_by_any_scheduler_that_waits_for_safety() {
    for policy in policies(1) {
        if policy.starts_with("micro") {
            // A micro pool needs a third pCPU, and has grace; `fuzz.rs` has these.
            continue;
        }
        let preempted = |policy: &str| {
            let report = run(&of_pcpus(1, LOCKS, ""), policy);
            let holders: u64 = report.vms[0].holder_preemptions.values().sum();
            (holders, report.vms[0].context_switches)
        };
        let window = if policy == "credit-0.1ms" { "50 us" } else { "500 us" };
        let (before, switches) = preempted(&policy);
        // Where a user-mode moment never comes nothing helps but to look at what is critical.
        let (after, switches_after) =
            preempted(&format!("{policy}+delay_preemption={window}+delay_unsafe=critical"));
        let rate = |count: u64, of: u64| count as f64 / of as f64;
        assert!(before > 10, "{policy}: {before} of {switches}");
        assert!(
            rate(after, switches_after) < 0.2 * rate(before, switches),
            "{policy}: {before} of {switches}, then {after} of {switches_after}"
        );
    }
}

#[test]
fn hints_keep_holders_running_and_a_guest_that_overdraws_pays_for_it() {
    let hinted = format!("{STRIDE}+delay_unsafe=hinted");
    let honest = run(&of_pcpus(1, LOCKS, ", preemption_hint = \"50 us\""), &hinted);
    let seen = delays(&honest);
    assert!(seen.ended_safe > 50 && seen.ended_forced == 0, "{seen:?}");
    assert_eq!(honest.vms[0].holder_preemptions.values().sum::<u64>(), 0);
    let silent = delays(&run(&of_pcpus(1, LOCKS, ""), &hinted));
    assert_eq!(silent.put_off, 0, "a guest without hints is preempted where it is");
    let long = "{ lock = \"dentry\", hold = \"3 ms\" }, { compute = \"100 us\" }";
    let report = run(&of_pcpus(1, long, ", preemption_hint = \"50 us\""), &hinted);
    let overdrawn = delays(&report);
    assert!(overdrawn.penalised > 50, "{overdrawn:?}");
    let share = report.vms[0].run_ns as f64 / (report.vms[0].run_ns + report.vms[1].run_ns) as f64;
    assert!(share <= 0.51, "{share}");
}

/// A lock of the program's own, in user mode; with a hint or none.
fn user_locks(hint: &str) -> String {
    format!(
        "{{ compute = \"exponential 20 us\" }}, \
         {{ user_lock = \"table\", hold = \"exponential 20 us\"{hint} }}"
    )
}

#[test]
fn a_programs_hint_keeps_the_holder_of_its_lock_running() {
    let hinted = format!("{STRIDE}+delay_unsafe=hinted");
    let says = user_locks(", hint = \"200 us\"");
    let held = |report: &RunReport| report.vms[0].holder_preemptions.get("program.table").copied();
    for pcpus in [1, 4] {
        let with_device = run(&of_pcpus(pcpus, &says, ", user_hint = \"100 us\""), &hinted);
        let without = run(&of_pcpus(pcpus, &says, ""), &hinted);
        let seen = delays(&with_device);
        assert!(seen.ended_safe > 20 * (seen.ended_forced + 1), "{seen:?}");
        assert_eq!(delays(&without).put_off, 0, "a kernel without the device says nothing");
        // The system call that says so comes when the lock is taken.
        let (kept, lost) = (held(&with_device).unwrap_or(0), held(&without).expect("some"));
        assert!(20 * kept < lost, "{kept}, {lost}");
    }
    // Its siblings spin for whole turns behind a holder that has lost its pCPU.
    let work = |kernel: &str| run(&of_pcpus(4, &says, kernel), &hinted).vms[0].workloads[0].units_done as f64;
    let gain = work(", user_hint = \"100 us\"") / work("");
    assert!(gain > 1.05, "{gain}");
}

#[test]
fn a_program_that_hints_for_ever_pays_for_it() {
    let forever = "{ user_lock = \"table\", hold = \"30 ms\", hint = \"100 us\" }, { compute = \"100 us\" }";
    let report =
        run(&of_pcpus(1, forever, ", user_hint = \"100 us\""), &format!("{STRIDE}+delay_unsafe=hinted"));
    assert!(delays(&report).penalised > 50, "{:?}", delays(&report));
    let share = report.vms[0].run_ns as f64 / (report.vms[0].run_ns + report.vms[1].run_ns) as f64;
    assert!(share <= 0.51, "{share}");
}

#[test]
fn a_guests_own_switch_takes_back_what_a_program_says() {
    // Two threads for one vCPU: the guest's scheduler switches between them in the middle of a hold.
    let program = "{ user_lock = \"table\", hold = \"50 ms\", hint = \"100 us\" }, { compute = \"100 us\" }";
    let twice = |program: &str| {
        of_pcpus(1, program, ", user_hint = \"100 us\", thread_slice = \"5 ms\"").replacen(
            "threads = \"per vcpu\"",
            "threads = 2",
            1,
        )
    };
    let hinted = format!("{STRIDE}+delay_unsafe=hinted");
    let seen = delays(&run(&twice(program), &hinted));
    let alone = delays(&run(&of_pcpus(1, program, ", user_hint = \"100 us\""), &hinted));
    // So it overdraws far less often.
    assert!(alone.penalised > 10 * seen.penalised, "{alone:?}, {seen:?}");
}

#[test]
fn urgent_vcpus_wait_for_no_window_and_others_do() {
    // A vCPU that maps memory asks its sibling, which waits behind a guest that is never safe. The checkers
    // look at put-off vCPUs.
    let asks = "{ compute = \"exponential 100 us\" }, { shootdown = \"1 us\" }";
    let computes = "workloads = [{ use = \"lookbusy\", threads = \"per vcpu\" }]";
    let in_kernel =
        format!("workloads = [{{ name = \"kernel\", threads = \"per vcpu\", program = [{NEVER_SAFE}] }}]");
    let scenario = scenario(asks, "").replace(computes, &in_kernel);
    let mut served = UrgentServed(0);
    let report = run_traced(&scenario, "coordinated+delay_preemption=3 ms", &mut served);
    assert!(delays(&report).put_off > 100, "{:?}", delays(&report));
    assert!(served.0 > 100, "{} urgent vCPUs had a turn", served.0);
}

#[test]
fn safe_points_that_are_put_in_end_turns_of_a_guest_that_never_leaves_the_kernel() {
    let plain = delays(&run(&of_pcpus(1, LOCKS, ""), STRIDE));
    let with = delays(&run(&of_pcpus(1, LOCKS, ""), &format!("{STRIDE}+delay_safe_points=12 us")));
    assert!(plain.ended_forced > 9 * plain.ended_safe, "{plain:?}");
    // Each second turn: the one behind a forced end.
    assert!(with.ended_safe > plain.ended_safe && 3 * with.ended_safe > with.ended_forced, "{with:?}");
}

#[test]
fn looks_from_time_to_time_cost_exits_and_find_what_the_guest_would_tell() {
    let told = run(&scenario(NOW_AND_THEN, ""), STRIDE);
    let looking = run(&scenario(NOW_AND_THEN, ""), &format!("{STRIDE}+delay_look=50 us"));
    assert!(delays(&looking).ended_safe > 10 * delays(&looking).ended_forced);
    assert!(looking.pcpus.overhead_ns > told.pcpus.overhead_ns);
}

#[test]
fn nonsense_is_refused_in_a_line() {
    let refused = |policy: &str| {
        let overrides = Overrides { policy: Some(policy.into()), ..Overrides::default() };
        parse("test", &scenario(ONLY_USER, ""), &overrides).expect_err(policy).to_string()
    };
    for (policy, cause) in [
        ("credit+delay_preemption=31 ms", "a window longer than a turn, which is 30000 us"),
        ("lottery+delay_preemption=12 ms", "a window longer than a turn, which is 10000 us"),
        ("eevdf+base_slice=5 us+delay_preemption=2 us", "turns of 5000 ns have no room for windows"),
        ("credit+delay_preemption=500 ns", "a window shorter than 1 us"),
        (
            "credit+delay_preemption=1 ms+delay_history=0",
            "`delay_history` is a whole number from 1 to 16, not 0",
        ),
        ("credit+delay_history=4", "`delay_history` needs `delay_preemption`"),
        ("credit+delay_preemption=1 ms+delay_unsafe=user", "unknown `user`; allowed: "),
        ("credit+delay_preemption=1 ms+delay_look=2 ms", "longer than the window"),
    ] {
        let error = refused(policy);
        assert!(error.contains(cause), "{policy}: {error}");
    }
}
