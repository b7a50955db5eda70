/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Directed yield: a spinner gives its pCPU to its heir, the sibling that it may wait for.
 *
 * Problem.   On a pCPU where its heir may not run a spinner would give its turn away in vain.
 * Mechanism. KVM names the heir (ops.yield). If it may not run here nothing is given up (fair_share.h,
 *            heir_may_come). Else its clock says whether it may go before the first waiter. Before it the
 *            pCPU looks into other domains, if it hasn't for a slice (policy/queue_domain.h).
 */
#ifndef BPF_DIRECTED_YIELD_H
#define BPF_DIRECTED_YIELD_H

#include "bpf/core/turns.bpf.h"

struct directed_yield_vcpu {
	u32 heir; /* slot + 1 of the vCPU that it yields its pCPU to; 0: of nobody */
};

static __always_inline struct directed_yield_vcpu *directed_yield_of(const struct vcpu *vcpu);

/* May the heir run on this pCPU? Asked by ops.yield of a spinner there. Not static: see inherit(). */
__noinline int may_come(struct task_struct *to __arg_trusted, s32 cpu)
{
	const struct vcpu *heir = vcpu_of(task_ctx_of(to));
	struct yield_heir_observation seen = {.paper_rules = config.accelerate.paper_rules};

	if (!heir)
		return false;
	seen.is_queued = heir->state == VCPU_RUNNABLE;
	seen.affinity_allows = may_run_on(to, cpu);
	return heir_may_come(&seen);
}

static __always_inline bool clock_lets_inherit(const struct task_ctx *tctx, const struct vcpu *heir, s32 cpu,
					       const struct pcpu *pcpu)
{
	struct fair_share_config share = config.fair_share;

	look_at_line(cpu, 0);
	return !pcpu->line.dsq || may_go_first(&share, pcpu->line.vtime_ns, tctx->vtime_ns, weight_of(heir));
}

static __always_inline bool look_is_due(const struct pcpu *pcpu)
{
	struct fair_share_config share = config.fair_share;
	u64 looked_ns_ago = bpf_ktime_get_ns() - pcpu->looked_at_ns;

	return !may_inherit_without_a_look(&share, config.domain_count, looked_ns_ago);
}

/*
 * It waits, and a spinner yields this pCPU to it. Not static: the verifier then checks it once by itself, not
 * at each of its calls. True: it comes, or a task of another domain that is further behind.
 */
__noinline int inherit(u32 slot, s32 cpu, u32 look)
{
	struct vcpu *heir = vcpu_at(slot);
	struct pcpu *pcpu = pcpu_of(cpu);
	struct task_struct *p;
	struct task_ctx *tctx;
	bool moved = false;

	if (!heir || !pcpu)
		return false;
	p = bpf_task_from_pid(heir->pid);
	if (!p)
		return false;
	tctx = task_ctx_of(p);
	if (tctx && clock_lets_inherit(tctx, heir, cpu, pcpu)) {
		moved = look_is_due(pcpu) && take_from_elsewhere(cpu, pcpu, tctx, look);
		if (!moved && pull(p, tctx, cpu, 0)) {
			heir->goes_first = 1;
			count_overtake(heir, OVERTAKE_DIRECTED_YIELD);
			moved = true;
		}
	}
	bpf_task_release(p);
	return moved;
}

/*
 * KVM found an heir for a spinning vCPU, and that one waits for a pCPU: it gets this one. Given to the next
 * in line instead, the pCPU would mostly go to another VM. The spinner would come back to the same wait a
 * turn later.
 */
static __always_inline bool take_heir(s32 cpu, struct task_struct *prev, u32 look)
{
	struct vcpu *self = is_runnable(prev) ? vcpu_of(task_ctx_of(prev)) : NULL, *heir;
	u32 slot;

	if (!self || !self->yielded || !directed_yield_of(self)->heir)
		return false;
	slot = directed_yield_of(self)->heir - 1;
	heir = vcpu_at(slot);
	if (!heir || heir->state != VCPU_RUNNABLE)
		return false;
	directed_yield_of(self)->heir = 0;
	return inherit(slot, cpu, look);
}

#endif
