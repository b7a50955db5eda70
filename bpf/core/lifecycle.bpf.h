/* SPDX-License-Identifier: GPL-2.0-only */
/* Lifecycle: tasks that come and go, the start of a scheduler, and its end. */
#ifndef BPF_LIFECYCLE_H
#define BPF_LIFECYCLE_H

#include "bpf/core/core_scheduling.bpf.h"
#include "bpf/core/cpu_limit.bpf.h"
#include "bpf/core/idle.bpf.h"

/* ---- Tasks ---- */

/* Sleeps. */
static __always_inline s32 init_core_task(struct task_struct *p)
{
	struct task_ctx *tctx = bpf_task_storage_get(&task_ctxs, p, 0, BPF_LOCAL_STORAGE_GET_F_CREATE);

	if (!tctx)
		return -ENOMEM;
	tctx->vtime_ns = others_vtime_ns;
	return 0;
}

/* ---- Start ---- */

/*
 * Of all pCPUs that are online (when one comes or goes the daemon starts this scheduler again), or of none.
 */
static __always_inline int create_mask(struct scratch *holder, bool full)
{
	struct bpf_cpumask *mask = bpf_cpumask_create(), *old;

	if (!mask)
		return -ENOMEM;
	if (full) {
		const struct cpumask *online = scx_bpf_get_online_cpumask();

		bpf_cpumask_copy(mask, online);
		scx_bpf_put_cpumask(online);
	}
	old = bpf_kptr_xchg(&holder->mask, mask);
	if (old)
		bpf_cpumask_release(old);
	return 0;
}

/* A pCPU is one of its cache, and of its node. Masks are made as the first of each comes. */
static __always_inline s32 join_neighbourhood(u32 cpu, u32 nearness)
{
	u32 key = neighbourhood_of(cpu, nearness);
	struct scratch *near = bpf_map_lookup_elem(&neighbourhoods, &key);
	struct bpf_cpumask *mask;
	s32 result = 0;

	if (!near)
		return 0; /* it is all there is */
	if (!near->mask)
		result = create_mask(near, false);
	if (result)
		return result;
	bpf_rcu_read_lock();
	mask = near->mask;
	if (mask)
		bpf_cpumask_set_cpu(cpu, mask);
	bpf_rcu_read_unlock();
	return 0;
}

static __always_inline s32 init_core_pcpu(u32 cpu)
{
	struct scratch *scratch = bpf_map_lookup_elem(&scratches, &cpu);
	struct turn_timer *turn = bpf_map_lookup_elem(&turn_timers, &cpu);

	if (!scratch || !turn)
		return -ENOMEM;
	bpf_timer_init(&turn->timer, &turn_timers, CLOCK_MONOTONIC);
	bpf_timer_set_callback(&turn->timer, end_limited_turn);
	return join_neighbourhood(cpu, QUEUE_SAME_LLC) ?: join_neighbourhood(cpu, QUEUE_SAME_NODE) ?:
								   create_mask(scratch, false);
}

static __always_inline s32 init_core(void)
{
	u32 key = 0, queue;
	struct scratch *normal = bpf_map_lookup_elem(&normal_pool, &key);
	struct rest_timer *rests = bpf_map_lookup_elem(&rest_timers, &key);
	s32 result;

	if (!normal || !rests)
		return -ENOMEM;
	bpf_timer_init(&rests->timer, &rest_timers, CLOCK_MONOTONIC);
	bpf_timer_set_callback(&rests->timer, end_rests);
	result = create_mask(normal, true);
	if (result)
		return result;
	bpf_for (queue, 0, 2 * PCPUS_MAX) {
		if (queue >= queue_count())
			break;
		result = create_queues(queue);
		if (result)
			return result;
	}
	result = scx_bpf_create_dsq(DSQ_RESTING, -1);
	return result ?: scx_bpf_create_dsq(DSQ_STOPPED, -1);
}

/* ---- End ---- */

static __always_inline void note_exit(struct scx_exit_info *info)
{
	exit_record.code = info->exit_code;
	bpf_probe_read_kernel_str(exit_record.reason, sizeof(exit_record.reason), info->reason);
	bpf_probe_read_kernel_str(exit_record.message, sizeof(exit_record.message), info->msg);
	/* Last: the daemon reads the rest once this is set. */
	__sync_lock_test_and_set(&exit_record.kind, info->kind);
}

#endif
