/* SPDX-License-Identifier: GPL-2.0-only */
/* Passes: over the siblings of a vCPU that waits. */
#ifndef BPF_PASSES_H
#define BPF_PASSES_H

#include "bpf/core/intf.h"

struct passes_vm {
	u64 until_ns; /* a pass over this VM is under way until then at the latest */
	/*
	 * Place in vcpus[] + 1 of the first vCPU that found no room since somebody was asked for again; 0: none. The first,
	 * not the last: then each has its turn, in whichever order those that ask go through them.
	 */
	u32 first_turned_away;
	/* Of the pass under way. */
	u32 requested_count;
	u32 helped_count;
	u32 crowded_count;
	u32 refused_count;
	u32 silent_count; /* siblings of whom nobody knows whether they owe an answer */
};

struct passes_pcpu {
	u32 turned_away; /* slot + 1 of the VM that found no room here last; 0: none since the last look */
};

static __always_inline struct passes_vm *passes_in(const struct vm *vm);
static __always_inline struct passes_pcpu *passes_on(const struct pcpu *pcpu);

#endif
