/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Time balloons: how many threads make a vCPU's queue as long as its slowness is worth (Uhlig et al., VM'04,
 * section 4.1).
 *
 * Problem.   A guest's balancer takes its vCPUs for equally fast, and gives each the same number of threads.
 * Mechanism. Balloon threads on the slower vCPUs, so that their queues seem as long as the fastest one's
 *            should be.
 * Formula.   balloons(v) = ceil((s_max - s_v) * p / sum of s) s: a vCPU's share of its pCPU, p: threads that
 *            want to run
 */
#ifndef GUEST_BALLOONS_H
#define GUEST_BALLOONS_H

#define SHARE_WHOLE 1000u /* shares are parts of so many */
#define BALLOONS_MAX 16u  /* on one vCPU */
/* A vCPU slower by less than this part of a share isn't: the host's own work comes and goes. */
#define SHARE_TOLERANCE 100u

/* Of one vCPU's time so much was stolen by the host. */
static inline u32 share_of(u64 stolen_ns, u64 elapsed_ns)
{
	if (!elapsed_ns)
		return SHARE_WHOLE;
	if (stolen_ns >= elapsed_ns)
		return 0;
	return SHARE_WHOLE - (u32)(stolen_ns / (elapsed_ns / SHARE_WHOLE + 1));
}

static inline u32 balloons_due(u32 share, u32 share_most, u32 share_sum, u32 threads)
{
	u64 missing = share_most > share ? share_most - share : 0, due;

	if (missing < SHARE_TOLERANCE || !share_sum)
		return 0;
	due = (missing * threads + share_sum - 1) / share_sum;
	return due < BALLOONS_MAX ? due : BALLOONS_MAX;
}

#endif
