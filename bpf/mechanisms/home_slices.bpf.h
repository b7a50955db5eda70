/* SPDX-License-Identifier: GPL-2.0-only */
/* Home slices: micro slices on pCPUs of the normal pool. */
#ifndef BPF_HOME_SLICES_H
#define BPF_HOME_SLICES_H

#include "bpf/core/intf.h"

struct home_slices_pcpu {
	u64 left_ns;	     /* what is left of the turn of `interrupted` */
	u64 disturbed_at_ns; /* when a micro slice was asked for at home here, or ended here, last */
	u32 interrupted; /* vCPU slot + 1 whose turn the micro slice at home that runs here has interrupted; 0: none */
};

static __always_inline struct home_slices_pcpu *home_slices_on(const struct pcpu *pcpu);

#endif
