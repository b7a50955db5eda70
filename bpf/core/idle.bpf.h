/* SPDX-License-Identifier: GPL-2.0-only */
/* Idle pCPUs: found, and told that there is work for the normal pool. */
#ifndef BPF_IDLE_H
#define BPF_IDLE_H

#include "bpf/mechanisms/pools.bpf.h"

/* A whole idle core before half of a busy one. */
static __always_inline s32 pick_idle_of(const struct cpumask *candidates)
{
	s32 cpu = scx_bpf_pick_idle_cpu(candidates, SCX_PICK_IDLE_CORE);

	return cpu >= 0 ? cpu : scx_bpf_pick_idle_cpu(candidates, 0);
}

/* An idle normal pCPU that p may run on, the one it ran on last first; negative: none. */
static __always_inline s32 pick_idle_normal(struct task_struct *p, s32 prev_cpu)
{
	struct scratch *normal, *own;
	struct bpf_cpumask *mask, *candidates;
	u32 key = 0, here = bpf_get_smp_processor_id();

	if (prev_cpu >= 0 && !pcpu_is_micro(prev_cpu) && bpf_cpumask_test_cpu(prev_cpu, p->cpus_ptr) &&
	    scx_bpf_test_and_clear_cpu_idle(prev_cpu))
		return prev_cpu;
	normal = bpf_map_lookup_elem(&normal_pool, &key);
	mask = normal ? normal->mask : NULL;
	if (!mask)
		return -1;
	if (bpf_cpumask_subset((const struct cpumask *)mask, p->cpus_ptr))
		return pick_idle_of((const struct cpumask *)mask);
	own = bpf_map_lookup_elem(&scratches, &here);
	candidates = own ? own->mask : NULL;
	if (!candidates || !bpf_cpumask_and(candidates, p->cpus_ptr, (const struct cpumask *)mask))
		return -1;
	return pick_idle_of((const struct cpumask *)candidates);
}

/* A task was queued: an idle normal pCPU comes and gets it. */
static __always_inline bool kick_idle_normal(struct task_struct *p)
{
	s32 cpu = pick_idle_normal(p, scx_bpf_task_cpu(p));

	if (cpu < 0)
		return false;
	scx_bpf_kick_cpu(cpu, KICK_IDLE);
	return true;
}

/* A vCPU was queued: if no normal pCPU idles, a micro-sliced one that nobody asks for comes and gets it. */
static __always_inline bool kick_idle_for_vcpu(struct task_struct *p)
{
	u32 rank;

	if (kick_idle_normal(p))
		return true;
	if (!config.lend)
		return false;
	bpf_for (rank, 0, POOL_LIMIT_MAX) {
		s32 cpu;

		if (rank >= micro_pcpu_count)
			break;
		cpu = config.micro_order[rank & POOL_LIMIT_MAX];
		if (bpf_cpumask_test_cpu(cpu, p->cpus_ptr) && scx_bpf_test_and_clear_cpu_idle(cpu)) {
			scx_bpf_kick_cpu(cpu, KICK_IDLE);
			return true;
		}
	}
	return false;
}

#endif
