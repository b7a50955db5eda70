/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * CPU limits: cpu.max of cgroups, kept by policy/cpu_limit.h.
 *
 * Problem.   The kernel tells schedulers of limits only after 6.16. It leaves all of it to them: what each
 *            cgroup used, which tasks have to stop, and when they may go on.
 * Mechanism. The daemon reads cpu.max (crates/host/src/shares/limits.rs), and says which limits count for the
 *            tasks of which cgroup. A task that is queued, or goes on, asks all of them. If one says that it
 *            has to rest, its next turn is reserved from all. Until then it waits in a queue that no pCPU
 *            serves, ordered by when it may run. A timer moves it back to the others. A task that needn't
 *            rest pays for its turn when that begins. What a turn didn't use, or used beyond, is settled when
 *            it ends. A timer of the pCPU ends turns that a limit makes shorter: the next tick may be
 *            milliseconds away.
 * Races.     Two pCPUs may ask a limit at once: both see nearly the same. Each pays for its own turn all the
 *            same, so this is a debt, and the next ones rest for longer.
 *            A limit is changed while tasks rest by the old one: they are released, and keep what they have
 *            paid for. No task rests in the kernel (as with the kernel's own limits from 6.18 on): it would
 *            do so with its locks. Where a task stopped is known a moment later (bpf/core/stops.bpf.h). Until
 *            then it waits in a queue of its own. Then it rests, or goes on by its reserved turn. A woken
 *            task goes on at once. Tasks that go on have turns of different lengths: one of them ends in user
 *            mode, and the rest that was due begins there. A task may evade that by long system calls. It
 *            goes on for LIMIT_IN_KERNEL_MAX_NS, and then rests where it stops, a little at a time.
 * Limits.    Kernel threads never rest, nor does a task that ends, nor one that was stopped as an RCU reader:
 *            a stall of RCU, 21 seconds, would end the scheduler. A vCPU that was preempted in KVM where it
 *            serves a request of KVM's own rests there. Of the limits of a cgroup the LIMITS_PER_CGROUP
 *            tightest count; LIMITS_MAX and LIMITED_CGROUPS_MAX: the daemon says what is beyond. Reserved
 *            turns are as long for all tasks: weights count for the rest of a window only.
 */
#ifndef BPF_CPU_LIMIT_H
#define BPF_CPU_LIMIT_H

#include "bpf/core/domains.bpf.h"
#include "bpf/core/stops.bpf.h"

struct rest_timer {
	struct bpf_timer timer;
	u64 fires_at_ns;
	u32 look_count; /* how many more resting tasks may be looked at this time */
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct rest_timer);
} rest_timers SEC(".maps");

/* Of each pCPU: it ends the turn under way, if a limit makes that shorter. */
struct turn_timer {
	struct bpf_timer timer;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, PCPUS_MAX);
	__type(key, u32);
	__type(value, struct turn_timer);
} turn_timers SEC(".maps");

#define RELEASE_INTERVAL_MIN_NS 100000ull
#define RELEASE_INTERVAL_MAX_NS 2000000ull
#define RELEASE_LOOK_MAX 64u
/* Until it is asked where a task stopped. */
#define STOPPED_LOOK_NS 1000000ull
/* The kernel tells within microseconds. If not, the task stopped before anybody listened, anywhere. */
#define STOPPED_UNSEEN_MAX_NS 20000000ull
#define UNLIMITED_NS (~0ull)

/* ---- Accounting ---- */

static __always_inline struct cpu_limit *cpu_limit_at(u32 place)
{
	return bpf_map_lookup_elem(&cpu_limits, &place);
}

static __always_inline struct limit_state *limit_state_at(u32 place)
{
	return bpf_map_lookup_elem(&limit_states, &place);
}

/*
 * Its tasks ran for so long, and had paid for so much. None of the functions that walk limits is static: the
 * verifier then checks each once by itself, not at each of its calls. False: there is no such limit.
 */
__noinline int settle_limit(u32 place, u64 ran_ns, u64 paid_ns)
{
	struct cpu_limit *limit = cpu_limit_at(place);
	struct limit_state *state = limit_state_at(place);

	if (!limit || !state)
		return false;
	ADD(state->clock_ns, limit_charge(limit, ran_ns) - limit_charge(limit, paid_ns));
	return true;
}

__noinline int settle_limits(u64 cgroup, u64 ran_ns, u64 paid_ns)
{
	struct limit_chain *chain = bpf_map_lookup_elem(&limit_chains, &cgroup);
	u32 at;

	if (!chain)
		return 0;
	for (at = 0; at < LIMITS_PER_CGROUP; at++) {
		if (!settle_limit(chain->places[at] - 1, ran_ns, paid_ns))
			break;
	}
	return 0;
}

/* What it ran for since it was charged last, by the kernel's own count: so a limit holds by cpu.stat. */
static __always_inline u64 ran_since_charged(struct task_struct *p, struct task_ctx *tctx)
{
	u64 total_ns = p->se.sum_exec_runtime, ran_ns = total_ns - tctx->limit.charged_until_ns;

	tctx->limit.charged_until_ns = total_ns;
	return ran_ns;
}

static __always_inline void charge_limits_of(struct task_struct *p, struct task_ctx *tctx)
{
	u64 paid_ns = tctx->limit.paid_ns;

	if (paid_ns) {
		/* To the limits that it has paid to: it may have moved meanwhile. */
		tctx->limit.paid_ns = 0;
		settle_limits(tctx->limit.by, ran_since_charged(p, tctx), paid_ns);
	} else if (limits_in_force) {
		settle_limits(cgroup_of(p), ran_since_charged(p, tctx), 0);
	}
	if (tctx->limit.goes_on)
		tctx->limit.went_on_ns += bpf_ktime_get_ns() - tctx->running_since_ns;
	tctx->limit.goes_on = false;
}

/* ---- Asking ---- */

/*
 * One of its limits: allowed_ns gets no longer by it, rests_until_ns no earlier. False: there is no such
 * limit.
 */
__noinline int ask_limit(u32 place, struct task_ctx *tctx, u32 active_count, u64 now)
{
	struct cpu_limit *limit = cpu_limit_at(place), allowed;
	struct limit_state *state = limit_state_at(place);
	struct limit_observation seen = {.now_ns = now, .active_count = active_count};
	struct limit_decision decision;

	if (!limit || !state || !tctx)
		return false;
	allowed = *limit;
	/* What was reserved from another limit is nothing to this one. */
	if (state->quota_us != allowed.quota_us || state->period_us != allowed.period_us) {
		state->quota_us = allowed.quota_us;
		state->period_us = allowed.period_us;
		state->clock_ns = 0;
	}
	seen.clock_ns = state->clock_ns;
	seen.slice_ns = tctx->limit.allowed_ns;
	decision = decide_on_limit(&allowed, &seen);
	RECORD(RECORD_LIMIT, tctx->vcpu - 1, limit, {.limit = allowed, .seen = seen, .decision = decision});
	if (decision.clock_ns != seen.clock_ns)
		__sync_val_compare_and_swap(&state->clock_ns, seen.clock_ns, decision.clock_ns);
	tctx->limit.allowed_ns = decision.turn_ns;
	if (vtime_before(tctx->limit.rests_until_ns, decision.rest_until_ns))
		tctx->limit.rests_until_ns = decision.rest_until_ns;
	return true;
}

/*
 * How long the next turn of a task of this cgroup may be, and until when it has to rest before. The turn is
 * reserved if it has to, or if it begins now, for begins_ns at most.
 */
__noinline int ask_limits(struct task_ctx *tctx, u64 cgroup, u32 active_count, u64 begins_ns)
{
	struct limit_chain *chain = bpf_map_lookup_elem(&limit_chains, &cgroup);
	u64 now = bpf_ktime_get_ns();
	u32 at;

	if (!tctx || !chain)
		return 0;
	tctx->limit.allowed_ns = begins_ns ? begins_ns : UNLIMITED_NS;
	tctx->limit.rests_until_ns = now;
	for (at = 0; at < LIMITS_PER_CGROUP; at++) {
		if (!ask_limit(chain->places[at] - 1, tctx, active_count, now))
			break;
	}
	if (!at || (tctx->limit.rests_until_ns == now && !begins_ns))
		return 0;
	tctx->limit.by = cgroup;
	tctx->limit.reserved_ns = tctx->limit.allowed_ns;
	settle_limits(cgroup, tctx->limit.reserved_ns, 0);
	return 0;
}

static __always_inline void ask_limits_of(struct task_struct *p, struct task_ctx *tctx,
					  const struct vcpu *vcpu, u64 begins_ns)
{
	struct vm *vm = vcpu ? vm_at(vcpu->vm) : NULL;
	s64 active = vm ? vm->active_vcpu_count : 1;

	ask_limits(tctx, cgroup_of(p), active > 0 ? active : 1, begins_ns);
}

static __always_inline bool may_be_limited(struct task_struct *p)
{
	return limits_in_force && !(p->flags & (PF_KTHREAD | PF_EXITING));
}

/* It stopped in the kernel, and goes on there in place of a rest. */
static __always_inline bool goes_on_in_kernel(const struct task_struct *p, const struct task_ctx *tctx)
{
	return tctx->stop.is_seen && stopped_in_kernel(p, tctx) && limit_lets_go_on(tctx->limit.went_on_ns);
}

/* Until when it has to rest before its next turn; 0: not at all. Asked twice, it says the same. */
static __always_inline u64 rests_until(struct task_struct *p, struct task_ctx *tctx, struct vcpu *vcpu)
{
	if (!may_be_limited(p))
		return 0;
	if (!tctx->limit.reserved_ns)
		ask_limits_of(p, tctx, vcpu, 0);
	if (!tctx->limit.reserved_ns || !vtime_before(bpf_ktime_get_ns(), tctx->limit.rests_until_ns))
		return 0;
	/* It goes on, by turns that it pays for, until it has read, or is in user mode. */
	if (is_rcu_reader(p) || goes_on_in_kernel(p, tctx))
		return 0;
	return tctx->limit.rests_until_ns;
}

/* ---- Turns ---- */

static int end_limited_turn(void *map, u32 *cpu, struct turn_timer *timer)
{
	struct pcpu *pcpu = pcpu_of(*cpu);
	u64 now = bpf_ktime_get_ns(), until;

	until = pcpu ? pcpu->limited_until_ns : 0;
	if (!until)
		return 0;
	if (vtime_before(now, until)) {
		START_TIMER(&timer->timer, until - now, BPF_F_TIMER_CPU_PIN, host_stats.turn_timers_refused);
		return 0;
	}
	pcpu->limited_until_ns = 0;
	scx_bpf_kick_cpu(*cpu, KICK_PREEMPT);
	return 0;
}

/*
 * Its turn begins, and is paid for. Returns how long it may be, slice_ns at most. Where the kernel refuses
 * the timer it ends with the host's next tick.
 */
static __always_inline u64 begin_limited_turn(struct task_struct *p, struct task_ctx *tctx,
					      const struct vcpu *vcpu, struct pcpu *pcpu, u64 slice_ns)
{
	u32 key = scx_bpf_task_cpu(p);
	struct turn_timer *timer;

	tctx->limit.allowed_ns = UNLIMITED_NS;
	tctx->limit.charged_until_ns = p->se.sum_exec_runtime;
	pcpu->limited_until_ns = 0;
	if (!may_be_limited(p) && !tctx->limit.reserved_ns)
		return slice_ns;
	if (!tctx->limit.reserved_ns)
		ask_limits_of(p, tctx, vcpu, slice_ns);
	tctx->limit.paid_ns = tctx->limit.reserved_ns;
	tctx->limit.reserved_ns = 0;
	if (!tctx->limit.paid_ns)
		return slice_ns;
	tctx->limit.allowed_ns = tctx->limit.paid_ns;
	if (!tctx->limit.goes_on)
		tctx->limit.goes_on = vtime_before(bpf_ktime_get_ns(), tctx->limit.rests_until_ns) &&
				      goes_on_in_kernel(p, tctx);
	/* After a rest in the kernel its turn is as long as usual there: what wasn't paid for is a debt. */
	if (tctx->limit.goes_on && !is_rcu_reader(p))
		tctx->limit.allowed_ns = limit_turn_in_kernel(
		    tctx->limit.rested_in_kernel ? LIMIT_TURN_IN_KERNEL_MAX_NS : tctx->limit.paid_ns,
		    tctx->limit.went_on++);
	if (tctx->limit.allowed_ns >= slice_ns)
		return slice_ns;
	timer = bpf_map_lookup_elem(&turn_timers, &key);
	pcpu->limited_until_ns = bpf_ktime_get_ns() + tctx->limit.allowed_ns;
	if (timer)
		START_TIMER(&timer->timer, tctx->limit.allowed_ns, BPF_F_TIMER_CPU_PIN,
			    host_stats.turn_timers_refused);
	return tctx->limit.allowed_ns;
}

/* ---- Resting ---- */

/* False: nobody would end a rest that begins now. */
static __always_inline bool arm_rest_timer(u64 until_ns)
{
	u32 key = 0;
	struct rest_timer *timer = bpf_map_lookup_elem(&rest_timers, &key);
	u64 now = bpf_ktime_get_ns(), delay_ns = RELEASE_INTERVAL_MIN_NS;

	if (!timer)
		return false;
	if (rest_timer_armed && !vtime_before(until_ns, timer->fires_at_ns))
		return true;
	if (vtime_before(now + RELEASE_INTERVAL_MAX_NS, until_ns))
		delay_ns = RELEASE_INTERVAL_MAX_NS;
	else if (vtime_before(now + delay_ns, until_ns))
		delay_ns = until_ns - now;
	rest_timer_armed = 1;
	timer->fires_at_ns = now + delay_ns;
	if (START_TIMER(&timer->timer, delay_ns, 0, host_stats.rest_timers_refused))
		return true;
	rest_timer_armed = 0;
	return false;
}

static __always_inline bool somebody_rests(void)
{
	return scx_bpf_dsq_nr_queued(DSQ_RESTING) > 0 || scx_bpf_dsq_nr_queued(DSQ_STOPPED) > 0;
}

/* A task rests, and the timer isn't armed: the kernel refused it, or it fired just before. */
static __always_inline void mend_rest_timer(void)
{
	if (!rest_timer_armed && somebody_rests())
		arm_rest_timer(bpf_ktime_get_ns());
}

/*
 * It may have no more for now. A mechanism that asked for it is told so; none may ask until it is released.
 */
static __always_inline void enqueue_resting(struct task_struct *p, struct task_ctx *tctx, struct vcpu *vcpu,
					    u64 until_ns, u64 enq_flags)
{
	if (vcpu) {
		on_rest(vcpu);
		vcpu->was_blocked = 0;
	}
	tctx->queued_at_ns = bpf_ktime_get_ns();
	if (!tctx->stop.is_seen) {
		dsq_insert_vtime(p, DSQ_STOPPED, config.others_slice_ns, tctx->queued_at_ns, enq_flags);
		arm_rest_timer(tctx->queued_at_ns + STOPPED_LOOK_NS);
	} else {
		if (stopped_in_kernel(p, tctx))
			until_ns = limit_rest_in_kernel_until(tctx->queued_at_ns, until_ns,
							      tctx->limit.rested_in_kernel++);
		dsq_insert_vtime(p, DSQ_RESTING, config.others_slice_ns, until_ns, enq_flags);
	}
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
	if (!tctx->limit.goes_on && !stopped_in_kernel(p, tctx)) {
		tctx->limit.went_on_ns = 0;
		tctx->limit.rested_in_kernel = 0;
	} else if (!tctx->limit.goes_on) {
		/* The rest that was due is over. The lock that it holds next is another one. */
		tctx->limit.rested_in_kernel /= 2;
	}
	count_rest(vcpu, elapsed_ns(tctx->queued_at_ns, now));
	tctx->limit.rests_until_ns = now;
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
	if (dsq_move_vtime(it, p,
			   vcpu || tctx->host.gives_way ? line_of(p, tctx, vcpu) : line_of_others(p, -1),
			   tctx->vtime_ns)) {
		if (vcpu)
			kick_idle_for_vcpu(p);
		else
			kick_idle_normal(p);
	}
}

/* It rests by limits of before they changed. */
static __always_inline bool rests_by_old_limits(struct task_struct *p)
{
	struct task_ctx *tctx = task_ctx_of(p);

	return tctx && vtime_before(tctx->queued_at_ns, limits_changed_at_ns);
}

/* Does it go on now? Otherwise it rests, if where it stopped is known. */
static __always_inline bool goes_on_from_stop(struct bpf_iter_scx_dsq *it, struct task_struct *p, u64 now)
{
	struct task_ctx *tctx = task_ctx_of(p);
	bool is_unseen = tctx && !tctx->stop.is_seen;
	u64 until_ns;

	if (!tctx || (is_unseen && elapsed_ns(tctx->queued_at_ns, now) < STOPPED_UNSEEN_MAX_NS))
		return false;
	if (goes_on_in_kernel(p, tctx) || (is_unseen && limit_lets_go_on(tctx->limit.went_on_ns))) {
		tctx->limit.goes_on = true;
		return true;
	}
	if (!vtime_before(now, tctx->limit.rests_until_ns))
		return true;
	until_ns = tctx->limit.rests_until_ns;
	if (is_unseen || stopped_in_kernel(p, tctx))
		until_ns = limit_rest_in_kernel_until(now, until_ns, tctx->limit.rested_in_kernel++);
	dsq_move_vtime(it, p, DSQ_RESTING, until_ns);
	return false;
}

/* A rest in the kernel is over before the one that is due: the task goes on there. */
static __always_inline void note_rest_in_kernel(struct task_struct *p, u64 now)
{
	struct task_ctx *tctx = task_ctx_of(p);

	if (tctx && (!tctx->stop.is_seen || stopped_in_kernel(p, tctx)) &&
	    vtime_before(now, tctx->limit.rests_until_ns))
		tctx->limit.goes_on = true;
}

/* Which tasks are looked at, one kind after the other. */
enum rest_look {
	LOOK_STOPPED = 0,
	LOOK_DUE = 1,
	LOOK_BY_OLD_LIMITS = 2,
	REST_LOOK_COUNT = 3,
};

static __always_inline bool ends_rest(struct bpf_iter_scx_dsq *it, struct task_struct *p, u64 now, u32 look)
{
	if (look == LOOK_STOPPED)
		return goes_on_from_stop(it, p, now);
	if (look == LOOK_DUE)
		note_rest_in_kernel(p, now);
	return look == LOOK_DUE || rests_by_old_limits(p);
}

/* For as long as a task rests. */
static int end_rests(void *map, u32 *key, struct rest_timer *timer)
{
	u64 now = bpf_ktime_get_ns(), next_ns = now + RELEASE_INTERVAL_MAX_NS;
	struct task_struct *p;
	u32 look;

	rest_timer_armed = 0;
	/* 6.16 takes the callback of a timer that a sleepable program initialised for sleepable. */
	bpf_rcu_read_lock();
	/* One loop in another: the verifier checks what ends a rest once, not for each kind. */
	bpf_for (look, 0, REST_LOOK_COUNT) {
		/* The longest rests are those that a limit of before made. */
		u64 last_first = look == LOOK_BY_OLD_LIMITS
				     ? bpf_core_enum_value(enum scx_dsq_iter_flags, SCX_DSQ_ITER_REV)
				     : 0;

		if (look == LOOK_BY_OLD_LIMITS && now - limits_changed_at_ns >= LIMIT_REST_MAX_NS)
			break;
		timer->look_count = RELEASE_LOOK_MAX;
		for_each_queued_from(p, look == LOOK_STOPPED ? DSQ_STOPPED : DSQ_RESTING, last_first)
		{
			bool is_due = look != LOOK_DUE || !vtime_before(now, p->scx.dsq_vtime);

			if (!timer->look_count || !is_due) {
				if (look == LOOK_DUE)
					next_ns = p->scx.dsq_vtime;
				break;
			}
			timer->look_count--;
			if (ends_rest(&it, p, now, look))
				release(&it, p, now);
		}
	}
	bpf_rcu_read_unlock();
	/*
	 * A task that came meanwhile may have armed it. Where the kernel refuses it, sweep_queues() tries
	 * again.
	 */
	if (scx_bpf_dsq_nr_queued(DSQ_STOPPED) > 0 && vtime_before(now + STOPPED_LOOK_NS, next_ns))
		next_ns = now + STOPPED_LOOK_NS;
	if (somebody_rests())
		arm_rest_timer(next_ns);
	return 0;
}

#endif
