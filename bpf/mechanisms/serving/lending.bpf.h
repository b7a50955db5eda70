/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Lending: vCPUs of the normal pool on micro pCPUs that nobody asks for.
 *
 * Mechanism. A micro pCPU without a request chooses like one of the normal pool, but only vCPUs
 *            (dispatch_lent). A requester calls it back: a kick preempts the borrower, which goes to the
 *            normal queues.
 */
#ifndef BPF_LENDING_H
#define BPF_LENDING_H

#include "bpf/mechanisms/grace.bpf.h"
#include "bpf/mechanisms/directed_yield.bpf.h"
#include "bpf/mechanisms/serving/confined.bpf.h"
#include "bpf/mechanisms/serving/micro_slice.bpf.h"

struct lending_vcpu {
	u32 called_back; /* it was woken for the micro pCPU that it borrowed, and that was asked for */
};

struct lending_pcpu {
	u32 is_lent;	/* it runs a vCPU of the normal pool, as a micro pCPU that nobody asks for */
	u32 to_boosted; /* and that one was woken for it */
};

static __always_inline struct lending_vcpu *lending_of(const struct vcpu *vcpu);
static __always_inline struct lending_pcpu *lending_on(const struct pcpu *pcpu);

/* Is there a request for this micro pCPU? */
static __always_inline bool is_asked_for(s32 cpu, const struct pcpu *pcpu)
{
	return request_on(pcpu)->vcpu || woken_on(pcpu)->vcpu ||
	       scx_bpf_dsq_nr_queued(DSQ_CONFINED + cpu) > 0;
}

/*
 * A vCPU of the normal pool runs on this micro pCPU from now on. A requester of the pCPU writes that down
 * first and looks at the occupant then. Here it is the other way round, so one of both sees the other.
 */
static __always_inline void lend_to(s32 cpu, struct pcpu *pcpu)
{
	lending_on(pcpu)->is_lent = 1;
	__sync_lock_test_and_set(&pcpu->occupant, OCCUPANT_LENT_VCPU);
	if (is_asked_for(cpu, pcpu))
		call_pcpu(cpu, pcpu);
}

/* A vCPU was queued, and no normal pCPU idles: a micro-sliced one that nobody asks for comes and gets it. */
static __always_inline s32 kick_idle_micro(struct task_struct *p)
{
	u32 rank;

	if (!config.lend)
		return -1;
	bpf_for (rank, 0, POOL_LIMIT_MAX) {
		s32 cpu;

		if (rank >= micro_pcpu_count)
			break;
		cpu = config.micro_order[rank & POOL_LIMIT_MAX];
		if (bpf_cpumask_test_cpu(cpu, p->cpus_ptr) && scx_bpf_test_and_clear_cpu_idle(cpu)) {
			scx_bpf_kick_cpu(cpu, KICK_IDLE);
			return cpu;
		}
	}
	return -1;
}

/* A vCPU of the normal pool that has run on a micro pCPU, and could go on. */
static __always_inline bool is_borrower(struct task_struct *prev)
{
	struct vcpu *vcpu = config.lend && is_runnable(prev) ? vcpu_of(task_ctx_of(prev)) : NULL;

	return vcpu && vcpu->state == VCPU_RUNNING && !is_confined(prev);
}

/*
 * No request is there for this micro pCPU: vCPUs of the normal pool run here. Host tasks don't: nothing may
 * be able to interrupt what they do in the kernel. True if the present vCPU goes on.
 */
static __always_inline bool dispatch_lent(s32 cpu, struct pcpu *pcpu, struct task_struct *prev)
{
	struct task_ctx *ran;

	if (is_put_off(cpu, prev, pcpu))
		return true;
	if (take_heir(cpu, prev, LOOK_AT_VCPUS) || take_boosted(cpu, LOOK_AT_VCPUS))
		return false;
	ran = compare_with_line(cpu, prev, pcpu, LOOK_AT_VCPUS);
	if (take_from_elsewhere(cpu, pcpu, ran, LOOK_AT_VCPUS))
		return false;
	if (goes_on(prev, ran, pcpu))
		return true;
	if (take_first_in_line(cpu, pcpu, LOOK_AT_VCPUS) || !is_borrower(prev))
		return false;
	micro_slice_on(pcpu)->deadline_ns = 0;
	end_grace(pcpu);
	stay_alone(prev, pcpu, !ran || !somebody_waits_elsewhere(cpu));
	return true;
}

/*
 * No grace for it: the vCPU that it waits for may be the one that comes. But if it was woken for this pCPU it
 * goes first elsewhere.
 */
static __always_inline void call_back_from(struct vcpu *borrower, const struct pcpu *pcpu)
{
	struct vm_stats *stats = vm_stats_at(borrower->vm);

	grace_of(borrower)->turn_over = 1;
	lending_of(borrower)->called_back = lending_on(pcpu)->to_boosted && !borrower->yielded;
	if (stats)
		COUNT(stats->called_back);
}

#endif
