/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * CPU limit: how much the tasks of a cgroup may run at most (cgroup v2's cpu.max).
 *
 * Problem.   The kernel enforces limits only for tasks that it schedules itself (kernel/sched/fair.c,
 *            bandwidth control). A tenant that pays for half a pCPU may not get four because the host has
 *            another scheduler.
 * Mechanism. Each limit has a clock. The start of a turn advances it by the time in which the limit grants
 *            as much. The end of the turn settles the difference to what it really used. While the clock is
 *            behind the present there is quota left, at most that of one period plus the burst. Once it
 *            isn't, a vCPU that asks reserves its next turn. It rests until the end of the window that the
 *            clock is then in.
 *            So each window (half a period) is handed out once, in the order of requests, however many vCPUs
 *            rest. All vCPUs of a window rest until the same instant. One that ran on would spin for
 *            siblings that rest.
 * Formula.   clock += turn * period / quota
 *            left   = (now - clock) * quota / period      (each active vCPU gets an equal part of it)
 *            A reserved turn is an eighth of what a window grants, split over the active vCPUs. The rest of
 *            the window goes to the next vCPUs by their shares. The more is reserved already, the shorter
 *            the turn, down to LIMIT_TURN_MIN_NS. So a thousand threads take their turns within seconds.
 *            A task that stopped in the kernel may hold one of the host's locks. It continues there, and
 *            rests only in user mode. The kernel's own limits do the same since 6.18 (throttle_cfs_rq_work()
 *            in kernel/sched/fair.c).
 * Limits.    No task rests for longer than LIMIT_REST_MAX_NS, because sched_ext's watchdog would end the
 *            scheduler. A limit that grants its tasks less than LIMIT_TURN_MIN_NS each in that time isn't
 *            kept exactly. Turns that exceed their reservation leave a debt, of LIMIT_DEBT_MAX_NS at most.
 */
#ifndef POLICY_CPU_LIMIT_H
#define POLICY_CPU_LIMIT_H

#include "fair_share.h"

/* The kernel's own maximum (max_bw_quota_period_us in kernel/sched/core.c). */
#define LIMIT_PERIOD_MAX_US 1000000u
#define LIMIT_REST_MAX_NS 6000000000ull	 /* 6 s: the watchdog waits for 10 s */
#define LIMIT_DEBT_MAX_NS 60000000000ull /* 60 s: what exceeds this is forgiven */
#define LIMIT_ROUND_NS 2000000000ull	 /* 2 s: with this much reserved, turns are at their shortest */
#define LIMIT_SLICE_MIN_NS                                                                                   \
	1000000ull /* 1 ms, while there is quota left: shorter turns cost more than they bring */
#define LIMIT_TURN_MIN_NS 50000ull /* 50 us: about twice the cost of a switch between vCPUs */
#define LIMIT_TURNS_PER_WINDOW 8u
/*
 * The time that a task may continue in the kernel between two rests in user mode: 100 ms. The value was
 * chosen; locks are held for less.
 */
#define LIMIT_IN_KERNEL_MAX_NS 100000000ull
/* The first rest of a task that has done so, and may still hold a lock. The value was chosen. */
#define LIMIT_REST_IN_KERNEL_NS 10000000ull
/* The longest turn of a task that continues there: enough of them fit for one to end in user mode. */
#define LIMIT_TURN_IN_KERNEL_MAX_NS (LIMIT_IN_KERNEL_MAX_NS / 32)

/* The values of cpu.max and cpu.max.burst. A quota or period of 0 means no limit. */
struct cpu_limit {
	u32 quota_us;
	u32 period_us;
	u32 burst_us;
	u32 reserved;
};

struct limit_observation {
	u64 now_ns;
	u64 clock_ns;
	u64 slice_ns;	  /* its slice without a limit */
	u32 active_count; /* vCPUs of its VM that want to run; 1 for other tasks */
	u32 reserved;
};

struct limit_decision {
	u64 clock_ns;	   /* the clock before this turn advances it */
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

/* Returns how far running for ran_ns advances the clock of a limit. */
POLICY u64 limit_charge(const struct cpu_limit *limit, u64 ran_ns)
{
	u64 ran = ran_ns < RAN_MAX_NS ? ran_ns : RAN_MAX_NS;

	/* 10^10 * 10^6 < 2^54: the product fits. */
	return is_limited(limit) ? ran * limit_period_us(limit) / limit->quota_us : 0;
}

/* Returns how far the clock of an unused limit may be behind the present. The burst is at most the quota. */
POLICY u64 limit_saved_max_ns(const struct cpu_limit *limit)
{
	u64 burst_us = limit->burst_us < limit->quota_us ? limit->burst_us : limit->quota_us;

	return limit_period_us(limit) * 1000 + burst_us * limit_period_us(limit) / limit->quota_us * 1000;
}

/* Returns a turn from the quota that is left. It may be used at once, until it is split too finely. */
POLICY u64 limit_turn_of_left(const struct cpu_limit *limit, u64 behind_ns, u64 active_count)
{
	/* At most two periods: 2 * 10^9 * 2^32 < 2^63. */
	u64 part = behind_ns * limit->quota_us / limit_period_us(limit) / active_count;

	return part < LIMIT_SLICE_MIN_NS ? LIMIT_SLICE_MIN_NS : part;
}

/* Returns a turn that is reserved after a rest, for a clock that is ahead of the present by ahead_ns. */
POLICY u64 limit_turn_reserved(const struct cpu_limit *limit, u64 ahead_ns, u64 active_count)
{
	u64 part = (u64)limit->quota_us * 500 / LIMIT_TURNS_PER_WINDOW / active_count;
	u64 ahead_us = ahead_ns / 1000, round_us = LIMIT_ROUND_NS / 1000;
	/* 2^32 * 500 / 8 * (2 * 10^6) < 2^60 */
	u64 turn = ahead_us < round_us ? part * (round_us - ahead_us) / round_us : 0;

	return turn < LIMIT_TURN_MIN_NS ? LIMIT_TURN_MIN_NS : turn;
}

/*
 * Returns whether a task that stopped in the kernel may continue there in place of a rest. `went_on_ns` is
 * how long it has done so since it last rested in user mode.
 */
POLICY u32 limit_lets_go_on(u64 went_on_ns)
{
	return went_on_ns < LIMIT_IN_KERNEL_MAX_NS;
}

/*
 * Returns the turn of a task that continues in the kernel although its rest is due. It rests once one of
 * these turns ends in user mode. The turns have different lengths, so that no task can evade all of them by
 * sleeping.
 */
POLICY u64 limit_turn_in_kernel(u64 turn_ns, u32 times)
{
	return (turn_ns < LIMIT_TURN_IN_KERNEL_MAX_NS ? turn_ns : LIMIT_TURN_IN_KERNEL_MAX_NS) >> times % 4;
}

/*
 * Returns when a rest ends that begins where a task stopped in the kernel: at the latest when it would end
 * elsewhere. The task then has a turn there, and rests for twice as long. `times` is how often it has rested
 * there since it last rested in user mode. So whoever waits for a lock that it holds waits for 10 ms, not for
 * a whole rest.
 */
POLICY u64 limit_rest_in_kernel_until(u64 now_ns, u64 until_ns, u32 times)
{
	u64 end_ns = now_ns + (LIMIT_REST_IN_KERNEL_NS << (times < 10 ? times : 10));

	return (s64)(end_ns - until_ns) < 0 ? end_ns : until_ns;
}

/* Returns the end of the window that the clock is in. */
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
