/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Worth helping: a trial of whether help brings this VM anything.
 *
 * Problem.   Micro slices and patience make some VMs slower: a vCPU may wait for a lock in its micro slice,
 *            or a waiting sibling may preempt the next in line (docs/explanation/regret.md). No single event
 *            tells such a VM from one that gains by the same rules.
 * Mechanism. From time to time a VM is observed with help and without it, in turn. Each host tick that finds
 *            one of its vCPUs running is a sample: useful, or spent waiting. Without help there is no micro
 *            pool for the VM: none of its vCPUs is accelerated, and its spinners yield to the heir that KVM
 *            finds. A trial ends after the first two looks if these favour help, so that a VM that gains
 *            misses it for one look only. The result holds for a while: twice as long as before, if it is
 *            the same as before.
 * Formula.   d     = useful samples without help - useful samples with it, in looks of equal length
 *            off   : d > 0, d * d > 4 * (both), and d * 100 > HELP_GAIN_PERCENT * with it
 *            So help is off if the difference exceeds two standard deviations of such counts, and is worth
 *            it.
 * Limits.    A VM that changes between the looks misleads them, until the next trial. A VM that hardly runs
 *            gives no result, and is helped. Waiting that the guest kernel doesn't show (in user mode)
 *            counts as useful. The waiting time of its packets isn't considered.
 */
#ifndef POLICY_WORTH_HELPING_H
#define POLICY_WORTH_HELPING_H

#include "classify.h"

#define HELP_LOOKS 4u /* in a trial: with, without, with, without */
#define HELP_LOOK_NS 50000000ull
#define HELP_FIRST_NS 250000000ull /* a VM that has just started isn't typical yet */
#define HELP_HOLD_MIN_NS 1000000000ull
#define HELP_HOLD_MAX_NS 16000000000ull
#define HELP_GAIN_PERCENT 20u

/* The state of a VM, zero at first. `useful` is indexed by whether help was off. */
struct help_state {
	u64 since_ns; /* start of the current look */
	u64 until_ns; /* end of the current look, or of the time for which the result holds */
	u64 hold_ns;  /* how long the last result holds */
	u32 useful[2];
	u32 look; /* HELP_LOOKS: the trial is over, and its result holds */
	u32 is_off;
	u32 was_off; /* the last result */
	u32 reserved;
};

/* A host tick that found a vCPU of the VM running. */
struct help_observation {
	u64 now_ns;
	enum guest_class guest_class;
	u32 reserved;
};

/* True if a vCPU in this code makes progress. One that waits for a lock or for answers doesn't. */
POLICY u32 class_is_useful(u32 guest_class)
{
	return guest_class == GUEST_CLASS_USER || guest_class == GUEST_CLASS_KERNEL_OTHER ||
	       guest_class == GUEST_CLASS_LOCK_HOLDER || guest_class == GUEST_CLASS_RESCHED_IPI ||
	       guest_class == GUEST_CLASS_IRQ_HANDLER;
}

/*
 * Returns by how many samples the VM does better without help. Returns 0 unless that exceeds
 * sqrt(deviations_squared) standard deviations.
 */
POLICY u64 better_without(const struct help_state *state, u64 deviations_squared)
{
	u64 with = state->useful[0], without = state->useful[1], more = without > with ? without - with : 0;

	return more * more > deviations_squared * (with + without) ? more : 0;
}

POLICY struct help_state begin_help_look(const struct help_state *state, u64 now_ns, u32 look)
{
	struct help_state next = *state;

	if (look == 0) {
		next.useful[0] = 0;
		next.useful[1] = 0;
	}
	next.look = look;
	next.is_off = look & 1;
	next.since_ns = now_ns;
	next.until_ns = now_ns + HELP_LOOK_NS;
	return next;
}

POLICY struct help_state end_help_trial(const struct help_state *state, u64 now_ns, u32 is_off)
{
	struct help_state next = *state;
	u64 longer_ns = state->hold_ns * 2 < HELP_HOLD_MAX_NS ? state->hold_ns * 2 : HELP_HOLD_MAX_NS;

	next.hold_ns = is_off == state->was_off && state->hold_ns ? longer_ns : HELP_HOLD_MIN_NS;
	next.look = HELP_LOOKS;
	next.is_off = is_off;
	next.was_off = is_off;
	next.since_ns = now_ns;
	next.until_ns = now_ns + next.hold_ns;
	return next;
}

/* Decides at the end of a look. */
POLICY struct help_state decide_after_help_look(const struct help_state *state, u64 now_ns)
{
	u64 better = better_without(state, 4);
	u32 is_off = better * 100 > (u64)HELP_GAIN_PERCENT * state->useful[0];

	/* No vCPU ran when the look was due to end, so its counts cover a different length. */
	if (now_ns - state->since_ns > 2 * HELP_LOOK_NS)
		return end_help_trial(state, now_ns, 0);
	if (state->look == 1 && !better_without(state, 1))
		return end_help_trial(state, now_ns, 0);
	if (state->look + 1 < HELP_LOOKS)
		return begin_help_look(state, now_ns, state->look + 1);
	return end_help_trial(state, now_ns, is_off);
}

POLICY struct help_state decide_on_help(const struct help_state *state, const struct help_observation *seen)
{
	struct help_state next = *state;

	if (!state->until_ns) {
		next.look = HELP_LOOKS;
		next.until_ns = seen->now_ns + HELP_FIRST_NS;
		return next;
	}
	if (state->look < HELP_LOOKS && class_is_useful(seen->guest_class))
		next.useful[state->is_off & 1]++;
	if ((s64)(seen->now_ns - state->until_ns) < 0)
		return next;
	if (state->look >= HELP_LOOKS)
		return begin_help_look(state, seen->now_ns, 0);
	return decide_after_help_look(&next, seen->now_ns);
}

#endif
