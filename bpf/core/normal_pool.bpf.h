/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Normal pool: who runs next where nobody is in a hurry.
 *
 * Problem.   A host runs more than vCPUs: QEMU's I/O threads, vhost, kernel threads, people's shells. vCPUs depend on
 *            many of them, so they go first; but a compiler on the host may not stop all guests, nor a nightly backup
 *            take half of the host.
 * Mechanism. Three shared queues, all ordered by the policy (fair_share.h): host tasks, vCPUs that just woke (boosted),
 *            vCPUs. A normal pCPU serves them in that order (next_turn.bpf.h). Host tasks that took a vCPU's slice more
 *            than vCPUs since on this pCPU let vCPUs go first until these have caught up: under contention each side
 *            gets half. Host tasks of a nice value above 0 wait among the vCPUs, as a VM of their weight would.
 *            A turn that ends in critical code, or before a call was answered, is made longer by a few micro slices.
 * Formula.   host task: vtime += ran * 100 / weight (its nice value); vCPU: see fair_share.h.
 * Limits.    One queue of each kind for the whole host: a task prefers the pCPU that it ran on last if that is idle, and
 *            a pCPU those that ran there last (next_turn.bpf.h), but NUMA nodes are not told apart. vCPUs with narrow
 *            affinity are found by walking the queue, and go by the clocks of the pCPU where they ran last.
 */
#ifndef BPF_NORMAL_POOL_H
#define BPF_NORMAL_POOL_H

#include "bpf/core/cpu_limit.bpf.h"

/* ---- Which pCPU ---- */

/* Where a task in a hurry looks first for somebody who gives way to it; negative: nowhere. */
static __always_inline s32 first_to_preempt(struct task_struct *p, const struct vcpu *vcpu)
{
	u32 key = 0;
	struct scratch *normal;
	struct bpf_cpumask *mask;
	s32 cpu = scx_bpf_task_cpu(p);

	if (vcpu && pcpu_is_micro(cpu))
		cpu = vcpu->normal_pcpu;
	if (!pcpu_is_micro(cpu) || (vcpu && config.lend))
		return cpu;
	normal = bpf_map_lookup_elem(&normal_pool, &key);
	mask = normal ? normal->mask : NULL;
	return mask ? (s32)bpf_cpumask_any_distribute((const struct cpumask *)mask) : -1;
}

/*
 * It takes over the pCPU that it ran on last, if what runs there gives way. A vCPU looks at a few more: many wait for a lock that
 * is handed on, and each of them that is boosted keeps the next one from its own pCPU for a third of a slice.
 */
__noinline int preempt_for(struct task_struct *p __arg_trusted, u32 for_vcpu)
{
	const struct vcpu *vcpu = for_vcpu ? vcpu_of(task_ctx_of(p)) : NULL;
	s32 first = first_to_preempt(p, vcpu);
	u32 step, look = for_vcpu ? PREEMPT_LOOK_MAX : 1;

	if (first < 0)
		return 0;
	bpf_for (step, 0, PREEMPT_LOOK_MAX) {
		s32 cpu = first + step;
		struct pcpu *pcpu;

		if (step >= look || step >= config.pcpu_count)
			break;
		if ((u32)cpu >= config.pcpu_count)
			cpu -= config.pcpu_count;
		pcpu = pcpu_of(cpu);
		if (!pcpu || !bpf_cpumask_test_cpu(cpu, p->cpus_ptr) || !gives_way_to(cpu, pcpu, for_vcpu))
			continue;
		if (vcpu && is_of_vm_ahead(vcpu, pcpu))
			continue;
		scx_bpf_kick_cpu(cpu, KICK_PREEMPT);
		break;
	}
	return 0;
}

/* ---- Queueing ---- */

/* What limits are counted by: how far it may be off the pool's clock, and go before others. */
static __always_inline u64 weight_of(const struct vcpu *vcpu)
{
	struct vm *vm = vm_at(vcpu->vm);
	s64 active = vm ? vm->active_vcpu_count : 1;

	return vcpu_weight(vm ? vm_weight_of(vm, vcpu->vm) : 0, active > 0 ? active : 1);
}

/* What its clock moves by: see fair_share.h. */
static __always_inline u64 charged_weight_of(const struct vcpu *vcpu)
{
	struct fair_share_config share = config.fair_share;
	struct vm *vm = vm_at(vcpu->vm);
	u64 weight = weight_of(vcpu);

	if (!vm)
		return weight;
	return catch_up_weight(&share, size_of(vm, vcpu->vm), weight, vm->first_vm_ns, vm->vtime_ns);
}

/* Its VM's clock isn't left further behind the first one's than it can catch up with. */
static __always_inline void keep_up(const struct vcpu *vcpu, u64 first_vm_ns)
{
	struct fair_share_config share = config.fair_share;
	struct vm *vm = vm_at(vcpu->vm);
	u64 was, kept;

	if (!vm)
		return;
	vm->first_vm_ns = first_vm_ns;
	was = vm->vtime_ns;
	kept = vm_clock(&share, size_of(vm, vcpu->vm), first_vm_ns, was);
	/* Others of its vCPUs may be charged just now: then it is looked at again soon. */
	if (kept != was)
		__sync_val_compare_and_swap(&vm->vtime_ns, was, kept);
}

/* The clock of a vCPU that waits from now on. */
static __always_inline struct wakeup_decision queue_clock(struct task_struct *p, struct task_ctx *tctx,
							  struct vcpu *vcpu)
{
	struct fair_share_config share = config.fair_share;
	struct wakeup_observation seen = {.vcpu_vtime_ns = tctx->vtime_ns, .was_blocked = vcpu->was_blocked};
	struct wakeup_decision decision;
	struct furthest furthest;

	vcpu->narrow = p->nr_cpus_allowed < config.wide_pcpu_count;
	furthest = clocks_of(vcpu);
	keep_up(vcpu, furthest.vm_ns);
	seen.pool_vtime_ns = furthest.vcpu_ns;
	seen.weight = weight_of(vcpu);
	decision = decide_on_wakeup(&share, &seen);

	RECORD(RECORD_WAKEUP, tctx->vcpu - 1, wakeup, {.config = share, .seen = seen, .decision = decision});
	tctx->vtime_ns = decision.vtime_ns;
	grace_of(vcpu)->count = 0;
	return decision;
}

/* What was requested, or should be again, while the vCPU was between two places. */
static __always_inline void resume_request(struct vcpu *vcpu, u32 slot)
{
	if (request_of(vcpu)->retry) {
		request_of(vcpu)->retry = 0;
		request_acceleration(slot, request_of(vcpu)->cause, request_of(vcpu)->vector);
	} else if (vcpu->state == VCPU_PENDING) {
		/* The request came between stopping and here; the micro pCPU may have looked too early. */
		struct pcpu *pcpu = pcpu_of(request_of(vcpu)->pcpu);

		if (pcpu)
			call_pcpu(request_of(vcpu)->pcpu, pcpu);
	}
}

/* Its turn is over. May it go on for a micro slice, because it was stopped at a bad moment? */
__noinline int gets_grace(u32 slot, u32 class)
{
	struct vcpu *vcpu = vcpu_at(slot);
	struct accelerate_config limits = config.accelerate;
	struct turn_observation seen = {.guest_class = class, .micro_pcpu_count = micro_pcpu_count};
	u32 decision;

	/* Nothing is known of who waits for it: it is scheduled like any other task. */
	if (!vcpu || !guest_is_known(vcpu->vm))
		return false;
	seen.yielded = vcpu->yielded;
	seen.grace_count = grace_of(vcpu)->count;
	seen.answer = guest_answer_to_calls(vcpu->kvm_vcpu);
	decision = decide_at_turn_end(&limits, &seen);
	RECORD(RECORD_TURN, slot, turn, {.config = limits, .seen = seen, .decision = decision});
	if (decision != TURN_GOES_ON)
		return false;
	grace_of(vcpu)->count++;
	return true;
}

/* A kernel thread, or a task of a higher class, took its pCPU away: does it come back at once, for a micro slice? */
static __always_inline bool comes_back(struct vcpu *vcpu, u32 slot)
{
	bool interrupted = grace_of(vcpu)->interrupted;
	struct vm_stats *stats = vm_stats_at(vcpu->vm);

	grace_of(vcpu)->interrupted = 0;
	if (!interrupted || !micro_pcpu_count || !gets_grace(slot, vcpu->guest_class))
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
	struct woken_observation seen = {.interrupted = woken_of(vcpu)->blocked_interrupt != 0,
					 .kind = interrupt_kind_of(woken_of(vcpu)->blocked_interrupt),
					 .lock_halt = woken_of(vcpu)->lock_halt_rip != 0,
					 .interrupts_enabled = woken_of(vcpu)->lock_halt_interrupts_enabled,
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
	count_urgent(urgent_event_of_wakeup(&seen, decision.reason));
	if (decision.cause == CAUSE_NONE || decision.cause >= CAUSE_COUNT)
		return;
	if (config.dry_run) {
		if (class < GUEST_CLASS_COUNT)
			COUNT(stats->would_request[decision.cause][class]);
		return;
	}
	woken_of(vcpu)->vector = decision.cause == CAUSE_LOCK_KICK ? 0 : woken_of(vcpu)->blocked_interrupt;
	woken_of(vcpu)->cause = decision.cause;
	if (!offer_woken(p, slot))
		woken_of(vcpu)->cause = 0;
}

static __always_inline void enqueue_vcpu(struct task_struct *p, struct task_ctx *tctx, struct vcpu *vcpu,
					 u64 enq_flags)
{
	struct wakeup_decision decision;

	/* It left the micro pCPU's queue before it ran. */
	end_acceleration(vcpu, VCPU_RUNNABLE, RETURN_NEVER_RAN);
	if (comes_back(vcpu, tctx->vcpu - 1)) {
		vcpu->goes_first = 1;
		dsq_insert(p, DSQ_BOOSTED, config.micro_slice_ns, enq_flags | ENQ(HEAD));
		kick_idle_for_vcpu(p);
		resume_request(vcpu, tctx->vcpu - 1);
		return;
	}
	decision = queue_clock(p, tctx, vcpu);
	if (lending_of(vcpu)->called_back) {
		/* It was woken for the pCPU that it borrowed: it goes on somewhere else, as if it were woken now. */
		lending_of(vcpu)->called_back = 0;
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
	u64 lag = charge(lag_max_ns, vcpu_weight(p->scx.weight, 1)), earliest = now - lag;

	if (tctx->gives_way != way)
		tctx->vtime_ns = now;
	tctx->gives_way = way;
	if (vtime_before(tctx->vtime_ns, earliest))
		tctx->vtime_ns = earliest;
	/* A light one that is served because it has waited for long may be far ahead: it doesn't wait the longer for that. */
	if (way && vtime_before(now + lag, tctx->vtime_ns))
		tctx->vtime_ns = now + lag;
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
	struct pcpu *pcpu;

	if (vcpu) {
		end_acceleration(vcpu, VCPU_RUNNABLE, RETURN_NEVER_RAN);
		fail_request(vcpu, VCPU_RUNNABLE, FAILURE_NOT_QUEUED);
	}
	COUNT(host_stats.confined_inserts);
	dsq_insert(p, DSQ_CONFINED + cpu, config.others_slice_ns, enq_flags);
	pcpu = pcpu_of(cpu);
	if (pcpu)
		call_pcpu(cpu, pcpu);
}

/* Kernel threads of one pCPU (ksoftirqd, workqueues, migration helpers) are short, and much waits for them. */
static __always_inline void enqueue_pinned_kthread(struct task_struct *p, u64 enq_flags)
{
	/*
	 * An accelerated vCPU isn't preempted (section 5), in either pool: its slice is shorter than the thread could notice. Nor is anybody
	 * by a thread that ops.cpu_release queues again: the slice that it would use up is that of the task that the higher
	 * class took the pCPU from, which waits in a queue already.
	 */
	s32 cpu = scx_bpf_task_cpu(p);
	struct pcpu *pcpu = pcpu_of(cpu);
	bool is_lent = pcpu && pcpu->occupant == OCCUPANT_LENT_VCPU;
	bool is_accelerated = pcpu && pcpu->occupant == OCCUPANT_MICRO;
	bool waits = (pcpu_is_micro(cpu) && !is_lent) || is_accelerated || (enq_flags & ENQ(REENQ));
	u64 preempt = waits ? 0 : ENQ(PREEMPT);

	insert_here(p, SCX_DSQ_LOCAL, config.others_slice_ns, enq_flags | ENQ(HEAD) | preempt);
}

/* ---- Accounting ---- */

static __always_inline void advance(u64 *clock_ns, u64 to_ns)
{
	if (vtime_before(*clock_ns, to_ns))
		*clock_ns = to_ns;
}

static __always_inline void advance_others_clock(const struct task_ctx *tctx)
{
	if (!tctx->out_of_order)
		advance(tctx->gives_way ? &pool_vtime_ns : &others_vtime_ns, tctx->vtime_ns);
}

/*
 * The clocks of pool and pCPU are of whoever was chosen by them. A micro slice isn't: it may be run by who is far ahead. Nor is
 * what a light one gets because it has waited for long, nor the rest of a turn that a micro slice has interrupted: its clock stands where the
 * turn has brought it, and who sleeps would be put back behind that.
 */
static __always_inline void advance_clocks(const struct task_ctx *tctx, const struct vcpu *vcpu,
					   struct pcpu *pcpu)
{
	struct vm *vm = vm_at(vcpu->vm);

	if (!vm)
		return;
	if (tctx->out_of_order) {
		keep_up(vcpu, clocks_of(vcpu).vm_ns);
		return;
	}
	advance(&pool_vtime_ns, tctx->vtime_ns);
	advance(&first_vm_vtime_ns, vm->vtime_ns);
	if (pcpu->vcpus_vtime_ns) {
		advance(&pcpu->vcpus_vtime_ns, tctx->vtime_ns);
		advance(&pcpu->vms_vtime_ns, vm->vtime_ns);
	} else {
		pcpu->vcpus_vtime_ns = tctx->vtime_ns;
		pcpu->vms_vtime_ns = vm->vtime_ns;
	}
	keep_up(vcpu, clocks_of(vcpu).vm_ns);
}

/*
 * It has a pCPU that nobody else wants: what it ran for isn't owed to those who come later. Else light ones, whose clocks
 * are fast, would push the queue's clock on, and whoever ran beside them would be that far behind: it would go first until
 * it had caught up.
 */
static __always_inline void forgive_debt(struct task_ctx *tctx, const struct vcpu *vcpu)
{
	u64 clock_ns = clock_of(tctx, vcpu);

	if (vtime_before(clock_ns, tctx->vtime_ns))
		tctx->vtime_ns = clock_ns;
}

/* Nobody waited while it ran: it owes nothing for that, nor does its VM, and is owed nothing. */
static __always_inline void settle_clock(struct task_ctx *tctx, const struct vcpu *vcpu)
{
	struct vm *vm = vcpu ? vm_at(vcpu->vm) : NULL;
	u64 first_vm_ns, was;

	tctx->vtime_ns = clock_of(tctx, vcpu);
	if (!vm)
		return;
	first_vm_ns = clocks_of(vcpu).vm_ns;
	was = vm->vtime_ns;
	if (vtime_before(first_vm_ns, was))
		__sync_val_compare_and_swap(&vm->vtime_ns, was, first_vm_ns);
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
	struct vm *vm = vm_at(vcpu->vm);

	tctx->vtime_ns += charge(ran_ns, charged_weight_of(vcpu));
	if (vm)
		__sync_fetch_and_add(&vm->vtime_ns, vm_charge(ran_ns, vm_weight_of(vm, vcpu->vm)));
	if (stats)
		ADD(stats->ran_ns, ran_ns);
	if (stats && pcpu && lending_on(pcpu)->is_lent)
		ADD(stats->lent_ran_ns, ran_ns);
	if (pcpu)
		pcpu->others_ran_ns = pcpu->others_ran_ns > ran_ns ? pcpu->others_ran_ns - ran_ns : 0;
}

#endif
