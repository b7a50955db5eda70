/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Accelerate: which preempted vCPU runs at once in the micro pool, and why.
 *
 * Problem.   A vCPU that was stopped in critical guest-kernel code makes its siblings, or a packet, wait for
 *            its next turn: tens of milliseconds for work of microseconds (paper, section 3).
 * Mechanism. Two hints say that a vCPU waits (paper 4.1): a yield, and an interrupt on its way. A yield
 *            starts a pass over the yielding vCPU's siblings; what it waits for decides how many are needed.
 *
 *              hint                              accelerated vCPU                        paper
 *              yield, in a TLB shootdown         every preempted sibling that hasn't     4.2, first
 *                                                answered yet
 *              yield, waiting for a lock         one preempted sibling in critical code  4.2, second
 *              halt, waiting for a lock          likewise                                paravirtual locks
 *              paravirtual yield to IPI target   likewise                                section 5
 *              reschedule IPI                    its recipient, if preempted             4.2, last
 *              call-function IPI                 its recipient, if preempted             section 5
 *              device interrupt (vIRQ)           its recipient, if preempted             4.2, third
 *              a wake-up by one of these three,  the woken vCPU, if it has to wait       section 5
 *              or by the kick of a lock's holder
 *
 *            A recipient that is blocked is woken first. Mostly it runs at once: a pCPU is idle, or the
 *            wake-up boosts it (fair_share.h). If it has to wait all the same, a micro pCPU takes it as soon
 *            as no preempted vCPU asks there. The normal pool may be sooner. A vCPU that halted for a
 *            paravirtual lock and was kicked is treated alike. A preempted vCPU gets no boost from a wake-up,
 *            because it never slept: the mixed case (paper 4.1).
 *            After its micro slice a vCPU always goes back to the normal pool (section 5).
 *            Differences from the paper:
 *            - Responders. The paper accelerates siblings that have answered a shootdown, too. With fewer
 *              micro pCPUs than siblings the first ones come again and again, and the last ones hardly ever.
 *              Not every host can see which siblings owe an answer.
 *            - Grace. The paper doesn't look at vCPUs that stop at a bad moment without a hint. One is the
 *              sender of a shootdown at the end of its turn. Another is a sibling whose interrupt came when
 *              its turn or its micro slice was over. Here they get up to grace_max more micro slices in a
 *              row, charged like all others (of turns: delay_preemption.h).
 *            - Patience. In the paper a spinner yields for a whole turn of all others in three cases: all
 *              responders run; the micro pool was full at that moment; the last answer has just been given.
 *              Here a waiter keeps its pCPU where no sibling was preempted in critical code. The holder or
 *              responder mostly runs then, and is done within microseconds. A waiter that yields comes back
 *              after a turn of all others. All waiters behind it, and all that it holds up in its turn, wait
 *              as long.
 *            - Vain waits. Patience helps where waiters of a lock halt before long, as with paravirtual
 *              locks. Where they never halt, the lock's heir may have been stopped while it waited
 *              (stranded). All others then spin in vain until the heir runs. So a VM may run out of patience
 *              VAIN_WAITS_MAX times without a halt for a lock. From then on its spinners have none while a
 *              sibling is stranded.
 *            - Home. In the paper a request that finds the micro pool busy waits, or is forgotten. Here the
 *              vCPU may have its micro slice at home. Home is a pCPU of the normal pool: the one where it ran
 *              last, or one next to that. It takes the slice from a vCPU of another VM that has had at least
 *              as much. Caches are warm there, and there are more of those pCPUs.
 * Limits.    Each micro pCPU queues at most one vCPU (section 5), and behind it one that was woken (in the
 *            paper it may be the one); one pass at a time per VM. Guest user code is never accelerated for
 *            its own sake (4.4), and a guest whose symbols or slide are unknown is never accelerated.
 */
#ifndef POLICY_ACCELERATE_H
#define POLICY_ACCELERATE_H

#include "classify.h"

struct accelerate_config {
	u32 micro_queue_max; /* vCPUs queued per micro pCPU; the paper's limit is 1 */
	u32 grace_max; /* micro slices in a row for a vCPU that stops in one at a bad moment; the paper: 0 */
	u32 call_function_ipi; /* 1: a call-function IPI accelerates its recipient before the sender yields */
	u32 home_slices;       /* 1: where the micro pool is busy, a micro slice at home; the paper: 0 */
	u64 patience_ns;       /* a waiter keeps its pCPU for so long, helped or not; the paper: 0 */
};

/*
 * So many siblings are looked at when a micro pCPU has room again and asks for those that it turned away: its
 * runqueue is locked meanwhile, and a guest may have hundreds. The next time it goes on after them.
 */
#define ASK_AGAIN_MAX 32u

/* ---- A yield: is it a hint, and for which siblings? ---- */

struct yield_observation {
	enum yield_cause cause;
	enum guest_class guest_class; /* at the yielding vCPU's instruction pointer */
	u32 interrupts_enabled;	      /* the guest's RFLAGS.IF; tells a lock's HLT from the idle loop's */
	u32 micro_pcpu_count;	      /* present size of the micro pool */
	u32 pass_active;	      /* another pCPU is making a pass over this VM */
	u32 reserved;
};

enum pass_scope {
	PASS_NONE = 0,
	PASS_ONE_CRITICAL = 1,	/* the first preempted sibling found in critical code */
	PASS_ALL_PREEMPTED = 2, /* every preempted sibling */
	PASS_ALL_OWING = 3,	/* every preempted sibling that is known to owe an answer */
};

enum yield_reason {
	YIELD_STARTS_PASS = 0,
	YIELD_NO_MICRO_POOL = 1, /* the pool is empty: only counted, for Algorithm 1 */
	YIELD_PASS_ACTIVE = 2,	 /* one pass at a time per VM */
	YIELD_IDLE = 3,		 /* the guest has nothing to do */
	YIELD_NOT_CRITICAL = 4,	 /* user code, or kernel code that nobody waits for */
	YIELD_UNKNOWN = 5,	 /* no symbols or no slide for this guest */
	YIELD_REASON_COUNT = 6,
};

struct yield_decision {
	enum pass_scope scope;
	enum cause cause; /* for every acceleration of this pass */
	enum yield_reason reason;
	u32 reserved;
};

/* A yield is of the TLB, lock or halt kind; CAUSE_NONE if nobody's help would end the wait. */
POLICY u32 yield_cause_of_wait(const struct yield_observation *seen)
{
	if (seen->guest_class == GUEST_CLASS_UNKNOWN || seen->guest_class == GUEST_CLASS_USER)
		return CAUSE_NONE;
	/* The hypercall is made only when an IPI's target was preempted: where it was made adds nothing. */
	if (seen->cause == YIELD_IPI_WAIT)
		return CAUSE_PV_YIELD;
	if (seen->cause == YIELD_HLT) {
		/*
		 * With interrupts disabled only a paravirtual lock's kick can end a HLT. So this is no idle
		 * loop, though both execute the same instruction (Linux, arch/x86/kernel/kvm.c: kvm_wait).
		 */
		if (seen->guest_class == GUEST_CLASS_LOCK_WAITER || !seen->interrupts_enabled)
			return CAUSE_LOCK_HALT;
		return CAUSE_NONE;
	}
	if (seen->guest_class == GUEST_CLASS_TLB_SHOOTDOWN)
		return CAUSE_TLB_YIELD;
	/* Spinning inside critical code: waiting for a second lock with the first one held. */
	if (seen->guest_class == GUEST_CLASS_LOCK_WAITER || class_is_critical(seen->guest_class))
		return CAUSE_LOCK_YIELD;
	return CAUSE_NONE;
}

POLICY u32 yield_reason_without_cause(const struct yield_observation *seen)
{
	if (seen->guest_class == GUEST_CLASS_UNKNOWN)
		return YIELD_UNKNOWN;
	if (seen->guest_class == GUEST_CLASS_IDLE || seen->cause == YIELD_HLT)
		return YIELD_IDLE;
	return YIELD_NOT_CRITICAL;
}

POLICY struct yield_decision decide_on_yield(const struct yield_observation *seen)
{
	struct yield_decision decision = {.scope = PASS_NONE, .cause = yield_cause_of_wait(seen)};

	if (decision.cause == CAUSE_NONE) {
		decision.reason = yield_reason_without_cause(seen);
	} else if (seen->micro_pcpu_count == 0) {
		decision.reason = YIELD_NO_MICRO_POOL;
	} else if (seen->pass_active) {
		decision.reason = YIELD_PASS_ACTIVE;
	} else {
		u32 needs_all = decision.cause == CAUSE_TLB_YIELD || decision.cause == CAUSE_PV_YIELD;

		decision.scope = needs_all ? PASS_ALL_PREEMPTED : PASS_ONE_CRITICAL;
		decision.reason = YIELD_STARTS_PASS;
	}
	return decision;
}

/* ---- A pass: is this sibling one of those that are needed? ---- */

struct sibling_observation {
	enum vcpu_state state;
	u32 preempted;		      /* runnable because the host took its pCPU away */
	u32 yielded;		      /* it gave its pCPU up itself: it waits too, running it wouldn't help */
	enum guest_class guest_class; /* where it was stopped */
	u32 requested_count;	      /* siblings that this pass has requested so far */
	enum sibling_answer answer;
};

enum sibling_decision {
	SIBLING_REQUEST = 0,	       /* ask the micro pool for it */
	SIBLING_NOT_PREEMPTED = 1,     /* running, or blocked */
	SIBLING_ALREADY_REQUESTED = 2, /* pending, or in the micro pool: help is on its way */
	SIBLING_NOT_CRITICAL = 3,
	SIBLING_YIELDED = 4,
	SIBLING_PASS_DONE = 5, /* a lock needs only one: the pass ends here */
	SIBLING_ANSWERED = 6,  /* nobody waits for it any more */
	SIBLING_ANSWERING = 7, /* it runs, and is about to answer: no help could be faster */
	SIBLING_DECISION_COUNT = 8,
};

POLICY u32 decide_on_sibling(u32 scope, const struct sibling_observation *sibling)
{
	if (scope == PASS_NONE)
		return SIBLING_PASS_DONE;
	if (scope == PASS_ONE_CRITICAL && sibling->requested_count > 0)
		return SIBLING_PASS_DONE;
	if (sibling->state == VCPU_PENDING || sibling->state == VCPU_MICRO)
		return SIBLING_ALREADY_REQUESTED;
	if (scope == PASS_ALL_PREEMPTED && sibling->state == VCPU_RUNNING && sibling->answer == ANSWER_OWED)
		return SIBLING_ANSWERING;
	if (sibling->state != VCPU_RUNNABLE)
		return SIBLING_NOT_PREEMPTED;
	if (scope == PASS_ALL_OWING)
		return sibling->answer == ANSWER_OWED || sibling->guest_class == GUEST_CLASS_TLB_SHOOTDOWN
			   ? SIBLING_REQUEST
			   : SIBLING_ANSWERED;
	/* A TLB shootdown needs every sibling that isn't running, however it left its pCPU. */
	if (scope == PASS_ALL_PREEMPTED)
		return sibling->answer == ANSWER_GIVEN && !class_is_critical(sibling->guest_class)
			   ? SIBLING_ANSWERED
			   : SIBLING_REQUEST;
	if (sibling->yielded)
		return SIBLING_YIELDED;
	if (!sibling->preempted)
		return SIBLING_NOT_PREEMPTED;
	return class_is_critical(sibling->guest_class) ? SIBLING_REQUEST : SIBLING_NOT_CRITICAL;
}

/* May a lock have been handed to it though it can't take it? It was stopped while it waited for one. */
POLICY u32 sibling_is_stranded(const struct sibling_observation *sibling)
{
	return sibling->state == VCPU_RUNNABLE && sibling->guest_class == GUEST_CLASS_LOCK_WAITER &&
	       (sibling->preempted || sibling->yielded);
}

/* After the pass: does the spinner's own yield go ahead? */
enum spinner_decision {
	SPINNER_YIELDS = 0,
	SPINNER_KEEPS_SPINNING = 1, /* help or the answer is on its way: sooner than its next turn */
};

struct spinner_observation {
	enum yield_cause cause; /* a halted vCPU can't keep spinning */
	u32 helped_count; /* siblings that this pass requested, found requested already, or found answering */
	u32 crowded_count; /* siblings that it would have requested, had the micro pool had room */
	u32 refused_count; /* siblings that it would have requested, had its VM not had more than its share */
	u32 answers_known; /* of a shootdown's pass: the host can see which siblings owe an answer */
	u32 pass_active;   /* no pass was made, because another pCPU is making one over this VM */
	/* PASS_NONE: no pass was made, or there is no micro pool, or nobody knows what is waited for. */
	enum pass_scope scope;
	u32 stranded_count; /* siblings that were stopped while they waited for one: sibling_is_stranded() */
	u32 vain_waits;	    /* of its VM: vain_waits_after() */
	u32 ran_out_before; /* it has no patience left, as at the exit before of this wait */
	u64 spun_ns;	    /* for how long it has waited, in this turn */
};

/* So often patience runs out in a VM where nobody halts for locks until siblings that are stranded end it. */
#define VAIN_WAITS_MAX 200u

/* How often patience has run out in its VM, to no end, since a vCPU there halted for a lock. */
POLICY u32 vain_waits_after(const struct accelerate_config *config, const struct spinner_observation *spinner)
{
	u32 is_helped = spinner->helped_count || spinner->crowded_count || spinner->refused_count;

	if (spinner->scope != PASS_ONE_CRITICAL)
		return spinner->vain_waits;
	if (spinner->cause == YIELD_HLT)
		return 0;
	if (is_helped || spinner->ran_out_before || spinner->spun_ns < config->patience_ns ||
	    spinner->vain_waits >= VAIN_WAITS_MAX)
		return spinner->vain_waits;
	return spinner->vain_waits + 1;
}

POLICY u32 decide_on_spinner(const struct accelerate_config *config,
			     const struct spinner_observation *spinner)
{
	/*
	 * A full micro pool has room again within a micro slice, a pass takes microseconds, and the next exit
	 * asks again. And when nobody owes an answer any more, the wait is over.
	 */
	u32 stays = spinner->helped_count > 0 || spinner->crowded_count > 0 || spinner->answers_known ||
		    spinner->pass_active;
	/*
	 * Beyond that, the lock's holder may have been preempted in code of no class: its turn comes sooner
	 * then.
	 */
	u32 in_vain = spinner->scope == PASS_ONE_CRITICAL && spinner->stranded_count &&
		      spinner->vain_waits >= VAIN_WAITS_MAX;
	u32 patient = spinner->scope != PASS_NONE && spinner->spun_ns < config->patience_ns && !in_vain;

	if (spinner->cause == YIELD_HLT)
		return SPINNER_YIELDS;
	/*
	 * There is no micro pool for its VM until the others have had as much: a sibling makes better use of
	 * its turn.
	 */
	if (spinner->refused_count && !spinner->helped_count)
		return SPINNER_YIELDS;
	return patient || (spinner->cause == YIELD_PLE && stays) ? SPINNER_KEEPS_SPINNING : SPINNER_YIELDS;
}

/* ---- An interrupt: is its recipient worth a micro slice? ---- */

struct interrupt_observation {
	enum interrupt_kind kind;
	enum vcpu_state recipient_state;
	u32 micro_pcpu_count;
	u32 guest_known; /* its symbols and slide are known; an unknown guest is scheduled normally */
	/*
	 * It waits, boosted: a micro slice would be short, and take that from it. A call is answered so soon
	 * all the same: its sender spins.
	 */
	u32 recipient_goes_first;
	u32 reserved;
};

enum interrupt_reason {
	INTERRUPT_REQUESTS = 0,
	INTERRUPT_NOT_URGENT = 1,	 /* a timer, or of an unknown kind */
	INTERRUPT_RECIPIENT_RUNNING = 2, /* handled at once */
	INTERRUPT_RECIPIENT_BLOCKED = 3, /* it is woken first: decide_on_woken(), if it then waits */
	INTERRUPT_ALREADY_REQUESTED = 4,
	INTERRUPT_NO_MICRO_POOL = 5,
	INTERRUPT_GUEST_UNKNOWN = 6,
	INTERRUPT_RECIPIENT_GOES_FIRST = 7, /* its turn is next anyway, and longer */
	INTERRUPT_REASON_COUNT = 8,
};

struct interrupt_decision {
	enum cause cause; /* CAUSE_NONE: leave the recipient where it is */
	enum interrupt_reason reason;
};

POLICY u32 interrupt_cause(const struct accelerate_config *config, u32 kind)
{
	if (kind == INTERRUPT_VIRQ)
		return CAUSE_VIRQ;
	if (kind == INTERRUPT_IPI_RESCHEDULE)
		return CAUSE_RESCHED_IPI;
	if (kind == INTERRUPT_IPI_CALL_FUNCTION && config->call_function_ipi)
		return CAUSE_CALL_FUNCTION_IPI;
	return CAUSE_NONE;
}

POLICY struct interrupt_decision decide_on_interrupt(const struct accelerate_config *config,
						     const struct interrupt_observation *seen)
{
	struct interrupt_decision decision = {.cause = CAUSE_NONE};
	u32 cause = interrupt_cause(config, seen->kind);

	if (cause == CAUSE_NONE) {
		decision.reason = INTERRUPT_NOT_URGENT;
	} else if (!seen->guest_known) {
		decision.reason = INTERRUPT_GUEST_UNKNOWN;
	} else if (seen->recipient_state == VCPU_BLOCKED) {
		decision.reason = INTERRUPT_RECIPIENT_BLOCKED;
	} else if (seen->recipient_state == VCPU_RUNNING || seen->recipient_state == VCPU_MICRO) {
		decision.reason = INTERRUPT_RECIPIENT_RUNNING;
	} else if (seen->recipient_state == VCPU_PENDING) {
		decision.reason = INTERRUPT_ALREADY_REQUESTED;
	} else if (seen->recipient_goes_first && seen->kind != INTERRUPT_IPI_CALL_FUNCTION) {
		decision.reason = INTERRUPT_RECIPIENT_GOES_FIRST;
	} else if (seen->micro_pcpu_count == 0) {
		decision.reason = INTERRUPT_NO_MICRO_POOL;
	} else {
		decision.cause = cause;
		decision.reason = INTERRUPT_REQUESTS;
	}
	return decision;
}

/* ---- A wake-up: is the woken vCPU, which has to wait, worth a micro slice? ---- */

struct woken_observation {
	u32 interrupted;	  /* an interrupt came for it while it was blocked */
	enum interrupt_kind kind; /* which, the most urgent one of several */
	u32 lock_halt;		  /* it had halted for a paravirtual lock */
	u32 interrupts_enabled;	  /* when it halted; with them disabled only a kick makes it go on */
	u32 micro_pcpu_count;
	u32 guest_known;
};

enum woken_reason {
	WOKEN_REQUESTS = 0,   /* a micro pCPU takes it once no preempted vCPU asks there */
	WOKEN_NOT_URGENT = 1, /* by a timer, or by something that no interrupt told */
	WOKEN_NO_MICRO_POOL = 2,
	WOKEN_GUEST_UNKNOWN = 3,
	WOKEN_REASON_COUNT = 4,
};

struct woken_decision {
	enum cause cause; /* CAUSE_NONE: leave it where it is */
	enum woken_reason reason;
};

POLICY u32 cause_of_wakeup(const struct accelerate_config *config, const struct woken_observation *seen)
{
	/* A lock's kick is no interrupt, and the only thing that wakes without one. */
	if (seen->lock_halt && !seen->interrupted)
		return CAUSE_LOCK_KICK;
	/* It can't take the interrupt, and halts again. */
	if (!seen->interrupted || (seen->lock_halt && !seen->interrupts_enabled))
		return CAUSE_NONE;
	return interrupt_cause(config, seen->kind);
}

POLICY struct woken_decision decide_on_woken(const struct accelerate_config *config,
					     const struct woken_observation *seen)
{
	struct woken_decision decision = {.cause = CAUSE_NONE};
	u32 cause = cause_of_wakeup(config, seen);

	if (cause == CAUSE_NONE) {
		decision.reason = WOKEN_NOT_URGENT;
	} else if (!seen->guest_known) {
		decision.reason = WOKEN_GUEST_UNKNOWN;
	} else if (seen->micro_pcpu_count == 0) {
		decision.reason = WOKEN_NO_MICRO_POOL;
	} else {
		decision.cause = cause;
		decision.reason = WOKEN_REQUESTS;
	}
	return decision;
}

/* ---- A request: has this micro pCPU room for it? ---- */

enum placement_decision {
	PLACEMENT_QUEUE = 0,
	PLACEMENT_FULL = 1,	/* the limit of section 5: try the next micro pCPU, or give the request up */
	PLACEMENT_AFFINITY = 2, /* the vCPU may not run there */
	PLACEMENT_DECISION_COUNT = 3,
};

struct placement_observation {
	u32 queued_count; /* vCPUs that wait there in this one's place; the one that runs isn't one of them */
	u32 affinity_allows;
};

POLICY u32 decide_on_placement(const struct accelerate_config *config,
			       const struct placement_observation *pcpu)
{
	if (!pcpu->affinity_allows)
		return PLACEMENT_AFFINITY;
	return pcpu->queued_count < config->micro_queue_max ? PLACEMENT_QUEUE : PLACEMENT_FULL;
}

/* ---- No micro pCPU can serve a request at once: may it have a micro slice on this normal pCPU? ---- */

enum home_decision {
	HOME_QUEUE = 0,	   /* it runs there at once, and the interrupted vCPU goes on afterwards */
	HOME_OFF = 1,	   /* not in the paper */
	HOME_AFFINITY = 2, /* the vCPU may not run there */
	/* No ordinary turn: a host task, a vCPU woken for this pCPU, a micro slice; or one waits there. */
	HOME_BUSY = 3,
	HOME_SIBLING = 4,  /* of its own VM: it may be the one that waits for it */
	HOME_VM_AHEAD = 5, /* its VM has had more than that of the vCPU that runs there */
	/* The vCPU there was interrupted a moment ago: at most half of a pCPU goes this way. */
	HOME_TOO_SOON = 6,
	HOME_DECISION_COUNT = 7,
};

struct home_observation {
	u32 affinity_allows;
	u32 queued_count; /* vCPUs that wait there for a micro slice */
	/* An ordinary turn runs there, of a vCPU that wasn't woken for it, or of a host task like that. */
	u32 gives_way;
	u32 is_sibling;	 /* the vCPU that runs there is of the same VM */
	u32 vm_is_ahead; /* fair_share.h */
	u32 disturbed;	 /* a micro slice was asked for there, or ended, less than one ago */
};

POLICY u32 decide_on_home(const struct accelerate_config *config, const struct home_observation *pcpu)
{
	if (!config->home_slices)
		return HOME_OFF;
	if (!pcpu->affinity_allows)
		return HOME_AFFINITY;
	if (!pcpu->gives_way || pcpu->queued_count >= config->micro_queue_max)
		return HOME_BUSY;
	if (pcpu->is_sibling)
		return HOME_SIBLING;
	if (pcpu->vm_is_ahead)
		return HOME_VM_AHEAD;
	return pcpu->disturbed ? HOME_TOO_SOON : HOME_QUEUE;
}

/* ---- The end of a micro slice: always back to the normal pool; was it worth it? ---- */

enum micro_slice_outcome {
	MICRO_SLICE_SERVED = 0,		/* the interrupt was handled, the critical code left */
	MICRO_SLICE_STILL_CRITICAL = 1, /* stopped inside critical code again */
	MICRO_SLICE_UNHANDLED = 2,	/* the interrupt that it was accelerated for is still pending */
	MICRO_SLICE_BLOCKED = 3,	/* it went to sleep by itself: nothing was left to do */
	MICRO_SLICE_OUTCOME_COUNT = 4,
};

struct micro_slice_observation {
	enum guest_class guest_class; /* where the slice ended */
	u32 interrupt_pending;	      /* not yet taken by the guest */
	u32 blocked;		      /* it halted before the slice was over */
	u32 retry_count;	      /* requests in a row that ended too early */
	enum sibling_answer answer;   /* a call may have come just before the end */
	u32 reserved;
};

struct micro_slice_decision {
	enum micro_slice_outcome outcome;
	u32 retry; /* 1: request it again, once it is back in the normal pool */
};

POLICY struct micro_slice_decision decide_after_micro_slice(const struct accelerate_config *config,
							    const struct micro_slice_observation *seen)
{
	struct micro_slice_decision decision = {.outcome = MICRO_SLICE_SERVED};

	if (seen->blocked)
		decision.outcome = MICRO_SLICE_BLOCKED;
	else if (seen->interrupt_pending)
		decision.outcome = MICRO_SLICE_UNHANDLED;
	else if (class_is_critical(seen->guest_class))
		decision.outcome = MICRO_SLICE_STILL_CRITICAL;

	/*
	 * A call that finds its recipient running is left to it: if the slice ends just then, nobody asks
	 * again.
	 */
	decision.retry =
	    (decision.outcome == MICRO_SLICE_UNHANDLED || decision.outcome == MICRO_SLICE_STILL_CRITICAL ||
	     (!seen->blocked && seen->answer == ANSWER_OWED)) &&
	    seen->retry_count < config->grace_max;
	return decision;
}

#endif
