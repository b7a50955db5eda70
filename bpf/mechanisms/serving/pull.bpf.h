/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Pull: the pCPU that was asked takes the vCPU out of the normal queues (ops.dispatch), without searching.
 */
#ifndef BPF_PULL_H
#define BPF_PULL_H

#include "bpf/mechanisms/request.bpf.h"

__noinline int pull_vcpu(s32 cpu, u32 slot)
{
	struct vcpu *vcpu = vcpu_at(slot);
	struct task_struct *p;
	struct vm_stats *stats;
	u32 failure = FAILURE_NOT_QUEUED;
	struct task_ctx *tctx;
	bool moved = false;

	if (!vcpu || vcpu->state != VCPU_PENDING)
		return false; /* the normal pool was faster, and counted it */
	p = bpf_task_from_pid(vcpu->pid);
	if (!p) {
		fail_request(vcpu, VCPU_BLOCKED, FAILURE_BLOCKED);
		return false;
	}
	tctx = task_ctx_of(p);
	moved = tctx && pull(p, tctx, cpu, config.micro_slice_ns);
	if (!moved && !may_run_on(p, cpu))
		failure = FAILURE_AFFINITY;
	bpf_task_release(p);
	/*
	 * The task is in this pCPU's local queue and this pCPU is here: it can't run before we return. If it
	 * left again meanwhile (its affinity changed), the state is corrected when it is enqueued or runs.
	 */
	stats = vm_stats_at(vcpu->vm);
	if (moved && stats) {
		u32 cause = request_of(vcpu)->cause, class = vcpu->guest_class;

		request_of(vcpu)->pcpu = cpu;
		if (vcpu_moves(vcpu, VCPU_PENDING, VCPU_MICRO) && cause < CAUSE_COUNT &&
		    class < GUEST_CLASS_COUNT) {
			COUNT(stats->accelerations[cause][class]);
			trace_of(vcpu, TRACE_ACCELERATED, cause, 0);
		}
	} else {
		fail_request(vcpu, VCPU_RUNNABLE, failure);
	}
	return moved;
}

static __always_inline bool serve_request(s32 cpu, struct pcpu *pcpu)
{
	u32 request = __sync_lock_test_and_set(&request_on(pcpu)->vcpu, 0);

	return request && pull_vcpu(cpu, request - 1);
}

/* No preempted vCPU waits for this micro pCPU: a woken one that waits still asks for it now. */
static __always_inline bool serve_woken(s32 cpu, struct pcpu *pcpu)
{
	u32 slot = __sync_lock_test_and_set(&woken_on(pcpu)->vcpu, 0) - 1, cause;
	struct vcpu *vcpu = vcpu_at(slot);
	struct vm_stats *stats = vcpu ? vm_stats_at(vcpu->vm) : NULL;

	if (!stats)
		return false;
	cause = __sync_lock_test_and_set(&woken_of(vcpu)->cause, 0);
	if (!cause || cause >= CAUSE_COUNT || !vcpu_moves(vcpu, VCPU_RUNNABLE, VCPU_PENDING))
		return false;
	COUNT(stats->requests[cause]);
	request_of(vcpu)->cause = cause;
	request_of(vcpu)->vector = woken_of(vcpu)->vector;
	request_of(vcpu)->pcpu = cpu;
	return pull_vcpu(cpu, slot);
}

#endif
