/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Heirs: which stopped waiter runs when a lock is free of holders, and nobody takes it.
 *
 * Problem.   A lock that is handed on in line may be handed to a vCPU that was stopped while it waited. All
 *            behind it wait until it has a turn. No vCPU holds anything, so nobody is found to help.
 * Mechanism. Somebody of a VM waits for a lock, and nobody of it holds anything: then the heir of that lock
 *            is among the stopped waiters. They get a micro slice one after the other, until one of them is
 *            seen elsewhere than in its wait. Those that a kick has woken come first.
 * Formula.   try   if waiters > 0 and holders = 0 and helped = 0 and now >= rest_until
 *            A round of as many trials as there are stopped waiters may be in vain. After round n in vain in
 *            a row the VM rests for HEIR_REST_NS * 2^(n - 1), 16 of it at most.
 * Limits.    A running vCPU counts as a holder if it has disabled preemption and its last look wasn't in a
 *            wait. So a guest whose counter isn't known has no heirs. Holders of mutexes count nothing: their
 *            spinners are tried in vain, a round at a time. Nobody is asked for beyond what its VM may have:
 *            trials are charged like all other requests, and refused like them.
 */
#ifndef POLICY_HEIRS_H
#define POLICY_HEIRS_H

#include "held.h"

#define HEIR_REST_NS 1000000ull
#define HEIR_REST_DOUBLINGS 4u /* up to 16 ms */
/* A waiter that can't go on exits within a pause-loop window. One that ran for longer had the lock. */
#define HEIR_WAIT_SEEN_NS 30000ull

/* What came of the last trial. */
enum heir_trial {
	HEIR_TRIAL_NONE = 0, /* it isn't over yet, or there was none since the last look */
	HEIR_TRIAL_IN_VAIN = 1,
	HEIR_TRIAL_FOUND = 2, /* its vCPU was seen elsewhere than in its wait */
	HEIR_TRIAL_COUNT = 3,
};

/* The state of a VM, zero at first. */
struct heir_state {
	u64 rest_until_ns;
	u32 tried;	 /* in vain, in this round */
	u32 vain_rounds; /* in a row */
};

/* A VM in which somebody waits for a lock, as its host sees it. */
struct heir_observation {
	u64 now_ns;
	u32 waiter_count; /* siblings for which sibling_may_be_heir() holds */
	u32 holder_count; /* siblings for which sibling_may_hold() holds */
	u32 helped_count; /* siblings that help is on its way to, or in */
	enum heir_trial trial;
};

enum heir_decision {
	HEIR_TRY = 0,	    /* the next stopped waiter gets a micro slice */
	HEIR_NO_WAITER = 1, /* no waiter is stopped */
	HEIR_HELD = 2,	    /* somebody may hold the lock: it comes free by itself, or by that one's help */
	HEIR_UNDER_WAY = 3, /* one after the other */
	HEIR_RESTS = 4,	    /* whole rounds were in vain */
	HEIR_DECISION_COUNT = 5,
};

/* True if a lock may have been handed to this sibling, which can't take it now. */
POLICY u32 sibling_may_be_heir(u32 state, u32 guest_class)
{
	return state == VCPU_RUNNABLE && guest_class == GUEST_CLASS_LOCK_WAITER;
}

/*
 * True if a sibling may hold a lock: a handler that disabled no preemption holds none. Of one that runs only
 * its word is known; its class is that of the last look.
 */
POLICY u32 sibling_may_hold(u32 state, u32 count, u32 guest_class)
{
	u32 held;

	if (state == VCPU_BLOCKED)
		return 0;
	if (state == VCPU_RUNNING || state == VCPU_MICRO)
		return (count & COUNT_PREEMPTION) && guest_class != GUEST_CLASS_LOCK_WAITER;
	held = held_by_count(count, guest_class);
	return held == HELD_PREEMPTION || held == HELD_UNKNOWN;
}

/* What came of a trial whose vCPU was last seen in this class, and has run for so long since. */
POLICY u32 heir_trial_of(u32 guest_class, u64 ran_ns)
{
	return guest_class != GUEST_CLASS_LOCK_WAITER || ran_ns > HEIR_WAIT_SEEN_NS ? HEIR_TRIAL_FOUND
										    : HEIR_TRIAL_IN_VAIN;
}

/* Returns the state of a VM of which this is seen. */
POLICY struct heir_state heir_state_after(const struct heir_state *state, const struct heir_observation *seen)
{
	struct heir_state next = {};
	u32 doublings;

	if (seen->trial == HEIR_TRIAL_FOUND)
		return next;
	next = *state;
	if (seen->trial != HEIR_TRIAL_IN_VAIN)
		return next;
	next.tried++;
	if (next.tried <= seen->waiter_count)
		return next;
	doublings = next.vain_rounds < HEIR_REST_DOUBLINGS ? next.vain_rounds : HEIR_REST_DOUBLINGS;
	next.rest_until_ns = seen->now_ns + (HEIR_REST_NS << doublings);
	next.vain_rounds = doublings < HEIR_REST_DOUBLINGS ? next.vain_rounds + 1 : next.vain_rounds;
	next.tried = 0;
	return next;
}

struct heir_step {
	struct heir_state state; /* from now on */
	enum heir_decision decision;
	u32 reserved;
};

POLICY struct heir_step decide_on_heir(const struct heir_state *state, const struct heir_observation *seen)
{
	struct heir_step step = {.state = heir_state_after(state, seen), .decision = HEIR_TRY};

	if (!seen->waiter_count)
		step.decision = HEIR_NO_WAITER;
	else if (seen->holder_count)
		step.decision = HEIR_HELD;
	else if (seen->helped_count)
		step.decision = HEIR_UNDER_WAY;
	else if ((s64)(seen->now_ns - step.state.rest_until_ns) < 0)
		step.decision = HEIR_RESTS;
	return step;
}

#endif
