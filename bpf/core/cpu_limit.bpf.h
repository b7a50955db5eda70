/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * CPU limits: cpu.max of cgroups, kept by policy/cpu_limit.h.
 *
 * Problem.   The kernel tells schedulers of limits only after 6.16, and then leaves all of it to them: what each cgroup
 *            used, who has to stop, and when it may go on.
 * Mechanism. The daemon reads cpu.max (crates/host/src/limits.rs), and says which limits count for the tasks of which
 *            cgroup. Whatever a task ran for is charged to all of them. Before it gets a pCPU, and at the end of each
 *            turn, they are asked; if one says that it has to rest it waits in a queue that no pCPU serves, ordered by
 *            when it may run again, and a timer moves it back to the others.
 * Races.     Two pCPUs may ask a limit at once: both see nearly the same, and whoever writes last is believed.
 *            A task that runs while another uses up the quota, or waits for its turn, still has that turn: a debt.
 * Limits.    A task rests wherever its turn ended, in the host's kernel too (as with the kernel's own limits before 6.18).
 *            Kernel threads never do, nor does a task that ends. Of the limits of a cgroup the LIMITS_PER_CGROUP tightest
 *            count; LIMITS_MAX and LIMITED_CGROUPS_MAX: the daemon says what is beyond.
 */
#ifndef BPF_CPU_LIMIT_H
#define BPF_CPU_LIMIT_H

#include "bpf/core/idle.bpf.h"

struct rest_timer {
	struct bpf_timer timer;
	u32 release_count; /* how many more may be released this time */
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct rest_timer);
} rest_timers SEC(".maps");

#define RELEASE_INTERVAL_NS 2000000ull
#define RELEASE_MAX 64u
#define UNLIMITED_NS (~0ull)

/* ---- Accounting ---- */

/* The number of the cgroup whose cpu.max counts for p. */
static __always_inline u64 cgroup_of(struct task_struct *p)
{
	if (!bpf_core_field_exists(p->sched_task_group))
		return 0;
	return p->sched_task_group->css.cgroup->kn->id;
}

static __always_inline struct cpu_limit *cpu_limit_at(u32 place)
{
	return bpf_map_lookup_elem(&cpu_limits, &place);
}

static __always_inline struct limit_state *limit_state_at(u32 place)
{
	return bpf_map_lookup_elem(&limit_states, &place);
}

/* Not static, nor is ask_limits(): the verifier then checks them once by themselves, not at each of their calls. */
__noinline int charge_limits(u64 cgroup, u64 ran_ns)
{
	struct limit_chain *chain = bpf_map_lookup_elem(&limit_chains, &cgroup);
	u32 at;

	if (!chain)
		return 0;
	for (at = 0; at < LIMITS_PER_CGROUP; at++) {
		u32 place = chain->places[at] - 1;
		struct cpu_limit *limit = cpu_limit_at(place);
		struct limit_state *state = limit_state_at(place);

		if (!limit || !state)
			break;
		ADD(state->clock_ns, limit_charge(limit, ran_ns));
	}
	return 0;
}

static __always_inline void charge_limits_of(struct task_struct *p, u64 ran_ns)
{
	if (limits_in_force)
		charge_limits(cgroup_of(p), ran_ns);
}

/* ---- Asking ---- */

static __always_inline u64 ask_limit(const struct cpu_limit *limit, struct limit_state *state,
				     struct task_ctx *tctx, u32 active_count, u64 now)
{
	struct cpu_limit allowed = *limit;
	struct limit_observation seen = {.now_ns = now,
					 .clock_ns = state->clock_ns,
					 .rest_until_ns = state->rest_until_ns,
					 .slice_ns = tctx->allowed_ns,
					 .active_count = active_count};
	struct limit_decision decision = decide_on_limit(&allowed, &seen);

	RECORD(RECORD_LIMIT, tctx->vcpu - 1, limit, {.limit = allowed, .seen = seen, .decision = decision});
	if (decision.clock_ns != seen.clock_ns)
		__sync_val_compare_and_swap(&state->clock_ns, seen.clock_ns, decision.clock_ns);
	state->rest_until_ns = decision.rest_until_ns;
	tctx->allowed_ns = decision.slice_ns;
	return decision.rest_until_ns;
}

/* Until when a task of this cgroup has to rest; 0: not at all, and allowed_ns says for how long it may run. */
__noinline u64 ask_limits(struct task_ctx *tctx, u64 cgroup, u32 active_count)
{
	struct limit_chain *chain = bpf_map_lookup_elem(&limit_chains, &cgroup);
	u64 now = bpf_ktime_get_ns(), until = 0, other;
	u32 at;

	if (!tctx || !chain)
		return 0;
	for (at = 0; at < LIMITS_PER_CGROUP; at++) {
		u32 place = chain->places[at] - 1;
		struct cpu_limit *limit = cpu_limit_at(place);
		struct limit_state *state = limit_state_at(place);

		if (!limit || !state)
			break;
		other = ask_limit(limit, state, tctx, active_count, now);
		if (!until || (other && vtime_before(until, other)))
			until = other;
	}
	/* A last short turn, should it run all the same. */
	if (until)
		tctx->allowed_ns = LIMIT_SLICE_MIN_NS;
	return until;
}

/* As ask_limits(), of any task. */
static __always_inline u64 rests_until(struct task_struct *p, struct task_ctx *tctx, struct vcpu *vcpu)
{
	struct vm *vm;
	s64 active = 1;

	tctx->allowed_ns = UNLIMITED_NS;
	if (!limits_in_force || (p->flags & (PF_KTHREAD | PF_EXITING)))
		return 0;
	vm = vcpu ? vm_at(vcpu->vm) : NULL;
	if (vm)
		active = vm->active_vcpu_count;
	return ask_limits(tctx, cgroup_of(p), active > 0 ? active : 1);
}

/* ---- Resting ---- */

/* False: nobody would end a rest that begins now. */
static __always_inline bool arm_rest_timer(void)
{
	u32 key = 0;
	struct rest_timer *timer = bpf_map_lookup_elem(&rest_timers, &key);

	if (!timer)
		return false;
	if (__sync_val_compare_and_swap(&rest_timer_armed, 0, 1) ||
	    START_TIMER(&timer->timer, RELEASE_INTERVAL_NS, 0, host_stats.rest_timers_refused))
		return true;
	rest_timer_armed = 0;
	return false;
}

/* Somebody rests, and the timer isn't armed: the kernel refused it, or it fired just before. */
static __always_inline void mend_rest_timer(void)
{
	if (!rest_timer_armed && scx_bpf_dsq_nr_queued(DSQ_RESTING) > 0)
		arm_rest_timer();
}

/* It may have no more for now. Whoever asked for it is told so; nobody else may until it is released. */
static __always_inline void enqueue_resting(struct task_struct *p, struct task_ctx *tctx, struct vcpu *vcpu,
					    u64 until_ns, u64 enq_flags)
{
	if (vcpu) {
		on_rest(vcpu);
		vcpu->was_blocked = 0;
	}
	tctx->queued_at_ns = bpf_ktime_get_ns();
	dsq_insert_vtime(p, DSQ_RESTING, config.others_slice_ns, until_ns, enq_flags);
	mend_rest_timer();
}

static __always_inline void count_rest(struct vcpu *vcpu, u64 rested_ns)
{
	struct vm_stats *stats = vcpu ? vm_stats_at(vcpu->vm) : NULL;

	if (stats)
		ADD(stats->rested_ns, rested_ns);
	else
		ADD(host_stats.rested_ns, rested_ns);
}

/* Nothing is owed to it for the time that it rested. */
static __always_inline void release(struct bpf_iter_scx_dsq *it, struct task_struct *p, u64 now)
{
	struct task_ctx *tctx = task_ctx_of(p);
	struct vcpu *vcpu = vcpu_of(tctx);
	u64 clock_ns;

	if (!tctx)
		return;
	count_rest(vcpu, now - tctx->queued_at_ns);
	if (vcpu) {
		vcpu->rests = 0;
		vcpu->runnable_at_ns = now;
	}
	if (is_confined(p)) {
		release_confined(it, p);
		return;
	}
	clock_ns = clock_of(tctx, vcpu);
	if (vtime_before(tctx->vtime_ns, clock_ns))
		tctx->vtime_ns = clock_ns;
	tctx->queued_at_ns = now;
	dsq_move_set_slice(it, vcpu ? config.fair_share.slice_ns : config.others_slice_ns);
	if (dsq_move_vtime(it, p, vcpu || tctx->gives_way ? DSQ_VCPUS : DSQ_OTHERS, tctx->vtime_ns)) {
		if (vcpu)
			kick_idle_for_vcpu(p);
		else
			kick_idle_normal(p);
	}
}

/* For as long as anybody rests. */
static int end_rests(void *map, u32 *key, struct rest_timer *timer)
{
	u64 now = bpf_ktime_get_ns();
	struct task_struct *p;

	timer->release_count = RELEASE_MAX;
	/* 6.16 takes the callback of a timer that a sleepable program initialised for sleepable. */
	bpf_rcu_read_lock();
	for_each_queued(p, DSQ_RESTING)
	{
		if (!timer->release_count || vtime_before(now, p->scx.dsq_vtime))
			break;
		timer->release_count--;
		release(&it, p, now);
	}
	bpf_rcu_read_unlock();
	if (scx_bpf_dsq_nr_queued(DSQ_RESTING) > 0) {
		if (START_TIMER(&timer->timer, RELEASE_INTERVAL_NS, 0, host_stats.rest_timers_refused))
			return 0;
	}
	rest_timer_armed = 0;
	/* Who came meanwhile saw that it was armed. Where the kernel refuses it, sweep_queues() tries again. */
	mend_rest_timer();
	return 0;
}

#endif
