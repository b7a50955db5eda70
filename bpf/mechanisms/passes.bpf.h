/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Passes: over the siblings of a vCPU that waits, each of them handed to policy/accelerate.h.
 *
 * Races.     What is read of a sibling may be old by the end of a pass; the pull checks again.
 */
#ifndef BPF_PASSES_H
#define BPF_PASSES_H

#include "bpf/core/pass_claim.bpf.h"
#include "bpf/mechanisms/request.bpf.h"

struct passes_vm {
	u64 until_ns; /* a pass over this VM is under way until then at the latest */
	/* Of the pass under way. */
	u32 requested_count;
	u32 helped_count;
	u32 crowded_count;
	u32 refused_count;
	u32 silent_count; /* siblings of which the host can't know whether they owe an answer */
	u32 stranded_count;
};

static __always_inline struct passes_vm *passes_in(const struct vm *vm);

#define SVM_EXIT_HLT 0x78u
#define VMX_EXIT_HLT 12u
#define KVM_ISA_VMX 1u
#define KVM_HC_SCHED_YIELD 11u

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
	if (scope == PASS_ALL_PREEMPTED || scope == PASS_ALL_OWING)
		seen.answer = guest_answer_to_calls(sibling->kvm_vcpu);
	if (seen.answer == ANSWER_UNKNOWN)
		passes_in(vm)->silent_count++;
	if (sibling_is_stranded(&seen))
		passes_in(vm)->stranded_count++;
	verdict = decide_on_sibling(scope, &seen);
	RECORD(RECORD_SIBLING, slot, sibling, {.seen = seen, .scope = scope, .decision = verdict});
	if (verdict < SIBLING_DECISION_COUNT)
		COUNT(stats->siblings[verdict]);
	if (verdict == SIBLING_REQUEST) {
		if (request_acceleration(slot, cause, 0)) {
			passes_in(vm)->requested_count++;
			passes_in(vm)->helped_count++;
		} else if (request_of(sibling)->failure == FAILURE_NO_ROOM) {
			passes_in(vm)->crowded_count++;
		} else if (request_of(sibling)->failure == FAILURE_VM_AHEAD) {
			passes_in(vm)->refused_count++;
		}
	} else if (verdict == SIBLING_ALREADY_REQUESTED || verdict == SIBLING_ANSWERING) {
		passes_in(vm)->helped_count++;
	}
	return verdict != SIBLING_PASS_DONE;
}

/* Goes round the VM's vCPUs from the one at `first`: `count` of them, or all that there are. */
static __always_inline void make_pass(struct vm *vm, u32 vm_slot, u32 self, u32 first, u32 count,
				      const struct yield_decision *decision)
{
	u32 visited;

	passes_in(vm)->requested_count = 0;
	passes_in(vm)->helped_count = 0;
	passes_in(vm)->crowded_count = 0;
	passes_in(vm)->refused_count = 0;
	passes_in(vm)->stranded_count = 0;
	passes_in(vm)->silent_count =
	    decision->scope != PASS_ALL_PREEMPTED; /* others don't look at answers */
	bpf_for (visited, 0, VCPUS_PER_VM_MAX) {
		u32 high = vm->vcpu_high, at = first + visited;

		if (visited >= high || visited >= count)
			break;
		if (!visit_sibling(vm_slot, at < high ? at : at - high, self, decision->scope,
				   decision->cause))
			break;
	}
}

#define NOBODY 0xffffffffu

/* ASK_AGAIN_MAX siblings from `first` on, and this pCPU goes on after them the next time that it has room. */
static __always_inline void ask_some_again(struct pcpu *pcpu, struct vm *vm, u32 slot, u32 first)
{
	struct yield_decision decision = {.scope = PASS_ALL_OWING, .cause = CAUSE_CALL_FUNCTION_IPI};
	u32 high = vm->vcpu_high, left = request_in(vm)->left_to_ask, next = first + ASK_AGAIN_MAX;

	if (!left || left > high)
		left = high;
	make_pass(vm, slot, NOBODY, first, ASK_AGAIN_MAX, &decision);
	left = left > ASK_AGAIN_MAX ? left - ASK_AGAIN_MAX : 0;
	/* If one of these was turned away meanwhile, it is where the next round begins. */
	if (left && __sync_val_compare_and_swap(&request_in(vm)->first_turned_away, 0,
						(next < high ? next : next - high) + 1) != 0)
		left = 0;
	request_in(vm)->left_to_ask = left;
	if (left)
		__sync_val_compare_and_swap(&request_on(pcpu)->turned_away, 0, slot + 1);
}

/*
 * There is room on this micro pCPU: the responders that it turned away, and that still owe an answer, are
 * asked for again. It begins with the one that was turned away first. From the VM's first vCPU on, siblings
 * that wait for answers themselves (critical code, too) would take the place in turns. They would keep out
 * the responders.
 */
static __noinline int ask_again(struct pcpu *pcpu)
{
	u64 now = bpf_ktime_get_ns(), claim;
	struct vm_stats *stats;
	u32 slot, first;
	struct vm *vm;

	if (!pcpu || request_on(pcpu)->vcpu || !config.accelerate.grace_max)
		return 0;
	slot = request_on(pcpu)->turned_away - 1;
	vm = vm_at(slot);
	stats = vm_stats_at(slot);
	if (slot >= VMS_MAX || !vm || !stats)
		return 0;
	claim = passes_in(vm)->until_ns;
	if (claim > now ||
	    __sync_val_compare_and_swap(&passes_in(vm)->until_ns, claim, now + PASS_MAX_NS) != claim)
		return 0; /* a pass is under way: when there is room the next time */
	/* Unless it is another VM by now. */
	__sync_val_compare_and_swap(&request_on(pcpu)->turned_away, slot + 1, 0);
	COUNT(stats->asked_again);
	first = __sync_lock_test_and_set(&request_in(vm)->first_turned_away, 0);
	ask_some_again(pcpu, vm, slot, first ? first - 1 : 0);
	give_pass_back(&passes_in(vm)->until_ns, now);
	return 0;
}

#endif
