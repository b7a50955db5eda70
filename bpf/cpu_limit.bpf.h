/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * CPU limits: cpu.max of the cgroups that a VM's vCPUs lie in, kept by policy/cpu_limit.h.
 *
 * Problem.   The kernel tells schedulers of limits only after 6.16, and then leaves all of it to them: what each cgroup
 *            used, who has to stop, and when it may go on.
 * Mechanism. The daemon reads cpu.max (crates/host/src/cgroups.rs), and says which limits a VM has. Whatever a vCPU ran
 *            for is charged to all of them. Before it gets a pCPU, and at the end of each turn, they are asked; if one
 *            says that it has to rest it waits in a queue that no pCPU serves, ordered by when it may run again, and
 *            a timer moves it back to the others.
 * Races.     Two pCPUs may ask a limit at once: both see nearly the same, and whoever writes last is believed.
 *            A vCPU that runs while a sibling uses up the quota, or waits for its turn, still has that turn: a debt.
 * Limits.    Only vCPUs are charged and stopped: what the VMM's own threads run for isn't counted, and what isn't a VM has
 *            no limit. A vCPU rests wherever its turn ended, in the host's kernel too (as with the kernel's own limits
 *            before 6.18). Of each VM the LIMITS_PER_VM tightest count, of the host LIMITS_MAX: the daemon says so.
 */
#ifndef BPF_CPU_LIMIT_H
#define BPF_CPU_LIMIT_H

#include "idle.bpf.h"

#define RELEASE_INTERVAL_NS 2000000ull
#define RELEASE_MAX 64u

/* ---- Accounting ---- */

static __always_inline bool has_limits(const struct vm_feed *feed)
{
	return feed->limits[0] || is_limited(&feed->vcpu_limit);
}

static __always_inline struct cpu_limit *cpu_limit_at(u32 slot)
{
	return bpf_map_lookup_elem(&cpu_limits, &slot);
}

static __always_inline struct limit_state *limit_state_at(u32 slot)
{
	return bpf_map_lookup_elem(&limit_states, &slot);
}

/* Not static, nor is ask_limits(): the verifier then checks them once by themselves, not at each of their calls. */
__noinline int charge_limits(u32 slot, u64 ran_ns)
{
	struct vcpu *vcpu = vcpu_at(slot);
	struct vm_feed *feed = vcpu ? vm_feed_at(vcpu->vm) : NULL;
	u32 at;

	if (!feed)
		return 0;
	ADD(vcpu->limit.clock_ns, limit_charge(&feed->vcpu_limit, ran_ns));
	for (at = 0; at < LIMITS_PER_VM; at++) {
		u32 place = feed->limits[at] - 1;
		struct cpu_limit *limit = cpu_limit_at(place);
		struct limit_state *state = limit_state_at(place);

		if (!limit || !state)
			break;
		ADD(state->clock_ns, limit_charge(limit, ran_ns));
	}
	return 0;
}

/* ---- Asking ---- */

static __always_inline u64 ask_limit(const struct cpu_limit *limit, struct limit_state *state,
				     struct vcpu *vcpu, u32 slot, u32 active_vcpu_count, u64 now)
{
	struct cpu_limit allowed = *limit;
	struct limit_observation seen = {.now_ns = now,
					 .clock_ns = state->clock_ns,
					 .rest_until_ns = state->rest_until_ns,
					 .slice_ns = vcpu->allowed_ns,
					 .active_vcpu_count = active_vcpu_count};
	struct limit_decision decision;

	if (!is_limited(&allowed))
		return 0;
	decision = decide_on_limit(&allowed, &seen);
	RECORD(RECORD_LIMIT, slot, limit, {.limit = allowed, .seen = seen, .decision = decision});
	if (decision.clock_ns != seen.clock_ns)
		__sync_val_compare_and_swap(&state->clock_ns, seen.clock_ns, decision.clock_ns);
	state->rest_until_ns = decision.rest_until_ns;
	vcpu->allowed_ns = decision.slice_ns;
	return decision.rest_until_ns;
}

/* Until when this vCPU has to rest; 0: not at all, and allowed_ns says for how long it may run. */
__noinline u64 ask_limits(u32 slot, u32 active_vcpu_count)
{
	struct vcpu *vcpu = vcpu_at(slot);
	struct vm_feed *feed = vcpu ? vm_feed_at(vcpu->vm) : NULL;
	u64 now = bpf_ktime_get_ns(), until, other;
	u32 at;

	if (!feed)
		return 0;
	until = ask_limit(&feed->vcpu_limit, &vcpu->limit, vcpu, slot, 1, now);
	for (at = 0; at < LIMITS_PER_VM; at++) {
		u32 place = feed->limits[at] - 1;
		struct cpu_limit *limit = cpu_limit_at(place);
		struct limit_state *state = limit_state_at(place);

		if (!limit || !state)
			break;
		other = ask_limit(limit, state, vcpu, slot, active_vcpu_count, now);
		if (!until || (other && vtime_before(until, other)))
			until = other;
	}
	return until;
}

/* As ask_limits(), of any vCPU. It is allowed a last short turn if it runs all the same. */
static __always_inline u64 rests_until(struct vcpu *vcpu, u32 slot)
{
	struct vm *vm = vm_at(vcpu->vm);
	struct vm_feed *feed = vm_feed_at(vcpu->vm);
	u64 until = 0;
	s64 active;

	vcpu->allowed_ns = -1ull;
	if (!vm || !feed || !feed_is_current(feed, vm) || !has_limits(feed))
		return 0;
	active = vm->active_vcpu_count;
	until = ask_limits(slot, active > 0 ? active : 1);
	if (until)
		vcpu->allowed_ns = LIMIT_SLICE_MIN_NS;
	return until;
}

static __always_inline u64 within_limit(const struct vcpu *vcpu, u64 slice_ns)
{
	return vcpu->allowed_ns < slice_ns ? vcpu->allowed_ns : slice_ns;
}

/* ---- Resting ---- */

static __always_inline void arm_rest_timer(void)
{
	u32 key = 0;
	struct rest_timer *timer = bpf_map_lookup_elem(&rest_timers, &key);

	if (timer && !__sync_val_compare_and_swap(&rest_timer_armed, 0, 1))
		bpf_timer_start(&timer->timer, RELEASE_INTERVAL_NS, 0);
}

/* It may have no more for now. Whoever asked for it is told so; nobody else may until it is released. */
static __always_inline void enqueue_resting(struct task_struct *p, struct task_ctx *tctx, struct vcpu *vcpu,
					    u64 until_ns, u64 enq_flags)
{
	vcpu->rests = 1;
	end_acceleration(vcpu, VCPU_RUNNABLE, RETURN_NEVER_RAN);
	fail_request(vcpu, VCPU_RUNNABLE, FAILURE_LIMITED);
	vcpu->request_failure = FAILURE_LIMITED;
	vcpu->retry = 0;
	vcpu->interrupted = 0;
	vcpu->was_blocked = 0;
	tctx->queued_at_ns = bpf_ktime_get_ns();
	dsq_insert_vtime(p, DSQ_RESTING, config.fair_share.slice_ns, until_ns, enq_flags);
	arm_rest_timer();
}

/* Nothing is owed to it for the time that it rested. */
static __always_inline void release(struct bpf_iter_scx_dsq *it, struct task_struct *p, u64 now)
{
	struct task_ctx *tctx = task_ctx_of(p);
	struct vcpu *vcpu = vcpu_of(tctx);
	struct vm_stats *stats = vcpu ? vm_stats_at(vcpu->vm) : NULL;

	if (stats)
		ADD(stats->rested_ns, now - tctx->queued_at_ns);
	if (vcpu) {
		vcpu->rests = 0;
		vcpu->runnable_at_ns = now;
	}
	if (is_confined(p)) {
		s32 cpu = confined_pcpu(p);

		if (dsq_move(it, p, DSQ_CONFINED + cpu))
			scx_bpf_kick_cpu(cpu, KICK_IDLE);
		return;
	}
	if (tctx) {
		if (vtime_before(tctx->vtime_ns, pool_vtime_ns))
			tctx->vtime_ns = pool_vtime_ns;
		tctx->queued_at_ns = now;
	}
	if (dsq_move_vtime(it, p, DSQ_VCPUS, tctx ? tctx->vtime_ns : pool_vtime_ns))
		kick_idle_normal(p);
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
		bpf_timer_start(&timer->timer, RELEASE_INTERVAL_NS, 0);
		return 0;
	}
	rest_timer_armed = 0;
	/* Who came meanwhile saw that it was armed. */
	if (scx_bpf_dsq_nr_queued(DSQ_RESTING) > 0)
		arm_rest_timer();
	return 0;
}

#endif
