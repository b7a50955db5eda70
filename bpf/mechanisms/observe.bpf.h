/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Observe: the KVM events that say that somebody waits, each handed to policy/accelerate.h.
 *
 *   event                                attach point                           hint
 *   pause-loop exit                      fentry kvm_vcpu_on_spin                the guest spins
 *   HLT exit                             tracepoint kvm_exit                    idle, or a paravirtual lock
 *   paravirtual sched-yield hypercall    raw tracepoint kvm_hypercall           an IPI's target was preempted
 *   interrupt with its vector            fentry svm/vmx_deliver_interrupt       IPI or device interrupt
 *
 * Problem.   Interrupt vectors are the guest's own, and those known here are Linux's. A guest that isn't Linux has no
 *            symbols here and is never accelerated.
 * Races.     These programs run in the vCPU's thread and may be preempted: a pass over a VM is a claim that runs out by
 *            itself after PASS_MAX_NS. What they read of a sibling may be old by then; the pull checks again.
 * Limits.    With IPI virtualization (AVIC, IPIv) an interrupt to a running vCPU causes no exit, and no hint is needed;
 *            one to a preempted vCPU exits on AVIC; on IPIv and posted interrupts from devices nothing fires.
 */
#ifndef BPF_OBSERVE_H
#define BPF_OBSERVE_H

#include "bpf/mechanisms/pools.bpf.h"

#define PASS_MAX_NS 1000000ull
#define SVM_EXIT_HLT 0x78u
#define VMX_EXIT_HLT 12u
#define KVM_ISA_VMX 1u
#define KVM_HC_SCHED_YIELD 11u

/* A halt is sent to the daemon this often per VM: it looks for the slide in them, or for a contradiction. */
#define HALT_SAMPLE_INTERVAL_NS 1000000ull

/* ---- A pass over the siblings of a vCPU that waits ---- */

/*
 * Looks at one sibling; false ends the pass. What the pass has counted is kept in the VM, not on the stack: a counter
 * that grows in a register makes each turn of a loop a new state to the verifier, which then never ends. The pass
 * has the VM to itself.
 */
__noinline int visit_sibling(u32 vm_slot, u32 at, u32 self, u32 scope, u32 cause)
{
	struct sibling_observation seen = {};
	struct vm *vm = vm_at(vm_slot);
	struct vm_stats *stats = vm_stats_at(vm_slot);
	struct vcpu *sibling;
	u32 entry, slot, verdict;

	if (!vm || !stats)
		return 0;
	entry = vm->vcpus[at & (VCPUS_PER_VM_MAX - 1)];
	slot = entry - 1;
	sibling = vcpu_at(slot);
	if (!entry || slot == self || !sibling)
		return 1;
	seen.state = sibling->state;
	seen.preempted = sibling->preempted;
	seen.yielded = sibling->yielded;
	seen.guest_class = sibling->guest_class;
	seen.requested_count = passes_in(vm)->requested_count;
	if (scope == PASS_ALL_PREEMPTED || scope == PASS_ALL_OWING)
		seen.answer = guest_answer_to_calls(sibling->kvm_vcpu);
	if (seen.answer == ANSWER_UNKNOWN)
		passes_in(vm)->silent_count++;
	verdict = decide_on_sibling(scope, &seen);
	RECORD(RECORD_SIBLING, slot, sibling, {.seen = seen, .scope = scope, .decision = verdict});
	if (verdict < SIBLING_DECISION_COUNT)
		COUNT(stats->siblings[verdict]);
	if (verdict == SIBLING_REQUEST) {
		if (request_acceleration(slot, cause, 0)) {
			passes_in(vm)->requested_count++;
			passes_in(vm)->helped_count++;
		} else if (request_of(sibling)->failure == FAILURE_NO_ROOM) {
			passes_in(vm)->crowded_count++;
		} else if (request_of(sibling)->failure == FAILURE_VM_AHEAD) {
			passes_in(vm)->refused_count++;
		}
	} else if (verdict == SIBLING_ALREADY_REQUESTED || verdict == SIBLING_ANSWERING) {
		passes_in(vm)->helped_count++;
	}
	return verdict != SIBLING_PASS_DONE;
}

/* Goes round the VM's vCPUs from the one at `first`. */
static __always_inline void make_pass(struct vm *vm, u32 vm_slot, u32 self, u32 first,
				      const struct yield_decision *decision)
{
	u32 visited;

	passes_in(vm)->requested_count = 0;
	passes_in(vm)->helped_count = 0;
	passes_in(vm)->crowded_count = 0;
	passes_in(vm)->refused_count = 0;
	passes_in(vm)->silent_count =
	    decision->scope != PASS_ALL_PREEMPTED; /* others don't look at answers */
	bpf_for (visited, 0, VCPUS_PER_VM_MAX) {
		u32 high = vm->vcpu_high, at = first + visited;

		if (visited >= high)
			break;
		if (!visit_sibling(vm_slot, at < high ? at : at - high, self, decision->scope,
				   decision->cause))
			break;
	}
}

#define NOBODY 0xffffffffu

/*
 * There is room on this micro pCPU: those that it turned away, and that still owe an answer, are asked for again. It
 * begins with the one that was turned away first: from the VM's first vCPU on, siblings that wait for answers
 * themselves, which is critical code, would take the place in turns, and keep out who owes them one.
 */
static __noinline int ask_again(struct pcpu *pcpu)
{
	struct yield_decision decision = {.scope = PASS_ALL_OWING, .cause = CAUSE_CALL_FUNCTION_IPI};
	u64 now = bpf_ktime_get_ns(), claim;
	struct vm_stats *stats;
	u32 slot, first;
	struct vm *vm;

	if (!pcpu || micro_slice_on(pcpu)->request || !config.accelerate.grace_max)
		return 0;
	slot = passes_on(pcpu)->turned_away - 1;
	vm = vm_at(slot);
	stats = vm_stats_at(slot);
	if (slot >= VMS_MAX || !vm || !stats)
		return 0;
	claim = passes_in(vm)->until_ns;
	if (claim > now ||
	    __sync_val_compare_and_swap(&passes_in(vm)->until_ns, claim, now + PASS_MAX_NS) != claim)
		return 0; /* a pass is under way: when there is room the next time */
	/* Unless it is another VM by now. */
	__sync_val_compare_and_swap(&passes_on(pcpu)->turned_away, slot + 1, 0);
	COUNT(stats->asked_again);
	first = __sync_lock_test_and_set(&passes_in(vm)->first_turned_away, 0);
	make_pass(vm, slot, NOBODY, first ? first - 1 : 0, &decision);
	__sync_val_compare_and_swap(&passes_in(vm)->until_ns, now + PASS_MAX_NS, 0);
	return 0;
}

/* For how long it has waited in this turn. Two exits further apart than a micro slice are of two waits. */
static __always_inline u64 spun_ns(struct vcpu *self)
{
	u64 now = bpf_ktime_get_ns();

	if (now - patience_of(self)->spun_until_ns > config.micro_slice_ns)
		patience_of(self)->spins_since_ns = now;
	patience_of(self)->spun_until_ns = now;
	return now - patience_of(self)->spins_since_ns;
}

/* `vm` is whose pass has just ended; NULL if none was made. */
static __always_inline void decide_spinner(struct vcpu *self, u32 slot, u32 cause, const struct vm *vm,
					   u32 reason)
{
	struct accelerate_config limits = config.accelerate;
	struct spinner_observation seen = {.cause = cause,
					   .helped_count = vm ? passes_in(vm)->helped_count : 0,
					   .crowded_count = vm ? passes_in(vm)->crowded_count : 0,
					   .refused_count = vm ? passes_in(vm)->refused_count : 0,
					   .answers_known = vm && !passes_in(vm)->silent_count,
					   .pass_active = reason == YIELD_PASS_ACTIVE,
					   .pass_made = vm != NULL,
					   .spun_ns = spun_ns(self)};
	struct vm_stats *stats = vm_stats_at(self->vm);
	u32 decision = decide_on_spinner(&limits, &seen);

	RECORD(RECORD_SPINNER, slot, spinner, {.config = limits, .seen = seen, .decision = decision});
	patience_of(self)->keeps_spinning = decision == SPINNER_KEEPS_SPINNING;
	/* Who is helped begins to wait anew. */
	if (seen.helped_count || seen.crowded_count)
		patience_of(self)->spun_until_ns = 0;
	if (stats && decision < 2)
		COUNT(stats->spinners[decision]);
}

/* The vCPU whose thread this is gives up its pCPU, or is about to. */
__noinline int on_yield(u32 cause)
{
	struct task_ctx *tctx = task_ctx_of(bpf_get_current_task_btf());
	struct vcpu *self = vcpu_of(tctx);
	struct yield_observation seen = {.cause = cause, .micro_pcpu_count = decided_pcpu_count};
	struct yield_decision decision;
	struct vm_stats *stats;
	struct vm *vm;
	u64 now = bpf_ktime_get_ns(), claim, rip;
	u32 slot;

	if (!tctx || !self || cause >= YIELD_CAUSE_COUNT)
		return 0;
	vm = vm_at(self->vm);
	stats = vm_stats_at(self->vm);
	if (!vm || !stats)
		return 0;
	slot = tctx->vcpu - 1;
	rip = read_guest_rip(self->kvm_vcpu);
	seen.guest_class = classify_rip(slot, self->vm, rip);
	seen.interrupts_enabled = guest_interrupts_enabled(self->kvm_vcpu);
	claim = passes_in(vm)->until_ns;
	seen.pass_active = claim > now;
	/* Claimed by another pCPU between the look and the claim: as if it had been active already. */
	if (!seen.pass_active &&
	    __sync_val_compare_and_swap(&passes_in(vm)->until_ns, claim, now + PASS_MAX_NS) != claim)
		seen.pass_active = 1;
	decision = decide_on_yield(&seen);
	RECORD(RECORD_YIELD, slot, yield, {.seen = seen, .decision = decision});
	if (decision.reason < YIELD_REASON_COUNT)
		COUNT(stats->yields[cause][decision.reason]);
	count_urgent(urgent_event_of_yield(decision.cause));
	if (cause == YIELD_HLT) {
		woken_of(self)->lock_halt_rip = decision.cause == CAUSE_LOCK_HALT ? rip : 0;
		woken_of(self)->lock_halt_interrupts_enabled = seen.interrupts_enabled;
	}
	if (decision.scope != PASS_NONE)
		make_pass(vm, self->vm, slot, self->index_in_vm + 1, &decision);
	/* Before the VM is given to another pass, which counts anew. */
	decide_spinner(self, slot, cause, decision.scope != PASS_NONE ? vm : NULL, decision.reason);
	if (!seen.pass_active)
		__sync_val_compare_and_swap(&passes_in(vm)->until_ns, now + PASS_MAX_NS, 0);
	return 0;
}

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
	if (!vm || !(rip >> 63) || now - vm->halt_sampled_at_ns < HALT_SAMPLE_INTERVAL_NS)
		return;
	vm->halt_sampled_at_ns = now;
	event.witness.vm = self->vm;
	event.witness.generation = vm->generation;
	event.witness.address = rip;
	send_event(&event);
}

SEC("tp/kvm/kvm_exit")
int on_exit(struct trace_event_raw_kvm_exit *exit)
{
	u32 halt = exit->isa == KVM_ISA_VMX ? VMX_EXIT_HLT : SVM_EXIT_HLT;

	if (exit->exit_reason != halt)
		return 0;
	sample_halt(exit->guest_rip);
	return on_yield(YIELD_HLT);
}

/* ---- Interrupts ---- */

static __noinline int on_interrupt(u64 kvm_vcpu, u32 vector)
{
	u32 *slot = bpf_map_lookup_elem(&vcpu_by_address, &kvm_vcpu);
	struct accelerate_config limits = config.accelerate;
	struct interrupt_observation seen = {};
	struct interrupt_decision decision;
	struct vm_stats *stats;
	struct vcpu *vcpu;

	if (!slot)
		return 0;
	vcpu = vcpu_at(*slot);
	if (!vcpu)
		return 0;
	stats = vm_stats_at(vcpu->vm);
	if (!stats)
		return 0;
	seen.kind = interrupt_kind_of(vector);
	seen.recipient_state = vcpu->state;
	seen.micro_pcpu_count = decided_pcpu_count;
	seen.guest_known = guest_is_known(vcpu->vm);
	seen.recipient_goes_first = vcpu->goes_first;
	decision = decide_on_interrupt(&limits, &seen);
	RECORD(RECORD_INTERRUPT, *slot, interrupt, {.config = limits, .seen = seen, .decision = decision});
	if (seen.kind < INTERRUPT_KIND_COUNT && decision.reason < INTERRUPT_REASON_COUNT)
		COUNT(stats->interrupts[seen.kind][decision.reason]);
	count_urgent(urgent_event_of_interrupt(seen.kind, decision.reason));
	/* Of several the urgent one is remembered until it runs: see ask_about_woken(). */
	if (seen.recipient_state == VCPU_BLOCKED &&
	    (decision.reason == INTERRUPT_RECIPIENT_BLOCKED || !woken_of(vcpu)->blocked_interrupt))
		woken_of(vcpu)->blocked_interrupt = vector;
	if (decision.cause != CAUSE_NONE)
		request_acceleration(*slot, decision.cause, vector);
	return 0;
}

SEC("fentry/svm_deliver_interrupt")
int BPF_PROG(on_svm_interrupt, struct kvm_lapic *apic, int delivery_mode, int trigger_mode, int vector)
{
	return apic ? on_interrupt((u64)apic->vcpu, vector) : 0;
}

SEC("fentry/vmx_deliver_interrupt")
int BPF_PROG(on_vmx_interrupt, struct kvm_lapic *apic, int delivery_mode, int trigger_mode, int vector)
{
	return apic ? on_interrupt((u64)apic->vcpu, vector) : 0;
}

#endif
