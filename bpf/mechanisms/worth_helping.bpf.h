/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Worth helping: whether help brings a VM anything is tried (policy/worth_helping.h).
 *
 * Mechanism. A tick interrupts its guest: where a vCPU is can be read then. For a VM that isn't helped there
 *            is no micro pool.
 * Races.     Ticks of a VM's vCPUs come on several pCPUs at once: one that finds another one counting isn't
 *            counted.
 */
#ifndef BPF_WORTH_HELPING_H
#define BPF_WORTH_HELPING_H

#include "bpf/core/guest_code.bpf.h"
#include "bpf/mechanisms/micro_pool.bpf.h"

struct worth_helping_vm {
	struct help_state state;
	u32 counting; /* some pCPU changes that */
	u32 reserved;
};

static __always_inline struct worth_helping_vm *worth_helping_in(const struct vm *vm);

/* How large the micro pool is for a VM. */
static __always_inline u32 micro_pcpus_for(const struct vm *vm)
{
	return worth_helping_in(vm)->state.is_off ? 0 : decided_pcpu_count;
}

static __noinline int look_at_help(u32 vm_slot, u32 slot, u32 class)
{
	struct help_observation seen = {.now_ns = bpf_ktime_get_ns(), .guest_class = class};
	struct vm_stats *stats = vm_stats_at(vm_slot);
	struct vm *vm = vm_at(vm_slot);
	struct help_state before, next;

	if (!vm || !stats || __sync_val_compare_and_swap(&worth_helping_in(vm)->counting, 0, 1))
		return 0;
	before = worth_helping_in(vm)->state;
	next = decide_on_help(&before, &seen);
	worth_helping_in(vm)->state = next;
	RECORD(RECORD_HELP, slot, help,
	       {.state = before,
		.seen = seen,
		.until_ns = next.until_ns,
		.is_off = next.is_off,
		.look = next.look});
	if (before.until_ns && before.look != HELP_LOOKS && next.look == HELP_LOOKS)
		COUNT(stats->help_trials[next.is_off & 1]);
	__sync_lock_test_and_set(&worth_helping_in(vm)->counting, 0);
	return 0;
}

/* A tick of the host has found this task running. */
static __always_inline void ask_whether_help_is_worth_it(struct task_struct *p)
{
	struct task_ctx *tctx = task_ctx_of(p);
	struct vcpu *self = vcpu_of(tctx);
	u32 slot, class;

	if (!config.tries_help || !tctx || !self)
		return;
	slot = tctx->vcpu - 1;
	class = classify_rip(slot, self->vm, self->kvm_vcpu, read_guest_rip(self->kvm_vcpu));
	look_at_help(self->vm, slot, class);
}

#endif
