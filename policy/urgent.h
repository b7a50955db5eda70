/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Urgent vCPU first: which vCPUs an IPI makes urgent, and when they run (Kim et al., ASPLOS'13, 3.1.3).
 *
 * Problem.   A vCPU that others wait for has to wait for its turn, or loses its pCPU with a lock held. A
 *            proportional share doesn't know either case, and a priority would break it.
 * Mechanism. Each pCPU has a FIFO of urgent vCPUs, which also stay in its proportional-share queue. An IPI
 *            makes its sender or its recipient urgent. That lasts until the interrupt is answered
 *            (event-based), or until the vCPU has run for some time (time-based). An urgent vCPU goes before
 *            the others if its clock is ahead of the current one's by no more than an allowance: it borrows
 *            from its own future. It runs for an urgent slice, during which no vCPU preempts it. If it is
 *            still urgent then, it goes to the tail of the FIFO. A pause-loop exit ends its urgency, because
 *            it only spins (4.3). If it spins for the answers to a shootdown, and all that owe one run or
 *            come urgently, it needn't yield (4.3, at its end).
 * Formula.   urgent  = events > 0 or left > 0
 *            preempt = urgent and vtime <= current's vtime + allowance
 * Limits.    The clocks are those of the proportional-share scheduler, whose charge pays back what is
 *            borrowed here. A vector doesn't distinguish a shootdown from other function calls. A caller
 *            that knows the guest's code passes that.
 */
#ifndef POLICY_URGENT_H
#define POLICY_URGENT_H

#include "types.h"

/* The events that make the vCPUs of a VM urgent: one bit each (section 4). */
#define URGENT_RESCHED_DP 1u /* the sender of a reschedule IPI, which probably holds a wait queue's lock */
#define URGENT_TLB_CO 2u     /* the recipient of a shootdown's IPI, because its sender spins */
#define URGENT_RESCHED_CO 4u /* the recipient of a reschedule IPI, because the threads work together */
/* The vCPU that begins to send an IPI, of a kind that can't be known yet (4.1.1). */
#define URGENT_EARLY_DP 8u
/* The sender of a shootdown spins on where its recipients come urgently (4.3); with URGENT_TLB_CO only. */
#define URGENT_TLB_SPIN 16u

/* The paper's values are 500 us, 500 us, and 18 ms of virtual time (4.1.1). */
struct urgent_config {
	u64 delay_ns; /* how much running time a reschedule IPI asks for */
	u64 slice_ns;
	u64 allowance_ns;
	/* Not in the paper: time between the acknowledgement of an interrupt and its answer; 0: none. */
	u64 answer_ns;
};

/* The urgency of a vCPU. */
struct urgent_state {
	u64 left_ns; /* how much longer it may run as urgent */
	/* Unacknowledged interrupts: 0 or 1, because those of a vector merge while they wait. */
	u32 events;
	u32 reserved;
};

/* An IPI that is about to be sent. */
struct ipi_observation {
	struct urgent_state sender;
	struct urgent_state recipient;
	enum interrupt_kind kind;
	u32 is_no_shootdown; /* the guest's code shows that it is another call */
	u32 schemes;	     /* the schemes of their VM */
	u32 reserved;
};

struct ipi_decision {
	struct urgent_state sender;
	struct urgent_state recipient;
};

/* A waiting urgent vCPU, and the vCPU that runs on its pCPU, if any. */
struct urgent_observation {
	struct urgent_state state;
	u64 vtime_ns;
	u64 current_vtime_ns;
	u64 current_ran_ns;    /* in its current slice */
	u32 current_is_urgent; /* it was urgent when its slice began, and still is */
	u32 current_exists;
};

enum urgent_decision {
	URGENT_IS_NOT = 0,   /* it waits like any other vCPU */
	URGENT_REFUSED = 1,  /* it has borrowed all it may, and waits like any other vCPU */
	URGENT_WAITS = 2,    /* in the urgent FIFO: another vCPU has its urgent slice */
	URGENT_PREEMPTS = 3, /* it runs now */
	URGENT_DECISION_COUNT = 4,
};

enum urgent_turn {
	URGENT_TURN_GOES_ON = 0,
	URGENT_TURN_REQUEUE = 1, /* at the tail of the urgent FIFO */
	URGENT_TURN_LEAVES = 2,	 /* it isn't urgent any longer; the proportional-share queue decides */
	URGENT_TURN_COUNT = 3,
};

/* A sibling of a vCPU that spins, and that has sent a shootdown. */
struct called_observation {
	struct urgent_observation urgent; /* if it waits: what decide_on_urgent() would be asked now */
	u32 runs;
	u32 waits_elsewhere; /* for a pCPU that isn't the spinner's */
};

enum called_decision {
	CALLED_OWES_NOTHING = 0,
	CALLED_COMES = 1,   /* it runs, or will urgently: its answer is near */
	CALLED_IS_LATE = 2, /* it can't run before its turn, or not before the spinner gives way */
	CALLED_DECISION_COUNT = 3,
};

/* The spinner, and its siblings as decide_on_called() counts them. */
struct caller_observation {
	u64 waited_ns; /* since it sent its last shootdown */
	u32 coming_count;
	u32 late_count;
	u32 schemes; /* the schemes of its VM */
	u32 reserved;
};

POLICY u32 is_urgent(const struct urgent_state *state)
{
	return state->events || state->left_ns;
}

/*
 * Makes a vCPU urgent for at least time_ns. Requests don't add up: a flood of IPIs makes a turn no
 * longer than one IPI does.
 */
POLICY void request_urgent_time(struct urgent_state *state, u64 time_ns)
{
	if (state->left_ns < time_ns)
		state->left_ns = time_ns;
}

POLICY struct ipi_decision decide_on_ipi(const struct urgent_config *config,
					 const struct ipi_observation *seen)
{
	struct ipi_decision decision = {.sender = seen->sender, .recipient = seen->recipient};

	if (seen->kind == INTERRUPT_IPI_CALL_FUNCTION) {
		if ((seen->schemes & URGENT_TLB_CO) && !seen->is_no_shootdown)
			decision.recipient.events = 1;
	} else if (seen->kind == INTERRUPT_IPI_RESCHEDULE) {
		if (seen->schemes & URGENT_RESCHED_DP)
			request_urgent_time(&decision.sender, config->delay_ns);
		if (seen->schemes & URGENT_RESCHED_CO)
			request_urgent_time(&decision.recipient, config->delay_ns);
	}
	return decision;
}

/*
 * Returns the state after an end of interrupt. Another interrupt of the vector may have arrived meanwhile.
 * Linux acknowledges a call before it executes the function (sysvec_call_function(), arch/x86/kernel/smp.c).
 * The sender waits for that, so the vCPU stays urgent for answer_ns.
 */
POLICY struct urgent_state acknowledge_urgent(const struct urgent_config *config,
					      const struct urgent_state *state, u32 another_waits)
{
	struct urgent_state next = *state;

	next.events = another_waits && state->events ? 1 : 0;
	if (state->events && !next.events)
		request_urgent_time(&next, config->answer_ns);
	return next;
}

POLICY struct urgent_state charge_urgent(const struct urgent_state *state, u64 ran_ns)
{
	struct urgent_state next = *state;

	next.left_ns = state->left_ns > ran_ns ? state->left_ns - ran_ns : 0;
	return next;
}

/*
 * Returns the state after a pause-loop exit: the vCPU now waits for another, whatever it was urgent for
 * (4.3).
 */
POLICY struct urgent_state urgent_after_ple(void)
{
	struct urgent_state calm = {};

	return calm;
}

/*
 * True while a vCPU is ahead of the current one by no more than the allowance. Clocks may wrap, so their
 * difference is compared.
 */
POLICY u32 within_allowance(const struct urgent_config *config, u64 vtime_ns, u64 current_vtime_ns)
{
	return (s64)(vtime_ns - current_vtime_ns) <= (s64)config->allowance_ns;
}

POLICY u32 decide_on_urgent(const struct urgent_config *config, const struct urgent_observation *seen)
{
	if (!is_urgent(&seen->state))
		return URGENT_IS_NOT;
	if (!seen->current_exists)
		return URGENT_PREEMPTS;
	if (!within_allowance(config, seen->vtime_ns, seen->current_vtime_ns))
		return URGENT_REFUSED;
	if (seen->current_is_urgent && seen->current_ran_ns < config->slice_ns)
		return URGENT_WAITS;
	return URGENT_PREEMPTS;
}

/* Decides whether a sibling of a spinner owes an answer to a shootdown, and may give it soon. */
POLICY u32 decide_on_called(const struct urgent_config *config, const struct called_observation *seen)
{
	if (!seen->urgent.state.events)
		return CALLED_OWES_NOTHING;
	if (seen->runs)
		return CALLED_COMES;
	if (!seen->waits_elsewhere || decide_on_urgent(config, &seen->urgent) == URGENT_REFUSED)
		return CALLED_IS_LATE;
	return CALLED_COMES;
}

/*
 * Returns whether a vCPU keeps its pCPU at a pause-loop exit (4.3): it waits for the answers to a shootdown,
 * and all that owe one come. The paper says "for additional time slice" and no number. Here that is an urgent
 * slice since the shootdown, in which a vCPU that comes has run.
 */
POLICY u32 caller_keeps_pcpu(const struct urgent_config *config, const struct caller_observation *seen)
{
	return (seen->schemes & URGENT_TLB_SPIN) && seen->coming_count && !seen->late_count &&
	       seen->waited_ns < config->slice_ns;
}

/* Decides on the turn of an urgent vCPU, while others_count more wait in the FIFO. */
POLICY u32 decide_on_urgent_turn(const struct urgent_config *config, const struct urgent_state *state,
				 u64 ran_ns, u32 others_count)
{
	if (!is_urgent(state))
		return URGENT_TURN_LEAVES;
	if (ran_ns < config->slice_ns || !others_count)
		return URGENT_TURN_GOES_ON;
	return URGENT_TURN_REQUEUE;
}

/*
 * Returns the sender's state as it begins to send an IPI (early delayed preemption). A vCPU that touches the
 * interrupt controller for that probably holds a lock already.
 */
POLICY struct urgent_state decide_on_ipi_begun(const struct urgent_config *config,
					       const struct urgent_state *sender, u32 schemes)
{
	struct urgent_state next = *sender;

	if (schemes & URGENT_EARLY_DP)
		request_urgent_time(&next, config->delay_ns);
	return next;
}

/* Returns whether the running vCPU is protected from preemption by a vCPU that isn't urgent. */
POLICY u32 is_protected(const struct urgent_config *config, const struct urgent_state *state, u64 ran_ns)
{
	return is_urgent(state) && ran_ns < config->slice_ns;
}

/*
 * Decides whether Resched-Co is good for a VM. Section 4.2 suggests to use its rate of reschedule IPIs:
 * threads that run at the same time find each other awake, and send fewer. Resched-Co is tried: looks
 * without it and with it alternate, and the result holds for a while.
 *
 * Formula.   on = IPIs per second of running, with it <= (100 % - rarer_percent) of the rate without it
 * Limits.    A VM that changes between the looks misleads them, until the next trial. With too few IPIs
 *            there is no result, and Resched-Co is off.
 */
#define RESCHED_CO_LOOKS 4u /* without, with, without, with */

struct resched_co_config {
	u64 look_ns;
	u64 hold_ns;	   /* time until the next trial */
	u64 ipi_count_min; /* in the looks without it */
	u32 rarer_percent;
	u32 reserved;
};

/* The state of a VM, zero at first. Arrays are indexed by whether Resched-Co was on. */
struct resched_co_state {
	u64 until_ns;
	u64 ipi_count[2];
	u64 ran_ns[2];
	u32 look; /* RESCHED_CO_LOOKS: the trial is over, and its result holds */
	u32 is_on;
};

/* The events since the last decision. */
struct resched_co_observation {
	u64 now_ns;
	u64 ipi_count; /* reschedule IPIs of the VM */
	u64 ran_ns;    /* by all vCPUs of the VM together */
};

/* Returns the number of IPIs per second of running, or 0 for less than a microsecond of running. */
POLICY u64 resched_ipi_rate(u64 ipi_count, u64 ran_ns)
{
	return ran_ns < 1000 ? 0 : ipi_count * 1000000 / (ran_ns / 1000);
}

POLICY u32 makes_resched_ipis_rarer(const struct resched_co_config *config,
				    const struct resched_co_state *state)
{
	u64 without = resched_ipi_rate(state->ipi_count[0], state->ran_ns[0]);
	u64 with = resched_ipi_rate(state->ipi_count[1], state->ran_ns[1]);

	if (state->ipi_count[0] < config->ipi_count_min || state->ran_ns[1] < 1000 ||
	    config->rarer_percent > 100)
		return 0;
	return with * 100 <= without * (100 - config->rarer_percent);
}

/* Returns the next state. Called regularly, for example at each tick. */
POLICY struct resched_co_state decide_on_resched_co(const struct resched_co_config *config,
						    const struct resched_co_state *state,
						    const struct resched_co_observation *seen)
{
	struct resched_co_state next = *state;

	if (state->until_ns && state->look < RESCHED_CO_LOOKS) {
		next.ipi_count[state->is_on & 1] += seen->ipi_count;
		next.ran_ns[state->is_on & 1] += seen->ran_ns;
	}
	if (state->until_ns && (s64)(seen->now_ns - state->until_ns) < 0)
		return next;
	if (!state->until_ns || state->look >= RESCHED_CO_LOOKS) {
		struct resched_co_state first = {.until_ns = seen->now_ns + config->look_ns};

		return first;
	}
	next.look = state->look + 1;
	if (next.look < RESCHED_CO_LOOKS) {
		next.is_on = next.look & 1;
		next.until_ns = seen->now_ns + config->look_ns;
	} else {
		next.is_on = makes_resched_ipis_rarer(config, &next);
		next.until_ns = seen->now_ns + config->hold_ns;
	}
	return next;
}

#endif
