/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Stops: where a task stopped, in user mode or in the kernel.
 *
 * Problem.   A task that stops in the kernel may hold what others need. Every fork and every exec of the host
 *            waits for pcpu_alloc_mutex, say. A limit that lets its holder rest lets the host rest.
 * Mechanism. The kernel's switch tells which task was preempted in the kernel, or went to sleep there. It
 *            tells only after ops.enqueue: until then nothing knows (is_stop_seen).
 * Races.     A task asked for between on_stop() and the switch itself may be taken for one that stopped in
 *            the kernel again: it goes on for one turn more.
 */
#ifndef BPF_STOPS_H
#define BPF_STOPS_H

#include "bpf/core/entry.bpf.h"

/*
 * It stopped in the kernel. A turn may end before schedule() has returned from the stop before. Then
 * schedule() stops it again, as runnable as at the return to user mode, and at the same place of its stack.
 */
static __always_inline bool stopped_in_kernel(const struct task_struct *p, const struct task_ctx *tctx)
{
	return tctx->stopped_in_kernel || (tctx->kernel_stop_sp && p->thread.sp == tctx->kernel_stop_sp);
}

/* `preempt`: not at the return to user mode, nor by sched_yield() (kernel/sched/core.c, __schedule()). */
SEC("tp_btf/sched_switch")
int BPF_PROG(on_stop, bool preempt, struct task_struct *prev, struct task_struct *next, u32 prev_state)
{
	struct task_ctx *tctx;

	if (!limits_in_force)
		return 0;
	tctx = task_ctx_of(prev);
	if (!tctx)
		return 0;
	/* Until the switch is made the kernel keeps the place of the stop before. */
	tctx->kernel_stop_sp = stopped_in_kernel(prev, tctx) ? prev->thread.sp : 0;
	tctx->stopped_in_kernel = preempt || prev_state;
	tctx->is_stop_seen = true;
	return 0;
}

/* vCPUs stop in the kernel, too, but there they hold nothing that others need. */
static __always_inline bool may_hold_a_lock(const struct task_ctx *tctx, const struct vcpu *vcpu)
{
	return !vcpu && !tctx->refused_until_ns;
}

#endif
