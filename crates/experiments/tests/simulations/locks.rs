//! How each kind of lock treats its waiters. Every run here has the checkers on.

mod hybrid;

use crate::common::{compute, one_vm, run};
use microslice_engine::report::RunReport;
use microslice_engine::simulate;
use microslice_model::config::*;
use microslice_model::events::{IpiKind, StopReason, TraceEvent, TraceNames, TraceSink, VcpuId};
use microslice_model::ids::{IdVec, LockId, SymbolId};
use std::collections::{BTreeMap, VecDeque};

/// A VM whose threads fight for one lock, on half as many pCPUs as it has vCPUs.
fn contended(kind: LockKind, threads: usize) -> SimulationConfig {
    let hold = Duration::Exponential { mean_ns: 20 * US };
    let mut config = one_vm(vec![compute(50 * US), Phase::Lock { lock: "pagevec".into(), hold }], threads);
    config.vms[0].workloads[0].program.push(Phase::Progress { units: 1 });
    let locks = &mut config.vms[0].kernel.locks;
    let lock = locks.iter_mut().find(|lock| lock.name == "pagevec").expect("dedup has it");
    (lock.kind, lock.irqs_off, lock.instances) = (Some(kind), false, 1);
    config.host.pcpus = config.vms[0].vcpus / 2;
    config
}

/// What happens to one lock of a VM, in order: true when it is acquired, false when it is released.
#[derive(Default)]
struct HoldsOf {
    name: &'static str,
    lock: LockId,
    steps: Vec<bool>,
}

impl TraceSink for HoldsOf {
    fn begin(&mut self, names: &TraceNames) {
        let named = names.locks.ids().find(|&lock| names.locks[lock] == self.name);
        self.lock = named.expect("it is there");
    }

    fn event(&mut self, _: u64, event: &TraceEvent) {
        match *event {
            TraceEvent::LockAcquired { lock, .. } if lock == self.lock => self.steps.push(true),
            TraceEvent::LockReleased { lock, .. } if lock == self.lock => self.steps.push(false),
            _ => {}
        }
    }
}

#[test]
fn of_every_kind_of_lock_the_trace_tells_when_it_is_held() {
    for kind in LockKind::ALL {
        let mut holds = HoldsOf { name: "target/pagevec", ..HoldsOf::default() };
        simulate(&contended(kind, 12), &mut holds).unwrap();
        assert!(holds.steps.len() > 100, "{kind:?}: {} steps", holds.steps.len());
        assert!(holds.steps.chunks(2).all(|turn| turn[0] && turn != [true, true]), "{kind:?}");
    }
}

/// Waits for one lock of a VM, as the trace tells them.
#[derive(Default)]
struct Waits {
    lock: LockId,
    waits_ns: Vec<u64>,
}

impl TraceSink for Waits {
    fn begin(&mut self, names: &TraceNames) {
        self.lock = pagevec(names);
    }

    fn event(&mut self, _: u64, event: &TraceEvent) {
        match *event {
            TraceEvent::LockAcquired { lock, waited_ns, .. } if lock == self.lock && waited_ns > 0 => {
                self.waits_ns.push(waited_ns);
            }
            _ => {}
        }
    }
}

#[test]
fn figures_and_trace_agree_on_when_a_wait_for_a_lock_ends() {
    for kind in LockKind::ALL {
        let mut config = contended(kind, 12);
        config.warmup_ns = 0;
        let mut waits = Waits::default();
        let report = simulate(&config, &mut waits).unwrap();
        let figure = &report.vms[0].lock_waits["pagevec"];
        let sum_ns: u64 = waits.waits_ns.iter().sum();
        assert_eq!(
            (figure.count(), figure.sum()),
            (waits.waits_ns.len() as u64, u128::from(sum_ns)),
            "{kind:?}"
        );
    }
}

#[test]
fn waiters_of_a_mutex_spin_and_those_of_a_sleeping_lock_sleep() {
    let (mutex, sleeping) = (run(&contended(LockKind::Mutex, 12)), run(&contended(LockKind::Sleeping, 12)));
    let (mutex, sleeping) = (&mutex.vms[0].yields, &sleeping.vms[0].yields);
    assert!(mutex.ple > 1000, "{mutex:?}");
    assert_eq!(sleeping.ple, 0);
    assert!(sleeping.halt > 100 && mutex.halt < sleeping.halt / 10, "{mutex:?} {sleeping:?}");
}

/// In which functions vCPUs were stopped.
#[derive(Default)]
struct Stops {
    names: IdVec<SymbolId, String>,
    functions: Vec<String>,
}

impl TraceSink for Stops {
    fn begin(&mut self, names: &TraceNames) {
        self.names = names.symbols.clone();
    }

    fn event(&mut self, _: u64, event: &TraceEvent) {
        if let TraceEvent::Stopping { symbol, .. } = *event {
            self.functions.push(self.names[symbol].clone());
        }
    }
}

#[test]
fn the_first_spinner_looks_at_the_holder_and_the_others_queue() {
    let mut stops = Stops::default();
    let mut config = contended(LockKind::Mutex, 12);
    // A spinner that looks at the holder is rarely stopped: it has the lock next.
    config.duration_ns = S;
    simulate(&config, &mut stops).unwrap();
    let stopped_in = |name: &str| stops.functions.iter().filter(|function| *function == name).count();
    assert!(stopped_in("osq_lock") > stopped_in("mutex_spin_on_owner"));
    assert!(stopped_in("mutex_spin_on_owner") > 0);
}

#[test]
fn the_listed_share_of_holds_is_in_listed_functions() {
    let mut config = contended(LockKind::TestAndSet, 12);
    config.duration_ns = 10 * S;
    config.host.ple.enabled = false;
    let own = config.vms[0].kernel.locks.iter().find(|lock| lock.name == "pagevec").expect("as above");
    let own = own.symbol.clone();
    for (percent, at_least, at_most) in [(100, 100, 100), (25, 12, 38), (0, 0, 0)] {
        config.vms[0].kernel.listed_holds_percent = percent;
        let mut stops = Stops::default();
        simulate(&config, &mut stops).unwrap();
        let stopped_in = |name: &str| stops.functions.iter().filter(|function| *function == name).count();
        let (listed, all) = (stopped_in(&own), stopped_in(&own) + stopped_in("dput"));
        assert!(all > 50, "{percent} %: {all} stops");
        assert!((at_least..=at_most).contains(&(listed * 100 / all)), "{percent} %: {listed} of {all}");
    }
}

#[test]
fn a_spinner_for_a_mutex_makes_way_for_another_thread() {
    // With two threads on each vCPU, spinners are rescheduled, and then sleep.
    let mut config = contended(LockKind::Mutex, 24);
    config.duration_ns = 400 * MS;
    let report = run(&config);
    let yields = &report.vms[0].yields;
    assert!(report.vms[0].workloads[0].units_done > 1000 && yields.ple > 0, "{yields:?}");
    let all = report.vms[0].lock_acquisitions["pagevec"];
    let longest_ns = report.vms[0].lock_waits["pagevec"].max().unwrap_or(0);
    assert!(all > 1000 && longest_ns < 400 * MS, "{longest_ns}");
}

fn pagevec(names: &TraceNames) -> LockId {
    names.locks.ids().find(|&lock| names.locks[lock] == "target/pagevec").expect("it is there")
}

/// Waiters for one lock of a VM, in the order of coming, and whether one ever got it out of turn.
#[derive(Default)]
struct Line {
    lock: LockId,
    waiting: VecDeque<VcpuId>,
    served: usize,
    out_of_turn: usize,
}

impl TraceSink for Line {
    fn begin(&mut self, names: &TraceNames) {
        self.lock = pagevec(names);
    }

    fn event(&mut self, _: u64, event: &TraceEvent) {
        match *event {
            TraceEvent::LockWaitBegan { vcpu, lock } if lock == self.lock => self.waiting.push_back(vcpu),
            TraceEvent::LockAcquired { vcpu, lock, .. } if lock == self.lock => {
                let place = self.waiting.iter().position(|&waiter| waiter == vcpu);
                self.out_of_turn += usize::from(place.unwrap_or(self.waiting.len()) > 0);
                self.served += usize::from(place.is_some());
                place.and_then(|place| self.waiting.remove(place));
            }
            _ => {}
        }
    }
}

#[test]
fn tickets_and_queues_serve_the_first_waiter_and_a_bare_word_any_that_runs() {
    assert!(!LockKind::TestAndSet.rules().wait.serves_in_line());
    for kind in LockKind::ALL.into_iter().filter(|kind| !kind.sleeps()) {
        let mut line = Line::default();
        simulate(&contended(kind, 12), &mut line).unwrap();
        assert!(line.served > 100, "{kind:?}: {} waits", line.served);
        let in_line = kind.rules().wait.serves_in_line();
        assert_eq!(line.out_of_turn == 0, in_line, "{kind:?}: {}", line.out_of_turn);
    }
}

/// For how long waiters of one lock spin before they halt, what their vCPUs' interrupt handlers wait for not
/// counted.
#[derive(Default)]
struct SpinsBeforeHalts {
    lock: LockId,
    waits: BTreeMap<VcpuId, Spin>,
    waits_begun: usize,
    halts: usize,
    longest_ns: u64,
}

struct Spin {
    since_ns: u64,
    handlers_waited_ns: u64,
}

impl TraceSink for SpinsBeforeHalts {
    fn begin(&mut self, names: &TraceNames) {
        self.lock = pagevec(names);
    }

    fn event(&mut self, time_ns: u64, event: &TraceEvent) {
        match *event {
            TraceEvent::LockWaitBegan { vcpu, lock } if lock == self.lock => {
                self.waits_begun += 1;
                self.waits.insert(vcpu, Spin { since_ns: time_ns, handlers_waited_ns: 0 });
            }
            TraceEvent::LockAcquired { vcpu, lock, .. } if lock == self.lock => {
                self.waits.remove(&vcpu);
            }
            TraceEvent::LockAcquired { vcpu, waited_ns, .. } => {
                self.waits.entry(vcpu).and_modify(|spin| spin.handlers_waited_ns += waited_ns);
            }
            TraceEvent::Stopping { vcpu, reason: StopReason::LockHlt, .. } => {
                if let Some(spin) = self.waits.remove(&vcpu) {
                    self.halts += 1;
                    let spun_ns = time_ns - spin.since_ns - spin.handlers_waited_ns;
                    self.longest_ns = self.longest_ns.max(spun_ns);
                }
            }
            _ => {}
        }
    }
}

/// How a thread waits that is interrupted again and again, by handlers that themselves need a contended
/// runqueue's lock.
fn interrupted_waits(kind: LockKind) -> SpinsBeforeHalts {
    interrupted_waits_on(kind, true)
}

/// The same on a host with or without pause-loop exits.
fn interrupted_waits_on(kind: LockKind, ple: bool) -> SpinsBeforeHalts {
    let lock = |name: &str, ns| Phase::Lock { lock: name.into(), hold: Duration::Constant { ns } };
    let sleep = Phase::Sleep { duration: Duration::Exponential { mean_ns: 150 * US } };
    let mut config = contended(kind, 1);
    config.host.ple.enabled = ple;
    let vm = &mut config.vms[0];
    let workload = |name: &str, vcpu, threads, program| WorkloadConfig {
        name: name.into(),
        threads,
        pinned_vcpu: Some(vcpu),
        program,
        ..vm.workloads[0].clone()
    };
    // The second vCPU's timers wake threads, for which their handlers need its runqueue's lock.
    vm.workloads = vec![
        workload("holder", 0, 1, vec![compute(10 * US), lock("pagevec", 5 * MS)]),
        workload("waiter", 1, 1, vec![compute(100 * US), lock("pagevec", US)]),
        workload("sleepers", 1, 6, vec![sleep, compute(US)]),
        workload("scheduler", 2, 1, vec![compute(US), lock("runqueue", 30 * US)]),
        workload("other scheduler", 3, 1, vec![compute(US), lock("runqueue", 30 * US)]),
    ];
    (vm.vcpus, config.host.pcpus, config.host.smt_threads, config.duration_ns) = (4, 4, 1, S);
    let mut spins = SpinsBeforeHalts::default();
    simulate(&config, &mut spins).unwrap();
    spins
}

#[test]
fn an_interrupt_that_waits_for_another_lock_gives_a_spinning_thread_no_more_time() {
    let spins = interrupted_waits(LockKind::PvQueued);
    assert!(spins.halts > 20, "{} halts", spins.halts);
    // 300 us in the guest, 88 us in pause-loop exits, and the handlers' own work.
    assert!(spins.longest_ns < 450 * US, "{} ns", spins.longest_ns);
}

#[test]
fn without_pause_loop_exits_a_waiter_halts_after_the_time_that_its_kernel_spins() {
    let spins = interrupted_waits_on(LockKind::PvQueued, false);
    assert!(spins.halts > 20, "{} halts", spins.halts);
    // 300 us in the guest, and the handlers' own work.
    assert!((300 * US..360 * US).contains(&spins.longest_ns), "{} ns", spins.longest_ns);
}

#[test]
fn a_waiter_that_only_spins_never_halts_though_an_interrupt_waits_for_a_paravirtual_lock() {
    for kind in [LockKind::Mutex, LockKind::Ticket] {
        let spins = interrupted_waits(kind);
        assert!(spins.waits_begun > 20, "{kind:?}: {} waits", spins.waits_begun);
        assert_eq!(spins.halts, 0, "{kind:?}");
    }
}

/// Of one lock: which waiter a kick wakes while another comes first, and how often waiters halt. Also how
/// long each has spun when it halts for the first time.
#[derive(Default)]
struct Kicks {
    lock: LockId,
    waiting: VecDeque<VcpuId>,
    ahead: usize,
    kicks: usize,
    halts: usize,
}

impl TraceSink for Kicks {
    fn begin(&mut self, names: &TraceNames) {
        self.lock = pagevec(names);
    }

    fn event(&mut self, _: u64, event: &TraceEvent) {
        match *event {
            TraceEvent::LockWaitBegan { vcpu, lock } if lock == self.lock => self.waiting.push_back(vcpu),
            TraceEvent::LockAcquired { vcpu, lock, .. } if lock == self.lock => {
                self.waiting.retain(|&waiter| waiter != vcpu);
            }
            TraceEvent::IpiSent { to, kind: IpiKind::LockKick, .. } => {
                self.kicks += 1;
                self.ahead += usize::from(self.waiting.front() != Some(&to));
            }
            TraceEvent::Stopping { reason: StopReason::LockHlt, .. } => self.halts += 1,
            _ => {}
        }
    }
}

/// Twelve vCPUs with a pCPU each fight for one lock, whose holds are long beside what waiters spin for.
fn kicks_of(kind: LockKind, kick_ns: u64, halt_ns: u64) -> (Kicks, RunReport) {
    let mut config = contended(kind, 12);
    (config.host.pcpus, config.host.smt_threads) = (config.vms[0].vcpus, 1);
    config.vms[0].kernel.pv_spin_ns = 50 * US;
    config.host.ple.enabled = false;
    (config.host.costs.kick_ns, config.host.costs.halt_ns) = (kick_ns, halt_ns);
    config.duration_ns = 200 * MS;
    let mut kicks = Kicks::default();
    let report = simulate(&config, &mut kicks).unwrap();
    (kicks, report)
}

#[test]
fn the_next_few_of_an_oticket_are_woken_ahead_and_of_a_stock_lock_only_the_next() {
    for (kind, ahead) in [
        (LockKind::PvTicket, false),
        (LockKind::ITicket, false),
        (LockKind::OTicketSpin, false),
        (LockKind::OTicketWake, true),
    ] {
        let (seen, _) = kicks_of(kind, 0, 0);
        assert_eq!(seen.ahead > 0, ahead, "{kind:?}: {} of {} kicks", seen.ahead, seen.kicks);
    }
}

#[test]
fn near_waiters_of_an_oticket_hardly_halt_and_those_of_an_iticket_less_and_less() {
    let halts = |kind| kicks_of(kind, 0, 0).0.halts;
    let stock = halts(LockKind::PvTicket);
    assert!(stock > 1000, "{stock} halts");
    assert_eq!(halts(LockKind::OTicket), 0, "nobody is further than eleven tickets away");
    assert_eq!(halts(LockKind::OTicketSpin), 0);
    let doubling = halts(LockKind::ITicket);
    assert!((1..stock / 20).contains(&doubling), "{doubling} halts");
}

#[test]
fn kicks_and_halts_cost_what_the_host_says() {
    let done = |report: &RunReport| report.vms[0].workloads[0].units_done;
    let (_, free) = kicks_of(LockKind::PvTicket, 0, 0);
    let (seen, kicking) = kicks_of(LockKind::PvTicket, 10 * US, 0);
    // Beside the warm-up's, and those that the end cuts short.
    let overhead_ns = kicking.pcpus.overhead_ns - free.pcpus.overhead_ns;
    assert!(overhead_ns > seen.kicks as u64 * 5 * US, "{overhead_ns} ns for {} kicks", seen.kicks);
    let (_, halting) = kicks_of(LockKind::PvTicket, 0, 20 * US);
    assert!(10 * done(&halting) < 8 * done(&free), "each hand-over waits until a halted one is awake");
    // A waiter that never halts doesn't notice.
    let spinning = |cost_ns| done(&kicks_of(LockKind::OTicket, cost_ns, 0).1);
    assert_eq!(spinning(0), spinning(20 * US));
}

#[test]
fn waiters_of_a_yield_lock_give_their_turn_up_and_optimistic_ones_only_if_it_takes_long() {
    let yields = |kind: LockKind, hold_ns| {
        let mut config = contended(kind, 12);
        config.host.ple.enabled = false;
        config.vms[0].workloads[0].program[1] =
            Phase::Lock { lock: "pagevec".into(), hold: Duration::Constant { ns: hold_ns } };
        run(&config).vms[0].yields.ple
    };
    assert_eq!(yields(LockKind::TestAndSet, 2 * US), 0, "it only spins");
    let (pessimistic, optimistic) = (yields(LockKind::Yield, 2 * US), yields(LockKind::SpinYield, 2 * US));
    assert!(pessimistic > 100 && optimistic < pessimistic / 4, "{pessimistic} and {optimistic}");
    assert!(yields(LockKind::SpinYield, 100 * US) > 100);
}
