/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Owners: whose VMs take places, and how many there are for whom (policy/vm_owner.h).
 *
 * Problem.   Places are few, and whoever has many VMs would take all.
 * Mechanism. One owner may have three quarters. All vCPUs that a VMM has made count from its first one on, so
 *            a VM that doesn't fit has none.
 * Races.     A look and the taking of a place aren't one step: of vCPUs that come at once, one per pCPU may
 *            pass the bound of vCPUs. A place for a VM is counted again once it is taken.
 * Limits.    vCPUs that are plugged in later may find no place. Then their VM gives its places back. Beside
 *            the kernel's own scheduler owners have no bound.
 */
#ifndef BPF_OWNERS_H
#define BPF_OWNERS_H

#include "bpf/core/hooks.bpf.h"
#include "policy/vm_owner.h"

/* Else it is a user. */
#define OWNER_IS_CGROUP (1ull << 63)
/* Of so many places one owner may have. */
#define OWNERS_PART(places) ((places) - (places) / 4)

/* How many vCPUs its VMM has made by now. */
static __always_inline u32 vcpus_of(u64 kvm)
{
	struct kvm___counting *vm = (void *)kvm;
	int created = kvm ? BPF_CORE_READ(vm, created_vcpus) : 0;

	return created > 1 ? created : 1;
}

#ifndef BESIDE
/* Reads the cgroup of this level. */
static __always_inline u64 read_cgroup(struct cgroup *own, u32 level, struct owner_observation *seen)
{
	const void *place = (void *)own + bpf_core_field_offset(own->ancestors) + level * sizeof(void *);
	struct cgroup *cgroup = NULL;
	long length;

	bpf_probe_read_kernel(&cgroup, sizeof(cgroup), place);
	if (!cgroup)
		return 0;
	length = bpf_probe_read_kernel_str(seen->name, sizeof(seen->name), BPF_CORE_READ(cgroup, kn, name));
	seen->level = level;
	seen->name_length = length > 0 ? length - 1 : 0;
	return BPF_CORE_READ(cgroup, kn, id);
}

/* Not static: the verifier then checks it once by itself, with a stack of its own. */
__noinline u64 owner_of_current(void)
{
	struct task_struct *current = bpf_get_current_task_btf();
	struct cgroup *own = BPF_CORE_READ(current, cgroups, dfl_cgrp);
	struct owner_observation seen = {};
	u32 uid = bpf_get_current_uid_gid(), at, last = own ? BPF_CORE_READ(own, level) : 0;

	bpf_for (at, 1, OWNER_LEVEL_MAX + 1) {
		u64 id;

		if (at > last)
			break;
		seen.is_last = at == last;
		id = read_cgroup(own, at, &seen);
		if (cgroup_is_users(&seen))
			seen.is_of_user = 1;
		if (cgroup_is_owner(&seen))
			return id | OWNER_IS_CGROUP;
	}
	return uid ? uid : bpf_get_current_cgroup_id() | OWNER_IS_CGROUP;
}

/* What it has, and what all have, in the task's context: see visit_sibling(). */
static __noinline int sum_owned(struct task_ctx *tctx, u64 owner)
{
	u32 slot;

	if (!tctx)
		return 0;
	tctx->place.owned_vms = 0;
	tctx->place.owned_vcpus = 0;
	tctx->place.placed_vcpus = 0;
	bpf_for (slot, 0, VMS_MAX) {
		struct vm *vm = vm_at(slot);
		u32 vcpus;

		if (!vm || vm->in_use <= VM_SLOT_OPEN || vm->is_refused)
			continue;
		vcpus = vm->vcpu_count > vm->vcpus_to_come ? vm->vcpu_count : vm->vcpus_to_come;
		tctx->place.placed_vcpus += vcpus;
		if (vm->owner != owner)
			continue;
		tctx->place.owned_vms++;
		tctx->place.owned_vcpus += vcpus;
	}
	return 0;
}

/* Is there a place for one more vCPU of this VM, or, if none has one, for all of them? */
static __always_inline bool has_places_for(struct task_ctx *tctx, u64 owner, u64 kvm, bool *is_owners_bound)
{
	u32 *slot = bpf_map_lookup_elem(&vm_by_address, &kvm), wanted;
	struct vm *vm = slot ? vm_at(*slot) : NULL;
	bool is_placed = vm && !vm->is_refused;

	/* A place is kept for it. */
	if (is_placed && vm->vcpu_count < vm->vcpus_to_come)
		return true;
	wanted = is_placed ? 1 : vcpus_of(kvm);
	sum_owned(tctx, owner);
	*is_owners_bound = (!is_placed && tctx->place.owned_vms >= OWNERS_PART(config.vm_places)) ||
			   tctx->place.owned_vcpus + wanted > OWNERS_PART(VCPUS_MAX);
	if (*is_owners_bound || wanted > VCPUS_PER_VM_MAX || tctx->place.placed_vcpus + wanted > VCPUS_MAX)
		return false;
	/* Some of its vCPUs haven't run since then, and hold theirs. */
	if (vm && vm->is_refused) {
		vm->vcpus_to_come = wanted;
		vm->is_refused = 0;
	}
	return true;
}

/*
 * Has it more VMs than that? Asked when a place is taken: others of its VMs may have come since the first
 * look. Each counts itself and all that took their places before, so they don't pass the bound together.
 */
static __always_inline bool has_too_many_vms(struct task_ctx *tctx, u64 owner)
{
	sum_owned(tctx, owner);
	return tctx->place.owned_vms > OWNERS_PART(config.vm_places);
}
#else
static __always_inline u64 owner_of_current(void)
{
	return (u32)bpf_get_current_uid_gid();
}

static __always_inline bool has_places_for(struct task_ctx *tctx, u64 owner, u64 kvm, bool *is_owners_bound)
{
	return true;
}

static __always_inline bool has_too_many_vms(struct task_ctx *tctx, u64 owner)
{
	return false;
}
#endif

#endif
