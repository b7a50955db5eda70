/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Hints: what KVM's events (core/observe.bpf.h) say about which vCPUs are needed, by policy/accelerate.h.
 */
#ifndef BPF_HINTS_H
#define BPF_HINTS_H

#include "bpf/core/observe.bpf.h"
#include "bpf/mechanisms/asking/ask_again.bpf.h"
#include "bpf/mechanisms/asking/heirs.bpf.h"
#include "bpf/mechanisms/asking/patience.bpf.h"

/*
 * Somebody of the VM may wait for a lock; `has_stopped`: a vCPU of it has just stopped. True if help is on
 * its way to a stopped waiter. Not static: see maps.bpf.h.
 */
__noinline int ask_for_heir(u32 vm_slot, u32 has_stopped)
{
	u32 heir = next_heir(vm_slot);

	if (!heir)
		return 0;
	if (has_stopped)
		count_urgent(urgent_event_of_stop(CAUSE_HEIR));
	if (!decided_pcpu_count || !request_acceleration(heir - 1, CAUSE_HEIR, 0))
		return 0;
	heir_is_tried(heir - 1);
	return 1;
}

/* The vCPU whose thread this is gives up its pCPU, or is about to. */
__noinline int on_yield(u32 cause)
{
	struct task_ctx *tctx = task_ctx_of(bpf_get_current_task_btf());
	struct vcpu *self = vcpu_of(tctx);
	struct yield_observation seen = {.cause = cause, .paper_rules = config.accelerate.paper_rules};
	struct yield_decision decision;
	struct vm *vm;
	u64 now = bpf_ktime_get_ns(), rip;
	bool claimed;
	u32 slot;

	if (!tctx || !self || cause >= YIELD_CAUSE_COUNT)
		return 0;
	vm = vm_at(self->vm);
	if (!vm)
		return 0;
	slot = tctx->vcpu - 1;
	self->heirs_tried = 0;
	seen.micro_pcpu_count = decided_pcpu_count;
	rip = read_guest_rip(self->kvm_vcpu);
	claimed = judge_yield(self, slot, rip, now, &seen, &decision);
	count_urgent(urgent_event_of_yield(&seen, decision.cause));
	if (cause == YIELD_HLT) {
		woken_of(self)->lock_halt_rip = decision.cause == CAUSE_LOCK_HALT ? rip : 0;
		woken_of(self)->lock_halt_interrupts_enabled = seen.interrupts_enabled;
	}
	if (decision.scope != PASS_NONE)
		pass_over_all(self, slot, &decision);
	if (decision.scope == PASS_ONE_CRITICAL && !passes_in(vm)->helped_count &&
	    ask_for_heir(self->vm, false))
		passes_in(vm)->helped_count++;
	/* Before the VM is given to another pass, which counts anew. */
	decide_spinner(self, slot, cause, decision.scope != PASS_NONE ? vm : NULL, decision.scope,
		       decision.reason);
	if (claimed)
		give_pass_back(&passes_in(vm)->until_ns, now);
	return 0;
}

static __noinline int on_interrupt(u64 kvm_vcpu, u32 vector)
{
	u32 *slot = bpf_map_lookup_elem(&vcpu_by_address, &kvm_vcpu);
	struct interrupt_observation seen = {};
	struct interrupt_decision decision;
	struct vm_stats *stats;
	struct vcpu *vcpu;

	if (!slot)
		return 0;
	vcpu = vcpu_at(*slot);
	if (!vcpu)
		return 0;
	stats = vm_stats_at(vcpu->vm);
	if (!stats)
		return 0;
	seen.kind = interrupt_kind_of(vector);
	seen.recipient_state = vcpu->state;
	seen.micro_pcpu_count = decided_pcpu_count;
	seen.guest_known = guest_is_known(vcpu->vm);
	seen.recipient_goes_first = vcpu->goes_first;
	decision = judge_interrupt(*slot, stats, &seen);
	count_urgent(urgent_event_of_interrupt(config.accelerate.paper_rules, seen.kind, decision.reason));
	/* Of several the urgent one is remembered until it runs: see ask_about_woken(). */
	if (seen.recipient_state == VCPU_BLOCKED &&
	    (decision.reason == INTERRUPT_RECIPIENT_BLOCKED || !woken_of(vcpu)->blocked_interrupt))
		woken_of(vcpu)->blocked_interrupt = vector;
	if (decision.cause != CAUSE_NONE)
		request_acceleration(*slot, decision.cause, vector);
	return 0;
}

#endif
