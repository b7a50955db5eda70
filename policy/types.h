/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The types that all policies share.
 *
 * Policy code is portable C that calls nothing: values in, a decision out. The same headers are compiled
 * into the BPF scheduler (bpf/) and natively for the simulator (crates/policy). So they use no kernel types,
 * no conditional compilation and no floats. Every loop is bounded by a constant, and every division is
 * guarded.
 *
 * The integer typedefs are the kernel's own, letter for letter, so that C11 accepts both in one file.
 */
#ifndef POLICY_TYPES_H
#define POLICY_TYPES_H

typedef unsigned char u8;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef int s32;
typedef long long s64;

/*
 * Marks a policy function. BPF can't return a struct from a real call, so these functions are always
 * inlined.
 */
#define POLICY static inline __attribute__((always_inline, unused))

/*
 * Returns the time from SINCE_NS to NOW_NS, or none if SINCE_NS is later. Another CPU may have set it after
 * NOW_NS was read.
 */
POLICY u64 elapsed_ns(u64 since_ns, u64 now_ns)
{
	return now_ns > since_ns ? now_ns - since_ns : 0;
}

/*
 * What the code at a guest instruction pointer does (paper, Table 3). The numbers are part of the format of
 * BPF maps and recordings: append, never renumber. crates/symbols::CodeClass has the same codes.
 */
enum guest_class {
	GUEST_CLASS_UNKNOWN = 0,       /* no symbols, no slide yet, or outside the kernel's text */
	GUEST_CLASS_USER = 1,	       /* user mode: never critical (paper 4.4, limitations) */
	GUEST_CLASS_KERNEL_OTHER = 2,  /* kernel text that isn't in Table 3 */
	GUEST_CLASS_LOCK_HOLDER = 3,   /* inside a critical section, or leaving it */
	GUEST_CLASS_LOCK_WAITER = 4,   /* spinning for a lock */
	GUEST_CLASS_TLB_SHOOTDOWN = 5, /* sending, awaiting or serving a cross-call or TLB flush */
	GUEST_CLASS_RESCHED_IPI = 6,   /* sending or serving a reschedule IPI, waking a thread */
	GUEST_CLASS_IRQ_HANDLER = 7,   /* in an interrupt handler or softirq */
	GUEST_CLASS_IDLE = 8,	       /* the idle loop */
	GUEST_CLASS_COUNT = 9,
};

/* Why a vCPU gives up its pCPU, or can't continue. */
enum yield_cause {
	YIELD_PLE = 0,	    /* pause-loop exit: the guest spins */
	YIELD_HLT = 1,	    /* HLT exit: idle, or a paravirtual lock's slow path */
	YIELD_IPI_WAIT = 2, /* paravirtual yield towards a preempted IPI target */
	YIELD_CAUSE_COUNT = 3,
};

/* What an interrupt means to the guest of the vCPU that is about to receive it. */
enum interrupt_kind {
	INTERRUPT_OTHER = 0, /* not recognised: never accelerated */
	INTERRUPT_IPI_RESCHEDULE = 1,
	INTERRUPT_IPI_CALL_FUNCTION = 2, /* to one vCPU or many: TLB shootdowns and cross-calls */
	INTERRUPT_VIRQ = 3,		 /* from a device */
	INTERRUPT_TIMER = 4,		 /* the vCPU's own timer */
	INTERRUPT_KIND_COUNT = 5,
};

/*
 * Whether a vCPU owes an answer to a shootdown, or to another call of a sibling. Its local APIC tells the
 * host.
 */
enum sibling_answer {
	ANSWER_UNKNOWN = 0, /* the host can't see it */
	ANSWER_GIVEN = 1,   /* no call-function interrupt is pending; the handler may still be running */
	ANSWER_OWED = 2,
};

/* The state of a vCPU, as the scheduler of its host sees it. */
enum vcpu_state {
	VCPU_BLOCKED = 0,  /* halted: waits for an event */
	VCPU_RUNNABLE = 1, /* waits for a pCPU of the normal pool */
	VCPU_RUNNING = 2,  /* on a pCPU of the normal pool */
	VCPU_PENDING = 3,  /* runnable, and requested for the micro pool */
	VCPU_MICRO = 4,	   /* on a pCPU of the micro pool */
	VCPU_STATE_COUNT = 5,
};

/* Why a vCPU is accelerated. Each cause is counted, and is a row of every report. */
enum cause {
	CAUSE_NONE = 0,
	CAUSE_TLB_YIELD = 1,	     /* a sibling waits in a TLB shootdown or cross-call (paper 4.2, first) */
	CAUSE_LOCK_YIELD = 2,	     /* a sibling spins for a lock (paper 4.2, second) */
	CAUSE_LOCK_HALT = 3,	     /* a sibling halted in a paravirtual lock's slow path */
	CAUSE_PV_YIELD = 4,	     /* a sibling yielded by hypercall to a preempted IPI target */
	CAUSE_RESCHED_IPI = 5,	     /* a reschedule IPI is on its way to the vCPU */
	CAUSE_CALL_FUNCTION_IPI = 6, /* a call-function IPI is on its way to the vCPU */
	CAUSE_VIRQ = 7,		     /* a device interrupt is on its way to the vCPU (paper 4.2, third) */
	CAUSE_LOCK_KICK = 8,	     /* it halted in a paravirtual lock, and its turn for the lock has come */
	CAUSE_HOLDER = 9,	     /* it was stopped while it held something (held.h) */
	CAUSE_HEIR = 10,	     /* nobody holds a lock that others wait for, and it waits (heirs.h) */
	CAUSE_MAX_WAIT = 11,	     /* it has waited for nearly its VM's bound (max_wait.h) */
	CAUSE_WOKEN = 12,	     /* it was woken, and what runs on its pCPU isn't to stop for it */
	CAUSE_COUNT = 13,
};

#endif
