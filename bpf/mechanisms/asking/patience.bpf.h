/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Patience: a waiter keeps its pCPU for a while, as the policy says (policy/accelerate.h: decide_on_spinner).
 */
#ifndef BPF_PATIENCE_H
#define BPF_PATIENCE_H

#include "bpf/mechanisms/asking/passes.bpf.h"

struct patience_vcpu {
	/* The wait because of which it exits now and then, in this turn: its first and its last exit. */
	u64 spins_since_ns;
	u64 spun_until_ns;
	u64 exited_ns; /* its last pause-loop exit in this turn */
	u64 window_ns; /* window_after_exit() */
	u32 keeps_spinning;
	u32 has_run_out;
};

struct patience_vm {
	u32 vain_waits; /* vain_waits_after() */
};

static __always_inline struct patience_vcpu *patience_of(const struct vcpu *vcpu);
static __always_inline struct patience_vm *patience_in(const struct vm *vm);

/* A turn begins, and with it the pause-loop window: a base window is no longer than a micro slice. */
static __always_inline void patience_begins(struct vcpu *vcpu)
{
	patience_of(vcpu)->spun_until_ns = 0;
	patience_of(vcpu)->exited_ns = 0;
	patience_of(vcpu)->window_ns = config.micro_slice_ns;
}

/* For how long it has waited in this turn. */
static __always_inline u64 spun_ns(struct vcpu *self, u32 cause)
{
	struct patience_vcpu *wait = patience_of(self);
	u64 now = bpf_ktime_get_ns();

	if (exit_begins_wait(now - wait->spun_until_ns, wait->window_ns, config.micro_slice_ns)) {
		wait->spins_since_ns = now;
		wait->has_run_out = 0;
	}
	wait->spun_until_ns = now;
	if (cause == YIELD_PLE) {
		wait->window_ns = window_after_exit(wait->window_ns, now - wait->exited_ns);
		wait->exited_ns = now;
	}
	return now - wait->spins_since_ns;
}

/* `vm` is whose pass has just ended; NULL if none was made. */
static __always_inline void decide_spinner(struct vcpu *self, u32 slot, u32 cause, const struct vm *vm,
					   u32 scope, u32 reason)
{
	struct accelerate_config limits = config.accelerate;
	struct spinner_observation seen = {.cause = cause,
					   .helped_count = vm ? passes_in(vm)->helped_count : 0,
					   .refused_count = vm ? passes_in(vm)->refused_count : 0,
					   .pass_active = reason == YIELD_PASS_ACTIVE,
					   .scope = scope,
					   .stranded_count = vm ? passes_in(vm)->stranded_count : 0,
					   .vain_waits = vm ? patience_in(vm)->vain_waits : 0,
					   .spun_ns = spun_ns(self, cause)};
	struct vm_stats *stats = vm_stats_at(self->vm);
	u32 decision;

	/* Not before spun_ns(), which knows whether it is another wait. */
	seen.ran_out_before = patience_of(self)->has_run_out;
	patience_of(self)->has_run_out = seen.spun_ns >= limits.patience_ns;
	decision = decide_on_spinner(&limits, &seen);

	RECORD(RECORD_SPINNER, slot, spinner, {.config = limits, .seen = seen, .decision = decision});
	patience_of(self)->keeps_spinning = decision == SPINNER_KEEPS_SPINNING;
	if (vm)
		patience_in(vm)->vain_waits = vain_waits_after(&limits, &seen);
	/* A helped waiter begins to wait anew. */
	if (seen.helped_count)
		patience_of(self)->spun_until_ns = 0;
	if (stats && decision < 2)
		COUNT(stats->spinners[decision]);
}

#endif
