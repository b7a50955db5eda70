/* SPDX-License-Identifier: GPL-2.0-only */
/* Micro slices: who asks for one on this pCPU, and when the one under way ends. */
#ifndef BPF_MICRO_SLICE_H
#define BPF_MICRO_SLICE_H

#include "bpf/core/intf.h"

struct micro_slice_pcpu {
	u64 deadline_ns; /* the micro slice under way ends then; 0: none */
	u32 request; /* vCPU slot + 1 that waits for a micro slice here; 0: none. The paper's queue of one */
};

static __always_inline struct micro_slice_pcpu *micro_slice_on(const struct pcpu *pcpu);

#endif
