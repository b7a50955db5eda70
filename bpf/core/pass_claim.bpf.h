/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Pass claim: one pCPU at a time makes a pass over a VM's siblings, and counts there.
 *
 * Races.     A claim runs out by itself after PASS_MAX_NS, so that whoever doesn't return keeps nobody from
 *            later passes.
 */
#ifndef BPF_PASS_CLAIM_H
#define BPF_PASS_CLAIM_H

#include "bpf/core/compat.bpf.h"
#include "policy/accelerate.h"

#define PASS_MAX_NS 1000000ull

/*
 * Decides on a yield, and claims the VM's pass (`*until_ns`) if there is one to make. Most yields are halts
 * of idle vCPUs: these keep nobody from a pass. True if the caller has it, and gives it back.
 */
static __always_inline bool decide_and_claim(u64 *until_ns, u64 now, struct yield_observation *seen,
					     struct yield_decision *decision)
{
	u64 claim = *until_ns;

	seen->pass_active = claim > now;
	*decision = decide_on_yield(seen);
	if (decision->scope == PASS_NONE)
		return false;
	if (__sync_val_compare_and_swap(until_ns, claim, now + PASS_MAX_NS) == claim)
		return true;
	/* Another pCPU has claimed it since the look: as if it had been active already. */
	seen->pass_active = 1;
	*decision = decide_on_yield(seen);
	return false;
}

static __always_inline void give_pass_back(u64 *until_ns, u64 now)
{
	__sync_val_compare_and_swap(until_ns, now + PASS_MAX_NS, 0);
}

#endif
