/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Pool size: how many pCPUs are micro-sliced (paper 4.3, Algorithm 1). With second_looks and
 *            grow_when_busy_percent of 0 it is the algorithm as printed.
 *
 * Problem.   A micro-sliced pCPU that isn't needed is lost capacity. With too few of them, a shootdown that
 *            needs all siblings waits for the slowest. The right number follows the load.
 * Mechanism. Every epoch starts with a profile phase. It tries 0, 1, 2 … limit micro pCPUs for one profile
 *            interval each, and counts the urgent events. The best number is kept for the rest of the epoch.
 *            One pCPU is enough for lock and device waits, so their profile phase ends early. Only
 *            inter-processor interrupts are worth the whole search.
 *            Second looks (not in the paper): a profile interval may be quiet because micro pCPUs have just
 *            dissolved a convoy, which would come back without them. Or the senders of urgent events may be
 *            waiting for their turns. So the pool stays empty for an epoch only after second_looks further
 *            quiet intervals, each as long as a turn. The authors' prototype (csched_event_acct) never waits
 *            for an epoch after a quiet interval.
 *            Growth by use (not in the paper): more micro pCPUs mean fewer IPIs, even if most of them are
 *            idle. A useful micro pCPU may also raise the number of IPIs, because a helped vCPU soon sends
 *            again. So one more is tried only if the present ones were busy, and counts of IPIs aren't
 *            compared. If the pool was neither idle nor too small, the next epoch starts without a profile
 *            phase.
 * Formula.   next(count):  no urgent event with 0   -> 0, for a second look: the first second_looks times
 *                          no urgent event with 0   -> 0, for an epoch
 *                          with 0, IPIs dominate    -> 1, and go on profiling
 *                          with 0, PLEs or IRQs do  -> 1, for an epoch
 *                          count < limit, and busy  -> count + 1
 *                          otherwise                -> count, for an epoch
 *                          as printed               -> the count with the fewest IPIs, for an epoch
 *            after an epoch            -> 0, and profile; but if the pool was used:
 *                          one fewer was busy       -> count, for an epoch
 *                          one fewer wasn't busy    -> max(count - 1, 1), for an epoch
 *            used:         POOL_USED_PERCENT % busy, and not so busy that one more would be tried
 *            busy:         micro_busy_ns >= grow_when_busy_percent % of count intervals
 * Limits.    "IPIs dominate" is the paper's condition as printed: more than PLEs OR more than IRQs. Ties go
 *            to the smaller pool, which costs the normal pool less. FindBest looks at all of urEvents, so
 *            the best count may be 0.
 */
#ifndef POLICY_POOL_SIZE_H
#define POLICY_POOL_SIZE_H

#include "types.h"

#define POOL_LIMIT_MAX 63u
/*
 * The length of a second look, in profile intervals: a turn in the normal pool, with the paper's 30 ms and
 * 10 ms.
 */
#define SECOND_LOOK_INTERVALS 3u
/*
 * The percentage of time for which a pool that is used must be busy. With the paper's parameters this is ten
 * micro slices per profile interval and pCPU, so urgent events needn't be counted.
 */
#define POOL_USED_PERCENT 10u

struct pool_size_config {
	u64 profile_interval_ns; /* 10 ms in the paper's example */
	u64 epoch_interval_ns;	 /* 1000 ms in the paper's example */
	u32 limit;		 /* NUM_LIMIT_uCORES, at most POOL_LIMIT_MAX; 0 keeps the pool empty */
	/* Further quiet intervals before a quiet profile phase is believed; 0: as printed. */
	u32 second_looks;
	/*
	 * The percentage of time for which micro pCPUs must be busy before one more is tried, at most 100.
	 * 0: as printed.
	 */
	u32 grow_when_busy_percent;
	u32 reserved;
};

/* The events of one interval, of all VMs together: IPI waits, pause-loop exits, device interrupts. */
struct pool_size_observation {
	u64 ipi_count;
	u64 ple_count;
	u64 irq_count;
	u64 micro_busy_ns; /* how long all micro pCPUs together ran accelerated vCPUs */
};

/* The state of the algorithm, all zero before the first step. */
struct pool_size_state {
	u32 profile_mode;
	u32 micro_pcpu_count;
	/* The IPIs in urEvents[n], which the search for the best n compares. */
	u64 ipi_count_at[POOL_LIMIT_MAX + 1];
	u32 quiet_count;    /* quiet looks in a row, at most second_looks */
	u32 is_second_look; /* 1: the current interval is a second look */
};

enum pool_size_reason {
	POOL_PROFILE_STARTS = 0,      /* lines 2-8 */
	POOL_NO_URGENT_EVENTS = 1,    /* lines 16-20 */
	POOL_IPI_DOMINANT = 2,	      /* lines 23-26 */
	POOL_PLE_OR_IRQ_DOMINANT = 3, /* lines 27-31 */
	POOL_PROFILE_GOES_ON = 4,     /* lines 32-33 */
	POOL_BEST_FOUND = 5,	      /* lines 34-38 */
	POOL_LOOKS_AGAIN = 6,	      /* a quiet look that isn't believed yet */
	POOL_ENOUGH = 7, /* the micro pCPUs weren't busy enough for one more, or the limit is reached */
	POOL_IN_USE = 8, /* no profile phase after this epoch */
	POOL_SIZE_REASON_COUNT = 9,
};

struct pool_size_decision {
	u64 interval_ns; /* call again after this long */
	u32 micro_pcpu_count;
	enum pool_size_reason reason;
};

/* Returns the count with the fewest IPIs: the paper's FindBestuCoreCnt. */
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

/* Returns whether `count` micro pCPUs were busy for `percent` of an interval of the requested length. */
POLICY u32 were_busy(u64 micro_busy_ns, u32 count, u64 interval_ns, u32 percent)
{
	return micro_busy_ns >= interval_ns / 100 * (percent < 100 ? percent : 100) * count;
}

/*
 * Returns whether the pool of the last epoch was needed and large enough, so that no profile phase has to
 * follow.
 */
POLICY u32 pool_is_in_use(const struct pool_size_config *config, u32 count, u32 limit, u64 micro_busy_ns)
{
	u64 epoch_ns = config->epoch_interval_ns;

	return config->grow_when_busy_percent && count &&
	       were_busy(micro_busy_ns, count, epoch_ns, POOL_USED_PERCENT) &&
	       (count == limit || !were_busy(micro_busy_ns, count, epoch_ns, config->grow_when_busy_percent));
}

/* True if the decision holds for an epoch, not for an interval of a profile phase. */
POLICY u32 starts_epoch(u32 reason)
{
	return reason == POOL_NO_URGENT_EVENTS || reason == POOL_PLE_OR_IRQ_DOMINANT ||
	       reason == POOL_BEST_FOUND || reason == POOL_ENOUGH || reason == POOL_IN_USE;
}

/* Decides at the end of an epoch with `count` micro pCPUs. */
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

/* Decides at the end of an interval of the profile phase without micro pCPUs. */
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

/* Decides at the end of an interval of the profile phase with `count` micro pCPUs. */
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

/* Makes one step of AdaptiveMicroSlicedCores. `seen` has the events since the previous step. */
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
	/* After quiet looks, the first look of the next profile phase is as long as they were. */
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
