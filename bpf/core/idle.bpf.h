/* SPDX-License-Identifier: GPL-2.0-only */
/* Idle pCPUs, found and told that there is work; and pCPUs whose task gives way to one in a hurry. */
#ifndef BPF_IDLE_H
#define BPF_IDLE_H

#include "bpf/core/clocks.bpf.h"
#include "bpf/core/entry.bpf.h"

/* A cpumask of this pCPU's own to compute in. */
struct scratch {
	struct bpf_cpumask __kptr *mask;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, PCPUS_MAX);
	__type(key, u32);
	__type(value, struct scratch);
} scratches SEC(".maps");

/* Slot 0: the pCPUs of the normal pool. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct scratch);
} normal_pool SEC(".maps");

/*
 * The pCPUs of each last-level cache, and behind them those of each node, by the first domain there. If all
 * are one domain there are none.
 */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 2 * PCPUS_MAX);
	__type(key, u32);
	__type(value, struct scratch);
} neighbourhoods SEC(".maps");

/* ---- Idle ---- */

#define ALL_PCPUS (2 * PCPUS_MAX)

/* Those that are as near as that to a pCPU, which is below PCPUS_MAX; ALL_PCPUS: all are. */
static __always_inline u32 neighbourhood_of(u32 cpu, u32 nearness)
{
	struct domain_range near = config.places[cpu & (PCPUS_MAX - 1)].near[nearness];

	if (!near.first && near.end >= config.domain_count)
		return ALL_PCPUS;
	return (nearness - QUEUE_SAME_LLC) * PCPUS_MAX + (near.first & (PCPUS_MAX - 1));
}

#define NONE_IDLES -2

/*
 * An idle normal pCPU of a neighbourhood that p may run on; negative: none, and NONE_IDLES: nowhere. `flags`:
 * SCX_PICK_IDLE_CORE. Verified by itself, it may be a sleepable program's: see end_rests().
 */
__noinline s32 pick_idle_of(struct task_struct *p __arg_trusted, u32 neighbourhood, u64 flags)
{
	u32 key = 0, here = bpf_get_smp_processor_id();
	struct scratch *own = bpf_map_lookup_elem(&scratches, &here);
	struct scratch *near = bpf_map_lookup_elem(&neighbourhoods, &neighbourhood);
	struct scratch *normal = bpf_map_lookup_elem(&normal_pool, &key);
	struct bpf_cpumask *found, *mask, *nearby;
	const struct cpumask *idle;
	s32 cpu = NONE_IDLES;
	bool any;

	if (!own || !normal)
		return cpu;
	bpf_rcu_read_lock();
	found = own->mask;
	mask = normal->mask;
	nearby = near ? near->mask : NULL;
	idle = scx_bpf_get_idle_cpumask();
	any = found && mask && bpf_cpumask_and(found, idle, (const struct cpumask *)mask) &&
	      bpf_cpumask_and(found, (const struct cpumask *)found, p->cpus_ptr);
	scx_bpf_put_cpumask(idle);
	if (any) {
		if (nearby)
			bpf_cpumask_and(found, (const struct cpumask *)found, (const struct cpumask *)nearby);
		cpu = scx_bpf_pick_idle_cpu((const struct cpumask *)found, flags);
		/* An interrupt of a timer's callback may have computed in the same mask. */
		if (cpu >= 0 && !bpf_cpumask_test_cpu(cpu, p->cpus_ptr)) {
			scx_bpf_kick_cpu(cpu, KICK_IDLE);
			cpu = -1;
		}
	}
	bpf_rcu_read_unlock();
	return cpu;
}

/*
 * Whole idle cores come before halves of busy ones, and of each the near ones first: of the last-level cache,
 * of the node, of the host.
 */
__noinline s32 pick_idle_near(struct task_struct *p __arg_trusted, s32 from)
{
	u32 step, at = from, last = ALL_PCPUS;
	s32 cpu = -1;

	if (at >= PCPUS_MAX)
		return -1;
	barrier_var(at);
	bpf_for (step, 0, 6) {
		u32 nearness = QUEUE_SAME_LLC + step % 3, neighbourhood;

		neighbourhood = nearness >= QUEUE_SAME_HOST ? ALL_PCPUS : neighbourhood_of(at, nearness);
		/* It was looked at. */
		if (step % 3 && neighbourhood == last)
			continue;
		last = neighbourhood;
		cpu = pick_idle_of(p, neighbourhood, step < 3 ? SCX_PICK_IDLE_CORE : 0);
		if (cpu >= 0 || cpu == NONE_IDLES)
			break;
	}
	return cpu;
}

/* The one that it ran on last, or the nearest other one; negative: none. */
static __always_inline s32 pick_idle_normal(struct task_struct *p, s32 prev_cpu)
{
	if (prev_cpu >= 0 && !is_reserved(prev_cpu) && bpf_cpumask_test_cpu(prev_cpu, p->cpus_ptr) &&
	    scx_bpf_test_and_clear_cpu_idle(prev_cpu))
		return prev_cpu;
	return pick_idle_near(p, prev_cpu);
}

/* A task was queued: an idle normal pCPU comes and gets it. Which one; negative: none. */
static __always_inline s32 kick_idle_normal(struct task_struct *p)
{
	s32 cpu = pick_idle_normal(p, scx_bpf_task_cpu(p));

	if (cpu >= 0)
		scx_bpf_kick_cpu(cpu, KICK_IDLE);
	return cpu;
}

/* A vCPU was queued: if no normal pCPU idles, a reserved one may come and get it. */
static __always_inline s32 kick_idle_for_vcpu(struct task_struct *p)
{
	s32 cpu = kick_idle_normal(p);

	return cpu >= 0 ? cpu : kick_idle_reserved(p);
}

/* ---- What gives way ---- */

/* How many pCPUs are looked at for one that gives way to a vCPU. */
#define PREEMPT_LOOK_MAX 4u

/*
 * Only vCPUs and those like them give way, and among vCPUs those that weren't boosted themselves. A vCPU
 * takes over a reserved pCPU that is lent, too. Else the borrower would have it to itself, and all others
 * would crowd on the rest.
 */
static __always_inline bool gives_way_to(s32 cpu, const struct pcpu *pcpu, bool to_vcpu)
{
	if (is_reserved(cpu))
		return to_vcpu && reserved_gives_way(pcpu);
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

static __always_inline bool may_run_on(struct task_struct *p, s32 cpu)
{
	/* Asked first: in between, 6.18's verifier ends with "backtracking call unexpected regs". */
	bool stays = has_disabled_migration(p);

	return bpf_cpumask_test_cpu(cpu, p->cpus_ptr) && (!stays || scx_bpf_task_cpu(p) == cpu);
}

/* Where a task in a hurry looks first for one that gives way to it; negative: nowhere. */
static __always_inline s32 first_to_preempt(struct task_struct *p, const struct vcpu *vcpu)
{
	u32 key = 0;
	struct scratch *normal;
	struct bpf_cpumask *mask;
	s32 cpu = scx_bpf_task_cpu(p);

	if (vcpu && is_reserved(cpu))
		cpu = vcpu->normal_pcpu;
	if (!is_reserved(cpu) || (vcpu && reserved_are_lent()))
		return cpu;
	normal = bpf_map_lookup_elem(&normal_pool, &key);
	mask = normal ? normal->mask : NULL;
	return mask ? (s32)bpf_cpumask_any_distribute((const struct cpumask *)mask) : -1;
}

/*
 * Which pCPU is preempted for it; negative: none. It takes over the one that it ran on last, if what runs
 * there gives way. A vCPU looks at a few more. Many wait for a lock that is handed on. Each that is boosted
 * keeps the next one from its own pCPU for a third of a slice.
 */
__noinline int preempt_for(struct task_struct *p __arg_trusted, u32 for_vcpu)
{
	const struct vcpu *vcpu = for_vcpu ? vcpu_of(task_ctx_of(p)) : NULL;
	s32 first = first_to_preempt(p, vcpu);
	u32 step, look = for_vcpu ? PREEMPT_LOOK_MAX : 1;

	if (first < 0)
		return -1;
	bpf_for (step, 0, PREEMPT_LOOK_MAX) {
		s32 cpu = first + step;
		struct pcpu *pcpu;

		if (step >= look || step >= config.pcpu_count)
			break;
		if ((u32)cpu >= config.pcpu_count)
			cpu -= config.pcpu_count;
		pcpu = pcpu_of(cpu);
		if (!pcpu || !bpf_cpumask_test_cpu(cpu, p->cpus_ptr) || !gives_way_to(cpu, pcpu, for_vcpu))
			continue;
		if (vcpu && is_of_vm_ahead(vcpu, pcpu))
			continue;
		scx_bpf_kick_cpu(cpu, KICK_PREEMPT);
		return cpu;
	}
	return -1;
}

#endif
