/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Home: who gives a pCPU up before its turn is over, and micro slices on pCPUs of the normal pool.
 *
 * Problem.   A micro pool is small, and far from warm caches: of eleven siblings that owe an answer ten wait for those before
 *            them, while the pCPUs that they ran on last run turns that can wait.
 * Mechanism. A request that no micro pCPU would serve at once looks at the pCPU where its vCPU ran last in the normal pool, and at the
 *            next three, for a turn that gives way (policy/accelerate.h: decide_on_home). There it takes the same place as at
 *            a micro pCPU, whose ops.dispatch pulls it (next_turn.bpf.h: serve_at_home), for a micro slice. Whoever ran there
 *            is queued like any other, and has what is left of its turn afterwards (take_interrupted).
 * Races.     As at a micro pCPU. If the turn has ended meanwhile, whoever came instead is preempted for it; if the vCPU can't be had any more,
 *            the turn goes on.
 * Limits.    Never from a sibling, which may be the one that waits; never from a VM that has had less; of a pCPU's time at most half.
 */
#ifndef BPF_HOME_H
#define BPF_HOME_H

#include "bpf/core/vcpu.bpf.h"

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

/* ---- Who gives way ---- */

/* How many pCPUs are looked at for one that gives way to a vCPU. */
#define PREEMPT_LOOK_MAX 4u

/*
 * Only vCPUs and those like them give way, and among vCPUs those that weren't boosted themselves. A micro pCPU that is lent is taken over
 * by a vCPU, too: else whoever got it would have it to itself, and all others would crowd on the rest.
 */
static __always_inline bool gives_way_to(s32 cpu, const struct pcpu *pcpu, bool to_vcpu)
{
	if (pcpu_is_micro(cpu))
		return to_vcpu && pcpu->occupant == OCCUPANT_LENT_VCPU && !lending_on(pcpu)->to_boosted;
	if (pcpu->occupant == OCCUPANT_VCPU || pcpu->occupant == OCCUPANT_BACKGROUND)
		return to_vcpu || pcpu->others_ran_ns < config.fair_share.slice_ns;
	return pcpu->occupant == OCCUPANT_BOOSTED_VCPU && !to_vcpu &&
	       pcpu->others_ran_ns < config.fair_share.slice_ns;
}

/* Has the VM of this vCPU had more than that of the vCPU that runs there? Then it takes nothing from it. */
static __always_inline bool is_of_vm_ahead(const struct vcpu *vcpu, const struct pcpu *pcpu)
{
	struct fair_share_config share = config.fair_share;
	struct vm *vm = vm_at(vcpu->vm), *other = vm_at(pcpu->vm - 1);

	if (!vm || !other || pcpu->occupant == OCCUPANT_BACKGROUND)
		return false;
	return vm_is_ahead(&share, size_of(vm, vcpu->vm), vm->vtime_ns, size_of(other, pcpu->vm - 1),
			   other->vtime_ns);
}

/*
 * A micro slice is taken from whoever would have its pCPU, so a VM that has had more than that of the first that waits has none until the others
 * have caught up. Clocks of vCPUs that may run on some pCPUs only say nothing about the others.
 * Not static, and not inline, for the stack: see look_at_home().
 */
__noinline int is_over_its_share(u32 slot)
{
	struct fair_share_config share = config.fair_share;
	u32 first = first_in_line_vm - 1;
	struct vcpu *vcpu = vcpu_at(slot);
	struct vm *vm, *other = vm_at(first);

	if (!vcpu || !other || vcpu->narrow)
		return false;
	vm = vm_at(vcpu->vm);
	return vm && vm_is_ahead(&share, size_of(vm, vcpu->vm), vm->vtime_ns, size_of(other, first),
				 other->vtime_ns);
}

/* There is something to do for a pCPU: if who runs there gives way to a vCPU, it is preempted; if it idles, it looks. */
static __always_inline void call_pcpu(s32 cpu, const struct pcpu *pcpu)
{
	bool preempts =
	    pcpu_is_micro(cpu) ? pcpu->occupant == OCCUPANT_LENT_VCPU : gives_way_to(cpu, pcpu, true);

	scx_bpf_kick_cpu(cpu, preempts ? KICK_PREEMPT : KICK_IDLE);
}

/* ---- A micro slice at home ---- */

static __always_inline bool may_run_on(struct task_struct *p, s32 cpu)
{
	/* Entering this program raised migration_disabled of the current task, if the kernel does so. */
	u32 own = p == bpf_get_current_task_btf() ? entry_disables_migration : 0;

	return bpf_cpumask_test_cpu(cpu, p->cpus_ptr) &&
	       (p->migration_disabled <= own || scx_bpf_task_cpu(p) == cpu);
}

/* What runs on a pCPU of the normal pool, to a vCPU that would like a micro slice there. */
enum seen_at_home {
	AT_HOME_GIVES_WAY = 1,
	AT_HOME_SIBLING = 2,
	AT_HOME_VM_AHEAD = 4,
	AT_HOME_DISTURBED = 8,
};

/*
 * Bits of seen_at_home. Neither this nor the next one is static: the verifier then checks each by itself. Two, for the stack: those who call
 * them are five calls deep.
 */
__noinline u32 look_at_home(u32 slot, s32 cpu)
{
	struct vcpu *vcpu = vcpu_at(slot);
	struct pcpu *pcpu = pcpu_of(cpu);
	u32 seen = 0;

	if (!vcpu || !pcpu || !gives_way_to(cpu, pcpu, true))
		return 0;
	if (pcpu->occupant == OCCUPANT_VCPU && pcpu->vm == vcpu->vm + 1)
		seen |= AT_HOME_SIBLING;
	if (is_of_vm_ahead(vcpu, pcpu))
		seen |= AT_HOME_VM_AHEAD;
	/* Somebody else may just have disturbed it, after the clock was read here. */
	if ((s64)(bpf_ktime_get_ns() - home_slices_on(pcpu)->disturbed_at_ns) < (s64)config.micro_slice_ns)
		seen |= AT_HOME_DISTURBED;
	return seen | AT_HOME_GIVES_WAY;
}

/* True if that pCPU comes for it now. */
__noinline int try_home(u32 slot, s32 cpu, u32 affinity_allows, u32 at_home)
{
	struct vcpu *vcpu = vcpu_at(slot);
	struct pcpu *pcpu = pcpu_of(cpu);
	struct accelerate_config limits = config.accelerate;
	struct home_observation seen = {.affinity_allows = affinity_allows,
					.gives_way = (at_home & AT_HOME_GIVES_WAY) != 0,
					.is_sibling = (at_home & AT_HOME_SIBLING) != 0,
					.vm_is_ahead = (at_home & AT_HOME_VM_AHEAD) != 0,
					.disturbed = (at_home & AT_HOME_DISTURBED) != 0};
	u32 decision;

	if (!vcpu || !pcpu)
		return 0;
	seen.queued_count = micro_slice_on(pcpu)->request != 0;
	decision = decide_on_home(&limits, &seen);
	RECORD(RECORD_HOME, slot, home, {.config = limits, .seen = seen, .decision = decision});
	if (decision != HOME_QUEUE)
		return 0;
	request_of(vcpu)->pcpu = cpu;
	if (__sync_val_compare_and_swap(&micro_slice_on(pcpu)->request, 0, slot + 1) != 0)
		return 0; /* somebody else was faster */
	/* Whatever becomes of it: who runs there isn't preempted again at once. */
	home_slices_on(pcpu)->disturbed_at_ns = bpf_ktime_get_ns();
	scx_bpf_kick_cpu(cpu, KICK_PREEMPT);
	return 1;
}

/* The pCPU where it ran last in the normal pool, or one of the next few. */
static __always_inline bool place_at_home(struct vcpu *vcpu, u32 slot, struct task_struct *p)
{
	u32 step;

	if (!config.accelerate.home_slices)
		return false;
	bpf_for (step, 0, PREEMPT_LOOK_MAX) {
		s32 cpu = vcpu->normal_pcpu + step;

		if (step >= config.pcpu_count)
			break;
		if ((u32)cpu >= config.pcpu_count)
			cpu -= config.pcpu_count;
		if (!pcpu_is_micro(cpu) && try_home(slot, cpu, may_run_on(p, cpu), look_at_home(slot, cpu)))
			return true;
	}
	return false;
}

#endif
