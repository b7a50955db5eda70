/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Stops: where a task stopped, in user mode or in the kernel.
 *
 * Problem.   A task that stops in the kernel may hold what others need: pcpu_alloc_mutex, say, for which every fork and
 *            every exec of the host waits. Whoever has it rest has the host rest.
 * Mechanism. The kernel's switch tells who was preempted in the kernel, or went to sleep there. It tells only after
 *            ops.enqueue: until then nobody knows.
 */
#ifndef BPF_STOPS_H
#define BPF_STOPS_H

#include "bpf/core/entry.bpf.h"

enum stopped_in {
	STOPPED_UNSEEN, /* it runs, or stopped just now */
	STOPPED_IN_KERNEL,
	STOPPED_IN_USER_MODE,
};

/* `preempt`: not at the return to user mode, nor by sched_yield() (kernel/sched/core.c, __schedule()). */
SEC("tp_btf/sched_switch")
int BPF_PROG(on_stop, bool preempt, struct task_struct *prev, struct task_struct *next, u32 prev_state)
{
	struct task_ctx *tctx;

	if (!limits_in_force)
		return 0;
	tctx = task_ctx_of(prev);
	if (tctx)
		tctx->stopped_in = preempt || prev_state ? STOPPED_IN_KERNEL : STOPPED_IN_USER_MODE;
	return 0;
}

/* vCPUs stop in the kernel, too, but there they hold nothing that others need. */
static __always_inline bool may_hold_a_lock(const struct task_ctx *tctx, const struct vcpu *vcpu)
{
	return !vcpu && !tctx->refused_until_ns;
}

#endif
