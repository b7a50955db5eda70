/* SPDX-License-Identifier: GPL-2.0-only */
/* Directed yield: a spinner gives its pCPU to whom it may wait for. */
#ifndef BPF_DIRECTED_YIELD_H
#define BPF_DIRECTED_YIELD_H

#include "bpf/core/intf.h"

struct directed_yield_vcpu {
	u32 heir; /* slot + 1 of the vCPU that it yields its pCPU to; 0: of nobody */
};

static __always_inline struct directed_yield_vcpu *directed_yield_of(const struct vcpu *vcpu);

#endif
