/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Requests: where two rooms meet. In asking/ a vCPU is found to be needed, and a request is made. In serving/
 * pCPUs give micro slices to those that were asked for. Neither knows anything else of the other.
 *
 * Problem.   The program that notices that a vCPU is needed (a tracing program, on any pCPU) may not move
 *            tasks.
 * Mechanism. A request marks the vCPU pending and puts it into a one-place queue (the paper's runqueue limit,
 *            section 5). That queue is a micro pCPU's, or one at home (asking/places.bpf.h). The pCPU is
 *            kicked, and its ops.dispatch takes the vCPU out of the normal queue, without searching. A
 *            request that finds no room is forgotten. But the micro pCPU remembers the VM, and the VM its
 *            first vCPU that was turned away. Once the place is free the pCPU asks for the vCPUs that are
 *            still needed, that one first (asking/ask_again.bpf.h).
 * Races.     A request that reaches the micro pCPU before its vCPU is in the normal queue, or after it has
 *            left it, fails and is counted: the vCPU is then already running, or queued where the next
 *            request finds it.
 */
#ifndef BPF_REQUEST_H
#define BPF_REQUEST_H

#include "bpf/core/trace.bpf.h"
#include "bpf/mechanisms/micro_pool.bpf.h"

/* The request that is pending, or under way in the micro pool. */
struct request_vcpu {
	u32 cause;
	u32 vector; /* of the interrupt that it is about; 0: none */
	u32 pcpu;
	u32 retry_count;
	u32 retry;
	u32 failure; /* enum request_failure: why the last micro pCPU that was asked said no */
};

struct request_vm {
	/*
	 * Place in vcpus[] + 1 of the first vCPU that found no room since the last pass that asked again; 0:
	 * none. The first, not the last: then each has its turn, in whichever order those that ask go through
	 * them.
	 */
	u32 first_turned_away;
	/* Of those that are asked for again, how many nobody has looked at yet; 0: they are all looked at. */
	u32 left_to_ask;
};

struct request_pcpu {
	u64 disturbed_at_ns; /* when a micro slice was asked for at home here, or ended here, last */
	/* Slot + 1 of the vCPU that waits for a micro slice here; 0: none. The paper's queue of one. */
	u32 vcpu;
	u32 turned_away; /* slot + 1 of the VM that found no room here last; 0: none since the last look */
};

/* A woken vCPU that waits: no request yet (asking/woken.bpf.h). */
struct woken_vcpu {
	u64 lock_halt_rip; /* where it halted for a paravirtual lock, and still is; 0: it didn't */
	u32 lock_halt_interrupts_enabled;
	u32 blocked_interrupt; /* vector of the interrupt that came while it was blocked; 0: none */
	/*
	 * It was woken, waits since then, and may go to a micro pCPU; 0: not so. What a request would be
	 * about.
	 */
	u32 cause;
	u32 vector;
};

struct woken_pcpu {
	u32 vcpu; /* slot + 1 of a woken vCPU that may come here when no preempted one does; 0: none */
};

static __always_inline struct request_vcpu *request_of(const struct vcpu *vcpu);
static __always_inline struct request_vm *request_in(const struct vm *vm);
static __always_inline struct request_pcpu *request_on(const struct pcpu *pcpu);
static __always_inline struct woken_vcpu *woken_of(const struct vcpu *vcpu);
static __always_inline struct woken_pcpu *woken_on(const struct pcpu *pcpu);

/* The request that was pending ends without an acceleration. */
static __always_inline bool fail_request(struct vcpu *vcpu, u32 to_state, u32 failure)
{
	struct vm_stats *stats;

	if (!vcpu_moves(vcpu, VCPU_PENDING, to_state))
		return false;
	trace_of(vcpu, TRACE_REQUEST_FAILED, 0, failure);
	stats = vm_stats_at(vcpu->vm);
	if (stats && failure < FAILURE_COUNT)
		COUNT(stats->failures[failure]);
	return true;
}

/* The acceleration under way ends: the one place where returns are counted. */
static __always_inline bool end_acceleration(struct vcpu *vcpu, u32 to_state, u32 outcome)
{
	struct vm_stats *stats;

	if (!vcpu_moves(vcpu, VCPU_MICRO, to_state))
		return false;
	trace_of(vcpu, TRACE_RETURNED, 0, outcome);
	stats = vm_stats_at(vcpu->vm);
	if (stats && outcome < RETURN_COUNT)
		COUNT(stats->returns[outcome]);
	return true;
}

#endif
