/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Looks: interrupts that wait for a vCPU that waits for a pCPU, and that nobody was told of.
 *
 * Problem.   With IPI virtualization an IPI exits nowhere, and devices may post their interrupts, too. If the
 *            recipient is preempted its sender spins, or its packet waits, until the recipient's next turn.
 * Mechanism. What was posted stands where the host can read it. So the host looks at waiting vCPUs, LOOK_MAX
 *            places at a time, by a cursor that goes round. An interrupt that it finds is treated like one
 *            that has just arrived (accelerate.h). Looks that find something are followed by one after
 *            LOOK_LEAST_NS. Each round that finds nothing doubles the interval, up to LOOK_MOST_NS.
 * Limits.    An interrupt waits for half an interval on average. On hosts with more than LOOK_MAX vCPUs a
 *            round takes several looks.
 */
#ifndef POLICY_LOOKS_H
#define POLICY_LOOKS_H

#include "types.h"

/* Places of vCPUs in one look: some microseconds of a pCPU, at most each LOOK_LEAST_NS. */
#define LOOK_MAX 32u
#define LOOK_LEAST_NS 100000ull /* 100 us: a micro slice, in which what was found is served */
#define LOOK_MOST_NS 500000ull	/* 500 us: what a rare packet waits for at most, on small hosts */

/* A bit per enum interrupt_kind. */
#define LOOK_BIT(kind) (1u << (kind))

/*
 * Returns the kind of the interrupt that a vCPU in this state is wanted for, of those that wait for it;
 * INTERRUPT_OTHER: none. A call comes first: its sender spins.
 */
POLICY u32 interrupt_by_look(u32 state, u32 pending)
{
	if (state != VCPU_RUNNABLE)
		return INTERRUPT_OTHER;
	if (pending & LOOK_BIT(INTERRUPT_IPI_CALL_FUNCTION))
		return INTERRUPT_IPI_CALL_FUNCTION;
	if (pending & LOOK_BIT(INTERRUPT_VIRQ))
		return INTERRUPT_VIRQ;
	return pending & LOOK_BIT(INTERRUPT_IPI_RESCHEDULE) ? INTERRUPT_IPI_RESCHEDULE : INTERRUPT_OTHER;
}

struct look_state {
	u64 interval_ns; /* until the next look; 0: there was none so far */
	u32 next;	 /* the place at which that begins */
	u32 in_vain;	 /* places that were looked at since the last find, or since the interval grew */
};

/* Returns the state after a look at LOOK_MAX of `count` places from `next` on. */
POLICY struct look_state look_after(const struct look_state *state, u32 count, u32 found_count)
{
	struct look_state after = *state;

	after.next = state->next + LOOK_MAX < count ? state->next + LOOK_MAX : 0;
	after.in_vain += LOOK_MAX;
	if (found_count || state->interval_ns < LOOK_LEAST_NS) {
		after.interval_ns = LOOK_LEAST_NS;
		after.in_vain = 0;
	} else if (after.in_vain >= count) {
		after.interval_ns =
		    2 * state->interval_ns < LOOK_MOST_NS ? 2 * state->interval_ns : LOOK_MOST_NS;
		after.in_vain = 0;
	}
	return after;
}

#endif
