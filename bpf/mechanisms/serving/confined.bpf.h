/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Confined tasks: those that may run on micro pCPUs only.
 *
 * Problem.   A task whose affinity holds micro pCPUs only would never run in the normal pool.
 * Mechanism. Such tasks share the micro pCPUs, one micro slice in turn with accelerated vCPUs.
 */
#ifndef BPF_CONFINED_H
#define BPF_CONFINED_H

#include "bpf/mechanisms/micro_pool.bpf.h"
#include "bpf/mechanisms/request.bpf.h"

#define DSQ_CONFINED 0x10000ull /* + pCPU: tasks that may run on micro pCPUs only */

_Static_assert(DSQ_CONFINED > DSQ_STOPPED && DSQ_CONFINED + PCPUS_MAX <= DSQ_BOOSTED,
	       "queue numbers don't overlap");

/*
 * How many waiting tasks a pCPU looks at when it becomes micro-sliced: as many as there are places of vCPUs.
 * Whoever waits behind them is found by the sweep (boost_starving()).
 */
#define RESCUE_MAX VCPUS_MAX

struct confined_pcpu {
	u32 served_last; /* whose turn it is: an accelerated vCPU's, or a confined task's */
	/* Just became micro-sliced: queued tasks to look at that may have nowhere else to run. */
	u32 rescue_count;
};

static __always_inline struct confined_pcpu *confined_on(const struct pcpu *pcpu);

/* May it run on micro pCPUs only? Callers hold RCU (every non-sleepable program does). */
static __always_inline bool is_confined(struct task_struct *p)
{
	u32 key = 0;
	struct scratch *normal;
	struct bpf_cpumask *mask;

	if (!micro_pcpu_count)
		return false;
	/* sched_ext never asks us where a task that exits may go: it stays where it is. */
	if (has_disabled_migration(p) || (p->flags & PF_EXITING))
		return pcpu_is_micro(scx_bpf_task_cpu(p));
	if (p->nr_cpus_allowed >= config.wide_pcpu_count)
		return false;
	normal = bpf_map_lookup_elem(&normal_pool, &key);
	mask = normal ? normal->mask : NULL;
	return mask && !bpf_cpumask_intersects(p->cpus_ptr, (const struct cpumask *)mask);
}

static __always_inline s32 pcpu_of_confined(struct task_struct *p)
{
	s32 cpu = scx_bpf_task_cpu(p);

	return bpf_cpumask_test_cpu(cpu, p->cpus_ptr) ? cpu : (s32)bpf_cpumask_first(p->cpus_ptr);
}

/*
 * Tasks that were queued when their last normal pCPU became this micro pCPU would wait for ever. How many
 * more may be looked at is kept in the map, for the verifier's sake: see visit_sibling().
 */
__noinline int rescue_from(u64 dsq, s32 cpu)
{
	struct pcpu *pcpu = pcpu_of(cpu);
	struct task_struct *p;

	if (!pcpu || scx_bpf_dsq_nr_queued(dsq) <= 0)
		return 0;
	for_each_queued(p, dsq)
	{
		if (!confined_on(pcpu)->rescue_count)
			break;
		confined_on(pcpu)->rescue_count--;
		if (is_confined(p) && bpf_cpumask_test_cpu(cpu, p->cpus_ptr) &&
		    dsq_move(&it, p, DSQ_CONFINED + cpu))
			COUNT(host_stats.rescued);
	}
	return 0;
}

/* They may wait in any domain: in that of a pCPU which became micro-sliced before, too. */
__noinline int rescue_from_queues(s32 cpu)
{
	u32 queue;

	bpf_for (queue, 0, 2 * PCPUS_MAX) {
		if (queue >= queue_count())
			break;
		rescue_from(DSQ_VCPUS + queue, cpu);
		rescue_from(DSQ_BOOSTED + queue, cpu);
		if (queue < config.domain_count)
			rescue_from(DSQ_OTHERS + queue, cpu);
	}
	return 0;
}

static __always_inline void enqueue_confined(struct task_struct *p, struct vcpu *vcpu, u64 enq_flags)
{
	s32 cpu = pcpu_of_confined(p);
	struct pcpu *pcpu;

	if (vcpu) {
		end_acceleration(vcpu, VCPU_RUNNABLE, RETURN_NEVER_RAN);
		fail_request(vcpu, VCPU_RUNNABLE, FAILURE_NOT_QUEUED);
	}
	COUNT(host_stats.confined_inserts);
	dsq_insert(p, DSQ_CONFINED + cpu, config.others_slice_ns, enq_flags);
	pcpu = pcpu_of(cpu);
	if (pcpu)
		call_pcpu(cpu, pcpu);
}

static __always_inline void release_confined(struct bpf_iter_scx_dsq *it, struct task_struct *p)
{
	s32 cpu = pcpu_of_confined(p);
	struct pcpu *pcpu = pcpu_of(cpu);

	if (dsq_move(it, p, DSQ_CONFINED + cpu) && pcpu)
		call_pcpu(cpu, pcpu);
}

#endif
