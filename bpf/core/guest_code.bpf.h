/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Guest code: what a vCPU's guest was doing when it was stopped.
 *
 * Problem.   KVM keeps a vCPU's registers in its own structs, in other places on 7.2 than before and on AMD
 *            than on Intel.
 * Mechanism. The instruction pointer is read from `vcpu->arch`; policy/classify.h turns it into a class, with
 *            the ranges of the guest's kernel and the slide that the daemon found.
 * Limits.    On VMX the register cache holds RIP only because the classic tracepoint kvm_exit, which
 *            observe.bpf.h attaches to, reads it at every exit. RFLAGS are not cached there: a halt in a
 *            paravirtual lock is then told from the idle loop by its address alone. A vCPU that runs a guest
 *            of its guest (KVM's guest mode) shows that guest's registers: its class is unknown, and it is no
 *            witness of the slide. The same holds for one whose registers the host can't read (SEV-ES,
 *            SEV-SNP, TDX). 32-bit kernels aren't read: no classes.
 */
#ifndef BPF_GUEST_CODE_H
#define BPF_GUEST_CODE_H

#include "bpf/core/hooks.bpf.h"

/* Vectors are the guest's own; these are Linux's (arch/x86/include/asm/irq_vectors.h), the same since 4.x. */
#define VECTOR_DEVICE_FIRST 0x20u
#define VECTOR_SYSTEM_FIRST 0xecu /* LOCAL_TIMER_VECTOR: system vectors from here on */
#define VECTOR_TIMER 0xecu
#define VECTOR_CALL_FUNCTION_SINGLE 0xfbu
#define VECTOR_CALL_FUNCTION 0xfcu
#define VECTOR_RESCHEDULE 0xfdu

#define VCPU_REGS_RIP 16
#ifdef BESIDE
/* arch/x86/include/asm/kvm_host.h: it moved in 6.4. */
extern int LINUX_KERNEL_VERSION __kconfig;
#define HF_GUEST_MASK (LINUX_KERNEL_VERSION >= (6 << 16 | 4 << 8) ? 1u << 0 : 1u << 5)
#else
#define HF_GUEST_MASK (1u << 0) /* arch/x86/include/asm/kvm_host.h, from 6.4 on */
#endif
#define RFLAGS_IF (1ull << 9)
#define EFER_LMA (1ull << 10)
#define KVM_MP_STATE_HALTED 3 /* include/uapi/linux/kvm.h */
/* arch/x86/include/uapi/asm/svm.h, vmx.h */
#define SVM_EXIT_INTR 0x60u
#define SVM_EXIT_NMI 0x61u
#define SVM_EXIT_PAUSE 0x77u
#define SVM_EXIT_HLT 0x78u
#define VMX_EXIT_EXTERNAL_INTERRUPT 1u
#define VMX_EXIT_HLT 12u
#define VMX_EXIT_PAUSE 40u
#define APIC_ISR 0x100
#define APIC_IRR 0x200

static __always_inline u64 read_guest_rip(u64 kvm_vcpu)
{
	struct kvm_vcpu *vcpu = (void *)kvm_vcpu;
	unsigned long rip = 0;

	if (!kvm_vcpu)
		return 0;
	if (bpf_core_field_exists(vcpu->arch.rip))
		bpf_core_read(&rip, sizeof(rip), &vcpu->arch.rip);
	else
		bpf_core_read(&rip, sizeof(rip), &vcpu->arch.regs[VCPU_REGS_RIP]);
	return rip;
}

/* Are its registers those of a guest of the guest? Where that can't be read: no, as for nearly every vCPU. */
static __always_inline bool runs_nested_guest(u64 kvm_vcpu)
{
	struct kvm_vcpu *vcpu = (void *)kvm_vcpu;

	if (!kvm_vcpu || !bpf_core_field_exists(vcpu->arch.hflags))
		return false;
	return BPF_CORE_READ(vcpu, arch.hflags) & HF_GUEST_MASK;
}

/* The host sees what they were when the guest was made, or zeros. */
static __always_inline bool registers_are_protected(u64 kvm_vcpu)
{
	struct kvm_vcpu *vcpu = (void *)kvm_vcpu;

	return kvm_vcpu && bpf_core_field_exists(vcpu->arch.guest_state_protected) &&
	       BPF_CORE_READ(vcpu, arch.guest_state_protected);
}

/* Are its registers not those of the guest's own kernel? */
static __always_inline bool registers_tell_nothing(u64 kvm_vcpu)
{
	return runs_nested_guest(kvm_vcpu) || registers_are_protected(kvm_vcpu);
}

/* REGISTERS_… of a vCPU. Where its mode can't be read: 64-bit, as of nearly every guest. */
static __always_inline u32 look_at_registers(u64 kvm_vcpu)
{
	struct kvm_vcpu *vcpu = (void *)kvm_vcpu;

	if (registers_are_protected(kvm_vcpu))
		return REGISTERS_SEEN | REGISTERS_PROTECTED;
	if (!kvm_vcpu || !bpf_core_field_exists(vcpu->arch.efer) || BPF_CORE_READ(vcpu, arch.efer) & EFER_LMA)
		return REGISTERS_SEEN | REGISTERS_64_BIT;
	return REGISTERS_SEEN;
}

/*
 * Has its guest halted it? Then it waits in the host, in the guest's idle loop or for a lock: it holds none.
 */
static __always_inline bool is_halted(u64 kvm_vcpu)
{
	struct kvm_vcpu *vcpu = (void *)kvm_vcpu;

	if (!kvm_vcpu || !bpf_core_field_exists(vcpu->arch.mp_state))
		return false;
	return BPF_CORE_READ(vcpu, arch.mp_state) == KVM_MP_STATE_HALTED;
}

/* The vCPU that has this task's preempt notifier; NULL: the task is in no call of a vCPU. */
static __always_inline struct kvm_vcpu *vcpu_that_notifies(struct task_struct *p)
{
	struct hlist_node *link = BPF_CORE_READ(p, preempt_notifiers.first);

	if (!link)
		return NULL;
	return (void *)((u64)link - bpf_core_field_offset(struct kvm_vcpu, preempt_notifier.link));
}

/* KVM_RUN has named this thread: notifiers that aren't KVM's have nothing like it there. */
static __always_inline bool is_run_by(struct kvm_vcpu *kvm_vcpu, struct task_struct *p)
{
	return BPF_CORE_READ(kvm_vcpu, pid) == p->thread_pid;
}

/* Why it left its guest last, as its vendor numbers it; 0, which no vendor has for what is asked: unknown. */
static __always_inline u32 read_exit_reason(u64 kvm_vcpu)
{
	struct vcpu_vmx *vmx = (void *)kvm_vcpu; /* struct kvm_vcpu is the first member of all three */
	struct vcpu_vmx___vt *vt = (void *)kvm_vcpu;
	struct vcpu_svm *svm = (void *)kvm_vcpu;

	if (config.vendor == KVM_AMD && bpf_core_type_exists(struct vcpu_svm))
		return BPF_CORE_READ(svm, vmcb, control.exit_code);
	if (config.vendor == KVM_INTEL && bpf_core_field_exists(vt->vt))
		return BPF_CORE_READ(vt, vt.exit_reason.full) & 0xffff;
	if (config.vendor == KVM_INTEL && bpf_core_field_exists(vmx->exit_reason))
		return BPF_CORE_READ(vmx, exit_reason.full) & 0xffff;
	return 0;
}

/*
 * It left its guest for what takes KVM no lock: an interrupt of the host's, a pause, a halt. A page that has
 * to be found takes some of the whole VMM.
 */
static __always_inline bool left_guest_for_nothing(u64 kvm_vcpu)
{
	u32 reason = read_exit_reason(kvm_vcpu);

	if (config.vendor == KVM_AMD)
		return reason == SVM_EXIT_INTR || reason == SVM_EXIT_NMI || reason == SVM_EXIT_PAUSE ||
		       reason == SVM_EXIT_HLT;
	return reason == VMX_EXIT_EXTERNAL_INTERRUPT || reason == VMX_EXIT_PAUSE || reason == VMX_EXIT_HLT;
}

/* RFLAGS.IF of a vCPU that has just exited. Where it can't be read: enabled, as in an ordinary idle loop. */
static __always_inline u32 guest_interrupts_enabled(u64 kvm_vcpu)
{
	if (config.vendor == KVM_AMD && kvm_vcpu && bpf_core_type_exists(struct vcpu_svm)) {
		struct vcpu_svm *svm = (void *)kvm_vcpu; /* struct kvm_vcpu is its first member */
		u64 rflags = BPF_CORE_READ(svm, vmcb, save.rflags);

		return (rflags & RFLAGS_IF) != 0;
	}
	return 1;
}

/* MSR_LSTAR of a vCPU that is not in its guest; 0 where it can't be read. */
static __always_inline u64 read_guest_lstar(u64 kvm_vcpu)
{
	if (config.vendor == KVM_AMD && kvm_vcpu && bpf_core_type_exists(struct vcpu_svm)) {
		struct vcpu_svm *svm = (void *)kvm_vcpu;

		return BPF_CORE_READ(svm, vmcb, save.lstar);
	}
	return 0;
}

static __always_inline u8 *guest_apic(u64 kvm_vcpu)
{
	struct kvm_vcpu *vcpu = (void *)kvm_vcpu;

	return kvm_vcpu ? BPF_CORE_READ(vcpu, arch.apic, regs) : NULL;
}

/*
 * Where Intel's APIC keeps interrupts that were posted to a vCPU and that it hasn't taken over yet. Before
 * 6.16 in another struct. 0: unknown.
 */
static __always_inline u64 posted_requests(u64 kvm_vcpu)
{
	struct vcpu_vmx *vmx = (void *)kvm_vcpu; /* struct kvm_vcpu is its first member */
	struct vcpu_vmx___vt *vt = (void *)kvm_vcpu;

	if (config.vendor != KVM_INTEL || !kvm_vcpu)
		return 0;
	if (bpf_core_field_exists(vt->vt))
		return kvm_vcpu + bpf_core_field_offset(vt->vt.pi_desc.pir);
	if (bpf_core_field_exists(vmx->pi_desc))
		return kvm_vcpu + bpf_core_field_offset(vmx->pi_desc.pir);
	return 0;
}

/* The 32 bits of these that `vector` is one of. */
static __always_inline u32 posted_word(u64 kvm_vcpu, u32 vector)
{
	u64 posted = posted_requests(kvm_vcpu);
	u32 bits = 0;

	if (posted)
		bpf_probe_read_kernel(&bits, sizeof(bits), (void *)(posted + (vector >> 5) * sizeof(bits)));
	return bits;
}

/* Can all interrupts be seen that were sent to it, and that it hasn't taken? */
static __always_inline bool apic_shows_all(u64 kvm_vcpu)
{
	struct kvm_vcpu *vcpu = (void *)kvm_vcpu;

	if (config.vendor == KVM_AMD || posted_requests(kvm_vcpu))
		return true;
	return config.vendor == KVM_OTHER && kvm_vcpu &&
	       bpf_core_field_exists(vcpu->arch.apic->apicv_active) &&
	       !BPF_CORE_READ(vcpu, arch.apic, apicv_active);
}

/* The 32 bits of IRR or ISR that `vector` is one of; 0 if they can't be read. */
static __always_inline u32 apic_word(const u8 *registers, u32 bitmap, u32 vector)
{
	u32 bits = 0;

	bpf_probe_read_kernel(&bits, sizeof(bits), registers + bitmap + (vector >> 5) * 16);
	return bits;
}

/*
 * Has the guest not yet taken this interrupt? The request bit in its local APIC is cleared when it does. One
 * that was posted stands there only once its vCPU is about to enter the guest.
 */
__noinline u32 guest_interrupt_pending(u64 kvm_vcpu, u32 vector)
{
	u8 *registers = guest_apic(kvm_vcpu);
	u32 requested;

	if (!registers || !vector || vector > 255)
		return 0;
	requested = apic_word(registers, APIC_IRR, vector) | posted_word(kvm_vcpu, vector);
	return (requested >> (vector & 31)) & 1;
}

/*
 * Has it taken every call-function interrupt, and begun to handle it (enum sibling_answer)? One that was
 * injected into a vCPU which was stopped before its first instruction is in service.
 */
__noinline u32 guest_answer_to_calls(u64 kvm_vcpu)
{
	u8 *registers = guest_apic(kvm_vcpu);
	u32 calls = 1u << (VECTOR_CALL_FUNCTION & 31) | 1u << (VECTOR_CALL_FUNCTION_SINGLE & 31), owed;

	_Static_assert(VECTOR_CALL_FUNCTION >> 5 == VECTOR_CALL_FUNCTION_SINGLE >> 5, "both are in one word");
	if (!apic_shows_all(kvm_vcpu) || !registers)
		return ANSWER_UNKNOWN;
	owed = apic_word(registers, APIC_IRR, VECTOR_CALL_FUNCTION) |
	       apic_word(registers, APIC_ISR, VECTOR_CALL_FUNCTION) |
	       posted_word(kvm_vcpu, VECTOR_CALL_FUNCTION);
	return owed & calls ? ANSWER_OWED : ANSWER_GIVEN;
}

static __always_inline u32 interrupt_kind_of(u32 vector)
{
	if (vector == VECTOR_RESCHEDULE)
		return INTERRUPT_IPI_RESCHEDULE;
	if (vector == VECTOR_CALL_FUNCTION || vector == VECTOR_CALL_FUNCTION_SINGLE)
		return INTERRUPT_IPI_CALL_FUNCTION;
	if (vector == VECTOR_TIMER)
		return INTERRUPT_TIMER;
	if (vector >= VECTOR_DEVICE_FIRST && vector < VECTOR_SYSTEM_FIRST)
		return INTERRUPT_VIRQ;
	return INTERRUPT_OTHER;
}

static __always_inline bool feed_is_current(const struct vm_feed *feed, const struct vm *vm)
{
	return feed->generation == vm->generation;
}

/* Symbols and slide are known: the guest can be accelerated. */
static __always_inline u32 guest_is_known(u32 vm_slot)
{
	struct vm *vm = vm_at(vm_slot);
	struct vm_feed *feed = vm_feed_at(vm_slot);

	return vm && feed && feed_is_current(feed, vm) && feed->code && feed->layout.slide_known;
}

__noinline u32 classify_rip(u32 vcpu_slot, u32 vm_slot, u64 kvm_vcpu, u64 rip)
{
	struct vm *vm = vm_at(vm_slot);
	struct vm_feed *feed = vm_feed_at(vm_slot);
	struct guest_layout layout = {};
	struct guest_code *code;
	u32 code_slot = 0, class;

	if (registers_tell_nothing(kvm_vcpu))
		return GUEST_CLASS_UNKNOWN;
	if (vm && feed && feed_is_current(feed, vm)) {
		code_slot = feed->code;
		layout = feed->layout;
	}
	code = bpf_map_lookup_elem(&guest_codes, &code_slot);
	if (!code)
		return GUEST_CLASS_UNKNOWN;
	class = classify(code, &layout, rip);
	RECORD(RECORD_CLASSIFY, vcpu_slot, classify,
	       {.rip = rip, .layout = layout, .code_id = code_slot, .guest_class = class});
	/*
	 * Callers check it. What the compiler infers of it, and drops their check for, the verifier doesn't
	 * know.
	 */
	barrier_var(class);
	return class;
}

#endif
