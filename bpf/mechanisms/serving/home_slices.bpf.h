/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Home slices: micro slices on pCPUs of the normal pool.
 *
 * Problem.   A micro pool is small, and far from warm caches. Of eleven responders ten wait for those before
 *            them. Meanwhile the pCPUs that they ran on last run turns that can wait.
 * Mechanism. A request may find no micro pCPU that would serve it at once. Then it looks at the pCPU where
 *            its vCPU ran last in the normal pool, and at the next three. It looks for a turn that gives way
 *            (policy/accelerate.h: decide_on_home). There it takes the same place as at a micro pCPU, whose
 *            ops.dispatch pulls it (serve_at_home), for a micro slice. The interrupted vCPU is queued like
 *            any other, and has what is left of its turn afterwards (take_interrupted).
 * Races.     As at a micro pCPU. If the turn has ended meanwhile, its successor is preempted for the request,
 *            by a second kick if need be (kick_for_late_request). If the vCPU can't be had any more, the turn
 *            goes on.
 * Limits.    Never from a sibling, which may be the one that waits; never from a VM that has had less. A
 *            bound on waits asks either. Of a pCPU's time at most half.
 */
#ifndef BPF_HOME_SLICES_H
#define BPF_HOME_SLICES_H

#include "bpf/mechanisms/grace.bpf.h"
#include "bpf/mechanisms/serving/micro_slice.bpf.h"
#include "bpf/mechanisms/serving/pull.bpf.h"

struct home_slices_pcpu {
	u64 left_ns; /* what is left of the turn of `interrupted` */
	/* vCPU slot + 1 whose turn the micro slice at home that runs here has interrupted; 0: none. */
	u32 interrupted;
};

static __always_inline struct home_slices_pcpu *home_slices_on(const struct pcpu *pcpu);

/* The normal pool's time: it isn't what Algorithm 1 asks about. */
static __always_inline void start_at_home(const struct vcpu *vcpu, s32 cpu, struct pcpu *pcpu, u64 now)
{
	struct vm_stats *stats = vm_stats_at(vcpu->vm);

	if (stats)
		COUNT(stats->home_slices);
	arm_micro_slice(cpu, pcpu, now);
}

/* A kick that was meant for the vCPU before doesn't cut a micro slice short: its timer ends it. */
static __always_inline bool micro_slice_goes_on(struct task_struct *prev, const struct pcpu *pcpu)
{
	s64 left_ns = micro_slice_on(pcpu)->deadline_ns - bpf_ktime_get_ns();
	struct vcpu *vcpu;

	if (pcpu->occupant != OCCUPANT_MICRO || left_ns <= 0 || !is_runnable(prev))
		return false;
	vcpu = vcpu_of(task_ctx_of(prev));
	if (!vcpu || vcpu->yielded || vcpu->state != VCPU_MICRO)
		return false;
	task_set_slice(prev, left_ns);
	return true;
}

/*
 * The vCPU that it was preempted for can't be had any more. It goes on, unless a task waits that would have
 * preempted it anyway.
 */
static __always_inline bool was_preempted_in_vain(struct task_struct *prev, struct task_ctx *tctx,
						  struct pcpu *pcpu, u64 left_ns)
{
	struct vcpu *vcpu = vcpu_of(tctx);

	if (!vcpu || !left_ns || a_host_task_waits(scx_bpf_task_cpu(prev)) ||
	    somebody_waits_in(DSQ_BOOSTED, scx_bpf_task_cpu(prev)))
		return false;
	grace_of(vcpu)->turn_over = 0;
	/* A grace that was running doesn't end what is left of the turn. */
	end_grace(pcpu);
	task_set_slice(prev, left_ns);
	return true;
}

/*
 * A requester of a micro slice here goes before host tasks, too: it is shorter than they could notice, and
 * every other turn at most. True if it comes, or if the present vCPU goes on.
 */
static __noinline int serve_at_home(s32 cpu, struct pcpu *pcpu, struct task_struct *prev)
{
	struct task_ctx *tctx;
	u64 left_ns;
	u32 was;

	if (!pcpu || !request_on(pcpu)->vcpu)
		return false;
	was = pcpu->occupant;
	tctx = was == OCCUPANT_VCPU || was == OCCUPANT_BOOSTED_VCPU ? whose_turn_ends(prev) : NULL;
	left_ns = tctx ? left_of_turn(tctx, pcpu) : 0;
	/* No kick that would reach the next vCPU. */
	pcpu->occupant = OCCUPANT_NONE;
	if (serve_request(cpu, pcpu)) {
		if (left_ns && tctx) {
			home_slices_on(pcpu)->left_ns = left_ns;
			home_slices_on(pcpu)->interrupted = tctx->vcpu;
		}
		return true;
	}
	pcpu->occupant = was;
	/* A kernel thread that woke while the runqueue was unlocked for the look goes first. */
	if (scx_bpf_dsq_nr_queued(SCX_DSQ_LOCAL) > 0)
		return true;
	return tctx && was_preempted_in_vain(prev, tctx, pcpu, left_ns);
}

/*
 * A request that came while ops.dispatch chose: its kick ended the slice of the vCPU before, not of the
 * present one. Each request is served, or fails, at the next ops.dispatch, so there is one such kick for it.
 */
static __always_inline void kick_for_late_request(s32 cpu, const struct pcpu *pcpu)
{
	if (!request_on(pcpu)->vcpu || pcpu->occupant == OCCUPANT_MICRO || pcpu_is_micro(cpu))
		return;
	COUNT(host_stats.late_requests);
	scx_bpf_kick_cpu(cpu, KICK_PREEMPT);
}

/* The micro slice is over: the vCPU that gave way to it, and waits still, has what is left of its turn. */
__noinline int take_interrupted(u32 slot, s32 cpu)
{
	struct pcpu *pcpu = pcpu_of(cpu);
	struct vcpu *vcpu = vcpu_at(slot);
	struct task_ctx *tctx;
	struct task_struct *p;
	bool moved;

	if (!pcpu || !vcpu || vcpu->state != VCPU_RUNNABLE)
		return false;
	p = bpf_task_from_pid(vcpu->pid);
	if (!p)
		return false;
	tctx = task_ctx_of(p);
	moved = tctx && pull_from(DSQ_VCPUS + tctx->queue, p, cpu, home_slices_on(pcpu)->left_ns);
	if (moved)
		tctx->out_of_order = 1;
	bpf_task_release(p);
	return moved;
}

#endif
