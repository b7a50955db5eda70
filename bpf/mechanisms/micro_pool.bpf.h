/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Micro pool: the pCPUs that are reserved for micro slices, and tasks that may run nowhere else.
 *
 * Problem.   A task whose affinity holds micro pCPUs only would never run in the normal pool.
 * Mechanism. A pCPU is micro-sliced if its rank is below the pool's size (pool_size.bpf.h). Tasks that may
 *            run on micro-sliced pCPUs only share them, one micro slice in turn with accelerated vCPUs.
 */
#ifndef BPF_MICRO_POOL_H
#define BPF_MICRO_POOL_H

#include "bpf/core/turns.bpf.h"

enum micro_occupant {
	OCCUPANT_MICRO = OCCUPANT_OF_MECHANISMS, /* an accelerated vCPU */
	OCCUPANT_LENT_VCPU, /* a vCPU of the normal pool, on a micro pCPU that nobody asked for */
};

#define DSQ_CONFINED 0x10000ull /* + pCPU: tasks that may run on micro pCPUs only */

_Static_assert(DSQ_CONFINED > DSQ_RESTING && DSQ_CONFINED + PCPUS_MAX <= DSQ_BOOSTED,
	       "queue numbers don't overlap");

/*
 * The size of the micro pool: what was decided, and what holds. They differ with --dry-run: nothing is
 * reserved then.
 */
u32 decided_pcpu_count;
/* A pCPU is micro-sliced if its rank is below this. */
OWN_LINE u32 micro_pcpu_count;

/*
 * How many waiting tasks a pCPU looks at when it becomes micro-sliced: as many as there are places of vCPUs.
 * Whoever waits behind them is found by the sweep (boost_starving()).
 */
#define RESCUE_MAX VCPUS_MAX

struct micro_pool_pcpu {
	u32 served_last; /* whose turn it is: an accelerated vCPU's, or a confined task's */
	/* Just became micro-sliced: queued tasks to look at that may have nowhere else to run. */
	u32 rescue_count;
};

static __always_inline struct micro_pool_pcpu *micro_pool_on(const struct pcpu *pcpu);

static __always_inline bool pcpu_is_micro(s32 cpu)
{
	u32 at = cpu;

	if (at >= PCPUS_MAX)
		return false;
	/* The compiler may read it again from the stack, where the verifier knows no bound. */
	barrier_var(at);
	return config.micro_rank[at & (PCPUS_MAX - 1)] < micro_pcpu_count;
}

/* `event`: enum urgent_event. */
static __always_inline void count_urgent(u32 event)
{
	if (event == URGENT_IPI)
		COUNT(host_stats.urgent_ipis);
	else if (event == URGENT_PLE)
		COUNT(host_stats.urgent_ples);
	else if (event == URGENT_IRQ)
		COUNT(host_stats.urgent_irqs);
}

/*
 * There is something to do for a pCPU. If its task gives way to a vCPU, it is preempted; if it idles, it
 * looks.
 */
static __always_inline void call_pcpu(s32 cpu, const struct pcpu *pcpu)
{
	bool preempts =
	    pcpu_is_micro(cpu) ? pcpu->occupant == OCCUPANT_LENT_VCPU : gives_way_to(cpu, pcpu, true);

	scx_bpf_kick_cpu(cpu, preempts ? KICK_PREEMPT : KICK_IDLE);
}

/* ---- Confined tasks ---- */

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

static __always_inline s32 confined_pcpu(struct task_struct *p)
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
		if (!micro_pool_on(pcpu)->rescue_count)
			break;
		micro_pool_on(pcpu)->rescue_count--;
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
	}
	return 0;
}

#endif
