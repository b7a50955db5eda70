/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Urgent turns: when an urgent vCPU runs, and for how long (ops.dispatch, ops.running, ops.stopping).
 *
 * Mechanism. Behind host tasks and before all other vCPUs a pCPU serves its urgent queue. The first vCPU
 *            there runs for an urgent slice. Its clock may be ahead of that of the vCPU that would run
 *            otherwise, but no further than the allowance. Still urgent at the end of its slice, it goes
 *            behind the others of the queue.
 * Limits.    A refused vCPU leaves the urgent queue: its next IPI asks again.
 */
#ifndef BPF_URGENT_TURNS_H
#define BPF_URGENT_TURNS_H

#include "bpf/mechanisms/urgent.bpf.h"

/* ---- A turn begins and ends ---- */

/* Is it here because of the urgent queue? It isn't in that any longer. */
static __always_inline bool starts_urgently(struct vcpu *vcpu, s32 cpu)
{
	bool pulled = urgent_of(vcpu)->pulled == (u32)cpu + 1 && urgent_of(vcpu)->is_urgent;

	urgent_of(vcpu)->pulled = 0;
	urgent_of(vcpu)->pcpu = cpu;
	leave_line(vcpu);
	return pulled;
}

static __always_inline void note_urgent_wait(struct vcpu *vcpu, u64 now)
{
	struct urgent_stats *stats = urgent_stats_of(vcpu);
	u64 waited_ns = elapsed_ns(urgent_of(vcpu)->waits_since_ns, now);
	u32 bucket = histogram_bucket(waited_ns);

	if (!urgent_of(vcpu)->waits_since_ns)
		return;
	urgent_of(vcpu)->waits_since_ns = 0;
	if (!stats)
		return;
	ADD(stats->waited_ns, waited_ns);
	if (bucket < HISTOGRAM_BUCKETS)
		COUNT(stats->wait_us[bucket]);
}

/* A vCPU runs here from now on; if it is urgent, in an urgent slice. */
static __always_inline void start_on_pcpu(struct task_struct *p, struct vcpu *vcpu, s32 cpu,
					  struct pcpu *pcpu, u64 now)
{
	struct task_ctx *tctx = task_ctx_of(p);
	struct urgent_pcpu *on = urgent_on(pcpu);

	on->since_ns = 0;
	on->borrows = pcpu->occupant == OCCUPANT_URGENT;
	on->vcpu = tctx && vcpu ? tctx->vcpu : 0;
	if (!tctx || !vcpu)
		return;
	on->turn_since_ns = now;
	on->turn_vtime_ns = tctx->vtime_ns;
	on->turn_weight = charged_weight_of(vcpu);
	urgent_of(vcpu)->charged_at_ns = now;
	if (!urgent_of(vcpu)->is_urgent)
		return;
	note_urgent_wait(vcpu, now);
	pcpu->occupant = OCCUPANT_URGENT;
	begin_urgent_slice(cpu, pcpu, vcpu, now);
}

static __always_inline void stop_urgent_slice(struct pcpu *pcpu, u64 now)
{
	struct vcpu *vcpu = vcpu_at(urgent_on(pcpu)->vcpu - 1);
	struct urgent_stats *stats = vcpu ? urgent_stats_of(vcpu) : NULL;

	if (stats && urgent_on(pcpu)->since_ns)
		ADD(stats->ran_ns, now - urgent_on(pcpu)->since_ns);
	urgent_on(pcpu)->since_ns = 0;
	urgent_on(pcpu)->borrows = 0;
	urgent_on(pcpu)->vcpu = 0;
}

/* ---- What runs next ---- */

__noinline int record_urgent_turn(u32 slot, const struct urgent_state *state, u64 ran_ns, u32 others_count,
				  u32 decision)
{
	if (!state)
		return 0;
	RECORD_BY(RECORD_URGENT_TURN, slot, {
		record->urgent_turn.config = config.urgent;
		record->urgent_turn.state = *state;
		record->urgent_turn.ran_ns = ran_ns;
		record->urgent_turn.others_count = others_count;
		record->urgent_turn.decision = decision;
	});
	return 0;
}

/*
 * The present vCPU is in its urgent slice: a kick was meant for another one, or its turn would end in it.
 * Once that is over it goes behind the others that are urgent.
 */
static __always_inline bool urgent_slice_goes_on(s32 cpu, struct task_struct *prev, struct pcpu *pcpu)
{
	struct task_ctx *tctx = whose_turn_ends(prev);
	struct vcpu *vcpu = vcpu_of(tctx);
	struct urgent_config limits = config.urgent;
	u64 now = bpf_ktime_get_ns(), ran_ns, left_ns;
	struct urgent_stats *stats;
	struct urgent_state state;
	u32 slot, others_count, decision;

	if (!tctx || !vcpu || !urgent_on(pcpu)->since_ns)
		return false;
	slot = tctx->vcpu - 1;
	stats = urgent_stats_of(vcpu);
	if (!stats)
		return false;
	ran_ns = now - urgent_on(pcpu)->since_ns;
	settle_urgency(slot, now);
	state = urgent_of(vcpu)->state;
	if (!urgent_of(vcpu)->is_urgent) {
		ADD(stats->ran_ns, ran_ns);
		urgent_on(pcpu)->since_ns = 0;
		return false;
	}
	others_count = urgent_line_length(pcpu);
	decision = decide_on_urgent_turn(&limits, &state, ran_ns, others_count);
	if (config.recording)
		record_urgent_turn(slot, &state, ran_ns, others_count, decision);
	if (decision == URGENT_TURN_GOES_ON && ran_ns < limits.slice_ns) {
		left_ns = limits.slice_ns - ran_ns;
		task_set_slice(prev, left_ns < tctx->limit.allowed_ns ? left_ns : tctx->limit.allowed_ns);
		return true;
	}
	/* Alone in the queue it may go on, too: but only if its clock lets it. */
	ADD(stats->ran_ns, ran_ns);
	COUNT(stats->requeued);
	urgent_on(pcpu)->since_ns = 0;
	if (claim_for_line(vcpu) && !enter_line(slot, cpu))
		COUNT(stats->turned_away);
	return false;
}

/* The vCPU that would run otherwise is the first in line: look_at_line(). */
static __always_inline bool may_borrow(const struct vcpu *vcpu, u32 slot, u64 vtime_ns,
				       const struct pcpu *pcpu)
{
	struct urgent_observation seen = {.state = urgent_of(vcpu)->state,
					  .vtime_ns = vtime_ns,
					  .current_vtime_ns = pcpu->line.vtime_ns,
					  .current_exists = pcpu->line.dsq != 0};

	return decide_and_count(vcpu, slot, &seen) == URGENT_PREEMPTS;
}

/* It was first in the urgent queue, and waits: it runs here next, if it may. */
__noinline int pull_urgent(u32 slot, s32 cpu)
{
	struct vcpu *vcpu = vcpu_at(slot);
	struct pcpu *pcpu = pcpu_of(cpu);
	struct task_struct *p;
	struct task_ctx *tctx;
	bool moved = false;

	if (!vcpu || !pcpu || vcpu->state != VCPU_RUNNABLE || vcpu->rests || !urgent_of(vcpu)->is_urgent)
		return false;
	p = bpf_task_from_pid(vcpu->pid);
	if (!p)
		return false;
	tctx = task_ctx_of(p);
	if (tctx && may_borrow(vcpu, slot, tctx->vtime_ns, pcpu)) {
		urgent_of(vcpu)->pulled = cpu + 1;
		moved = pull(p, tctx, cpu, config.urgent.slice_ns);
		if (moved)
			vcpu->goes_first = 1;
		else
			urgent_of(vcpu)->pulled = 0;
	}
	bpf_task_release(p);
	return moved;
}

/* The present vCPU is the first of the urgent queue, and may go on. */
static __always_inline bool goes_on_urgently(s32 cpu, struct task_struct *prev, struct task_ctx *tctx,
					     struct vcpu *vcpu, struct pcpu *pcpu)
{
	charge_until_now(prev, tctx, vcpu, pcpu);
	if (!may_borrow(vcpu, tctx->vcpu - 1, tctx->vtime_ns, pcpu) || rests_until(prev, tctx, vcpu))
		return false;
	start_another_turn(prev, tctx, vcpu, pcpu);
	if (config.urgent.slice_ns < pcpu->turn_ns)
		task_set_slice(prev, config.urgent.slice_ns);
	pcpu->occupant = OCCUPANT_URGENT;
	urgent_on(pcpu)->borrows = 1;
	begin_urgent_slice(cpu, pcpu, vcpu, bpf_ktime_get_ns());
	return true;
}

/* The first of the urgent queue that may run here. True if it comes, or is the present one. */
static __noinline int serve_urgent(s32 cpu, struct pcpu *pcpu, struct task_struct *prev)
{
	struct task_ctx *tctx;
	struct vcpu *ran;
	u32 step;

	if (!pcpu || !urgent_line_length(pcpu))
		return false;
	tctx = whose_turn_ends(prev);
	ran = vcpu_of(tctx);
	look_at_line(cpu, 0);
	bpf_for (step, 0, URGENT_TAKE_MAX) {
		u32 entry = take_from_line(cpu, pcpu);

		if (!entry)
			break;
		if (tctx && ran && entry == tctx->vcpu) {
			if (urgent_of(ran)->is_urgent && goes_on_urgently(cpu, prev, tctx, ran, pcpu))
				return true;
		} else if (pull_urgent(entry - 1, cpu)) {
			return true;
		}
	}
	return false;
}

/*
 * An urgent vCPU that lined up while ops.dispatch chose: its kick ended the slice of the vCPU before, not of
 * the present one. Each look takes some out of the queue, so there is an end to such kicks.
 */
static __always_inline void kick_for_late_urgent(s32 cpu, const struct pcpu *pcpu)
{
	if (!urgent_line_length(pcpu) ||
	    (pcpu->occupant != OCCUPANT_VCPU && pcpu->occupant != OCCUPANT_BOOSTED_VCPU))
		return;
	COUNT(host_stats.late_requests);
	scx_bpf_kick_cpu(cpu, KICK_PREEMPT);
}

#endif
