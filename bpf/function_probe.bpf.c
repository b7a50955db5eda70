// SPDX-License-Identifier: GPL-2.0-only
/*
 * Can a function of KVM be traced here? Kernels are built without a function tracer, refuse trampolines, or
 * have KVM modules without BTF. Attaching is the only proof.
 */
#include "bpf/core/vmlinux.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

char _license[] SEC("license") = "GPL";

SEC("fentry/kvm_arch_vcpu_load")
int BPF_PROG(function_probe, struct kvm_vcpu *kvm_vcpu, int cpu)
{
	return 0;
}
