/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Trace: which task runs on each pCPU from when on, why the one before it left, and wake-ups, one by one.
 *
 * Problem.   Sums don't show one bad moment: which task had which pCPU while others waited.
 * Mechanism. The kernel's own switches and wake-ups go through a ring to the daemon, which writes them.
 *            Mechanisms add what they did (trace_of()). These programs are loaded for a trace only, and
 *            config.tracing, a constant, takes the rest away.
 * Races.     An event has its time before it has its place in the ring: those of different pCPUs may stand in
 *            another order. The daemon sorts them.
 * Limits.    A full ring loses events: each one says how many were lost before it. A turn's end can't be told
 *            from a preemption by another task: sched_ext ends both by the same means.
 */
#ifndef BPF_TRACE_H
#define BPF_TRACE_H

#include "bpf/core/guest_code.bpf.h"

/* Shrunk by the daemon to one page when nothing is traced. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 16 * 1024 * 1024);
} traces SEC(".maps");

/* Set by the daemon: the trace is as long as it may be. */
u32 trace_ends;

/* NULL: there is no room, or the trace is over. The caller that gets one submits it. */
static __always_inline struct trace_event *begin_trace_event(u32 kind)
{
	u64 now = bpf_ktime_get_ns();
	struct trace_event *event;

	if (trace_ends)
		return NULL;
	event = bpf_ringbuf_reserve(&traces, sizeof(struct trace_event), 0);
	if (!event) {
		COUNT(host_stats.traces_dropped);
		return NULL;
	}
	__builtin_memset(event, 0, sizeof(*event));
	event->at_ns = now;
	event->kind = kind;
	event->pcpu = bpf_get_smp_processor_id();
	event->lost = host_stats.traces_dropped;
	return event;
}

/* The daemon polls: nobody is woken from here, where a runqueue may be locked. */
static __always_inline void end_trace_event(struct trace_event *event)
{
	bpf_ringbuf_submit(event, BPF_RB_NO_WAKEUP);
}

static __always_inline void name_traced_vcpu(struct traced_task *task, const struct vcpu *vcpu)
{
	struct vm *vm = vm_at(vcpu->vm);

	task->tid = vcpu->pid;
	task->vm = vcpu->vm + 1;
	task->generation = vm ? vm->generation : 0;
	task->vcpu_id = vcpu->vcpu_id;
}

/* Not static: see maps.bpf.h. */
__noinline int trace_vcpu(u32 kind, u32 vm_slot, u32 index_in_vm, u32 cause, u32 reason)
{
	struct vm *vm = vm_at(vm_slot);
	struct vcpu *vcpu = vm ? vcpu_at(vm->vcpus[index_in_vm & (VCPUS_PER_VM_MAX - 1)] - 1) : NULL;
	struct trace_event *event;

	if (!vcpu)
		return 0;
	event = begin_trace_event(kind);
	if (!event)
		return 0;
	name_traced_vcpu(&event->task, vcpu);
	event->guest_class = vcpu->guest_class;
	event->cause = cause;
	event->reason = reason;
	end_trace_event(event);
	return 0;
}

/* This has happened to a vCPU. NULL: to a task that is none. */
static __always_inline void trace_of(const struct vcpu *vcpu, u32 kind, u32 cause, u32 reason)
{
	if (config.tracing && vcpu)
		trace_vcpu(kind, vcpu->vm, vcpu->index_in_vm, cause, reason);
}

/* Is it within KVM's directed yield after a pause-loop exit (kvm_vcpu_on_spin())? */
static __always_inline bool spins_in_kvm(u64 kvm_vcpu)
{
	struct kvm_vcpu *vcpu = (void *)kvm_vcpu;

	if (!kvm_vcpu || !bpf_core_field_exists(vcpu->spin_loop.in_spin_loop))
		return false;
	return BPF_CORE_READ(vcpu, spin_loop.in_spin_loop);
}

static __always_inline u32 why_it_leaves(const struct vcpu *vcpu, bool runnable)
{
	if (runnable && spins_in_kvm(vcpu->kvm_vcpu))
		return TRACE_STOP_PLE;
	if (runnable)
		return vcpu->yielded ? TRACE_STOP_IPI_WAIT : TRACE_STOP_PREEMPTED;
	if (!is_halted(vcpu->kvm_vcpu))
		return TRACE_STOP_BLOCKED;
	return guest_interrupts_enabled(vcpu->kvm_vcpu) ? TRACE_STOP_HLT : TRACE_STOP_LOCK_HLT;
}

/* Behind on_switch (switches.bpf.h), and behind what sched_ext is told of both. */
SEC("tp_btf/sched_switch")
int BPF_PROG(on_traced_switch, bool preempt, struct task_struct *prev, struct task_struct *next)
{
	struct trace_event *event = begin_trace_event(TRACE_SWITCH);
	struct vcpu *vcpu, *next_vcpu;

	if (!event)
		return 0;
	vcpu = vcpu_of(task_ctx_of(prev));
	next_vcpu = vcpu_of(task_ctx_of(next));
	event->task.tid = prev->pid;
	event->next.tid = next->pid;
	if (vcpu) {
		name_traced_vcpu(&event->task, vcpu);
		event->stop = why_it_leaves(vcpu, preempt || !prev->__state);
		event->guest_class = vcpu->guest_class;
	}
	if (next_vcpu) {
		name_traced_vcpu(&event->next, next_vcpu);
		event->turn = traced_turn(event->pcpu);
	} else {
		bpf_core_read_str(event->comm, sizeof(event->comm), &next->comm);
	}
	end_trace_event(event);
	return 0;
}

SEC("tp_btf/sched_wakeup")
int BPF_PROG(on_traced_wakeup, struct task_struct *p)
{
	trace_of(vcpu_of(task_ctx_of(p)), TRACE_WAKEUP, 0, 0);
	return 0;
}

#endif
