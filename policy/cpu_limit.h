/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * CPU limit: what a cgroup's tasks may have at most (cgroup v2's cpu.max).
 *
 * Problem.   The kernel keeps limits only where it schedules by itself (kernel/sched/fair.c, bandwidth
 *            control). A tenant that pays for half a pCPU may not get four because the host has another
 *            scheduler.
 * Mechanism. One clock for each limit. When a turn begins it moves the clock by the time in which the limit
 *            gives as much. What the turn didn't use, or used beyond, is settled when it ends. While the
 *            clock is behind the present there is quota left: at most one period's and the burst. Once it
 *            isn't, a vCPU that asks reserves its next turn. It rests until the end of the window in which
 *            the clock then stands.
 *            So each window (half a period) is handed out once, in the order of requests, however many vCPUs
 *            rest. All vCPUs of a window rest until the same instant: one that ran on would spin for siblings
 *            that rest.
 * Formula.   clock += turn * period / quota
 *            left   = (now - clock) * quota / period      (of it each active vCPU gets an equal part)
 *            A reserved turn is an eighth of what a window gives, split over the active vCPUs. The rest of
 *            the window goes to the next vCPU by its share. The more is reserved already, the shorter the
 *            turn, down to LIMIT_TURN_MIN_NS. So a thousand threads take their turns within seconds.
 *            A task that stopped in the kernel may hold a lock of the host's. It goes on there, and rests
 *            only in user mode. The kernel's own limits do the same from 6.18 on (throttle_cfs_rq_work() in
 *            kernel/sched/fair.c).
 * Limits.    No task rests for longer than LIMIT_REST_MAX_NS: else sched_ext's watchdog would end the
 *            scheduler. A limit that gives its tasks less than LIMIT_TURN_MIN_NS each in that time isn't kept
 *            to the letter. What turns took beyond what was reserved is a debt of LIMIT_DEBT_MAX_NS at most.
 */
#ifndef POLICY_CPU_LIMIT_H
#define POLICY_CPU_LIMIT_H

#include "fair_share.h"

#define LIMIT_PERIOD_MAX_US 1000000u	/* the kernel's own (max_bw_quota_period_us in kernel/sched/core.c) */
#define LIMIT_REST_MAX_NS 6000000000ull /* 6 s: the watchdog waits for ten */
#define LIMIT_DEBT_MAX_NS 60000000000ull /* 60 s: what ran beyond by so much is paid back, and no more */
#define LIMIT_ROUND_NS 2000000000ull	 /* 2 s: with as much reserved, turns are as short as they get */
#define LIMIT_SLICE_MIN_NS                                                                                   \
	1000000ull /* 1 ms, while there is quota left: shorter turns cost more than they bring */
#define LIMIT_TURN_MIN_NS 50000ull /* 50 us: about twice what a switch of vCPUs costs */
#define LIMIT_TURNS_PER_WINDOW 8u
/*
 * 100 ms of running, chosen: locks are held for less. From one rest that it begins in user mode to the next.
 */
#define LIMIT_IN_KERNEL_MAX_NS 100000000ull

/* As in cpu.max and cpu.max.burst. A quota or period of 0: no limit. */
struct cpu_limit {
	u32 quota_us;
	u32 period_us;
	u32 burst_us;
	u32 reserved;
};

struct limit_observation {
	u64 now_ns;
	u64 clock_ns;
	u64 slice_ns;	  /* that it would have without a limit */
	u32 active_count; /* vCPUs of its VM that want to run; 1 for other tasks */
	u32 reserved;
};

struct limit_decision {
	u64 clock_ns;	   /* before the turn moves it */
	u64 rest_until_ns; /* 0: it may run at once */
	u64 turn_ns;
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

/*
 * By how far the clock of a limit that wasn't used up may be behind the present. The burst is at most the
 * quota.
 */
POLICY u64 limit_saved_max_ns(const struct cpu_limit *limit)
{
	u64 burst_us = limit->burst_us < limit->quota_us ? limit->burst_us : limit->quota_us;

	return limit_period_us(limit) * 1000 + burst_us * limit_period_us(limit) / limit->quota_us * 1000;
}

/* What is left may be used at once, until it is split too finely. */
POLICY u64 limit_turn_of_left(const struct cpu_limit *limit, u64 behind_ns, u64 active_count)
{
	/* At most two periods: 2 * 10^9 * 2^32 < 2^63. */
	u64 part = behind_ns * limit->quota_us / limit_period_us(limit) / active_count;

	return part < LIMIT_SLICE_MIN_NS ? LIMIT_SLICE_MIN_NS : part;
}

/* The turn of a vCPU that rests before it, while the clock is so far ahead of the present. */
POLICY u64 limit_turn_reserved(const struct cpu_limit *limit, u64 ahead_ns, u64 active_count)
{
	u64 part = (u64)limit->quota_us * 500 / LIMIT_TURNS_PER_WINDOW / active_count;
	u64 ahead_us = ahead_ns / 1000, round_us = LIMIT_ROUND_NS / 1000;
	/* 2^32 * 500 / 8 * (2 * 10^6) < 2^60 */
	u64 turn = ahead_us < round_us ? part * (round_us - ahead_us) / round_us : 0;

	return turn < LIMIT_TURN_MIN_NS ? LIMIT_TURN_MIN_NS : turn;
}

/*
 * May a task that stopped in the kernel go on there in place of a rest? It has gone on for so long since it
 * rested in user mode.
 */
POLICY u32 limit_lets_go_on(u64 went_on_ns)
{
	return went_on_ns < LIMIT_IN_KERNEL_MAX_NS;
}

/*
 * The turn of a task that goes on in the kernel, though it had to rest. It rests once a turn of it ends in
 * user mode. Turns have different lengths, so that no task evades all of them by going to sleep.
 */
POLICY u64 limit_turn_in_kernel(u64 turn_ns, u32 times)
{
	return turn_ns >> times % 4;
}

/* When the window ends in which the clock stands. */
POLICY u64 limit_window_end(const struct cpu_limit *limit, u64 clock_ns)
{
	u64 window_ns = limit_period_us(limit) * 500;

	return (clock_ns / window_ns + 1) * window_ns;
}

POLICY struct limit_decision decide_on_limit(const struct cpu_limit *limit,
					     const struct limit_observation *seen)
{
	struct limit_decision decision = {.clock_ns = seen->clock_ns, .turn_ns = seen->slice_ns};
	u64 now = seen->now_ns, latest = now + LIMIT_REST_MAX_NS, furthest = now + LIMIT_DEBT_MAX_NS;
	u64 earliest, turn;
	u64 active_count = seen->active_count ? seen->active_count : 1;

	if (!is_limited(limit))
		return decision;
	earliest = now - limit_saved_max_ns(limit);
	if (vtime_before(decision.clock_ns, earliest))
		decision.clock_ns = earliest;
	if (vtime_before(furthest, decision.clock_ns))
		decision.clock_ns = furthest;
	if (vtime_before(decision.clock_ns, now)) {
		turn = limit_turn_of_left(limit, now - decision.clock_ns, active_count);
	} else {
		turn = limit_turn_reserved(limit, decision.clock_ns - now, active_count);
		decision.rest_until_ns = limit_window_end(limit, decision.clock_ns);
		if (vtime_before(latest, decision.rest_until_ns))
			decision.rest_until_ns = latest;
	}
	if (turn < decision.turn_ns)
		decision.turn_ns = turn;
	return decision;
}

#endif
