/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Normal pool: who runs next where nobody is in a hurry.
 *
 * Problem.   A host runs more than vCPUs: QEMU's I/O threads, vhost, kernel threads, people's shells. vCPUs depend on
 *            many of them, so they go first; but a compiler on the host may not stop all guests, nor a nightly backup
 *            take half of the host.
 * Mechanism. Three shared queues, all ordered by the policy (fair_share.h): host tasks, vCPUs that just woke (boosted),
 *            vCPUs. A normal pCPU serves them in that order. Host tasks that took a vCPU's slice more than vCPUs
 *            since on this pCPU let vCPUs go first until these have caught up: under contention each side gets half.
 *            Host tasks of a nice value above 0 wait among the vCPUs, as a VM of their weight would.
 *            A turn that ends in critical code, or before a call was answered, is made longer by a few micro slices.
 * Formula.   host task: vtime += ran * 100 / weight (its nice value); vCPU: see fair_share.h.
 *            Whoever waited for STARVING_AFTER_NS all the same (the lightest beside the heaviest) goes to the boosted ones:
 *            weights may not bring sched_ext's watchdog, which ends the scheduler for everybody.
 * Limits.    One queue of each kind for the whole host: a task prefers the pCPU that it ran on last if that is idle, and
 *            a pCPU prefers those that ran there last, but NUMA nodes are not told apart. vCPUs with narrow affinity are
 *            found by walking the queue.
 */
#ifndef BPF_NORMAL_POOL_H
#define BPF_NORMAL_POOL_H

#include "cpu_limit.bpf.h"

#define STARVING_AFTER_NS 2000000000ull
#define SWEEP_INTERVAL_NS 250000000ull
#define SWEEP_MAX 64u
/* How many of those that wait are looked at for one that ran here last. */
#define OWN_LOOK_MAX 32u

/* ---- Which pCPU ---- */

/* The pCPU that a task in a hurry takes over, if what runs there gives way to it. */
static __always_inline void preempt_for(struct task_struct *p, bool for_vcpu)
{
	s32 cpu = scx_bpf_task_cpu(p);
	struct vcpu *vcpu = for_vcpu ? vcpu_of(task_ctx_of(p)) : NULL;
	struct pcpu *pcpu;

	if (vcpu && pcpu_is_micro(cpu))
		cpu = vcpu->normal_pcpu;
	if (pcpu_is_micro(cpu)) {
		u32 key = 0;
		struct scratch *normal = bpf_map_lookup_elem(&normal_pool, &key);
		struct bpf_cpumask *mask = normal ? normal->mask : NULL;

		if (!mask)
			return;
		cpu = bpf_cpumask_any_distribute((const struct cpumask *)mask);
	}
	pcpu = pcpu_of(cpu);
	if (!pcpu || !bpf_cpumask_test_cpu(cpu, p->cpus_ptr))
		return;
	/* Only vCPUs and those like them give way, and among vCPUs those that weren't boosted themselves. */
	if (pcpu->occupant == OCCUPANT_VCPU || pcpu->occupant == OCCUPANT_BACKGROUND ||
	    (pcpu->occupant == OCCUPANT_BOOSTED_VCPU && !for_vcpu)) {
		if (for_vcpu || pcpu->others_ran_ns < config.fair_share.slice_ns)
			scx_bpf_kick_cpu(cpu, KICK_PREEMPT);
	}
}

/* ---- Queueing ---- */

/* What its clock moves by: see fair_share.h. */
static __always_inline u64 weight_of(const struct vcpu *vcpu)
{
	struct vm *vm = vm_at(vcpu->vm);
	struct vm_feed *feed = vm_feed_at(vcpu->vm);
	s64 active = vm ? vm->active_vcpu_count : 1;
	u32 weight = vm && feed && feed_is_current(feed, vm) ? feed->weight : 0;

	return vcpu_weight(weight, active > 0 ? active : 1);
}

/* The clock of a vCPU that waits from now on. */
static __always_inline struct wakeup_decision queue_clock(struct task_ctx *tctx, struct vcpu *vcpu)
{
	struct fair_share_config share = config.fair_share;
	struct wakeup_observation seen = {.pool_vtime_ns = pool_vtime_ns,
					  .vcpu_vtime_ns = tctx->vtime_ns,
					  .weight = weight_of(vcpu),
					  .was_blocked = vcpu->was_blocked};
	struct wakeup_decision decision = decide_on_wakeup(&share, &seen);

	RECORD(RECORD_WAKEUP, tctx->vcpu - 1, wakeup, {.config = share, .seen = seen, .decision = decision});
	tctx->vtime_ns = decision.vtime_ns;
	vcpu->grace_count = 0;
	return decision;
}

/* What was requested, or should be again, while the vCPU was between two places. */
static __always_inline void resume_request(struct vcpu *vcpu, u32 slot)
{
	if (vcpu->retry) {
		vcpu->retry = 0;
		request_acceleration(slot, vcpu->request_cause, vcpu->request_vector);
	} else if (vcpu->state == VCPU_PENDING) {
		/* The request came between stopping and here; the micro pCPU may have looked too early. */
		scx_bpf_kick_cpu(vcpu->request_pcpu, KICK_IDLE);
	}
}

/* Its turn is over. May it go on for a micro slice, because it was stopped at a bad moment? */
static __always_inline bool gets_grace(struct vcpu *vcpu, u32 slot, u32 class)
{
	struct accelerate_config limits = config.accelerate;
	struct turn_observation seen = {.guest_class = class,
					.yielded = vcpu->yielded,
					.grace_count = vcpu->grace_count,
					.micro_pcpu_count = micro_pcpu_count,
					.answer = guest_answer_to_calls(vcpu->kvm_vcpu)};
	u32 decision = decide_at_turn_end(&limits, &seen);

	RECORD(RECORD_TURN, slot, turn, {.config = limits, .seen = seen, .decision = decision});
	if (decision != TURN_GOES_ON)
		return false;
	vcpu->grace_count++;
	return true;
}

/* A kernel thread, or a task of a higher class, took its pCPU away: does it come back at once, for a micro slice? */
static __always_inline bool comes_back(struct vcpu *vcpu, u32 slot)
{
	bool interrupted = vcpu->interrupted;
	struct vm_stats *stats = vm_stats_at(vcpu->vm);

	vcpu->interrupted = 0;
	if (!interrupted || !micro_pcpu_count || !gets_grace(vcpu, slot, vcpu->guest_class))
		return false;
	if (stats)
		COUNT(stats->graces[1]);
	return true;
}

/*
 * It was blocked, was woken, and has to wait: nobody is idle, and it isn't boosted. May it go to a micro pCPU? One that is
 * boosted goes first anyway, and in a micro slice it would lose that: asked about those too, guests woke their threads less often.
 */
static __always_inline void ask_about_woken(struct task_struct *p, struct vcpu *vcpu, u32 slot)
{
	struct accelerate_config limits = config.accelerate;
	struct woken_observation seen = {.interrupted = vcpu->blocked_interrupt != 0,
					 .kind = interrupt_kind_of(vcpu->blocked_interrupt),
					 .lock_halt = vcpu->lock_halt_rip != 0,
					 .interrupts_enabled = vcpu->lock_halt_interrupts_enabled,
					 .micro_pcpu_count = decided_pcpu_count,
					 .guest_known = guest_is_known(vcpu->vm)};
	struct vm_stats *stats = vm_stats_at(vcpu->vm);
	u32 class = vcpu->guest_class;
	struct woken_decision decision;

	/* QEMU's own doings, mostly: nothing to ask about. */
	if (!stats || !vcpu->was_blocked || (!seen.interrupted && !seen.lock_halt))
		return;
	decision = decide_on_woken(&limits, &seen);
	RECORD(RECORD_WOKEN, slot, woken, {.config = limits, .seen = seen, .decision = decision});
	if (decision.reason < WOKEN_REASON_COUNT)
		COUNT(stats->woken[decision.reason]);
	/* It must wait, as one that was preempted must. */
	if (seen.interrupted && seen.kind == INTERRUPT_VIRQ)
		COUNT(host_stats.urgent_irqs);
	if (decision.cause == CAUSE_NONE || decision.cause >= CAUSE_COUNT)
		return;
	if (config.dry_run) {
		if (class < GUEST_CLASS_COUNT)
			COUNT(stats->would_request[decision.cause][class]);
		return;
	}
	vcpu->woken_vector = decision.cause == CAUSE_LOCK_KICK ? 0 : vcpu->blocked_interrupt;
	vcpu->woken_cause = decision.cause;
	if (!offer_woken(p, slot))
		vcpu->woken_cause = 0;
}

static __always_inline void enqueue_vcpu(struct task_struct *p, struct task_ctx *tctx, struct vcpu *vcpu,
					 u64 enq_flags)
{
	struct wakeup_decision decision;

	/* It left the micro pCPU's queue before it ran. */
	end_acceleration(vcpu, VCPU_RUNNABLE, RETURN_NEVER_RAN);
	if (comes_back(vcpu, tctx->vcpu - 1)) {
		dsq_insert(p, DSQ_BOOSTED, config.micro_slice_ns, enq_flags | ENQ(HEAD));
		kick_idle_normal(p);
		resume_request(vcpu, tctx->vcpu - 1);
		return;
	}
	decision = queue_clock(tctx, vcpu);
	if (decision.boost) {
		dsq_insert(p, DSQ_BOOSTED, decision.slice_ns, enq_flags);
		if (!kick_idle_normal(p))
			preempt_for(p, true);
	} else {
		tctx->queued_at_ns = bpf_ktime_get_ns();
		dsq_insert_vtime(p, DSQ_VCPUS, decision.slice_ns, decision.vtime_ns, enq_flags);
		if (!kick_idle_normal(p))
			ask_about_woken(p, vcpu, tctx->vcpu - 1);
	}
	resume_request(vcpu, tctx->vcpu - 1);
}

/*
 * A host task of a nice value above 0 (a backup, a build) isn't what a guest waits for: it shares with vCPUs, as one VM
 * of its weight would, in place of going first. sched_ext gives tasks of nice 0 the default weight of cgroups.
 */
static __always_inline bool gives_way(struct task_struct *p)
{
	return p->scx.weight < WEIGHT_DEFAULT;
}

/* Its clock is the vCPUs' or the host tasks', by its nice value. Sleeping isn't saving, nor is a change of clocks. */
static __always_inline void set_clock(struct task_struct *p, struct task_ctx *tctx)
{
	bool way = gives_way(p);
	u64 now = way ? pool_vtime_ns : others_vtime_ns;
	u64 lag_max_ns = way ? config.fair_share.lag_max_ns : config.others_slice_ns;
	u64 earliest = now - charge(lag_max_ns, vcpu_weight(p->scx.weight, 1));

	if (tctx->gives_way != way)
		tctx->vtime_ns = now;
	tctx->gives_way = way;
	if (vtime_before(tctx->vtime_ns, earliest))
		tctx->vtime_ns = earliest;
}

static __always_inline void enqueue_other(struct task_struct *p, struct task_ctx *tctx, u64 enq_flags)
{
	set_clock(p, tctx);
	tctx->queued_at_ns = bpf_ktime_get_ns();
	dsq_insert_vtime(p, tctx->gives_way ? DSQ_VCPUS : DSQ_OTHERS, config.others_slice_ns, tctx->vtime_ns,
			 enq_flags);
	if (!kick_idle_normal(p) && !tctx->gives_way)
		preempt_for(p, false);
}

/*
 * Into a queue that this pCPU serves by itself. If it has nothing else to run it is about to go idle, and looks again only
 * because of the kick.
 */
static __always_inline void insert_here(struct task_struct *p, u64 dsq, u64 slice_ns, u64 enq_flags)
{
	dsq_insert(p, dsq, slice_ns, enq_flags);
	if (enq_flags & ENQ(LAST))
		scx_bpf_kick_cpu(scx_bpf_task_cpu(p), KICK_IDLE);
}

static __always_inline void enqueue_confined(struct task_struct *p, struct vcpu *vcpu, u64 enq_flags)
{
	s32 cpu = confined_pcpu(p);

	if (vcpu) {
		end_acceleration(vcpu, VCPU_RUNNABLE, RETURN_NEVER_RAN);
		fail_request(vcpu, VCPU_RUNNABLE, FAILURE_NOT_QUEUED);
	}
	COUNT(host_stats.confined_inserts);
	dsq_insert(p, DSQ_CONFINED + cpu, config.others_slice_ns, enq_flags);
	scx_bpf_kick_cpu(cpu, KICK_IDLE);
}

/* Kernel threads of one pCPU (ksoftirqd, workqueues, migration helpers) are short, and much waits for them. */
static __always_inline void enqueue_pinned_kthread(struct task_struct *p, u64 enq_flags)
{
	/*
	 * An accelerated vCPU isn't preempted (section 5): its slice is shorter than the thread could notice. Nor is anybody
	 * by a thread that ops.cpu_release queues again: the slice that it would use up is that of the task that the higher
	 * class took the pCPU from, which waits in a queue already.
	 */
	bool waits = pcpu_is_micro(scx_bpf_task_cpu(p)) || (enq_flags & ENQ(REENQ));
	u64 preempt = waits ? 0 : ENQ(PREEMPT);

	insert_here(p, SCX_DSQ_LOCAL, config.others_slice_ns, enq_flags | ENQ(HEAD) | preempt);
}

/* ---- Accounting ---- */

static __always_inline void advance_clock(const struct task_ctx *tctx, bool is_vcpu)
{
	u64 *clock_ns = clock_of(tctx, is_vcpu);

	if (vtime_before(*clock_ns, tctx->vtime_ns))
		*clock_ns = tctx->vtime_ns;
}

/*
 * It has a pCPU that nobody else wants: what it ran for isn't owed to those who come later. Else light ones, whose clocks
 * are fast, would push the queue's clock on, and whoever ran beside them would be that far behind: it would go first until
 * it had caught up.
 */
static __always_inline void forgive_debt(struct task_ctx *tctx, bool is_vcpu)
{
	u64 clock_ns = *clock_of(tctx, is_vcpu);

	if (vtime_before(clock_ns, tctx->vtime_ns))
		tctx->vtime_ns = clock_ns;
}

static __always_inline void charge_other(struct task_struct *p, struct task_ctx *tctx, struct pcpu *pcpu,
					 u64 ran_ns)
{
	tctx->vtime_ns += charge(ran_ns, vcpu_weight(p->scx.weight, 1));
	ADD(host_stats.others_ran_ns, ran_ns);
	/* No credit is saved up: a pCPU without vCPUs owes them nothing. */
	if (pcpu && !tctx->gives_way && pcpu->others_ran_ns < config.fair_share.slice_ns)
		pcpu->others_ran_ns += ran_ns;
}

static __always_inline void charge_vcpu(struct task_ctx *tctx, struct vcpu *vcpu, struct pcpu *pcpu,
					u64 ran_ns)
{
	struct vm_stats *stats = vm_stats_at(vcpu->vm);

	tctx->vtime_ns += charge(ran_ns, weight_of(vcpu));
	if (stats)
		ADD(stats->ran_ns, ran_ns);
	if (pcpu)
		pcpu->others_ran_ns = pcpu->others_ran_ns > ran_ns ? pcpu->others_ran_ns - ran_ns : 0;
}

/* ---- Dispatch ---- */

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

	task_set_slice(prev, slice_ns < tctx->allowed_ns ? slice_ns : tctx->allowed_ns);
	if (!vcpu)
		return;
	pcpu->occupant = OCCUPANT_VCPU;
	vcpu->grace_count = 0;
	vcpu->turn_over = 0;
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

/*
 * sched_ext asks for the next task before it queues the one whose slice is over, so the queue alone would always let
 * another go first: a heavier vCPU would get less than its share. If that one is still the furthest behind, it goes on.
 */
static __always_inline bool goes_on(struct task_struct *prev, struct pcpu *pcpu)
{
	struct task_ctx *tctx = whose_turn_ends(prev);
	struct vcpu *vcpu = vcpu_of(tctx);
	struct task_struct *first;

	if (!tctx || !vcpu)
		return false;
	charge_until_now(prev, tctx, vcpu, pcpu);
	for_each_queued(first, DSQ_VCPUS)
	{
		if (!vtime_before(tctx->vtime_ns, first->scx.dsq_vtime) || rests_until(prev, tctx, vcpu))
			return false;
		advance_clock(tctx, true);
		start_another_turn(prev, tctx, vcpu, pcpu);
		pcpu->micro_deadline_ns = 0;
		return true;
	}
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
	/* It owes nothing for that (see forgive_debt()), and is owed nothing. */
	tctx->vtime_ns = *clock_of(tctx, vcpu);
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
	if (!gets_grace(vcpu, slot, class)) {
		vcpu->turn_over = 1;
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
static __noinline int boost_starving(u64 dsq, struct pcpu *pcpu, u64 now)
{
	struct task_struct *p;

	for_each_queued_last_first(p, dsq)
	{
		struct task_ctx *tctx;

		if (!pcpu->sweep_count)
			break;
		pcpu->sweep_count--;
		tctx = task_ctx_of(p);
		if (tctx && now - tctx->queued_at_ns > STARVING_AFTER_NS && dsq_move(&it, p, DSQ_BOOSTED))
			COUNT(host_stats.starving_served);
	}
	return 0;
}

/* One pCPU does it for all, now and then. */
static __always_inline void sweep_queues(struct pcpu *pcpu)
{
	u64 now = bpf_ktime_get_ns(), last = swept_at_ns;

	if (now - last < SWEEP_INTERVAL_NS || __sync_val_compare_and_swap(&swept_at_ns, last, now) != last)
		return;
	pcpu->sweep_count = SWEEP_MAX;
	boost_starving(DSQ_VCPUS, pcpu, now);
	pcpu->sweep_count = SWEEP_MAX;
	boost_starving(DSQ_OTHERS, pcpu, now);
}

static __always_inline bool ran_here_last(struct task_struct *p, s32 cpu)
{
	s32 last = scx_bpf_task_cpu(p);
	struct vcpu *vcpu;

	if (last == cpu)
		return true;
	if (!pcpu_is_micro(last))
		return false;
	vcpu = vcpu_of(task_ctx_of(p));
	return vcpu && vcpu->normal_pcpu == cpu;
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
static __noinline int take_own(u64 dsq, s32 cpu, struct pcpu *pcpu)
{
	struct fair_share_config share = config.fair_share;
	u64 now = bpf_ktime_get_ns();
	struct task_struct *p;

	if (!pcpu)
		return false;
	pcpu->look_count = 0;
	for_each_queued(p, dsq)
	{
		struct task_ctx *tctx;
		struct vcpu *vcpu;
		u64 weight;

		if (!pcpu->look_count && dsq == DSQ_VCPUS) {
			tctx = task_ctx_of(p);
			if (!tctx || !is_worth_warm_caches(&share, now - tctx->queued_at_ns))
				break;
			pcpu->first_vtime_ns = p->scx.dsq_vtime;
		}
		if (++pcpu->look_count > OWN_LOOK_MAX)
			break;
		if (!ran_here_last(p, cpu) || !may_run_on(p, cpu))
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
	return false;
}

static __always_inline bool move_here(u64 dsq, struct task_struct *p)
{
	struct bpf_iter_scx_dsq it;
	bool moved = false;

	if (!bpf_iter_scx_dsq_new(&it, dsq, 0))
		moved = dsq_move(&it, p, SCX_DSQ_LOCAL);
	bpf_iter_scx_dsq_destroy(&it);
	return moved;
}

static __always_inline bool clock_lets_inherit(struct task_struct *p, const struct vcpu *heir)
{
	struct fair_share_config share = config.fair_share;
	struct task_ctx *tctx = task_ctx_of(p);
	struct task_struct *first;

	if (!tctx)
		return false;
	for_each_queued(first, DSQ_VCPUS) return may_go_first(&share, first->scx.dsq_vtime, tctx->vtime_ns,
							      weight_of(heir));
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
	heir = self && self->yielded && self->heir ? vcpu_at(self->heir - 1) : NULL;
	if (!heir || heir->state != VCPU_RUNNABLE)
		return false;
	self->heir = 0;
	p = bpf_task_from_pid(heir->pid);
	if (!p)
		return false;
	if (may_run_on(p, cpu) && clock_lets_inherit(p, heir))
		moved = move_here(DSQ_BOOSTED, p) || move_here(DSQ_VCPUS, p);
	bpf_task_release(p);
	if (moved)
		count_overtake(heir, OVERTAKE_DIRECTED_YIELD);
	return moved;
}

static __always_inline void dispatch_normal(s32 cpu, struct pcpu *pcpu, struct task_struct *prev)
{
	bool vcpus_first = pcpu->others_ran_ns >= config.fair_share.slice_ns;

	sweep_queues(pcpu);
	if (finishes_first(cpu, prev, pcpu))
		return;
	/* What is left from when this pCPU was micro-sliced. */
	if (dsq_move_to_local(DSQ_CONFINED + cpu))
		return;
	if (!vcpus_first && dsq_move_to_local(DSQ_OTHERS))
		return;
	if (take_heir(cpu, prev) || take_own(DSQ_BOOSTED, cpu, pcpu) || dsq_move_to_local(DSQ_BOOSTED))
		return;
	if (goes_on(prev, pcpu) || take_own(DSQ_VCPUS, cpu, pcpu) || dsq_move_to_local(DSQ_VCPUS))
		return;
	if (vcpus_first && dsq_move_to_local(DSQ_OTHERS))
		return;
	if (is_runnable(prev)) {
		pcpu->micro_deadline_ns = 0;
		stay_alone(prev, pcpu);
	}
}

#endif
