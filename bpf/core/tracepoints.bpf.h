/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Tracepoints: vCPUs, their halts and their interrupts, where no function of the kernel can be traced, or
 * KVM's vendor is none that is known here.
 *
 * Problem.   fentry needs a function tracer, which kernels are built without, or refuse. And each vendor's
 *            part of KVM has functions and tracepoints of its own.
 * Mechanism. A task within a call of a vCPU has KVM's preempt notifier, a member of struct kvm_vcpu: when it
 *            is switched out, that says which vCPU it runs. What halts it shows there, too, in the vCPU's
 *            state. KVM's core tells of each interrupt that an in-kernel APIC accepts.
 * Races.     A vCPU that was freed can't be told from one whose thread is busy elsewhere, until KVM uses its
 *            memory again. What is read of it meanwhile is what it was when it was freed.
 * Limits.    A vCPU is known from its first stop on. Pause-loop exits aren't seen unless KVM's tracepoint
 *            kvm_exit tells of them, nor are halts that KVM polled away. An interrupt's tracepoint names no
 *            VM: it is the VM of the current task, or of its process. One that a handler of the host's
 *            interrupts delivers (VFIO) may be taken for one of the VM that it interrupted.
 */
#ifndef BPF_TRACEPOINTS_H
#define BPF_TRACEPOINTS_H

#include "bpf/core/observe.bpf.h"

#define APIC_DM_FIXED 0x000u /* arch/x86/include/asm/apicdef.h */
#define APIC_DM_LOWEST 0x100u

/* ---- vCPUs ---- */

static __always_inline bool enters_guest(struct kvm_vcpu *kvm_vcpu, struct task_struct *p)
{
	if (!is_run_by(kvm_vcpu, p) || p->flags & PF_EXITING)
		return false;
	return !bpf_core_field_exists(kvm_vcpu->wants_to_run) || BPF_CORE_READ(kvm_vcpu, wants_to_run);
}

/* What was this vCPU's memory is another VM's by now, or another thread runs it. */
static __always_inline void lose_vcpu(struct vcpu *vcpu, u64 kvm_vcpu)
{
	struct vm *vm = vm_at(vcpu->vm);
	u64 kvm = vm ? vm->kvm : 0;

	forget_kvm_vcpu(vcpu, kvm_vcpu,
			kvm == (u64)BPF_CORE_READ((struct kvm_vcpu *)kvm_vcpu, kvm) ? 0 : kvm);
}

/* The current task is about to be switched out. */
static __always_inline void find_vcpu(struct task_struct *current)
{
	struct kvm_vcpu *kvm_vcpu = vcpu_that_notifies(current);
	struct vcpu *vcpu;

	if (kvm_vcpu && enters_guest(kvm_vcpu, current)) {
		note_vcpu(current, (u64)kvm_vcpu, (u64)BPF_CORE_READ(kvm_vcpu, kvm),
			  BPF_CORE_READ(kvm_vcpu, vcpu_id));
		return;
	}
	vcpu = vcpu_of(task_ctx_of(current));
	if (vcpu && vcpu->kvm_vcpu && !is_run_by((void *)vcpu->kvm_vcpu, current))
		lose_vcpu(vcpu, vcpu->kvm_vcpu);
}

/* The current task sleeps from now on: has its guest halted it? */
static __always_inline void note_halt(struct task_struct *current)
{
	struct vcpu *vcpu = vcpu_of(task_ctx_of(current));

	if (!vcpu || !is_halted(vcpu->kvm_vcpu))
		return;
	halts(read_guest_rip(vcpu->kvm_vcpu));
}

/* ---- Interrupts ---- */

/* The address of the struct kvm_vcpu of this VM's vCPU; 0: it isn't known. Not static: see maps.bpf.h. */
__noinline u64 address_of_vcpu(u32 vm_slot, u32 vcpu_id)
{
	struct vm *vm = vm_at(vm_slot);
	u32 index;

	if (!vm)
		return 0;
	bpf_for (index, 0, VCPUS_PER_VM_MAX) {
		struct vcpu *vcpu;

		if (index >= vm->vcpu_high)
			break;
		vcpu = vcpu_at(vm->vcpus[index & (VCPUS_PER_VM_MAX - 1)] - 1);
		if (vcpu && vcpu->vcpu_id == vcpu_id)
			return vcpu->kvm_vcpu;
	}
	return 0;
}

/* Slot + 1 of the VM whose vCPU the current task runs, or whose process it is of; 0: of none. */
static __always_inline u32 vm_of_current(void)
{
	struct task_struct *current = bpf_get_current_task_btf();
	struct vcpu *vcpu = vcpu_of(task_ctx_of(current));
	struct process_ctx *process;

	if (vcpu)
		return vcpu->vm + 1;
	process = process_of(current);
	return process ? process->vm : 0;
}

SEC("tp_btf/kvm_apic_accept_irq")
int BPF_PROG(on_accepted_interrupt, u32 vcpu_id, u16 delivery_mode, u16 trigger_mode, u8 vector)
{
	u32 vm = vm_of_current();
	u64 kvm_vcpu;

	if (!vm || (delivery_mode != APIC_DM_FIXED && delivery_mode != APIC_DM_LOWEST))
		return 0;
	kvm_vcpu = address_of_vcpu(vm - 1, vcpu_id);
	return kvm_vcpu ? on_interrupt(kvm_vcpu, vector) : 0;
}

#endif
