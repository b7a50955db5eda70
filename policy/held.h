/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Held: what a stopped vCPU holds, by its guest kernel's own count.
 *
 * Problem.   A list of functions finds few of the vCPUs that were stopped with a lock held: most were in a
 *            function that is called both with locks and without.
 * Mechanism. Linux keeps a word per CPU, `preempt_count` (include/linux/preempt.h). Each spinlock, softirq
 *            and hard interrupt counts there. The host reads it when it stops the vCPU (bpf/core/held.bpf.h).
 *            A word that isn't zero means that others may wait. Waiters, senders of cross-calls and the idle
 *            loop count there, too: others don't wait for them.
 * Layout.    bits 0-7 preemption disabled, 8-15 softirqs (bit 8: one runs; above it: they are disabled),
 *            16-19 hard interrupts, 20-23 NMIs, bit 31 of x86, inverted: nothing is to be scheduled
 * Belief.    Nothing but symbols says where the word is, and a guest may do as it likes. In user mode the
 *            word is 0. In the idle loop, and where a lock's waiter spins or halts, it isn't. A guest is
 *            believed once BELIEF_LOOKS looks of each kind were right, and no doubt is left. A wrong look
 *            adds BELIEF_WRONG_COSTS doubts, a right one of its kind takes one away. Beyond BELIEF_DOUBT_MAX
 *            the guest isn't believed until its words are found anew. Few looks have to do: where most
 *            vCPUs wait for a lock, one stop of a hundred or two is in user mode.
 * Limits.    A holder of a mutex may be preempted by its own kernel: it counts nothing. Disabled interrupts
 *            count nothing. What a guest gains by a forged word is bounded where requests are bounded.
 */
#ifndef POLICY_HELD_H
#define POLICY_HELD_H

#include "classify.h"

/* What a vCPU held when it was stopped. Of several things, a lock is named, or the one that ends first. */
enum held {
	HELD_UNKNOWN = 0,    /* its word wasn't read, or its guest isn't believed */
	HELD_NOTHING = 1,    /* nobody waits for it */
	HELD_PREEMPTION = 2, /* preemption was disabled: a spinlock, or another such section */
	HELD_BH = 3,	     /* softirqs were disabled */
	HELD_SOFTIRQ = 4,    /* it was in a softirq */
	HELD_HARDIRQ = 5,    /* it was in a hard interrupt or an NMI */
	HELD_COUNT = 6,
};

#define COUNT_PREEMPTION 0x000000ffu
#define COUNT_SOFTIRQ 0x0000ff00u
#define COUNT_IN_SOFTIRQ 0x00000100u
#define COUNT_HARDIRQ 0x00ff0000u /* and NMIs */
#define COUNT_NO_RESCHED 0x80000000u
/* Deeper than any kernel nests sections without preemption. */
#define COUNT_PREEMPTION_MAX 64u

/* True if others may wait for code of this class while it counts something. */
POLICY u32 class_may_hold(u32 guest_class)
{
	return guest_class == GUEST_CLASS_KERNEL_OTHER || guest_class == GUEST_CLASS_LOCK_HOLDER ||
	       guest_class == GUEST_CLASS_RESCHED_IPI || guest_class == GUEST_CLASS_IRQ_HANDLER;
}

/* True if a kernel's word may be so. */
POLICY u32 count_is_sane(u32 count)
{
	u32 known = COUNT_PREEMPTION | COUNT_SOFTIRQ | COUNT_HARDIRQ | COUNT_NO_RESCHED;

	return !(count & ~known) && (count & COUNT_PREEMPTION) <= COUNT_PREEMPTION_MAX;
}

/* Returns what a vCPU holds that was stopped in code of this class, with this word. */
POLICY u32 held_by_count(u32 count, u32 guest_class)
{
	if (guest_class == GUEST_CLASS_UNKNOWN || !count_is_sane(count))
		return HELD_UNKNOWN;
	if (!class_may_hold(guest_class))
		return HELD_NOTHING;
	if (count & COUNT_PREEMPTION)
		return HELD_PREEMPTION;
	if (count & COUNT_HARDIRQ)
		return HELD_HARDIRQ;
	if (count & COUNT_IN_SOFTIRQ)
		return HELD_SOFTIRQ;
	return count & COUNT_SOFTIRQ ? HELD_BH : HELD_NOTHING;
}

/* ---- Belief ---- */

/* What a word has to be like, by the class of the code. */
enum count_kind {
	COUNT_KIND_ZERO = 0,
	COUNT_KIND_SOMETHING = 1,
	COUNT_KIND_ANY = 2, /* nothing is known of it but its bits */
	COUNT_KIND_COUNT = 3,
};

enum belief {
	BELIEF_OPEN = 0, /* too few looks */
	BELIEF_BELIEVED = 1,
	BELIEF_LOST = 2,
	BELIEF_COUNT = 3,
};

#define BELIEF_KINDS 2u	      /* those that prove something */
#define BELIEF_LOOKS 4u	      /* right ones of each kind, to be believed */
#define BELIEF_WRONG_COSTS 7u /* belief is lost in the end if more than one look of eight is wrong */
#define BELIEF_DOUBT_MAX 128u

/* What is known of a guest's words, zero at first. */
struct count_belief {
	u32 right[BELIEF_KINDS]; /* up to BELIEF_LOOKS */
	u32 doubt[BELIEF_KINDS];
	enum belief belief;
	u32 reserved;
};

/* A word, and where its vCPU was stopped. */
struct count_look {
	u32 count;
	enum guest_class guest_class;
};

/* Returns what the word of a vCPU that was stopped there has to be like: enum count_kind. */
POLICY u32 count_kind_of(u32 guest_class)
{
	if (guest_class == GUEST_CLASS_USER)
		return COUNT_KIND_ZERO;
	if (guest_class == GUEST_CLASS_IDLE || guest_class == GUEST_CLASS_LOCK_WAITER)
		return COUNT_KIND_SOMETHING;
	return COUNT_KIND_ANY;
}

/* True if the word is as it has to be there. */
POLICY u32 count_is_right(const struct count_look *look)
{
	u32 kind = count_kind_of(look->guest_class), counted = look->count & ~COUNT_NO_RESCHED;

	if (!count_is_sane(look->count))
		return 0;
	if (kind == COUNT_KIND_ANY)
		return 1;
	return kind == COUNT_KIND_ZERO ? !counted : counted != 0;
}

POLICY struct count_belief belief_after(const struct count_belief *before, const struct count_look *look)
{
	struct count_belief after = *before;
	u32 kind = count_kind_of(look->guest_class), right = count_is_right(look);

	if (before->belief == BELIEF_LOST || look->guest_class == GUEST_CLASS_UNKNOWN)
		return after;
	/* Bits that no kernel has there are wrong wherever it was stopped. */
	if (kind == COUNT_KIND_ANY && !right)
		kind = COUNT_KIND_ZERO;
	if (kind == COUNT_KIND_ANY)
		return after;
	kind &= BELIEF_KINDS - 1;
	if (right) {
		if (after.right[kind] < BELIEF_LOOKS)
			after.right[kind]++;
		if (after.doubt[kind])
			after.doubt[kind]--;
	} else {
		after.doubt[kind] += BELIEF_WRONG_COSTS;
	}
	if (after.doubt[kind] > BELIEF_DOUBT_MAX)
		after.belief = BELIEF_LOST;
	else if (after.right[COUNT_KIND_ZERO] >= BELIEF_LOOKS &&
		 after.right[COUNT_KIND_SOMETHING] >= BELIEF_LOOKS && !after.doubt[COUNT_KIND_ZERO] &&
		 !after.doubt[COUNT_KIND_SOMETHING])
		after.belief = BELIEF_BELIEVED;
	return after;
}

/* ---- Use ---- */

/* By what a lock's holder is known. */
enum critical_by {
	CRITICAL_BY_SYMBOLS = 0, /* the function that it was stopped in */
	CRITICAL_BY_COUNTER = 1, /* its kernel's count; where that isn't known, the function */
	CRITICAL_BY_BOTH = 2,	 /* either of them */
	CRITICAL_BY_COUNT = 3,
};

/*
 * Returns the class by which policies know a vCPU: GUEST_CLASS_LOCK_HOLDER if it holds something, and no
 * other critical class says more.
 */
POLICY u32 class_by_held(u32 critical_by, u32 held, u32 guest_class)
{
	if (critical_by == CRITICAL_BY_SYMBOLS || held == HELD_UNKNOWN)
		return guest_class;
	if (held == HELD_NOTHING)
		return critical_by == CRITICAL_BY_COUNTER && guest_class == GUEST_CLASS_LOCK_HOLDER
			   ? GUEST_CLASS_KERNEL_OTHER
			   : guest_class;
	return class_is_critical(guest_class) ? guest_class : GUEST_CLASS_LOCK_HOLDER;
}

/* A vCPU stops, and its word was read. */
struct count_observation {
	enum critical_by critical_by;
	u32 reserved;
	struct count_belief belief; /* in its guest so far */
	struct count_look look;
};

struct count_decision {
	struct count_belief belief; /* from now on */
	enum held held;
	enum guest_class guest_class; /* by which the other policies know the vCPU */
};

POLICY struct count_decision decide_on_count(const struct count_observation *seen)
{
	struct count_decision decision = {.belief = belief_after(&seen->belief, &seen->look)};

	decision.held = decision.belief.belief == BELIEF_BELIEVED
			    ? held_by_count(seen->look.count, seen->look.guest_class)
			    : HELD_UNKNOWN;
	decision.guest_class = class_by_held(seen->critical_by, decision.held, seen->look.guest_class);
	return decision;
}

/* ---- Who is asked for ---- */

/* Stops in a row at which a vCPU held something. Then it isn't asked for until it is seen to hold nothing. */
#define HOLDS_ALWAYS 16u

/* Returns how many of a vCPU's last stops found it holding something. */
POLICY u32 holds_in_a_row(u32 before, u32 held)
{
	if (held <= HELD_NOTHING)
		return 0;
	return before < HOLDS_ALWAYS ? before + 1 : HOLDS_ALWAYS;
}

/* True if a vCPU always holds something, which no kernel does: it is asked for by hints only. */
POLICY u32 holds_always(u32 in_a_row)
{
	return in_a_row >= HOLDS_ALWAYS;
}

/*
 * True if a vCPU that was stopped with this, and could go on, is asked for at once. Siblings may spin for a
 * lock. Nobody spins for the end of a handler, and who waits for one gives a hint.
 */
POLICY u32 holder_is_asked_for(u32 critical_by, u32 held)
{
	return critical_by != CRITICAL_BY_SYMBOLS && held == HELD_PREEMPTION;
}

#endif
