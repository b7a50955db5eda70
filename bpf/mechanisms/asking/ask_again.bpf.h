/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Asking again: responders that found no room on a micro pCPU, when there is some.
 */
#ifndef BPF_ASK_AGAIN_H
#define BPF_ASK_AGAIN_H

#include "bpf/mechanisms/asking/ask.bpf.h"
#include "bpf/mechanisms/asking/passes.bpf.h"

/* What has no room is counted, too. */
HOOK bool asks_for(struct vcpu *vcpu, u32 slot, u32 cause)
{
	struct vm *vm;

	if (request_acceleration(slot, cause, 0))
		return true;
	vm = vm_at(vcpu->vm);
	if (vm && request_of(vcpu)->failure == FAILURE_VM_AHEAD)
		passes_in(vm)->refused_count++;
	return false;
}

#define NOBODY 0xffffffffu

/* ASK_AGAIN_MAX siblings from `first` on, and this pCPU goes on after them the next time that it has room. */
static __always_inline void ask_some_again(struct pcpu *pcpu, struct vm *vm, u32 slot, u32 first)
{
	u32 high = vm->vcpu_high, left = request_in(vm)->left_to_ask, next = first + ASK_AGAIN_MAX;

	if (!left || left > high)
		left = high;
	passes_in(vm)->visit_count = ASK_AGAIN_MAX;
	make_pass(slot, NOBODY, first, PASS_ALL_OWING, CAUSE_CALL_FUNCTION_IPI);
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
