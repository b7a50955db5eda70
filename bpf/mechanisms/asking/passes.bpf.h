/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Passes: what KVM's events say of which vCPUs are needed, and a pass over the siblings of one that waits,
 * each of them handed to policy/accelerate.h.
 *
 * Mechanism. The same with and without micro pCPUs: the scheduler says how it asks for a vCPU.
 * Races.     What is read of a sibling may be old by the end of a pass; the pull checks again.
 */
#ifndef BPF_PASSES_H
#define BPF_PASSES_H

#include "bpf/core/pass_claim.bpf.h"
#include "bpf/core/vcpu.bpf.h"

struct passes_vm {
	u64 until_ns; /* a pass over this VM is under way until then at the latest */
	/* Of the pass under way. */
	u32 visit_count; /* how many siblings it looks at, at most */
	u32 requested_count;
	u32 helped_count;
	u32 refused_count;
	u32 stranded_count;
	u32 reserved;
};

static __always_inline struct passes_vm *passes_in(const struct vm *vm);

/* It is needed. True if it was asked for. */
HOOK bool asks_for(struct vcpu *vcpu, u32 slot, u32 cause);

/*
 * Looks at one sibling; false ends the pass. What the pass has counted is kept in the VM, not on the stack: a
 * counter that grows in a register makes each turn of a loop a new state to the verifier, which then never
 * ends. The pass has the VM to itself.
 */
__noinline int visit_sibling(u32 vm_slot, u32 at, u32 self, u32 scope, u32 cause)
{
	struct sibling_observation seen = {};
	struct vm *vm = vm_at(vm_slot);
	struct vm_stats *stats = vm_stats_at(vm_slot);
	struct vcpu *sibling;
	u32 entry, slot, verdict;

	if (!vm || !stats)
		return 0;
	entry = vm->vcpus[at & (VCPUS_PER_VM_MAX - 1)];
	slot = entry - 1;
	sibling = vcpu_at(slot);
	if (!entry || slot == self || !sibling)
		return 1;
	seen.state = sibling->state;
	seen.preempted = sibling->preempted;
	seen.yielded = sibling->yielded;
	seen.guest_class = sibling->guest_class;
	seen.requested_count = passes_in(vm)->requested_count;
	if ((scope == PASS_ALL_PREEMPTED || scope == PASS_ALL_OWING) &&
	    answers_are_read(config.accelerate.paper_rules))
		seen.answer = guest_answer_to_calls(sibling->kvm_vcpu);
	if (sibling_is_stranded(&seen))
		passes_in(vm)->stranded_count++;
	verdict = decide_on_sibling(scope, &seen);
	RECORD(RECORD_SIBLING, slot, sibling, {.seen = seen, .scope = scope, .decision = verdict});
	if (verdict < SIBLING_DECISION_COUNT)
		COUNT(stats->siblings[verdict]);
	if (verdict == SIBLING_REQUEST) {
		if (asks_for(sibling, slot, cause)) {
			passes_in(vm)->requested_count++;
			passes_in(vm)->helped_count++;
		}
	} else if (verdict == SIBLING_ALREADY_REQUESTED || verdict == SIBLING_ANSWERING) {
		passes_in(vm)->helped_count++;
	}
	return verdict != SIBLING_PASS_DONE;
}

/*
 * Goes round the VM's vCPUs from the one at `first`: as many as asked for, or all that there are. Not static:
 * the verifier then checks it once by itself.
 */
__noinline int make_pass(u32 vm_slot, u32 self, u32 first, u32 scope, u32 cause)
{
	struct vm *vm = vm_at(vm_slot);
	u32 high, visited, count;

	if (!vm)
		return 0;
	high = vm->vcpu_high;
	count = passes_in(vm)->visit_count;
	passes_in(vm)->requested_count = 0;
	passes_in(vm)->helped_count = 0;
	passes_in(vm)->refused_count = 0;
	passes_in(vm)->stranded_count = 0;
	bpf_for (visited, 0, VCPUS_PER_VM_MAX) {
		u32 at = first + visited;

		if (visited >= high || visited >= count)
			break;
		if (!visit_sibling(vm_slot, at < high ? at : at - high, self, scope, cause))
			break;
	}
	return 0;
}

/* From the one behind this vCPU on. */
static __always_inline void pass_over_all(const struct vcpu *self, u32 slot,
					  const struct yield_decision *decision)
{
	struct vm *vm = vm_at(self->vm);

	if (!vm)
		return;
	passes_in(vm)->visit_count = VCPUS_PER_VM_MAX;
	make_pass(self->vm, slot, self->index_in_vm + 1, decision->scope, decision->cause);
}

/* ---- Verdicts ---- */

/*
 * What the policy says of a yield, of which the cause and the number of micro pCPUs are known. True if the
 * caller has claimed the pass, and gives it back.
 */
static __always_inline bool judge_yield(struct vcpu *self, u32 slot, u64 rip, u64 now,
					struct yield_observation *seen, struct yield_decision *decision)
{
	struct vm *vm = vm_at(self->vm);
	struct vm_stats *stats = vm_stats_at(self->vm);
	u32 at = seen->cause, reason;
	bool claimed;

	*decision = (struct yield_decision){};
	if (!vm || !stats)
		return false;
	seen->guest_class = classify_rip(slot, self->vm, self->kvm_vcpu, rip);
	seen->interrupts_enabled = guest_interrupts_enabled(self->kvm_vcpu);
	claimed = decide_and_claim(&passes_in(vm)->until_ns, now, seen, decision);
	RECORD(RECORD_YIELD, slot, yield, {.seen = *seen, .decision = *decision});
	/* The verifier forgets what it knew of both when the compiler puts them onto the stack. */
	reason = decision->reason;
	barrier_var(at);
	barrier_var(reason);
	if (at < YIELD_CAUSE_COUNT && reason < YIELD_REASON_COUNT)
		COUNT(stats->yields[at][reason]);
	if (seen->cause == YIELD_PLE)
		self->guest_class = seen->guest_class;
	return claimed;
}

/* The same of an interrupt, whose recipient is known. */
static __always_inline struct interrupt_decision judge_interrupt(u32 slot, struct vm_stats *stats,
								 const struct interrupt_observation *seen)
{
	struct accelerate_config limits = config.accelerate;
	struct interrupt_decision decision = decide_on_interrupt(&limits, seen);

	RECORD(RECORD_INTERRUPT, slot, interrupt, {.config = limits, .seen = *seen, .decision = decision});
	if (seen->kind < INTERRUPT_KIND_COUNT && decision.reason < INTERRUPT_REASON_COUNT)
		COUNT(stats->interrupts[seen->kind][decision.reason]);
	return decision;
}

#endif
