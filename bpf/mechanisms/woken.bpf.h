/* SPDX-License-Identifier: GPL-2.0-only */
/* Woken: who was blocked, was woken for a known reason, and has to wait. */
#ifndef BPF_WOKEN_H
#define BPF_WOKEN_H

#include "bpf/core/intf.h"

struct woken_vcpu {
	u64 lock_halt_rip; /* where it halted for a paravirtual lock, and still is; 0: it didn't */
	u32 lock_halt_interrupts_enabled;
	u32 blocked_interrupt; /* vector of the interrupt that came while it was blocked; 0: none */
	/* It was woken, waits since then, and may go to a micro pCPU; 0: not so. What a request would be about. */
	u32 cause;
	u32 vector;
};

struct woken_pcpu {
	u32 vcpu; /* slot + 1 of who was woken and may come here when nobody who was preempted does; 0: none */
};

static __always_inline struct woken_vcpu *woken_of(const struct vcpu *vcpu);
static __always_inline struct woken_pcpu *woken_on(const struct pcpu *pcpu);

#endif
