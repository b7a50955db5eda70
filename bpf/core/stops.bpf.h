/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Stops: where a task stopped, in user mode or its guest, or in the kernel.
 *
 * Problem.   A task that stops in the kernel may hold what others need. Every fork and every exec of the host
 *            waits for pcpu_alloc_mutex, say. A limit that lets its holder rest lets the host rest.
 * Mechanism. The kernel's switch tells which task was preempted in the kernel, or went to sleep there. It
 *            tells only after ops.enqueue: until then nothing knows (is_stop_seen).
 *            A vCPU is preempted in KVM wherever its guest was. Why it left that tells whether it may hold
 *            anything. Nor does it in a halt.
 * Races.     A task asked for between on_stop() and the switch itself may be taken for one that stopped in
 *            the kernel again: it goes on for one turn more.
 */
#ifndef BPF_STOPS_H
#define BPF_STOPS_H

#include "bpf/core/entry.bpf.h"
#include "bpf/core/guest_code.bpf.h"

/*
 * It stopped in the kernel. A turn may end before schedule() has returned from the stop before. Then
 * schedule() stops it again, as runnable as at the return to user mode, and at the same place of its stack.
 */
static __always_inline bool stopped_in_kernel(const struct task_struct *p, const struct task_ctx *tctx)
{
	return tctx->stop.in_kernel || (tctx->stop.kernel_sp && p->thread.sp == tctx->stop.kernel_sp);
}

/* It stops within the call of a vCPU, where that holds nothing that others need. */
static __always_inline bool stops_at_guest(struct task_struct *p, bool sleeps)
{
	struct kvm_vcpu *kvm_vcpu = vcpu_that_notifies(p);

	if (!kvm_vcpu || !is_run_by(kvm_vcpu, p))
		return false;
	return is_halted((u64)kvm_vcpu) || (!sleeps && left_guest_for_nothing((u64)kvm_vcpu));
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
	tctx->stop.kernel_sp = stopped_in_kernel(prev, tctx) ? prev->thread.sp : 0;
	tctx->stop.in_kernel = (preempt || prev_state) && !stops_at_guest(prev, prev_state != 0);
	tctx->stop.is_seen = true;
	return 0;
}

#endif
