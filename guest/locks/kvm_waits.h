/* SPDX-License-Identifier: GPL-2.0-only */
/* How a vCPU of KVM's halts for a lock, kicks another and yields to it; for pv_ticket.h and yield_lock.h. */
#ifndef GUEST_KVM_WAITS_H
#define GUEST_KVM_WAITS_H

#include <linux/irqflags.h>
#include <linux/kvm_para.h>
#include <linux/ktime.h>
#include <linux/smp.h>

#include "access.h"
#define LOCK_PAUSE() cpu_relax()
#define LOCK_SPIN() cpu_relax()
#define LOCK_WORD(lock) ((u32 *)&(lock)->val.counter)
#define LOCK_BEGIN_WAIT() begin_wait()
#define LOCK_END_WAIT(before) local_irq_restore(before)
#define LOCK_HALT(before) halt_until_kicked(before)
#define LOCK_KICK(cpu) kick(cpu)
#define LOCK_NOW_NS() ktime_get_mono_fast_ns()
#define LOCK_YIELD(cpu) yield_to_cpu(cpu)

static inline unsigned long begin_wait(void)
{
	unsigned long flags;

	local_irq_save(flags);
	return flags;
}

/*
 * KVM remembers a kick that comes before the halt. Nothing else but an NMI wakes a waiter with interrupts
 * off. Interrupts wake others, too, which STI lets in no earlier than HLT.
 */
static inline void halt_until_kicked(unsigned long flags)
{
	if (raw_irqs_disabled_flags(flags)) {
		halt();
	} else {
		raw_safe_halt();
		raw_local_irq_disable();
	}
}

static inline void kick(u32 cpu)
{
	kvm_hypercall2(KVM_HC_KICK_CPU, 0, per_cpu(x86_cpu_to_apicid, cpu));
}

/* KVM's directed yield, if that vCPU is preempted. */
static inline void yield_to_cpu(u32 cpu)
{
	kvm_hypercall1(KVM_HC_SCHED_YIELD, per_cpu(x86_cpu_to_apicid, cpu));
}

/*
 * Leaf 0x40000000 names the hypervisor, the next has KVM's features; other hypervisors' leaves may come
 * before KVM's.
 */
static inline bool host_has(u32 feature)
{
	u32 base, highest, signature[3];

	for (base = 0x40000000; base < 0x40010000; base += 0x100) {
		cpuid(base, &highest, &signature[0], &signature[1], &signature[2]);
		if (!memcmp("KVMKVMKVM\0\0\0", signature, sizeof(signature)))
			return cpuid_eax(base + 1) & (1u << feature);
	}
	return false;
}

#endif
