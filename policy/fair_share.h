/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Fair share: the normal pool's proportional share among VMs.
 *
 * Problem.   Tenants pay for VMs, not for vCPUs. A VM with many busy vCPUs may not outweigh one with few,
 *            and time in the micro pool must not be a gift.
 * Mechanism. Each vCPU has a clock of virtual time, and the vCPU that is furthest behind runs next. The
 *            weight of a VM is split over its active vCPUs, as Xen's credit scheduler does with credits.
 *            Running advances the clock of a vCPU: the heavier the vCPU, the slower. Micro slices are
 *            charged like any other time. Some time is missed: the lag of a sleeper is cut, a micro slice
 *            runs whatever the clock says, siblings take turns. A clock of the VM makes up for it: a VM that
 *            is behind weighs more until it has caught up.
 * Formula.   vcpu_weight = vm_weight * SHARE_SCALE / active_vcpu_count     (at least 1)
 *            charge      = ran_ns * WEIGHT_DEFAULT * SHARE_SCALE / vcpu_weight
 *            vm_charge   = ran_ns * WEIGHT_DEFAULT / vm_weight             (all that its vCPUs run, wherever)
 *            Catching up: the lag of a VM is the charge of VM_LAG_SLICES slices, or of a slice for each vCPU
 *            if these are more. A VM that is behind the first one by its lag is charged by twice its weight.
 *            Its weight grows linearly with the distance, up to CATCH_UP_MAX times its weight more. A longer
 *            distance is forgotten. A VM that doesn't want its share, or can't have it where it may run,
 *            isn't owed it for ever.
 *            Sleep: a vCPU wakes no further behind than running for lag_max_ns would cost it. Sleep doesn't
 *            save time up, but a vCPU that sleeps often shouldn't lose what it waits for. A preempted vCPU
 *            keeps its clock, because its lag is owed to it. No vCPU waits for being ahead by more than
 *            lag_max_ns. What it ran in the micro pool beyond that is a debt of the VM, not of the vCPU.
 *            Warm caches: the vCPU that ran last on a pCPU may go before the one furthest behind. The heir
 *            of a directed yield, named by a sibling, may do so too. Their clocks may differ by no more than
 *            the charge of a slice for the vCPU that overtakes. Warm caches count only while the other vCPU
 *            has waited for less than a tenth of a slice.
 *            Boost: a vCPU that was blocked and isn't ahead of the pool's clock runs first when it wakes,
 *            for at most boost_slice_ns. It probably wakes to handle an interrupt (Xen's BOOST). It doesn't
 *            take a pCPU from a VM that has had less than its own VM. Otherwise VMs whose vCPUs sleep often
 *            would take everything from the others.
 *            VMM threads: a VMM's other threads go first when they are woken, because guests wait for their
 *            I/O. They have as long as a boosted vCPU, unless their VM has had more than that of the first
 *            waiter. The simulator has no such threads.
 * Limits.    Shares hold over seconds, not within a slice. ran_ns is cut at RAN_MAX_NS, so nothing
 *            overflows.
 */
#ifndef POLICY_FAIR_SHARE_H
#define POLICY_FAIR_SHARE_H

#include "types.h"

#define WEIGHT_DEFAULT 100u /* the default of cgroup v2's cpu.weight */
#define WEIGHT_MAX 10000u
#define SHARE_SCALE 1024u
#define VM_LAG_SLICES 10u
#define CATCH_UP_MAX 3u
#define RAN_MAX_NS 10000000000ull /* 10 s: sched_ext's watchdog acts before that */

struct fair_share_config {
	u64 slice_ns;	    /* 30 ms in the paper; by default a third of that */
	u64 boost_slice_ns; /* how long a boosted vCPU runs; 0: no boost */
	/* Running time whose charge is the most that a vCPU may be behind at a wake-up, or ahead. */
	u64 lag_max_ns;
};

/* Returns the weight of one of a VM's active vCPUs, in units of 1/SHARE_SCALE. */
POLICY u64 vcpu_weight(u32 vm_weight, u32 active_vcpu_count)
{
	u64 weight = vm_weight ? vm_weight : WEIGHT_DEFAULT;

	if (weight > WEIGHT_MAX)
		weight = WEIGHT_MAX;
	weight = weight * SHARE_SCALE / (active_vcpu_count ? active_vcpu_count : 1);
	return weight ? weight : 1;
}

/*
 * Returns the weight of a host task whose cgroup has a weight, in the unit of vcpu_weight(). `own_weight`
 * follows from its nice value. Weights of VMs and of services have the same unit.
 */
POLICY u64 service_task_weight(u32 service_weight, u32 own_weight)
{
	u64 weight = (u64)service_weight * own_weight * SHARE_SCALE / WEIGHT_DEFAULT;

	return weight ? weight : 1;
}

/* The largest ratio between the two sides of a pCPU that both want. */
#define SIDES_RATIO_MAX 16u

/*
 * Returns how long vCPUs go first on a pCPU where host tasks ran for ran_ns. Each side gets a share by the
 * weights of the outermost cgroups. If a weight is 0 (unknown), each side gets half.
 */
POLICY u64 owed_to_vcpus(u64 ran_ns, u32 vms_weight, u32 services_weight)
{
	if (!vms_weight || !services_weight)
		return ran_ns;
	if (vms_weight / services_weight >= SIDES_RATIO_MAX)
		return ran_ns * SIDES_RATIO_MAX;
	if (services_weight / vms_weight >= SIDES_RATIO_MAX)
		return ran_ns / SIDES_RATIO_MAX;
	/* Below 2^64: a turn is shorter than 2^40 ns, and the weights are below 2^24. */
	return ran_ns * vms_weight / services_weight;
}

/* Returns the virtual time that running for ran_ns costs at this weight. */
POLICY u64 charge(u64 ran_ns, u64 weight)
{
	u64 ran = ran_ns < RAN_MAX_NS ? ran_ns : RAN_MAX_NS;

	/* 10^10 * 100 * 1024 < 2^50: the product fits. */
	return ran * WEIGHT_DEFAULT * SHARE_SCALE / (weight ? weight : 1);
}

/* Returns whether a is earlier than b. Clocks may wrap, so only the difference counts. */
POLICY u32 vtime_before(u64 a, u64 b)
{
	return (s64)(a - b) < 0;
}

/* ---- The VM's clock ---- */

struct vm_size {
	u32 weight; /* as vcpu_weight() takes it */
	u32 vcpu_count;
};

/* Returns how far running for ran_ns, on any pCPU of any pool, advances the clock of the VM. */
POLICY u64 vm_charge(u64 ran_ns, u32 vm_weight)
{
	return charge(ran_ns, vcpu_weight(vm_weight, 1));
}

/*
 * Returns how far a VM is behind when its weight is doubled. A wide VM has more room, because its clock
 * moves faster.
 */
POLICY u64 vm_lag_ns(const struct fair_share_config *config, struct vm_size size)
{
	u64 slices = size.vcpu_count > VM_LAG_SLICES ? size.vcpu_count : VM_LAG_SLICES;

	return vm_charge(slices * config->slice_ns, size.weight);
}

/*
 * Returns the VM's clock, advanced so that the VM isn't further behind than it can catch up. `first_ns` is
 * the clock of the VM that is furthest ahead.
 */
POLICY u64 vm_clock(const struct fair_share_config *config, struct vm_size size, u64 first_ns, u64 vm_ns)
{
	u64 earliest = first_ns - CATCH_UP_MAX * vm_lag_ns(config, size);

	return vtime_before(vm_ns, earliest) ? earliest : vm_ns;
}

/* Returns the weight of a vCPU (vcpu_weight()), raised if its VM is behind. */
POLICY u64 catch_up_weight(const struct fair_share_config *config, struct vm_size size, u64 weight,
			   u64 first_ns, u64 vm_ns)
{
	u64 lag = vm_lag_ns(config, size), behind = vtime_before(vm_ns, first_ns) ? first_ns - vm_ns : 0;

	if (behind > CATCH_UP_MAX * lag)
		behind = CATCH_UP_MAX * lag;
	/* The shifts make the product fit: lags are below 2^40, weights below 2^24. */
	return weight + weight * (behind >> 10) / ((lag >> 10) + 1);
}

/*
 * Returns whether this VM has had more than the other by more than either can make up for. The lag of a
 * light or wide VM alone may exceed the distance at which a heavy one is left behind (vm_clock()).
 */
POLICY u32 vm_is_ahead(const struct fair_share_config *config, struct vm_size size, u64 vm_ns,
		       struct vm_size other_size, u64 other_vm_ns)
{
	u64 lag = vm_lag_ns(config, size), other_lag = vm_lag_ns(config, other_size);

	return vtime_before(other_vm_ns + (lag < other_lag ? lag : other_lag), vm_ns);
}

/* ---- A vCPU's clock ---- */

struct wakeup_observation {
	/* The normal pool's clock where it may run: that of the furthest vCPU chosen there. */
	u64 pool_vtime_ns;
	u64 vcpu_vtime_ns;
	u64 weight;	 /* vcpu_weight() */
	u32 was_blocked; /* it slept; 0: it was preempted, or moved */
	u32 reserved;
};

struct wakeup_decision {
	u64 vtime_ns; /* the new clock of the vCPU */
	u64 slice_ns;
	u32 boost; /* 1: goes before all vCPUs that aren't boosted */
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

/* ---- A thread of a VMM that isn't a vCPU ---- */

struct vmm_thread_observation {
	u64 first_ran_ns; /* how long it has run first since it was woken */
	u32 was_blocked;  /* it was woken just now */
	u32 went_first;	  /* it went first until now, and was interrupted */
	u32 is_vcpu;	  /* a vCPU without a place */
	u32 vm_is_ahead;  /* its VM has had more than the VM of the first waiter */
};

/* Returns the weight of all other threads of a VMM together: that of one more vCPU. */
POLICY u64 vmm_threads_weight(u32 vm_weight, u32 active_vcpu_count)
{
	return vcpu_weight(vm_weight, active_vcpu_count + 1);
}

/* Returns whether it goes before vCPUs. Otherwise it waits among them. */
POLICY u32 vmm_thread_goes_first(const struct fair_share_config *config,
				 const struct vmm_thread_observation *seen)
{
	if (seen->is_vcpu || seen->vm_is_ahead || !config->boost_slice_ns)
		return 0;
	return seen->was_blocked || (seen->went_first && seen->first_ran_ns < config->boost_slice_ns);
}

/*
 * Returns whether a vCPU with this clock and weight may go before the first of the queue. It is asked for
 * vCPUs with warm caches, and for those that a sibling yields to.
 */
POLICY u32 may_go_first(const struct fair_share_config *config, u64 first_vtime_ns, u64 vtime_ns, u64 weight)
{
	return !vtime_before(first_vtime_ns + charge(config->slice_ns, weight), vtime_ns);
}

/* ---- Boosted vCPUs ---- */

/* Since when the first boosted vCPUs of two queues have waited; 0: none does. */
struct boosted_observation {
	u64 now_ns;
	u64 first_since_ns; /* of those that may run on several pCPUs */
	u64 bound_since_ns; /* of those that may run on this pCPU only */
};

/*
 * Returns whether the first of those that may run on several pCPUs goes before those that this pCPU prefers:
 * its own, and those whose caches are warm there. So nobody is overtaken by them for longer than a turn.
 */
POLICY u32 first_boosted_is_due(const struct fair_share_config *config,
				const struct boosted_observation *seen)
{
	return seen->first_since_ns && seen->now_ns - seen->first_since_ns > config->slice_ns &&
	       (!seen->bound_since_ns || vtime_before(seen->first_since_ns, seen->bound_since_ns));
}

/* ---- The heir of a directed yield ---- */

struct yield_heir_observation {
	u32 is_queued; /* it waits in a queue */
	u32 affinity_allows;
	u32 paper_rules; /* as in struct accelerate_config (accelerate.h) */
};

/*
 * Returns whether it may run on the pCPU of the spinner. If not the spinner gives up nothing: a turn of all
 * others there helps nobody that it waits for. One that only the clocks keep back has its turn the sooner.
 * In the paper the spinner yields whoever comes.
 */
POLICY u32 heir_may_come(const struct yield_heir_observation *seen)
{
	return seen->paper_rules || (seen->is_queued && seen->affinity_allows);
}

/*
 * How many heirs may be turned down in one pause-loop exit. KVM locks two runqueues for each that it tries.
 * After these its search ends as if one had been found.
 */
#define HEIRS_TRIED_MAX 3u

/*
 * Returns whether warm caches are worth the wait of the first in the queue. They save less than a
 * millisecond, so that wait is kept below a tenth of a slice.
 */
POLICY u32 is_worth_warm_caches(const struct fair_share_config *config, u64 first_waited_ns)
{
	return first_waited_ns < config->slice_ns / 10;
}

#endif
