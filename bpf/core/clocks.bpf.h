/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Clocks: what shares are kept by.
 *
 * Problem.   A VM's share is of the host, but it is used up by vCPUs, each on a pCPU of its own.
 * Mechanism. A clock per task, one per VM, and those of the task furthest ahead: policy/fair_share.h says
 *            what running costs, and how far a clock may be off the others.
 * Formula.   host task: vtime += ran * 100 / weight (its nice value); vCPU: see fair_share.h.
 * Limits.    vCPUs with narrow affinity go by the clocks of the pCPU where they ran last.
 */
#ifndef BPF_CLOCKS_H
#define BPF_CLOCKS_H

#include "bpf/core/vcpu.bpf.h"

/*
 * What a vCPU's clock, and its VM's, are compared with. A vCPU that may run on some pCPUs only goes by the
 * clocks of the pCPU where it ran last. Where these are more contended than others no vCPU keeps up with the
 * pool's clock. A sleeper would then come back with hardly any lag, behind those that never sleep.
 */
struct furthest {
	u64 vcpu_ns;
	u64 vm_ns;
};

static __always_inline struct furthest clocks_of(const struct vcpu *vcpu)
{
	struct furthest furthest = {.vcpu_ns = pool_vtime_ns, .vm_ns = first_vm_vtime_ns};
	const struct pcpu *pcpu = vcpu->breadth < config.wide_pcpu_count ? pcpu_of(vcpu->normal_pcpu) : NULL;

	if (pcpu && pcpu->vcpus_vtime_ns) {
		furthest.vcpu_ns = pcpu->vcpus_vtime_ns;
		furthest.vm_ns = pcpu->vms_vtime_ns;
	}
	return furthest;
}

/*
 * A queue's clock is that of the chosen task that was furthest ahead: a late task starts near it.
 */
static __always_inline u64 clock_of(const struct task_ctx *tctx, const struct vcpu *vcpu)
{
	if (vcpu)
		return clocks_of(vcpu).vcpu_ns;
	return tctx->host.gives_way ? pool_vtime_ns : others_vtime_ns;
}

/* ---- Who waits first ---- */

/* On how many pCPUs it may run; wide_pcpu_count: anywhere. */
static __always_inline u32 breadth_of(const struct task_struct *p)
{
	u32 allowed = p->nr_cpus_allowed;

	return allowed < config.wide_pcpu_count ? allowed : config.wide_pcpu_count;
}

/*
 * The VM (slot + 1, or FIRST_HAS_NO_VM) of the first that waits by the clocks, of those that this pCPU has
 * seen when it chose last; 0: nobody, or one that may run on fewer pCPUs than `breadth`. Its clock says
 * nothing about the others. Sets of pCPUs mostly lie within each other: the host, its sockets, single pCPUs.
 * Then one that may run here and on no fewer could have whatever one of that breadth takes.
 */
static __always_inline u32 first_in_line_for(const struct pcpu *pcpu, u32 breadth)
{
	bool is_elsewhere = pcpu->elsewhere.dsq &&
			    (!pcpu->line.dsq || vtime_before(pcpu->elsewhere.vtime_ns, pcpu->line.vtime_ns));
	const struct first_waiter *first = is_elsewhere ? &pcpu->elsewhere : &pcpu->line;

	return first->dsq && first->breadth >= breadth ? first->vm : 0;
}

/* ---- A VM ---- */

static __always_inline u32 vm_weight_of(const struct vm *vm, u32 slot)
{
	struct vm_feed *feed = vm_feed_at(slot);

	return feed && feed_is_current(feed, vm) ? feed->weight : 0;
}

static __always_inline struct vm_size size_of(const struct vm *vm, u32 slot)
{
	struct vm_size size = {.weight = vm_weight_of(vm, slot), .vcpu_count = vm->vcpu_count};

	return size;
}

/* What limits are counted by: how far it may be off the pool's clock, and go before others. */
static __always_inline u64 weight_of(const struct vcpu *vcpu)
{
	struct vm *vm = vm_at(vcpu->vm);
	s64 active = vm ? vm->active_vcpu_count : 1;

	return vcpu_weight(vm ? vm_weight_of(vm, vcpu->vm) : 0, active > 0 ? active : 1);
}

/* What its clock moves by: see fair_share.h. */
static __always_inline u64 charged_weight_of(const struct vcpu *vcpu)
{
	struct fair_share_config share = config.fair_share;
	struct vm *vm = vm_at(vcpu->vm);
	u64 weight = weight_of(vcpu);

	if (!vm)
		return weight;
	return catch_up_weight(&share, size_of(vm, vcpu->vm), weight, vm->first_vm_ns, vm->vtime_ns);
}

/* Its VM's clock isn't left further behind the first one's than it can catch up with. */
static __always_inline void keep_up(const struct vcpu *vcpu, u64 first_vm_ns)
{
	struct fair_share_config share = config.fair_share;
	struct vm *vm = vm_at(vcpu->vm);
	u64 was, kept;

	if (!vm)
		return;
	vm->first_vm_ns = first_vm_ns;
	was = vm->vtime_ns;
	kept = vm_clock(&share, size_of(vm, vcpu->vm), first_vm_ns, was);
	/* Others of its vCPUs may be charged just now: then it is looked at again soon. */
	if (kept != was)
		__sync_val_compare_and_swap(&vm->vtime_ns, was, kept);
}

/* ---- A service ---- */

/* The number of the cgroup whose weight and limits count for p. */
static __always_inline u64 cgroup_of(struct task_struct *p)
{
	if (!bpf_core_field_exists(p->sched_task_group))
		return 0;
	return p->sched_task_group->css.cgroup->kn->id;
}

/* A niced task goes by its own clock: it would make its siblings' run faster. */
static __always_inline void find_service(struct task_struct *p, struct task_ctx *tctx)
{
	struct service_weight *weight;
	u64 cgroup;

	tctx->host.service = 0;
	if (!services_are_weighed || p->scx.weight < WEIGHT_DEFAULT)
		return;
	cgroup = cgroup_of(p);
	weight = bpf_map_lookup_elem(&service_weights, &cgroup);
	if (!weight)
		return;
	tctx->host.service = weight->group;
	tctx->host.service_weight = weight->weight;
}

/* ---- A task that waits from now on ---- */

/* The clock of a vCPU that waits from now on. */
static __always_inline struct wakeup_decision queue_clock(struct task_struct *p, struct task_ctx *tctx,
							  struct vcpu *vcpu)
{
	struct fair_share_config share = config.fair_share;
	struct wakeup_observation seen = {.vcpu_vtime_ns = tctx->vtime_ns, .was_blocked = vcpu->was_blocked};
	struct wakeup_decision decision;
	struct furthest furthest;

	vcpu->breadth = breadth_of(p);
	furthest = clocks_of(vcpu);
	keep_up(vcpu, furthest.vm_ns);
	seen.pool_vtime_ns = furthest.vcpu_ns;
	seen.weight = weight_of(vcpu);
	decision = decide_on_wakeup(&share, &seen);

	RECORD(RECORD_WAKEUP, tctx->vcpu - 1, wakeup, {.config = share, .seen = seen, .decision = decision});
	tctx->vtime_ns = decision.vtime_ns;
	on_clock_set(vcpu);
	return decision;
}

/* ---- Accounting ---- */

static __always_inline void advance(u64 *clock_ns, u64 to_ns)
{
	if (vtime_before(*clock_ns, to_ns))
		*clock_ns = to_ns;
}

static __always_inline void advance_others_clock(const struct task_ctx *tctx)
{
	if (!tctx->out_of_order)
		advance(tctx->host.gives_way ? &pool_vtime_ns : &others_vtime_ns, tctx->vtime_ns);
}

/*
 * The clocks of pool and pCPU are those of tasks that they chose. A task that a mechanism let run may be far
 * ahead. So may a light one that ran because it had waited for long, or one with the rest of an interrupted
 * turn. Its clock stands where the turn has brought it, and sleepers would be put back behind that.
 */
static __always_inline void advance_clocks(const struct task_ctx *tctx, const struct vcpu *vcpu,
					   struct pcpu *pcpu)
{
	struct vm *vm = vm_at(vcpu->vm);

	if (!vm)
		return;
	if (tctx->out_of_order) {
		keep_up(vcpu, clocks_of(vcpu).vm_ns);
		return;
	}
	advance(&pool_vtime_ns, tctx->vtime_ns);
	advance(&first_vm_vtime_ns, vm->vtime_ns);
	if (pcpu->vcpus_vtime_ns) {
		advance(&pcpu->vcpus_vtime_ns, tctx->vtime_ns);
		advance(&pcpu->vms_vtime_ns, vm->vtime_ns);
	} else {
		pcpu->vcpus_vtime_ns = tctx->vtime_ns;
		pcpu->vms_vtime_ns = vm->vtime_ns;
	}
	keep_up(vcpu, clocks_of(vcpu).vm_ns);
}

/*
 * It has a pCPU that no other task wants: what it ran for isn't owed to those that come later. Else light
 * tasks, whose clocks are fast, would push the queue's clock on. A task beside them would be that far behind,
 * and go first until it had caught up.
 */
static __always_inline void forgive_debt(struct task_ctx *tctx, const struct vcpu *vcpu)
{
	u64 clock_ns = clock_of(tctx, vcpu);

	if (vtime_before(clock_ns, tctx->vtime_ns))
		tctx->vtime_ns = clock_ns;
}

/* Nobody waited while it ran: it owes nothing for that, nor does its VM, and is owed nothing. */
static __always_inline void settle_clock(struct task_ctx *tctx, const struct vcpu *vcpu)
{
	struct vm *vm = vcpu ? vm_at(vcpu->vm) : NULL;
	u64 first_vm_ns, was;

	tctx->vtime_ns = clock_of(tctx, vcpu);
	if (!vm)
		return;
	first_vm_ns = clocks_of(vcpu).vm_ns;
	was = vm->vtime_ns;
	if (vtime_before(first_vm_ns, was))
		__sync_val_compare_and_swap(&vm->vtime_ns, was, first_vm_ns);
}

/* A vCPU, or a task that waits among vCPUs, ran here: host tasks have to let so much less go first. */
static __always_inline void make_up_for_others(struct pcpu *pcpu, u64 ran_ns)
{
	pcpu->others_ran_ns = pcpu->others_ran_ns > ran_ns ? pcpu->others_ran_ns - ran_ns : 0;
}

static __always_inline void charge_vcpu(struct task_ctx *tctx, struct vcpu *vcpu, struct pcpu *pcpu,
					u64 ran_ns)
{
	struct vm_stats *stats = vm_stats_at(vcpu->vm);
	struct vm *vm = vm_at(vcpu->vm);

	tctx->vtime_ns += charge(ran_ns, charged_weight_of(vcpu));
	if (vm)
		__sync_fetch_and_add(&vm->vtime_ns, vm_charge(ran_ns, vm_weight_of(vm, vcpu->vm)));
	if (stats)
		ADD(stats->ran_ns, ran_ns);
	if (!pcpu)
		return;
	on_charge(vcpu, pcpu, ran_ns);
	make_up_for_others(pcpu, ran_ns);
}

#endif
