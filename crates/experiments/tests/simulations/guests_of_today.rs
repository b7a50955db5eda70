//! What Linux 6.12 does in a guest, and the kernels of the papers don't. Every run has the checkers on.

use crate::common::run;
use microslice_engine::report::RunReport;
use microslice_engine::simulate;
use microslice_experiments::scenario::{Overrides, parse};
use microslice_model::config::SimulationConfig;
use microslice_model::events::{IpiKind, TraceEvent, TraceNames, TraceSink};
use microslice_model::ids::{IdVec, ThreadId};

/// A VM of so many vCPUs beside as many hogs' vCPUs as that, on so many pCPUs.
fn guest(kernel: &str, (vcpus, hogs, pcpus): (usize, usize, usize), workloads: &str) -> SimulationConfig {
    let mut text = format!(
        r#"
        warmup = "50 ms"
        duration = "400 ms"
        host = {{ extends = "xeon-e5645", pcpus = {pcpus}, llc_pcpus = {pcpus}, smt_threads = 1 }}

        [[vm]]
        name = "guest"
        vcpus = {vcpus}
        kernel = {{ extends = "linux-modern", {kernel} }}
        workloads = [{workloads}]
        "#
    );
    if hogs > 0 {
        text += &format!(
            "[[vm]]\nname = \"hogs\"\nvcpus = {hogs}\nkernel = \"linux-modern\"\n\
             workloads = [{{ name = \"hogs\", threads = \"per vcpu\", program = [{{ compute = \"1 ms\" }}, {{ progress = 1 }}] }}]\n"
        );
    }
    let overrides = Overrides { policy: Some("eevdf".to_owned()), seed: Some(1), ..Overrides::default() };
    let mut config = parse("guest.toml", &text, &overrides).unwrap_or_else(|error| panic!("{error}")).config;
    config.check = true;
    config
}

fn done(report: &RunReport) -> u64 {
    report.vms[0].workloads.iter().map(|workload| workload.units_done).sum()
}

/// IPIs of a run, shootdowns with the vCPUs that each calls, and how long each thread runs at a time.
#[derive(Default)]
struct Seen {
    reschedules: usize,
    calls: usize,
    shootdowns: usize,
    called: u32,
    names: IdVec<ThreadId, String>,
    switched: Option<(u64, ThreadId)>,
    turns_ns: Vec<(ThreadId, u64)>,
}

impl TraceSink for Seen {
    fn begin(&mut self, names: &TraceNames) {
        self.names = names.threads.clone();
    }

    fn event(&mut self, time_ns: u64, event: &TraceEvent) {
        match *event {
            TraceEvent::IpiSent { kind: IpiKind::Reschedule, .. } => self.reschedules += 1,
            TraceEvent::IpiSent { kind: IpiKind::CallFunction, .. } => self.calls += 1,
            TraceEvent::ShootdownBegan { targets, .. } => {
                self.shootdowns += 1;
                self.called += targets;
            }
            TraceEvent::ThreadSwitched { thread, .. } => {
                if let Some((since_ns, last)) = self.switched.replace((time_ns, thread)) {
                    self.turns_ns.push((last, time_ns - since_ns));
                }
            }
            _ => {}
        }
    }
}

fn seen(config: &SimulationConfig) -> Seen {
    let mut seen = Seen::default();
    simulate(config, &mut seen).unwrap_or_else(|error| panic!("{error}"));
    seen
}

const MAPS: &str = r#"{ name = "maps", threads = "per vcpu", address_space = "shared", program = [
    { compute = "exponential 200 us" }, { shootdown = "1 us" }, { progress = 1 } ] }"#;
const PING_PONG: &str = r#"{ name = "ping", threads = 2, program = [
    { compute = "20 us" }, { send = "ball", capacity = 1 }, { receive = "back" }, { progress = 1 } ] },
    { name = "pong", threads = 2, program = [
    { receive = "ball" }, { compute = "20 us" }, { send = "back", capacity = 1 } ] }"#;

#[test]
fn an_idle_vcpu_is_called_to_wake_its_thread_itself() {
    let [called, woken] =
        ["true", "false"].map(|queue| guest(&format!("ttwu_queue = {queue}"), (4, 0, 4), PING_PONG));
    let (calls, reschedules) = (seen(&called), seen(&woken));
    assert!(calls.calls > 1_000 && calls.reschedules * 10 < calls.calls, "{}", calls.reschedules);
    assert!(reschedules.reschedules > 1_000 && reschedules.calls == 0, "{}", reschedules.calls);
}

#[test]
fn one_hypercall_calls_many_sooner_than_exits_do() {
    let [one, many] =
        ["true", "false"].map(|by_one| done(&run(&guest(&format!("pv_ipi = {by_one}"), (12, 0, 12), MAPS))));
    assert!(one * 100 > many * 103, "{one} and {many} shootdowns");
}

#[test]
fn idle_vcpus_are_not_called_for_a_shootdown() {
    let few = MAPS.replace("{ progress", "{ sleep = \"exponential 400 us\" }, { progress");
    let [lazy, eager] = ["true", "false"].map(|lazy| {
        let seen = seen(&guest(&format!("lazy_tlb = {lazy}"), (8, 0, 8), &few));
        f64::from(seen.called) / seen.shootdowns as f64
    });
    assert!(lazy < 0.8 * eager, "{lazy} called for each, {eager} of all");
}

#[test]
fn preempted_vcpus_are_not_called_for_a_shootdown() {
    let called = |flush: bool| {
        let seen = seen(&guest(&format!("pv_tlb_flush = {flush}"), (4, 8, 4), MAPS));
        f64::from(seen.called) / seen.shootdowns as f64
    };
    assert!(called(true) < 0.7 * called(false), "{} called for each, {} of all", called(true), called(false));
}

#[test]
fn spinners_for_a_mutex_sleep_while_its_holder_is_preempted() {
    let program = r#"{ name = "sections", threads = "per vcpu",
        lock = [{ name = "big", kind = "mutex", symbol = "mutex_lock" }], program = [
        { compute = "exponential 400 us" }, { lock = "big", hold = "exponential 30 us" }, { progress = 1 } ] }"#;
    let spun = |steal_time: bool| run(&guest(&format!("steal_time = {steal_time}"), (4, 8, 4), program));
    let (told, untold) = (spun(true), spun(false));
    let exits = |report: &RunReport| report.vms[0].yields.ple;
    assert!(exits(&told) * 3 < exits(&untold), "{} and {} exits", exits(&told), exits(&untold));
    assert!(done(&told) * 10 > done(&untold) * 9, "{} and {} sections", done(&told), done(&untold));
}

#[test]
fn a_sleeper_woken_in_vain_gets_the_mutex_next() {
    let program = r#"{ name = "sections", threads = 12,
        lock = [{ name = "big", kind = "mutex", symbol = "mutex_lock" }], program = [
        { compute = "exponential 20 us" }, { lock = "big", hold = "exponential 20 us" }, { progress = 1 } ] }"#;
    let longest = |handoff: bool| {
        let report = run(&guest(&format!("mutex_handoff = {handoff}"), (4, 4, 4), program));
        let mut waits = report.vms[0].lock_waits.iter().filter(|(name, _)| name.contains("big"));
        waits.next().and_then(|(_, waits)| waits.max()).expect("it is fought for")
    };
    assert!(longest(true) < longest(false), "{} ns, {} ns", longest(true), longest(false));
}

#[test]
fn threads_of_a_vcpu_take_turns_of_a_slice() {
    let two = r#"{ name = "two", threads = 2, program = [{ compute = "200 us" }, { progress = 1 }] }"#;
    let seen = seen(&guest("tick = \"10 kHz\"", (1, 0, 1), two));
    let turns = &seen.turns_ns[4..];
    assert!(turns.len() > 300, "{} turns", turns.len());
    // 0.75 ms, of a guest of one vCPU, and the next tick.
    let in_time = turns.iter().filter(|(_, ns)| (700_000..900_000).contains(ns)).count();
    assert!(in_time * 10 > turns.len() * 9, "{in_time} of {}", turns.len());
    let of_first: u64 = turns.iter().filter(|(thread, _)| *thread == turns[0].0).map(|(_, ns)| ns).sum();
    let all: u64 = turns.iter().map(|(_, ns)| ns).sum();
    assert!((2 * of_first).abs_diff(all) * 100 < all, "{of_first} ns of {all}");
}

#[test]
fn a_thread_that_slept_is_due_before_one_that_computes() {
    let program = r#"{ name = "hog", threads = 1, program = [{ compute = "200 us" }] },
        { name = "sleeper", threads = 1, program = [{ sleep = "2 ms" }, { compute = "50 us" }, { progress = 1 }] }"#;
    let report = run(&guest("", (1, 0, 1), program));
    assert!(done(&report) > 400 / 4, "{} of 190 rounds", done(&report));
}

#[test]
fn without_paravirtual_help_locks_go_to_whoever_runs() {
    let config = guest("lock_kind = \"test-and-set\", steal_time = false, pv_ipi = false", (4, 8, 4), MAPS);
    let nopv = parse(
        "nopv.toml",
        "host = \"xeon-e5645\"\nduration = \"1 ms\"\n[[vm]]\nname = \"a\"\nvcpus = 1\nkernel = \"linux-6.12-nopv\"\n\
         workloads = [\"lookbusy\"]\n",
        &Overrides { policy: Some("eevdf".to_owned()), ..Overrides::default() },
    );
    let kernel = &nopv.unwrap_or_else(|error| panic!("{error}")).config.vms[0].kernel;
    assert_eq!(kernel.lock_kind, config.vms[0].kernel.lock_kind);
    assert!(
        !kernel.pv_tlb_flush
            && !kernel.pv_ipi_yield
            && !kernel.features.steal_time
            && !kernel.features.pv_ipi
    );
    assert!(kernel.features.ttwu_queue && kernel.features.lazy_tlb);
}
