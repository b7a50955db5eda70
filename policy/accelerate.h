/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Accelerate: which preempted vCPU runs at once in the micro pool, and why.
 *
 * Problem.   A vCPU that is stopped in critical guest-kernel code makes its siblings, or a packet, wait
 *            until its next turn: tens of milliseconds for work of microseconds (paper, section 3).
 * Mechanism. Two hints show that a vCPU is needed (paper 4.1): a yield, and an interrupt on its way. A yield
 *            starts a pass over the siblings of the yielding vCPU. The reason for the wait decides how many
 *            of them are needed.
 *
 *              hint                              accelerated vCPU                        paper
 *              yield, in a TLB shootdown         every preempted sibling that hasn't     4.2, first
 *                                                answered yet
 *              yield, waiting for a lock         one preempted sibling in critical code  4.2, second
 *              halt, waiting for a lock          one preempted sibling in critical code  paravirtual locks
 *              paravirtual yield to IPI target   every preempted sibling that hasn't     section 5
 *                                                answered yet
 *              reschedule IPI                    its recipient, if preempted             4.2, last
 *              call-function IPI                 its recipient, if preempted             section 5
 *              device interrupt (vIRQ)           its recipient, if preempted             4.2, third
 *              a wake-up by one of these three,  the woken vCPU, if it has to wait       section 5
 *              or by the kick of a lock's holder
 *
 *            A blocked recipient is woken first. It usually runs at once, because a pCPU is idle or because
 *            the wake-up boosts it (fair_share.h). If it has to wait, a micro pCPU takes it as soon as no
 *            preempted vCPU asks for that pCPU. The normal pool may be faster. A vCPU that was kicked out of
 *            a halt in a paravirtual lock is treated the same way. A preempted vCPU gets no boost from a
 *            wake-up, because it never slept: the paper's mixed case (4.1).
 *            After its micro slice a vCPU always returns to the normal pool (section 5).
 *            Differences from the paper, none of which holds with paper_rules and the paper's values:
 *            - Responders. The paper also accelerates siblings that have already answered a shootdown. With
 *              fewer micro pCPUs than siblings, the first ones then come again and again, and the last ones
 *              rarely. Not every host can see which siblings owe an answer.
 *            - Grace. The paper ignores a vCPU that stops at a bad moment without a hint. One
 *              example is the sender of a shootdown at the end of its turn. Another is a sibling whose
 *              interrupt arrives as its turn or micro slice ends. Here such a vCPU gets up to grace_max
 *              further micro slices in a row. They are charged like all others. For turns see
 *              delay_preemption.h.
 *            - Patience. In the paper a spinner yields for a turn of all others, also if all
 *              responders run, or the last answer has just been given. Here a waiter keeps its pCPU if no
 *              sibling was preempted in critical code. The holder or responder is usually running then, and
 *              done within microseconds. A waiter that yields comes back after a turn of all others. The
 *              waiters behind it wait as long.
 *            - Vain waits. Patience helps where waiters of a lock soon halt, as with paravirtual locks.
 *              Where they never halt, the next owner of the lock may have been stopped while it waited
 *              (stranded). All others then spin in vain until it runs. A VM may run out of patience
 *              VAIN_WAITS_MAX times without a halt for a lock. After that, its spinners have no patience
 *              while a sibling is stranded.
 *            - Home. In the paper a request that finds the micro pool busy waits, or is dropped. Here the
 *              vCPU may have its micro slice at home, on the normal pCPU where it ran last or on a neighbour
 *              of that. It interrupts a vCPU of another VM that has had at least as much. Caches are warm
 *              there, and there are more of those pCPUs.
 * Limits.    Each micro pCPU queues at most one vCPU (section 5), and behind it one woken vCPU. In the paper
 *            the woken vCPU takes the one place. A VM has one pass at a time. Guest user code is never
 *            accelerated for its own sake (4.4). A guest whose symbols or slide are unknown is never
 *            accelerated.
 */
#ifndef POLICY_ACCELERATE_H
#define POLICY_ACCELERATE_H

#include "classify.h"

struct accelerate_config {
	u32 micro_queue_max; /* vCPUs queued per micro pCPU; the paper's limit is 1 */
	/* Micro slices in a row for a vCPU whose micro slice ends at a bad moment; 0 in the paper. */
	u32 grace_max;
	/* 1: accelerate the recipient of a call-function IPI before the sender yields. */
	u32 call_function_ipi;
	u32 home_slices; /* 1: grant micro slices at home while the micro pool is busy; 0 in the paper */
	u64 patience_ns; /* how long a waiter keeps its pCPU, helped or not; 0 in the paper */
	/* 1: what no value above turns off is as in the paper's text (docs/explanation/differences.md). */
	u32 paper_rules;
	u32 reserved;
};

/* ---- The paper's rules: what the hosts themselves leave out or add ---- */

/* Returns whether the host looks which siblings owe an answer. In the paper nobody knows. */
POLICY u32 answers_are_read(u32 paper_rules)
{
	return !paper_rules;
}

/*
 * Returns whether woken vCPUs have a place of their own at each micro pCPU, behind the one for requests. In
 * the paper a woken vCPU that waits is a request like others.
 */
POLICY u32 woken_have_places(u32 paper_rules)
{
	return !paper_rules;
}

/*
 * Returns whether a request with this cause is refused while its VM is ahead of the first that waits
 * (vm_is_ahead() in fair_share.h). A bound on waits holds whatever a VM has had.
 */
POLICY u32 vm_ahead_is_refused(u32 paper_rules, u32 cause)
{
	return !paper_rules && cause != CAUSE_MAX_WAIT;
}

/*
 * The number of siblings checked each time a micro pCPU with room asks again for those it turned away. The
 * bound is needed because the pCPU's runqueue is locked meanwhile and a guest may have hundreds of vCPUs.
 * The next check continues after these.
 */
#define ASK_AGAIN_MAX 32u

/* ---- A yield: is it a hint, and for which siblings? ---- */

struct yield_observation {
	enum yield_cause cause;
	enum guest_class guest_class; /* at the instruction pointer of the yielding vCPU */
	/* The guest's RFLAGS.IF; tells the HLT of a lock from that of the idle loop. */
	u32 interrupts_enabled;
	u32 micro_pcpu_count; /* current size of the micro pool */
	u32 pass_active;      /* another pCPU is making a pass over this VM */
	u32 paper_rules;      /* as in struct accelerate_config */
};

enum pass_scope {
	PASS_NONE = 0,
	PASS_ONE_CRITICAL = 1,	/* the first preempted sibling found in critical code */
	PASS_ALL_PREEMPTED = 2, /* every preempted sibling */
	PASS_ALL_OWING = 3,	/* every preempted sibling that is known to owe an answer */
	PASS_ALL_CRITICAL = 4,	/* every preempted sibling in critical code: the paper's "the vCPUs" (4.2) */
};

enum yield_reason {
	YIELD_STARTS_PASS = 0,
	YIELD_NO_MICRO_POOL = 1, /* the pool is empty: the yield is only counted, for Algorithm 1 */
	YIELD_PASS_ACTIVE = 2,	 /* a VM has one pass at a time */
	YIELD_IDLE = 3,		 /* the guest has nothing to do */
	YIELD_NOT_CRITICAL = 4,	 /* user code, or kernel code that no other vCPU waits for */
	YIELD_UNKNOWN = 5,	 /* no symbols or no slide for this guest */
	YIELD_REASON_COUNT = 6,
};

struct yield_decision {
	enum pass_scope scope;
	enum cause cause; /* the cause of every acceleration of this pass */
	enum yield_reason reason;
	u32 reserved;
};

/* Returns the kind of wait behind a yield, or CAUSE_NONE if no acceleration could end it. */
POLICY u32 yield_cause_of_wait(const struct yield_observation *seen)
{
	if (seen->guest_class == GUEST_CLASS_UNKNOWN || seen->guest_class == GUEST_CLASS_USER)
		return CAUSE_NONE;
	/*
	 * The guest makes this hypercall only if the target of an IPI was preempted. The call site adds
	 * nothing.
	 */
	if (seen->cause == YIELD_IPI_WAIT)
		return CAUSE_PV_YIELD;
	if (seen->cause == YIELD_HLT) {
		/* The paper's yields are pause-loop exits and hypercalls (section 5). */
		if (seen->paper_rules)
			return CAUSE_NONE;
		/*
		 * With interrupts disabled, only the kick of a paravirtual lock can end a HLT. So this isn't
		 * the idle loop, although both execute the same instruction (Linux, arch/x86/kernel/kvm.c:
		 * kvm_wait).
		 */
		if (seen->guest_class == GUEST_CLASS_LOCK_WAITER || !seen->interrupts_enabled)
			return CAUSE_LOCK_HALT;
		return CAUSE_NONE;
	}
	if (seen->guest_class == GUEST_CLASS_TLB_SHOOTDOWN)
		return CAUSE_TLB_YIELD;
	/* A spin inside critical code waits for a second lock while it holds the first. */
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

		u32 of_lock = seen->paper_rules ? PASS_ALL_CRITICAL : PASS_ONE_CRITICAL;

		decision.scope = needs_all ? PASS_ALL_PREEMPTED : of_lock;
		decision.reason = YIELD_STARTS_PASS;
	}
	return decision;
}

/* ---- A pass: is this sibling needed? ---- */

struct sibling_observation {
	enum vcpu_state state;
	u32 preempted; /* runnable because the host took its pCPU away */
	u32 yielded;   /* it gave up its pCPU by itself: it also waits, so running it wouldn't help */
	enum guest_class guest_class; /* where it was stopped */
	u32 requested_count;	      /* siblings that this pass has requested so far */
	enum sibling_answer answer;
};

enum sibling_decision {
	SIBLING_REQUEST = 0,	       /* request a micro slice for it */
	SIBLING_NOT_PREEMPTED = 1,     /* running, or blocked */
	SIBLING_ALREADY_REQUESTED = 2, /* pending, or in the micro pool: help is on its way */
	SIBLING_NOT_CRITICAL = 3,
	SIBLING_YIELDED = 4,
	SIBLING_PASS_DONE = 5, /* a lock needs only one sibling: the pass ends here */
	SIBLING_ANSWERED = 6,  /* its answer was given: the wait no longer depends on it */
	SIBLING_ANSWERING = 7, /* it runs and is about to answer: help couldn't be faster */
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
	/* A TLB shootdown needs every sibling that isn't running, for whatever reason it stopped. */
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

/*
 * True if the sibling may have been handed a lock that it can't take, because it was stopped while it
 * waited.
 */
POLICY u32 sibling_is_stranded(const struct sibling_observation *sibling)
{
	return sibling->state == VCPU_RUNNABLE && sibling->guest_class == GUEST_CLASS_LOCK_WAITER &&
	       (sibling->preempted || sibling->yielded);
}

/* Whether the spinner's own yield goes ahead after the pass. */
enum spinner_decision {
	SPINNER_YIELDS = 0,
	/* Help or the answer is on its way, sooner than the spinner's next turn. */
	SPINNER_KEEPS_SPINNING = 1,
};

struct spinner_observation {
	enum yield_cause cause; /* a halted vCPU can't keep spinning */
	u32 helped_count;	/* siblings that the pass requested, found requested, or found answering */
	u32 refused_count;	/* siblings not requested because the VM has had more than its share */
	u32 pass_active;	/* there was no pass, because another pCPU is making one over this VM */
	/* PASS_NONE: there was no pass, there is no micro pool, or the reason for the wait is unknown. */
	enum pass_scope scope;
	u32 stranded_count; /* siblings for which sibling_is_stranded() holds */
	u32 vain_waits;	    /* the VM's count from vain_waits_after() */
	u32 ran_out_before; /* its patience ran out at an earlier exit of this wait */
	u64 spun_ns;	    /* how long it has waited in this turn */
};

/* The number of vain waits after which a VM's spinners lose their patience while a sibling is stranded. */
#define VAIN_WAITS_MAX 200u

/*
 * Returns the longest that a vCPU's next pause-loop window can be, in its present turn. No exit comes before
 * its window is over, and at each one KVM doubles the window (ple_window_grow, pause_filter_count_grow in
 * arch/x86/kvm, Linux 6.12). `window_ns` is what was returned at the exit before, `apart_ns` ago.
 */
POLICY u64 window_after_exit(u64 window_ns, u64 apart_ns)
{
	return 2 * (apart_ns < window_ns ? apart_ns : window_ns);
}

/*
 * True if an exit is of another wait than the one before it: of the time between them, more than a micro
 * slice wasn't spent in a window.
 */
POLICY u32 exit_begins_wait(u64 apart_ns, u64 window_ns, u64 micro_slice_ns)
{
	return apart_ns > window_ns && apart_ns - window_ns > micro_slice_ns;
}

/*
 * Returns how often patience has run out in the spinner's VM, in vain, since one of its vCPUs last halted
 * for a lock.
 */
POLICY u32 vain_waits_after(const struct accelerate_config *config, const struct spinner_observation *spinner)
{
	u32 is_helped = spinner->helped_count || spinner->refused_count;

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
	/* A pass takes microseconds, and the next exit asks again. */
	u32 stays = spinner->helped_count > 0 || spinner->pass_active;
	/*
	 * Otherwise the lock's holder may have been preempted in code of no class. A yield brings its turn
	 * sooner.
	 */
	u32 in_vain = spinner->scope == PASS_ONE_CRITICAL && spinner->stranded_count &&
		      spinner->vain_waits >= VAIN_WAITS_MAX;
	u32 patient = spinner->scope != PASS_NONE && spinner->spun_ns < config->patience_ns && !in_vain;

	/* In the paper a pause-loop exit ends in a yield, whatever comes of its pass (section 5). */
	if (spinner->cause == YIELD_HLT || config->paper_rules)
		return SPINNER_YIELDS;
	/*
	 * The VM gets no micro slices until the other VMs have had as much. A sibling makes better use of
	 * the turn.
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
	 * The recipient waits with a boost, which a shorter micro slice would take away. A call is
	 * accelerated anyway, because its sender spins.
	 */
	u32 recipient_goes_first;
	u32 reserved;
};

enum interrupt_reason {
	INTERRUPT_REQUESTS = 0,
	INTERRUPT_NOT_URGENT = 1,	 /* a timer interrupt, or one of an unknown kind */
	INTERRUPT_RECIPIENT_RUNNING = 2, /* the guest handles it at once */
	/* It is woken first; decide_on_woken() decides if it then has to wait. */
	INTERRUPT_RECIPIENT_BLOCKED = 3,
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
	} else if (seen->recipient_goes_first && seen->kind != INTERRUPT_IPI_CALL_FUNCTION &&
		   !config->paper_rules) {
		decision.reason = INTERRUPT_RECIPIENT_GOES_FIRST;
	} else if (seen->micro_pcpu_count == 0) {
		decision.reason = INTERRUPT_NO_MICRO_POOL;
	} else {
		decision.cause = cause;
		decision.reason = INTERRUPT_REQUESTS;
	}
	return decision;
}

/* ---- A wake-up: is a woken vCPU that has to wait worth a micro slice? ---- */

struct woken_observation {
	u32 interrupted;	  /* an interrupt arrived while it was blocked */
	enum interrupt_kind kind; /* the most urgent of these interrupts */
	u32 lock_halt;		  /* it had halted for a paravirtual lock */
	u32 interrupts_enabled;	  /* at the halt; with interrupts disabled only a kick lets it continue */
	u32 micro_pcpu_count;
	u32 guest_known;
};

enum woken_reason {
	WOKEN_REQUESTS = 0,   /* a micro pCPU takes it once no preempted vCPU asks there */
	WOKEN_NOT_URGENT = 1, /* woken by a timer, or without a recorded interrupt */
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
	/* A lock's kick isn't an interrupt, and nothing else wakes a vCPU without one. */
	if (seen->lock_halt && !seen->interrupted)
		return config->paper_rules ? CAUSE_NONE : CAUSE_LOCK_KICK;
	/* The vCPU can't take the interrupt, and halts again. */
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

/* ---- A request: does this micro pCPU have room for it? ---- */

enum placement_decision {
	PLACEMENT_QUEUE = 0,
	PLACEMENT_FULL = 1,	/* the limit of section 5: try the next micro pCPU, or give up */
	PLACEMENT_AFFINITY = 2, /* the vCPU may not run there */
	PLACEMENT_DECISION_COUNT = 3,
};

struct placement_observation {
	u32 queued_count; /* waiting vCPUs that take the same place; the running one isn't counted */
	u32 affinity_allows;
};

POLICY u32 decide_on_placement(const struct accelerate_config *config,
			       const struct placement_observation *pcpu)
{
	if (!pcpu->affinity_allows)
		return PLACEMENT_AFFINITY;
	return pcpu->queued_count < config->micro_queue_max ? PLACEMENT_QUEUE : PLACEMENT_FULL;
}

/* ---- No micro pCPU is free: may the request have a micro slice on this normal pCPU? ---- */

enum home_decision {
	HOME_QUEUE = 0,	   /* it runs there at once; the interrupted vCPU continues afterwards */
	HOME_OFF = 1,	   /* home slices are off, as in the paper */
	HOME_AFFINITY = 2, /* the vCPU may not run there */
	/*
	 * The pCPU doesn't run an ordinary turn: a host task, a vCPU woken for it, or a micro slice runs or
	 * waits.
	 */
	HOME_BUSY = 3,
	HOME_SIBLING = 4,  /* a vCPU of the same VM runs there, and may be the one that waits for it */
	HOME_VM_AHEAD = 5, /* its VM has had more than the VM of the vCPU that runs there */
	/* The vCPU there was interrupted a moment ago: at most half of a pCPU goes to micro slices. */
	HOME_TOO_SOON = 6,
	HOME_DECISION_COUNT = 7,
};

struct home_observation {
	u32 affinity_allows;
	u32 queued_count; /* vCPUs that wait there for a micro slice */
	/*
	 * An ordinary turn runs there, of a vCPU that wasn't woken for this pCPU or of a similar host task.
	 */
	u32 gives_way;
	u32 is_sibling;	 /* the vCPU that runs there is of the same VM */
	u32 vm_is_ahead; /* the result of vm_is_ahead() in fair_share.h */
	u32 disturbed;	 /* a micro slice was requested or ended there less than a micro slice ago */
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

/* ---- The end of a micro slice: the vCPU returns to the normal pool; was the slice worth it? ---- */

enum micro_slice_outcome {
	MICRO_SLICE_SERVED = 0,		/* the interrupt was handled, or the critical code left */
	MICRO_SLICE_STILL_CRITICAL = 1, /* stopped inside critical code again */
	MICRO_SLICE_UNHANDLED = 2,	/* the interrupt that caused the acceleration is still pending */
	MICRO_SLICE_BLOCKED = 3,	/* it went to sleep by itself: nothing was left to do */
	MICRO_SLICE_OUTCOME_COUNT = 4,
};

struct micro_slice_observation {
	enum guest_class guest_class; /* at the end of the slice */
	u32 interrupt_pending;	      /* not yet taken by the guest */
	u32 blocked;		      /* it halted before the slice was over */
	u32 retry_count;	      /* the number of consecutive micro slices that ended too early */
	enum sibling_answer answer;   /* a call may have arrived just before the end */
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
	 * A call that finds its recipient running requests nothing. If the slice ends just then, no other
	 * hint follows.
	 */
	decision.retry =
	    (decision.outcome == MICRO_SLICE_UNHANDLED || decision.outcome == MICRO_SLICE_STILL_CRITICAL ||
	     (!seen->blocked && seen->answer == ANSWER_OWED)) &&
	    seen->retry_count < config->grace_max;
	return decision;
}

#endif
