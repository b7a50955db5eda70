/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Grace: a turn that ends in critical code goes on for a little.
 *
 * Mechanism. Grace is a window that doesn't slide (policy/delay_preemption.h). It is given look by look, at
 *            the end of a turn and after an interruption. Where turns have windows that slide there is none.
 * Limits.    A guest whose kernel isn't known has none.
 */
#ifndef BPF_GRACE_H
#define BPF_GRACE_H

#include "bpf/mechanisms/delay_preemption.bpf.h"

struct grace_vcpu {
	u64 given_ns;	 /* how much it was given in a row */
	u32 turn_over;	 /* the policy was asked at the end of this turn, and said that it ends */
	u32 interrupted; /* its turn in the normal pool was cut off just now, and nobody asked the policy */
};

static __always_inline struct grace_vcpu *grace_of(const struct vcpu *vcpu);

/*
 * Its turn is over, or is cut short. May it go on until the next look, because it was stopped at a bad
 * moment?
 */
__noinline int gets_grace(u32 slot, u32 class, u32 is_cut_short)
{
	struct vcpu *vcpu = vcpu_at(slot);
	struct delay_config rules = config.delay;
	struct delay_observation seen = {
	    .window = delay_window_of_grace(&rules), .guest_class = class, .is_cut_short = is_cut_short};
	struct delay_decision decision;

	/* Nothing is known of its waiters: it is scheduled like any other task. */
	if (!vcpu || turns_have_windows() || !guest_is_known(vcpu->vm))
		return false;
	seen.now_ns = grace_of(vcpu)->given_ns;
	seen.answer = guest_answer_to_calls(vcpu->kvm_vcpu);
	decision = decide_on_delay(&rules, &seen);
	RECORD(RECORD_TURN, slot, turn, {.config = rules, .seen = seen, .decision = decision});
	if (decision.verdict != DELAY_GOES_ON)
		return false;
	grace_of(vcpu)->given_ns += rules.look_ns;
	return true;
}

/* A vCPU that has grace when its turn begins has no more than that. */
static __always_inline void begin_grace(s32 cpu, struct pcpu *pcpu, u64 now)
{
	arm_look(cpu, pcpu, now + config.delay.look_ns, now);
}

/* It doesn't end what begins now. */
static __always_inline void end_grace(struct pcpu *pcpu)
{
	if (!turns_have_windows())
		delay_on(pcpu)->look_at_ns = 0;
}

/*
 * A kernel thread, or a task of a higher class, took its pCPU away: does it come back at once, with grace?
 */
static __always_inline bool comes_back(struct vcpu *vcpu, u32 slot)
{
	bool interrupted = grace_of(vcpu)->interrupted;
	struct vm_stats *stats = vm_stats_at(vcpu->vm);

	grace_of(vcpu)->interrupted = 0;
	if (!interrupted || !gets_grace(slot, vcpu->guest_class, 0))
		return false;
	if (stats)
		COUNT(stats->graces[1]);
	return true;
}

/* A turn that ends at a bad moment is made longer before any other task, host tasks too, gets the pCPU. */
static __always_inline bool finishes_first(s32 cpu, struct task_struct *prev, struct pcpu *pcpu,
					   const struct task_ctx *tctx, struct vcpu *vcpu)
{
	u32 slot = tctx->vcpu - 1;
	u32 class = classify_rip(slot, vcpu->vm, vcpu->kvm_vcpu, read_guest_rip(vcpu->kvm_vcpu));
	struct vm_stats *stats = vm_stats_at(vcpu->vm);

	if (!gets_grace(slot, class, left_of_turn(tctx, pcpu) > 0)) {
		grace_of(vcpu)->turn_over = 1;
		return false;
	}
	if (stats)
		COUNT(stats->graces[0]);
	task_set_slice(prev, config.delay.look_ns);
	begin_grace(cpu, pcpu, bpf_ktime_get_ns());
	return true;
}

/* Whose turn ends isn't safe: it goes on, in its window or with grace. */
static __always_inline bool is_put_off(s32 cpu, struct task_struct *prev, struct pcpu *pcpu)
{
	struct task_ctx *tctx = turns_are_delayed_on(cpu, pcpu) ? whose_turn_ends(prev) : NULL;
	struct vcpu *vcpu = vcpu_of(tctx);

	if (!tctx || !vcpu)
		return false;
	return turns_have_windows() ? window_puts_off(cpu, prev, tctx)
				    : finishes_first(cpu, prev, pcpu, tctx, vcpu);
}

#endif
