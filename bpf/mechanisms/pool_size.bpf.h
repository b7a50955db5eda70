/* SPDX-License-Identifier: GPL-2.0-only */
/* Pool size: how many pCPUs are micro-sliced. */
#ifndef BPF_POOL_SIZE_H
#define BPF_POOL_SIZE_H

#include "bpf/core/intf.h"

struct pool_size_pcpu {
	u64 since_ns; /* it runs an accelerated vCPU since then; 0: it doesn't */
	u64 busy_ns;  /* for how long it did since the last step of Algorithm 1 */
};

static __always_inline struct pool_size_pcpu *pool_size_on(const struct pcpu *pcpu);

#endif
