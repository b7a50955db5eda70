/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Pools: requests, the pull onto a micro pCPU, the micro slice, and the pool's size.
 *
 * Problem.   Whoever notices that a vCPU is needed (a tracing program, on any pCPU) may not move tasks; and a slice of
 *            100 us ends between two ticks.
 * Mechanism. A request marks the vCPU pending, puts it into the one-place queue (the paper's runqueue limit, section 5) of a micro
 *            pCPU, or of one at home (home.bpf.h), and kicks that pCPU. Its ops.dispatch takes the vCPU out of the normal queue, without
 *            searching, and a timer pinned to the pCPU ends the slice. Then the vCPU is enqueued like any other, and
 *            ops.enqueue knows only the normal pool. A request that finds no room is forgotten, but the micro pCPU
 *            remembers the VM, and the VM which vCPU was the first: once the place is free it asks for those that
 *            somebody still waits for, that one first.
 *            A micro pCPU that nobody asks for is lent: it runs vCPUs of the normal pool (next_turn.bpf.h), and each of the
 *            above calls it back: a kick preempts them.
 *            Who was woken and has to wait has a place of its own at each micro pCPU, behind the one for requests. It is
 *            no request yet, and stays one of the normal queue's: it becomes one when the micro pCPU has nobody else.
 * Races.     A request that reaches the micro pCPU before its vCPU is in the normal queue, or after it has left it, fails
 *            and is counted: the vCPU is then already running, or queued where the next request finds it.
 *            A pCPU that leaves the pool while a micro slice runs lets it end: its timer is armed.
 * Limits.    Tasks that may run on micro pCPUs only share them, one micro slice in turn with accelerated vCPUs.
 */
#ifndef BPF_POOLS_H
#define BPF_POOLS_H

#include "bpf/mechanisms/home.bpf.h"

#define RESCUE_MAX 4096

/* ---- Request (any context) ---- */

/* It would serve a request at once. */
static __always_inline bool is_free(const struct pcpu *pcpu)
{
	return pcpu->occupant == OCCUPANT_NONE || pcpu->occupant == OCCUPANT_LENT_VCPU;
}

/* Tries one micro pCPU; the policy says whether it has room. Not static, for the verifier and the stack: see try_home(). */
__noinline u32 try_place(u32 slot, s32 cpu, u32 affinity_allows)
{
	struct vcpu *vcpu = vcpu_at(slot);
	struct pcpu *pcpu = pcpu_of(cpu);
	struct accelerate_config limits = config.accelerate;
	struct placement_observation seen = {.affinity_allows = affinity_allows};
	u32 decision;

	if (!vcpu || !pcpu)
		return PLACEMENT_AFFINITY;
	seen.queued_count = micro_slice_on(pcpu)->request != 0;
	decision = decide_on_placement(&limits, &seen);
	RECORD(RECORD_PLACEMENT, slot, placement, {.config = limits, .seen = seen, .decision = decision});
	if (decision == PLACEMENT_QUEUE) {
		request_of(vcpu)->pcpu = cpu;
		if (__sync_val_compare_and_swap(&micro_slice_on(pcpu)->request, 0, slot + 1) == 0)
			call_pcpu(cpu, pcpu);
		else
			decision = PLACEMENT_FULL; /* somebody else was faster */
	}
	if (decision == PLACEMENT_FULL)
		passes_on(pcpu)->turned_away = vcpu->vm + 1;
	return decision;
}

/* One round over the micro pCPUs. The reason of a failure is kept in the vCPU, not in a register: see visit_sibling(). */
static __always_inline bool place_round(struct vcpu *vcpu, u32 slot, struct task_struct *p, bool free_only)
{
	u32 rank;

	bpf_for (rank, 0, POOL_LIMIT_MAX) {
		struct pcpu *pcpu;
		u32 decision;
		s32 cpu;

		if (rank >= micro_pcpu_count)
			break;
		cpu = config.micro_order[rank & POOL_LIMIT_MAX];
		pcpu = pcpu_of(cpu);
		if (!pcpu || (free_only && !is_free(pcpu)))
			continue;
		decision = try_place(slot, cpu, bpf_cpumask_test_cpu(cpu, p->cpus_ptr));
		if (decision == PLACEMENT_QUEUE)
			return true;
		request_of(vcpu)->failure =
		    decision == PLACEMENT_AFFINITY ? FAILURE_AFFINITY : FAILURE_NO_ROOM;
	}
	return false;
}

/* No micro pCPU had room: where the VM is asked for again, once one has. */
static __always_inline void remember_turned_away(const struct vcpu *vcpu)
{
	struct vm *vm = vm_at(vcpu->vm);

	if (vm && !passes_in(vm)->first_turned_away)
		passes_in(vm)->first_turned_away = vcpu->index_in_vm + 1;
}

/* First the micro pCPUs that run no accelerated vCPU, then a pCPU of the normal pool, then micro pCPUs whose queue is empty. */
static __always_inline bool place_request(struct vcpu *vcpu, u32 slot)
{
	struct task_struct *p = bpf_task_from_pid(vcpu->pid);
	bool placed;

	if (!p) {
		fail_request(vcpu, VCPU_BLOCKED, FAILURE_BLOCKED);
		return false;
	}
	request_of(vcpu)->failure = FAILURE_NO_ROOM;
	placed = place_round(vcpu, slot, p, true) || place_at_home(vcpu, slot, p) ||
		 place_round(vcpu, slot, p, false);
	bpf_task_release(p);
	if (placed)
		return true;
	if (request_of(vcpu)->failure == FAILURE_NO_ROOM)
		remember_turned_away(vcpu);
	fail_request(vcpu, VCPU_RUNNABLE, request_of(vcpu)->failure);
	return false;
}

/*
 * Asks the micro pool for this vCPU. True if help is on its way.
 * Not static: the verifier then checks it once by itself, not at each of its calls.
 */
__noinline int request_acceleration(u32 slot, u32 cause, u32 vector)
{
	struct vcpu *vcpu = vcpu_at(slot);
	struct vm_stats *stats;

	if (!vcpu || cause >= CAUSE_COUNT || vcpu->rests)
		return 0;
	stats = vm_stats_at(vcpu->vm);
	if (!stats)
		return 0;
	if (config.dry_run) {
		u32 class = vcpu->guest_class;

		if (class < GUEST_CLASS_COUNT)
			COUNT(stats->would_request[cause][class]);
		return 0;
	}
	if (!vcpu_moves(vcpu, VCPU_RUNNABLE, VCPU_PENDING))
		return 0;
	COUNT(stats->requests[cause]);
	if (is_over_its_share(slot)) {
		request_of(vcpu)->failure = FAILURE_VM_AHEAD;
		fail_request(vcpu, VCPU_RUNNABLE, FAILURE_VM_AHEAD);
		return 0;
	}
	request_of(vcpu)->cause = cause;
	request_of(vcpu)->vector = vector;
	return place_request(vcpu, slot);
}

/* ---- Who was woken (ops.enqueue) ---- */

/* Tries one micro pCPU's place for who was woken. What is left in it of somebody who waits no longer is no obstacle. */
static __always_inline bool try_woken_place(u32 slot, s32 cpu, struct pcpu *pcpu, u32 affinity_allows)
{
	u32 other = woken_on(pcpu)->vcpu;
	struct vcpu *holder = other ? vcpu_at(other - 1) : NULL;
	struct accelerate_config limits = config.accelerate;
	struct placement_observation seen = {.queued_count = holder && woken_of(holder)->cause &&
							     holder->state == VCPU_RUNNABLE,
					     .affinity_allows = affinity_allows};
	u32 decision = decide_on_placement(&limits, &seen);

	RECORD(RECORD_PLACEMENT, slot, placement, {.config = limits, .seen = seen, .decision = decision});
	if (decision != PLACEMENT_QUEUE ||
	    __sync_val_compare_and_swap(&woken_on(pcpu)->vcpu, other, slot + 1) != other)
		return false;
	if (is_free(pcpu))
		call_pcpu(cpu, pcpu);
	return true;
}

/* First the micro pCPUs that run no accelerated vCPU, then all. Without a place it simply waits. */
__noinline int offer_woken(struct task_struct *p __arg_trusted, u32 slot)
{
	u32 at;

	bpf_for (at, 0, 2 * POOL_LIMIT_MAX) {
		bool free_only = at < POOL_LIMIT_MAX;
		u32 rank = free_only ? at : at - POOL_LIMIT_MAX;
		struct pcpu *pcpu;
		s32 cpu;

		if (rank >= micro_pcpu_count)
			continue;
		cpu = config.micro_order[rank & POOL_LIMIT_MAX];
		pcpu = pcpu_of(cpu);
		if (!pcpu || (free_only && !is_free(pcpu)))
			continue;
		if (try_woken_place(slot, cpu, pcpu, bpf_cpumask_test_cpu(cpu, p->cpus_ptr)))
			return true;
	}
	return false;
}

/* ---- Pull (ops.dispatch of a micro pCPU) ---- */

/* Takes a vCPU out of whichever normal queue it waits in. */
static __always_inline bool pull_from(u64 dsq, struct task_struct *p, s32 cpu, u64 slice_ns)
{
	struct bpf_iter_scx_dsq it;
	bool moved = false;

	/* Asked after the iterator has begun: who is queued anew meanwhile, with another affinity, isn't moved by it. */
	if (!bpf_iter_scx_dsq_new(&it, dsq, 0) && may_run_on(p, cpu)) {
		dsq_move_set_slice(&it, slice_ns);
		moved = dsq_move(&it, p, SCX_DSQ_LOCAL);
	}
	bpf_iter_scx_dsq_destroy(&it);
	return moved;
}

__noinline int pull_vcpu(s32 cpu, u32 slot)
{
	struct vcpu *vcpu = vcpu_at(slot);
	struct task_struct *p;
	struct vm_stats *stats;
	u32 failure = FAILURE_NOT_QUEUED;
	bool moved = false;

	if (!vcpu || vcpu->state != VCPU_PENDING)
		return false; /* the normal pool was faster, and counted it */
	p = bpf_task_from_pid(vcpu->pid);
	if (!p) {
		fail_request(vcpu, VCPU_BLOCKED, FAILURE_BLOCKED);
		return false;
	}
	moved = pull_from(DSQ_VCPUS, p, cpu, config.micro_slice_ns) ||
		pull_from(DSQ_BOOSTED, p, cpu, config.micro_slice_ns);
	if (!moved && !may_run_on(p, cpu))
		failure = FAILURE_AFFINITY;
	bpf_task_release(p);
	/*
	 * The task is in this pCPU's local queue and this pCPU is here: it can't run before we return. If it left again
	 * meanwhile (its affinity changed), the state is corrected when it is enqueued or runs.
	 */
	stats = vm_stats_at(vcpu->vm);
	if (moved && stats) {
		u32 cause = request_of(vcpu)->cause, class = vcpu->guest_class;

		request_of(vcpu)->pcpu = cpu;
		if (vcpu_moves(vcpu, VCPU_PENDING, VCPU_MICRO) && cause < CAUSE_COUNT &&
		    class < GUEST_CLASS_COUNT)
			COUNT(stats->accelerations[cause][class]);
	} else {
		fail_request(vcpu, VCPU_RUNNABLE, failure);
	}
	return moved;
}

static __always_inline bool serve_request(s32 cpu, struct pcpu *pcpu)
{
	u32 request = __sync_lock_test_and_set(&micro_slice_on(pcpu)->request, 0);

	return request && pull_vcpu(cpu, request - 1);
}

/* Nobody who was preempted waits for this micro pCPU: who was woken, and waits still, asks for it now. */
static __always_inline bool serve_woken(s32 cpu, struct pcpu *pcpu)
{
	u32 slot = __sync_lock_test_and_set(&woken_on(pcpu)->vcpu, 0) - 1, cause;
	struct vcpu *vcpu = vcpu_at(slot);
	struct vm_stats *stats = vcpu ? vm_stats_at(vcpu->vm) : NULL;

	if (!stats)
		return false;
	cause = __sync_lock_test_and_set(&woken_of(vcpu)->cause, 0);
	if (!cause || cause >= CAUSE_COUNT || !vcpu_moves(vcpu, VCPU_RUNNABLE, VCPU_PENDING))
		return false;
	COUNT(stats->requests[cause]);
	request_of(vcpu)->cause = cause;
	request_of(vcpu)->vector = woken_of(vcpu)->vector;
	request_of(vcpu)->pcpu = cpu;
	return pull_vcpu(cpu, slot);
}

/* ---- The micro slice ---- */

static int end_micro_slice(void *map, u32 *cpu, struct slice_timer *timer)
{
	struct pcpu *pcpu = pcpu_of(*cpu);
	u64 now = bpf_ktime_get_ns(), deadline;

	if (!pcpu)
		return 0;
	deadline = micro_slice_on(pcpu)->deadline_ns;
	if (!deadline)
		return 0;
	/* The timer was armed for an earlier slice than the one that runs now. */
	if ((s64)(deadline - now) > 0) {
		bpf_timer_start(&timer->timer, deadline - now, BPF_F_TIMER_CPU_PIN);
		return 0;
	}
	/* A confined task may go on while nobody asks for its place. */
	if (pcpu->occupant != OCCUPANT_MICRO && pcpu->occupant != OCCUPANT_LENT_VCPU &&
	    !micro_slice_on(pcpu)->request && pcpu_is_micro(*cpu)) {
		micro_slice_on(pcpu)->deadline_ns = now + config.micro_slice_ns;
		bpf_timer_start(&timer->timer, config.micro_slice_ns, BPF_F_TIMER_CPU_PIN);
		return 0;
	}
	micro_slice_on(pcpu)->deadline_ns = 0;
	scx_bpf_kick_cpu(*cpu, KICK_PREEMPT);
	return 0;
}

static __always_inline void arm_micro_slice(s32 cpu, struct pcpu *pcpu, u64 now)
{
	u32 key = cpu;
	struct slice_timer *timer = bpf_map_lookup_elem(&slice_timers, &key);

	micro_slice_on(pcpu)->deadline_ns = now + config.micro_slice_ns;
	if (timer)
		bpf_timer_start(&timer->timer, config.micro_slice_ns, BPF_F_TIMER_CPU_PIN);
}

/* How long this pCPU has run the accelerated vCPU that it runs now, since the last step of Algorithm 1. */
static __always_inline u64 micro_busy_until(const struct pcpu *pcpu, u64 now)
{
	u64 since = pool_size_on(pcpu)->since_ns, stepped_at = pool_stepped_at_ns;

	if (!since)
		return 0;
	if (since < stepped_at)
		since = stepped_at;
	/* Steps are taken on another pCPU: one may have been taken after `now`. */
	return now > since ? now - since : 0;
}

/* ---- Confined tasks ---- */

/* The task that ran so far, if it could go on: it didn't block. */
static __always_inline bool is_runnable(struct task_struct *prev)
{
	return prev && (prev->scx.flags & bpf_core_enum_value(enum scx_ent_flags, SCX_TASK_QUEUED));
}

static __always_inline bool is_pinned_kthread(struct task_struct *p)
{
	return (p->flags & PF_KTHREAD) && p->nr_cpus_allowed == 1;
}

/* May it run on micro pCPUs only? Callers hold RCU (every non-sleepable program does). */
static __always_inline bool is_confined(struct task_struct *p)
{
	u32 own = p == bpf_get_current_task_btf() ? entry_disables_migration : 0, key = 0;
	struct scratch *normal;
	struct bpf_cpumask *mask;

	if (!micro_pcpu_count)
		return false;
	/* sched_ext never asks us where a task that exits may go: it stays where it is. */
	if (p->migration_disabled > own || (p->flags & PF_EXITING))
		return pcpu_is_micro(scx_bpf_task_cpu(p));
	if (p->nr_cpus_allowed >= config.wide_pcpu_count)
		return false;
	normal = bpf_map_lookup_elem(&normal_pool, &key);
	mask = normal ? normal->mask : NULL;
	return mask && !bpf_cpumask_intersects(p->cpus_ptr, (const struct cpumask *)mask);
}

static __always_inline s32 confined_pcpu(struct task_struct *p)
{
	s32 cpu = scx_bpf_task_cpu(p);

	return bpf_cpumask_test_cpu(cpu, p->cpus_ptr) ? cpu : (s32)bpf_cpumask_first(p->cpus_ptr);
}

/*
 * Tasks that were queued when their last normal pCPU became this micro pCPU would wait for ever. How many more may be
 * looked at is kept in the map, for the verifier's sake: see visit_sibling().
 */
__noinline int rescue_from(u64 dsq, s32 cpu)
{
	struct pcpu *pcpu = pcpu_of(cpu);
	struct task_struct *p;

	if (!pcpu)
		return 0;
	for_each_queued(p, dsq)
	{
		if (!micro_pool_on(pcpu)->rescue_count)
			break;
		micro_pool_on(pcpu)->rescue_count--;
		if (is_confined(p) && bpf_cpumask_test_cpu(cpu, p->cpus_ptr) &&
		    dsq_move(&it, p, DSQ_CONFINED + cpu))
			COUNT(host_stats.rescued);
	}
	return 0;
}

/* ---- Dispatch ---- */

/* Those whom somebody asked for. False if this pCPU has nothing to run yet. */
static __always_inline bool dispatch_micro(s32 cpu, struct pcpu *pcpu)
{
	if (micro_pool_on(pcpu)->rescue_count) {
		rescue_from(DSQ_OTHERS, cpu);
		rescue_from(DSQ_VCPUS, cpu);
		rescue_from(DSQ_BOOSTED, cpu);
		micro_pool_on(pcpu)->rescue_count = 0;
	}
	/* Turn about, so that neither starves the other. */
	if (micro_pool_on(pcpu)->served_last && dsq_move_to_local(DSQ_CONFINED + cpu)) {
		micro_pool_on(pcpu)->served_last = 0;
		return true;
	}
	micro_pool_on(pcpu)->served_last = serve_request(cpu, pcpu);
	return micro_pool_on(pcpu)->served_last;
}

/* Those who come after them. */
static __always_inline bool dispatch_micro_idle(s32 cpu, struct pcpu *pcpu)
{
	if (woken_on(pcpu)->vcpu && !micro_slice_on(pcpu)->request && serve_woken(cpu, pcpu)) {
		micro_pool_on(pcpu)->served_last = 1;
		return true;
	}
	return dsq_move_to_local(DSQ_CONFINED + cpu);
}

/* May the task that ran on this micro pCPU go on there, as long as nobody asks for it? */
static __always_inline bool stays_on_micro(struct task_struct *prev)
{
	return is_runnable(prev) && (is_pinned_kthread(prev) || is_confined(prev));
}

/* ---- Lending ---- */

/* Does anybody ask for this micro pCPU? */
static __always_inline bool is_asked_for(s32 cpu, const struct pcpu *pcpu)
{
	return micro_slice_on(pcpu)->request || woken_on(pcpu)->vcpu ||
	       scx_bpf_dsq_nr_queued(DSQ_CONFINED + cpu) > 0;
}

/*
 * A vCPU of the normal pool runs on this micro pCPU from now on. Who asks for the pCPU writes that down first and looks
 * at the occupant then; here it is the other way round, so one of both sees the other.
 */
static __always_inline void lend_to(s32 cpu, struct pcpu *pcpu)
{
	lending_on(pcpu)->is_lent = 1;
	__sync_lock_test_and_set(&pcpu->occupant, OCCUPANT_LENT_VCPU);
	if (is_asked_for(cpu, pcpu))
		call_pcpu(cpu, pcpu);
}

/* ---- Size ---- */

static __always_inline void set_normal(s32 cpu, bool normal)
{
	u32 key = 0;
	struct scratch *pool = bpf_map_lookup_elem(&normal_pool, &key);
	struct bpf_cpumask *mask;

	bpf_rcu_read_lock();
	mask = pool ? pool->mask : NULL;
	if (mask) {
		if (normal)
			bpf_cpumask_set_cpu(cpu, mask);
		else
			bpf_cpumask_clear_cpu(cpu, mask);
	}
	bpf_rcu_read_unlock();
}

/* It joined the micro pool: whatever runs there goes back to the normal queues. */
static __always_inline void after_joining(s32 cpu, struct pcpu *pcpu)
{
	micro_pool_on(pcpu)->rescue_count = RESCUE_MAX;
	home_slices_on(pcpu)->interrupted = 0;
	pool_size_on(pcpu)->busy_ns = 0;
	scx_bpf_kick_cpu(cpu, KICK_PREEMPT);
}

/* It left the micro pool: its queued request goes back, and it looks for normal work. */
static __always_inline void after_leaving(s32 cpu, struct pcpu *pcpu)
{
	u32 request = __sync_lock_test_and_set(&micro_slice_on(pcpu)->request, 0);
	struct vcpu *vcpu = request ? vcpu_at(request - 1) : NULL;

	woken_on(pcpu)->vcpu = 0;
	__sync_val_compare_and_swap(&pcpu->occupant, OCCUPANT_LENT_VCPU, OCCUPANT_VCPU);
	lending_on(pcpu)->is_lent = 0;
	if (vcpu)
		fail_request(vcpu, VCPU_RUNNABLE, FAILURE_RESIZED);
	scx_bpf_kick_cpu(cpu, KICK_IDLE);
}

static __noinline int apply_pool_size(u32 count, u32 reason)
{
	u32 before = decided_pcpu_count, rank;
	struct event event = {
	    .kind = EVENT_RESIZE,
	    .resize = {.at_ns = bpf_ktime_get_ns(), .micro_pcpu_count = count, .reason = reason}};

	if (count == before || count > POOL_LIMIT_MAX)
		return 0;
	decided_pcpu_count = count;
	COUNT(host_stats.pool_resizes);
	send_event(&event);
	if (config.dry_run)
		return 0;
	bpf_for (rank, 0, POOL_LIMIT_MAX + 1) {
		if ((rank < count) != (rank < before))
			set_normal(config.micro_order[rank & POOL_LIMIT_MAX], rank >= count);
	}
	micro_pcpu_count = count;
	bpf_for (rank, 0, POOL_LIMIT_MAX + 1) {
		s32 cpu = config.micro_order[rank & POOL_LIMIT_MAX];
		struct pcpu *pcpu = pcpu_of(cpu);

		if (!pcpu || (rank < count) == (rank < before))
			continue;
		if (rank < count)
			after_joining(cpu, pcpu);
		else
			after_leaving(cpu, pcpu);
	}
	return 0;
}

/* How long micro pCPUs ran accelerated vCPUs since the step before, all of them together. */
static __noinline u64 take_micro_busy_ns(u64 now)
{
	u64 busy_ns = 0;
	u32 rank;

	bpf_for (rank, 0, POOL_LIMIT_MAX) {
		struct pcpu *pcpu;

		if (rank >= micro_pcpu_count)
			break;
		pcpu = pcpu_of(config.micro_order[rank & POOL_LIMIT_MAX]);
		if (pcpu)
			busy_ns += __sync_lock_test_and_set(&pool_size_on(pcpu)->busy_ns, 0) +
				   micro_busy_until(pcpu, now);
	}
	pool_stepped_at_ns = now;
	return busy_ns;
}

/* Algorithm 1, each time that its timer fires. */
static int adapt_pool_size(void *map, u32 *key, struct pool_timer *timer)
{
	struct pool_size_config limits = config.pool_size;
	struct pool_size_observation total = {.ipi_count = host_stats.urgent_ipis,
					      .ple_count = host_stats.urgent_ples,
					      .irq_count = host_stats.urgent_irqs};
	struct pool_size_observation seen = {.ipi_count = total.ipi_count - timer->seen.ipi_count,
					     .ple_count = total.ple_count - timer->seen.ple_count,
					     .irq_count = total.irq_count - timer->seen.irq_count,
					     .micro_busy_ns = take_micro_busy_ns(bpf_ktime_get_ns())};
	struct pool_size_decision decision = step_pool_size(&limits, &timer->state, &seen);

	timer->seen = total;
	RECORD(RECORD_POOL_SIZE, (u32)-1, pool_size, {.config = limits, .seen = seen, .decision = decision});
	apply_pool_size(decision.micro_pcpu_count, decision.reason);
	bpf_timer_start(&timer->timer, decision.interval_ns, 0);
	return 0;
}

#endif
