/* SPDX-License-Identifier: GPL-2.0-only */
/* Grace: a turn that ends at a bad moment is made longer. */
#ifndef BPF_GRACE_H
#define BPF_GRACE_H

#include "bpf/core/intf.h"

struct grace_vcpu {
	u32 count;	 /* micro slices in a row that its turn was made longer by */
	u32 turn_over;	 /* the policy was asked at the end of this turn, and said that it ends */
	u32 interrupted; /* its turn in the normal pool was cut off just now, and nobody asked the policy */
};

static __always_inline struct grace_vcpu *grace_of(const struct vcpu *vcpu);

#endif
