// SPDX-License-Identifier: GPL-2.0-only
/*
 * The guest's hint page (hint_page.h), and what other modules say in it (microslice_hints.h), and programs
 * (microslice_user.h).
 *
 *   cat /sys/module/microslice_hints/parameters/hints      what each vCPU says now, in microseconds
 *   echo 50 > /sys/module/microslice_hints/parameters/user_limit_us      what programs may say at most
 *
 * It lies in the lowest 16 MiB, where a host looks for it. A host that doesn't look costs nothing.
 *
 * A program's hint (Ahn et al., EuroSys'18, section 4.4: critical sections of applications) is its vCPU's, as
 * long as it runs there. So each switch of the guest's scheduler takes it back: a probe at sched_switch,
 * which is there while the device is open. A preempt notifier would be each thread's own, and would outlive
 * a thread that ends without a word.
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
#include <linux/fs.h>
#include <linux/gfp.h>
#include <linux/io.h>
#include <linux/kvm_para.h>
#include <linux/miscdevice.h>
#include <linux/module.h>
#include <linux/mutex.h>
#include <linux/percpu.h>
#include <linux/sched.h>
#include <linux/smp.h>
#include <linux/string.h>
#include <linux/tracepoint.h>

#include "../parameters.h"
#include "hint_page.h"
#include "microslice_hints.h"
#include "microslice_user.h"

#define USER_LIMIT_MAX_US 1000u

static DEFINE_PER_CPU(struct guest_hint *, hint_of_cpu);
/* What the program says that runs there, in microseconds. */
static DEFINE_PER_CPU(u32, said_by_program);
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

static unsigned int user_limit_us = 100;
module_param(user_limit_us, uint, 0644);
MODULE_PARM_DESC(user_limit_us,
		 "for how many microseconds programs may say so at most, up to 1000 (default 100)");

/* What this CPU's program says. Preemption, or interrupts, are off. Returns what it said before. */
static u32 say_for_program(u32 microseconds)
{
	struct guest_hint *hint = this_cpu_read(hint_of_cpu);
	u32 before = this_cpu_read(said_by_program);

	if (hint && microseconds != before) {
		this_cpu_write(said_by_program, microseconds);
		WRITE_ONCE(hint->not_now_us, microseconds);
	}
	return before;
}

/* At each switch of the guest's scheduler: whoever said something runs there no longer. */
static void on_switch(void *unused, bool preempt, struct task_struct *from, struct task_struct *to,
		      unsigned int state)
{
	say_for_program(0);
}

static void be_silent(void *unused)
{
	say_for_program(0);
}

static struct tracepoint *switches;
static DEFINE_MUTEX(opening);
static u32 open_files;

static void note_if_switches(struct tracepoint *point, void *unused)
{
	if (!strcmp(point->name, "sched_switch"))
		switches = point;
}

static int open_hints(struct inode *inode, struct file *file)
{
	int error = 0;

	mutex_lock(&opening);
	if (!open_files)
		error = tracepoint_probe_register(switches, on_switch, NULL);
	if (!error)
		open_files++;
	mutex_unlock(&opening);
	return error ? error : nonseekable_open(inode, file);
}

/* Without a probe nothing would be taken back: the last one out says the last word. */
static int close_hints(struct inode *inode, struct file *file)
{
	mutex_lock(&opening);
	if (!--open_files) {
		tracepoint_probe_unregister(switches, on_switch, NULL);
		tracepoint_synchronize_unregister();
		on_each_cpu(be_silent, NULL, 1);
	}
	mutex_unlock(&opening);
	return 0;
}

static long say(struct file *file, unsigned int command, unsigned long microseconds)
{
	u32 limit = min(READ_ONCE(user_limit_us), USER_LIMIT_MAX_US);
	u32 granted = min_t(unsigned long, microseconds, limit);
	u32 before;

	if (command != MICROSLICE_NOT_NOW)
		return -ENOTTY;
	preempt_disable();
	before = say_for_program(granted);
	preempt_enable();
	return microseconds ? granted : before;
}

static const struct file_operations for_programs = {
    .owner = THIS_MODULE,
    .open = open_hints,
    .release = close_hints,
    .unlocked_ioctl = say,
    .compat_ioctl = say,
};

static struct miscdevice device = {
    .minor = MISC_DYNAMIC_MINOR,
    .name = "microslice_hints",
    .fops = &for_programs,
    .mode = 0600,
};

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
	int error;

	if (!kvm_para_available()) {
		pr_err("no guest of KVM: nobody reads hints\n");
		return -ENODEV;
	}
	if (count > HINT_VCPUS_MAX) {
		pr_err("an APIC ID of %u: hints are for those below %u\n", count - 1, HINT_VCPUS_MAX);
		return -E2BIG;
	}
	for_each_kernel_tracepoint(note_if_switches, NULL);
	if (!switches) {
		pr_err("the kernel has no tracepoint sched_switch\n");
		return -ENOENT;
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
	error = misc_register(&device);
	if (error) {
		pr_err("no device for programs: error %d\n", error);
		free_pages_exact(head, bytes);
		return error;
	}
	/* A reader that sees the signature sees the rest. */
	smp_wmb();
	memcpy(head->signature, HINT_SIGNATURE, sizeof(head->signature));
	return 0;
}

static void __exit microslice_hints_exit(void)
{
	misc_deregister(&device);
	memset(head->signature, 0, sizeof(head->signature));
	smp_wmb();
	free_pages_exact(head, bytes);
}

module_init(microslice_hints_init);
module_exit(microslice_hints_exit);
MODULE_LICENSE("GPL");
MODULE_DESCRIPTION("Hints to the host: when a vCPU isn't to be preempted");
MODULE_VERSION("0.1.0");
