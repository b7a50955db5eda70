// SPDX-License-Identifier: GPL-2.0-only
/*
 * The guest's hint page (hint_page.h), and what other modules say in it: microslice_hints.h.
 *
 *   cat /sys/module/microslice_hints/parameters/hints      what each vCPU says now, in microseconds
 *
 * It lies in the lowest 16 MiB, where a host looks for it. A host that doesn't look costs nothing.
 */
#define pr_fmt(format) KBUILD_MODNAME ": " format
#include <linux/version.h>
#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 1, 0)
#error "microslice_hints: these headers are of a kernel before 6.1, which isn't supported"
#endif
#ifndef CONFIG_X86_64
#error "microslice_hints: only for x86-64"
#endif
#include <linux/cpumask.h>
#include <linux/gfp.h>
#include <linux/io.h>
#include <linux/kvm_para.h>
#include <linux/module.h>
#include <linux/percpu.h>
#include <linux/smp.h>
#include <linux/string.h>

#include "../parameters.h"
#include "hint_page.h"
#include "microslice_hints.h"

static DEFINE_PER_CPU(struct guest_hint *, hint_of_cpu);
static struct hint_head *head;
static size_t bytes;

u32 microslice_not_now(u32 microseconds)
{
	struct guest_hint *hint = this_cpu_read(hint_of_cpu);
	u32 before = hint ? READ_ONCE(hint->not_now_us) : 0;

	if (hint && microseconds > before)
		WRITE_ONCE(hint->not_now_us, microseconds);
	/* What the compiler does for the lock comes behind it. */
	barrier();
	return before;
}
EXPORT_SYMBOL_GPL(microslice_not_now);

void microslice_preempt_again(u32 before)
{
	struct guest_hint *hint = this_cpu_read(hint_of_cpu);

	barrier();
	if (hint)
		WRITE_ONCE(hint->not_now_us, before);
}
EXPORT_SYMBOL_GPL(microslice_preempt_again);

static int get_hints(char *buffer, const struct kernel_param *param)
{
	u32 cpu;
	int length = 0;

	for_each_online_cpu(cpu)
	{
		struct guest_hint *hint = per_cpu(hint_of_cpu, cpu);

		length += scnprintf(buffer + length, PAGE_SIZE - length, "%s%u", length ? "," : "",
				    hint ? READ_ONCE(hint->not_now_us) : 0);
	}
	return length + scnprintf(buffer + length, PAGE_SIZE - length, "\n");
}

static const struct kernel_param_ops hints_ops = {.get = get_hints, .set = set_nothing};
module_param_cb(hints, &hints_ops, NULL, 0444);
MODULE_PARM_DESC(hints, "for how many microseconds each vCPU isn't to be preempted");

/* One more than the greatest APIC ID. */
static u32 count_vcpus(void)
{
	u32 cpu, count = 0;

	for_each_present_cpu(cpu) count = max_t(u32, count, per_cpu(x86_cpu_to_apicid, cpu) + 1);
	return count;
}

static int __init microslice_hints_init(void)
{
	u32 cpu, count = count_vcpus();

	if (!kvm_para_available()) {
		pr_err("no guest of KVM: nobody reads hints\n");
		return -ENODEV;
	}
	if (count > HINT_VCPUS_MAX) {
		pr_err("an APIC ID of %u: hints are for those below %u\n", count - 1, HINT_VCPUS_MAX);
		return -E2BIG;
	}
	bytes = hint_offset(count);
	head = alloc_pages_exact(bytes, GFP_KERNEL | GFP_DMA | __GFP_ZERO);
	if (!head) {
		pr_err("no memory below 16 MiB: no host looks for hints elsewhere\n");
		return -ENOMEM;
	}
	for_each_present_cpu(cpu) per_cpu(hint_of_cpu, cpu) =
	    (void *)head + hint_offset(per_cpu(x86_cpu_to_apicid, cpu));
	head->version = HINT_VERSION;
	head->vcpu_count = count;
	head->guest_physical = virt_to_phys(head);
	/* A reader that sees the signature sees the rest. */
	smp_wmb();
	memcpy(head->signature, HINT_SIGNATURE, sizeof(head->signature));
	return 0;
}

static void __exit microslice_hints_exit(void)
{
	memset(head->signature, 0, sizeof(head->signature));
	smp_wmb();
	free_pages_exact(head, bytes);
}

module_init(microslice_hints_init);
module_exit(microslice_hints_exit);
MODULE_LICENSE("GPL");
MODULE_DESCRIPTION("Hints to the host: when a vCPU isn't to be preempted");
MODULE_VERSION("0.1.0");
