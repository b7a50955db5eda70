/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What coordinated is made of: the core, its mechanisms, what they keep, and which of them answers at which
 * hook.
 *
 *   urgent          KVM's IPIs                   -> which vCPU is urgent, and until when
 *   placement       an urgent vCPU that waits    -> which pCPU's urgent queue
 *   urgent_queue    a pCPU's FIFO of them
 *   urgent_turns    urgent queue                 -> urgent slices
 *   directed_yield  KVM's directed yields
 *   delay_preemption   which vCPU keeps its pCPU for a while
 */
#ifndef BPF_COORDINATED_H
#define BPF_COORDINATED_H

#include "bpf/core/callbacks.bpf.h"
#include "bpf/core/observe.bpf.h"
#include "bpf/mechanisms/delay_preemption.bpf.h"
#include "bpf/mechanisms/directed_yield.bpf.h"
#include "bpf/mechanisms/urgent_turns.bpf.h"

/* ---- State: one map value per vCPU, VM and pCPU, made of what the core and each mechanism keep ---- */

struct coordinated_vcpu {
	struct vcpu core;
	struct delay_preemption_vcpu delay_preemption;
	struct directed_yield_vcpu directed_yield;
	struct placement_vcpu placement;
	struct urgent_vcpu urgent;
	struct urgent_queue_vcpu urgent_queue;
} OWN_LINE;

struct coordinated_vm {
	struct vm core;
} OWN_LINE;

struct coordinated_pcpu {
	struct pcpu core;
	struct delay_preemption_pcpu delay_preemption;
	struct urgent_pcpu urgent;
	struct urgent_queue_pcpu urgent_queue;
} OWN_LINE;

struct vcpus_map {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, VCPUS_MAX);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, u32);
	__type(value, struct coordinated_vcpu);
} vcpus SEC(".maps");

struct vms_map {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, VMS_MAX);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, u32);
	__type(value, struct coordinated_vm);
} vms SEC(".maps");

struct pcpus_map {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, PCPUS_MAX);
	__uint(map_flags, BPF_F_MMAPABLE); /* as the others: values begin with a page, and so with a line */
	__type(key, u32);
	__type(value, struct coordinated_pcpu);
} pcpus SEC(".maps");

/* Each mechanism's way from a vCPU or pCPU to what it keeps of it. */
#define STATE(mechanism, access, owner)                                                                      \
	static __always_inline struct mechanism##_##owner *access(const struct owner *owner)                 \
	{                                                                                                    \
		return &((struct coordinated_##owner *)owner)->mechanism;                                    \
	}

STATE(delay_preemption, delay_of, vcpu)
STATE(directed_yield, directed_yield_of, vcpu)
STATE(placement, placement_of, vcpu)
STATE(urgent, urgent_of, vcpu)
STATE(urgent_queue, urgent_queue_of, vcpu)
STATE(delay_preemption, delay_on, pcpu)
STATE(urgent, urgent_on, pcpu)
STATE(urgent_queue, urgent_queue_on, pcpu)

/* ---- Coming and going ---- */

HOOK void on_vm_joins(struct vm *vm)
{
}

HOOK void on_vcpu_joins(struct vcpu *vcpu)
{
	*delay_of(vcpu) = (struct delay_preemption_vcpu){};
	*directed_yield_of(vcpu) = (struct directed_yield_vcpu){};
	*placement_of(vcpu) = (struct placement_vcpu){};
	*urgent_of(vcpu) = (struct urgent_vcpu){};
	*urgent_queue_of(vcpu) = (struct urgent_queue_vcpu){};
}

HOOK void on_vcpu_leaves(struct vcpu *vcpu)
{
	end_urgency(vcpu, URGENT_END_STOPPED);
}

/* ---- pCPUs: none is reserved ---- */

HOOK bool is_reserved(s32 cpu)
{
	return false;
}

HOOK bool reserved_are_lent(void)
{
	return false;
}

HOOK bool reserved_gives_way(const struct pcpu *pcpu)
{
	return false;
}

HOOK s32 kick_idle_reserved(struct task_struct *p)
{
	return -1;
}

HOOK bool is_confined(struct task_struct *p)
{
	return false;
}

HOOK void enqueue_confined(struct task_struct *p, struct vcpu *vcpu, u64 enq_flags)
{
}

HOOK void release_confined(struct bpf_iter_scx_dsq *it, struct task_struct *p)
{
}

HOOK void dispatch_reserved(s32 cpu, struct pcpu *pcpu, struct task_struct *prev)
{
}

/*
 * An urgent slice is shorter than a kernel thread could notice. The turn of a protected vCPU goes on behind
 * its slice.
 */
HOOK bool is_undisturbed(s32 cpu, const struct pcpu *pcpu)
{
	return pcpu && pcpu->occupant == OCCUPANT_URGENT && urgent_on(pcpu)->borrows;
}

/* An urgent vCPU waits for no window. There is no grace: that needs a micro pool. */
static __always_inline bool turns_are_delayed_on(s32 cpu, const struct pcpu *pcpu)
{
	return turns_have_windows() && !urgent_line_length(pcpu);
}

/* ---- A vCPU waits ---- */

HOOK void on_enqueue(struct vcpu *vcpu)
{
}

HOOK u64 comes_back_for(struct vcpu *vcpu, u32 slot)
{
	return 0;
}

HOOK void on_clock_set(struct vcpu *vcpu)
{
}

HOOK bool was_sent_away(struct vcpu *vcpu)
{
	return false;
}

HOOK void on_wait(struct task_struct *p, struct vcpu *vcpu, u32 slot)
{
}

HOOK void on_queued(struct vcpu *vcpu, u32 slot)
{
	if (urgent_of(vcpu)->is_urgent)
		line_up(slot);
}

HOOK void on_rest(struct vcpu *vcpu)
{
	end_urgency(vcpu, URGENT_END_STOPPED);
}

HOOK void on_stay(struct vcpu *vcpu)
{
}

HOOK void on_block(struct vcpu *vcpu)
{
	end_urgency(vcpu, URGENT_END_STOPPED);
}

/* ---- A turn begins and ends ---- */

HOOK u32 on_turn_begins(struct vcpu *vcpu, s32 cpu, u32 occupant)
{
	directed_yield_of(vcpu)->heir = 0;
	vcpu->state = VCPU_RUNNING;
	return starts_urgently(vcpu, cpu) ? OCCUPANT_URGENT : occupant;
}

HOOK void on_running(struct task_struct *p, struct vcpu *vcpu, s32 cpu, struct pcpu *pcpu, u64 now)
{
	turn_begins_on(cpu, slot_that_runs(p));
	start_on_pcpu(p, vcpu, cpu, pcpu, now);
	kick_for_late_urgent(cpu, pcpu);
}

HOOK bool keeps_its_pcpu(struct vcpu *vcpu)
{
	return false;
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

HOOK bool on_turn_ends(struct vcpu *vcpu, u32 slot, u64 ran_ns, bool runnable)
{
	settle_urgency(slot, bpf_ktime_get_ns());
	return false;
}

HOOK void on_pcpu_stops(struct pcpu *pcpu, u64 now)
{
	ends_without_window(pcpu);
	stop_urgent_slice(pcpu, now);
}

/* ---- What runs next ---- */

HOOK bool goes_before_all(s32 cpu, struct pcpu *pcpu, struct task_struct *prev, u32 *owed)
{
	if (urgent_slice_goes_on(cpu, prev, pcpu))
		return true;
	return turns_are_delayed_on(cpu, pcpu) && window_puts_off(cpu, prev, whose_turn_ends(prev));
}

HOOK bool goes_before_boosted(s32 cpu, struct pcpu *pcpu, struct task_struct *prev, u32 owed)
{
	return serve_urgent(cpu, pcpu, prev) || take_heir(cpu, prev, 0);
}

HOOK bool goes_before_the_line(s32 cpu, struct pcpu *pcpu, u32 owed)
{
	return false;
}

/* One of its own, by its clock. */
HOOK void on_another_turn(struct vcpu *vcpu, struct pcpu *pcpu)
{
	urgent_on(pcpu)->borrows = 0;
}

HOOK void on_new_slice(s32 cpu, const struct pcpu *pcpu)
{
	turn_begins_on(cpu, delay_on(pcpu)->vcpu - 1);
	kick_for_late_urgent(cpu, pcpu);
}

HOOK void on_open_turn(struct pcpu *pcpu)
{
}

HOOK u32 traced_turn(s32 cpu)
{
	const struct pcpu *pcpu = pcpu_of(cpu);

	return pcpu && pcpu->occupant == OCCUPANT_URGENT ? TRACE_TURN_URGENT : TRACE_TURN_NORMAL;
}

HOOK void on_charge(struct vcpu *vcpu, struct pcpu *pcpu, u64 ran_ns)
{
}

#endif
