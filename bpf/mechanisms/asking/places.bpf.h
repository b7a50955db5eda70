/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Places: which pCPU is asked for a micro slice.
 *
 * Mechanism. First come the micro pCPUs that run no accelerated vCPU. Then comes one of the normal pool whose
 *            turn gives way, and at last a micro pCPU whose place is free. A micro pool is small, and far
 *            from warm caches. Of eleven responders ten wait for those before them. Meanwhile the pCPUs that
 *            they ran on last run turns that can wait. So a request looks at the pCPU where its vCPU ran last
 *            in the normal pool, and at the next three (policy/accelerate.h: decide_on_home).
 * Limits.    At home never from a sibling, which may be the one that waits, and never from a VM that has had
 *            less. A bound on waits asks either. A pCPU's micro slices take half of its time at most.
 */
#ifndef BPF_PLACES_H
#define BPF_PLACES_H

#include "bpf/mechanisms/request.bpf.h"

/* ---- A micro pCPU ---- */

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

/* ---- At home: a pCPU of the normal pool ---- */

/* What runs on a pCPU of the normal pool, to a vCPU that would like a micro slice there. */
enum seen_at_home {
	AT_HOME_GIVES_WAY = 1,
	AT_HOME_SIBLING = 2,
	AT_HOME_VM_AHEAD = 4,
	AT_HOME_DISTURBED = 8,
};

/*
 * Bits of seen_at_home. Neither this nor the next one is static: the verifier then checks each by itself.
 * They are two, for the stack: their callers are five calls deep.
 */
__noinline u32 look_at_home(u32 slot, s32 cpu)
{
	struct vcpu *vcpu = vcpu_at(slot);
	struct pcpu *pcpu = pcpu_of(cpu);
	u32 seen = 0;

	if (!vcpu || !pcpu || !gives_way_to(cpu, pcpu, true))
		return 0;
	if (pcpu->occupant == OCCUPANT_VCPU && pcpu->vm == vcpu->vm + 1)
		seen |= AT_HOME_SIBLING;
	if (is_of_vm_ahead(vcpu, pcpu))
		seen |= AT_HOME_VM_AHEAD;
	/* Another request may just have disturbed it, after the clock was read here. */
	if ((s64)(bpf_ktime_get_ns() - request_on(pcpu)->disturbed_at_ns) < (s64)config.micro_slice_ns)
		seen |= AT_HOME_DISTURBED;
	return seen | AT_HOME_GIVES_WAY;
}

/* Its VM's bound on waits asks (policy/max_wait.h): any turn gives way, on any pCPU. */
static __always_inline bool is_for_bound(const struct vcpu *vcpu)
{
	return request_of(vcpu)->cause == CAUSE_MAX_WAIT;
}

/* True if that pCPU comes for it now. */
__noinline int try_home(u32 slot, s32 cpu, u32 affinity_allows, u32 at_home)
{
	struct vcpu *vcpu = vcpu_at(slot);
	struct pcpu *pcpu = pcpu_of(cpu);
	struct accelerate_config limits = config.accelerate;
	struct home_observation seen = {.affinity_allows = affinity_allows,
					.gives_way = (at_home & AT_HOME_GIVES_WAY) != 0,
					.is_sibling = (at_home & AT_HOME_SIBLING) != 0,
					.vm_is_ahead = (at_home & AT_HOME_VM_AHEAD) != 0,
					.disturbed = (at_home & AT_HOME_DISTURBED) != 0};
	u32 decision;

	if (!vcpu || !pcpu)
		return 0;
	limits.home_slices |= is_for_bound(vcpu);
	seen.queued_count = request_on(pcpu)->vcpu != 0;
	decision = decide_on_home(&limits, &seen);
	RECORD(RECORD_HOME, slot, home, {.config = limits, .seen = seen, .decision = decision});
	if (decision != HOME_QUEUE)
		return 0;
	request_of(vcpu)->pcpu = cpu;
	if (__sync_val_compare_and_swap(&request_on(pcpu)->vcpu, 0, slot + 1) != 0)
		return 0; /* another one was faster */
	/* Whatever becomes of it, the vCPU there isn't preempted again at once. */
	request_on(pcpu)->disturbed_at_ns = bpf_ktime_get_ns();
	scx_bpf_kick_cpu(cpu, KICK_PREEMPT);
	return 1;
}

/* pCPUs that may come for one whose VM's bound asks. */
#define BOUND_LOOK_MAX 64

/* The pCPU where it ran last in the normal pool, or one of the next few. */
static __always_inline bool place_at_home(struct vcpu *vcpu, u32 slot, struct task_struct *p)
{
	u32 step, ignored = is_for_bound(vcpu) ? AT_HOME_SIBLING | AT_HOME_VM_AHEAD : 0;

	if (!config.accelerate.home_slices && !ignored)
		return false;
	bpf_for (step, 0, ignored ? BOUND_LOOK_MAX : PREEMPT_LOOK_MAX) {
		s32 cpu = vcpu->normal_pcpu + step;

		if (step >= config.pcpu_count)
			break;
		if ((u32)cpu >= config.pcpu_count)
			cpu -= config.pcpu_count;
		if (!pcpu_is_micro(cpu) &&
		    try_home(slot, cpu, may_run_on(p, cpu), look_at_home(slot, cpu) & ~ignored))
			return true;
	}
	return false;
}

/* ---- Either ---- */

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
	placed = place_round(vcpu, slot, p, true) || place_at_home(vcpu, slot, p) ||
		 place_round(vcpu, slot, p, false);
	bpf_task_release(p);
	if (placed)
		return true;
	if (request_of(vcpu)->failure == FAILURE_NO_ROOM)
		remember_turned_away(vcpu);
	fail_request(vcpu, VCPU_RUNNABLE, request_of(vcpu)->failure);
	return false;
}

#endif
