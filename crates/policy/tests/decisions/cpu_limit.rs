//! `cpu.max`: what is left of a quota, and when those that used it up rest.

use microslice_policy::*;
use proptest::prelude::*;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

const MS: u64 = 1_000_000;
const US: u64 = 1_000;
/// The monotonic clock of a host that has been up for a while: a multiple of every window below.
const NOW: u64 = 5_000_000 * MS;
const FIFTH: CpuLimit = CpuLimit { quota_us: 20_000, period_us: 100_000, burst_us: 0, reserved: 0 };
/// `LIMIT_REST_MAX_NS`, `LIMIT_SLICE_MIN_NS` and `LIMIT_TURN_MIN_NS`.
const REST_MAX_NS: u64 = 6_000 * MS;
const SLICE_MIN_NS: u64 = MS;
const TURN_MIN_NS: u64 = 50 * US;
const SLICE_NS: u64 = 10 * MS;

fn asked_at(now_ns: u64, clock_ns: u64) -> LimitObservation {
    LimitObservation { now_ns, clock_ns, slice_ns: 30 * MS, active_count: 1, ..Default::default() }
}

#[test]
fn a_vm_that_slept_has_a_periods_quota_and_no_more() {
    let decision = decide_on_limit(&FIFTH, &asked_at(NOW, 0));
    assert_eq!((decision.rest_until_ns, decision.turn_ns), (0, 20 * MS));
    assert_eq!(decision.clock_ns, NOW - 100 * MS);
}

#[test]
fn a_vm_that_slept_has_its_burst_too_and_of_that_at_most_a_quota() {
    for (burst_us, turn_ms) in [(5_000, 25), (20_000, 30), (90_000, 30)] {
        let decision = decide_on_limit(&CpuLimit { burst_us, ..FIFTH }, &asked_at(NOW, 0));
        assert_eq!(decision.turn_ns, turn_ms * MS, "a burst of {burst_us} us, a slice of 30 ms");
    }
    let decision = decide_on_limit(&CpuLimit { burst_us: 90_000, ..FIFTH }, &asked_at(NOW, 0));
    assert_eq!(decision.clock_ns, NOW - 200 * MS);
}

#[test]
fn running_uses_up_the_time_in_which_the_limit_gives_as_much() {
    assert_eq!(limit_charge(&FIFTH, 4 * MS), 20 * MS);
    let four = CpuLimit { quota_us: 400_000, ..FIFTH };
    assert_eq!(limit_charge(&four, 4 * MS), MS);
}

#[test]
fn once_the_quota_is_used_up_it_rests_until_the_window_ends_in_which_the_clock_stands() {
    for ahead_ms in [0, 10, 49] {
        let decision = decide_on_limit(&FIFTH, &asked_at(NOW, NOW + ahead_ms * MS));
        assert_eq!(decision.rest_until_ns, NOW + 50 * MS, "{ahead_ms} ms ahead");
    }
    assert_eq!(decide_on_limit(&FIFTH, &asked_at(NOW, NOW + 50 * MS)).rest_until_ns, NOW + 100 * MS);
}

#[test]
fn the_vcpus_of_a_vm_rest_until_the_same_instant() {
    let mut clock_ns = NOW + 10 * MS;
    for _ in 0..4 {
        let seen = LimitObservation { active_count: 4, ..asked_at(NOW, clock_ns) };
        let decision = decide_on_limit(&FIFTH, &seen);
        assert_eq!(decision.rest_until_ns, NOW + 50 * MS);
        clock_ns = decision.clock_ns + limit_charge(&FIFTH, decision.turn_ns);
    }
}

#[test]
fn what_is_left_is_split_over_the_vcpus_that_are_active() {
    let seen = LimitObservation { active_count: 4, ..asked_at(NOW, 0) };
    assert_eq!(decide_on_limit(&FIFTH, &seen).turn_ns, 5 * MS);
    let many = LimitObservation { active_count: 400, ..seen };
    assert_eq!(decide_on_limit(&FIFTH, &many).turn_ns, SLICE_MIN_NS);
    let micro = LimitObservation { slice_ns: MS / 10, ..many };
    assert_eq!(decide_on_limit(&FIFTH, &micro).turn_ns, MS / 10, "a micro slice isn't made longer");
}

#[test]
fn the_more_is_reserved_the_shorter_is_the_turn() {
    let turn = |ahead_ms| decide_on_limit(&FIFTH, &asked_at(NOW, NOW + ahead_ms * MS)).turn_ns;
    assert_eq!([turn(0), turn(1_000)], [1_250 * US, 625 * US], "an eighth of 10 ms, and half of that");
    assert_eq!([turn(2_000), turn(90_000)], [TURN_MIN_NS; 2]);
}

#[test]
fn a_debt_is_paid_back_by_the_shortest_turns_though_nobody_rests_beyond_the_watchdog() {
    for ahead_s in [7, 59, 61, 1_000_000] {
        let decision = decide_on_limit(&FIFTH, &asked_at(NOW, NOW + ahead_s * 1_000 * MS));
        assert_eq!((decision.rest_until_ns, decision.turn_ns), (NOW + REST_MAX_NS, TURN_MIN_NS));
        assert_eq!(decision.clock_ns, NOW + ahead_s.min(60) * 1_000 * MS);
    }
}

#[test]
fn a_task_that_stopped_in_the_kernel_goes_on_there_for_a_tenth_of_a_second() {
    assert!(limit_lets_go_on(0) && limit_lets_go_on(100 * MS - 1) && !limit_lets_go_on(100 * MS));
}

#[test]
fn of_four_turns_in_the_kernel_one_is_too_short_to_evade() {
    for first in 0..8 {
        let turns: Vec<u64> =
            (first..first + 4).map(|times| limit_turn_in_kernel(TURN_MIN_NS, times)).collect();
        assert_eq!(turns.iter().max(), Some(&TURN_MIN_NS), "and one is as long as it is paid for: {turns:?}");
        assert!(turns.iter().min() < Some(&(7 * US)), "{turns:?}");
    }
}

/// A vCPU whose guest faults all the time stops in the kernel nine times of ten.
#[test]
fn sixty_turns_in_the_kernel_fit_into_the_bound() {
    let went_on_ns: u64 = (0..60).map(|times| limit_turn_in_kernel(25 * MS, times)).sum();
    assert!(limit_lets_go_on(went_on_ns), "{went_on_ns} ns");
}

#[test]
fn each_rest_in_the_kernel_is_twice_as_long() {
    let until_ns = NOW + REST_MAX_NS;
    let rests = [0, 1, 2, 9, 60].map(|times| limit_rest_in_kernel_until(NOW, until_ns, times) - NOW);
    assert_eq!(rests, [10 * MS, 20 * MS, 40 * MS, 5_120 * MS, REST_MAX_NS]);
    assert_eq!(limit_rest_in_kernel_until(NOW, NOW + MS, 0), NOW + MS, "not beyond the one that is due");
}

#[test]
fn without_a_quota_or_a_period_there_is_no_limit() {
    for limit in [CpuLimit { quota_us: 0, ..FIFTH }, CpuLimit { period_us: 0, ..FIFTH }] {
        let seen = asked_at(NOW, NOW + 10 * MS);
        let decision = decide_on_limit(&limit, &seen);
        assert_eq!((decision.rest_until_ns, decision.turn_ns), (0, seen.slice_ns));
        assert_eq!((decision.clock_ns, limit_charge(&limit, 5 * MS)), (seen.clock_ns, 0));
    }
}

/// Tasks that share a limit on a host with several pCPUs, as the real scheduler asks for them.
struct Model {
    limit: CpuLimit,
    clock_ns: u64,
    /// Of the VM, where the tasks are its vCPUs.
    active_count: u32,
    /// By how much a turn is longer than it may be, at most.
    late_ns: u64,
    resting: BinaryHeap<Reverse<(u64, u64, usize)>>,
    ran_ns: Vec<u64>,
    longest_rest_ns: u64,
    asked: u64,
}

impl Model {
    fn ask(&self, now_ns: u64) -> LimitDecision {
        let slice_ns = SLICE_NS;
        let active_count = self.active_count;
        let seen = LimitObservation { now_ns, clock_ns: self.clock_ns, slice_ns, active_count, reserved: 0 };
        decide_on_limit(&self.limit, &seen)
    }

    fn reserve(&mut self, decision: &LimitDecision) {
        self.clock_ns = decision.clock_ns + limit_charge(&self.limit, decision.turn_ns);
    }

    /// All of them always want to run, for so long; the one that has waited for longest takes a free pCPU.
    fn run(&mut self, pcpus: usize, duration_ns: u64) {
        // Tasks that wait for a pCPU, with the turn that each has reserved; and when each pCPU's turn ends.
        let mut waiting: VecDeque<(usize, u64)> = (0..self.ran_ns.len()).map(|task| (task, 0)).collect();
        let mut running: Vec<Option<(u64, usize)>> = vec![None; pcpus];
        let mut reserved = vec![0; self.ran_ns.len()];
        let mut now = NOW;
        while now < NOW + duration_ns {
            while self.resting.peek().is_some_and(|Reverse((until, ..))| *until <= now) {
                let Reverse((_, _, task)) = self.resting.pop().expect("looked at");
                waiting.push_back((task, reserved[task]));
            }
            for place in &mut running {
                if let Some((end, task)) = *place
                    && end <= now
                {
                    *place = None;
                    waiting.push_back((task, 0));
                }
                while place.is_none() {
                    let Some((task, mut turn)) = waiting.pop_front() else { break };
                    if turn == 0 {
                        let decision = self.ask(now);
                        self.reserve(&decision);
                        turn = decision.turn_ns;
                        if decision.rest_until_ns > 0 {
                            self.longest_rest_ns = self.longest_rest_ns.max(decision.rest_until_ns - now);
                            self.asked += 1;
                            reserved[task] = turn;
                            self.resting.push(Reverse((decision.rest_until_ns, self.asked, task)));
                            continue;
                        }
                    }
                    // It ends late, by what differs from turn to turn, and that is settled.
                    let late_ns = (task as u64 * 7_919 + now / US) % (self.late_ns + 1);
                    self.clock_ns += limit_charge(&self.limit, late_ns);
                    self.ran_ns[task] += turn + late_ns;
                    *place = Some((now + turn + late_ns, task));
                }
            }
            let ends = running.iter().flatten().map(|(end, _)| *end);
            let rests = self.resting.peek().map(|Reverse((until, ..))| *until);
            now = ends.chain(rests).min().expect("somebody runs or rests").max(now + 1);
        }
    }
}

fn model(limit: CpuLimit, tasks: usize, active_count: u32, late_ns: u64) -> Model {
    Model {
        limit,
        clock_ns: NOW,
        active_count,
        late_ns,
        resting: BinaryHeap::new(),
        ran_ns: vec![0; tasks],
        longest_rest_ns: 0,
        asked: 0,
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// From one task to a thousand; 20 us late is a timer's interrupt and the switch.
    #[test]
    fn over_ten_seconds_tasks_get_their_limit_within_a_twentieth_and_all_make_progress(
        tasks in 1usize..=1000, percent in 1u64..=400, period_ms in prop::sample::select(vec![10u64, 50, 100, 250, 1000]),
    ) {
        let pcpus = 4;
        let quota_us = (period_ms * 10 * percent) as u32;
        // What a task needs for a turn at all is the header's own bound.
        prop_assume!(tasks as u64 * TURN_MIN_NS * 100 / percent < REST_MAX_NS / 2);
        prop_assume!(percent <= 100 * tasks as u64);
        let limit = CpuLimit { quota_us, period_us: period_ms as u32 * 1000, ..CpuLimit::default() };
        let mut model = model(limit, tasks, 1, 20 * US);
        model.run(pcpus, 10_000 * MS);
        let ran = model.ran_ns.iter().sum::<u64>() as f64;
        let due = (10_000 * MS) as f64 * percent as f64 / 100.0;
        prop_assert!((ran - due).abs() <= due * 0.05, "{ran} of {due}");
        prop_assert!(model.ran_ns.iter().all(|&ran| ran > 0));
        prop_assert!(model.longest_rest_ns < REST_MAX_NS);
    }

    /// A VM that always wants all that it may have, with turns that end at the host's ticks of 4 ms.
    #[test]
    fn a_vm_gets_its_limit_though_no_timer_ends_its_turns(
        vcpus in 1u64..8, percent in 5u64..400, period_ms in 10u64..1000,
    ) {
        let percent = percent.min(vcpus * 100);
        let quota_us = (period_ms * 10 * percent) as u32;
        let limit = CpuLimit { quota_us, period_us: period_ms as u32 * 1000, ..CpuLimit::default() };
        let mut model = model(limit, vcpus as usize, vcpus as u32, 4 * MS);
        model.run(8, 100_000 * MS);
        let ran = model.ran_ns.iter().sum::<u64>() as f64;
        let due = (100_000 * MS) as f64 * percent as f64 / 100.0;
        prop_assert!((ran - due).abs() <= due * 0.05, "{ran} of {due}");
    }

    #[test]
    fn whatever_it_sees_nobody_rests_beyond_the_watchdog_nor_runs_for_longer_than_its_slice(
        quota_us in any::<u32>(), period_us in any::<u32>(), burst_us in any::<u32>(),
        now_ns in REST_MAX_NS..u64::MAX / 2, clock_ns in any::<u64>(), slice_ns in any::<u64>(),
        active_count in any::<u32>(),
    ) {
        let limit = CpuLimit { quota_us, period_us, burst_us, reserved: 0 };
        let seen = LimitObservation { now_ns, clock_ns, slice_ns, active_count, reserved: 0 };
        let decision = decide_on_limit(&limit, &seen);
        prop_assert!(decision.turn_ns <= slice_ns);
        prop_assert!(decision.rest_until_ns == 0 || decision.rest_until_ns <= now_ns + REST_MAX_NS);
        if decision.rest_until_ns > 0 {
            prop_assert!(decision.rest_until_ns > now_ns);
        }
    }
}
