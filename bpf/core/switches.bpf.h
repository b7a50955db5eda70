/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Switches: which task runs, where the kernel's own scheduler decides it.
 *
 * Problem.   Without sched_ext nobody is called when a vCPU begins to run, or stops.
 * Mechanism. The kernel's tracepoints tell. The file that includes this says what comes of it:
 *            stops_running(), starts_running().
 */
#ifndef BPF_SWITCHES_H
#define BPF_SWITCHES_H

#include "bpf/core/tracepoints.bpf.h"

static __always_inline void stops_running(struct task_struct *p, bool runnable, u64 now);
static __always_inline void starts_running(struct task_struct *p, u64 now);

/* The kernel switches threads of its own accord: what ends is found by its switch. */
SEC("tp_btf/sched_process_exit")
int BPF_PROG(on_task_exit, struct task_struct *p)
{
	return unregister_vcpu(task_ctx_of(bpf_get_current_task_btf()));
}

static __always_inline void switches(bool preempt, struct task_struct *prev, struct task_struct *next)
{
	u64 now = bpf_ktime_get_ns();

	stops_running(prev, preempt || !prev->__state, now);
	starts_running(next, now);
}

SEC("tp_btf/sched_switch")
int BPF_PROG(on_switch, bool preempt, struct task_struct *prev, struct task_struct *next)
{
	switches(preempt, prev, next);
	return 0;
}

/*
 * In place of on_switch, where a switch has to tell of vCPUs or halts, too: a program of its own, since its
 * calls take more stack than Linux 6.1 allows.
 */
SEC("tp_btf/sched_switch")
int BPF_PROG(on_telling_switch, bool preempt, struct task_struct *prev, struct task_struct *next)
{
	if (config.by_tracepoints)
		find_vcpu(prev);
	/* Where no tracepoint tells of exits. */
	if (config.vendor == KVM_OTHER && prev->__state && !preempt)
		note_halt(prev);
	/* Behind the registration of a vCPU, whose figures begin then. */
	switches(preempt, prev, next);
	return 0;
}

#endif
