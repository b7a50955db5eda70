/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Micro pool: the pCPUs that are reserved for micro slices.
 *
 * Mechanism. A pCPU is micro-sliced if its rank is below the pool's size (serving/pool_size.bpf.h).
 */
#ifndef BPF_MICRO_POOL_H
#define BPF_MICRO_POOL_H

#include "bpf/core/turns.bpf.h"

enum micro_occupant {
	OCCUPANT_MICRO = OCCUPANT_OF_MECHANISMS, /* an accelerated vCPU */
	OCCUPANT_LENT_VCPU, /* a vCPU of the normal pool, on a micro pCPU that nobody asked for */
};

/*
 * The size of the micro pool: what was decided, and what holds. They differ with --dry-run: nothing is
 * reserved then.
 */
u32 decided_pcpu_count;
/* A pCPU is micro-sliced if its rank is below this. */
OWN_LINE u32 micro_pcpu_count;

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

/* It would serve a request at once. */
static __always_inline bool is_free(const struct pcpu *pcpu)
{
	return pcpu->occupant == OCCUPANT_NONE || pcpu->occupant == OCCUPANT_LENT_VCPU;
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

#endif
