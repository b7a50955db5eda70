/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Looks at waiting vCPUs: for interrupts that no exit told of (policy/looks.h), and for waits that are due
 * (policy/max_wait.h).
 *
 * Mechanism. A timer looks at some slots at a time, and asks either question, or both. An interrupt that it
 *            finds goes the way of one that has just come (hints.bpf.h). Nothing is found twice in one wait.
 *            Whoever has waited for most of the bound is asked for, whatever its VM has had.
 * Races.     The vCPU may begin to run meanwhile, or take the interrupt: the pull checks again.
 */
#ifndef BPF_LOOKS_H
#define BPF_LOOKS_H

#include "bpf/mechanisms/asking/hints.bpf.h"
#include "bpf/mechanisms/max_wait.bpf.h"
#include "policy/looks.h"

struct looks_vcpu {
	u32 found; /* kinds of interrupts that looks have found since it ran last: a LOOK_BIT each */
	u32 reserved;
};

static __always_inline struct looks_vcpu *looks_of(const struct vcpu *vcpu);

struct waiting_timer {
	struct bpf_timer timer;
	struct look_state state;
	u64 due_in_ns;	   /* the first wait that this round has seen */
	u32 wanting_count; /* vCPUs that run or want to, of those that it has seen */
	u32 reserved;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct waiting_timer);
} waiting_timers SEC(".maps");

static u32 looks_began;

/* The first of these 32 vectors that is set; 0: none. */
static __always_inline u32 first_vector(u32 word, u32 bits)
{
	u32 bit = 0;

	if (!bits)
		return 0;
	bits &= -bits;
	bit |= (bits & 0xffff0000) ? 16 : 0;
	bit |= (bits & 0xff00ff00) ? 8 : 0;
	bit |= (bits & 0xf0f0f0f0) ? 4 : 0;
	bit |= (bits & 0xcccccccc) ? 2 : 0;
	bit |= (bits & 0xaaaaaaaa) ? 1 : 0;
	return word * 32 + bit;
}

/*
 * The kinds of interrupts that wait for this vCPU: 1 << enum interrupt_kind each, and from bit 32 on the
 * vector of one that is a device's. A call is waited for until it is handled.
 */
static __always_inline u64 guest_interrupts_pending(u64 kvm_vcpu)
{
	u32 system = VECTOR_SYSTEM_FIRST >> 5, devices = (1u << (VECTOR_SYSTEM_FIRST & 31)) - 1, word,
	    requested = 0;
	u8 *registers = guest_apic(kvm_vcpu);
	u64 pending = 0;

	if (!registers)
		return 0;
	bpf_for (word, VECTOR_DEVICE_FIRST >> 5, 8) {
		requested = apic_word(registers, APIC_IRR, word << 5) | posted_word(kvm_vcpu, word << 5);
		if (word == system && requested & 1u << (VECTOR_RESCHEDULE & 31))
			pending |= 1u << INTERRUPT_IPI_RESCHEDULE;
		if (word == system)
			requested &= devices;
		if (requested && !(pending >> 32))
			pending |= 1u << INTERRUPT_VIRQ | (u64)first_vector(word, requested) << 32;
	}
	if (guest_answer_to_calls(kvm_vcpu) == ANSWER_OWED)
		pending |= 1u << INTERRUPT_IPI_CALL_FUNCTION;
	return pending;
}

/* A vector of that kind, of those. */
static __always_inline u32 pending_vector(u64 pending, u32 kind)
{
	if (kind == INTERRUPT_IPI_CALL_FUNCTION)
		return VECTOR_CALL_FUNCTION;
	return kind == INTERRUPT_IPI_RESCHEDULE ? VECTOR_RESCHEDULE : pending >> 32;
}

/* True if an interrupt was found. Not static: see maps.bpf.h. */
__noinline int look_for_interrupt(u32 slot)
{
	struct vcpu *vcpu = vcpu_at(slot);
	u64 kvm_vcpu = vcpu ? vcpu->kvm_vcpu : 0, pending;
	u32 kind;

	if (!kvm_vcpu || vcpu->state != VCPU_RUNNABLE)
		return 0;
	pending = guest_interrupts_pending(kvm_vcpu);
	kind = interrupt_by_look(vcpu->state, (u32)pending & ~looks_of(vcpu)->found);
	if (kind == INTERRUPT_OTHER)
		return 0;
	looks_of(vcpu)->found |= LOOK_BIT(kind & 31);
	COUNT(host_stats.interrupts_found);
	on_interrupt(kvm_vcpu, pending_vector(pending, kind));
	return 1;
}

/* Its wait ends. */
static __always_inline void count_late_wait(const struct vcpu *vcpu)
{
	struct vm_stats *stats;

	if (!vcpu->runnable_at_ns ||
	    !is_late_wait(vcpu, elapsed_ns(vcpu->runnable_at_ns, bpf_ktime_get_ns())))
		return;
	stats = vm_stats_at(vcpu->vm);
	if (stats)
		COUNT(stats->late_waits);
}

/*
 * In how long to look at it again, if it is there. One that is due is asked for. Not static: see maps.bpf.h.
 */
__noinline u64 look_at_wait(u32 slot)
{
	struct vcpu *vcpu = vcpu_at(slot);
	struct wait_observation seen = {};
	u32 decision;

	if (!vcpu || !vcpu->kvm_vcpu || vcpu->rests)
		return MAX_WAIT_MOST_NS;
	seen.bound_ns = max_wait_of(vcpu->vm);
	if (!seen.bound_ns)
		return MAX_WAIT_MOST_NS;
	seen.state = vcpu->state;
	seen.waited_ns = elapsed_ns(vcpu->runnable_at_ns, bpf_ktime_get_ns());
	if (seen.state != VCPU_RUNNABLE && seen.state != VCPU_PENDING)
		return wait_next_look_ns(seen.bound_ns, 0);
	decision = decide_on_wait(&seen);
	if (decision == WAIT_ENDS || decision == WAIT_LATE)
		request_acceleration(slot, CAUSE_MAX_WAIT, 0);
	return wait_next_look_ns(seen.bound_ns, seen.waited_ns);
}

static __always_inline u32 wants_to_run(u32 slot)
{
	const struct vcpu *vcpu = vcpu_at(slot);

	return vcpu && vcpu->kvm_vcpu && vcpu->state != VCPU_BLOCKED;
}

/*
 * Bounds grow with so many that run or want to. Not static: within the loop that counts them 6.18's
 * verifier fails with -EFAULT.
 */
__noinline int share_bound(u32 wanting_count)
{
	if (config.max_wait_each_ns)
		host_bound_ns = max_wait_shared_ns(config.max_wait_ns, config.max_wait_each_ns, wanting_count,
						   config.pcpu_count);
	least_bound_ns = max_wait_least_now_ns(config.micro_slice_ns, wanting_count, config.pcpu_count);
	return 0;
}

/* Until the next look at some slots. A round over all of them goes on without a pause for what waits. */
static __always_inline u64 next_look_ns(const struct look_state *state, u64 due_in_ns)
{
	u64 interval_ns = config.looks_for_interrupts ? state->interval_ns : MAX_WAIT_MOST_NS, waits_ns;

	if (config.dry_run)
		return interval_ns;
	waits_ns = state->next ? LOOK_LEAST_NS : due_in_ns;
	return waits_ns < interval_ns ? waits_ns : interval_ns;
}

static int look_at_waiting(void *map, u32 *key, struct waiting_timer *timer)
{
	struct look_state state = timer->state;
	u64 due_in_ns = state.next ? timer->due_in_ns : MAX_WAIT_MOST_NS, wait_due_in_ns;
	u32 wanting_count = state.next ? timer->wanting_count : 0, visited, found_count = 0;

	bpf_for (visited, 0, LOOK_MAX) {
		if (state.next + visited >= vcpu_slots_high)
			break;
		if (config.looks_for_interrupts)
			found_count += look_for_interrupt(state.next + visited);
		/* Late waits are counted then, and no more. */
		if (config.dry_run)
			continue;
		wanting_count += wants_to_run(state.next + visited);
		wait_due_in_ns = look_at_wait(state.next + visited);
		due_in_ns = wait_due_in_ns < due_in_ns ? wait_due_in_ns : due_in_ns;
	}
	state = look_after(&state, vcpu_slots_high, found_count);
	timer->state = state;
	timer->due_in_ns = due_in_ns;
	timer->wanting_count = wanting_count;
	if (!state.next)
		share_bound(wanting_count);
	/* Where the kernel refuses it there are no looks any more. */
	START_TIMER(&timer->timer, next_look_ns(&state, due_in_ns), 0, host_stats.interrupts_timers_refused);
	return 0;
}

/*
 * The first tick begins it: what a timer does is verified with the program that sets its callback, and the
 * scheduler's start may sleep, so that it holds no RCU.
 */
static __noinline int begin_looks(void)
{
	u32 key = 0;
	struct waiting_timer *timer = bpf_map_lookup_elem(&waiting_timers, &key);

	if (!timer || looks_began || __sync_val_compare_and_swap(&looks_began, 0, 1))
		return 0;
	bpf_timer_set_callback(&timer->timer, look_at_waiting);
	START_TIMER(&timer->timer, LOOK_LEAST_NS, 0, host_stats.interrupts_timers_refused);
	return 0;
}

static __noinline int init_looks(void)
{
	u32 key = 0;
	struct waiting_timer *timer = bpf_map_lookup_elem(&waiting_timers, &key);

	if (!timer)
		return -ENOMEM;
	bpf_timer_init(&timer->timer, &waiting_timers, CLOCK_MONOTONIC);
	return 0;
}

#endif
