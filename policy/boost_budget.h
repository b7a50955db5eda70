/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Boost budget: may this vCPU's thread become real-time for a micro slice, beside the kernel's own scheduler?
 *
 * Problem.   The kernel doesn't charge what a real-time thread runs to any share. A guest that keeps asking
 *            would have more of the host than its weight.
 * Mechanism. Each VM has a clock, and so does the host. A boost advances both by the time in which the
 *            budget grants as much. While a clock isn't ahead of the present there is budget left, at most
 *            that of burst_ns. Only time repays a debt. A VM without budget isn't boosted. If the host has
 *            none, no VM is.
 *            A VM that has used much is refused first: the last tenth of the host's burst is for VMs that
 *            still have half of their own.
 *            A vCPU that was woken is refused once half of its VM's burst is spent: the other half is for
 *            those that siblings or interrupts wait for.
 *            What a bound on waits asks for is neither refused nor counted here (max_wait.h).
 * Formula.   cost  = ran_ns * 100 / (percent * pcpu_count)
 *            clock = max(clock, now - burst_ns) + cost
 *            left  : clock <= now
 *            bound : a VM, and all together, run boosted for (time + burst_ns) * percent * pcpu_count / 100
 *            at most
 * Limits.    A boost that was granted isn't stopped. Both budgets may be overdrawn by a micro slice per
 *            vCPU; later boosts are then refused for longer.
 */
#ifndef POLICY_BOOST_BUDGET_H
#define POLICY_BOOST_BUDGET_H

#include "fair_share.h"

struct boost_config {
	u64 burst_ns;	  /* budget unused over this time can be spent at once */
	u32 vm_percent;	  /* share of the host for boosts of one VM; 0: none */
	u32 host_percent; /* share of the host for boosts of all VMs together; 0: none */
	u32 pcpu_count;
	u32 reserved;
};

enum boost_decision {
	BOOST_GRANTED = 0,
	BOOST_NOT_SEEN = 1,    /* the thread hasn't been seen to leave a guest, so it may not be a vCPU */
	BOOST_REAL_TIME = 2,   /* the operator made it real-time, or gave it a deadline */
	BOOST_PINNED = 3,      /* it may run on only one pCPU, chosen by the operator */
	BOOST_OVER_BUDGET = 4, /* its VM has used up its budget */
	/* Its VM has used much of its budget. The host's is nearly spent, or the vCPU was only woken. */
	BOOST_VM_AHEAD = 5,
	BOOST_NO_ROOM = 6,    /* the ring buffer to the helper is full */
	BOOST_HOST_SPENT = 7, /* all VMs together have used up the host's budget */
	BOOST_DECISION_COUNT = 8,
};

struct boost_observation {
	u64 now_ns;
	u64 vm_clock_ns;
	u64 host_clock_ns;
	u32 is_seen; /* the thread was seen to leave a guest */
	u32 is_real_time;
	u32 is_pinned;
	u32 for_bound; /* its VM's bound asks (max_wait.h), which bounds these by itself */
	u32 is_woken;  /* nobody asks but its own wait after a wake-up */
	u32 reserved;
};

/* Returns the clock, advanced so that at most one burst is saved up. */
POLICY u64 boost_clock(const struct boost_config *config, u64 now_ns, u64 clock_ns)
{
	return vtime_before(clock_ns, now_ns - config->burst_ns) ? now_ns - config->burst_ns : clock_ns;
}

/* Returns how far a boost of ran_ns advances a clock. `percent` is the share of the clock's owner. */
POLICY u64 boost_cost(const struct boost_config *config, u32 percent, u64 ran_ns)
{
	u64 ran = ran_ns < RAN_MAX_NS ? ran_ns : RAN_MAX_NS, parts = (u64)percent * config->pcpu_count;

	/* 10^10 * 100 < 2^40: the product fits. Without a budget, each boost costs a whole burst. */
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
	if (seen->for_bound)
		return BOOST_GRANTED;
	if (seen->is_pinned)
		return BOOST_PINNED;
	if (!config->vm_percent || !config->host_percent || vtime_before(seen->now_ns, vm_clock_ns))
		return BOOST_OVER_BUDGET;
	if (vtime_before(seen->now_ns, host_clock_ns))
		return BOOST_HOST_SPENT;
	if (seen->is_woken && vtime_before(half_spent_ns, vm_clock_ns))
		return BOOST_VM_AHEAD;
	if (vtime_before(last_tenth_ns, host_clock_ns) && vtime_before(half_spent_ns, vm_clock_ns))
		return BOOST_VM_AHEAD;
	return BOOST_GRANTED;
}

#endif
