/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * VM owner: which of the cgroups that a VMM runs in says whose VMs it has.
 *
 * Problem.   Places for VMs are shared out by owner. A manager of VMs runs all of them as one user, and
 *            somebody who may run processes of several users would be several owners.
 * Mechanism. The owner is the outermost cgroup, from the second level down, that doesn't just sort others: no
 *            slice, and none of the classes of pods of Kubernetes. Its tenant can't make another one of them.
 *            Below user.slice it is the second level, which is the user's, whatever he makes of it.
 *
 *              path                                                        owner
 *              /machine.slice/machine-qemu\x2d1\x2da.scope/libvirt/vcpu0   the domain's scope
 *              /machine.slice/machine-a.slice/machine-b.scope              that scope
 *              /kubepods/burstable/pod1/c2                                 the pod
 *              /kubepods.slice/kubepods-burstable.slice/…pod1.slice/c2.scope   the container
 *              /user.slice/user-1000.slice/session-3.scope                 the user
 *              /vms                                                        it: there is no second level
 *
 * Limits.    In the root cgroup nothing but the user tells owners apart. Paths deeper than OWNER_LEVEL_MAX
 *            are cut off there. Names longer than OWNER_NAME_MAX are no slices.
 */
#ifndef POLICY_VM_OWNER_H
#define POLICY_VM_OWNER_H

#include "types.h"

#define OWNER_LEVEL_MAX 15u
#define OWNER_NAME_MAX 96u

/* One of the cgroups that a VMM runs in. The root of all has level 0. */
struct owner_observation {
	u32 level;
	u32 is_of_user; /* level 1 is user.slice, by cgroup_is_users() */
	u32 is_last;	/* the VMM runs in it itself */
	u32 name_length;
	char name[OWNER_NAME_MAX]; /* ends with 0 */
};

POLICY u32 name_ends_with(const struct owner_observation *seen, const char *end, u32 length)
{
	u32 at, from;

	if (seen->name_length < length || seen->name_length >= OWNER_NAME_MAX)
		return 0;
	from = seen->name_length - length;
	for (at = 0; at < length; at++) {
		if (from + at >= OWNER_NAME_MAX || seen->name[from + at] != end[at])
			return 0;
	}
	return 1;
}

/* Returns whether users' sessions are below it. */
POLICY u32 cgroup_is_users(const struct owner_observation *seen)
{
	return seen->level == 1 && seen->name_length == 10 && name_ends_with(seen, "user.slice", 10);
}

/* Returns whether it is the owner, if none further out is. */
POLICY u32 cgroup_is_owner(const struct owner_observation *seen)
{
	if (seen->is_last || seen->level >= OWNER_LEVEL_MAX)
		return 1;
	if (seen->level < 2)
		return 0;
	if (seen->is_of_user)
		return 1;
	return !name_ends_with(seen, ".slice", 6) &&
	       !(seen->name_length == 9 && name_ends_with(seen, "burstable", 9)) &&
	       !(seen->name_length == 10 && name_ends_with(seen, "besteffort", 10));
}

#endif
