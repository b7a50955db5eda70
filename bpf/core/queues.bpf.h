/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Queues: where a vCPU waits that isn't in a hurry.
 *
 * Mechanism. Three shared queues, all ordered by the policy (fair_share.h): host tasks, vCPUs that just woke
 *            (boosted), vCPUs. A pCPU serves them in that order (turns.bpf.h).
 * Limits.    One queue of each kind for the whole host: a task prefers the pCPU that it ran on last if that
 *            is idle, and a pCPU those that ran there last (turns.bpf.h), but NUMA nodes are not told apart.
 *            vCPUs with narrow affinity are found by walking the queue.
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

	on_enqueue(vcpu);
	back_for_ns = comes_back_for(vcpu, slot);
	if (back_for_ns) {
		vcpu->goes_first = 1;
		dsq_insert(p, DSQ_BOOSTED, back_for_ns, enq_flags | ENQ(HEAD));
		kick_idle_for_vcpu(p);
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
	if (decision.boost) {
		dsq_insert(p, DSQ_BOOSTED, decision.slice_ns, enq_flags);
		if (!kick_idle_for_vcpu(p))
			preempt_for(p, true);
	} else {
		tctx->queued_at_ns = bpf_ktime_get_ns();
		dsq_insert_vtime(p, DSQ_VCPUS, decision.slice_ns, decision.vtime_ns, enq_flags);
		if (!kick_idle_for_vcpu(p))
			on_wait(p, vcpu, slot);
	}
	on_queued(vcpu, slot);
}

#endif
