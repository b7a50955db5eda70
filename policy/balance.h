/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Balance: on which pCPUs a waking vCPU may be placed, so that siblings run at the same time (ASPLOS'13,
 * 3.2.2).
 *
 * Problem.   Siblings queued behind one another can't run together, so one spins in vain for the other (vCPU
 *            stacking). If they are kept apart without regard to load, they crowd pCPUs that are busy with
 *            other VMs.
 * Mechanism. Balance scheduling allows only pCPUs without a sibling (Sukwong and Kim, EuroSys'11).
 *            Load-conscious balance does the same if one of these isn't overloaded. Otherwise it allows any
 *            pCPU, so that the least loaded one can be chosen. Only load-conscious balance lets a load
 *            balancer move a vCPU to a sibling's pCPU, and only to an underloaded one.
 * Formula.   overloaded = load * pCPUs > sum of all loads
 * Limits.    The host's scheduler defines the load. The paper uses the weights of CFS's groups.
 */
#ifndef POLICY_BALANCE_H
#define POLICY_BALANCE_H

#include "types.h"

enum balance_scheme {
	BALANCE_NONE = 0,
	BALANCE_APART = 1,
	BALANCE_LOAD_CONSCIOUS = 2,
	BALANCE_SCHEME_COUNT = 3,
};

/* The load of the host. Products fit: a pCPU's load is below 2^44, and there are at most 2^20 pCPUs. */
struct host_load {
	u64 total;
	u32 pcpus;
	u32 reserved;
};

/* A pCPU that a vCPU may be placed on. */
struct candidate_observation {
	u64 load;
	u32 has_sibling;	     /* a sibling runs or waits there */
	u32 some_candidate_has_room; /* some pCPU without siblings isn't overloaded */
};

POLICY u32 is_overloaded(const struct host_load *host, u64 load)
{
	return load * host->pcpus > host->total;
}

/* Returns whether a waking vCPU may be placed on this pCPU. */
POLICY u32 decide_on_candidate(u32 scheme, const struct candidate_observation *seen)
{
	if (scheme == BALANCE_APART)
		return !seen->has_sibling;
	if (scheme == BALANCE_LOAD_CONSCIOUS)
		return !seen->has_sibling || !seen->some_candidate_has_room;
	return 1;
}

/* Returns whether the load balancer may move a waiting vCPU to this pCPU. */
POLICY u32 decide_on_move(u32 scheme, const struct host_load *host, const struct candidate_observation *seen)
{
	if (!seen->has_sibling || scheme == BALANCE_NONE)
		return 1;
	return scheme == BALANCE_LOAD_CONSCIOUS && !is_overloaded(host, seen->load);
}

#endif
