/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Max wait: how long a runnable vCPU of a VM may wait for a pCPU, at most.
 *
 * Problem.   Shares say how much a VM runs, not when. Behind heavier or busier VMs a vCPU waits for tens of
 *            milliseconds. Consoles stall, heartbeats are missed, and siblings wait for its answers.
 * Mechanism. The host looks at whoever waits. A vCPU that has waited for most of its VM's bound is asked
 *            for: it has a micro slice, the one that has waited longest first. Then it waits anew. The next
 *            look is when the longest wait is due. Where nobody waits, looks are most of a bound apart.
 * Formula.   due   = bound * WAIT_DUE_PARTS / WAIT_PARTS
 *            next look in due - longest wait, at least bound / WAIT_PARTS
 *            least = WAIT_ROOM * vcpus * micro slice / pcpus: below that the slices would take more than
 *            1/WAIT_ROOM of the host
 *            auto  = MAX_WAIT_AUTO_NS, or for each vCPU that wants to run and that a pCPU has
 *            MAX_WAIT_EACH_NS or MAX_WAIT_EACH_SLICES micro slices, whichever is longest
 *            pause after a look = MAX_WAIT_PAUSE times what reading took, at least
 *            A VM's own bound goes before the host's, and is as long as `least` if that is longer.
 * Limits.    A bound costs its VM's neighbours a micro slice for each vCPU and each wait that is due, at
 *            most. Each costs two switches with cold caches, too. No budget refuses these. So a bound grows
 *            with the number of those that want to run: to `least` if somebody chose it, to `auto` if nobody
 *            did, and to a second at most. Nobody is asked for twice before it has run.
 */
#ifndef POLICY_MAX_WAIT_H
#define POLICY_MAX_WAIT_H

#include "types.h"

#define WAIT_PARTS 16u
#define WAIT_DUE_PARTS 13u
#define WAIT_ROOM 2u
#define MAX_WAIT_LEAST_NS 1000000ull	     /* 1 ms: looks take time */
#define MAX_WAIT_MOST_NS 1000000000ull	     /* 1 s: the schedulers serve whoever waits for two */
#define MAX_WAIT_AUTO_NS 10000000ull	     /* 10 ms: heartbeats and consoles take no notice */
#define MAX_WAIT_EACH_NS 5000000ull	     /* 5 ms: 200 micro slices a second on each pCPU, at most */
#define MAX_WAIT_EACH_SLICES 50u	     /* micro slices take 2 % of the host, at most */
#define MAX_WAIT_PAUSE 15u		     /* looks take a sixteenth of a pCPU, at most */
#define MAX_WAIT_NEVER 0x7fffffffffffffffull /* a VM's own: it has no bound */

struct wait_observation {
	u64 bound_ns; /* 0: its VM has none */
	u64 waited_ns;
	enum vcpu_state state;
	u32 reserved;
};

enum wait_decision {
	WAIT_GOES_ON = 0,
	WAIT_HELPED = 1, /* it was asked for already */
	WAIT_ENDS = 2,	 /* it is asked for */
	WAIT_LATE = 3,	 /* it is asked for, and its bound is broken */
	WAIT_DECISION_COUNT = 4,
};

/* Returns after how long a wait is due. */
POLICY u64 wait_due_ns(u64 bound_ns)
{
	return bound_ns * WAIT_DUE_PARTS / WAIT_PARTS;
}

/* Returns until when the host needn't look at a VM of which nobody that waits has waited longer. */
POLICY u64 wait_next_look_ns(u64 bound_ns, u64 longest_ns)
{
	u64 due_ns = wait_due_ns(bound_ns), least_ns = bound_ns / WAIT_PARTS;

	return longest_ns + least_ns < due_ns ? due_ns - longest_ns : least_ns;
}

/* Returns how long nobody looks after a look that took so long. */
POLICY u64 wait_look_pause_ns(u64 took_ns)
{
	return took_ns * MAX_WAIT_PAUSE;
}

/* Returns the least bound that so many vCPUs can have on so many pCPUs. */
POLICY u64 max_wait_least_ns(u64 micro_slice_ns, u32 vcpu_count, u32 pcpu_count)
{
	u64 least_ns = WAIT_ROOM * micro_slice_ns * vcpu_count / (pcpu_count ? pcpu_count : 1);

	return least_ns > MAX_WAIT_LEAST_NS ? least_ns : MAX_WAIT_LEAST_NS;
}

/* Returns how long a bound that nobody chose is for each vCPU that a pCPU has. */
POLICY u64 max_wait_each_ns(u64 micro_slice_ns)
{
	u64 slices_ns = MAX_WAIT_EACH_SLICES * micro_slice_ns;

	return slices_ns > MAX_WAIT_EACH_NS ? slices_ns : MAX_WAIT_EACH_NS;
}

/*
 * Returns the bound of so many vCPUs that run or want to: `bound_ns`, or `each_ns` for each that a pCPU has
 * of them.
 */
POLICY u64 max_wait_shared_ns(u64 bound_ns, u64 each_ns, u32 wanting_count, u32 pcpu_count)
{
	u64 shared_ns = each_ns * wanting_count / (pcpu_count ? pcpu_count : 1);

	if (shared_ns <= bound_ns)
		return bound_ns;
	return shared_ns < MAX_WAIT_MOST_NS ? shared_ns : MAX_WAIT_MOST_NS;
}

/*
 * Returns how long vCPUs of a VM may wait. All others may wait for `host_ns`, and so many as want to run can
 * have `least_ns`. 0: for ever, in all of them. `own_ns` is 0 if the VM has no bound of its own.
 */
POLICY u64 max_wait_of_vm_ns(u64 own_ns, u64 host_ns, u64 least_ns)
{
	if (own_ns == MAX_WAIT_NEVER)
		return 0;
	if (!own_ns)
		return host_ns;
	return own_ns > least_ns ? own_ns : least_ns;
}

/* Returns the least bound of its own that a VM has while so many run or want to. */
POLICY u64 max_wait_least_now_ns(u64 micro_slice_ns, u32 wanting_count, u32 pcpu_count)
{
	return max_wait_shared_ns(0, WAIT_ROOM * micro_slice_ns, wanting_count, pcpu_count);
}

POLICY u32 decide_on_wait(const struct wait_observation *seen)
{
	if (!seen->bound_ns)
		return WAIT_GOES_ON;
	if (seen->state == VCPU_PENDING)
		return WAIT_HELPED;
	if (seen->state != VCPU_RUNNABLE)
		return WAIT_GOES_ON;
	if (seen->waited_ns >= seen->bound_ns)
		return WAIT_LATE;
	return seen->waited_ns >= wait_due_ns(seen->bound_ns) ? WAIT_ENDS : WAIT_GOES_ON;
}

#endif
