/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Micro slices: their timer, and their end.
 *
 * Problem.   A slice of 100 us ends between two ticks.
 * Mechanism. A timer pinned to the pCPU ends it. Then the vCPU is enqueued like any other, and ops.enqueue
 *            knows only the normal pool.
 * Races.     A pCPU that leaves the pool while a micro slice runs lets it end: its timer is armed.
 */
#ifndef BPF_MICRO_SLICE_H
#define BPF_MICRO_SLICE_H

#include "bpf/mechanisms/request.bpf.h"

struct micro_slice_pcpu {
	u64 deadline_ns; /* the micro slice under way ends then; 0: none */
};

static __always_inline struct micro_slice_pcpu *micro_slice_on(const struct pcpu *pcpu);

/* Timers are maps of their own: programs of type tracepoint may not use a map that holds one. */
struct slice_timer {
	struct bpf_timer timer;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, PCPUS_MAX);
	__type(key, u32);
	__type(value, struct slice_timer);
} slice_timers SEC(".maps");

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
		START_TIMER(&timer->timer, deadline - now, BPF_F_TIMER_CPU_PIN,
			    host_stats.slice_timers_refused);
		return 0;
	}
	/* A confined task may go on while nobody asks for its place. */
	if (pcpu->occupant != OCCUPANT_MICRO && pcpu->occupant != OCCUPANT_LENT_VCPU &&
	    !request_on(pcpu)->vcpu && pcpu_is_micro(*cpu)) {
		micro_slice_on(pcpu)->deadline_ns = now + config.micro_slice_ns;
		START_TIMER(&timer->timer, config.micro_slice_ns, BPF_F_TIMER_CPU_PIN,
			    host_stats.slice_timers_refused);
		return 0;
	}
	micro_slice_on(pcpu)->deadline_ns = 0;
	scx_bpf_kick_cpu(*cpu, KICK_PREEMPT);
	return 0;
}

/* Where the kernel refuses the timer, the slice, which is as short, ends with the host's next tick. */
static __always_inline void arm_micro_slice(s32 cpu, struct pcpu *pcpu, u64 now)
{
	u32 key = cpu;
	struct slice_timer *timer = bpf_map_lookup_elem(&slice_timers, &key);

	micro_slice_on(pcpu)->deadline_ns = now + config.micro_slice_ns;
	if (timer)
		START_TIMER(&timer->timer, config.micro_slice_ns, BPF_F_TIMER_CPU_PIN,
			    host_stats.slice_timers_refused);
}

/* A micro slice is over, for whatever reason. */
__noinline int stop_accelerated(u32 slot, u64 ran_ns, u32 runnable)
{
	struct accelerate_config limits = config.accelerate;
	struct micro_slice_observation seen = {.blocked = !runnable};
	struct vcpu *vcpu = vcpu_at(slot);
	struct micro_slice_decision decision;
	u32 bucket = histogram_bucket(ran_ns);
	struct vm_stats *stats;

	if (!vcpu)
		return 0;
	seen.guest_class = vcpu->guest_class;
	seen.interrupt_pending = guest_interrupt_pending(vcpu->kvm_vcpu, request_of(vcpu)->vector);
	seen.retry_count = request_of(vcpu)->retry_count;
	seen.answer = guest_answer_to_calls(vcpu->kvm_vcpu);
	decision = decide_after_micro_slice(&limits, &seen);
	stats = vm_stats_at(vcpu->vm);
	RECORD(RECORD_MICRO_SLICE, slot, micro_slice, {.config = limits, .seen = seen, .decision = decision});
	request_of(vcpu)->retry = decision.retry;
	request_of(vcpu)->retry_count = decision.retry ? request_of(vcpu)->retry_count + 1 : 0;
	/* What it was accelerated for is over; it is asked for again because of a call. */
	if (decision.retry && seen.answer == ANSWER_OWED) {
		request_of(vcpu)->cause = CAUSE_CALL_FUNCTION_IPI;
		request_of(vcpu)->vector = 0;
	}
	if (stats) {
		ADD(stats->micro_ran_ns, ran_ns);
		if (bucket < HISTOGRAM_BUCKETS)
			COUNT(stats->micro_slice_us[bucket]);
	}
	end_acceleration(vcpu, runnable ? VCPU_RUNNABLE : VCPU_BLOCKED, decision.outcome);
	return 0;
}

#endif
