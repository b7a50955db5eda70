/* SPDX-License-Identifier: GPL-2.0-only */
/* Micro pool: what a micro pCPU serves, and in which order. */
#ifndef BPF_MICRO_POOL_H
#define BPF_MICRO_POOL_H

#include "bpf/core/intf.h"

struct micro_pool_pcpu {
	u32 served_last; /* whose turn it is: an accelerated vCPU's, or a confined task's */
	u32 rescue_count; /* just became micro-sliced: queued tasks to look at that may have nowhere else to run */
};

static __always_inline struct micro_pool_pcpu *micro_pool_on(const struct pcpu *pcpu);

#endif
