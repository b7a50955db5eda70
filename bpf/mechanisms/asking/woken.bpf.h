/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Woken: a vCPU that was blocked, was woken for a known reason, and has to wait.
 *
 * Mechanism. It has a place of its own at each micro pCPU, behind the one for requests. It is no request yet,
 *            and stays one of the normal queue's: it becomes one when the micro pCPU has nobody else.
 */
#ifndef BPF_WOKEN_H
#define BPF_WOKEN_H

#include "bpf/mechanisms/request.bpf.h"

/*
 * Tries one micro pCPU's place for a woken vCPU. An entry left by a vCPU that waits no longer is no obstacle.
 */
static __always_inline bool try_woken_place(u32 slot, s32 cpu, struct pcpu *pcpu, u32 affinity_allows)
{
	u32 other = woken_on(pcpu)->vcpu;
	struct vcpu *holder = other ? vcpu_at(other - 1) : NULL;
	struct accelerate_config limits = config.accelerate;
	struct placement_observation seen = {.queued_count = holder && woken_of(holder)->cause &&
							     holder->state == VCPU_RUNNABLE,
					     .affinity_allows = affinity_allows};
	u32 decision = decide_on_placement(&limits, &seen);

	RECORD(RECORD_PLACEMENT, slot, placement, {.config = limits, .seen = seen, .decision = decision});
	if (decision != PLACEMENT_QUEUE ||
	    __sync_val_compare_and_swap(&woken_on(pcpu)->vcpu, other, slot + 1) != other)
		return false;
	if (is_free(pcpu))
		call_pcpu(cpu, pcpu);
	return true;
}

/*
 * First the micro pCPUs that run no accelerated vCPU, then all. Without a place it simply waits. Each is
 * looked at twice, and there are POOL_LIMIT_MAX at most, whatever waits in the queues of their domains.
 */
__noinline int offer_woken(struct task_struct *p __arg_trusted, u32 slot)
{
	u32 at, count = micro_pcpu_count;

	bpf_for (at, 0, 2 * POOL_LIMIT_MAX) {
		bool free_only = at < count;
		u32 rank = free_only ? at : at - count;
		struct pcpu *pcpu;
		s32 cpu;

		if (rank >= count)
			break;
		cpu = config.micro_order[rank & POOL_LIMIT_MAX];
		pcpu = pcpu_of(cpu);
		if (!pcpu || (free_only && !is_free(pcpu)))
			continue;
		if (try_woken_place(slot, cpu, pcpu, bpf_cpumask_test_cpu(cpu, p->cpus_ptr)))
			return true;
	}
	return false;
}

/*
 * It was blocked, was woken, and has to wait: nobody is idle, and it isn't boosted. May it go to a micro
 * pCPU? One that is boosted goes first anyway, and in a micro slice it would lose that: asked about those
 * too, guests woke their threads less often.
 */
static __always_inline void ask_about_woken(struct task_struct *p, struct vcpu *vcpu, u32 slot)
{
	struct accelerate_config limits = config.accelerate;
	struct woken_observation seen = {.interrupted = woken_of(vcpu)->blocked_interrupt != 0,
					 .kind = interrupt_kind_of(woken_of(vcpu)->blocked_interrupt),
					 .lock_halt = woken_of(vcpu)->lock_halt_rip != 0,
					 .interrupts_enabled = woken_of(vcpu)->lock_halt_interrupts_enabled,
					 .guest_known = guest_is_known(vcpu->vm)};
	struct vm_stats *stats = vm_stats_at(vcpu->vm);
	u32 class = vcpu->guest_class;
	struct woken_decision decision;

	/* QEMU's own doings, mostly: nothing to ask about. */
	if (!stats || !vcpu->was_blocked || (!seen.interrupted && !seen.lock_halt))
		return;
	seen.micro_pcpu_count = decided_pcpu_count;
	decision = decide_on_woken(&limits, &seen);
	RECORD(RECORD_WOKEN, slot, woken, {.config = limits, .seen = seen, .decision = decision});
	if (decision.reason < WOKEN_REASON_COUNT)
		COUNT(stats->woken[decision.reason]);
	count_urgent(urgent_event_of_wakeup(limits.paper_rules, &seen, decision.reason));
	if (decision.cause == CAUSE_NONE || decision.cause >= CAUSE_COUNT)
		return;
	if (config.dry_run) {
		if (class < GUEST_CLASS_COUNT)
			COUNT(stats->would_request[decision.cause][class]);
		return;
	}
	woken_of(vcpu)->vector = decision.cause == CAUSE_LOCK_KICK ? 0 : woken_of(vcpu)->blocked_interrupt;
	if (!woken_have_places(limits.paper_rules)) {
		/* It is asked for once it is queued: see resume_request(). */
		request_of(vcpu)->cause = decision.cause;
		request_of(vcpu)->vector = woken_of(vcpu)->vector;
		request_of(vcpu)->retry = 1;
		return;
	}
	woken_of(vcpu)->cause = decision.cause;
	if (!offer_woken(p, slot))
		woken_of(vcpu)->cause = 0;
}

#endif
