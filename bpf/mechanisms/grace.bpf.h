/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Grace: a turn that ends at a bad moment is made longer.
 *
 * Mechanism. A turn that ends in critical code, or before a call was answered, is made longer by a few micro
 *            slices (policy/accelerate.h: decide_at_turn_end), at its end, and after an interruption.
 */
#ifndef BPF_GRACE_H
#define BPF_GRACE_H

#include "bpf/mechanisms/micro_slice.bpf.h"

struct grace_vcpu {
	u32 count;	 /* micro slices in a row that its turn was made longer by */
	u32 turn_over;	 /* the policy was asked at the end of this turn, and said that it ends */
	u32 interrupted; /* its turn in the normal pool was cut off just now, and nobody asked the policy */
};

static __always_inline struct grace_vcpu *grace_of(const struct vcpu *vcpu);

/* Its turn is over. May it go on for a micro slice, because it was stopped at a bad moment? */
__noinline int gets_grace(u32 slot, u32 class)
{
	struct vcpu *vcpu = vcpu_at(slot);
	struct accelerate_config limits = config.accelerate;
	struct turn_observation seen = {.guest_class = class, .micro_pcpu_count = micro_pcpu_count};
	u32 decision;

	/* Nothing is known of who waits for it: it is scheduled like any other task. */
	if (!vcpu || !guest_is_known(vcpu->vm))
		return false;
	seen.yielded = vcpu->yielded;
	seen.grace_count = grace_of(vcpu)->count;
	seen.answer = guest_answer_to_calls(vcpu->kvm_vcpu);
	decision = decide_at_turn_end(&limits, &seen);
	RECORD(RECORD_TURN, slot, turn, {.config = limits, .seen = seen, .decision = decision});
	if (decision != TURN_GOES_ON)
		return false;
	grace_of(vcpu)->count++;
	return true;
}

/*
 * A kernel thread, or a task of a higher class, took its pCPU away: does it come back at once, for a micro
 * slice?
 */
static __always_inline bool comes_back(struct vcpu *vcpu, u32 slot)
{
	bool interrupted = grace_of(vcpu)->interrupted;
	struct vm_stats *stats = vm_stats_at(vcpu->vm);

	grace_of(vcpu)->interrupted = 0;
	if (!interrupted || !micro_pcpu_count || !gets_grace(slot, vcpu->guest_class))
		return false;
	if (stats)
		COUNT(stats->graces[1]);
	return true;
}

/*
 * A turn that ends at a bad moment is made longer by a micro slice, before anybody else, host tasks too, gets
 * the pCPU.
 */
static __always_inline bool finishes_first(s32 cpu, struct task_struct *prev, struct pcpu *pcpu)
{
	struct task_ctx *tctx = micro_pcpu_count ? whose_turn_ends(prev) : NULL;
	struct vcpu *vcpu = vcpu_of(tctx);
	struct vm_stats *stats;
	u32 slot, class;

	if (!tctx || !vcpu)
		return false;
	slot = tctx->vcpu - 1;
	class = classify_rip(slot, vcpu->vm, vcpu->kvm_vcpu, read_guest_rip(vcpu->kvm_vcpu));
	if (!gets_grace(slot, class)) {
		grace_of(vcpu)->turn_over = 1;
		return false;
	}
	stats = vm_stats_at(vcpu->vm);
	if (stats)
		COUNT(stats->graces[0]);
	task_set_slice(prev, config.micro_slice_ns);
	arm_micro_slice(cpu, pcpu, bpf_ktime_get_ns());
	return true;
}

#endif
