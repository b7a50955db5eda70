/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Requests: from "this vCPU is needed" to a micro slice.
 *
 * Problem.   The program that notices that a vCPU is needed (a tracing program, on any pCPU) may not move
 *            tasks.
 * Mechanism. A request marks the vCPU pending and puts it into a one-place queue (the paper's runqueue limit,
 *            section 5). That queue is a micro pCPU's, or one at home (home_slices.bpf.h). The request kicks
 *            that pCPU, whose ops.dispatch takes the vCPU out of the normal queue, without searching. A
 *            request that finds no room is forgotten. But the micro pCPU remembers the VM, and the VM its
 *            first vCPU that was turned away. Once the place is free the pCPU asks for the vCPUs that are
 *            still needed, that one first (ask_again.bpf.h).
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
	/* Slot + 1 of the vCPU that waits for a micro slice here; 0: none. The paper's queue of one. */
	u32 vcpu;
	u32 turned_away; /* slot + 1 of the VM that found no room here last; 0: none since the last look */
};

static __always_inline struct request_vcpu *request_of(const struct vcpu *vcpu);
static __always_inline struct request_vm *request_in(const struct vm *vm);
static __always_inline struct request_pcpu *request_on(const struct pcpu *pcpu);

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

/* ---- Request (any context) ---- */

/*
 * A micro slice is taken from the next vCPU of its pCPU. So a VM that has had more than that of the first
 * waiter has none until the others have caught up. That is the first one where its vCPU ran last. Not static,
 * and not inline, for the stack: see look_at_home().
 */
__noinline int is_over_its_share(u32 slot)
{
	struct fair_share_config share = config.fair_share;
	struct vcpu *vcpu = vcpu_at(slot);
	const struct pcpu *home = vcpu ? pcpu_of(vcpu->normal_pcpu) : NULL;
	struct vm *vm, *other;
	u32 first;

	if (!vcpu || !home)
		return false;
	first = first_in_line_for(home, vcpu->breadth) - 1;
	vm = vm_at(vcpu->vm);
	other = vm_at(first);
	return vm && other &&
	       vm_is_ahead(&share, size_of(vm, vcpu->vm), vm->vtime_ns, size_of(other, first),
			   other->vtime_ns);
}

/* It would serve a request at once. */
static __always_inline bool is_free(const struct pcpu *pcpu)
{
	return pcpu->occupant == OCCUPANT_NONE || pcpu->occupant == OCCUPANT_LENT_VCPU;
}

/*
 * Tries one micro pCPU; the policy says whether it has room. Not static, for the verifier and the stack: see
 * try_home().
 */
__noinline u32 try_place(u32 slot, s32 cpu, u32 affinity_allows)
{
	struct vcpu *vcpu = vcpu_at(slot);
	struct pcpu *pcpu = pcpu_of(cpu);
	struct accelerate_config limits = config.accelerate;
	struct placement_observation seen = {.affinity_allows = affinity_allows};
	u32 decision;

	if (!vcpu || !pcpu)
		return PLACEMENT_AFFINITY;
	seen.queued_count = request_on(pcpu)->vcpu != 0;
	decision = decide_on_placement(&limits, &seen);
	RECORD(RECORD_PLACEMENT, slot, placement, {.config = limits, .seen = seen, .decision = decision});
	if (decision == PLACEMENT_QUEUE) {
		request_of(vcpu)->pcpu = cpu;
		if (__sync_val_compare_and_swap(&request_on(pcpu)->vcpu, 0, slot + 1) == 0)
			call_pcpu(cpu, pcpu);
		else
			decision = PLACEMENT_FULL; /* another one was faster */
	}
	if (decision == PLACEMENT_FULL)
		request_on(pcpu)->turned_away = vcpu->vm + 1;
	return decision;
}

/*
 * One round over the micro pCPUs. The reason of a failure is kept in the vCPU, not in a register: see
 * visit_sibling().
 */
static __always_inline bool place_round(struct vcpu *vcpu, u32 slot, struct task_struct *p, bool free_only)
{
	u32 rank;

	bpf_for (rank, 0, POOL_LIMIT_MAX) {
		struct pcpu *pcpu;
		u32 decision;
		s32 cpu;

		if (rank >= micro_pcpu_count)
			break;
		cpu = config.micro_order[rank & POOL_LIMIT_MAX];
		pcpu = pcpu_of(cpu);
		if (!pcpu || (free_only && !is_free(pcpu)))
			continue;
		decision = try_place(slot, cpu, bpf_cpumask_test_cpu(cpu, p->cpus_ptr));
		if (decision == PLACEMENT_QUEUE)
			return true;
		request_of(vcpu)->failure =
		    decision == PLACEMENT_AFFINITY ? FAILURE_AFFINITY : FAILURE_NO_ROOM;
	}
	return false;
}

/* No micro pCPU had room: where the VM is asked for again, once one has. */
static __always_inline void remember_turned_away(const struct vcpu *vcpu)
{
	struct vm *vm = vm_at(vcpu->vm);

	if (vm && !request_in(vm)->first_turned_away)
		request_in(vm)->first_turned_away = vcpu->index_in_vm + 1;
}

/*
 * Somewhere else than on a micro pCPU, because none would serve it at once: the scheduler says where, if
 * anywhere.
 */
static __always_inline bool place_elsewhere(struct vcpu *vcpu, u32 slot, struct task_struct *p);

/*
 * First the micro pCPUs that run no accelerated vCPU, then a pCPU of the normal pool, then micro pCPUs whose
 * queue is empty.
 */
static __always_inline bool place_request(struct vcpu *vcpu, u32 slot)
{
	struct task_struct *p = bpf_task_from_pid(vcpu->pid);
	bool placed;

	if (!p) {
		fail_request(vcpu, VCPU_BLOCKED, FAILURE_BLOCKED);
		return false;
	}
	request_of(vcpu)->failure = FAILURE_NO_ROOM;
	placed = place_round(vcpu, slot, p, true) || place_elsewhere(vcpu, slot, p) ||
		 place_round(vcpu, slot, p, false);
	bpf_task_release(p);
	if (placed)
		return true;
	if (request_of(vcpu)->failure == FAILURE_NO_ROOM)
		remember_turned_away(vcpu);
	fail_request(vcpu, VCPU_RUNNABLE, request_of(vcpu)->failure);
	return false;
}

/*
 * Asks the micro pool for this vCPU. True if help is on its way.
 * Not static: the verifier then checks it once by itself, not at each of its calls.
 */
__noinline int request_acceleration(u32 slot, u32 cause, u32 vector)
{
	struct vcpu *vcpu = vcpu_at(slot);
	struct vm_stats *stats;

	if (!vcpu || cause >= CAUSE_COUNT || vcpu->rests)
		return 0;
	stats = vm_stats_at(vcpu->vm);
	if (!stats)
		return 0;
	if (config.dry_run) {
		u32 class = vcpu->guest_class;

		if (class < GUEST_CLASS_COUNT)
			COUNT(stats->would_request[cause][class]);
		return 0;
	}
	if (!vcpu_moves(vcpu, VCPU_RUNNABLE, VCPU_PENDING))
		return 0;
	COUNT(stats->requests[cause]);
	trace_of(vcpu, TRACE_REQUESTED, cause, 0);
	if (vm_ahead_is_refused(config.accelerate.paper_rules, cause) && is_over_its_share(slot)) {
		request_of(vcpu)->failure = FAILURE_VM_AHEAD;
		fail_request(vcpu, VCPU_RUNNABLE, FAILURE_VM_AHEAD);
		return 0;
	}
	request_of(vcpu)->cause = cause;
	request_of(vcpu)->vector = vector;
	return place_request(vcpu, slot);
}

/* What was requested, or should be again, while the vCPU was between two places. */
static __always_inline void resume_request(struct vcpu *vcpu, u32 slot)
{
	if (request_of(vcpu)->retry) {
		request_of(vcpu)->retry = 0;
		request_acceleration(slot, request_of(vcpu)->cause, request_of(vcpu)->vector);
	} else if (vcpu->state == VCPU_PENDING) {
		/* The request came between stopping and here; the micro pCPU may have looked too early. */
		struct pcpu *pcpu = pcpu_of(request_of(vcpu)->pcpu);

		if (pcpu)
			call_pcpu(request_of(vcpu)->pcpu, pcpu);
	}
}

/* ---- Pull (ops.dispatch of the pCPU that was asked) ---- */

__noinline int pull_vcpu(s32 cpu, u32 slot)
{
	struct vcpu *vcpu = vcpu_at(slot);
	struct task_struct *p;
	struct vm_stats *stats;
	u32 failure = FAILURE_NOT_QUEUED;
	struct task_ctx *tctx;
	bool moved = false;

	if (!vcpu || vcpu->state != VCPU_PENDING)
		return false; /* the normal pool was faster, and counted it */
	p = bpf_task_from_pid(vcpu->pid);
	if (!p) {
		fail_request(vcpu, VCPU_BLOCKED, FAILURE_BLOCKED);
		return false;
	}
	tctx = task_ctx_of(p);
	moved = tctx && pull(p, tctx, cpu, config.micro_slice_ns);
	if (!moved && !may_run_on(p, cpu))
		failure = FAILURE_AFFINITY;
	bpf_task_release(p);
	/*
	 * The task is in this pCPU's local queue and this pCPU is here: it can't run before we return. If it
	 * left again meanwhile (its affinity changed), the state is corrected when it is enqueued or runs.
	 */
	stats = vm_stats_at(vcpu->vm);
	if (moved && stats) {
		u32 cause = request_of(vcpu)->cause, class = vcpu->guest_class;

		request_of(vcpu)->pcpu = cpu;
		if (vcpu_moves(vcpu, VCPU_PENDING, VCPU_MICRO) && cause < CAUSE_COUNT &&
		    class < GUEST_CLASS_COUNT) {
			COUNT(stats->accelerations[cause][class]);
			trace_of(vcpu, TRACE_ACCELERATED, cause, 0);
		}
	} else {
		fail_request(vcpu, VCPU_RUNNABLE, failure);
	}
	return moved;
}

static __always_inline bool serve_request(s32 cpu, struct pcpu *pcpu)
{
	u32 request = __sync_lock_test_and_set(&request_on(pcpu)->vcpu, 0);

	return request && pull_vcpu(cpu, request - 1);
}

#endif
