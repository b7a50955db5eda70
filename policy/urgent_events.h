/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Urgent events: the events that Algorithm 1 (pool_size.h) counts.
 *
 * Problem.   Algorithm 1 reserves pCPUs because of IPIs, pause-loop exits and device interrupts (paper 4.3
 *            and 5). Most of these need no help: a halt in the idle loop, a spin in user mode, an interrupt
 *            to a running vCPU.
 * Mechanism. An event is urgent if a micro pCPU would be used for it, whether there is one or not. The
 *            decision on the event (accelerate.h) tells that. So the size of the pool doesn't affect which
 *            events count.
 *
 *              URGENT_IPI  a yield caused by an IPI: in a shootdown, or to a preempted target ("the number of
 *                          yields caused by IPIs", section 5). Or a call whose recipient waits for a pCPU,
 *                          since a requester that spins without yielding shows nothing else; the paper
 *                          doesn't count it
 *              URGENT_PLE  a wait for a lock: a pause-loop exit, or the halt that ends such a spin in a
 *                          paravirtual guest; and a stop after which a holder or an heir is asked for
 *              URGENT_IRQ  a device interrupt whose recipient waits for a pCPU, because it was preempted, or
 *                          because it was woken and isn't boosted
 *
 * Limits.    The paper counts every pause-loop exit and every device interrupt, as Xen does, and no halts
 *            (paper_rules). Here two kinds reserve no pCPUs: spins in user mode, for which no vCPU is
 *            accelerated (4.4), and events of guests without symbols.
 */
#ifndef POLICY_URGENT_EVENTS_H
#define POLICY_URGENT_EVENTS_H

#include "accelerate.h"

enum urgent_event {
	URGENT_NONE = 0,
	URGENT_IPI = 1,
	URGENT_PLE = 2,
	URGENT_IRQ = 3,
	URGENT_EVENT_COUNT = 4,
};

/*
 * Returns the urgent event of a yield whose decision has this cause. An exit in a shootdown is one by IPIs in
 * the paper, too.
 */
POLICY u32 urgent_event_of_yield(const struct yield_observation *seen, u32 cause)
{
	if (cause == CAUSE_TLB_YIELD || cause == CAUSE_PV_YIELD)
		return URGENT_IPI;
	if (seen->paper_rules)
		return seen->cause == YIELD_PLE ? URGENT_PLE : URGENT_NONE;
	return cause == CAUSE_LOCK_YIELD || cause == CAUSE_LOCK_HALT ? URGENT_PLE : URGENT_NONE;
}

/*
 * Returns the urgent event of an interrupt of this kind (enum interrupt_kind), by the reason of its
 * decision. An interrupt to a blocked recipient is counted when the recipient is woken; in the paper each is
 * counted as it comes.
 */
POLICY u32 urgent_event_of_interrupt(u32 paper_rules, u32 kind, u32 reason)
{
	u32 needs_help = reason == INTERRUPT_REQUESTS || reason == INTERRUPT_ALREADY_REQUESTED ||
			 reason == INTERRUPT_NO_MICRO_POOL;

	if (paper_rules)
		return kind == INTERRUPT_VIRQ ? URGENT_IRQ : URGENT_NONE;
	if (kind == INTERRUPT_IPI_CALL_FUNCTION && needs_help)
		return URGENT_IPI;
	return kind == INTERRUPT_VIRQ && needs_help ? URGENT_IRQ : URGENT_NONE;
}

/*
 * Returns the urgent event of a wake-up, by the reason of its decision. A lock's kick isn't counted, because
 * the halt that it ends was. In the paper the interrupt was.
 */
POLICY u32 urgent_event_of_wakeup(u32 paper_rules, const struct woken_observation *seen, u32 reason)
{
	u32 needs_help = reason == WOKEN_REQUESTS || reason == WOKEN_NO_MICRO_POOL;

	if (paper_rules)
		return URGENT_NONE;
	return seen->interrupted && seen->kind == INTERRUPT_VIRQ && needs_help ? URGENT_IRQ : URGENT_NONE;
}

/*
 * Returns the urgent event of a stop after which a vCPU is asked for with this cause. Waiters whose spins
 * don't exit make no other.
 */
POLICY u32 urgent_event_of_stop(u32 cause)
{
	return cause == CAUSE_HOLDER || cause == CAUSE_HEIR ? URGENT_PLE : URGENT_NONE;
}

#endif
