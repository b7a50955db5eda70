/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * VMM threads: what a VM's process does beside its vCPUs. And VMs without a place, whose vCPUs are host
 * tasks.
 *
 * Problem.   Host tasks go before vCPUs. A VMM may work in threads of its own, or a VM may find no place
 *            because another owner has taken all. Both would go before all other VMs, without a charge.
 * Mechanism. A thread of a process that has a VM is charged to the VM's clock. A woken one goes first all the
 *            same, for no longer than a boosted vCPU: guests wait for I/O. If it works longer, it waits among
 *            the vCPUs. So it does if its VM has had more than that of the first waiter. All threads of a VMM
 *            have one clock together, and weigh as one more vCPU of their VM. So many of them get no more
 *            than one; their VM's share pays for it by its clock. All VMs of an owner that have no place have
 *            one clock together, too, and weigh as one VM of the default weight. To take all places brings
 *            nothing.
 * Formula.   weight = VM's weight / (active vCPUs + 1), more while the VM is behind (fair_share.h:
 *            catch_up_weight)
 * Limits.    Threads are told by their process. Helpers in processes of their own (virtiofsd, swtpm) are host
 *            tasks, and so are kernel threads; vhost's workers are threads of the process (since 6.4, unless
 *            its `fork_owner_default` is off). A process with several VMs has its threads charged to the
 *            first.
 */
#ifndef BPF_VMM_THREADS_H
#define BPF_VMM_THREADS_H

#include "bpf/core/clocks.bpf.h"

/* ---- Whose it is ---- */

/* NULL: it isn't a VM's, or its VM has gone since it began to wait. */
static __always_inline struct vm *vm_of_thread(const struct task_ctx *tctx)
{
	struct vm *vm = vm_at(tctx->vm - 1);

	return vm && vm->generation == tctx->vm_generation ? vm : NULL;
}

/* Looked up anew at each wait: VMs come and go while threads live. */
static __always_inline void find_vm_of_thread(struct task_struct *p, struct task_ctx *tctx)
{
	struct process_ctx *process;
	struct vm *vm;

	tctx->vm = 0;
	tctx->host.owner = 0;
	tctx->host.service = 0;
	if (p->flags & PF_KTHREAD)
		return;
	find_service(p, tctx);
	process = process_of(p);
	if (!process)
		return;
	vm = vm_at(process->vm - 1);
	if (vm && vm->generation == process->vm_generation && vm->in_use > VM_SLOT_OPEN) {
		tctx->vm = process->vm;
		tctx->vm_generation = process->vm_generation;
	} else if (process->owner && bpf_ktime_get_ns() - process->refused_at_ns < REFUSED_IS_TRUE_FOR_NS) {
		tctx->host.owner = process->owner;
	}
}

/* ---- Their clock and weight ---- */

/* The clock that it shares with others; NULL: it has its own. */
static __always_inline u64 *shared_clock_of(const struct task_ctx *tctx)
{
	struct vm *vm = vm_of_thread(tctx);
	u64 owner = tctx->host.owner, service = tctx->host.service;

	if (vm)
		return &vm->threads_vtime_ns;
	if (owner)
		return bpf_map_lookup_elem(&owner_clocks, &owner);
	return service ? bpf_map_lookup_elem(&service_clocks, &service) : NULL;
}

/* As vcpu_weight() has it. */
static __always_inline u64 weight_of_other(const struct task_struct *p, const struct task_ctx *tctx)
{
	struct vm *vm = vm_of_thread(tctx);
	s64 active;

	if (!vm && !tctx->host.owner && tctx->host.service)
		return service_task_weight(tctx->host.service_weight, p->scx.weight);
	if (!vm)
		return vcpu_weight(tctx->host.owner ? WEIGHT_DEFAULT : p->scx.weight, 1);
	active = vm->active_vcpu_count;
	return vmm_threads_weight(vm_weight_of(vm, tctx->vm - 1), active > 0 ? active : 0);
}

/* A task with a shared clock waits by it, but isn't left further behind than by `lag`. */
static __always_inline void read_shared_clock(struct task_ctx *tctx, u64 now, u64 lag)
{
	u64 *shared = shared_clock_of(tctx), was, owner = tctx->host.owner, service = tctx->host.service;

	if (!shared) {
		/* Without memory for it, it has a clock of its own until the next time. */
		if (owner)
			bpf_map_update_elem(&owner_clocks, &owner, &now, BPF_NOEXIST);
		else if (service)
			bpf_map_update_elem(&service_clocks, &service, &now, BPF_NOEXIST);
		return;
	}
	was = *shared;
	if (vtime_before(was, now - lag))
		__sync_val_compare_and_swap(shared, was, now - lag);
	tctx->vtime_ns = *shared;
}

/* It has a pCPU that nobody else wants: see forgive_debt(). */
static __always_inline void forgive_shared_debt(const struct task_ctx *tctx)
{
	u64 *shared = shared_clock_of(tctx), now, was;

	if (!shared)
		return;
	now = tctx->host.gives_way ? pool_vtime_ns : others_vtime_ns;
	was = *shared;
	if (vtime_before(now, was))
		__sync_val_compare_and_swap(shared, was, now);
}

/* Nobody waited while it ran: see settle_clock(). */
static __always_inline void settle_shared_clocks(const struct task_ctx *tctx)
{
	struct vm *vm = vm_of_thread(tctx);
	u64 first_vm_ns = first_vm_vtime_ns, was;

	forgive_shared_debt(tctx);
	if (!vm)
		return;
	was = vm->vtime_ns;
	if (vtime_before(first_vm_ns, was))
		__sync_val_compare_and_swap(&vm->vtime_ns, was, first_vm_ns);
}

static __always_inline void charge_vm_of_thread(const struct task_ctx *tctx, u64 ran_ns)
{
	struct vm *vm = vm_of_thread(tctx);
	struct vm_stats *stats = vm_stats_at(tctx->vm - 1);

	if (!vm || !stats)
		return;
	ADD(vm->vtime_ns, vm_charge(ran_ns, vm_weight_of(vm, tctx->vm - 1)));
	ADD(stats->vmm_ran_ns, ran_ns);
}

/* ---- What goes first ---- */

/* Has its VM, or else have its threads, had more than the first waiter? */
static __always_inline bool is_ahead_of_line(struct task_struct *p, const struct task_ctx *tctx)
{
	const struct pcpu *pcpu = pcpu_of(scx_bpf_task_cpu(p));
	struct fair_share_config share = config.fair_share;
	u32 slot = tctx->vm - 1, first = pcpu ? first_in_line_for(pcpu, breadth_of(p)) : 0;
	struct vm *vm = vm_of_thread(tctx), *other = vm_at(first - 1);

	if (!vm || !first)
		return false;
	if (first == FIRST_HAS_NO_VM || !other)
		return vtime_before(pool_vtime_ns + charge(share.slice_ns, vcpu_weight(0, 1)),
				    vm->threads_vtime_ns);
	return vm_is_ahead(&share, size_of(vm, slot), vm->vtime_ns, size_of(other, first - 1),
			   other->vtime_ns);
}

static __always_inline bool goes_first(struct task_struct *p, struct task_ctx *tctx, u64 now, bool is_woken)
{
	struct fair_share_config share = config.fair_share;
	struct vmm_thread_observation seen = {.was_blocked = is_woken, .went_first = tctx->host.goes_first};

	if (!vm_of_thread(tctx))
		return false;
	if (is_woken)
		tctx->host.first_ran_ns = 0;
	seen.first_ran_ns = tctx->host.first_ran_ns;
	seen.is_vcpu = tctx->place.refused_until_ns &&
		       (s64)(tctx->place.refused_until_ns + REFUSED_IS_TRUE_FOR_NS - now) > 0;
	seen.vm_is_ahead = is_ahead_of_line(p, tctx);
	return vmm_thread_goes_first(&share, &seen);
}

#endif
