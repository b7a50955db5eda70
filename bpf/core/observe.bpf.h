/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Observe: the KVM events that say that a vCPU waits, each handed to the scheduler's mechanisms.
 *
 *   event                                attach point                           hint
 *   pause-loop exit                      fentry kvm_vcpu_on_spin                the guest spins
 *   HLT exit                             AMD: fentry kvm_emulate_halt           idle, or a paravirtual lock
 *                                        Intel: tracepoint kvm_exit
 *   paravirtual sched-yield hypercall    raw tracepoint kvm_hypercall           an IPI's target was preempted
 *   interrupt with its vector            fentry svm_complete_interrupt_delivery IPI or device interrupt
 *                                        or vmx_deliver_interrupt
 *
 * Problem.   Interrupt vectors are the guest's own, and those known here are Linux's. A guest that isn't
 *            Linux has no symbols here. The classic tracepoint kvm_exit builds a record at each exit,
 *            whatever it is for. On VMX nothing else reads the instruction pointer (guest_code.bpf.h).
 * Races.     These programs run in the vCPU's thread and may be preempted.
 * Limits.    With IPI virtualization (AVIC, IPIv) an interrupt to a running vCPU causes no exit, and no hint
 *            is needed. One to a preempted vCPU exits on AVIC. With IPIv, and of posted interrupts from
 *            devices, nothing fires; they are looked for where they wait.
 */
#ifndef BPF_OBSERVE_H
#define BPF_OBSERVE_H

#include "bpf/core/vcpu.bpf.h"

#define KVM_ISA_VMX 1u
#define KVM_HC_SCHED_YIELD 11u

/* A halt is sent to the daemon this often per VM: it looks for the slide in them, or for a contradiction. */
#define HALT_SAMPLE_INTERVAL_NS 1000000ull

SEC("fentry/kvm_vcpu_on_spin")
int BPF_PROG(on_spin, struct kvm_vcpu *kvm_vcpu)
{
	return on_yield(YIELD_PLE);
}

SEC("tp_btf/kvm_hypercall")
int BPF_PROG(on_hypercall, unsigned long number)
{
	return number == KVM_HC_SCHED_YIELD ? on_yield(YIELD_IPI_WAIT) : 0;
}

/* ---- HLT ---- */

static __always_inline void sample_halt(u64 rip)
{
	struct vcpu *self = vcpu_of(task_ctx_of(bpf_get_current_task_btf()));
	struct event event = {.kind = EVENT_HALT};
	u64 now = bpf_ktime_get_ns();
	struct vm *vm = self ? vm_at(self->vm) : NULL;

	/* The firmware halts too, below the kernel's half of the address space. */
	if (!vm || !(rip >> 63) || registers_tell_nothing(self->kvm_vcpu) ||
	    now - vm->halt_sampled_at_ns < HALT_SAMPLE_INTERVAL_NS)
		return;
	vm->halt_sampled_at_ns = now;
	event.witness.vm = self->vm;
	event.witness.generation = vm->generation;
	event.witness.address = rip;
	send_event(&event);
}

/* The vCPU whose thread this is halts, there in its guest. */
static __always_inline int halts(u64 rip)
{
	sample_halt(rip);
	return on_yield(YIELD_HLT);
}

/*
 * Of AMD's KVM, in place of on_exit. What a guest of the guest halts for its own hypervisor doesn't come
 * here.
 */
SEC("fentry/kvm_emulate_halt")
int BPF_PROG(on_halt, struct kvm_vcpu *kvm_vcpu)
{
	return halts(read_guest_rip((u64)kvm_vcpu));
}

SEC("tp/kvm/kvm_exit")
int on_exit(struct trace_event_raw_kvm_exit *exit)
{
	u32 halt = exit->isa == KVM_ISA_VMX ? VMX_EXIT_HLT : SVM_EXIT_HLT;
	u32 pause = exit->isa == KVM_ISA_VMX ? VMX_EXIT_PAUSE : SVM_EXIT_PAUSE;

	if (config.by_tracepoints && exit->exit_reason == pause)
		return on_yield(YIELD_PLE);
	return exit->exit_reason == halt ? halts(exit->guest_rip) : 0;
}

/* ---- Interrupts ---- */

/*
 * svm_deliver_interrupt() ends in it. So does an IPI that AVIC couldn't deliver because its recipient doesn't
 * run.
 */
SEC("fentry/svm_complete_interrupt_delivery")
int BPF_PROG(on_svm_interrupt, struct kvm_vcpu *kvm_vcpu, int delivery_mode, int trigger_mode, int vector)
{
	return kvm_vcpu ? on_interrupt((u64)kvm_vcpu, vector) : 0;
}

SEC("fentry/vmx_deliver_interrupt")
int BPF_PROG(on_vmx_interrupt, struct kvm_lapic *apic, int delivery_mode, int trigger_mode, int vector)
{
	return apic ? on_interrupt((u64)apic->vcpu, vector) : 0;
}

#endif
