/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Queues: where a vCPU waits that isn't in a hurry.
 *
 * Mechanism. Three kinds of queues, all ordered by the policy (fair_share.h): host tasks, vCPUs that just
 *            woke (boosted), vCPUs. A pCPU serves them in that order (turns.bpf.h). Those of vCPUs are of
 *            domains (domains.bpf.h): it waits where the pCPU looks that comes for it.
 * Limits.    vCPUs with narrow affinity are found by walking the queue, unless it is one pCPU.
 */
#ifndef BPF_QUEUES_H
#define BPF_QUEUES_H

#include "bpf/core/host_tasks.bpf.h"

static __always_inline void enqueue_vcpu(struct task_struct *p, struct task_ctx *tctx, struct vcpu *vcpu,
					 u64 enq_flags)
{
	u32 slot = tctx->vcpu - 1;
	struct wakeup_decision decision;
	u64 back_for_ns;
	s32 comes;

	on_enqueue(vcpu);
	tctx->queued_at_ns = bpf_ktime_get_ns();
	back_for_ns = comes_back_for(vcpu, slot);
	if (back_for_ns) {
		vcpu->goes_first = 1;
		wait_for(p, tctx, vcpu, kick_idle_for_vcpu(p));
		dsq_insert(p, DSQ_BOOSTED + tctx->queue, back_for_ns, enq_flags | ENQ(HEAD));
		on_queued(vcpu, slot);
		return;
	}
	decision = queue_clock(p, tctx, vcpu);
	if (was_sent_away(vcpu)) {
		vcpu->was_blocked = 1;
		decision.boost = 1;
		decision.slice_ns = config.fair_share.boost_slice_ns;
		enq_flags |= ENQ(HEAD);
	}
	vcpu->goes_first = decision.boost;
	comes = kick_idle_for_vcpu(p);
	if (decision.boost) {
		wait_for(p, tctx, vcpu, comes < 0 ? preempt_for(p, true) : comes);
		dsq_insert(p, DSQ_BOOSTED + tctx->queue, decision.slice_ns, enq_flags);
	} else {
		wait_for(p, tctx, vcpu, comes);
		dsq_insert_vtime(p, DSQ_VCPUS + tctx->queue, decision.slice_ns, decision.vtime_ns, enq_flags);
		if (comes < 0)
			on_wait(p, vcpu, slot);
	}
	on_queued(vcpu, slot);
}

#endif
