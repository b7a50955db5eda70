/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What microslice is made of: the core, its mechanisms, what they keep, and which of them answers at which
 * hook.
 *
 * Asking, which ends in a request:
 *   hints       KVM's events
 *   passes      siblings of a waiter
 *   looks       interrupts that no exit told of, and waits that are due
 *   heirs       stopped waiters, if nobody of their VM holds anything
 *   woken       woken vCPUs that wait
 *   ask_again   who found no room
 *   patience    spinners that keep their pCPU while what they wait for was asked for
 *   ask, places the request, and the pCPU that it goes to
 *
 * Serving, which begins with one:
 *   pull        a vCPU from the queues to the pCPU that was asked
 *   micro_slice its timer and its end
 *   micro_turns, confined, lending, pool_size   reserved pCPUs
 *   home_slices pCPUs of the normal pool
 *
 * Both stand on request and micro_pool. Beside them are delay_preemption, grace and directed_yield: which
 * vCPU keeps its pCPU, and which gets it.
 */
#ifndef BPF_MICROSLICE_H
#define BPF_MICROSLICE_H

#include "bpf/core/callbacks.bpf.h"
#include "bpf/mechanisms/asking/looks.bpf.h"
#include "bpf/mechanisms/asking/woken.bpf.h"
#include "bpf/mechanisms/serving/micro_turns.bpf.h"

/* ---- State: one map value per vCPU, VM and pCPU, made of what the core and each mechanism keep ---- */

struct microslice_vcpu {
	struct vcpu core;
	struct directed_yield_vcpu directed_yield;
	struct delay_preemption_vcpu delay_preemption;
	struct grace_vcpu grace;
	struct heirs_vcpu heirs;
	struct lending_vcpu lending;
	struct looks_vcpu looks;
	struct patience_vcpu patience;
	struct request_vcpu request;
	struct woken_vcpu woken;
} OWN_LINE;

struct microslice_vm {
	struct vm core;
	struct heirs_vm heirs;
	struct passes_vm passes;
	struct patience_vm patience;
	struct request_vm request;
} OWN_LINE;

struct microslice_pcpu {
	struct pcpu core;
	struct confined_pcpu confined;
	struct delay_preemption_pcpu delay_preemption;
	struct home_slices_pcpu home_slices;
	struct lending_pcpu lending;
	struct micro_slice_pcpu micro_slice;
	struct pool_size_pcpu pool_size;
	struct request_pcpu request;
	struct woken_pcpu woken;
} OWN_LINE;

struct vcpus_map {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, VCPUS_MAX);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, u32);
	__type(value, struct microslice_vcpu);
} vcpus SEC(".maps");

struct vms_map {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, VMS_MAX);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, u32);
	__type(value, struct microslice_vm);
} vms SEC(".maps");

struct pcpus_map {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, PCPUS_MAX);
	__uint(map_flags, BPF_F_MMAPABLE); /* as the others: values begin with a page, and so with a line */
	__type(key, u32);
	__type(value, struct microslice_pcpu);
} pcpus SEC(".maps");

/* Each mechanism's way from a vCPU, VM or pCPU to what it keeps of it. */
#define STATE(mechanism, access, owner)                                                                      \
	static __always_inline struct mechanism##_##owner *access(const struct owner *owner)                 \
	{                                                                                                    \
		return &((struct microslice_##owner *)owner)->mechanism;                                     \
	}

STATE(directed_yield, directed_yield_of, vcpu)
STATE(delay_preemption, delay_of, vcpu)
STATE(grace, grace_of, vcpu)
STATE(heirs, heirs_of, vcpu)
STATE(lending, lending_of, vcpu)
STATE(looks, looks_of, vcpu)
STATE(patience, patience_of, vcpu)
STATE(request, request_of, vcpu)
STATE(woken, woken_of, vcpu)
STATE(heirs, heirs_in, vm)
STATE(passes, passes_in, vm)
STATE(patience, patience_in, vm)
STATE(request, request_in, vm)
STATE(confined, confined_on, pcpu)
STATE(delay_preemption, delay_on, pcpu)
STATE(home_slices, home_slices_on, pcpu)
STATE(lending, lending_on, pcpu)
STATE(micro_slice, micro_slice_on, pcpu)
STATE(pool_size, pool_size_on, pcpu)
STATE(request, request_on, pcpu)
STATE(woken, woken_on, pcpu)

/* ---- Coming and going ---- */

HOOK void on_vm_joins(struct vm *vm)
{
	*heirs_in(vm) = (struct heirs_vm){};
	passes_in(vm)->until_ns = 0;
	*patience_in(vm) = (struct patience_vm){};
	*request_in(vm) = (struct request_vm){};
}

HOOK void on_vcpu_joins(struct vcpu *vcpu)
{
	*directed_yield_of(vcpu) = (struct directed_yield_vcpu){};
	*delay_of(vcpu) = (struct delay_preemption_vcpu){};
	*grace_of(vcpu) = (struct grace_vcpu){};
	*heirs_of(vcpu) = (struct heirs_vcpu){};
	*lending_of(vcpu) = (struct lending_vcpu){};
	*looks_of(vcpu) = (struct looks_vcpu){};
	*patience_of(vcpu) = (struct patience_vcpu){};
	*request_of(vcpu) = (struct request_vcpu){};
	*woken_of(vcpu) = (struct woken_vcpu){};
}

HOOK void on_vcpu_leaves(struct vcpu *vcpu)
{
	heir_runs(vcpu);
	fail_request(vcpu, VCPU_BLOCKED, FAILURE_BLOCKED);
	end_acceleration(vcpu, VCPU_BLOCKED, MICRO_SLICE_BLOCKED);
	woken_of(vcpu)->cause = 0;
}

/* ---- pCPUs ---- */

HOOK bool is_reserved(s32 cpu)
{
	return pcpu_is_micro(cpu);
}

HOOK bool reserved_are_lent(void)
{
	return config.lend;
}

HOOK bool reserved_gives_way(const struct pcpu *pcpu)
{
	return pcpu->occupant == OCCUPANT_LENT_VCPU && !lending_on(pcpu)->to_boosted;
}

HOOK s32 kick_idle_reserved(struct task_struct *p)
{
	return kick_idle_micro(p);
}

/*
 * An accelerated vCPU isn't preempted (section 5), in either pool: its slice is shorter than a kernel thread
 * could notice.
 */
HOOK bool is_undisturbed(s32 cpu, const struct pcpu *pcpu)
{
	bool is_lent = pcpu && pcpu->occupant == OCCUPANT_LENT_VCPU;
	bool is_accelerated = pcpu && pcpu->occupant == OCCUPANT_MICRO;

	return (pcpu_is_micro(cpu) && !is_lent) || is_accelerated;
}

/* ---- Ends of turns ---- */

/*
 * Without a micro pool nothing helps the vCPU that one in critical code may wait for: with grace it would
 * only spin for longer. A requester of a micro slice here doesn't wait for a window, nor does a micro pCPU
 * have one.
 */
static __always_inline bool turns_are_delayed_on(s32 cpu, const struct pcpu *pcpu)
{
	if (turns_have_windows())
		return !pcpu_is_micro(cpu) && !request_on(pcpu)->vcpu;
	return micro_pcpu_count != 0;
}

/* ---- A vCPU waits ---- */

/* It left the micro pCPU's queue before it ran. */
HOOK void on_enqueue(struct vcpu *vcpu)
{
	end_acceleration(vcpu, VCPU_RUNNABLE, RETURN_NEVER_RAN);
}

HOOK u64 comes_back_for(struct vcpu *vcpu, u32 slot)
{
	return micro_pcpu_count && comes_back(vcpu, slot) ? config.delay.look_ns : 0;
}

HOOK void on_clock_set(struct vcpu *vcpu)
{
	grace_of(vcpu)->given_ns = 0;
}

HOOK bool was_sent_away(struct vcpu *vcpu)
{
	bool called_back = lending_of(vcpu)->called_back;

	lending_of(vcpu)->called_back = 0;
	return called_back;
}

HOOK void on_wait(struct task_struct *p, struct vcpu *vcpu, u32 slot)
{
	ask_about_woken(p, vcpu, slot);
}

HOOK void on_queued(struct vcpu *vcpu, u32 slot)
{
	resume_request(vcpu, slot);
	if (vcpu->state == VCPU_RUNNABLE)
		ask_for_heir(vcpu->vm, true);
}

/* The mechanism that asked for it is told so; none may ask until it is released. */
HOOK void on_rest(struct vcpu *vcpu)
{
	end_acceleration(vcpu, VCPU_RUNNABLE, RETURN_NEVER_RAN);
	fail_request(vcpu, VCPU_RUNNABLE, FAILURE_LIMITED);
	request_of(vcpu)->failure = FAILURE_LIMITED;
	request_of(vcpu)->retry = 0;
	grace_of(vcpu)->interrupted = 0;
}

/* A micro slice ended here, at home or because the pCPU left the pool. */
HOOK void on_stay(struct vcpu *vcpu)
{
	grace_of(vcpu)->given_ns = 0;
	request_of(vcpu)->retry = 0;
}

HOOK void on_block(struct vcpu *vcpu)
{
	woken_of(vcpu)->cause = 0;
	if (!fail_request(vcpu, VCPU_BLOCKED, FAILURE_BLOCKED))
		end_acceleration(vcpu, VCPU_BLOCKED, RETURN_NEVER_RAN);
	ask_for_heir(vcpu->vm, true);
}

/* ---- A turn begins and ends ---- */

HOOK u32 on_turn_begins(struct vcpu *vcpu, s32 cpu, u32 occupant)
{
	heir_runs(vcpu);
	lending_of(vcpu)->called_back = 0;
	looks_of(vcpu)->found = 0;
	count_late_wait(vcpu);
	patience_begins(vcpu);
	directed_yield_of(vcpu)->heir = 0;
	grace_of(vcpu)->turn_over = 0;
	woken_of(vcpu)->blocked_interrupt = 0;
	woken_of(vcpu)->cause = 0;
	if (vcpu->state == VCPU_MICRO && request_of(vcpu)->pcpu == cpu)
		return OCCUPANT_MICRO;
	/* The normal pool was faster than the micro pool, or the task left its micro pCPU before it ran. */
	fail_request(vcpu, VCPU_RUNNING, FAILURE_OVERTAKEN);
	end_acceleration(vcpu, VCPU_RUNNING, RETURN_NEVER_RAN);
	vcpu->state = VCPU_RUNNING;
	return occupant;
}

HOOK void on_running(struct task_struct *p, struct vcpu *vcpu, s32 cpu, struct pcpu *pcpu, u64 now)
{
	turn_begins_on(cpu, slot_that_runs(p));
	if (pcpu_is_micro(cpu))
		start_on_micro_pcpu(p, vcpu, cpu, pcpu, now);
	else if (vcpu && pcpu->occupant == OCCUPANT_MICRO)
		start_at_home(vcpu, cpu, pcpu, now);
	else if (vcpu && grace_of(vcpu)->given_ns)
		begin_grace(cpu, pcpu, now);
	kick_for_late_request(cpu, pcpu);
}

HOOK bool keeps_its_pcpu(struct vcpu *vcpu)
{
	return patience_of(vcpu)->keeps_spinning;
}

HOOK bool heir_comes(struct task_struct *from, struct vcpu *vcpu, struct task_struct *to)
{
	/* A micro slice ends in any case. */
	return vcpu->state != VCPU_RUNNING || may_come(to, scx_bpf_task_cpu(from));
}

HOOK void on_gives_up(struct vcpu *vcpu, struct task_struct *to)
{
	struct task_ctx *heir = to ? task_ctx_of(to) : NULL;

	directed_yield_of(vcpu)->heir = heir ? heir->vcpu : 0;
}

/* It is asked for once it is queued. What it was to be asked for at an earlier stop is over: it has run. */
static __always_inline void ask_for_holder(struct vcpu *vcpu)
{
	bool is_needed = vcpu->preempted && is_needed_holder(vcpu);

	request_of(vcpu)->retry = is_needed && decided_pcpu_count;
	if (is_needed)
		count_urgent(urgent_event_of_stop(CAUSE_HOLDER));
	if (!request_of(vcpu)->retry)
		return;
	request_of(vcpu)->cause = CAUSE_HOLDER;
	request_of(vcpu)->vector = 0;
}

HOOK bool on_turn_ends(struct vcpu *vcpu, u32 slot, u64 ran_ns, bool runnable)
{
	grace_of(vcpu)->interrupted =
	    vcpu->preempted && !grace_of(vcpu)->turn_over && vcpu->state == VCPU_RUNNING;
	patience_of(vcpu)->keeps_spinning = 0;
	heir_stops(vcpu, ran_ns);
	/* It has left the halt (one byte long) that it waited for a lock in. */
	if (vcpu->rip - woken_of(vcpu)->lock_halt_rip > 1)
		woken_of(vcpu)->lock_halt_rip = 0;
	if (!runnable)
		woken_of(vcpu)->blocked_interrupt = 0;
	if (vcpu->state != VCPU_MICRO) {
		ask_for_holder(vcpu);
		return false;
	}
	stop_accelerated(slot, ran_ns, runnable);
	return true;
}

HOOK void on_pcpu_stops(struct pcpu *pcpu, u64 now)
{
	if (pcpu->occupant == OCCUPANT_MICRO)
		request_on(pcpu)->disturbed_at_ns = now;
	micro_slice_on(pcpu)->deadline_ns = 0;
	ends_without_window(pcpu);
	lending_on(pcpu)->is_lent = 0;
	stop_busy(pcpu, now);
}

/* ---- What runs next ---- */

HOOK void dispatch_reserved(s32 cpu, struct pcpu *pcpu, struct task_struct *prev)
{
	bool served = dispatch_micro(cpu, pcpu);

	/* The place is free now. */
	ask_again(pcpu);
	dispatch_micro_rest(cpu, pcpu, prev, served);
}

HOOK bool goes_before_all(s32 cpu, struct pcpu *pcpu, struct task_struct *prev, u32 *owed)
{
	if (micro_slice_goes_on(prev, pcpu) || is_put_off(cpu, prev, pcpu))
		return true;
	/*
	 * A second micro slice behind the first one: the vCPU interrupted by the first waits for the end of
	 * the second.
	 */
	if (serve_at_home(cpu, pcpu, prev))
		return true;
	*owed = home_slices_on(pcpu)->interrupted;
	home_slices_on(pcpu)->interrupted = 0;
	/* What is left from when this pCPU was micro-sliced. */
	return dsq_move_to_local(DSQ_CONFINED + cpu);
}

/* A vCPU that yields a micro slice gives no other the turn that was interrupted for it. */
HOOK bool goes_before_boosted(s32 cpu, struct pcpu *pcpu, struct task_struct *prev, u32 owed)
{
	return !owed && take_heir(cpu, prev, 0);
}

HOOK bool goes_before_the_line(s32 cpu, struct pcpu *pcpu, u32 owed)
{
	return owed && take_interrupted(owed - 1, cpu);
}

HOOK void on_another_turn(struct vcpu *vcpu, struct pcpu *pcpu)
{
	lending_on(pcpu)->to_boosted = 0;
	grace_of(vcpu)->given_ns = 0;
	grace_of(vcpu)->turn_over = 0;
}

HOOK void on_new_slice(s32 cpu, const struct pcpu *pcpu)
{
	turn_begins_on(cpu, delay_on(pcpu)->vcpu - 1);
	kick_for_late_request(cpu, pcpu);
}

HOOK void on_open_turn(struct pcpu *pcpu)
{
	micro_slice_on(pcpu)->deadline_ns = 0;
	end_grace(pcpu);
}

HOOK u32 traced_turn(s32 cpu)
{
	const struct pcpu *pcpu = pcpu_of(cpu);

	return pcpu && pcpu->occupant == OCCUPANT_MICRO ? TRACE_TURN_MICRO : TRACE_TURN_NORMAL;
}

HOOK void on_charge(struct vcpu *vcpu, struct pcpu *pcpu, u64 ran_ns)
{
	struct vm_stats *stats = vm_stats_at(vcpu->vm);

	if (stats && lending_on(pcpu)->is_lent)
		ADD(stats->lent_ran_ns, ran_ns);
}

#endif
