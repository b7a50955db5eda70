/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Directed yield: a spinner gives its pCPU to whom it may wait for.
 *
 * Mechanism. KVM says to whom (ops.yield); its clock says whether it may go before the first that waits.
 */
#ifndef BPF_DIRECTED_YIELD_H
#define BPF_DIRECTED_YIELD_H

#include "bpf/core/turns.bpf.h"

struct directed_yield_vcpu {
	u32 heir; /* slot + 1 of the vCPU that it yields its pCPU to; 0: of nobody */
};

static __always_inline struct directed_yield_vcpu *directed_yield_of(const struct vcpu *vcpu);

static __always_inline bool move_here(u64 dsq, struct task_struct *p, s32 cpu)
{
	struct bpf_iter_scx_dsq it;
	bool moved = false;

	/*
	 * Asked after the iterator has begun: who is queued anew meanwhile, with another affinity, isn't
	 * moved by it.
	 */
	if (!bpf_iter_scx_dsq_new(&it, dsq, 0) && may_run_on(p, cpu))
		moved = dsq_move(&it, p, SCX_DSQ_LOCAL);
	bpf_iter_scx_dsq_destroy(&it);
	return moved;
}

static __always_inline bool clock_lets_inherit(struct task_struct *p, const struct vcpu *heir, s32 cpu,
					       struct pcpu *pcpu)
{
	struct fair_share_config share = config.fair_share;
	struct task_ctx *tctx = task_ctx_of(p);
	struct task_struct *first;

	if (!tctx || !pcpu)
		return false;
	pcpu->look_count = 0;
	for_each_queued(first, DSQ_VCPUS)
	{
		if (++pcpu->look_count <= OWN_LOOK_MAX && !may_run_on(first, cpu))
			continue;
		return may_go_first(&share, first->scx.dsq_vtime, tctx->vtime_ns, weight_of(heir));
	}
	return true;
}

/*
 * KVM found whom a spinning vCPU may wait for, and that one waits for a pCPU: it gets this one. Given to
 * whoever is next instead, it would mostly go to another VM, and the spinner would come back to the same wait
 * a turn later.
 */
static __noinline int take_heir(s32 cpu, struct task_struct *prev)
{
	struct vcpu *self, *heir;
	struct task_struct *p;
	bool moved = false;

	if (!is_runnable(prev))
		return false;
	self = vcpu_of(task_ctx_of(prev));
	heir = self && self->yielded && directed_yield_of(self)->heir
		   ? vcpu_at(directed_yield_of(self)->heir - 1)
		   : NULL;
	if (!heir || heir->state != VCPU_RUNNABLE)
		return false;
	directed_yield_of(self)->heir = 0;
	p = bpf_task_from_pid(heir->pid);
	if (!p)
		return false;
	if (clock_lets_inherit(p, heir, cpu, pcpu_of(cpu)))
		moved = move_here(DSQ_BOOSTED, p, cpu) || move_here(DSQ_VCPUS, p, cpu);
	bpf_task_release(p);
	if (moved) {
		heir->goes_first = 1;
		count_overtake(heir, OVERTAKE_DIRECTED_YIELD);
	}
	return moved;
}

#endif
