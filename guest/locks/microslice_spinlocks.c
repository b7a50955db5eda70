// SPDX-License-Identifier: GPL-2.0-only
/*
 * While it is loaded, waiters of the kernel's own spinlocks wait as those of oticket locks do (lock_line.h).
 *
 *   insmod microslice_spinlocks.ko [queue_wait=18 wake_ahead=4 spin=32768 spin_max=17179869184]
 *   cat /sys/module/microslice_spinlocks/parameters/counts
 *   rmmod microslice_spinlocks
 *
 * It replaces `__pv_queued_spin_lock_slowpath` as a live patch does, by ftrace. It may come and go while
 * locks are held and waited for: whoever waits already goes on as he began. It is refused where the kernel
 * doesn't wait by that function (no PV spinlocks, `nopvspin`, KVM_HINTS_REALTIME). So it is where a live
 * patch has replaced it, and where ftrace is off.
 */
#define pr_fmt(format) KBUILD_MODNAME ": " format
#include <linux/version.h>
#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 1, 0)
#error "microslice_spinlocks: these headers are of a kernel before 6.1, which isn't supported"
#endif
#if !defined(CONFIG_X86_64) || !defined(CONFIG_PARAVIRT_SPINLOCKS) || !defined(CONFIG_DYNAMIC_FTRACE)
#error "microslice_spinlocks: only for x86-64 with CONFIG_PARAVIRT_SPINLOCKS and CONFIG_DYNAMIC_FTRACE"
#endif
#include <linux/cpu.h>
#include <linux/delay.h>
#include <linux/ftrace.h>
#include <linux/kallsyms.h>
#include <linux/module.h>
#include <linux/rcupdate.h>
#include <linux/smp.h>
#include <linux/spinlock.h>

#include "../parameters.h"
#include "kvm_waits.h"
#include "lock_line.h"
#include "pv_ticket.h"

#define REPLACED "__pv_queued_spin_lock_slowpath"

static struct pv_ticket_rules rules = {
    .kind = PV_OTICKET, .queue_wait = 18, .wake_ahead = 4, .spin = 1ull << 15, .spin_max = 1ull << 34};
module_param_named(queue_wait, rules.queue_wait, uint, 0444);
MODULE_PARM_DESC(queue_wait, "from so many tickets on a waiter spins for `spin` looks (18)");
module_param_named(wake_ahead, rules.wake_ahead, uint, 0444);
MODULE_PARM_DESC(wake_ahead, "waiters that are kicked together (4)");
module_param_named(spin, rules.spin, ullong, 0444);
MODULE_PARM_DESC(spin, "looks before a waiter far behind halts (2^15)");
module_param_named(spin_max, rules.spin_max, ullong, 0444);
MODULE_PARM_DESC(spin_max, "looks of the nearest waiter, halved for each one before it (2^34)");

static uint mixed;
module_param(mixed, uint, 0444);
MODULE_PARM_DESC(mixed, "for tests: every so many-th waiter waits as the kernel has it (0: none)");

static struct lock_line lines[LINES];
static struct pv_ticket_cpus cpus;
static atomic64_t without_line, waiters;

static bool is_kernels(void)
{
	return mixed && atomic64_inc_return(&waiters) % mixed == 0;
}

/* Runs in place of the kernel's, with preemption off, as that does. */
static void wait_in_line(struct qspinlock *lock, u32 val)
{
	if (!is_kernels() && line_lock(&rules, lines, &cpus, smp_processor_id(), lock))
		return;
	atomic64_inc(&without_line);
	pv_ops.lock.queued_spin_lock_slowpath(lock, val);
	barrier(); /* it is called from here, not jumped to: `replace` looks at who calls */
}

/* A line's waiters can be interrupted by anything but what interrupts everything. */
static void notrace replace(unsigned long ip, unsigned long parent_ip, struct ftrace_ops *ops,
			    struct ftrace_regs *fregs)
{
	if (in_nmi() || within_module(parent_ip, THIS_MODULE))
		return;
#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 2, 0)
	ftrace_instruction_pointer_set(fregs, (unsigned long)wait_in_line);
#else
	ftrace_regs_set_instruction_pointer(fregs, (unsigned long)wait_in_line);
#endif
}

static struct ftrace_ops replacement = {.func = replace,
					.flags = FTRACE_OPS_FL_IPMODIFY | FTRACE_OPS_FL_PERMANENT
#ifndef CONFIG_HAVE_DYNAMIC_FTRACE_WITH_ARGS
						 | FTRACE_OPS_FL_SAVE_REGS
#endif
};

static int get_counts(char *buffer, const struct kernel_param *param)
{
	return scnprintf(
	    buffer, PAGE_SIZE,
	    "{\"taken\":%llu,\"waited\":%llu,\"halts\":%llu,\"kicks\":%llu,\"without_line\":%llu}\n",
	    TICKET_SUM(&cpus, taken), TICKET_SUM(&cpus, waited), TICKET_SUM(&cpus, halts),
	    TICKET_SUM(&cpus, kicks), (u64)atomic64_read(&without_line));
}

static const struct kernel_param_ops counts_ops = {.get = get_counts, .set = set_nothing};
module_param_cb(counts, &counts_ops, NULL, 0400);
MODULE_PARM_DESC(counts,
		 "read: locks that were taken in line, waits in it, halts, kicks; and without a line");

static int refuse(int error, const char *why)
{
	pr_err("%s\n", why);
	return error;
}

static int __init microslice_spinlocks_init(void)
{
	char waits_by[KSYM_SYMBOL_LEN];
	int error;

	if (nr_cpu_ids > TICKET_CPUS_MAX || nr_cpu_ids > LINE_WAITERS)
		return refuse(-E2BIG, "more CPUs than 511 are too many");
	if (!rules.queue_wait || rules.queue_wait > TICKET_WORD_BITS || !rules.wake_ahead ||
	    rules.wake_ahead > TICKET_WORD_BITS || !rules.spin || rules.spin > 1ull << 40 ||
	    !rules.spin_max || rules.spin_max > 1ull << 40)
		return refuse(-EINVAL, "queue_wait and wake_ahead are 1 to 64, spin and spin_max 1 to 2^40");
	if (!host_has(KVM_FEATURE_PV_UNHALT))
		return refuse(-ENODEV, "no host here that kicks (KVM_FEATURE_PV_UNHALT)");
	sprint_symbol_no_offset(waits_by, (unsigned long)pv_ops.lock.queued_spin_lock_slowpath);
	if (strcmp(waits_by, REPLACED)) {
		pr_err("this kernel's spinlocks wait by %s, not by " REPLACED ": one CPU, or nopvspin?\n",
		       waits_by);
		return -ENODEV;
	}
	error = ftrace_set_filter(&replacement, REPLACED, strlen(REPLACED), 1);
	if (error)
		return refuse(error, REPLACED " can't be traced in this kernel");
	error = register_ftrace_function(&replacement);
	if (!error)
		return 0;
	ftrace_free_filter(&replacement);
	return refuse(error, error == -EBUSY ? "ftrace is off, or a live patch or a kprobe has " REPLACED
					     : "ftrace doesn't take it");
}

/*
 * Nobody comes any more once it isn't registered. Those who wait here have preemption off, and a grace period
 * is over when all of them have their locks. A CPU that comes up waits with RCU not yet watching it.
 */
static void __exit microslice_spinlocks_exit(void)
{
	while (unregister_ftrace_function(&replacement)) {
		pr_emerg_once("ftrace is dead and keeps it: it can't be unloaded any more\n");
		msleep(60 * MSEC_PER_SEC);
	}
	ftrace_free_filter(&replacement);
	cpus_read_lock();
	cpus_read_unlock();
	synchronize_rcu();
}

module_init(microslice_spinlocks_init);
module_exit(microslice_spinlocks_exit);
MODULE_LICENSE("GPL");
MODULE_DESCRIPTION(
    "The kernel's own spinlocks wait opportunistically: spin the longer the nearer, kick ahead");
MODULE_VERSION("0.1.0");
