/* SPDX-License-Identifier: GPL-2.0-only */
/* How long vCPUs of each VM may wait now (policy/max_wait.h). Who looks at waits says what many can have. */
#ifndef BPF_MAX_WAIT_H
#define BPF_MAX_WAIT_H

#include "bpf/core/guest_code.bpf.h"
#include "policy/max_wait.h"

/* How long vCPUs of VMs without a bound of their own may wait now; 0: as long as config.max_wait_ns. */
u64 host_bound_ns;

/* The least bound that all can have that want to run now. */
u64 least_bound_ns;

static __always_inline u64 host_max_wait_ns(void)
{
	return host_bound_ns ? host_bound_ns : config.max_wait_ns;
}

/* How long vCPUs of this VM may wait now; 0: for ever. Until the daemon has spoken, as long as all. */
static __always_inline u64 max_wait_of(u32 vm_slot)
{
	struct vm *vm = vm_at(vm_slot);
	struct vm_feed *feed = vm_feed_at(vm_slot);
	u64 own_ns = vm && feed && feed_is_current(feed, vm) ? feed->max_wait_ns : 0;

	return max_wait_of_vm_ns(own_ns, host_max_wait_ns(), least_bound_ns);
}

/* True if a wait that ends now was longer than its VM's bound. Most waits are shorter than any bound. */
static __always_inline bool is_late_wait(const struct vcpu *vcpu, u64 waited_ns)
{
	u64 bound_ns = waited_ns > MAX_WAIT_LEAST_NS ? max_wait_of(vcpu->vm) : 0;

	return bound_ns && waited_ns > bound_ns;
}

#endif
