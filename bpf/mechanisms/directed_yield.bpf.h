/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Directed yield: a spinner gives its pCPU to its heir, the sibling that it may wait for.
 *
 * Mechanism. KVM names the heir (ops.yield); its clock says whether it may go before the first waiter.
 */
#ifndef BPF_DIRECTED_YIELD_H
#define BPF_DIRECTED_YIELD_H

#include "bpf/core/turns.bpf.h"

struct directed_yield_vcpu {
	u32 heir; /* slot + 1 of the vCPU that it yields its pCPU to; 0: of nobody */
};

static __always_inline struct directed_yield_vcpu *directed_yield_of(const struct vcpu *vcpu);

static __always_inline bool clock_lets_inherit(const struct task_ctx *tctx, const struct vcpu *heir, s32 cpu,
					       const struct pcpu *pcpu)
{
	struct fair_share_config share = config.fair_share;

	look_at_line(cpu, 0);
	return !pcpu->line.dsq || may_go_first(&share, pcpu->line.vtime_ns, tctx->vtime_ns, weight_of(heir));
}

/*
 * KVM found an heir for a spinning vCPU, and that one waits for a pCPU: it gets this one. Given to the next
 * in line instead, the pCPU would mostly go to another VM. The spinner would come back to the same wait a
 * turn later.
 */
static __noinline int take_heir(s32 cpu, struct task_struct *prev)
{
	struct pcpu *pcpu = pcpu_of(cpu);
	struct vcpu *self, *heir;
	struct task_struct *p;
	struct task_ctx *tctx;
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
	tctx = task_ctx_of(p);
	if (tctx && pcpu && clock_lets_inherit(tctx, heir, cpu, pcpu))
		moved = pull(p, tctx, cpu, 0);
	bpf_task_release(p);
	if (moved) {
		heir->goes_first = 1;
		count_overtake(heir, OVERTAKE_DIRECTED_YIELD);
	}
	return moved;
}

#endif
