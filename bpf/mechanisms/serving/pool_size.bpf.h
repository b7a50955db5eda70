/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Pool size: how many pCPUs are micro-sliced, by Algorithm 1 (policy/pool_size.h), and what follows for each
 * of them.
 */
#ifndef BPF_POOL_SIZE_H
#define BPF_POOL_SIZE_H

#include "bpf/mechanisms/serving/home_slices.bpf.h"
#include "bpf/mechanisms/serving/lending.bpf.h"

struct pool_size_pcpu {
	u64 since_ns; /* it runs an accelerated vCPU since then; 0: it doesn't */
	u64 busy_ns;  /* for how long it did since the last step of Algorithm 1 */
};

static __always_inline struct pool_size_pcpu *pool_size_on(const struct pcpu *pcpu);

/* The last step of Algorithm 1. */
u64 pool_stepped_at_ns;

struct pool_timer {
	struct bpf_timer timer;
	struct pool_size_state state;
	struct pool_size_observation seen; /* up to the step before; micro_busy_ns: unused */
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct pool_timer);
} pool_timers SEC(".maps");

/* How long this pCPU has run the accelerated vCPU that it runs now, since the last step of Algorithm 1. */
static __always_inline u64 micro_busy_until(const struct pcpu *pcpu, u64 now)
{
	u64 since = pool_size_on(pcpu)->since_ns, stepped_at = pool_stepped_at_ns;

	if (!since)
		return 0;
	if (since < stepped_at)
		since = stepped_at;
	/* Steps are taken on another pCPU: one may have been taken after `now`. */
	return elapsed_ns(since, now);
}

/* The accelerated vCPU, if one ran here, doesn't any more. */
static __always_inline void stop_busy(struct pcpu *pcpu, u64 now)
{
	if (!pool_size_on(pcpu)->since_ns)
		return;
	ADD(pool_size_on(pcpu)->busy_ns, micro_busy_until(pcpu, now));
	pool_size_on(pcpu)->since_ns = 0;
}

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
	confined_on(pcpu)->rescue_count = RESCUE_MAX;
	home_slices_on(pcpu)->interrupted = 0;
	pool_size_on(pcpu)->busy_ns = 0;
	scx_bpf_kick_cpu(cpu, KICK_PREEMPT);
}

/* It left the micro pool: its queued request goes back, and it looks for normal work. */
static __always_inline void after_leaving(s32 cpu, struct pcpu *pcpu)
{
	u32 request = __sync_lock_test_and_set(&request_on(pcpu)->vcpu, 0);
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
	/* Where the kernel refuses it, the pool keeps this size. */
	START_TIMER(&timer->timer, decision.interval_ns, 0, host_stats.pool_timers_refused);
	return 0;
}

#endif
