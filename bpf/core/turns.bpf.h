/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Turns: who runs next on a pCPU of the normal pool (ops.dispatch).
 *
 * Problem.   The one that is furthest behind isn't always the best one: somebody may be waited for, and
 *            caches are warm for those who ran here last.
 * Mechanism. In this order: whom a mechanism lets go first; host tasks; whom a mechanism prefers; the
 *            boosted; to whom a mechanism owes a turn; whoever ran until now, if it is still the furthest
 *            behind; who ran here last, if the policy lets it overtake; the first of the queue; whoever ran
 *            until now, if nobody else waits.
 * Formula.   Whoever waited for STARVING_AFTER_NS all the same (the lightest beside the heaviest) goes to the
 *            boosted ones: weights may not bring sched_ext's watchdog, which ends the scheduler for
 *            everybody.
 * Limits.    Of each queue the first OWN_LOOK_MAX are looked at for one that ran here last.
 */
#ifndef BPF_TURNS_H
#define BPF_TURNS_H

#include "bpf/core/queues.bpf.h"

/* How many of those that wait are looked at for one that ran here last. */
#define OWN_LOOK_MAX 32u
#define STARVING_AFTER_NS 2000000000ull
#define SWEEP_INTERVAL_NS 250000000ull
#define SWEEP_MAX 64u

/* What it ran for, though it doesn't stop. */
static __always_inline void charge_until_now(struct task_struct *prev, struct task_ctx *tctx,
					     struct vcpu *vcpu, struct pcpu *pcpu)
{
	u64 now = bpf_ktime_get_ns(), ran_ns = now - tctx->running_since_ns;

	charge_limits_of(prev, tctx);
	if (vcpu)
		charge_vcpu(tctx, vcpu, pcpu, ran_ns);
	else
		charge_other(prev, tctx, pcpu, ran_ns);
	tctx->running_since_ns = now;
}

/* sched_ext lets a task whose slice isn't used up go on. */
static __always_inline void start_another_turn(struct task_struct *prev, struct task_ctx *tctx,
					       struct vcpu *vcpu, struct pcpu *pcpu)
{
	u64 slice_ns = vcpu ? config.fair_share.slice_ns : config.others_slice_ns;

	slice_ns = begin_limited_turn(prev, tctx, vcpu, pcpu, slice_ns);
	task_set_slice(prev, slice_ns);
	pcpu->turn_ns = slice_ns;
	if (vcpu) {
		pcpu->occupant = OCCUPANT_VCPU;
		on_another_turn(vcpu, pcpu);
		vcpu->yielded = 0;
	}
	on_new_slice(scx_bpf_task_cpu(prev), pcpu);
}

/* The context of the vCPU whose slice is over, or whom a host task sends away, if it could go on here. */
static __always_inline struct task_ctx *whose_turn_ends(struct task_struct *prev)
{
	struct task_ctx *tctx;
	struct vcpu *vcpu;

	if (!is_runnable(prev))
		return NULL;
	tctx = task_ctx_of(prev);
	vcpu = vcpu_of(tctx);
	if (!vcpu || vcpu->yielded || vcpu->state != VCPU_RUNNING || is_confined(prev))
		return NULL;
	return tctx;
}

/* The first of the vCPUs' queue: whoever goes before the others takes its time. */
static __always_inline void note_first_in_line(struct task_struct *first)
{
	struct task_ctx *tctx = task_ctx_of(first);
	struct vcpu *vcpu = vcpu_of(tctx);

	if (vcpu)
		first_in_line_vm = vcpu->narrow ? 0 : vcpu->vm + 1;
	else
		first_in_line_vm = tctx && tctx->vm ? tctx->vm : FIRST_HAS_NO_VM;
}

/* After a look through the vCPUs' queue, which may have been empty. */
static __always_inline void note_nobody_in_line(const struct pcpu *pcpu)
{
	if (!pcpu->look_count)
		first_in_line_vm = 0;
}

/*
 * sched_ext asks for the next task before it queues the one whose slice is over, so the queue alone would
 * always let another go first: a heavier vCPU would get less than its share. If that one is still the
 * furthest behind, it goes on.
 */
static __always_inline bool goes_on(s32 cpu, struct task_struct *prev, struct pcpu *pcpu)
{
	struct task_ctx *tctx = whose_turn_ends(prev);
	struct vcpu *vcpu = vcpu_of(tctx);
	struct task_struct *first;

	if (!tctx || !vcpu)
		return false;
	charge_until_now(prev, tctx, vcpu, pcpu);
	pcpu->look_count = 0;
	for_each_queued(first, DSQ_VCPUS)
	{
		if (!pcpu->look_count)
			note_first_in_line(first);
		/* Who may not run here is no reason to stop. */
		if (++pcpu->look_count <= OWN_LOOK_MAX && !may_run_on(first, cpu))
			continue;
		if (!vtime_before(tctx->vtime_ns, first->scx.dsq_vtime) || rests_until(prev, tctx, vcpu))
			return false;
		advance_clocks(tctx, vcpu, pcpu);
		start_another_turn(prev, tctx, vcpu, pcpu);
		on_open_turn(pcpu);
		return true;
	}
	note_nobody_in_line(pcpu);
	return false;
}

/*
 * Nobody else wants this pCPU: whoever ran goes on. Were it queued here again instead, by ops.enqueue or by
 * sched_ext itself, this pCPU would go idle first, and nothing but an interrupt would make it look into its
 * queue.
 */
static __always_inline void stay_alone(struct task_struct *prev, struct pcpu *pcpu)
{
	struct task_ctx *tctx = task_ctx_of(prev);
	struct vcpu *vcpu = vcpu_of(tctx);

	/* One that a mechanism let run here is accounted for first, by ops.stopping. */
	if (!tctx || (vcpu && vcpu->state != VCPU_RUNNING))
		return;
	charge_until_now(prev, tctx, vcpu, pcpu);
	if (rests_until(prev, tctx, vcpu))
		return; /* ops.enqueue sees to it */
	settle_clock(tctx, vcpu);
	if (vcpu)
		advance_clocks(tctx, vcpu, pcpu);
	else
		settle_shared_clocks(tctx);
	start_another_turn(prev, tctx, vcpu, pcpu);
}

/* Those that starve are the furthest ahead, so they are last. The count is in the map: see visit_sibling(). */
__noinline int boost_starving(u64 dsq, s32 cpu, u64 now)
{
	struct pcpu *pcpu = pcpu_of(cpu);
	struct task_struct *p;

	if (!pcpu)
		return 0;
	for_each_queued_last_first(p, dsq)
	{
		struct task_ctx *tctx;

		if (!pcpu->sweep_count)
			break;
		pcpu->sweep_count--;
		tctx = task_ctx_of(p);
		if (!tctx || now - tctx->queued_at_ns <= STARVING_AFTER_NS)
			continue;
		/* Many threads of one VMM or owner: what each has for having waited isn't to add up to more than their share. */
		if (tctx->vm || tctx->owner)
			dsq_move_set_slice(&it, config.micro_slice_ns);
		if (dsq_move(&it, p, DSQ_BOOSTED)) {
			tctx->out_of_order = 1;
			COUNT(host_stats.starving_served);
		}
	}
	return 0;
}

/* One pCPU does it for all, now and then. */
static __always_inline void sweep_queues(s32 cpu, struct pcpu *pcpu)
{
	u64 now = bpf_ktime_get_ns(), last = swept_at_ns;

	if (now - last < SWEEP_INTERVAL_NS || __sync_val_compare_and_swap(&swept_at_ns, last, now) != last)
		return;
	pcpu->sweep_count = SWEEP_MAX;
	boost_starving(DSQ_VCPUS, cpu, now);
	pcpu->sweep_count = SWEEP_MAX;
	boost_starving(DSQ_OTHERS, cpu, now);
	mend_rest_timer();
}

static __always_inline bool ran_here_last(struct task_struct *p, s32 cpu)
{
	s32 last = scx_bpf_task_cpu(p);
	struct vcpu *vcpu;

	if (last != cpu && !is_reserved(last))
		return false;
	vcpu = vcpu_of(task_ctx_of(p));
	if (vcpu)
		return vcpu->normal_pcpu == cpu;
	/* Only vCPUs may borrow a reserved pCPU. */
	return last == cpu && !is_reserved(cpu);
}

static __always_inline void count_overtake(const struct vcpu *vcpu, enum overtake reason)
{
	struct vm_stats *stats = vm_stats_at(vcpu->vm);

	if (stats)
		COUNT(stats->overtakes[reason]);
}

/*
 * One whose caches are warm here goes before the first of the queue, if the policy lets it. The others that
 * ran here last are further ahead than the first of them. Count and clock are in the map: see
 * visit_sibling().
 */
__noinline int take_own(u64 dsq, s32 cpu)
{
	struct pcpu *pcpu = pcpu_of(cpu);
	struct fair_share_config share = config.fair_share;
	u64 now = bpf_ktime_get_ns();
	struct task_struct *p;

	if (!pcpu)
		return false;
	pcpu->look_count = 0;
	pcpu->first_vtime_ns = 0;
	for_each_queued(p, dsq)
	{
		struct task_ctx *tctx;
		struct vcpu *vcpu;
		u64 weight;

		if (!pcpu->look_count && dsq == DSQ_VCPUS)
			note_first_in_line(p);
		if (++pcpu->look_count > OWN_LOOK_MAX)
			break;
		if (!may_run_on(p, cpu))
			continue;
		/* The first one that may run here: it would be next. */
		if (!pcpu->first_vtime_ns && dsq == DSQ_VCPUS) {
			tctx = task_ctx_of(p);
			if (!tctx || !is_worth_warm_caches(&share, now - tctx->queued_at_ns))
				break;
			pcpu->first_vtime_ns = p->scx.dsq_vtime;
		}
		if (!ran_here_last(p, cpu))
			continue;
		vcpu = vcpu_of(task_ctx_of(p));
		weight = vcpu ? weight_of(vcpu) : vcpu_weight(p->scx.weight, 1);
		if (dsq == DSQ_VCPUS && !may_go_first(&share, pcpu->first_vtime_ns, p->scx.dsq_vtime, weight))
			break;
		if (!dsq_move(&it, p, SCX_DSQ_LOCAL))
			return false;
		if (vcpu && pcpu->look_count > 1)
			count_overtake(vcpu, OVERTAKE_WARM_CACHES);
		return true;
	}
	if (dsq == DSQ_VCPUS)
		note_nobody_in_line(pcpu);
	return false;
}

/* Takes a vCPU out of whichever normal queue it waits in. */
static __always_inline bool pull_from(u64 dsq, struct task_struct *p, s32 cpu, u64 slice_ns)
{
	struct bpf_iter_scx_dsq it;
	bool moved = false;

	/*
	 * Asked after the iterator has begun: who is queued anew meanwhile, with another affinity, isn't
	 * moved by it.
	 */
	if (!bpf_iter_scx_dsq_new(&it, dsq, 0) && may_run_on(p, cpu)) {
		dsq_move_set_slice(&it, slice_ns);
		moved = dsq_move(&it, p, SCX_DSQ_LOCAL);
	}
	bpf_iter_scx_dsq_destroy(&it);
	return moved;
}

static __always_inline void dispatch_normal(s32 cpu, struct pcpu *pcpu, struct task_struct *prev)
{
	bool vcpus_first = pcpu->others_ran_ns >= config.fair_share.slice_ns;
	u32 owed = 0;

	sweep_queues(cpu, pcpu);
	if (goes_before_all(cpu, pcpu, prev, &owed))
		return;
	if (!vcpus_first && dsq_move_to_local(DSQ_OTHERS))
		return;
	if (goes_before_boosted(cpu, pcpu, prev, owed) || take_own(DSQ_BOOSTED, cpu) ||
	    dsq_move_to_local(DSQ_BOOSTED))
		return;
	if (goes_before_the_line(cpu, pcpu, owed))
		return;
	if (goes_on(cpu, prev, pcpu) || take_own(DSQ_VCPUS, cpu) || dsq_move_to_local(DSQ_VCPUS))
		return;
	if (vcpus_first && dsq_move_to_local(DSQ_OTHERS))
		return;
	if (is_runnable(prev)) {
		on_open_turn(pcpu);
		stay_alone(prev, pcpu);
	}
}

#endif
