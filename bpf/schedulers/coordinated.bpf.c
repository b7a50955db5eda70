/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * coordinated: a sched_ext scheduler for KVM hosts (Kim et al., ASPLOS'13).
 *
 * An urgent vCPU, made so by an IPI, runs before the others for a short slice, or isn't preempted for as
 * long. It does so on the pCPUs that all share. This file is its start, and what sched_ext calls. What it is
 * made of is in coordinated.bpf.h, and every decision is policy/'s.
 */
#include "bpf/schedulers/coordinated.bpf.h"

char _license[] SEC("license") = "GPL";

/* ---- Waking and queueing ---- */

s32 STRUCT_OPS(coordinated_select_cpu, struct task_struct *p, s32 prev_cpu, u64 wake_flags)
{
	return select_cpu(p, prev_cpu);
}

void STRUCT_OPS(coordinated_enqueue, struct task_struct *p, u64 enq_flags)
{
	enqueue(p, enq_flags);
}

void STRUCT_OPS(coordinated_dispatch, s32 cpu, struct task_struct *prev)
{
	dispatch(cpu, prev);
}

/* A higher scheduling class takes the pCPU: what waits in its local queue could not be pulled from there. */
void STRUCT_OPS(coordinated_cpu_release, s32 cpu, struct scx_cpu_release_args *args)
{
	scx_bpf_reenqueue_local___v1();
}

bool STRUCT_OPS(coordinated_yield, struct task_struct *from, struct task_struct *to)
{
	return yield_to(from, to);
}

/* ---- Running and stopping ---- */

void STRUCT_OPS(coordinated_runnable, struct task_struct *p, u64 enq_flags)
{
	becomes_runnable(p, enq_flags);
}

void STRUCT_OPS(coordinated_running, struct task_struct *p)
{
	starts_running(p);
}

void STRUCT_OPS(coordinated_stopping, struct task_struct *p, bool runnable)
{
	stops_running(p, runnable);
}

void STRUCT_OPS(coordinated_quiescent, struct task_struct *p, u64 deq_flags)
{
	becomes_quiescent(p);
}

/* ---- Coming and going ---- */

s32 STRUCT_OPS_SLEEPABLE(coordinated_init_task, struct task_struct *p, struct scx_init_task_args *args)
{
	return init_core_task(p);
}

/*
 * Tasks that live on while the scheduler ends keep their places: the daemon finds their VMs there until it
 * has seen the end.
 */
void STRUCT_OPS(coordinated_exit_task, struct task_struct *p, struct scx_exit_task_args *args)
{
	if (p->flags & PF_EXITING)
		unregister_vcpu(task_ctx_of(p));
}

static __noinline int init_pcpu(u32 cpu)
{
	struct urgent_timer *timer = bpf_map_lookup_elem(&urgent_timers, &cpu);
	s32 result = init_core_pcpu(cpu);

	if (result || (result = init_look_timer(cpu)))
		return result;
	if (!timer)
		return -ENOMEM;
	bpf_timer_init(&timer->timer, &urgent_timers, CLOCK_MONOTONIC);
	bpf_timer_set_callback(&timer->timer, urgent_slice_is_over);
	return 0;
}

s32 STRUCT_OPS_SLEEPABLE(coordinated_init)
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
	return 0;
}

void STRUCT_OPS(coordinated_exit, struct scx_exit_info *info)
{
	note_exit(info);
}

SEC(".struct_ops.link")
struct sched_ext_ops coordinated_ops = {
    .select_cpu = (void *)coordinated_select_cpu,
    .enqueue = (void *)coordinated_enqueue,
    .dispatch = (void *)coordinated_dispatch,
    .runnable = (void *)coordinated_runnable,
    .running = (void *)coordinated_running,
    .stopping = (void *)coordinated_stopping,
    .quiescent = (void *)coordinated_quiescent,
    .yield = (void *)coordinated_yield,
    .cpu_release = (void *)coordinated_cpu_release,
    .init_task = (void *)coordinated_init_task,
    .exit_task = (void *)coordinated_exit_task,
    .init = (void *)coordinated_init,
    .exit = (void *)coordinated_exit,
    .flags = SCX_OPS_ENQ_LAST,
    .timeout_ms = 10000,
    .name = "coordinated",
};
