/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Fair share: the normal pool's proportional share among VMs.
 *
 * Problem.   Tenants pay for VMs, not for vCPUs: a VM with many busy vCPUs may not outweigh one with few, and
 *            time spent in the micro pool must not be a gift.
 * Mechanism. Virtual time, one clock per vCPU: the vCPU furthest behind runs next. A VM's weight is split
 *            over its active vCPUs (as Xen's credit scheduler does with credits). Running moves a vCPU's
 *            clock by the time it ran: the heavier the vCPU, the slower. Micro slices are charged like any
 *            other. This misses some time: a sleeper's lag is cut, a micro slice runs whatever the clock
 *            says, siblings take turns. A clock of the VM makes up for it: a VM that is behind weighs more
 *            until it has caught up.
 * Formula.   vcpu_weight = vm_weight * SHARE_SCALE / active_vcpu_count     (at least 1)
 *            charge      = ran_ns * WEIGHT_DEFAULT * SHARE_SCALE / vcpu_weight
 *            vm_charge   = ran_ns * WEIGHT_DEFAULT / vm_weight             (all that its vCPUs run, wherever)
 *            A VM may be behind the first one by what VM_LAG_SLICES slices cost it, or a slice of each vCPU
 *            if these are more. Then it is charged by twice its weight. Further behind, the weight grows as
 *            much, up to CATCH_UP_MAX times its weight more. No further lag is remembered. A VM that didn't
 *            want its share, or can't have it where it may run, isn't owed it for ever. A vCPU that slept
 *            comes back no further behind than running for lag_max_ns would cost it. Sleeping isn't saving,
 *            but a vCPU that sleeps often isn't to lose what it waits for. A preempted vCPU keeps its clock:
 *            its lag is owed to it. No vCPU waits for being ahead by more than that. What it ran in the micro
 *            pool beyond is the VM's debt, not the vCPU's.
 *            Warm caches: the vCPU that ran last on a pCPU may go before the one furthest behind. So may the
 *            heir of a directed yield, which is named by a sibling. The difference is no more than a slice
 *            costs the one that overtakes. For warm caches' sake it holds only while the other has waited for
 *            less than a tenth of a slice.
 *            Boost: a vCPU that was blocked and isn't ahead of the pool's clock runs first when it wakes, for
 *            at most boost_slice_ns. It probably wakes to handle an interrupt (Xen's BOOST). It takes no pCPU
 *            from a VM that its own is ahead of. Else VMs whose vCPUs sleep often would take all from the
 *            others.
 *            VMM threads: a VMM's work beside its vCPUs goes first when it is woken, as guests wait for I/O.
 *            It has as long as a boosted vCPU, unless its VM has had more than that of the first waiter. (The
 *            simulator has none.)
 * Limits.    Shares hold over seconds, not within a slice. ran_ns is cut at RAN_MAX_NS, so nothing overflows.
 */
#ifndef POLICY_FAIR_SHARE_H
#define POLICY_FAIR_SHARE_H

#include "types.h"

#define WEIGHT_DEFAULT 100u /* of cgroup v2's cpu.weight */
#define WEIGHT_MAX 10000u
#define SHARE_SCALE 1024u
#define VM_LAG_SLICES 10u
#define CATCH_UP_MAX 3u
#define RAN_MAX_NS 10000000000ull /* 10 s: sched_ext's watchdog acts before that */

struct fair_share_config {
	u64 slice_ns;	    /* the paper's baseline: 30 ms; a third of it unless told otherwise */
	u64 boost_slice_ns; /* a boosted vCPU is preempted after this; 0: no boost */
	u64 lag_max_ns; /* running time that a sleeper may be behind by when it wakes, and any vCPU ahead */
};

/* The weight of one of a VM's active vCPUs, in units of 1/SHARE_SCALE. */
POLICY u64 vcpu_weight(u32 vm_weight, u32 active_vcpu_count)
{
	u64 weight = vm_weight ? vm_weight : WEIGHT_DEFAULT;

	if (weight > WEIGHT_MAX)
		weight = WEIGHT_MAX;
	weight = weight * SHARE_SCALE / (active_vcpu_count ? active_vcpu_count : 1);
	return weight ? weight : 1;
}

/*
 * A host task whose cgroup has a weight: as vcpu_weight() has it. own_weight is by its nice value. Weights of
 * VMs and of services have the same unit.
 */
POLICY u64 service_task_weight(u32 service_weight, u32 own_weight)
{
	u64 weight = (u64)service_weight * own_weight * SHARE_SCALE / WEIGHT_DEFAULT;

	return weight ? weight : 1;
}

/* By how much one side may have more than the other, on a pCPU that both want. */
#define SIDES_RATIO_MAX 16u

/*
 * How long vCPUs go first on a pCPU where host tasks ran for ran_ns: each side gets what the weights of the
 * outermost cgroups give it. 0: unknown, and each gets half.
 */
POLICY u64 owed_to_vcpus(u64 ran_ns, u32 vms_weight, u32 services_weight)
{
	if (!vms_weight || !services_weight)
		return ran_ns;
	if (vms_weight / services_weight >= SIDES_RATIO_MAX)
		return ran_ns * SIDES_RATIO_MAX;
	if (services_weight / vms_weight >= SIDES_RATIO_MAX)
		return ran_ns / SIDES_RATIO_MAX;
	/* Below 2^64: a turn is shorter than 2^40 ns, and the policy's weights are below 2^24. */
	return ran_ns * vms_weight / services_weight;
}

/* Virtual time that running for ran_ns costs a vCPU of this weight. */
POLICY u64 charge(u64 ran_ns, u64 weight)
{
	u64 ran = ran_ns < RAN_MAX_NS ? ran_ns : RAN_MAX_NS;

	/* 10^10 * 100 * 1024 < 2^50: the product fits. */
	return ran * WEIGHT_DEFAULT * SHARE_SCALE / (weight ? weight : 1);
}

/* Is a earlier than b? Clocks may wrap: the difference is what counts. */
POLICY u32 vtime_before(u64 a, u64 b)
{
	return (s64)(a - b) < 0;
}

/* ---- The VM's clock ---- */

struct vm_size {
	u32 weight; /* as vcpu_weight() takes it */
	u32 vcpu_count;
};

/* What running for ran_ns, on any pCPU of any pool, moves the clock of the whole VM by. */
POLICY u64 vm_charge(u64 ran_ns, u32 vm_weight)
{
	return charge(ran_ns, vcpu_weight(vm_weight, 1));
}

/* By how much a VM is behind when its weight is doubled. The clock of a wide one moves as much faster. */
POLICY u64 vm_lag_ns(const struct fair_share_config *config, struct vm_size size)
{
	u64 slices = size.vcpu_count > VM_LAG_SLICES ? size.vcpu_count : VM_LAG_SLICES;

	return vm_charge(slices * config->slice_ns, size.weight);
}

/*
 * first_ns: the clock of the VM that is furthest ahead. A VM's clock isn't left further behind than it can
 * catch up with.
 */
POLICY u64 vm_clock(const struct fair_share_config *config, struct vm_size size, u64 first_ns, u64 vm_ns)
{
	u64 earliest = first_ns - CATCH_UP_MAX * vm_lag_ns(config, size);

	return vtime_before(vm_ns, earliest) ? earliest : vm_ns;
}

/* The weight of a vCPU (vcpu_weight()) of a VM that may be behind. */
POLICY u64 catch_up_weight(const struct fair_share_config *config, struct vm_size size, u64 weight,
			   u64 first_ns, u64 vm_ns)
{
	u64 lag = vm_lag_ns(config, size), behind = vtime_before(vm_ns, first_ns) ? first_ns - vm_ns : 0;

	if (behind > CATCH_UP_MAX * lag)
		behind = CATCH_UP_MAX * lag;
	/* In microseconds, so that the product fits: lags are below 2^40, weights below 2^24. */
	return weight + weight * (behind >> 10) / ((lag >> 10) + 1);
}

/*
 * Has this VM had more than the other one, by more than either may make up for? A light or wide one's lag
 * alone may be more than a heavy one is ever left behind (vm_clock()).
 */
POLICY u32 vm_is_ahead(const struct fair_share_config *config, struct vm_size size, u64 vm_ns,
		       struct vm_size other_size, u64 other_vm_ns)
{
	u64 lag = vm_lag_ns(config, size), other_lag = vm_lag_ns(config, other_size);

	return vtime_before(other_vm_ns + (lag < other_lag ? lag : other_lag), vm_ns);
}

/* ---- A vCPU's clock ---- */

struct wakeup_observation {
	u64 pool_vtime_ns; /* the normal pool's clock, where it may run: of the furthest that was chosen */
	u64 vcpu_vtime_ns;
	u64 weight;	 /* vcpu_weight() */
	u32 was_blocked; /* it slept; 0: it was preempted, or moved */
	u32 reserved;
};

struct wakeup_decision {
	u64 vtime_ns; /* the vCPU's clock from now on */
	u64 slice_ns;
	u32 boost; /* 1: before all that aren't boosted */
	u32 reserved;
};

POLICY struct wakeup_decision decide_on_wakeup(const struct fair_share_config *config,
					       const struct wakeup_observation *seen)
{
	u64 lag = charge(config->lag_max_ns, seen->weight);
	u64 earliest = seen->pool_vtime_ns - lag, latest = seen->pool_vtime_ns + lag;
	struct wakeup_decision decision = {.vtime_ns = seen->vcpu_vtime_ns, .slice_ns = config->slice_ns};

	if (seen->was_blocked && vtime_before(decision.vtime_ns, earliest))
		decision.vtime_ns = earliest;
	if (vtime_before(latest, decision.vtime_ns))
		decision.vtime_ns = latest;
	if (seen->was_blocked && config->boost_slice_ns &&
	    !vtime_before(seen->pool_vtime_ns, decision.vtime_ns)) {
		decision.boost = 1;
		decision.slice_ns = config->boost_slice_ns;
	}
	return decision;
}

/* ---- A VMM's thread that isn't a vCPU ---- */

struct vmm_thread_observation {
	u64 first_ran_ns; /* since it was woken and went first */
	u32 was_blocked;  /* it was woken just now */
	u32 went_first;	  /* until now, and was interrupted */
	u32 is_vcpu;	  /* one that has found no place */
	u32 vm_is_ahead;  /* its VM has had more than that of the first that waits */
};

/* Weighs as one more vCPU: all threads of a VMM together. */
POLICY u64 vmm_threads_weight(u32 vm_weight, u32 active_vcpu_count)
{
	return vcpu_weight(vm_weight, active_vcpu_count + 1);
}

/* Does it go before vCPUs? If not it waits among them. */
POLICY u32 vmm_thread_goes_first(const struct fair_share_config *config,
				 const struct vmm_thread_observation *seen)
{
	if (seen->is_vcpu || seen->vm_is_ahead || !config->boost_slice_ns)
		return 0;
	return seen->was_blocked || (seen->went_first && seen->first_ran_ns < config->boost_slice_ns);
}

/*
 * May a vCPU with this clock and weight go before the first of the queue? Its caches are warm, or a sibling
 * yields to it.
 */
POLICY u32 may_go_first(const struct fair_share_config *config, u64 first_vtime_ns, u64 vtime_ns, u64 weight)
{
	return !vtime_before(first_vtime_ns + charge(config->slice_ns, weight), vtime_ns);
}

/* Warm caches save a part of a millisecond. The first of the queue doesn't wait a slice longer for that. */
POLICY u32 is_worth_warm_caches(const struct fair_share_config *config, u64 first_waited_ns)
{
	return first_waited_ns < config->slice_ns / 10;
}

#endif
