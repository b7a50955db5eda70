/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Held: what a vCPU holds by its guest kernel's own count, read when it stops (policy/held.h).
 *
 * Problem.   The function that a vCPU was stopped in tells few of the locks that it holds.
 * Mechanism. The daemon finds each vCPU's word, and where the VMM has it. It is read as user memory of the
 *            current task: that is the vCPU's own thread, which has left its guest, and is about to be
 *            switched out. Its guest's memory is there. The word stays as it is until the vCPU runs again.
 * Races.     vCPUs of one VM stop at the same time: what is believed of their guest may miss some of these
 *            looks. One that is lost that way is lost a few looks later.
 * Limits.    Reading never waits. Nothing is known where the word isn't in memory just now, nor where another
 *            task is current: one that takes a vCPU off its pCPU to change something of its thread.
 *            Windows look by symbols alone: the stack frames of microslice_dispatch (136 bytes), puts_off
 *            (280) and look_at_count (240) would be more than the 512 bytes that calls may take.
 */
#ifndef BPF_HELD_H
#define BPF_HELD_H

#include "bpf/core/guest_code.bpf.h"

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, VCPUS_MAX);
	__type(key, u32);
	__type(value, struct count_place);
} count_places SEC(".maps");

/* Belief begins anew with words that were found anew. */
static __always_inline void begin_belief(struct vm *vm, u32 epoch)
{
	if (vm->count_epoch == epoch)
		return;
	vm->belief = (struct count_belief){};
	vm->count_epoch = epoch;
}

/* Its word, in its own thread. */
static __always_inline bool read_count(const struct vcpu *vcpu, const struct count_place *place, u32 *count)
{
	if (!place->address || place->kvm_vcpu != vcpu->kvm_vcpu ||
	    (u32)bpf_get_current_task_btf()->pid != vcpu->pid)
		return false;
	return !bpf_probe_read_user(count, sizeof(*count), (void *)place->address);
}

/*
 * A vCPU that was stopped in code of this class, or looked at there: what it holds is kept. Returns the class
 * by which policies know it. Not static: see maps.bpf.h.
 */
__noinline u32 look_at_count(u32 slot, u32 class)
{
	struct count_place *place = bpf_map_lookup_elem(&count_places, &slot);
	struct count_observation seen = {.critical_by = config.critical_by};
	struct vcpu *vcpu = vcpu_at(slot);
	struct vm *vm = vcpu ? vm_at(vcpu->vm) : NULL;
	struct count_decision decision;

	if (!vm)
		return class;
	vcpu->held = HELD_UNKNOWN;
	if (!place || place->generation != vm->generation || !read_count(vcpu, place, &seen.look.count))
		return class;
	begin_belief(vm, place->epoch);
	seen.look.guest_class = class;
	seen.belief = vm->belief;
	decision = decide_on_count(&seen);
	RECORD(RECORD_HELD, slot, held, {.seen = seen, .decision = decision});
	vm->belief = decision.belief;
	vcpu->held = decision.held;
	return decision.guest_class;
}

/* It was stopped in code of this class, though it could go on. */
static __always_inline void count_stop(struct vm_stats *stats, const struct vcpu *vcpu, u32 class)
{
	u32 held = vcpu->held;

	barrier_var(held);
	if (held < HELD_COUNT && class < GUEST_CLASS_COUNT)
		COUNT(stats->stops[held][class]);
}

/* It was stopped, though it could go on: it is asked for at once. For each such stop once. */
static __always_inline bool is_needed_holder(struct vcpu *vcpu)
{
	vcpu->holds_in_a_row = holds_in_a_row(vcpu->holds_in_a_row, vcpu->held);
	return holder_is_asked_for(config.critical_by, vcpu->held) && !holds_always(vcpu->holds_in_a_row);
}

#endif
