/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Looks: interrupts that wait for a waiting vCPU, and that no exit told of (policy/looks.h).
 *
 * Mechanism. A timer looks at some slots at a time. What it finds goes the way of an interrupt that has just
 *            come (hints.bpf.h). Nothing is found twice in one wait.
 * Races.     The vCPU may begin to run meanwhile, or take the interrupt: the pull checks again.
 */
#ifndef BPF_LOOKS_H
#define BPF_LOOKS_H

#include "bpf/mechanisms/hints.bpf.h"
#include "policy/looks.h"

struct looks_vcpu {
	u32 found; /* kinds of interrupts that looks have found since it ran last: a LOOK_BIT each */
	u32 reserved;
};

static __always_inline struct looks_vcpu *looks_of(const struct vcpu *vcpu);

struct interrupts_timer {
	struct bpf_timer timer;
	struct look_state state;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct interrupts_timer);
} interrupts_timers SEC(".maps");

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

static int look_for_interrupts(void *map, u32 *key, struct interrupts_timer *timer)
{
	struct look_state state = timer->state;
	u32 visited, found_count = 0;

	bpf_for (visited, 0, LOOK_MAX) {
		if (state.next + visited >= vcpu_slots_high)
			break;
		found_count += look_for_interrupt(state.next + visited);
	}
	timer->state = look_after(&state, vcpu_slots_high, found_count);
	/* Where the kernel refuses it there are no looks any more. */
	START_TIMER(&timer->timer, timer->state.interval_ns, 0, host_stats.interrupts_timers_refused);
	return 0;
}

/*
 * The first tick begins it: what a timer does is verified with the program that sets its callback, and the
 * scheduler's start may sleep, so that it holds no RCU.
 */
static __noinline int begin_looks(void)
{
	u32 key = 0;
	struct interrupts_timer *timer = bpf_map_lookup_elem(&interrupts_timers, &key);

	if (!timer || looks_began || __sync_val_compare_and_swap(&looks_began, 0, 1))
		return 0;
	bpf_timer_set_callback(&timer->timer, look_for_interrupts);
	START_TIMER(&timer->timer, LOOK_LEAST_NS, 0, host_stats.interrupts_timers_refused);
	return 0;
}

static __noinline int init_looks(void)
{
	u32 key = 0;
	struct interrupts_timer *timer = bpf_map_lookup_elem(&interrupts_timers, &key);

	if (!timer)
		return -ENOMEM;
	bpf_timer_init(&timer->timer, &interrupts_timers, CLOCK_MONOTONIC);
	return 0;
}

#endif
