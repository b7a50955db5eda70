/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Heirs: a lock's heir is found among the stopped waiters of a VM in which nobody holds anything
 * (policy/heirs.h).
 *
 * Problem.   The host doesn't see to whom a lock was handed. Nor does it see the words of vCPUs that run, and
 *            these may hold the lock.
 * Mechanism. A VM's threads share their memory. So wherever one of them is current, all its vCPUs' words can
 *            be read (bpf/core/held.bpf.h). A VM is looked at when one of its vCPUs stops, and at pause-loop
 *            exits. Only VMs of which a stopped vCPU waits for a lock are looked at.
 * Races.     Stops of one VM come on several pCPUs at once. One of them looks, the others don't: the end of
 *            its trial, or the next stop, brings another look. A vCPU may take a lock while it is looked at:
 *            then one is tried in vain.
 * Limits.    Nobody is tried in a VM whose words aren't believed. A word that can't be read just now counts
 *            as one that holds.
 */
#ifndef BPF_HEIRS_H
#define BPF_HEIRS_H

#include "bpf/core/pass_claim.bpf.h"
#include "bpf/core/vcpu.bpf.h"

struct heirs_vcpu {
	u64 ran_ns;
	u32 waits; /* it is stopped, and waits for a lock */
	u32 reserved;
};

struct heirs_vm {
	u64 looked_at_until_ns; /* a look at this VM is under way until then at the latest */
	struct heir_state state;
	u64 trial_ran_ns;  /* how long the vCPU that is tried had run before */
	u32 trial;	   /* slot + 1 of that vCPU; 0: none is tried */
	u32 next;	   /* place in vcpus[] at which the next look begins */
	u32 stopped_count; /* vCPUs that wait for a lock, and don't run */
	/* Of the look under way. */
	u32 waiter_count;
	u32 holder_count;
	u32 helped_count;
	u32 first_woken; /* slot + 1 of the first waiter that a kick has woken; 0: none */
	u32 first;	 /* likewise, of any waiter */
};

static __always_inline struct heirs_vcpu *heirs_of(const struct vcpu *vcpu);
static __always_inline struct heirs_vm *heirs_in(const struct vm *vm);

/* ---- Who waits ---- */

static __always_inline void heir_runs(struct vcpu *vcpu)
{
	struct vm *vm = vm_at(vcpu->vm);

	if (!vm || !heirs_of(vcpu)->waits)
		return;
	heirs_of(vcpu)->waits = 0;
	__sync_fetch_and_sub(&heirs_in(vm)->stopped_count, 1);
}

/* It has stopped; its class is known. */
static __always_inline void heir_stops(struct vcpu *vcpu, u64 ran_ns)
{
	struct vm *vm = vm_at(vcpu->vm);

	ADD(heirs_of(vcpu)->ran_ns, ran_ns);
	if (!vm || config.critical_by == CRITICAL_BY_SYMBOLS || heirs_of(vcpu)->waits ||
	    vcpu->guest_class != GUEST_CLASS_LOCK_WAITER)
		return;
	heirs_of(vcpu)->waits = 1;
	__sync_fetch_and_add(&heirs_in(vm)->stopped_count, 1);
}

/* ---- Looks ---- */

/* Its word, in a thread of its VM. One that can't be read is none that a kernel has. */
static __always_inline u32 count_of_sibling(const struct vcpu *sibling, const struct vm *vm, u32 slot)
{
	struct count_place *place = bpf_map_lookup_elem(&count_places, &slot);
	u32 count;

	if (!place || !place->address || place->kvm_vcpu != sibling->kvm_vcpu ||
	    place->generation != vm->generation ||
	    bpf_probe_read_user(&count, sizeof(count), (void *)place->address))
		return ~0u;
	return count;
}

/* What the look counts is kept in the VM: see visit_sibling(). Not static: see maps.bpf.h. */
__noinline int look_for_heir_at(u32 vm_slot, u32 at)
{
	struct vm *vm = vm_at(vm_slot);
	struct vcpu *sibling;
	u32 entry, state, class;

	if (!vm)
		return 0;
	entry = vm->vcpus[at & (VCPUS_PER_VM_MAX - 1)];
	sibling = vcpu_at(entry - 1);
	if (!entry || !sibling)
		return 0;
	state = sibling->state;
	class = sibling->guest_class;
	if (state == VCPU_PENDING || state == VCPU_MICRO) {
		heirs_in(vm)->helped_count++;
	} else if (sibling_may_be_heir(state, class)) {
		heirs_in(vm)->waiter_count++;
		if (!heirs_in(vm)->first)
			heirs_in(vm)->first = entry;
		if (!heirs_in(vm)->first_woken && !sibling->preempted && !sibling->yielded)
			heirs_in(vm)->first_woken = entry;
	} else if (state != VCPU_BLOCKED &&
		   sibling_may_hold(state, count_of_sibling(sibling, vm, entry - 1), class)) {
		heirs_in(vm)->holder_count++;
	}
	return 0;
}

/* Goes round the VM's vCPUs, from the one behind that which was tried last. */
__noinline int look_for_heirs(u32 vm_slot)
{
	struct vm *vm = vm_at(vm_slot);
	u32 visited;

	if (!vm)
		return 0;
	heirs_in(vm)->waiter_count = 0;
	heirs_in(vm)->holder_count = 0;
	heirs_in(vm)->helped_count = 0;
	heirs_in(vm)->first_woken = 0;
	heirs_in(vm)->first = 0;
	bpf_for (visited, 0, VCPUS_PER_VM_MAX) {
		u32 high = vm->vcpu_high, at = heirs_in(vm)->next + visited;

		if (visited >= high)
			break;
		look_for_heir_at(vm_slot, at < high ? at : at - high);
	}
	return 0;
}

/* The trial of this VM, if it is over: enum heir_trial. */
static __always_inline u32 end_of_trial(struct vm *vm, u32 vm_slot)
{
	struct vcpu *vcpu = vcpu_at(heirs_in(vm)->trial - 1);

	if (!heirs_in(vm)->trial || heirs_in(vm)->helped_count)
		return HEIR_TRIAL_NONE;
	heirs_in(vm)->trial = 0;
	/* It may be another one's slot by now. */
	if (!vcpu || vcpu->vm != vm_slot)
		return HEIR_TRIAL_NONE;
	return heir_trial_of(vcpu->guest_class, heirs_of(vcpu)->ran_ns - heirs_in(vm)->trial_ran_ns);
}

static __always_inline u32 decide_on_heirs(struct vm *vm, u32 vm_slot, u64 now)
{
	struct heir_state before = heirs_in(vm)->state;
	struct heir_observation seen = {.now_ns = now};
	struct heir_step step;
	u32 wanted;

	look_for_heirs(vm_slot);
	seen.waiter_count = heirs_in(vm)->waiter_count;
	seen.holder_count = heirs_in(vm)->holder_count;
	seen.helped_count = heirs_in(vm)->helped_count;
	seen.trial = end_of_trial(vm, vm_slot);
	step = decide_on_heir(&before, &seen);
	wanted = heirs_in(vm)->first_woken ? heirs_in(vm)->first_woken : heirs_in(vm)->first;
	RECORD(RECORD_HEIR, wanted - 1, heir, {.state = before, .seen = seen, .decision = step});
	heirs_in(vm)->state = step.state;
	return step.decision == HEIR_TRY ? wanted : 0;
}

/*
 * Somebody of the VM may wait for a lock: slot + 1 of the stopped waiter that is tried next; 0: nobody is. A
 * task of that VM's process is current, or nothing is known of its words.
 */
__noinline u32 next_heir(u32 vm_slot)
{
	u64 now = bpf_ktime_get_ns(), claim;
	struct vm *vm = vm_at(vm_slot);
	u32 wanted;

	if (!vm || !heirs_in(vm)->stopped_count || vm->belief.belief != BELIEF_BELIEVED ||
	    (u32)(bpf_get_current_pid_tgid() >> 32) != vm->pid)
		return 0;
	claim = heirs_in(vm)->looked_at_until_ns;
	if (claim > now ||
	    __sync_val_compare_and_swap(&heirs_in(vm)->looked_at_until_ns, claim, now + PASS_MAX_NS) != claim)
		return 0;
	wanted = decide_on_heirs(vm, vm_slot, now);
	give_pass_back(&heirs_in(vm)->looked_at_until_ns, now);
	return wanted;
}

/* It was asked for. */
static __always_inline void heir_is_tried(u32 slot)
{
	struct vcpu *vcpu = vcpu_at(slot);
	struct vm *vm = vcpu ? vm_at(vcpu->vm) : NULL;

	if (!vm)
		return;
	heirs_in(vm)->trial_ran_ns = heirs_of(vcpu)->ran_ns;
	heirs_in(vm)->next = vcpu->index_in_vm + 1;
	heirs_in(vm)->trial = slot + 1;
}

#endif
