/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Turns: which task runs next on a pCPU of the normal pool (ops.dispatch).
 *
 * Problem.   The task furthest behind isn't always the best one: others may wait for another, and caches are
 *            warm for those that ran here last.
 * Mechanism. In this order:
 *            1. a task that a mechanism lets go first;
 *            2. host tasks;
 *            3. a task that a mechanism prefers;
 *            4. the boosted;
 *            5. a vCPU to which a mechanism owes a turn;
 *            6. one that waits in another domain (domains.bpf.h);
 *            7. the present one, if it is still the furthest behind;
 *            8. one that ran here last, if the policy lets it overtake;
 *            9. the first in line;
 *            10. the present one, if no other waits.
 * Formula.   A task that waited for STARVING_AFTER_NS all the same (the lightest beside the heaviest) goes to
 *            the boosted ones. Else weights would bring sched_ext's watchdog, which ends the scheduler for
 *            all.
 *            Boosted ones go by age once the first has waited for a turn (fair_share.h,
 *            first_boosted_is_due).
 * Limits.    Of each queue the first LINE_LOOK_MAX are looked at for one that ran here last.
 */
#ifndef BPF_TURNS_H
#define BPF_TURNS_H

#include "bpf/core/queues.bpf.h"

#define STARVING_AFTER_NS 2000000000ull
#define SWEEP_INTERVAL_NS 250000000ull
#define SWEEP_MAX 64u
#define SWEPT_AT_ONCE 64u /* queues */

/* What is left of the turn of the vCPU that runs here, if it ends now. */
static __always_inline u64 left_of_turn(const struct task_ctx *tctx, const struct pcpu *pcpu)
{
	u64 ran_ns = bpf_ktime_get_ns() - tctx->running_since_ns;

	return ran_ns < pcpu->turn_ns ? pcpu->turn_ns - ran_ns : 0;
}

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

/* The context of the vCPU whose slice is over, or that a host task sends away, if it could go on here. */
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

/*
 * Looks at the first in line here, before one of that line runs. Returns the context of the vCPU whose turn
 * ends and that could go on: it is charged up to now.
 */
static __always_inline struct task_ctx *compare_with_line(s32 cpu, struct task_struct *prev,
							  struct pcpu *pcpu, u32 look)
{
	struct task_ctx *tctx = whose_turn_ends(prev);
	struct vcpu *vcpu = vcpu_of(tctx);

	if (tctx && vcpu)
		charge_until_now(prev, tctx, vcpu, pcpu);
	look_at_line(cpu, look);
	return tctx;
}

/*
 * sched_ext asks for the next task before it queues the one whose slice is over, so the queue alone would
 * always let another go first: a heavier vCPU would get less than its share. If that one is still the
 * furthest behind, it goes on.
 */
static __always_inline bool goes_on(struct task_struct *prev, struct task_ctx *tctx, struct pcpu *pcpu)
{
	struct vcpu *vcpu = vcpu_of(tctx);

	if (!tctx || !vcpu || !pcpu->line.dsq || !vtime_before(tctx->vtime_ns, pcpu->line.vtime_ns) ||
	    rests_until(prev, tctx, vcpu))
		return false;
	advance_clocks(tctx, vcpu, pcpu);
	start_another_turn(prev, tctx, vcpu, pcpu);
	on_open_turn(pcpu);
	return true;
}

/*
 * No other task wants this pCPU now: the present one goes on. If no task waits for any other pCPU either
 * (`is_alone`), it owes nothing for that. Were ops.enqueue or sched_ext itself to queue it here again, this
 * pCPU would go idle first. Then nothing but an interrupt would make it look into its queue.
 */
static __always_inline void stay_alone(struct task_struct *prev, struct pcpu *pcpu, bool is_alone)
{
	struct task_ctx *tctx = task_ctx_of(prev);
	struct vcpu *vcpu = vcpu_of(tctx);

	/* One that a mechanism let run here is accounted for first, by ops.stopping. */
	if (!tctx || (vcpu && vcpu->state != VCPU_RUNNING))
		return;
	charge_until_now(prev, tctx, vcpu, pcpu);
	if (rests_until(prev, tctx, vcpu))
		return; /* ops.enqueue sees to it */
	if (is_alone)
		settle_clock(tctx, vcpu);
	if (vcpu)
		advance_clocks(tctx, vcpu, pcpu);
	else if (is_alone)
		settle_shared_clocks(tctx);
	start_another_turn(prev, tctx, vcpu, pcpu);
}

/*
 * Those that starve are the furthest ahead, so they are last. The count is in the map: see visit_sibling().
 */
__noinline int boost_starving(u64 dsq, s32 cpu, u64 now)
{
	struct pcpu *pcpu = pcpu_of(cpu);
	struct task_struct *p;

	if (!pcpu || scx_bpf_dsq_nr_queued(dsq) <= 0)
		return 0;
	pcpu->sweep_count = SWEEP_MAX;
	for_each_queued_last_first(p, dsq)
	{
		struct task_ctx *tctx;
		u32 queue;

		if (!pcpu->sweep_count)
			break;
		pcpu->sweep_count--;
		tctx = task_ctx_of(p);
		if (!tctx || elapsed_ns(tctx->queued_at_ns, now) <= STARVING_AFTER_NS)
			continue;
		/* Reserved ones alone: nobody serves it where it waits. */
		if (is_confined(p)) {
			release_confined(&it, p);
			continue;
		}
		/*
		 * This pCPU serves it, or another one that can: those of its domain may all be reserved by
		 * now.
		 */
		pcpu->swept_to = may_run_on(p, cpu) ? cpu : some_normal_pcpu(p, cpu);
		barrier();
		queue = queue_at(p, pcpu->swept_to);
		if (DSQ_BOOSTED + queue == dsq)
			continue;
		/*
		 * Many threads of one VMM or owner: what each has for having waited isn't to add up to more
		 * than their share.
		 */
		if (tctx->vm || tctx->host.owner || tctx->host.service)
			dsq_move_set_slice(&it, config.micro_slice_ns);
		if (dsq_move(&it, p, DSQ_BOOSTED + queue)) {
			tctx->queue = queue;
			tctx->out_of_order = 1;
			COUNT(host_stats.starving_served);
		}
	}
	return 0;
}

/* Some of the queues. */
__noinline int sweep_some(s32 cpu, u64 now)
{
	u32 step, queue = sweep_cursor;

	bpf_for (step, 0, SWEPT_AT_ONCE) {
		if (queue + step >= queue_count()) {
			sweep_cursor = 0;
			return 0;
		}
		if (queue + step < config.domain_count)
			boost_starving(DSQ_OTHERS + queue + step, cpu, now);
		boost_starving(DSQ_VCPUS + queue + step, cpu, now);
		/* A domain whose pCPUs are all reserved by now serves nobody. */
		boost_starving(DSQ_BOOSTED + queue + step, cpu, now);
	}
	sweep_cursor = queue + SWEPT_AT_ONCE;
	return 0;
}

/* One pCPU does it for all, now and then: the more queues there are the more often. */
static __always_inline void sweep_queues(s32 cpu)
{
	u64 now = bpf_ktime_get_ns(), last = swept_at_ns;

	if (now - last < SWEEP_INTERVAL_NS / (queue_count() / SWEPT_AT_ONCE + 1) ||
	    __sync_val_compare_and_swap(&swept_at_ns, last, now) != last)
		return;
	sweep_some(cpu, now);
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
 * One whose caches are warm here goes before the first of the queue, of the boosted or (`by_clock`) in line,
 * if the policy lets it. The others that ran here last are further ahead than the first of them. Count and
 * clock are in the map: see visit_sibling().
 */
__noinline int take_own(u64 dsq, s32 cpu, u32 by_clock)
{
	struct pcpu *pcpu = pcpu_of(cpu);
	struct fair_share_config share = config.fair_share;
	struct task_struct *p;

	if (!pcpu || scx_bpf_dsq_nr_queued(dsq) <= 0)
		return false;
	if (by_clock &&
	    (!pcpu->line.dsq || !is_worth_warm_caches(&share, bpf_ktime_get_ns() - pcpu->line.queued_at_ns)))
		return false;
	pcpu->look_count = 0;
	for_each_queued(p, dsq)
	{
		struct vcpu *vcpu;
		u64 weight;

		if (++pcpu->look_count > LINE_LOOK_MAX)
			break;
		if (!may_run_on(p, cpu) || !ran_here_last(p, cpu))
			continue;
		vcpu = vcpu_of(task_ctx_of(p));
		weight = vcpu ? weight_of(vcpu) : vcpu_weight(p->scx.weight, 1);
		if (by_clock && !may_go_first(&share, pcpu->line.vtime_ns, p->scx.dsq_vtime, weight))
			break;
		if (!dsq_move(&it, p, SCX_DSQ_LOCAL))
			return false;
		if (vcpu && pcpu->look_count > 1)
			count_overtake(vcpu, OVERTAKE_WARM_CACHES);
		return true;
	}
	return false;
}

/* Since when the first of a queue waits that may run here; 0: none does. */
__noinline u64 first_waits_since(u64 dsq, s32 cpu)
{
	struct pcpu *pcpu = pcpu_of(cpu);
	struct task_ctx *tctx;
	struct task_struct *p;

	if (!pcpu || scx_bpf_dsq_nr_queued(dsq) <= 0)
		return 0;
	p = dsq_peek(dsq);
	tctx = p && may_run_on(p, cpu) ? task_ctx_of(p) : NULL;
	if (tctx)
		return tctx->queued_at_ns;
	pcpu->look_count = 0;
	for_each_queued(p, dsq)
	{
		if (++pcpu->look_count > LINE_LOOK_MAX)
			break;
		tctx = may_run_on(p, cpu) ? task_ctx_of(p) : NULL;
		if (tctx)
			return tctx->queued_at_ns;
	}
	return 0;
}

/*
 * Those that may run here only come first, and then those whose caches are warm: the others may go elsewhere.
 * But the first of the domain that has waited for long, and for longer than those, goes before both. On each
 * pCPU some of its own may come all the time.
 */
static __always_inline bool take_boosted(s32 cpu, u32 look)
{
	u64 of_domain = DSQ_BOOSTED + queue_of_pcpu(cpu, false);
	u64 bound = DSQ_BOOSTED + queue_of_pcpu(cpu, true);
	struct fair_share_config share = config.fair_share;
	struct boosted_observation seen = {.first_since_ns = first_waits_since(of_domain, cpu)};

	if (seen.first_since_ns) {
		seen.now_ns = bpf_ktime_get_ns();
		seen.bound_since_ns = first_waits_since(bound, cpu);
		if (first_boosted_is_due(&share, &seen) && take_first_of(of_domain, cpu, look))
			return true;
	}
	return take_first_of(bound, cpu, look) || take_own(of_domain, cpu, false) ||
	       take_first_of(of_domain, cpu, look);
}

/* After compare_with_line(). */
static __always_inline bool take_first_in_line(s32 cpu, const struct pcpu *pcpu, u32 look)
{
	u64 of_domain = DSQ_VCPUS + queue_of_pcpu(cpu, false);

	if (take_own(of_domain, cpu, true) || (pcpu->line.dsq && take_first_of(pcpu->line.dsq, cpu, look)))
		return true;
	/* The first one may have gone, or there are many that may not run here. */
	return take_first_of(of_domain, cpu, look) ||
	       take_first_of(DSQ_VCPUS + queue_of_pcpu(cpu, true), cpu, look);
}

static __always_inline void dispatch_normal(s32 cpu, struct pcpu *pcpu, struct task_struct *prev)
{
	/* The sign of how much more than a slice they had: a branch would have all paths verified twice. */
	u32 look = (pcpu->others_ran_ns - config.fair_share.slice_ns) >> 61 & LOOK_AT_OTHERS;
	struct task_ctx *ran;
	u32 owed = 0;

	sweep_queues(cpu);
	if (goes_before_all(cpu, pcpu, prev, &owed))
		return;
	if (look && (take_other_further_behind(cpu) || take_other_of(domain_of(cpu), look)))
		return;
	if (goes_before_boosted(cpu, pcpu, prev, owed) || take_boosted(cpu, 0))
		return;
	if (goes_before_the_line(cpu, pcpu, owed))
		return;
	ran = compare_with_line(cpu, prev, pcpu, 0);
	if (take_from_elsewhere(cpu, pcpu, ran, look))
		return;
	if (goes_on(prev, ran, pcpu) || take_first_in_line(cpu, pcpu, 0))
		return;
	if (!look && (take_other_of(domain_of(cpu), LOOK_FOR_OTHERS) || take_nearest(cpu, LOOK_FOR_OTHERS)))
		return;
	if (is_runnable(prev)) {
		on_open_turn(pcpu);
		stay_alone(prev, pcpu, !ran || !somebody_waits_elsewhere(cpu));
	}
}

#endif
