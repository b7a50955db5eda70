/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Delayed preemption: a turn ends where nobody waits for what its vCPU holds (Uhlig et al., VM'04, section
 * 3).
 *
 * Problem.   A turn that ends while its vCPU holds a lock makes siblings spin for whole turns of all others.
 * Mechanism. A window lies around the end of a turn. In it the vCPU is preempted as soon as that is safe, at
 *            its end in any case. A guest holds none of its kernel's locks in user mode, nor where it halts:
 *            without the guest's help that is what is safe, and needs no symbols (3.2). By choice only
 *            critical code is unsafe (classify.h), or only what the guest itself calls so: "not now, for so
 *            long" (3.1). Such a guest is to give its pCPU up as soon as it may. If it doesn't, some of its
 *            next turns end early, and untimely.
 *            The window slides: it begins before the end of the turn, by the mean delay from its begin to a
 *            preemption. So turns are as long as due on average, whatever the guest does (3.3).
 *            Grace is a window that doesn't slide: it begins where the turn is over. Its clock is what was
 *            given of it, look by look, since a vCPU interrupted in it has the rest later. A safe vCPU has no
 *            use for it; one that would hold others up has it. So it makes turns longer, and the charge keeps
 *            shares.
 *            A woken vCPU, or one that asks for a micro slice, doesn't wait for it: the vCPU that is cut
 *            short has the rest of its turn to come. A woken one that waits is asked for by calls, and the
 *            micro slice takes its boost.
 * Formula.   begin(n) = due(n) - mean of the last k offsets offset = preempted - begin, w / 2 while there are
 *            fewer
 *            end(n)   = begin(n) + w
 *            Over n turns the mean differs from what is due by (k + 1) * w / 2n at the most, since offsets
 *            cancel out.
 * Limits.    What is run beyond a turn is charged as all running is: this moves ends, not shares. A guest
 *            that never is safe gets no longer turns for it, nor is it helped. Spinlocks of user mode aren't
 *            seen (6.4).
 */
#ifndef POLICY_DELAY_PREEMPTION_H
#define POLICY_DELAY_PREEMPTION_H

#include "classify.h"

#define DELAY_HISTORY_MAX 16u
#define DELAY_WINDOW_MAX_NS 1000000000ull /* 1 s: longer than any turn */
#define DELAY_PENALTY_MAX 64u		  /* turns */

/* Where a vCPU isn't preempted inside the window. */
enum delay_unsafe {
	DELAY_IN_KERNEL = 0, /* everywhere but in user mode and in the idle loop (3.2) */
	/* Table 3's code, where locks are held, mostly; and before a call is answered. */
	DELAY_IN_CRITICAL_CODE = 1,
	DELAY_WHERE_HINTED = 2, /* where the guest says so (3.1) */
	DELAY_UNSAFE_COUNT = 3,
};

struct delay_config {
	u64 window_ns; /* w; 0: turns end when they are over */
	u64 look_ns;   /* between two looks in the window; 0: the host is told of each change */
	u32 history;   /* k, from 1 to DELAY_HISTORY_MAX; 0: the window doesn't slide, which is grace */
	enum delay_unsafe unsafe_where;
};

/* Of a vCPU; zero at first. */
struct delay_state {
	u64 offset_sum_ns;
	u32 offset_count;  /* so many are known, up to k */
	u32 oldest;	   /* which of them is replaced next */
	u32 overdrawn;	   /* how often in a row the guest kept its pCPU until it was taken away */
	u32 penalty_turns; /* so many of its next turns end early and untimely */
	u32 offsets_ns[DELAY_HISTORY_MAX];
};

struct delay_window {
	u64 begin_ns;
	u64 end_ns;
};

struct delay_observation {
	struct delay_window window;
	u64 now_ns;
	u64 hint_ns; /* the guest has said: not now, for so long; 0: it hasn't */
	enum guest_class guest_class;
	/* The guest runs, or has run, what the host put in where no lock is held (3.2, injection) */
	u32 at_safe_point;
	enum sibling_answer answer; /* an interrupt may have come when the turn was over already */
	u32 is_cut_short;	    /* of grace: another is to run before the turn is over */
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
	u64 look_at_ns; /* when it is to be looked at again, unless it changes before */
};

/* Nobody's configuration may divide by 0, or lead beyond the history. */
POLICY u32 delay_history(const struct delay_config *config)
{
	u32 history = config->history ? config->history : 1;

	return history < DELAY_HISTORY_MAX ? history : DELAY_HISTORY_MAX;
}

POLICY u64 delay_window_ns(const struct delay_config *config)
{
	return config->window_ns < DELAY_WINDOW_MAX_NS ? config->window_ns : DELAY_WINDOW_MAX_NS;
}

/* Are there windows around the ends of turns? */
POLICY u32 window_slides(const struct delay_config *config)
{
	return config->window_ns && config->history;
}

/* The window of grace, by its own clock. */
POLICY struct delay_window delay_window_of_grace(const struct delay_config *config)
{
	struct delay_window window = {.begin_ns = 0, .end_ns = delay_window_ns(config)};

	return window;
}

/* By how much the window begins before the turn is over. */
POLICY u64 delay_offset_ns(const struct delay_config *config, const struct delay_state *state)
{
	u32 history = delay_history(config);
	u32 known = state->offset_count < history ? state->offset_count : history;

	return (state->offset_sum_ns + (history - known) * (delay_window_ns(config) / 2)) / history;
}

/* The window around the end of a turn that is due to end at due_ns. */
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

/* Another task is to run before the turn is over: it may be put off by as much. */
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

/* How long the window is for this guest: one that hints says itself for how long, at most. */
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
	u32 offset = offset_ns < 2 * DELAY_WINDOW_MAX_NS ? offset_ns : 2 * DELAY_WINDOW_MAX_NS;

	if (state->offset_count < history)
		state->offset_count++;
	else
		state->offset_sum_ns -= state->offsets_ns[at];
	state->offset_sum_ns += offset;
	state->offsets_ns[at] = offset;
	state->oldest = (at + 1) % history;
}

/* The guest was to give its pCPU up by itself, and didn't. */
POLICY void penalise(struct delay_state *state)
{
	state->overdrawn = state->overdrawn < 6 ? state->overdrawn + 1 : 6;
	state->penalty_turns = 1u << state->overdrawn;
	if (state->penalty_turns > DELAY_PENALTY_MAX)
		state->penalty_turns = DELAY_PENALTY_MAX;
}

/* A turn has ended in its window (delay_window_around()), or a penalised one where that began. */
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
