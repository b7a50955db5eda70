/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Ask: a vCPU is needed, and asks for a micro slice.
 */
#ifndef BPF_ASK_H
#define BPF_ASK_H

#include "bpf/mechanisms/asking/places.bpf.h"

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

#endif
