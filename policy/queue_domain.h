/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Queue domains: in which queue a vCPU waits, and when a pCPU looks into another domain's.
 *
 * Problem.   One queue for all pCPUs doesn't scale: all of them take its lock, and work moves between caches.
 * Mechanism. Each domain has queues of its own: a pCPU, the pCPUs of a last-level cache, or the whole host. A
 *            vCPU waits in the domain where it ran last. One that is confined to a pCPU waits in that pCPU's
 *            own queue, whatever a domain is, so that no other walks past it. A pCPU that has no vCPU to run
 *            looks into all other domains, the nearest first. One that has a vCPU looks into a few of them in
 *            turn.
 * Formula.   Clocks are the host's, so they compare across domains. Another domain's first goes before the
 *            own one if that is ahead of it by more than a slice costs it: the rule of warm caches
 *            (fair_share.h). So a share is kept within a slice of each vCPU, and work moves only if it lags
 *            by as much. A spinner's heir goes without such a look for a slice after the last one. Without
 *            that bound a VM whose vCPUs yield to each other would keep a pCPU.
 * Shares.    Let a vCPU wait in domain D with a clock L, the earliest of all waiters. Let a pCPU of another
 *            domain choose its own, whose clock is ahead of L by more than a slice costs that one. Then it
 *            hasn't looked at D just now, or it would have taken the vCPU that waits there. It looks at
 *            BALANCE_LOOK_MAX others in turn. So it has looked at D after (domains - 1) / BALANCE_LOOK_MAX
 *            such turns, rounded up. Before each of them heirs go first for a slice at most. So no vCPU is
 *            left behind by more than twice so many slices and one, however long that goes on. A bounded
 *            difference of clocks isn't one of shares (crates/policy/tests/decisions/queue_domain.rs).
 * Limits.    Where clocks are equal queues may be of unequal length. Nobody is looked for by load.
 */
#ifndef POLICY_QUEUE_DOMAIN_H
#define POLICY_QUEUE_DOMAIN_H

#include "fair_share.h"

/* Into how many other domains a pCPU looks that has a vCPU to run. */
#define BALANCE_LOOK_MAX 4u

enum queue_domain {
	QUEUE_DOMAIN_PCPU = 0,
	QUEUE_DOMAIN_LLC = 1,
	QUEUE_DOMAIN_HOST = 2,
	QUEUE_DOMAIN_COUNT = 3,
};

/* How near another domain is to a pCPU. */
enum queue_nearness {
	QUEUE_SAME_CORE = 0,
	QUEUE_SAME_LLC = 1,
	QUEUE_SAME_NODE = 2,
	QUEUE_SAME_HOST = 3,
	QUEUE_NEARNESS_COUNT = 4,
};

/* Domains from `first` up to `end`, that one not among them. */
struct domain_range {
	u32 first;
	u32 end;
};

/*
 * Where a pCPU is. Domains are numbered by NUMA node, cache and core, so that near ones have near numbers:
 * each range, by enum queue_nearness, holds the one before, and the first one the domain of the pCPU.
 */
struct queue_place {
	u32 domain;
	struct domain_range near[QUEUE_NEARNESS_COUNT];
};

/* A vCPU that waits, and where it ran last. */
struct queue_observation {
	u32 domain_count; /* of the host */
	u32 domain;	  /* of that pCPU */
	u32 pcpu;
	u32 is_confined; /* it may run on that pCPU only */
};

/* Another domain is looked at. */
struct elsewhere_observation {
	u64 first_vtime_ns; /* of the first that waits there */
	u64 own_vtime_ns;   /* of the vCPU that the pCPU would run otherwise */
	u64 own_weight;	    /* vcpu_weight() */
	u32 has_own;	    /* 0: it would run nobody, and the two fields above say nothing */
	u32 reserved;
};

/* The number of the domain that a pCPU is in, among those of its kind. */
POLICY u32 queue_domain_of(u32 domain, u32 pcpu, u32 llc)
{
	if (domain == QUEUE_DOMAIN_PCPU)
		return pcpu;
	return domain == QUEUE_DOMAIN_LLC ? llc : 0;
}

/* The number of the queue that it joins: domains' come first, behind them those of single pCPUs. */
POLICY u32 queue_to_join(const struct queue_observation *seen)
{
	return seen->is_confined ? seen->domain_count + seen->pcpu : seen->domain;
}

/* Into how many other domains a pCPU looks when it chooses. */
POLICY u32 domains_to_look_at(u32 domain_count, u32 has_own)
{
	u32 others = domain_count ? domain_count - 1 : 0;

	return has_own && others > BALANCE_LOOK_MAX ? BALANCE_LOOK_MAX : others;
}

/*
 * The n-th domain that a pCPU looks into which has nobody to run, from 0: the nearest first, the own one not
 * among them.
 */
POLICY u32 nth_nearest_domain(const struct queue_place *place, u32 n)
{
	u32 first = place->domain, end = place->domain + 1, nearness;

	for (nearness = 0; nearness < QUEUE_NEARNESS_COUNT; nearness++) {
		struct domain_range near = place->near[nearness];
		u32 above = near.end - end, below = first - near.first;

		if (n < above)
			return end + n;
		if (n < above + below)
			return near.first + (n - above);
		n -= above + below;
		first = near.first;
		end = near.end;
	}
	return place->domain; /* there are no more */
}

/* The domain after `last` that a pCPU looks into which has a vCPU: all in turn, but the own one. */
POLICY u32 next_domain_to_look_at(u32 domain_count, u32 own, u32 last)
{
	u32 next = last + 1 < domain_count ? last + 1 : 0;

	if (next != own)
		return next;
	return next + 1 < domain_count ? next + 1 : 0;
}

/* May an heir go first, though that long ago was the last look into other domains? */
POLICY u32 may_inherit_without_a_look(const struct fair_share_config *config, u32 domain_count,
				      u64 looked_ns_ago)
{
	return domain_count <= 1 || looked_ns_ago < config->slice_ns;
}

/* Does the first of the other domain run here? */
POLICY u32 decide_on_elsewhere(const struct fair_share_config *config,
			       const struct elsewhere_observation *seen)
{
	return !seen->has_own ||
	       !may_go_first(config, seen->first_vtime_ns, seen->own_vtime_ns, seen->own_weight);
}

#endif
