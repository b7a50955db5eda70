// SPDX-License-Identifier: GPL-2.0-only
/*
 * What guest_code.bpf.h sees of interrupts that were posted to a vCPU, on a host whose CPUs can't post any.
 * The vCPU is a map's value, in which the daemon has written at the places where KVM keeps them.
 */
#define BESIDE

#include "bpf/core/guest_code.bpf.h"

char _license[] SEC("license") = "GPL";

/* None of these is asked for here. */
struct vcpus_map {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct vcpu);
} vcpus SEC(".maps");

struct vms_map {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct vm);
} vms SEC(".maps");

struct made_vcpu {
	u8 vcpu[MADE_VCPU_BYTES];
	u8 apic[MADE_APIC_BYTES];
	u8 registers[MADE_REGISTERS_BYTES];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct made_vcpu);
} made_vcpus SEC(".maps");

u64 made_vcpu_at; /* the address of it */
u32 vector;	  /* that is asked about */
u32 is_pending;
u32 answer; /* to calls: enum sibling_answer */

SEC("syscall")
int look_at_made_vcpu(void *context)
{
	u32 key = 0;
	struct made_vcpu *made = bpf_map_lookup_elem(&made_vcpus, &key);

	if (!made)
		return 1;
	/* A number from now on, as KVM's own are. */
	made_vcpu_at = (u64)made->vcpu;
	barrier();
	is_pending = guest_interrupt_pending(made_vcpu_at, vector);
	answer = guest_answer_to_calls(made_vcpu_at);
	return 0;
}
