/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Pay back: which weight has a group of VMs until what it had by boosts is paid back?
 *
 * Problem.   The kernel doesn't charge what a real-time thread runs to its group. A group that is boosted has
 *            its share by weight, and its boosts beyond that.
 * Mechanism. The host looks at each group now and then: a VM's cgroup, and each one that it lies in. What
 *            its VMs had by boosts is owed. Its weight is lowered so that it pays that back until the next
 *            look. Others of the same weight then have as much as it has with its boosts. What is left by
 *            rounding is owed at the next look.
 * Formula.   by_weight = ran - boosted
 *            paid   = by_weight * (weight / weight_now - 1)
 *            owed   = owed + boosted - paid, 0 to by_weight
 *            weight = weight * by_weight / (by_weight + owed), half of it at least
 * Limits.    A group that nobody competes with pays nothing, and owes nothing for long. Whoever has hardly
 *            anything but boosts pays with half of its weight. Boosts of the time between two looks are paid
 *            back in the next one.
 */
#ifndef POLICY_PAY_BACK_H
#define POLICY_PAY_BACK_H

#include "types.h"

#define PAY_BACK_PERIOD_NS 1000000000ull /* from look to look: a change of weight touches each pCPU */
#define PAY_BACK_RAN_MAX_NS (1ull << 43) /* of a look: 2.4 hours. Times a weight of 2^18 it fits */
#define PAY_BACK_WEIGHT_MAX (1u << 18)	 /* cpu.shares; that of cpu.weight is less */

struct pay_back_observation {
	u64 owed_ns;	/* at the look before */
	u64 boosted_ns; /* since then, of all VMs in it */
	u64 ran_ns;	/* since then, of all that is in it, boosts too */
	u32 weight;	/* the operator's */
	u32 weight_now; /* since the look before */
};

struct pay_back_decision {
	u64 owed_ns;
	u32 weight; /* until the next look */
	u32 reserved;
};

POLICY u64 pay_back_limited(u64 value, u64 most)
{
	return value < most ? value : most;
}

POLICY struct pay_back_decision decide_on_pay_back(const struct pay_back_observation *seen)
{
	u64 ran_ns = pay_back_limited(seen->ran_ns, PAY_BACK_RAN_MAX_NS);
	u64 boosted_ns = pay_back_limited(seen->boosted_ns, ran_ns), by_weight_ns = ran_ns - boosted_ns;
	u64 weight = pay_back_limited(seen->weight, PAY_BACK_WEIGHT_MAX), paid_ns = 0, all_ns;
	struct pay_back_decision decision = {.weight = seen->weight};

	if (!weight)
		return decision;
	if (seen->weight_now && seen->weight_now < weight)
		paid_ns = by_weight_ns * (weight - seen->weight_now) / seen->weight_now;
	decision.owed_ns = pay_back_limited(seen->owed_ns, PAY_BACK_RAN_MAX_NS) + boosted_ns;
	decision.owed_ns = paid_ns < decision.owed_ns ? decision.owed_ns - paid_ns : 0;
	decision.owed_ns = pay_back_limited(decision.owed_ns, by_weight_ns);
	all_ns = by_weight_ns + decision.owed_ns;
	if (all_ns)
		decision.weight = (weight * by_weight_ns + all_ns / 2) / all_ns;
	return decision;
}

#endif
