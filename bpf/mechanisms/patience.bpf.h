/* SPDX-License-Identifier: GPL-2.0-only */
/* Patience: who waits keeps its pCPU for a while. */
#ifndef BPF_PATIENCE_H
#define BPF_PATIENCE_H

#include "bpf/core/intf.h"

struct patience_vcpu {
	/* The wait because of which it exits now and then, in this turn: its first and its last exit. */
	u64 spins_since_ns;
	u64 spun_until_ns;
	u32 keeps_spinning;
};

static __always_inline struct patience_vcpu *patience_of(const struct vcpu *vcpu);

#endif
