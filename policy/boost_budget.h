/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Boost budget: may this vCPU's thread become real-time for a micro slice, beside the kernel's own scheduler?
 *
 * Problem.   The kernel charges nobody's share for what a real-time thread runs. A guest that asks all the
 *            time would have more of the host than its weight.
 * Mechanism. One clock for each VM, and one for the host. A boost that ran moves both on by the time in which
 *            the budget gives that much. While the clock is not ahead of the present there is budget left: at
 *            most that of burst_ns. Time alone repays a debt. Without budget left nobody is boosted: neither
 *            a VM without its own, nor any VM without the host's.
 *            A VM that is ahead is refused first: the last tenth of the host's burst is for VMs with half of
 *            their own.
 * Formula.   cost  = ran_ns * 100 / (percent * pcpu_count)
 *            clock = max(clock, now - burst_ns) + cost
 *            left  : clock <= now
 *            bound : a VM, and all together, run boosted for (time + burst_ns) * percent * pcpu_count / 100
 *            at most
 * Limits.    What was granted already isn't stopped: both budgets may be overdrawn by a micro slice for each
 *            vCPU, and are refused for longer then.
 */
#ifndef POLICY_BOOST_BUDGET_H
#define POLICY_BOOST_BUDGET_H

#include "fair_share.h"

struct boost_config {
	u64 burst_ns;	  /* what wasn't used in so much time can be used at once */
	u32 vm_percent;	  /* of the host that a VM may have by boosts; 0: nothing */
	u32 host_percent; /* that all VMs may have together; 0: nothing */
	u32 pcpu_count;
	u32 reserved;
};

enum boost_decision {
	BOOST_GRANTED = 0,
	BOOST_NOT_SEEN = 1,    /* nobody has seen this thread leave a guest yet: it may not be a vCPU's */
	BOOST_REAL_TIME = 2,   /* the operator made it real-time, or gave it a deadline */
	BOOST_PINNED = 3,      /* it may run on one pCPU only, which the operator chose for it */
	BOOST_OVER_BUDGET = 4, /* its VM has used up what it may have */
	BOOST_VM_AHEAD = 5,    /* all VMs together nearly have, and this one has had much of its own */
	BOOST_NO_ROOM = 6,     /* the ring to the helper is full */
	BOOST_HOST_SPENT = 7,  /* all VMs together have used up what they may have */
	BOOST_DECISION_COUNT = 8,
};

struct boost_observation {
	u64 now_ns;
	u64 vm_clock_ns;
	u64 host_clock_ns;
	u32 is_seen; /* the thread was seen to leave a guest */
	u32 is_real_time;
	u32 is_pinned;
	u32 reserved;
};

/* A clock that was left behind has a burst to spend, and no more. */
POLICY u64 boost_clock(const struct boost_config *config, u64 now_ns, u64 clock_ns)
{
	return vtime_before(clock_ns, now_ns - config->burst_ns) ? now_ns - config->burst_ns : clock_ns;
}

/* How far a boost that ran for ran_ns moves a clock. `percent`: whose. */
POLICY u64 boost_cost(const struct boost_config *config, u32 percent, u64 ran_ns)
{
	u64 ran = ran_ns < RAN_MAX_NS ? ran_ns : RAN_MAX_NS, parts = (u64)percent * config->pcpu_count;

	/* 10^10 * 100 < 2^40: the product fits. Without a budget each boost costs a whole burst. */
	return parts ? ran * 100 / parts : config->burst_ns;
}

POLICY u32 decide_on_boost(const struct boost_config *config, const struct boost_observation *seen)
{
	u64 vm_clock_ns = boost_clock(config, seen->now_ns, seen->vm_clock_ns);
	u64 host_clock_ns = boost_clock(config, seen->now_ns, seen->host_clock_ns);
	u64 half_spent_ns = seen->now_ns - config->burst_ns / 2;
	u64 last_tenth_ns = seen->now_ns - config->burst_ns / 10;

	if (!seen->is_seen)
		return BOOST_NOT_SEEN;
	if (seen->is_real_time)
		return BOOST_REAL_TIME;
	if (seen->is_pinned)
		return BOOST_PINNED;
	if (!config->vm_percent || !config->host_percent || vtime_before(seen->now_ns, vm_clock_ns))
		return BOOST_OVER_BUDGET;
	if (vtime_before(seen->now_ns, host_clock_ns))
		return BOOST_HOST_SPENT;
	if (vtime_before(last_tenth_ns, host_clock_ns) && vtime_before(half_spent_ns, vm_clock_ns))
		return BOOST_VM_AHEAD;
	return BOOST_GRANTED;
}

#endif
