/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * microslice: a sched_ext scheduler for KVM hosts.
 *
 * A vCPU that was stopped in critical guest-kernel code, or has an interrupt coming, runs at once for a short
 * slice. It does so on a few reserved pCPUs (Ahn et al., EuroSys'18). This file is its start, and what
 * sched_ext calls. What it is made of is in microslice.bpf.h, and every decision is policy/'s.
 */
#include "bpf/schedulers/microslice.bpf.h"

char _license[] SEC("license") = "GPL";

/* ---- Waking and queueing ---- */

s32 STRUCT_OPS(microslice_select_cpu, struct task_struct *p, s32 prev_cpu, u64 wake_flags)
{
	return select_cpu(p, prev_cpu);
}

void STRUCT_OPS(microslice_enqueue, struct task_struct *p, u64 enq_flags)
{
	enqueue(p, enq_flags);
}

void STRUCT_OPS(microslice_dispatch, s32 cpu, struct task_struct *prev)
{
	dispatch(cpu, prev);
}

/* A higher scheduling class takes the pCPU: what waits in its local queue could not be pulled from there. */
void STRUCT_OPS(microslice_cpu_release, s32 cpu, struct scx_cpu_release_args *args)
{
	scx_bpf_reenqueue_local___v1();
}

bool STRUCT_OPS(microslice_yield, struct task_struct *from, struct task_struct *to)
{
	return yield_to(from, to);
}

/* ---- Running and stopping ---- */

void STRUCT_OPS(microslice_runnable, struct task_struct *p, u64 enq_flags)
{
	becomes_runnable(p, enq_flags);
}

void STRUCT_OPS(microslice_running, struct task_struct *p)
{
	starts_running(p);
}

void STRUCT_OPS(microslice_stopping, struct task_struct *p, bool runnable)
{
	stops_running(p, runnable);
}

void STRUCT_OPS(microslice_quiescent, struct task_struct *p, u64 deq_flags)
{
	becomes_quiescent(p);
}

void STRUCT_OPS(microslice_tick, struct task_struct *p)
{
	begin_looks();
}

/* ---- Coming and going ---- */

s32 STRUCT_OPS_SLEEPABLE(microslice_init_task, struct task_struct *p, struct scx_init_task_args *args)
{
	return init_core_task(p);
}

/*
 * Tasks that live on while the scheduler ends keep their places: the daemon finds their VMs there until it
 * has seen the end.
 */
void STRUCT_OPS(microslice_exit_task, struct task_struct *p, struct scx_exit_task_args *args)
{
	if (p->flags & PF_EXITING)
		unregister_vcpu(task_ctx_of(p));
}

static __noinline int init_pcpu(u32 cpu)
{
	struct slice_timer *timer = bpf_map_lookup_elem(&slice_timers, &cpu);
	s32 result = init_core_pcpu(cpu);

	if (result || (result = init_look_timer(cpu)))
		return result;
	if (!timer)
		return -ENOMEM;
	bpf_timer_init(&timer->timer, &slice_timers, CLOCK_MONOTONIC);
	bpf_timer_set_callback(&timer->timer, end_micro_slice);
	return scx_bpf_create_dsq(DSQ_CONFINED + cpu, -1);
}

static __noinline int init_pool(void)
{
	u32 key = 0;
	struct pool_timer *timer = bpf_map_lookup_elem(&pool_timers, &key);

	if (!config.pool_is_dynamic)
		return apply_pool_size(config.micro_pcpu_count, 0);
	if (!timer)
		return -ENOMEM;
	bpf_timer_init(&timer->timer, &pool_timers, CLOCK_MONOTONIC);
	bpf_timer_set_callback(&timer->timer, adapt_pool_size);
	bpf_timer_start(&timer->timer, config.pool_size.profile_interval_ns, 0);
	return 0;
}

s32 STRUCT_OPS_SLEEPABLE(microslice_init)
{
	s32 result = init_core();
	u32 cpu;

	if (result)
		return result;
	bpf_for (cpu, 0, PCPUS_MAX) {
		if (cpu >= config.pcpu_count)
			break;
		result = init_pcpu(cpu);
		if (result)
			return result;
	}
	result = init_looks();
	return result ? result : init_pool();
}

void STRUCT_OPS(microslice_exit, struct scx_exit_info *info)
{
	note_exit(info);
}

SEC(".struct_ops.link")
struct sched_ext_ops microslice_ops = {
    .select_cpu = (void *)microslice_select_cpu,
    .enqueue = (void *)microslice_enqueue,
    .dispatch = (void *)microslice_dispatch,
    .runnable = (void *)microslice_runnable,
    .running = (void *)microslice_running,
    .stopping = (void *)microslice_stopping,
    .tick = (void *)microslice_tick,
    .quiescent = (void *)microslice_quiescent,
    .yield = (void *)microslice_yield,
    .cpu_release = (void *)microslice_cpu_release,
    .init_task = (void *)microslice_init_task,
    .exit_task = (void *)microslice_exit_task,
    .init = (void *)microslice_init,
    .exit = (void *)microslice_exit,
    .flags = SCX_OPS_ENQ_LAST,
    .timeout_ms = 10000,
    .name = "microslice",
};
