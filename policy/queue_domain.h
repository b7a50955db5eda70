/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Queue domains: in which queue a vCPU waits, and when a pCPU looks into the queue of another domain.
 *
 * Problem.   One queue for all pCPUs doesn't scale: they all take its lock, and work moves between caches.
 * Mechanism. Each domain has queues of its own. A domain is a pCPU, the pCPUs of a last-level cache, or the
 *            whole host. A vCPU waits in the domain where it ran last. A vCPU that is confined to one pCPU
 *            waits in a queue of that pCPU, so that other pCPUs don't walk past it. A pCPU without a vCPU to
 *            run looks into all other domains, the nearest first. A pCPU with one looks into a few of them
 *            in turn.
 * Formula.   All clocks are the host's, so they compare across domains. The first vCPU of another domain
 *            goes before the own one if that one's clock is ahead by more than the charge of a slice. This
 *            is the rule of warm caches (fair_share.h). So a share is kept within a slice of each vCPU,
 *            and work moves only if it lags by as much. A spinner's heir skips this look for a slice after
 *            the last one. Without that bound, a VM whose vCPUs yield to each other would keep a pCPU.
 * Shares.    Let a vCPU wait in domain D with the clock L, the earliest of all waiters. Let a pCPU of
 *            another domain choose its own vCPU, whose clock is ahead of L by more than the charge of a
 *            slice. Then the pCPU hasn't just looked at D, or it would have taken the waiting vCPU. It looks
 *            at BALANCE_LOOK_MAX others in turn. So it looks at D after (domains - 1) / BALANCE_LOOK_MAX
 *            such turns, rounded up. Before each of them, heirs go first for a slice at most. So a vCPU is
 *            left behind by at most twice that number of slices, and one more, however long this goes on. A
 *            bounded difference of clocks isn't one of shares
 *            (crates/policy/tests/decisions/queue_domain.rs).
 * Limits.    Queues with equal clocks may have unequal lengths. Load isn't balanced.
 */
#ifndef POLICY_QUEUE_DOMAIN_H
#define POLICY_QUEUE_DOMAIN_H

#include "fair_share.h"

/* The number of other domains that a pCPU with a vCPU to run looks into. */
#define BALANCE_LOOK_MAX 4u

enum queue_domain {
	QUEUE_DOMAIN_PCPU = 0,
	QUEUE_DOMAIN_LLC = 1,
	QUEUE_DOMAIN_HOST = 2,
	QUEUE_DOMAIN_COUNT = 3,
};

/* The distance between a pCPU and another domain. */
enum queue_nearness {
	QUEUE_SAME_CORE = 0,
	QUEUE_SAME_LLC = 1,
	QUEUE_SAME_NODE = 2,
	QUEUE_SAME_HOST = 3,
	QUEUE_NEARNESS_COUNT = 4,
};

/* The domains from `first` up to, but not including, `end`. */
struct domain_range {
	u32 first;
	u32 end;
};

/*
 * The place of a pCPU among the domains. Domains are numbered by NUMA node, cache and core, so that near
 * ones have near numbers. Each range contains the previous one, in the order of enum queue_nearness. The
 * first contains the domain of the pCPU.
 */
struct queue_place {
	u32 domain;
	struct domain_range near[QUEUE_NEARNESS_COUNT];
};

/* A waiting vCPU, and the pCPU where it ran last. */
struct queue_observation {
	u32 domain_count; /* of the host */
	u32 domain;	  /* the domain of that pCPU */
	u32 pcpu;
	u32 is_confined; /* it may run on that pCPU only */
};

/* Another domain that a pCPU looks into. */
struct elsewhere_observation {
	u64 first_vtime_ns; /* the clock of the first vCPU that waits there */
	u64 own_vtime_ns;   /* the clock of the vCPU that the pCPU would run otherwise */
	u64 own_weight;	    /* vcpu_weight() */
	u32 has_own;	    /* 0: the pCPU has no vCPU to run, and the two fields above are unused */
	u32 reserved;
};

/* Returns the number of the domain that a pCPU belongs to. */
POLICY u32 queue_domain_of(u32 domain, u32 pcpu, u32 llc)
{
	if (domain == QUEUE_DOMAIN_PCPU)
		return pcpu;
	return domain == QUEUE_DOMAIN_LLC ? llc : 0;
}

/* Returns the number of the queue to join. The queues of domains come first, then those of single pCPUs. */
POLICY u32 queue_to_join(const struct queue_observation *seen)
{
	return seen->is_confined ? seen->domain_count + seen->pcpu : seen->domain;
}

/* Returns how many other domains a pCPU looks into when it chooses. */
POLICY u32 domains_to_look_at(u32 domain_count, u32 has_own)
{
	u32 others = domain_count ? domain_count - 1 : 0;

	return has_own && others > BALANCE_LOOK_MAX ? BALANCE_LOOK_MAX : others;
}

/*
 * Returns the n-th domain, from 0, that a pCPU without a vCPU to run looks into. The nearest come first, and
 * its own isn't one of them.
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
	return place->domain; /* there are no further domains */
}

/* Returns the domain after `last` that a pCPU with a vCPU to run looks into: all in turn, except its own. */
POLICY u32 next_domain_to_look_at(u32 domain_count, u32 own, u32 last)
{
	u32 next = last + 1 < domain_count ? last + 1 : 0;

	if (next != own)
		return next;
	return next + 1 < domain_count ? next + 1 : 0;
}

/* Returns whether an heir may go first, this long after the last look into other domains. */
POLICY u32 may_inherit_without_a_look(const struct fair_share_config *config, u32 domain_count,
				      u64 looked_ns_ago)
{
	return domain_count <= 1 || looked_ns_ago < config->slice_ns;
}

/* Returns whether the first vCPU of the other domain runs here. */
POLICY u32 decide_on_elsewhere(const struct fair_share_config *config,
			       const struct elsewhere_observation *seen)
{
	return !seen->has_own ||
	       !may_go_first(config, seen->first_vtime_ns, seen->own_vtime_ns, seen->own_weight);
}

#endif
