/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Domains: which queue a task waits in by its clock, and how work moves between them (policy/queue_domain.h).
 *
 * Problem.   One queue for all pCPUs doesn't scale, and it mixes caches.
 * Mechanism. A domain is a pCPU, a last-level cache, or the host. Each has a queue of the boosted and one of
 *            those that wait by their clocks. So has each pCPU, for tasks that may run nowhere else. A task
 *            waits in the domain of the pCPU that comes for it, or else of the one where it ran last. A pCPU
 *            that has no task to run looks into all other domains, the nearest first. One that has a task
 *            looks into a few of them in turn.
 * Races.     Between a look and the move the first task may have gone: then the next one of that queue comes.
 * Limits.    Of each queue the first LINE_LOOK_MAX are looked at. Host tasks that go before vCPUs wait in
 *            their domain's queue also if they may run on one of its pCPUs only. Those of two domains may be
 *            as many slices apart as there are domains.
 */
#ifndef BPF_DOMAINS_H
#define BPF_DOMAINS_H

#include "bpf/core/idle.bpf.h"
#include "policy/queue_domain.h"

/* How many of those that wait in a queue are looked at. */
#define LINE_LOOK_MAX 32u

/* ---- Where a task waits ---- */

static __always_inline u32 domain_of(s32 cpu)
{
	u32 at = cpu;

	if (at >= PCPUS_MAX)
		return 0;
	/* See pcpu_is_micro(). */
	barrier_var(at);
	return config.places[at & (PCPUS_MAX - 1)].domain;
}

/* The queue of those that may run on this pCPU only, or of its domain. */
static __always_inline u32 queue_of_pcpu(s32 cpu, bool is_bound)
{
	struct queue_observation seen = {.domain_count = config.domain_count,
					 .domain = domain_of(cpu),
					 .pcpu = cpu,
					 .is_confined = is_bound};

	return queue_to_join(&seen);
}

/* The queue where it waits if a pCPU is to look there. */
static __always_inline u32 queue_at(struct task_struct *p, s32 cpu)
{
	bool is_bound = p->nr_cpus_allowed == 1 || has_disabled_migration(p);

	if (is_bound) {
		cpu = scx_bpf_task_cpu(p);
		if (!bpf_cpumask_test_cpu(cpu, p->cpus_ptr))
			cpu = bpf_cpumask_first(p->cpus_ptr);
	}
	return queue_of_pcpu(cpu, is_bound);
}

/* A pCPU of the normal pool that it may run on; `otherwise`: it may on none. */
static __always_inline s32 some_normal_pcpu(struct task_struct *p, s32 otherwise)
{
	u32 key = 0, found;
	struct scratch *normal = bpf_map_lookup_elem(&normal_pool, &key);
	struct bpf_cpumask *mask = normal ? normal->mask : NULL;

	if (!mask)
		return otherwise;
	found = bpf_cpumask_any_and_distribute(p->cpus_ptr, (const struct cpumask *)mask);
	return found < config.pcpu_count ? (s32)found : otherwise;
}

/*
 * The pCPU of the normal pool where it waits unless another one comes for it: where it ran last, if it can.
 */
static __always_inline s32 home_of(struct task_struct *p, const struct vcpu *vcpu)
{
	s32 cpu = scx_bpf_task_cpu(p);

	if (vcpu && is_reserved(cpu))
		cpu = vcpu->normal_pcpu;
	if (is_reserved(cpu) || !bpf_cpumask_test_cpu(cpu, p->cpus_ptr))
		return some_normal_pcpu(p, cpu);
	return cpu;
}

/* This pCPU comes for it (its task is queued once ops.enqueue is done); negative: none does. */
static __always_inline void wait_for(struct task_struct *p, struct task_ctx *tctx, const struct vcpu *vcpu,
				     s32 comes)
{
	tctx->queue = queue_at(p, comes < 0 ? home_of(p, vcpu) : comes);
}

/* It waits by its clock from now on: in which queue. */
static __always_inline u64 line_of(struct task_struct *p, struct task_ctx *tctx, const struct vcpu *vcpu)
{
	tctx->queue = queue_at(p, home_of(p, vcpu));
	return DSQ_VCPUS + tctx->queue;
}

/* The queue of a host task that goes before vCPUs, and that this pCPU comes for; negative: none does. */
static __always_inline u64 line_of_others(struct task_struct *p, s32 comes)
{
	if (has_disabled_migration(p))
		comes = scx_bpf_task_cpu(p);
	return DSQ_OTHERS + domain_of(comes < 0 ? home_of(p, NULL) : comes);
}

static __always_inline bool a_host_task_waits(s32 cpu)
{
	return scx_bpf_dsq_nr_queued(DSQ_OTHERS + domain_of(cpu)) > 0;
}

/* ---- Looks ---- */

/* What a look is about. */
#define LOOK_ELSEWHERE 1u  /* another domain */
#define LOOK_AT_VCPUS 2u   /* only vCPUs may run here: the pCPU is lent */
#define LOOK_AT_OTHERS 4u  /* host tasks go before vCPUs here */
#define LOOK_FOR_OTHERS 8u /* only host tasks are wanted */

static __always_inline void note_waiter(struct first_waiter *first, struct task_struct *p, u64 dsq)
{
	struct task_ctx *tctx = task_ctx_of(p);
	struct vcpu *vcpu = vcpu_of(tctx);

	if (!tctx || (first->dsq && !vtime_before(tctx->vtime_ns, first->vtime_ns)))
		return;
	first->dsq = dsq;
	first->vtime_ns = tctx->vtime_ns;
	first->weight = vcpu ? weight_of(vcpu) : vcpu_weight(p->scx.weight, 1);
	first->queued_at_ns = tctx->queued_at_ns;
	first->breadth = breadth_of(p);
	if (vcpu)
		first->vm = vcpu->vm + 1;
	else
		first->vm = tctx->vm ? tctx->vm : FIRST_HAS_NO_VM;
}

/* Notes it, if it may run here. */
static __always_inline bool counts_here(struct task_struct *p, u64 dsq, s32 cpu, struct pcpu *pcpu, u32 look)
{
	if (!may_run_on(p, cpu) || ((look & LOOK_AT_VCPUS) && !vcpu_of(task_ctx_of(p))))
		return false;
	if (look & LOOK_ELSEWHERE)
		note_waiter(&pcpu->elsewhere, p, dsq);
	else
		note_waiter(&pcpu->line, p, dsq);
	return true;
}

/*
 * The first of a queue that may run here counts if it is further behind than those of the queues before.
 * Nearly always that is the first of all.
 */
__noinline int look_at(u64 dsq, s32 cpu, u32 look)
{
	struct pcpu *pcpu = pcpu_of(cpu);
	struct task_struct *p;

	if (!pcpu || scx_bpf_dsq_nr_queued(dsq) <= 0)
		return 0;
	p = dsq_peek(dsq);
	if (p && counts_here(p, dsq, cpu, pcpu, look))
		return 0;
	pcpu->look_count = 0;
	for_each_queued(p, dsq)
	{
		if (++pcpu->look_count > LINE_LOOK_MAX || counts_here(p, dsq, cpu, pcpu, look))
			break;
	}
	return 0;
}

/* The task that is first in line here. */
__noinline int look_at_line(s32 cpu, u32 look)
{
	struct pcpu *pcpu = pcpu_of(cpu);

	if (!pcpu)
		return 0;
	pcpu->line.dsq = 0;
	look_at(DSQ_VCPUS + queue_of_pcpu(cpu, true), cpu, look & LOOK_AT_VCPUS);
	look_at(DSQ_VCPUS + queue_of_pcpu(cpu, false), cpu, look & LOOK_AT_VCPUS);
	return 0;
}

/* Does a task wait in another domain that may run here? */
__noinline int somebody_waits_elsewhere(s32 cpu)
{
	struct pcpu *pcpu = pcpu_of(cpu);
	u32 domain;

	if (!pcpu)
		return 0;
	pcpu->elsewhere.dsq = 0;
	bpf_for (domain, 0, PCPUS_MAX) {
		if (domain >= config.domain_count || pcpu->elsewhere.dsq)
			break;
		if (domain == domain_of(cpu))
			continue;
		look_at(DSQ_BOOSTED + domain, cpu, LOOK_ELSEWHERE);
		look_at(DSQ_VCPUS + domain, cpu, LOOK_ELSEWHERE);
	}
	return pcpu->elsewhere.dsq != 0;
}

/* ---- Movement ---- */

/* The first vCPU of the queue that may run here. */
__noinline int take_first_vcpu(u64 dsq, s32 cpu)
{
	struct pcpu *pcpu = pcpu_of(cpu);
	struct task_struct *p;

	if (!pcpu || scx_bpf_dsq_nr_queued(dsq) <= 0)
		return false;
	pcpu->look_count = 0;
	for_each_queued(p, dsq)
	{
		if (++pcpu->look_count > LINE_LOOK_MAX)
			break;
		if (vcpu_of(task_ctx_of(p)) && may_run_on(p, cpu) && dsq_move(&it, p, SCX_DSQ_LOCAL))
			return true;
	}
	return false;
}

static __always_inline bool take_first_of(u64 dsq, s32 cpu, u32 look)
{
	return look & LOOK_AT_VCPUS ? take_first_vcpu(dsq, cpu) : dsq_move_to_local(dsq);
}

static __always_inline bool take_other_of(u32 domain, u32 look)
{
	return (look & (LOOK_AT_OTHERS | LOOK_FOR_OTHERS)) && dsq_move_to_local(DSQ_OTHERS + domain);
}

/* The clock of the first host task of a domain that may run here; 0: none waits. */
__noinline u64 clock_of_first_other(u32 domain, s32 cpu)
{
	struct pcpu *pcpu = pcpu_of(cpu);
	struct task_struct *p;

	if (!pcpu || scx_bpf_dsq_nr_queued(DSQ_OTHERS + domain) <= 0)
		return 0;
	pcpu->look_count = 0;
	for_each_queued(p, DSQ_OTHERS + domain)
	{
		if (++pcpu->look_count > LINE_LOOK_MAX)
			break;
		if (may_run_on(p, cpu))
			return p->scx.dsq_vtime ?: 1;
	}
	return 0;
}

/*
 * Once a slice, before those of its own domain: the first host task of another domain comes, all of them in
 * turn, if the policy lets it, as a vCPU would. Else tasks of a domain where many wait, as those of a
 * build do where that began, would have less for ever.
 */
__noinline int take_other_further_behind(s32 cpu)
{
	struct elsewhere_observation seen = {.own_weight = vcpu_weight(WEIGHT_DEFAULT, 1)};
	struct fair_share_config share = config.fair_share;
	struct pcpu *pcpu = pcpu_of(cpu);
	u64 now = bpf_ktime_get_ns();
	u32 domain;

	if (!pcpu || config.domain_count <= 1 || now - pcpu->others_looked_at_ns < config.others_slice_ns)
		return false;
	pcpu->others_looked_at_ns = now;
	domain = next_domain_to_look_at(config.domain_count, domain_of(cpu), pcpu->others_cursor);
	pcpu->others_cursor = domain;
	seen.first_vtime_ns = clock_of_first_other(domain, cpu);
	if (!seen.first_vtime_ns)
		return false;
	seen.own_vtime_ns = clock_of_first_other(domain_of(cpu), cpu);
	seen.has_own = seen.own_vtime_ns != 0;
	if (!decide_on_elsewhere(&share, &seen) || !dsq_move_to_local(DSQ_OTHERS + domain))
		return false;
	COUNT(host_stats.taken_by_balance);
	return true;
}

/* This pCPU has no task to run: the one that waits in the nearest domain comes. */
__noinline int take_nearest(s32 cpu, u32 look)
{
	u32 at = cpu, step, looks = domains_to_look_at(config.domain_count, false);
	struct queue_place place;

	if (at >= PCPUS_MAX)
		return false;
	barrier_var(at);
	place = config.places[at & (PCPUS_MAX - 1)];
	bpf_for (step, 0, PCPUS_MAX) {
		u32 domain;

		if (step >= looks)
			break;
		domain = nth_nearest_domain(&place, step);
		if (take_other_of(domain, look) ||
		    (!(look & LOOK_FOR_OTHERS) && (take_first_of(DSQ_BOOSTED + domain, cpu, look) ||
						   take_first_of(DSQ_VCPUS + domain, cpu, look)))) {
			COUNT(host_stats.taken_when_idle);
			return true;
		}
	}
	return false;
}

/* It has a task. One of a few other domains that is further behind comes, if the policy lets it. */
__noinline int take_further_behind(s32 cpu, u32 look, u64 own_vtime_ns, u64 own_weight)
{
	struct elsewhere_observation seen = {
	    .own_vtime_ns = own_vtime_ns, .own_weight = own_weight, .has_own = 1};
	u32 step, looks = domains_to_look_at(config.domain_count, true);
	struct fair_share_config share = config.fair_share;
	struct pcpu *pcpu = pcpu_of(cpu);

	if (!pcpu)
		return false;
	bpf_for (step, 0, BALANCE_LOOK_MAX) {
		if (step >= looks)
			break;
		pcpu->look_cursor =
		    next_domain_to_look_at(config.domain_count, domain_of(cpu), pcpu->look_cursor);
		look_at(DSQ_BOOSTED + pcpu->look_cursor, cpu, look | LOOK_ELSEWHERE);
		look_at(DSQ_VCPUS + pcpu->look_cursor, cpu, look | LOOK_ELSEWHERE);
	}
	seen.first_vtime_ns = pcpu->elsewhere.vtime_ns;
	if (!pcpu->elsewhere.dsq || !decide_on_elsewhere(&share, &seen) ||
	    !take_first_of(pcpu->elsewhere.dsq, cpu, look))
		return false;
	COUNT(host_stats.taken_by_balance);
	return true;
}

/*
 * After look_at_line(): a task of another domain runs here before those of this one. `ran`: the task that
 * could go on here, with its clock as it is now; NULL: none.
 */
static __always_inline bool take_from_elsewhere(s32 cpu, struct pcpu *pcpu, const struct task_ctx *ran,
						u32 look)
{
	u64 vtime_ns = pcpu->line.vtime_ns, weight = pcpu->line.weight;
	struct vcpu *vcpu = vcpu_of(ran);

	pcpu->looked_at_ns = bpf_ktime_get_ns();
	pcpu->elsewhere.dsq = 0;
	if (ran && vcpu && (!pcpu->line.dsq || vtime_before(ran->vtime_ns, vtime_ns))) {
		vtime_ns = ran->vtime_ns;
		weight = weight_of(vcpu);
	} else if (!pcpu->line.dsq) {
		return take_nearest(cpu, look);
	}
	return take_further_behind(cpu, look, vtime_ns, weight);
}

/* Does a task wait where this pCPU looks first? `kind`: DSQ_BOOSTED or DSQ_VCPUS. */
static __always_inline bool somebody_waits_in(u64 kind, s32 cpu)
{
	return scx_bpf_dsq_nr_queued(kind + queue_of_pcpu(cpu, true)) > 0 ||
	       scx_bpf_dsq_nr_queued(kind + queue_of_pcpu(cpu, false)) > 0;
}

/* Takes it out of whichever queue of these it waits in. */
static __always_inline bool pull_from(u64 dsq, struct task_struct *p, s32 cpu, u64 slice_ns)
{
	struct bpf_iter_scx_dsq it;
	bool moved = false;

	/*
	 * Asked after the iterator has begun: a task that is queued anew meanwhile, with another affinity,
	 * isn't moved by it.
	 */
	if (!bpf_iter_scx_dsq_new(&it, dsq, 0) && may_run_on(p, cpu)) {
		if (slice_ns)
			dsq_move_set_slice(&it, slice_ns);
		moved = dsq_move(&it, p, SCX_DSQ_LOCAL);
	}
	bpf_iter_scx_dsq_destroy(&it);
	return moved;
}

/* `slice_ns`: 0: the one that it has. */
static __always_inline bool pull(struct task_struct *p, const struct task_ctx *tctx, s32 cpu, u64 slice_ns)
{
	u32 queue = tctx->queue;

	return pull_from(DSQ_VCPUS + queue, p, cpu, slice_ns) ||
	       pull_from(DSQ_BOOSTED + queue, p, cpu, slice_ns);
}

/* ---- Start ---- */

static __always_inline u32 queue_count(void)
{
	return config.domain_count + config.pcpu_count;
}

static __noinline int create_queues(u32 queue)
{
	s32 result = scx_bpf_create_dsq(DSQ_BOOSTED + queue, -1);

	if (!result && queue < config.domain_count)
		result = scx_bpf_create_dsq(DSQ_OTHERS + queue, -1);
	return result ?: scx_bpf_create_dsq(DSQ_VCPUS + queue, -1);
}

#endif
