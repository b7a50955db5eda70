/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Boosts: from "this vCPU is needed" to a micro slice, beside the kernel's own scheduler.
 *
 * Problem.   Without sched_ext no BPF program may say which task runs.
 * Mechanism. A request marks the vCPU pending and wakes the helper (crates/host/src/beside), which makes its
 *            thread real-time. When the thread then runs, it is in its micro slice. The helper takes the
 *            boost back after a micro slice, or once it hears that the vCPU is served: it has left critical
 *            code and taken its interrupt, or sleeps.
 * Races.     The kernel may run the vCPU before the helper comes: that is a miss, and the helper finds it
 *            running. A thread that is boosted too late runs real-time until the helper's next look, at most
 *            a micro slice.
 *            Bounds on waits (policy/max_wait.h) ask, too: the helper looks at whoever waits, and whoever is
 *            due has a whole micro slice, which no budget refuses or is charged for.
 *            A vCPU that was woken and has to wait has a whole one, too: nobody knows what it was woken for.
 */
#ifndef BPF_BOOST_H
#define BPF_BOOST_H

#include "bpf/core/vcpu.bpf.h"

/* include/uapi/linux/sched.h */
#define SCHED_NORMAL 0u
#define SCHED_FIFO 1u
#define SCHED_BATCH 3u
#define SCHED_IDLE 5u
#define SCHED_DEADLINE 6u

struct boost_vcpu {
	u64 asked_at_ns;
	u64 began_at_ns;
	u64 runs_on_since_ns; /* outside a micro slice */
	u64 start_ns;	      /* when its thread was started */
	u64 running_since_ns;
	u32 cause;
	u32 vector; /* of the interrupt that it is about; 0: none */
	u32 retry_count;
	u32 is_seen; /* it has left its guest in this thread */
	u32 is_real_time;
	u32 is_pinned;
	u32 is_granted; /* the helper was told of a boost that it hasn't taken back */
	u32 stopped_on; /* the pCPU of its last turn */
};

struct boost_vm {
	u64 clock_ns; /* of its budget: policy/boost_budget.h */
	struct boost_stats stats;
};

static __always_inline struct boost_vcpu *boost_of(const struct vcpu *vcpu);
static __always_inline struct boost_vm *boosts_in(const struct vm *vm);

/* Requests and ends, to the helper. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 64 * 1024);
} boost_events SEC(".maps");

/* When the helper took a boost of each vCPU back last, by the monotonic clock. Written by the helper only. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, VCPUS_MAX);
	__type(key, u32);
	__type(value, u64);
} taken_back_at SEC(".maps");

/* The host's budget: policy/boost_budget.h. */
u64 host_boost_clock_ns;

static __always_inline bool is_for_bound(const struct vcpu *vcpu)
{
	return boost_of(vcpu)->cause == CAUSE_MAX_WAIT;
}

/* Nobody asks for it but its own wait. So no exit shows that it is served, and it has a whole micro slice. */
static __always_inline bool asks_for_itself(const struct vcpu *vcpu)
{
	return is_for_bound(vcpu) || boost_of(vcpu)->cause == CAUSE_WOKEN;
}

static __always_inline bool tell_helper(const struct vcpu *vcpu, u32 slot, u32 kind)
{
	bool by_itself = asks_for_itself(vcpu) || (u32)bpf_get_current_task_btf()->pid == vcpu->pid;
	struct boost_event event = {.kind = kind,
				    .slot = slot,
				    .tid = vcpu->pid,
				    .asked_on = by_itself ? ASKED_BY_ITSELF : bpf_get_smp_processor_id(),
				    .waits_on = boost_of(vcpu)->stopped_on,
				    .for_bound = is_for_bound(vcpu),
				    .start_ns = boost_of(vcpu)->start_ns,
				    .at_ns = boost_of(vcpu)->asked_at_ns};

	return !bpf_ringbuf_output(&boost_events, &event, sizeof(event), BPF_RB_FORCE_WAKEUP);
}

/* ---- Request (any context) ---- */

static __always_inline u32 decide(const struct vcpu *vcpu, u32 slot, const struct vm *vm, u64 now)
{
	struct boost_config limits = config.boost;
	struct boost_observation seen = {.now_ns = now,
					 .vm_clock_ns = boosts_in(vm)->clock_ns,
					 .host_clock_ns = host_boost_clock_ns,
					 .is_seen = boost_of(vcpu)->is_seen,
					 .is_real_time = boost_of(vcpu)->is_real_time,
					 .is_pinned = boost_of(vcpu)->is_pinned,
					 .for_bound = is_for_bound(vcpu),
					 .is_woken = boost_of(vcpu)->cause == CAUSE_WOKEN};
	u32 decision = decide_on_boost(&limits, &seen);

	RECORD(RECORD_BOOST, slot, boost, {.config = limits, .seen = seen, .decision = decision});
	return decision;
}

/*
 * Asks the helper to boost this vCPU. True if help is on its way.
 * Not static: the verifier then checks it once by itself, not at each of its calls.
 */
__noinline int ask_for_boost(u32 slot, u32 cause, u32 vector)
{
	struct vcpu *vcpu = vcpu_at(slot);
	struct vm *vm = vcpu ? vm_at(vcpu->vm) : NULL;
	u64 now = bpf_ktime_get_ns();
	u32 decision, class;

	if (!vcpu || !vm || cause >= CAUSE_COUNT)
		return 0;
	if (config.dry_run) {
		struct vm_stats *stats = vm_stats_at(vcpu->vm);

		class = vcpu->guest_class;
		if (stats && class < GUEST_CLASS_COUNT)
			COUNT(stats->would_request[cause][class]);
		return 0;
	}
	if (!vcpu_moves(vcpu, VCPU_RUNNABLE, VCPU_PENDING))
		return 0;
	COUNT(boosts_in(vm)->stats.requests[cause]);
	boost_of(vcpu)->cause = cause;
	decision = decide(vcpu, slot, vm, now);
	boost_of(vcpu)->vector = vector;
	boost_of(vcpu)->asked_at_ns = now;
	if (decision == BOOST_GRANTED && !tell_helper(vcpu, slot, BOOST_ASKED))
		decision = BOOST_NO_ROOM;
	if (decision == BOOST_GRANTED) {
		boost_of(vcpu)->is_granted = true;
		return 1;
	}
	/* Unless it runs meanwhile: then it was counted as missed. */
	if (vcpu_moves(vcpu, VCPU_PENDING, VCPU_RUNNABLE) && decision < BOOST_DECISION_COUNT)
		COUNT(boosts_in(vm)->stats.refusals[decision]);
	return 0;
}

/* What was granted comes to nothing. */
static __always_inline void miss_boost(struct vcpu *vcpu, u32 to_state, u32 miss)
{
	struct vm *vm = vm_at(vcpu->vm);

	if (vcpu_moves(vcpu, VCPU_PENDING, to_state) && vm && miss < BOOST_MISS_COUNT)
		COUNT(boosts_in(vm)->stats.missed[miss]);
}

/* ---- The micro slice (in the vCPU's thread, or where it is switched to) ---- */

static __always_inline void begin_boost(struct vcpu *vcpu, u64 now)
{
	u32 cause = boost_of(vcpu)->cause, class = vcpu->guest_class, bucket;
	struct vm *vm = vm_at(vcpu->vm);

	if (!vcpu_moves(vcpu, VCPU_PENDING, VCPU_MICRO) || !vm)
		return;
	boost_of(vcpu)->began_at_ns = now;
	if (cause < CAUSE_COUNT && class < GUEST_CLASS_COUNT)
		COUNT(boosts_in(vm)->stats.boosts[cause][class]);
	bucket = histogram_bucket(elapsed_ns(boost_of(vcpu)->asked_at_ns, now));
	if (bucket < HISTOGRAM_BUCKETS)
		COUNT(boosts_in(vm)->stats.wait_us[bucket]);
}

static __always_inline void move_clock(u64 *clock_ns, u64 now, u64 cost_ns)
{
	struct boost_config limits = config.boost;
	u64 was = *clock_ns, kept = boost_clock(&limits, now, was);

	/* The writer that moved it meanwhile has brought it into bounds. */
	if (kept != was)
		__sync_val_compare_and_swap(clock_ns, was, kept);
	__sync_fetch_and_add(clock_ns, cost_ns);
}

/* When the helper took its boost back after `since`; 0: it hasn't. */
static __always_inline u64 taken_back_after(u32 slot, u64 since)
{
	u64 *taken_back = bpf_map_lookup_elem(&taken_back_at, &slot);

	return taken_back && *taken_back > since ? *taken_back : 0;
}

static __always_inline void charge_vm(struct vm *vm, u64 now, u64 ran_ns)
{
	struct boost_config limits = config.boost;

	move_clock(&boosts_in(vm)->clock_ns, now, boost_cost(&limits, limits.vm_percent, ran_ns));
	move_clock(&host_boost_clock_ns, now, boost_cost(&limits, limits.host_percent, ran_ns));
	ADD(boosts_in(vm)->stats.ran_ns, ran_ns);
}

/* It ran boosted from its beginning until the helper took that back, or until now. */
static __always_inline void charge_boost(const struct vcpu *vcpu, struct vm *vm, u32 slot, u64 now)
{
	u64 began = boost_of(vcpu)->began_at_ns, end = taken_back_after(slot, began), ran_ns;
	u32 bucket;

	ran_ns = (end && end < now ? end : now) - began;
	if (is_for_bound(vcpu))
		ADD(boosts_in(vm)->stats.ran_ns, ran_ns);
	else
		charge_vm(vm, now, ran_ns);
	bucket = histogram_bucket(ran_ns);
	if (bucket < HISTOGRAM_BUCKETS)
		COUNT(boosts_in(vm)->stats.slice_us[bucket]);
}

/*
 * It stops, outside a micro slice: it was served, or had run before the helper came. For as long as it ran on
 * real-time it pays, too: until the helper took the boost back, or until now.
 */
static __always_inline void charge_what_ran_on(struct vcpu *vcpu, u32 slot, bool is_boosted, u64 now)
{
	struct vm *vm = vm_at(vcpu->vm);
	u64 since = boost_of(vcpu)->runs_on_since_ns, end = taken_back_after(slot, since);

	if (!vm || !boost_of(vcpu)->is_granted)
		return;
	if (end || !is_boosted)
		boost_of(vcpu)->is_granted = false;
	if (end && end < now)
		charge_vm(vm, now, end - since);
	else if (is_boosted)
		charge_vm(vm, now, now - since);
}

static __always_inline struct micro_slice_decision look_at_boost(const struct vcpu *vcpu, u32 slot, u32 class,
								 u32 blocked)
{
	struct accelerate_config limits = config.accelerate;
	struct micro_slice_observation seen = {
	    .guest_class = class, .blocked = blocked, .retry_count = boost_of(vcpu)->retry_count};
	struct micro_slice_decision decision;

	seen.interrupt_pending = guest_interrupt_pending(vcpu->kvm_vcpu, boost_of(vcpu)->vector);
	seen.answer = guest_answer_to_calls(vcpu->kvm_vcpu);
	decision = decide_after_micro_slice(&limits, &seen);
	RECORD(RECORD_MICRO_SLICE, slot, micro_slice, {.config = limits, .seen = seen, .decision = decision});
	return decision;
}

/* The one place where ends are counted. */
static __always_inline void end_boost(struct vcpu *vcpu, u32 slot, u32 to_state, u32 outcome, u64 now)
{
	struct vm *vm = vm_at(vcpu->vm);

	if (!vcpu_moves(vcpu, VCPU_MICRO, to_state) || !vm)
		return;
	charge_boost(vcpu, vm, slot, now);
	if (outcome < MICRO_SLICE_OUTCOME_COUNT)
		COUNT(boosts_in(vm)->stats.ends[outcome]);
}

/*
 * A boosted vCPU has left its guest, and runs on: is it served? Not inline, and not static: see
 * ask_for_boost().
 */
__noinline int look_at_exit(u32 slot, u64 rip, u32 is_boosted)
{
	struct vcpu *vcpu = vcpu_at(slot);
	struct micro_slice_decision decision;
	u32 class;

	if (!vcpu || vcpu->state != VCPU_MICRO || (is_boosted && asks_for_itself(vcpu)))
		return 0;
	class = look_at_count(slot, classify_rip(slot, vcpu->vm, vcpu->kvm_vcpu, rip));
	decision = look_at_boost(vcpu, slot, class, 0);
	if (is_boosted && (decision.outcome != MICRO_SLICE_SERVED || decision.retry))
		return 0;
	boost_of(vcpu)->runs_on_since_ns = bpf_ktime_get_ns();
	end_boost(vcpu, slot, VCPU_RUNNING, decision.outcome, boost_of(vcpu)->runs_on_since_ns);
	if (is_boosted)
		tell_helper(vcpu, slot, BOOST_SERVED);
	return 0;
}

/*
 * It is switched out, and its boost with it: it sleeps, or was taken back. True if it should be asked for
 * again.
 */
__noinline int end_with_turn(u32 slot, u32 runnable)
{
	struct vcpu *vcpu = vcpu_at(slot);
	struct micro_slice_decision decision;

	if (!vcpu)
		return 0;
	decision = look_at_boost(vcpu, slot, vcpu->guest_class, !runnable);
	end_boost(vcpu, slot, runnable ? VCPU_RUNNABLE : VCPU_BLOCKED, decision.outcome, bpf_ktime_get_ns());
	boost_of(vcpu)->retry_count = decision.retry ? boost_of(vcpu)->retry_count + 1 : 0;
	if (!runnable)
		tell_helper(vcpu, slot, BOOST_SERVED);
	return runnable && decision.retry && !is_for_bound(vcpu);
}

/*
 * The helper may preempt the thread that it boosted, and take that back while it is stopped: then it waits
 * like any other, and no tracepoint tells. The helper has it settled.
 */
__noinline int settle_taken_back(u32 slot)
{
	struct vcpu *vcpu = vcpu_at(slot);

	if (vcpu && vcpu->state == VCPU_MICRO && vcpu->preempted &&
	    taken_back_after(slot, boost_of(vcpu)->began_at_ns))
		end_with_turn(slot, 1);
	return 0;
}

#endif
