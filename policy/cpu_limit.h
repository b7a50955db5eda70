/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * CPU limit: what a cgroup's tasks may have at most (cgroup v2's cpu.max).
 *
 * Problem.   The kernel keeps limits only where it schedules by itself (kernel/sched/fair.c, bandwidth control). A tenant
 *            that pays for half a pCPU may not get four because the host has another scheduler.
 * Mechanism. One clock for each limit. Running moves it by the time that the limit would take to give that much; while
 *            it is behind the present there is quota left, at most one period's. Once it isn't, all that share the
 *            limit rest, and all of them until the same instant, when half a period's quota is there again: a vCPU
 *            that ran on would only spin for siblings that rest.
 * Formula.   clock += ran_ns * period / quota
 *            left   = (now - clock) * quota / period      (of it each active vCPU gets an equal part)
 *            rest   : while clock >= now, until clock + period / 2
 * Limits.    A turn ends at a tick of the host, and siblings end theirs: what ran beyond the quota is a debt, and makes
 *            the rest longer, but not longer than LIMIT_REST_MAX_NS. Limits below a tick of every vCPU in that time
 *            aren't kept to the letter: sched_ext's watchdog would end the scheduler for everybody.
 */
#ifndef POLICY_CPU_LIMIT_H
#define POLICY_CPU_LIMIT_H

#include "fair_share.h"

#define LIMIT_PERIOD_MAX_US 1000000u	/* the kernel's own (max_bw_quota_period_us in kernel/sched/core.c) */
#define LIMIT_REST_MAX_NS 2000000000ull /* 2 s */
#define LIMIT_SLICE_MIN_NS 1000000ull	/* 1 ms: shorter turns would cost more than they bring */

/* As in cpu.max. A quota or period of 0: no limit. */
struct cpu_limit {
	u32 quota_us;
	u32 period_us;
};

struct limit_observation {
	u64 now_ns;
	u64 clock_ns;
	u64 rest_until_ns; /* as it was decided last */
	u64 slice_ns;	   /* that it would have without a limit */
	u32 active_count;  /* vCPUs of its VM that want to run; 1 for other tasks */
	u32 reserved;
};

struct limit_decision {
	u64 clock_ns;
	u64 rest_until_ns; /* 0: it may run */
	u64 slice_ns;
};

POLICY u32 is_limited(const struct cpu_limit *limit)
{
	return limit->quota_us && limit->period_us;
}

POLICY u64 limit_period_us(const struct cpu_limit *limit)
{
	return limit->period_us < LIMIT_PERIOD_MAX_US ? limit->period_us : LIMIT_PERIOD_MAX_US;
}

/* How far running for ran_ns moves the clock of a limit. */
POLICY u64 limit_charge(const struct cpu_limit *limit, u64 ran_ns)
{
	u64 ran = ran_ns < RAN_MAX_NS ? ran_ns : RAN_MAX_NS;

	/* 10^10 * 10^6 < 2^54: the product fits. */
	return is_limited(limit) ? ran * limit_period_us(limit) / limit->quota_us : 0;
}

POLICY struct limit_decision decide_on_limit(const struct cpu_limit *limit,
					     const struct limit_observation *seen)
{
	struct limit_decision decision = {.clock_ns = seen->clock_ns, .slice_ns = seen->slice_ns};
	u64 period_us = limit_period_us(limit), period_ns = period_us * 1000;
	u64 now = seen->now_ns, latest = now + LIMIT_REST_MAX_NS, left;

	if (!is_limited(limit))
		return decision;
	if (vtime_before(decision.clock_ns, now - period_ns))
		decision.clock_ns = now - period_ns;
	if (vtime_before(latest, decision.clock_ns))
		decision.clock_ns = latest;
	if (seen->rest_until_ns && vtime_before(now, seen->rest_until_ns)) {
		decision.rest_until_ns = seen->rest_until_ns;
	} else if (!vtime_before(decision.clock_ns, now)) {
		decision.rest_until_ns = decision.clock_ns + period_ns / 2;
	} else {
		/* At most a period is left: 10^9 * 2^32 < 2^62. */
		left = (now - decision.clock_ns) * limit->quota_us / period_us;
		left /= seen->active_count ? seen->active_count : 1;
		if (left < LIMIT_SLICE_MIN_NS)
			left = LIMIT_SLICE_MIN_NS;
		if (left < decision.slice_ns)
			decision.slice_ns = left;
	}
	if (decision.rest_until_ns && vtime_before(latest, decision.rest_until_ns))
		decision.rest_until_ns = latest;
	return decision;
}

#endif
