/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Next turn: who runs next on a normal pCPU (ops.dispatch).
 *
 * Problem.   The one that is furthest behind isn't always the best one: a turn may end at a bad moment, a spinner knows whom
 *            it waits for, and caches are warm for those who ran here last.
 * Mechanism. In this order: a turn that ends at a bad moment goes on for a micro slice; who asks for a micro slice at home;
 *            host tasks; to whom a spinner yields; the boosted; whose turn such a micro slice interrupted; whoever ran until now, if it is still the furthest behind; who ran here last, if the policy lets it
 *            overtake; the first of the queue; whoever ran until now, if nobody else waits.
 * Formula.   Whoever waited for STARVING_AFTER_NS all the same (the lightest beside the heaviest) goes to the boosted ones:
 *            weights may not bring sched_ext's watchdog, which ends the scheduler for everybody.
 * Limits.    Of each queue the first OWN_LOOK_MAX are looked at for one that ran here last.
 */
#ifndef BPF_NEXT_TURN_H
#define BPF_NEXT_TURN_H

#include "bpf/core/normal_pool.bpf.h"

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

	charge_limits_of(prev, ran_ns);
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

	if (tctx->allowed_ns < slice_ns)
		slice_ns = tctx->allowed_ns;
	task_set_slice(prev, slice_ns);
	pcpu->turn_ns = slice_ns;
	if (!vcpu)
		return;
	pcpu->occupant = OCCUPANT_VCPU;
	lending_on(pcpu)->to_boosted = 0;
	grace_of(vcpu)->count = 0;
	grace_of(vcpu)->turn_over = 0;
	vcpu->yielded = 0;
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

/* The first of the vCPUs' queue, whom a micro slice would be taken from (is_over_its_share()). */
static __always_inline void note_first_in_line(struct task_struct *first)
{
	struct vcpu *vcpu = vcpu_of(task_ctx_of(first));

	first_in_line_vm = vcpu && !vcpu->narrow ? vcpu->vm + 1 : 0;
}

/* After a look through the vCPUs' queue, which may have been empty. */
static __always_inline void note_nobody_in_line(const struct pcpu *pcpu)
{
	if (!pcpu->look_count)
		first_in_line_vm = 0;
}

/*
 * sched_ext asks for the next task before it queues the one whose slice is over, so the queue alone would always let
 * another go first: a heavier vCPU would get less than its share. If that one is still the furthest behind, it goes on.
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
		micro_slice_on(pcpu)->deadline_ns = 0;
		return true;
	}
	note_nobody_in_line(pcpu);
	return false;
}

/*
 * Nobody else wants this pCPU: whoever ran goes on. Were it queued here again instead, by ops.enqueue or by sched_ext
 * itself, this pCPU would go idle first, and nothing but an interrupt would make it look into its queue.
 */
static __always_inline void stay_alone(struct task_struct *prev, struct pcpu *pcpu)
{
	struct task_ctx *tctx = task_ctx_of(prev);
	struct vcpu *vcpu = vcpu_of(tctx);

	/* One whose micro slice began before this pCPU left the pool is accounted for first, by ops.stopping. */
	if (!tctx || (vcpu && vcpu->state != VCPU_RUNNING))
		return;
	charge_until_now(prev, tctx, vcpu, pcpu);
	if (rests_until(prev, tctx, vcpu))
		return; /* ops.enqueue sees to it */
	settle_clock(tctx, vcpu);
	if (vcpu)
		advance_clocks(tctx, vcpu, pcpu);
	start_another_turn(prev, tctx, vcpu, pcpu);
}

/* A turn that ends at a bad moment is made longer by a micro slice, before anybody else, host tasks too, gets the pCPU. */
static __always_inline bool finishes_first(s32 cpu, struct task_struct *prev, struct pcpu *pcpu)
{
	struct task_ctx *tctx = micro_pcpu_count ? whose_turn_ends(prev) : NULL;
	struct vcpu *vcpu = vcpu_of(tctx);
	struct vm_stats *stats;
	u32 slot, class;

	if (!tctx || !vcpu)
		return false;
	slot = tctx->vcpu - 1;
	class = classify_rip(slot, vcpu->vm, read_guest_rip(vcpu->kvm_vcpu));
	if (!gets_grace(slot, class)) {
		grace_of(vcpu)->turn_over = 1;
		return false;
	}
	stats = vm_stats_at(vcpu->vm);
	if (stats)
		COUNT(stats->graces[0]);
	task_set_slice(prev, config.micro_slice_ns);
	arm_micro_slice(cpu, pcpu, bpf_ktime_get_ns());
	return true;
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
		if (tctx && now - tctx->queued_at_ns > STARVING_AFTER_NS && dsq_move(&it, p, DSQ_BOOSTED)) {
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
}

static __always_inline bool ran_here_last(struct task_struct *p, s32 cpu)
{
	s32 last = scx_bpf_task_cpu(p);
	struct vcpu *vcpu;

	if (last != cpu && !pcpu_is_micro(last))
		return false;
	vcpu = vcpu_of(task_ctx_of(p));
	if (vcpu)
		return vcpu->normal_pcpu == cpu;
	/* Only vCPUs may borrow a micro pCPU. */
	return last == cpu && !pcpu_is_micro(cpu);
}

static __always_inline void count_overtake(const struct vcpu *vcpu, enum overtake reason)
{
	struct vm_stats *stats = vm_stats_at(vcpu->vm);

	if (stats)
		COUNT(stats->overtakes[reason]);
}

/*
 * One whose caches are warm here goes before the first of the queue, if the policy lets it. The others that ran here last
 * are further ahead than the first of them. Count and clock are in the map: see visit_sibling().
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

/* The first vCPU of the queue that may run here. */
__noinline int take_first_vcpu(u64 dsq, s32 cpu)
{
	struct pcpu *pcpu = pcpu_of(cpu);
	struct task_struct *p;

	if (!pcpu)
		return false;
	pcpu->look_count = 0;
	for_each_queued(p, dsq)
	{
		if (++pcpu->look_count > OWN_LOOK_MAX)
			break;
		if (vcpu_of(task_ctx_of(p)) && may_run_on(p, cpu) && dsq_move(&it, p, SCX_DSQ_LOCAL))
			return true;
	}
	return false;
}

static __always_inline bool move_here(u64 dsq, struct task_struct *p, s32 cpu)
{
	struct bpf_iter_scx_dsq it;
	bool moved = false;

	/* Asked after the iterator has begun: who is queued anew meanwhile, with another affinity, isn't moved by it. */
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
 * KVM found whom a spinning vCPU may wait for, and that one waits for a pCPU: it gets this one. Given to whoever is next
 * instead, it would mostly go to another VM, and the spinner would come back to the same wait a turn later.
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

/* A vCPU of the normal pool that has run on a micro pCPU, and could go on. */
static __always_inline bool is_borrower(struct task_struct *prev)
{
	struct vcpu *vcpu = config.lend && is_runnable(prev) ? vcpu_of(task_ctx_of(prev)) : NULL;

	return vcpu && vcpu->state == VCPU_RUNNING && !is_confined(prev);
}

/*
 * Nobody asks for this micro pCPU: vCPUs of the normal pool run here. Host tasks don't: what they do in the kernel, nobody
 * may be able to interrupt. True if whoever ran until now goes on.
 */
static __always_inline bool dispatch_lent(s32 cpu, struct pcpu *pcpu, struct task_struct *prev)
{
	if (finishes_first(cpu, prev, pcpu))
		return true;
	if (take_heir(cpu, prev) || take_own(DSQ_BOOSTED, cpu) || take_first_vcpu(DSQ_BOOSTED, cpu))
		return false;
	if (goes_on(cpu, prev, pcpu))
		return true;
	if (take_own(DSQ_VCPUS, cpu) || take_first_vcpu(DSQ_VCPUS, cpu) || !is_borrower(prev))
		return false;
	micro_slice_on(pcpu)->deadline_ns = 0;
	stay_alone(prev, pcpu);
	return true;
}

/* No grace for it: whom it waits for may be the one that comes. But if it was woken for this pCPU it goes first elsewhere. */
static __always_inline void call_back_from(struct vcpu *borrower, const struct pcpu *pcpu)
{
	struct vm_stats *stats = vm_stats_at(borrower->vm);

	grace_of(borrower)->turn_over = 1;
	lending_of(borrower)->called_back = lending_on(pcpu)->to_boosted && !borrower->yielded;
	if (stats)
		COUNT(stats->called_back);
}

static __always_inline void dispatch_micro_pool(s32 cpu, struct pcpu *pcpu, struct task_struct *prev)
{
	bool served;

	/* Whoever asks from now on is served below, or found by lend_to(): no kick that would reach who comes next. */
	if (pcpu->occupant == OCCUPANT_LENT_VCPU)
		pcpu->occupant = OCCUPANT_NONE;
	served = dispatch_micro(cpu, pcpu);
	ask_again(pcpu);
	if (served || dispatch_micro_idle(cpu, pcpu)) {
		struct vcpu *borrower = is_borrower(prev) ? vcpu_of(task_ctx_of(prev)) : NULL;

		if (borrower)
			call_back_from(borrower, pcpu);
	} else if (stays_on_micro(prev)) {
		stay_alone(prev, pcpu);
	} else if (config.lend && dispatch_lent(cpu, pcpu, prev)) {
		lend_to(cpu, pcpu);
	}
}

/* ---- Micro slices at home ---- */

/* A kick that was meant for whoever ran here before doesn't cut a micro slice short: its timer ends it. */
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

/* What is left of the turn of the vCPU that ran here, if a micro slice ends it now. */
static __always_inline u64 left_of_turn(const struct task_ctx *tctx, const struct pcpu *pcpu)
{
	u64 ran_ns = bpf_ktime_get_ns() - tctx->running_since_ns;

	return ran_ns < pcpu->turn_ns ? pcpu->turn_ns - ran_ns : 0;
}

/* Whom it was preempted for can't be had any more: it goes on, unless somebody waits who would have preempted it anyway. */
static __always_inline bool was_preempted_in_vain(struct task_struct *prev, struct task_ctx *tctx,
						  struct pcpu *pcpu, u64 left_ns)
{
	struct vcpu *vcpu = vcpu_of(tctx);

	if (!vcpu || !left_ns || scx_bpf_dsq_nr_queued(DSQ_OTHERS) > 0 ||
	    scx_bpf_dsq_nr_queued(DSQ_BOOSTED) > 0)
		return false;
	grace_of(vcpu)->turn_over = 0;
	/* A grace that was running doesn't end what is left of the turn. */
	micro_slice_on(pcpu)->deadline_ns = 0;
	task_set_slice(prev, left_ns);
	return true;
}

/*
 * Who asked for a micro slice here goes before host tasks, too: it is shorter than they could notice, and every other turn at most.
 * True if it comes, or if whoever ran until now goes on.
 */
static __noinline int serve_at_home(s32 cpu, struct pcpu *pcpu, struct task_struct *prev)
{
	struct task_ctx *tctx;
	u64 left_ns;
	u32 was;

	if (!pcpu || !micro_slice_on(pcpu)->request)
		return false;
	was = pcpu->occupant;
	tctx = was == OCCUPANT_VCPU || was == OCCUPANT_BOOSTED_VCPU ? whose_turn_ends(prev) : NULL;
	left_ns = tctx ? left_of_turn(tctx, pcpu) : 0;
	/* No kick that would reach who comes next. */
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

/* The micro slice is over: who gave way to it, and waits still, has what is left of its turn. */
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
	moved = pull_from(DSQ_VCPUS, p, cpu, home_slices_on(pcpu)->left_ns);
	tctx = moved ? task_ctx_of(p) : NULL;
	if (tctx)
		tctx->out_of_order = 1;
	bpf_task_release(p);
	return moved;
}

static __always_inline void dispatch_normal(s32 cpu, struct pcpu *pcpu, struct task_struct *prev)
{
	bool vcpus_first = pcpu->others_ran_ns >= config.fair_share.slice_ns;
	u32 interrupted;

	sweep_queues(cpu, pcpu);
	if (micro_slice_goes_on(prev, pcpu) || finishes_first(cpu, prev, pcpu))
		return;
	/* One micro slice behind the other leaves whom the first one has interrupted for the end of the second. */
	if (serve_at_home(cpu, pcpu, prev))
		return;
	interrupted = home_slices_on(pcpu)->interrupted;
	home_slices_on(pcpu)->interrupted = 0;
	/* What is left from when this pCPU was micro-sliced. */
	if (dsq_move_to_local(DSQ_CONFINED + cpu))
		return;
	if (!vcpus_first && dsq_move_to_local(DSQ_OTHERS))
		return;
	/* Who yields a micro slice gives nobody the turn that was interrupted for it. */
	if ((!interrupted && take_heir(cpu, prev)) || take_own(DSQ_BOOSTED, cpu) ||
	    dsq_move_to_local(DSQ_BOOSTED))
		return;
	if (interrupted && take_interrupted(interrupted - 1, cpu))
		return;
	if (goes_on(cpu, prev, pcpu) || take_own(DSQ_VCPUS, cpu) || dsq_move_to_local(DSQ_VCPUS))
		return;
	if (vcpus_first && dsq_move_to_local(DSQ_OTHERS))
		return;
	if (is_runnable(prev)) {
		micro_slice_on(pcpu)->deadline_ns = 0;
		stay_alone(prev, pcpu);
	}
}

#endif
