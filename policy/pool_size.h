/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Pool size: how many pCPUs are micro-sliced (paper 4.3, Algorithm 1, as printed if second_looks and
 *            grow_when_busy_percent are 0).
 *
 * Problem.   A micro-sliced pCPU that nobody needs is capacity lost; too few of them and a shootdown that
 *            needs all siblings waits for the slowest. The right number follows the load.
 * Mechanism. Every epoch starts with a profile phase. It tries 0, 1, 2 … limit micro pCPUs for one profile
 *            interval each, and counts the urgent events. The best number is kept for the rest of the epoch.
 *            One pCPU serves lock and device waits, so their profile phase ends early. Only inter-processor
 *            interrupts are worth the whole search.
 *            A profile interval may be quiet because micro pCPUs have just dissolved a convoy that would be
 *            back without them. Or the senders of urgent events wait for their turns. So only a number of
 *            second looks, as long as a turn each, makes an epoch without any (not in the paper). The
 *            authors' prototype, csched_event_acct, never waits for an epoch after a quiet interval. The more
 *            micro pCPUs, the fewer IPIs, even if most of them are idle. A micro pCPU that helps may raise
 *            their number, since a helped vCPU soon sends again. So one more is tried only while the present
 *            ones were busy, and no count is compared with another. Where they were neither idle nor too few
 *            the next epoch follows without an interval that has none (not in the paper).
 * Formula.   next(count):  no urgent event with 0   -> 0, for a second look: the first second_looks times
 *                          no urgent event with 0   -> 0, for an epoch
 *                          with 0, IPIs dominate    -> 1, and go on profiling
 *                          with 0, PLEs or IRQs do  -> 1, for an epoch
 *                          count < limit, and busy  -> count + 1
 *                          otherwise                -> count, for an epoch
 *                          as printed               -> the count with the fewest IPIs, for an epoch
 *            after an epoch            -> 0, and profile, but by demand:
 *                          used, one fewer is busy  -> count, for an epoch
 *                          used, one fewer isn't    -> max(count - 1, 1), for an epoch
 *                          used: POOL_USED_PERCENT % busy, and not so busy that one more would be tried
 *            busy:         micro_busy_ns >= grow_when_busy_percent % of count intervals
 * Limits.    "IPIs dominate" is the paper's condition as printed (more than PLEs OR more than IRQs). Ties go
 *            to the smaller pool: it costs the normal pool less. FindBest looks at all of urEvents, so the
 *            best count may be 0.
 */
#ifndef POLICY_POOL_SIZE_H
#define POLICY_POOL_SIZE_H

#include "types.h"

#define POOL_LIMIT_MAX 63u
/*
 * How long a second look takes, in profile intervals: as a turn in the normal pool, with the paper's 10 and
 * 30 ms.
 */
#define SECOND_LOOK_INTERVALS 3u
/*
 * With the paper's parameters ten micro slices per profile interval and pCPU: urgent events needn't be looked
 * for.
 */
#define POOL_USED_PERCENT 10u

struct pool_size_config {
	u64 profile_interval_ns; /* the paper's example: 10 ms */
	u64 epoch_interval_ns;	 /* the paper's example: 1000 ms */
	u32 limit;		 /* NUM_LIMIT_uCORES, at most POOL_LIMIT_MAX; 0 keeps the pool empty */
	u32 second_looks;	 /* in a row, until a quiet profile phase is believed; 0: as printed */
	/*
	 * How much of their time micro pCPUs must have been busy for one more to be tried, at most 100; 0: as
	 * printed
	 */
	u32 grow_when_busy_percent;
	u32 reserved;
};

/*
 * What happened in one interval. Urgent events are those of all VMs: IPI waits, pause-loop exits, device
 * interrupts.
 */
struct pool_size_observation {
	u64 ipi_count;
	u64 ple_count;
	u64 irq_count;
	u64 micro_busy_ns; /* how long micro pCPUs ran accelerated vCPUs, all of them together */
};

/* All zero is the state before the first step. */
struct pool_size_state {
	u32 profile_mode;
	u32 micro_pcpu_count;
	u64 ipi_count_at[POOL_LIMIT_MAX + 1]; /* of urEvents[n], what the search for the best n looks at */
	u32 quiet_count;		      /* quiet looks in a row, at most second_looks */
	u32 is_second_look;		      /* the interval under way */
};

enum pool_size_reason {
	POOL_PROFILE_STARTS = 0,      /* lines 2-8 */
	POOL_NO_URGENT_EVENTS = 1,    /* lines 16-20 */
	POOL_IPI_DOMINANT = 2,	      /* lines 23-26 */
	POOL_PLE_OR_IRQ_DOMINANT = 3, /* lines 27-31 */
	POOL_PROFILE_GOES_ON = 4,     /* lines 32-33 */
	POOL_BEST_FOUND = 5,	      /* lines 34-38 */
	POOL_LOOKS_AGAIN = 6,	      /* a quiet look that isn't believed */
	POOL_ENOUGH = 7, /* micro pCPUs weren't busy enough for one more, or there may be no more */
	POOL_IN_USE = 8, /* no profile phase after this epoch */
	POOL_SIZE_REASON_COUNT = 9,
};

struct pool_size_decision {
	u64 interval_ns; /* call again after this long */
	u32 micro_pcpu_count;
	enum pool_size_reason reason;
};

/* FindBestuCoreCnt: the count with the fewest IPI events. */
POLICY u32 find_best_micro_pcpu_count(const struct pool_size_state *state, u32 limit)
{
	u32 best = 0;

	for (u32 count = 1; count <= POOL_LIMIT_MAX; count++) {
		if (count > limit)
			break;
		if (state->ipi_count_at[count] < state->ipi_count_at[best & POOL_LIMIT_MAX])
			best = count;
	}
	return best;
}

/* Were so many micro pCPUs busy for so much of an interval? Its length is the one that was asked for. */
POLICY u32 were_busy(u64 micro_busy_ns, u32 count, u64 interval_ns, u32 percent)
{
	return micro_busy_ns >= interval_ns / 100 * (percent < 100 ? percent : 100) * count;
}

/*
 * After an epoch with this count: is it known without a profile phase that the pool is needed, and no larger
 * one?
 */
POLICY u32 pool_is_in_use(const struct pool_size_config *config, u32 count, u32 limit, u64 micro_busy_ns)
{
	u64 epoch_ns = config->epoch_interval_ns;

	return config->grow_when_busy_percent && count &&
	       were_busy(micro_busy_ns, count, epoch_ns, POOL_USED_PERCENT) &&
	       (count == limit || !were_busy(micro_busy_ns, count, epoch_ns, config->grow_when_busy_percent));
}

/* With this decision the size holds for an epoch, not for an interval of a profile phase. */
POLICY u32 starts_epoch(u32 reason)
{
	return reason == POOL_NO_URGENT_EVENTS || reason == POOL_PLE_OR_IRQ_DOMINANT ||
	       reason == POOL_BEST_FOUND || reason == POOL_ENOUGH || reason == POOL_IN_USE;
}

/* An epoch with `count` is over. */
POLICY struct pool_size_decision decide_after_epoch(const struct pool_size_config *config, u32 count,
						    u32 limit, u64 micro_busy_ns)
{
	if (!pool_is_in_use(config, count, limit, micro_busy_ns))
		return (struct pool_size_decision){.reason = POOL_PROFILE_STARTS};
	if (count > 1 &&
	    !were_busy(micro_busy_ns, count - 1, config->epoch_interval_ns, config->grow_when_busy_percent))
		count--;
	return (struct pool_size_decision){.micro_pcpu_count = count, .reason = POOL_IN_USE};
}

/* The profile phase has been without micro pCPUs up to here. */
POLICY struct pool_size_decision decide_after_look(const struct pool_size_config *config, u32 quiet_count,
						   u32 limit, const struct pool_size_observation *seen)
{
	if (limit == 0)
		return (struct pool_size_decision){.reason = POOL_NO_URGENT_EVENTS};
	if (!seen->ipi_count && !seen->ple_count && !seen->irq_count)
		return (struct pool_size_decision){
		    .reason = quiet_count < config->second_looks ? POOL_LOOKS_AGAIN : POOL_NO_URGENT_EVENTS};
	return (struct pool_size_decision){.micro_pcpu_count = 1,
					   .reason = seen->ipi_count > seen->ple_count ||
							     seen->ipi_count > seen->irq_count
							 ? POOL_IPI_DOMINANT
							 : POOL_PLE_OR_IRQ_DOMINANT};
}

/* An interval of the profile phase with `count` micro pCPUs is over. */
POLICY struct pool_size_decision decide_after_trial(const struct pool_size_config *config,
						    const struct pool_size_state *state, u32 count, u32 limit,
						    u64 micro_busy_ns)
{
	if (count < limit &&
	    were_busy(micro_busy_ns, count, config->profile_interval_ns, config->grow_when_busy_percent))
		return (struct pool_size_decision){.micro_pcpu_count = count + 1,
						   .reason = POOL_PROFILE_GOES_ON};
	if (config->grow_when_busy_percent)
		return (struct pool_size_decision){.micro_pcpu_count = count, .reason = POOL_ENOUGH};
	return (struct pool_size_decision){.micro_pcpu_count = find_best_micro_pcpu_count(state, limit),
					   .reason = POOL_BEST_FOUND};
}

/* One run of AdaptiveMicroSlicedCores. `seen`: what happened since the step before this one. */
POLICY struct pool_size_decision step_pool_size(const struct pool_size_config *config,
						struct pool_size_state *state,
						const struct pool_size_observation *seen)
{
	struct pool_size_decision decision;
	u32 limit = config->limit < POOL_LIMIT_MAX ? config->limit : POOL_LIMIT_MAX;
	u32 count = state->micro_pcpu_count < limit ? state->micro_pcpu_count : limit;

	if (state->profile_mode)
		state->ipi_count_at[count & POOL_LIMIT_MAX] =
		    state->is_second_look ? seen->ipi_count / SECOND_LOOK_INTERVALS : seen->ipi_count;

	if (!state->profile_mode)
		decision = decide_after_epoch(config, count, limit, seen->micro_busy_ns);
	else if (count == 0)
		decision = decide_after_look(config, state->quiet_count, limit, seen);
	else
		decision = decide_after_trial(config, state, count, limit, seen->micro_busy_ns);

	if (decision.reason == POOL_LOOKS_AGAIN)
		state->quiet_count++;
	else if (decision.reason == POOL_IPI_DOMINANT || decision.reason == POOL_PLE_OR_IRQ_DOMINANT)
		state->quiet_count = 0;
	/* After quiet looks the first one of the next profile phase is as long as they were. */
	state->is_second_look = decision.reason == POOL_LOOKS_AGAIN ||
				(decision.reason == POOL_PROFILE_STARTS && state->quiet_count);
	state->profile_mode = !starts_epoch(decision.reason);
	state->micro_pcpu_count = decision.micro_pcpu_count;

	if (!state->profile_mode)
		decision.interval_ns = config->epoch_interval_ns;
	else if (state->is_second_look)
		decision.interval_ns = SECOND_LOOK_INTERVALS * config->profile_interval_ns;
	else
		decision.interval_ns = config->profile_interval_ns;
	return decision;
}

#endif
