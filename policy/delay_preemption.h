/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Delayed preemption: end a turn where no sibling waits for what the vCPU holds (Uhlig et al., VM'04,
 * section 3).
 *
 * Problem.   A turn that ends while its vCPU holds a lock makes siblings spin for whole turns of all others.
 * Mechanism. A window lies around the end of a turn. Within it the vCPU is preempted as soon as that is
 *            safe, and at its end in any case. A guest holds none of its kernel's locks in user mode or
 *            where it halts. That is the safe place by default, and needs neither symbols nor the guest's
 *            help (3.2). Two other choices treat as unsafe only critical code (classify.h), or only what the
 *            guest marks: "not now, for this long" (3.1). A guest with such hints has to give up its pCPU as
 *            soon as it may. If it doesn't, some of its next turns end early, at any place.
 *            The window slides. It begins before the end of the turn, by the mean delay from the begin of a
 *            window to the preemption. So turns are as long as due on average, whatever the guest does
 *            (3.3).
 *            Grace is a window that doesn't slide: it begins where the turn is over. It is measured by the
 *            grace already given, look by look, because an interrupted vCPU gets the rest later. A safe vCPU
 *            doesn't use it; a vCPU that would hold others up does. So grace makes turns longer, and the
 *            charge keeps shares.
 *            A woken vCPU, or one that asks for a micro slice, doesn't wait for the end of grace. The vCPU
 *            that it cuts short gets the rest of its turn later. If a woken vCPU had to wait, calls would
 *            ask for it, and the micro slice would take its boost.
 * Formula.   begin(n) = due(n) - mean of the last k offsets
 *            offset   = preempted - begin;  w / 2 for each of the k that isn't known yet
 *            end(n)   = begin(n) + w
 *            Over n turns the mean differs from what is due by (k + 1) * w / 2n at most, because offsets
 *            cancel out.
 * Limits.    A turn that lasts beyond its window counts as if it had ended with it: what a late timer adds
 *            isn't made up for.
 *            Time beyond a turn is charged like all other running: ends move, shares don't. A guest that is
 *            never safe gets no longer turns by that, and no help either. Spinlocks in user mode aren't seen
 *            (6.4).
 */
#ifndef POLICY_DELAY_PREEMPTION_H
#define POLICY_DELAY_PREEMPTION_H

#include "classify.h"

#define DELAY_HISTORY_MAX 16u
#define DELAY_WINDOW_MAX_NS 1000000000ull /* 1 s: longer than any turn */
#define DELAY_PENALTY_MAX 64u		  /* in turns */

/* Where a vCPU isn't preempted inside the window. */
enum delay_unsafe {
	DELAY_IN_KERNEL = 0, /* everywhere except in user mode and in the idle loop (3.2) */
	/* Code of Table 3, where locks are mostly held; and while an answer to a call is owed. */
	DELAY_IN_CRITICAL_CODE = 1,
	DELAY_WHERE_HINTED = 2, /* where the guest asks for it (3.1) */
	DELAY_UNSAFE_COUNT = 3,
};

struct delay_config {
	u64 window_ns; /* w; 0: turns end when they are over */
	u64 look_ns;   /* time between two looks in the window; 0: the host is told of each change */
	u32 history;   /* k, from 1 to DELAY_HISTORY_MAX; 0: the window doesn't slide, which is grace */
	enum delay_unsafe unsafe_where;
};

/* The state of a vCPU, zero at first. */
struct delay_state {
	u64 offset_sum_ns;
	u32 offset_count;  /* the number of known offsets, up to k */
	u32 oldest;	   /* index of the offset to replace next */
	u32 overdrawn;	   /* how many times in a row the guest kept its pCPU until the window ended */
	u32 penalty_turns; /* the number of next turns that end early, at any place */
	u32 offsets_ns[DELAY_HISTORY_MAX];
};

struct delay_window {
	u64 begin_ns;
	u64 end_ns;
};

struct delay_observation {
	struct delay_window window;
	u64 now_ns;
	u64 hint_ns; /* how long the guest asks not to be preempted; 0: it doesn't ask */
	enum guest_class guest_class;
	/* The guest runs, or has run, code that the host injected where no lock is held (3.2). */
	u32 at_safe_point;
	enum sibling_answer answer; /* an interrupt may have arrived after the turn was over */
	u32 is_cut_short;	    /* in grace: another task has to run before the turn is over */
};

enum delay_verdict {
	DELAY_NOT_YET = 0, /* the window hasn't begun */
	DELAY_GOES_ON = 1,
	DELAY_ENDS_SAFE = 2,
	DELAY_ENDS_FORCED = 3,
	DELAY_VERDICT_COUNT = 4,
};

struct delay_decision {
	enum delay_verdict verdict;
	u32 reserved;
	u64 look_at_ns; /* when to look again, unless something changes before */
};

/* Bounds k: a configuration can't divide by 0 or index beyond the history. */
POLICY u32 delay_history(const struct delay_config *config)
{
	u32 history = config->history ? config->history : 1;

	return history < DELAY_HISTORY_MAX ? history : DELAY_HISTORY_MAX;
}

POLICY u64 delay_window_ns(const struct delay_config *config)
{
	return config->window_ns < DELAY_WINDOW_MAX_NS ? config->window_ns : DELAY_WINDOW_MAX_NS;
}

/* True if turns have a window around their ends, rather than grace. */
POLICY u32 window_slides(const struct delay_config *config)
{
	return config->window_ns && config->history;
}

/* Returns the window of grace, measured by its own clock. */
POLICY struct delay_window delay_window_of_grace(const struct delay_config *config)
{
	struct delay_window window = {.begin_ns = 0, .end_ns = delay_window_ns(config)};

	return window;
}

/* Returns how far before the end of the turn the window begins. */
POLICY u64 delay_offset_ns(const struct delay_config *config, const struct delay_state *state)
{
	u32 history = delay_history(config);
	u32 known = state->offset_count < history ? state->offset_count : history;

	return (state->offset_sum_ns + (history - known) * (delay_window_ns(config) / 2)) / history;
}

/* Returns the window around the end of a turn that is due at due_ns. */
POLICY struct delay_window delay_window_around(const struct delay_config *config,
					       const struct delay_state *state, u64 due_ns)
{
	u64 window_ns = delay_window_ns(config);
	struct delay_window window = {};

	if (state->penalty_turns) {
		window.begin_ns = due_ns - window_ns;
		window.end_ns = window.begin_ns;
	} else {
		window.begin_ns = due_ns - delay_offset_ns(config, state);
		window.end_ns = window.begin_ns + window_ns;
	}
	return window;
}

/* Returns the window in which a turn may continue although another task has to run before it is over. */
POLICY struct delay_window delay_window_from(const struct delay_config *config,
					     const struct delay_state *state, u64 now_ns)
{
	u64 window_ns = state->penalty_turns ? 0 : delay_window_ns(config);
	struct delay_window window = {.begin_ns = now_ns, .end_ns = now_ns + window_ns};

	return window;
}

POLICY u32 is_safe_to_preempt(const struct delay_config *config, const struct delay_observation *seen)
{
	if (seen->at_safe_point || (!config->history && seen->is_cut_short))
		return 1;
	if (config->unsafe_where == DELAY_WHERE_HINTED)
		return !seen->hint_ns;
	if (config->unsafe_where == DELAY_IN_CRITICAL_CODE)
		return !class_is_critical(seen->guest_class) && seen->answer != ANSWER_OWED;
	return seen->guest_class == GUEST_CLASS_USER || seen->guest_class == GUEST_CLASS_IDLE;
}

/* Returns the end of the window for this guest. A guest with hints may choose an earlier end. */
POLICY u64 delay_end_ns(const struct delay_config *config, const struct delay_observation *seen)
{
	u64 length_ns = seen->window.end_ns - seen->window.begin_ns;

	if (config->unsafe_where == DELAY_WHERE_HINTED && seen->hint_ns < length_ns)
		return seen->window.begin_ns + seen->hint_ns;
	return seen->window.end_ns;
}

POLICY struct delay_decision decide_on_delay(const struct delay_config *config,
					     const struct delay_observation *seen)
{
	u64 end_ns = delay_end_ns(config, seen);
	struct delay_decision decision = {.look_at_ns = end_ns};

	if ((s64)(seen->now_ns - seen->window.begin_ns) < 0) {
		decision.verdict = DELAY_NOT_YET;
		decision.look_at_ns = seen->window.begin_ns;
	} else if (is_safe_to_preempt(config, seen)) {
		decision.verdict = DELAY_ENDS_SAFE;
	} else if ((s64)(seen->now_ns - end_ns) >= 0) {
		decision.verdict = DELAY_ENDS_FORCED;
	} else {
		decision.verdict = DELAY_GOES_ON;
		if (config->look_ns && config->look_ns < end_ns - seen->now_ns)
			decision.look_at_ns = seen->now_ns + config->look_ns;
	}
	return decision;
}

POLICY void keep_offset(const struct delay_config *config, struct delay_state *state, u64 offset_ns)
{
	u32 history = delay_history(config), at = state->oldest % DELAY_HISTORY_MAX;
	u64 window_ns = delay_window_ns(config);
	/* A turn that begins in its window lasts for a moment all the same. */
	u32 offset = offset_ns < window_ns ? offset_ns : window_ns;

	if (state->offset_count < history)
		state->offset_count++;
	else
		state->offset_sum_ns -= state->offsets_ns[at];
	state->offset_sum_ns += offset;
	state->offsets_ns[at] = offset;
	state->oldest = (at + 1) % history;
}

/* Penalises a guest that kept its pCPU although it had to give it up. */
POLICY void penalise(struct delay_state *state)
{
	state->overdrawn = state->overdrawn < 6 ? state->overdrawn + 1 : 6;
	state->penalty_turns = 1u << state->overdrawn;
	if (state->penalty_turns > DELAY_PENALTY_MAX)
		state->penalty_turns = DELAY_PENALTY_MAX;
}

/*
 * Returns the state after a turn that ended in its window (delay_window_around()), or after a penalised turn
 * that ended where its window began.
 */
POLICY struct delay_state delay_after_turn(const struct delay_config *config, const struct delay_state *state,
					   const struct delay_observation *seen, u32 verdict)
{
	struct delay_state next = *state;

	if (state->penalty_turns) {
		next.penalty_turns--;
		return next;
	}
	keep_offset(config, &next, seen->now_ns - seen->window.begin_ns);
	if (config->unsafe_where != DELAY_WHERE_HINTED)
		return next;
	if (verdict == DELAY_ENDS_FORCED)
		penalise(&next);
	else
		next.overdrawn = 0;
	return next;
}

#endif
