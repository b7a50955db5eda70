/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Entry: what a task itself has disabled, or reads.
 *
 * Problem.   Entering a BPF program has two effects on its task (kernel/bpf/trampoline.c,
 *            __bpf_prog_enter()). On some builds of the kernel it disables migration. It also makes the task
 *            an RCU reader. So the current task always looks like one that may not migrate, or may not stop.
 * Mechanism. The idle task does neither itself: what it shows in ops.dispatch is what the entry did. For the
 *            current task that is taken off.
 */
#ifndef BPF_ENTRY_H
#define BPF_ENTRY_H

#include "bpf/core/maps.bpf.h"

u32 entry_disables_migration = 1;
u32 entry_reads_rcu = 1;

static __always_inline void note_what_entry_raises(const struct task_struct *idle)
{
	if (entry_disables_migration != idle->migration_disabled)
		entry_disables_migration = idle->migration_disabled;
	if (bpf_core_field_exists(idle->rcu_read_lock_nesting) &&
	    entry_reads_rcu != idle->rcu_read_lock_nesting)
		entry_reads_rcu = idle->rcu_read_lock_nesting;
}

static __always_inline bool has_disabled_migration(const struct task_struct *p)
{
	u32 by_entry = p == bpf_get_current_task_btf() ? entry_disables_migration : 0;

	return p->migration_disabled > by_entry;
}

/* Does it stop where the kernel reads what RCU protects? All that wait for a grace period wait for it. */
static __always_inline bool is_rcu_reader(const struct task_struct *p)
{
	s32 by_entry = p == bpf_get_current_task_btf() ? entry_reads_rcu : 0;

	return bpf_core_field_exists(p->rcu_read_lock_nesting) && p->rcu_read_lock_nesting > by_entry;
}

#endif
