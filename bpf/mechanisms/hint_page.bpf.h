/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Hint page: what a guest says of itself, in a page of its own (guest/hints/hint_page.h).
 *
 * Problem.   Only the guest knows when it holds a lock, and there is no exit that says so.
 * Mechanism. The daemon finds the page, and where the VMM has it. A hint is read where a turn may end, as
 *            user memory of the current task: that is the vCPU's own thread, both in ops.dispatch, which runs
 *            before the switch, and in the timer that has interrupted its guest.
 * Races.     The guest writes meanwhile: a word is read at once, and each look reads it anew.
 * Limits.    Reading never waits. Nothing is heard of a page that isn't there just now (swapped out, moved).
 *            Nor is it where another task is current (the timer's work was left to ksoftirqd).
 *            policy/delay_preemption.h bounds what is heard.
 */
#ifndef BPF_HINT_PAGE_H
#define BPF_HINT_PAGE_H

#include "bpf/core/vcpu.bpf.h"
#include "guest/hints/hint_page.h"

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, VMS_MAX);
	__type(key, u32);
	__type(value, struct hint_place);
} hint_places SEC(".maps");

/* For how long its guest says that it isn't to be preempted; 0: it says nothing. */
static __always_inline u64 hint_of(const struct vcpu *vcpu)
{
	u32 slot = vcpu->vm, not_now_us = 0;
	struct hint_place *place = bpf_map_lookup_elem(&hint_places, &slot);
	struct vm *vm = vm_at(slot);

	if (!place || !vm || !place->address || place->generation != vm->generation ||
	    vcpu->vcpu_id >= place->vcpu_count)
		return 0;
	if ((u32)bpf_get_current_task_btf()->pid != vcpu->pid)
		return 0;
	if (bpf_probe_read_user(&not_now_us, sizeof(not_now_us),
				(void *)(place->address + hint_offset(vcpu->vcpu_id))))
		return 0;
	return not_now_us * 1000ull;
}

#endif
