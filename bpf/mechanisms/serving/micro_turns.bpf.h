/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Micro turns: which task runs next on a micro pCPU (ops.dispatch), and what begins there (ops.running).
 *
 * Mechanism. In this order:
 *            1. confined tasks and requests, turn about;
 *            2. woken vCPUs;
 *            3. what is left of the confined;
 *            4. if nothing asks for the pCPU, it is lent.
 */
#ifndef BPF_MICRO_TURNS_H
#define BPF_MICRO_TURNS_H

#include "bpf/mechanisms/serving/pool_size.bpf.h"

/* Requests, and confined tasks. False if this pCPU has nothing to run yet. */
static __always_inline bool dispatch_micro(s32 cpu, struct pcpu *pcpu)
{
	/*
	 * A requester from now on is served below, or found by lend_to(): no kick that would reach the next
	 * vCPU.
	 */
	if (pcpu->occupant == OCCUPANT_LENT_VCPU)
		pcpu->occupant = OCCUPANT_NONE;
	if (confined_on(pcpu)->rescue_count) {
		rescue_from_queues(cpu);
		confined_on(pcpu)->rescue_count = 0;
	}
	/* Turn about, so that neither starves the other. */
	if (confined_on(pcpu)->served_last && dsq_move_to_local(DSQ_CONFINED + cpu)) {
		confined_on(pcpu)->served_last = 0;
		return true;
	}
	confined_on(pcpu)->served_last = serve_request(cpu, pcpu);
	return confined_on(pcpu)->served_last;
}

/* Tasks that come after them. */
static __always_inline bool dispatch_micro_idle(s32 cpu, struct pcpu *pcpu)
{
	if (woken_on(pcpu)->vcpu && !request_on(pcpu)->vcpu && serve_woken(cpu, pcpu)) {
		confined_on(pcpu)->served_last = 1;
		return true;
	}
	return dsq_move_to_local(DSQ_CONFINED + cpu);
}

/* May the task that ran on this micro pCPU go on there, as long as nobody asks for it? */
static __always_inline bool stays_on_micro(struct task_struct *prev)
{
	return is_runnable(prev) && (is_pinned_kthread(prev) || is_confined(prev));
}

/* What else runs there, if nothing does yet (`served`). */
static __always_inline void dispatch_micro_rest(s32 cpu, struct pcpu *pcpu, struct task_struct *prev,
						bool served)
{
	if (served || dispatch_micro_idle(cpu, pcpu)) {
		struct vcpu *borrower = is_borrower(prev) ? vcpu_of(task_ctx_of(prev)) : NULL;

		if (borrower)
			call_back_from(borrower, pcpu);
	} else if (stays_on_micro(prev)) {
		stay_alone(prev, pcpu, true);
	} else if (config.lend && dispatch_lent(cpu, pcpu, prev)) {
		lend_to(cpu, pcpu);
	}
}

/*
 * A vCPU that came back after an interruption, for a micro slice, has a timer, too: the next tick may be far.
 */
static __always_inline void start_on_micro_pcpu(struct task_struct *p, const struct vcpu *vcpu, s32 cpu,
						struct pcpu *pcpu, u64 now)
{
	if (pcpu->occupant == OCCUPANT_MICRO) {
		pool_size_on(pcpu)->since_ns = now;
		arm_micro_slice(cpu, pcpu, now);
	} else if (is_confined(p)) {
		arm_micro_slice(cpu, pcpu, now);
	} else if (vcpu && config.lend) {
		if (grace_of(vcpu)->given_ns)
			begin_grace(cpu, pcpu, now);
		lending_on(pcpu)->to_boosted = pcpu->occupant == OCCUPANT_BOOSTED_VCPU;
		lend_to(cpu, pcpu);
	} else if (!(p->flags & PF_KTHREAD)) {
		/* It was on its way here when the pCPU became micro-sliced. */
		COUNT(host_stats.strays_evicted);
		scx_bpf_kick_cpu(cpu, KICK_PREEMPT);
	}
}

#endif
