/* SPDX-License-Identifier: GPL-2.0-only */
/* Requests: the one that is pending, or under way in the micro pool. */
#ifndef BPF_REQUEST_H
#define BPF_REQUEST_H

#include "bpf/core/intf.h"

struct request_vcpu {
	u32 cause;
	u32 vector; /* of the interrupt that it is about; 0: none */
	u32 pcpu;
	u32 retry_count;
	u32 retry;
	u32 failure; /* enum request_failure: why the last micro pCPU that was asked said no */
};

static __always_inline struct request_vcpu *request_of(const struct vcpu *vcpu);

#endif
