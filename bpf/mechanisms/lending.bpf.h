/* SPDX-License-Identifier: GPL-2.0-only */
/* Lending: vCPUs of the normal pool on micro pCPUs that nobody asks for. */
#ifndef BPF_LENDING_H
#define BPF_LENDING_H

#include "bpf/core/intf.h"

struct lending_vcpu {
	u32 called_back; /* it was woken for the micro pCPU that it borrowed, and that was asked for */
};

struct lending_pcpu {
	u32 is_lent;	/* it runs a vCPU of the normal pool, as a micro pCPU that nobody asks for */
	u32 to_boosted; /* and that one was woken for it */
};

static __always_inline struct lending_vcpu *lending_of(const struct vcpu *vcpu);
static __always_inline struct lending_pcpu *lending_on(const struct pcpu *pcpu);

#endif
