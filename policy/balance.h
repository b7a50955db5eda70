/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Balance: on which pCPUs a waking vCPU may be placed, so that siblings run at the same time (ASPLOS'13,
 * 3.2.2).
 *
 * Problem.   Siblings that wait behind one another can't run together: one spins in vain for the other (vCPU
 *            stacking). Kept apart without a look at loads, they crowd pCPUs whose load is another VM's.
 * Mechanism. Balance: only pCPUs where no sibling is (Sukwong and Kim, EuroSys'11). Load-conscious balance:
 *            likewise if one of these isn't overloaded; else any pCPU, so that the least loaded one can be
 *            chosen. A load balancer may move a vCPU to a sibling's pCPU only by load-conscious balance, and
 *            only to an underloaded one.
 * Formula.   overloaded = load * pCPUs > sum of all loads
 * Limits.    What a load is the host's scheduler knows: the paper's are weights by CFS's groups.
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

/* The host's load: below 2^44 for a pCPU, and 2^20 pCPUs at the most, so that products have room. */
struct host_load {
	u64 total;
	u32 pcpus;
	u32 reserved;
};

/* A pCPU is looked at. */
struct candidate_observation {
	u64 load;
	u32 has_sibling;	     /* one runs or waits there */
	u32 some_candidate_has_room; /* a pCPU without siblings isn't overloaded */
};

POLICY u32 is_overloaded(const struct host_load *host, u64 load)
{
	return load * host->pcpus > host->total;
}

/* May a waking vCPU be placed there? */
POLICY u32 decide_on_candidate(u32 scheme, const struct candidate_observation *seen)
{
	if (scheme == BALANCE_APART)
		return !seen->has_sibling;
	if (scheme == BALANCE_LOAD_CONSCIOUS)
		return !seen->has_sibling || !seen->some_candidate_has_room;
	return 1;
}

/* May the load balancer move a waiting vCPU there? */
POLICY u32 decide_on_move(u32 scheme, const struct host_load *host, const struct candidate_observation *seen)
{
	if (!seen->has_sibling || scheme == BALANCE_NONE)
		return 1;
	return scheme == BALANCE_LOAD_CONSCIOUS && !is_overloaded(host, seen->load);
}

#endif
