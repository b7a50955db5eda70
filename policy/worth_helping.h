/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Worth helping: does help bring this VM anything? It is tried.
 *
 * Problem.   Micro slices and patience make some VMs slower: where a vCPU waits for a lock in its micro
 *            slice, or where a sibling that waits preempted the next in line (docs/explanation/regret.md). No
 *            single event tells such a VM from one that gains by the same rules.
 * Mechanism. Now and then a VM is looked at with help and without, by turns. Each tick of the host that finds
 *            one of its vCPUs running is a sample: useful, or spent waiting. Without help there is no micro
 *            pool for it: nobody is accelerated, and a spinner yields to the heir that KVM finds. A trial
 *            ends after the first two looks if these speak for help: a VM that gains by it is without it for
 *            one look. What was found holds for a while: twice as long as before, if it is what was found
 *            before.
 * Formula.   d     = useful without help - useful with it, of looks equally long
 *            off   : d > 0, d * d > 4 * (both), and d * 100 > HELP_GAIN_PERCENT * with it
 *            Two standard deviations of such counts, and a gain that is worth it.
 * Limits.    A VM that changes between its looks misleads them, until the next trial. One that hardly runs
 *            tells nothing, and is helped. Waiting that the kernel of the guest doesn't show (in user mode)
 *            counts as useful. How long its packets wait isn't asked.
 */
#ifndef POLICY_WORTH_HELPING_H
#define POLICY_WORTH_HELPING_H

#include "classify.h"

#define HELP_LOOKS 4u /* of a trial: with, without, with, without */
#define HELP_LOOK_NS 50000000ull
#define HELP_FIRST_NS 250000000ull /* a VM that has just come isn't what it will be */
#define HELP_HOLD_MIN_NS 1000000000ull
#define HELP_HOLD_MAX_NS 16000000000ull
#define HELP_GAIN_PERCENT 20u

/* Of a VM; zero at first. Indexed by whether help was off. */
struct help_state {
	u64 since_ns; /* the look under way */
	u64 until_ns; /* of it, or of what was found */
	u64 hold_ns;  /* for how long what was found last holds */
	u32 useful[2];
	u32 look; /* HELP_LOOKS: what was found holds */
	u32 is_off;
	u32 was_off; /* what was found last */
	u32 reserved;
};

/* A tick of the host has found a vCPU of the VM running. */
struct help_observation {
	u64 now_ns;
	enum guest_class guest_class;
	u32 reserved;
};

/* Does it get on with its work? A vCPU that waits for a lock or for answers doesn't. */
POLICY u32 class_is_useful(u32 guest_class)
{
	return guest_class == GUEST_CLASS_USER || guest_class == GUEST_CLASS_KERNEL_OTHER ||
	       guest_class == GUEST_CLASS_LOCK_HOLDER || guest_class == GUEST_CLASS_RESCHED_IPI ||
	       guest_class == GUEST_CLASS_IRQ_HANDLER;
}

/*
 * By how many samples a VM does better without help; 0: not by more than `deviations_squared` standard
 * deviations, squared.
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

/* A look of a trial is over. */
POLICY struct help_state decide_after_help_look(const struct help_state *state, u64 now_ns)
{
	u64 better = better_without(state, 4);
	u32 is_off = better * 100 > (u64)HELP_GAIN_PERCENT * state->useful[0];

	/* Nobody ran when it was to end: what was counted is of another length. */
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
