/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Callbacks: what sched_ext asks, as ladders that end in the core or at a hook.
 *
 * A scheduler's own callbacks call these. Those of its start and its end are in lifecycle.bpf.h.
 */
#ifndef BPF_CALLBACKS_H
#define BPF_CALLBACKS_H

#include "bpf/core/lifecycle.bpf.h"
#include "bpf/core/turns.bpf.h"

/* ---- Waking and queueing ---- */

static __always_inline s32 select_cpu(struct task_struct *p, s32 prev_cpu)
{
	struct task_ctx *tctx = task_ctx_of(p);
	struct vcpu *vcpu = vcpu_of(tctx);
	s32 cpu;

	if (!tctx || rests_until(p, tctx, vcpu))
		return prev_cpu;
	cpu = pick_idle_normal(p, prev_cpu);
	if (cpu < 0)
		return prev_cpu; /* ops.enqueue queues it */
	if (vcpu) {
		struct wakeup_decision decision;

		/* It comes from sleep: ops.runnable says so only after this. */
		vcpu->was_blocked = 1;
		decision = queue_clock(p, tctx, vcpu);
		vcpu->goes_first = 1;
		dsq_insert(p, SCX_DSQ_LOCAL, decision.slice_ns, 0);
	} else {
		set_clock(p, tctx);
		/* No task that it could be ahead of waits. */
		tctx->host.goes_first = tctx->vm != 0;
		tctx->host.first_ran_ns = 0;
		forgive_shared_debt(tctx);
		dsq_insert(p, SCX_DSQ_LOCAL, config.others_slice_ns, 0);
	}
	forgive_debt(tctx, vcpu);
	return cpu;
}

static __always_inline void enqueue(struct task_struct *p, u64 enq_flags)
{
	struct task_ctx *tctx = task_ctx_of(p);
	struct vcpu *vcpu = vcpu_of(tctx);
	u64 rest_until_ns;

	leave_if_core_scheduled(p);
	if (!tctx) {
		insert_here(p, SCX_DSQ_GLOBAL, config.others_slice_ns, enq_flags);
		return;
	}
	if (is_pinned_kthread(p) && (enq_flags & (ENQ(WAKEUP) | ENQ(REENQ)))) {
		enqueue_pinned_kthread(p, enq_flags);
		return;
	}
	rest_until_ns = rests_until(p, tctx, vcpu);
	/*
	 * Nobody would end its rest: it has the short turn that is allowed in place of one, and is asked
	 * again.
	 */
	if (rest_until_ns && !arm_rest_timer(rest_until_ns))
		rest_until_ns = 0;
	if (vcpu)
		vcpu->rests = rest_until_ns != 0;
	if (rest_until_ns) {
		if (!vcpu) {
			set_clock(p, tctx);
			tctx->host.goes_first = 0;
		}
		enqueue_resting(p, tctx, vcpu, rest_until_ns, enq_flags);
		return;
	}
	if (is_confined(p)) {
		enqueue_confined(p, vcpu, enq_flags);
		return;
	}
	/* It had to be accounted for first, and nobody else wants its pCPU (see stay_alone()). */
	if ((enq_flags & ENQ(LAST)) && !is_reserved(scx_bpf_task_cpu(p))) {
		if (vcpu)
			on_stay(vcpu);
		insert_here(p, SCX_DSQ_LOCAL, vcpu ? config.fair_share.slice_ns : config.others_slice_ns,
			    enq_flags);
		return;
	}
	if (vcpu) {
		enqueue_vcpu(p, tctx, vcpu, enq_flags);
		/* This pCPU is about to go idle. Only the kick makes it look for a task to lend it to. */
		if ((enq_flags & ENQ(LAST)) && reserved_are_lent())
			scx_bpf_kick_cpu(scx_bpf_task_cpu(p), KICK_IDLE);
		return;
	}
	enqueue_other(p, tctx, enq_flags);
}

static __always_inline void dispatch(s32 cpu, struct task_struct *prev)
{
	struct task_struct *current = bpf_get_current_task_btf();
	struct pcpu *pcpu = pcpu_of(cpu);

	if (!pcpu)
		return;
	if (current->pid == 0)
		note_what_entry_raises(current);
	if (is_reserved(cpu))
		dispatch_reserved(cpu, pcpu, prev);
	else
		dispatch_normal(cpu, pcpu, prev);
}

/* Directed yield by KVM (to != NULL), or sched_yield(). */
static __always_inline bool yield_to(struct task_struct *from, struct task_struct *to)
{
	struct vcpu *vcpu = vcpu_of(task_ctx_of(from));

	/*
	 * KVM tries the next sibling. After a few its search ends: this one's slice isn't over, so it goes
	 * on.
	 */
	if (vcpu && to && (keeps_its_pcpu(vcpu) || !heir_comes(from, vcpu, to)))
		return ++vcpu->heirs_tried >= HEIRS_TRIED_MAX;
	if (vcpu) {
		vcpu->yielded = 1;
		on_gives_up(vcpu, to);
	}
	task_set_slice(from, 0);
	return true;
}

/* ---- Running and stopping ---- */

static __always_inline void becomes_runnable(struct task_struct *p, u64 enq_flags)
{
	struct vcpu *vcpu = vcpu_of(task_ctx_of(p));
	struct vm *vm;

	leave_if_core_scheduled(p);
	if (!vcpu)
		return;
	vcpu->runnable_at_ns = bpf_ktime_get_ns();
	vcpu->was_blocked = (enq_flags & ENQ(WAKEUP)) != 0;
	vcpu->preempted = 0;
	vcpu->yielded = 0;
	vcpu_moves(vcpu, VCPU_BLOCKED, VCPU_RUNNABLE);
	vm = vm_at(vcpu->vm);
	if (vm && !vcpu->active) {
		vcpu->active = 1;
		__sync_fetch_and_add(&vm->active_vcpu_count, 1);
	}
}

/* Returns what now occupies the pCPU. */
static __always_inline u32 start_vcpu(struct task_ctx *tctx, struct vcpu *vcpu, s32 cpu, struct pcpu *pcpu,
				      u64 now)
{
	struct vm_stats *stats = vm_stats_at(vcpu->vm);
	u32 occupant = vcpu->was_blocked ? OCCUPANT_BOOSTED_VCPU : OCCUPANT_VCPU;
	u64 waited_ns = vcpu->runnable_at_ns ? elapsed_ns(vcpu->runnable_at_ns, now) : 0;

	if (stats) {
		u32 bucket = histogram_bucket(waited_ns);

		ADD(stats->waited_ns, waited_ns);
		if (bucket < HISTOGRAM_BUCKETS)
			COUNT(stats->wait_to_run_us[bucket]);
	}
	occupant = on_turn_begins(vcpu, cpu, occupant);
	if (occupant < OCCUPANT_OF_MECHANISMS) {
		vcpu->normal_pcpu = cpu;
		advance_clocks(tctx, vcpu, pcpu);
	}
	tctx->out_of_order = 0;
	pcpu->vm = vcpu->vm + 1;
	vcpu->goes_first = 0;
	vcpu->was_blocked = 0;
	vcpu->preempted = 0;
	vcpu->yielded = 0;
	return occupant;
}

static __always_inline void starts_running(struct task_struct *p)
{
	struct task_ctx *tctx = task_ctx_of(p);
	struct vcpu *vcpu = vcpu_of(tctx);
	s32 cpu = scx_bpf_task_cpu(p);
	struct pcpu *pcpu = pcpu_of(cpu);
	u64 now = bpf_ktime_get_ns(), slice_ns;

	if (!tctx || !pcpu)
		return;
	tctx->running_since_ns = now;
	slice_ns = begin_limited_turn(p, tctx, vcpu, pcpu, p->scx.slice);
	tctx->stop.is_seen = false;
	if (slice_ns < p->scx.slice)
		task_set_slice(p, slice_ns);
	pcpu->turn_ns = slice_ns;
	if (vcpu) {
		pcpu->occupant = start_vcpu(tctx, vcpu, cpu, pcpu, now);
	} else {
		pcpu->occupant =
		    tctx->host.gives_way && !tctx->host.goes_first ? OCCUPANT_BACKGROUND : OCCUPANT_OTHER;
		advance_others_clock(tctx);
		tctx->out_of_order = 0;
	}
	on_running(p, vcpu, cpu, pcpu, now);
}

static __always_inline void stop_vcpu(struct vcpu *vcpu, u32 slot, u64 ran_ns, bool runnable, u64 now)
{
	struct vm_stats *stats = vm_stats_at(vcpu->vm);
	u32 class;

	vcpu->rip = read_guest_rip(vcpu->kvm_vcpu);
	class = classify_rip(slot, vcpu->vm, vcpu->kvm_vcpu, vcpu->rip);
	vcpu->guest_class = look_at_count(slot, class);
	vcpu->runnable_at_ns = now;
	vcpu->preempted = runnable && !vcpu->yielded;
	if (stats && vcpu->preempted && class < GUEST_CLASS_COUNT) {
		COUNT(stats->preemptions[class]);
		count_stop(stats, vcpu, class);
	}
	if (!on_turn_ends(vcpu, slot, ran_ns, runnable))
		vcpu->state = runnable ? VCPU_RUNNABLE : VCPU_BLOCKED;
}

static __always_inline void stops_running(struct task_struct *p, bool runnable)
{
	struct task_ctx *tctx = task_ctx_of(p);
	struct vcpu *vcpu = vcpu_of(tctx);
	struct pcpu *pcpu = pcpu_of(scx_bpf_task_cpu(p));
	u64 now = bpf_ktime_get_ns(), ran_ns;

	if (!tctx)
		return;
	ran_ns = now - tctx->running_since_ns;
	charge_limits_of(p, tctx);
	if (vcpu) {
		charge_vcpu(tctx, vcpu, pcpu, ran_ns);
		stop_vcpu(vcpu, tctx->vcpu - 1, ran_ns, runnable, now);
	} else {
		charge_other(p, tctx, pcpu, ran_ns);
	}
	if (pcpu) {
		pcpu->limited_until_ns = 0;
		on_pcpu_stops(pcpu, now);
		pcpu->occupant = OCCUPANT_NONE;
	}
}

static __always_inline void becomes_quiescent(struct task_struct *p)
{
	struct vcpu *vcpu = vcpu_of(task_ctx_of(p));
	struct vm *vm;

	if (!vcpu)
		return;
	on_block(vcpu);
	vcpu->state = VCPU_BLOCKED;
	vm = vm_at(vcpu->vm);
	if (vm && vcpu->active) {
		vcpu->active = 0;
		__sync_fetch_and_sub(&vm->active_vcpu_count, 1);
	}
}

#endif
