//! Algorithm 1 of the paper, line by line, and whole traces worked out by hand.

use microslice_policy::PoolSizeReason::*;
use microslice_policy::*;
use proptest::prelude::*;

const PROFILE: u64 = PoolSizeConfig::PAPER.profile_interval_ns;
const EPOCH: u64 = PoolSizeConfig::PAPER.epoch_interval_ns;

fn limited_to(limit: u32) -> PoolSizeConfig {
    PoolSizeConfig { limit, ..PoolSizeConfig::PAPER }
}

fn events(ipi_count: u64, ple_count: u64, irq_count: u64) -> PoolSizeObservation {
    PoolSizeObservation { ipi_count, ple_count, irq_count, micro_busy_ns: 0 }
}

/// (IPIs, PLEs, IRQs) since the last step -> pool size, next interval, reason.
type Step = ((u64, u64, u64), u32, u64, PoolSizeReason);

/// Steps through `trace` from an empty state, by the paper's rules.
fn follow(limit: u32, trace: &[Step]) {
    follow_with(&limited_to(limit), trace);
}

fn follow_with(config: &PoolSizeConfig, trace: &[Step]) {
    follow_seen(
        config,
        trace.iter().map(|&((ipi, ple, irq), count, interval_ns, reason)| {
            (events(ipi, ple, irq), count, interval_ns, reason)
        }),
    );
}

fn follow_seen(
    config: &PoolSizeConfig,
    trace: impl Iterator<Item = (PoolSizeObservation, u32, u64, PoolSizeReason)>,
) {
    let mut state = PoolSizeState::default();
    for (step, (seen, count, interval_ns, reason)) in trace.enumerate() {
        let decision = step_pool_size(config, &mut state, &seen);
        assert_eq!(
            (decision.micro_pcpu_count, decision.interval_ns, decision.reason.get().unwrap()),
            (count, interval_ns, reason),
            "step {step}"
        );
    }
}

#[test]
fn lines_2_to_8_an_epoch_starts_by_profiling_without_micro_pcpus() {
    follow(3, &[((9, 9, 9), 0, PROFILE, ProfileStarts)]);
}

#[test]
fn lines_16_to_20_without_urgent_events_the_pool_stays_empty_for_an_epoch() {
    follow(
        3,
        &[
            ((0, 0, 0), 0, PROFILE, ProfileStarts),
            ((0, 0, 0), 0, EPOCH, NoUrgentEvents),
            ((7, 0, 0), 0, PROFILE, ProfileStarts),
        ],
    );
}

const SECOND_LOOK: u64 = 3 * PROFILE;

#[test]
fn with_second_looks_an_epoch_without_micro_pcpus_takes_several_quiet_looks_in_a_row() {
    let looks_twice_again = PoolSizeConfig { second_looks: 2, ..PoolSizeConfig::PAPER };
    let quiet = (0, 0, 0);
    let begins = (quiet, 0, PROFILE, ProfileStarts);
    let begins_after_quiet = (quiet, 0, SECOND_LOOK, ProfileStarts);
    let not_believed = (quiet, 0, SECOND_LOOK, LooksAgain);
    let believed = (quiet, 0, EPOCH, NoUrgentEvents);
    let spinning = ((0, 1, 0), 1, EPOCH, PleOrIrqDominant);
    follow_with(
        &looks_twice_again,
        &[
            // From the start, and then no longer.
            begins,
            not_believed,
            not_believed,
            believed,
            begins_after_quiet,
            believed,
            // After an urgent event again.
            begins_after_quiet,
            spinning,
            begins,
            not_believed,
            spinning,
            begins,
            not_believed,
            not_believed,
            believed,
        ],
    );
}

#[test]
fn ipis_of_a_second_look_count_as_those_of_one_profile_interval() {
    let looks_again = PoolSizeConfig { second_looks: 1, ..limited_to(2) };
    let emptied_or_not = |ipis_with_one| {
        let best = if ipis_with_one < 30 { 1 } else { 0 };
        follow_with(
            &looks_again,
            &[
                ((0, 0, 0), 0, PROFILE, ProfileStarts),
                ((0, 0, 0), 0, SECOND_LOOK, LooksAgain),
                ((90, 0, 0), 1, PROFILE, IpiDominant),
                ((ipis_with_one, 0, 0), 2, PROFILE, ProfileGoesOn),
                ((80, 0, 0), best, EPOCH, BestFound),
                // The next profile phase begins with a look of the usual length.
                ((0, 0, 0), 0, PROFILE, ProfileStarts),
                ((50, 0, 0), 1, PROFILE, IpiDominant),
                ((49, 0, 0), 2, PROFILE, ProfileGoesOn),
                ((80, 0, 0), 1, EPOCH, BestFound),
            ],
        );
    };
    emptied_or_not(29);
    emptied_or_not(30);
}

/// Steps with so many IPIs and such a busy micro pool.
fn follow_busy(config: &PoolSizeConfig, trace: &[(u64, u64, u32, u64, PoolSizeReason)]) {
    follow_seen(
        config,
        trace.iter().map(|&(ipi_count, micro_busy_ns, count, interval_ns, reason)| {
            (PoolSizeObservation { micro_busy_ns, ..events(ipi_count, 0, 0) }, count, interval_ns, reason)
        }),
    );
}

#[test]
fn one_more_micro_pcpu_is_tried_only_while_those_there_are_were_busy() {
    let when_busy = PoolSizeConfig { grow_when_busy_percent: 75, ..limited_to(4) };
    let busy = PROFILE / 100 * 75;
    follow_busy(
        &when_busy,
        &[
            (0, 0, 0, PROFILE, ProfileStarts),
            (900, 0, 1, PROFILE, IpiDominant),
            (700, busy, 2, PROFILE, ProfileGoesOn),
            // Of two, twice as much is needed; and what there is stays, though fewer IPIs were seen with one.
            (800, 2 * busy - 1, 2, EPOCH, Enough),
            (0, 0, 0, PROFILE, ProfileStarts),
            (900, 0, 1, PROFILE, IpiDominant),
            (900, busy - 1, 1, EPOCH, Enough),
        ],
    );
}

#[test]
fn a_pool_that_grows_by_demand_stays_at_its_limit_whatever_number_of_ipis_it_sees() {
    let when_busy = PoolSizeConfig { grow_when_busy_percent: 75, ..limited_to(2) };
    follow_busy(
        &when_busy,
        &[
            (0, 0, 0, PROFILE, ProfileStarts),
            (900, 0, 1, PROFILE, IpiDominant),
            (700, PROFILE, 2, PROFILE, ProfileGoesOn),
            (2000, 2 * PROFILE, 2, EPOCH, Enough),
        ],
    );
}

#[test]
fn an_epoch_whose_micro_pcpus_were_used_is_followed_by_another_without_a_profile_phase() {
    let when_busy = PoolSizeConfig { grow_when_busy_percent: 75, ..limited_to(2) };
    let share = |percent: u64| EPOCH / 100 * percent;
    follow_busy(
        &when_busy,
        &[
            (0, 0, 0, PROFILE, ProfileStarts),
            (900, 0, 1, PROFILE, IpiDominant),
            (900, 0, 1, EPOCH, Enough),
            (0, share(10), 1, EPOCH, InUse),
            (0, share(75) - 1, 1, EPOCH, InUse),
            // Idle: is anything urgent at all?
            (0, share(10) - 1, 0, PROFILE, ProfileStarts),
            (900, 0, 1, PROFILE, IpiDominant),
            (900, 0, 1, EPOCH, Enough),
            // Busy: is one more needed?
            (0, share(75), 0, PROFILE, ProfileStarts),
            (900, 0, 1, PROFILE, IpiDominant),
            (900, PROFILE, 2, PROFILE, ProfileGoesOn),
            (900, 2 * PROFILE, 2, EPOCH, Enough),
            // There may be no more; and there are as few as do.
            (0, share(200), 2, EPOCH, InUse),
            (0, share(75), 2, EPOCH, InUse),
            (0, share(75) - 1, 1, EPOCH, InUse),
        ],
    );
}

#[test]
fn by_the_papers_rule_every_epoch_begins_with_a_profile_phase() {
    follow_busy(
        &limited_to(1),
        &[
            (0, 0, 0, PROFILE, ProfileStarts),
            (900, 0, 1, PROFILE, IpiDominant),
            (800, PROFILE, 1, EPOCH, BestFound),
            (800, EPOCH / 2, 0, PROFILE, ProfileStarts),
        ],
    );
}

#[test]
fn more_than_all_of_the_time_is_never_asked_for() {
    let beyond = PoolSizeConfig { grow_when_busy_percent: 400, ..limited_to(3) };
    follow_busy(
        &beyond,
        &[
            (0, 0, 0, PROFILE, ProfileStarts),
            (900, 0, 1, PROFILE, IpiDominant),
            (700, PROFILE, 2, PROFILE, ProfileGoesOn),
            (700, 2 * PROFILE - 1, 2, EPOCH, Enough),
        ],
    );
}

#[test]
fn without_a_limit_there_is_nothing_to_look_again_for() {
    let config = PoolSizeConfig { limit: 0, ..PoolSizeConfig::DEFAULT };
    follow_with(&config, &[((9, 9, 9), 0, PROFILE, ProfileStarts), ((9, 9, 9), 0, EPOCH, NoUrgentEvents)]);
}

#[test]
fn lines_27_to_31_when_ples_dominate_one_micro_pcpu_serves_for_an_epoch() {
    follow(
        3,
        &[
            ((0, 0, 0), 0, PROFILE, ProfileStarts),
            ((5, 100, 5), 1, EPOCH, PleOrIrqDominant),
            ((5, 100, 5), 0, PROFILE, ProfileStarts),
        ],
    );
}

#[test]
fn lines_27_to_31_when_device_interrupts_dominate_one_micro_pcpu_serves_for_an_epoch() {
    follow(3, &[((0, 0, 0), 0, PROFILE, ProfileStarts), ((0, 0, 40), 1, EPOCH, PleOrIrqDominant)]);
}

#[test]
fn line_23_ipis_dominate_as_soon_as_they_exceed_ples_or_irqs_as_printed() {
    // More IPIs than IRQs, fewer than PLEs: the printed OR makes it the IPI case.
    follow(3, &[((0, 0, 0), 0, PROFILE, ProfileStarts), ((10, 100, 5), 1, PROFILE, IpiDominant)]);
    // No more than either: it isn't.
    follow(3, &[((0, 0, 0), 0, PROFILE, ProfileStarts), ((10, 10, 10), 1, EPOCH, PleOrIrqDominant)]);
}

#[test]
fn lines_32_to_38_ipis_try_every_count_up_to_the_limit_and_keep_the_best() {
    follow(
        3,
        &[
            ((0, 0, 0), 0, PROFILE, ProfileStarts),
            ((900, 10, 0), 1, PROFILE, IpiDominant),
            ((700, 10, 0), 2, PROFILE, ProfileGoesOn),
            ((100, 10, 0), 3, PROFILE, ProfileGoesOn),
            ((300, 10, 0), 2, EPOCH, BestFound),
            ((100, 10, 0), 0, PROFILE, ProfileStarts),
        ],
    );
}

#[test]
fn the_limit_itself_can_be_the_best_count() {
    follow(
        2,
        &[
            ((0, 0, 0), 0, PROFILE, ProfileStarts),
            ((900, 0, 0), 1, PROFILE, IpiDominant),
            ((800, 0, 0), 2, PROFILE, ProfileGoesOn),
            ((20, 0, 0), 2, EPOCH, BestFound),
        ],
    );
}

#[test]
fn if_no_count_has_fewer_ipis_than_none_the_pool_is_emptied() {
    follow(
        2,
        &[
            ((0, 0, 0), 0, PROFILE, ProfileStarts),
            ((50, 0, 0), 1, PROFILE, IpiDominant),
            ((50, 0, 0), 2, PROFILE, ProfileGoesOn),
            ((60, 0, 0), 0, EPOCH, BestFound),
        ],
    );
}

#[test]
fn equal_counts_of_ipis_go_to_the_smaller_pool() {
    follow(
        3,
        &[
            ((0, 0, 0), 0, PROFILE, ProfileStarts),
            ((50, 0, 0), 1, PROFILE, IpiDominant),
            ((30, 0, 0), 2, PROFILE, ProfileGoesOn),
            ((30, 0, 0), 3, PROFILE, ProfileGoesOn),
            ((30, 0, 0), 1, EPOCH, BestFound),
        ],
    );
}

#[test]
fn a_limit_of_one_leaves_the_choice_between_none_and_one() {
    follow(
        1,
        &[
            ((0, 0, 0), 0, PROFILE, ProfileStarts),
            ((50, 0, 0), 1, PROFILE, IpiDominant),
            ((40, 0, 0), 1, EPOCH, BestFound),
        ],
    );
}

#[test]
fn counts_of_an_earlier_epoch_do_not_decide_a_later_one() {
    follow(
        2,
        &[
            ((0, 0, 0), 0, PROFILE, ProfileStarts),
            ((90, 0, 0), 1, PROFILE, IpiDominant),
            ((80, 0, 0), 2, PROFILE, ProfileGoesOn),
            ((10, 0, 0), 2, EPOCH, BestFound),
            ((0, 0, 0), 0, PROFILE, ProfileStarts),
            ((90, 0, 0), 1, PROFILE, IpiDominant),
            ((20, 0, 0), 2, PROFILE, ProfileGoesOn),
            ((70, 0, 0), 1, EPOCH, BestFound),
        ],
    );
}

#[test]
fn a_limit_of_zero_keeps_the_pool_empty() {
    follow(0, &[((9, 9, 9), 0, PROFILE, ProfileStarts), ((9, 9, 9), 0, EPOCH, NoUrgentEvents)]);
}

proptest! {
    #[test]
    fn the_pool_never_exceeds_its_limit_and_every_epoch_ends_its_profile_phase_in_time(
        limit in 0u32..80,
        trace in proptest::collection::vec((0u64..1000, 0u64..1000, 0u64..1000), 1..300),
    ) {
        let mut state = PoolSizeState::default();
        let mut profile_steps = 0;
        for (ipi, ple, irq) in trace {
            let decision = step_pool_size(&limited_to(limit), &mut state, &events(ipi, ple, irq));
            prop_assert!(decision.micro_pcpu_count <= limit.min(POOL_LIMIT_MAX as u32));
            prop_assert_eq!(decision.micro_pcpu_count, state.micro_pcpu_count);
            profile_steps = if decision.interval_ns == EPOCH { 0 } else { profile_steps + 1 };
            prop_assert!(profile_steps <= limit.min(POOL_LIMIT_MAX as u32) + 1);
        }
    }

    #[test]
    fn any_state_is_stepped_out_of_without_harm(
        profile_mode in any::<u32>(), count in any::<u32>(), limit in any::<u32>(),
        quiet_count in any::<u32>(), second_looks in any::<u32>(), is_second_look in any::<u32>(),
        grow_when_busy_percent in any::<u32>(), micro_busy_ns in any::<u64>(),
        ipi in any::<u64>(), ple in any::<u64>(), irq in any::<u64>(),
    ) {
        let mut state =
            PoolSizeState { profile_mode, micro_pcpu_count: count, quiet_count, is_second_look, ..Default::default() };
        let config = PoolSizeConfig { second_looks, grow_when_busy_percent, ..limited_to(limit) };
        let seen = PoolSizeObservation { micro_busy_ns, ..events(ipi, ple, irq) };
        let decision = step_pool_size(&config, &mut state, &seen);
        prop_assert!(decision.micro_pcpu_count <= limit.min(POOL_LIMIT_MAX as u32));
        prop_assert!(state.quiet_count <= second_looks.max(quiet_count));
    }
}
