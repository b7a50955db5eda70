// SPDX-License-Identifier: GPL-2.0-only
/*
 * Time balloons: threads that make the guest's own balancer move work away from vCPUs that the host gives
 * less time.
 *
 * Every `interval_ms` it is seen how much of each vCPU's time the host took (steal time), and how many
 * threads want to run. A slower vCPU gets balloons (balloons.h). A balloon wants to run, so the balancer
 * counts it, and gives its turns away at once: to the threads of its vCPU, or, if there are none, to the
 * host, by HLT.
 */
#define pr_fmt(format) KBUILD_MODNAME ": " format
#include <linux/version.h>
#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 1, 0)
#error "microslice_balloon: these headers are of a kernel before 6.1, which isn't supported"
#endif
#ifndef CONFIG_X86_64
#error "microslice_balloon: only for x86-64"
#endif
#include <linux/cpu.h>
#include <linux/kernel_stat.h>
#include <linux/kthread.h>
#include <linux/kvm_para.h>
#include <linux/ktime.h>
#include <linux/module.h>
#include <linux/percpu.h>
#include <linux/sched.h>
#include <linux/sched/signal.h>
#include <linux/smp.h>

#include "../parameters.h"
#include "balloons.h"

#define YIELD_SHORT_NS 20000 /* nobody else had a turn */
#define YIELDS_ALONE 8

static unsigned int interval_ms = 500;
module_param(interval_ms, uint, 0444);
MODULE_PARM_DESC(interval_ms, "between two looks at steal time, 50 to 60000");

struct vcpu {
	struct task_struct *threads[BALLOONS_MAX];
	u32 wanted; /* so many of them want to run */
	u32 made;
	u32 share;
	u64 stolen_ns; /* at the last look */
};

static DEFINE_PER_CPU(struct vcpu, vcpus);
static struct task_struct *poller;

/* To the host, until the next interrupt. */
static void halt_once(void)
{
	local_irq_disable();
	if (need_resched())
		local_irq_enable();
	else
		asm volatile("sti; hlt" ::: "memory");
}

static int balloon(void *argument)
{
	u32 number = (unsigned long)argument, alone = 0;
	struct vcpu *vcpu = raw_cpu_ptr(&vcpus);

	while (!kthread_should_stop()) {
		u64 before_ns = ktime_get_ns();

		if (number >= READ_ONCE(vcpu->wanted)) {
			set_current_state(TASK_IDLE);
			if (number >= READ_ONCE(vcpu->wanted) && !kthread_should_stop())
				schedule();
			__set_current_state(TASK_RUNNING);
			continue;
		}
		yield();
		alone = ktime_get_ns() - before_ns < YIELD_SHORT_NS ? alone + 1 : 0;
		if (alone >= YIELDS_ALONE * READ_ONCE(vcpu->wanted)) {
			halt_once();
			alone = 0;
		}
	}
	return 0;
}

/* All of them are there before the first wants to run. */
static int set_balloons(u32 cpu, u32 wanted)
{
	struct vcpu *vcpu = per_cpu_ptr(&vcpus, cpu);
	u32 i;

	while (vcpu->made < wanted) {
		struct task_struct *thread =
		    kthread_create(balloon, (void *)(unsigned long)vcpu->made, "microslice_balloon/%u", cpu);

		if (IS_ERR(thread))
			return PTR_ERR(thread);
		kthread_bind(thread, cpu);
		vcpu->threads[vcpu->made++] = thread;
	}
	WRITE_ONCE(vcpu->wanted, wanted);
	for (i = 0; i < wanted; i++)
		wake_up_process(vcpu->threads[i]);
	return 0;
}

/* Those that want to run, balloons and this one left out. */
static u32 running_threads(void)
{
	struct task_struct *process, *thread;
	u32 count = 0;

	rcu_read_lock();
	for_each_process_thread(process, thread) count +=
	    READ_ONCE(thread->__state) == TASK_RUNNING && !(thread->flags & PF_KTHREAD);
	rcu_read_unlock();
	return count;
}

static void look(u64 elapsed_ns)
{
	u32 cpu, most = 0, sum = 0, threads = running_threads();

	for_each_online_cpu(cpu)
	{
		struct vcpu *vcpu = per_cpu_ptr(&vcpus, cpu);
		u64 stolen_ns = READ_ONCE(kcpustat_cpu(cpu).cpustat[CPUTIME_STEAL]);

		vcpu->share = share_of(stolen_ns - vcpu->stolen_ns, elapsed_ns);
		vcpu->stolen_ns = stolen_ns;
		most = max(most, vcpu->share);
		sum += vcpu->share;
	}
	for_each_online_cpu(cpu)
	{
		u32 due = elapsed_ns ? balloons_due(per_cpu(vcpus, cpu).share, most, sum, threads) : 0;

		if (set_balloons(cpu, due))
			pr_warn_once("no more balloons for CPU %u: no memory\n", cpu);
	}
}

static int poll(void *argument)
{
	u64 seen_ns = 0;

	while (!kthread_should_stop()) {
		u64 now_ns = ktime_get_ns();

		cpus_read_lock();
		look(seen_ns ? now_ns - seen_ns : 0);
		cpus_read_unlock();
		seen_ns = now_ns;
		schedule_timeout_interruptible(msecs_to_jiffies(interval_ms));
	}
	return 0;
}

/* A line of numbers, one for each vCPU. */
static int print(char *buffer, bool shares)
{
	u32 cpu;
	int length = 0;

	for_each_online_cpu(cpu)
	{
		struct vcpu *vcpu = per_cpu_ptr(&vcpus, cpu);

		length += scnprintf(buffer + length, PAGE_SIZE - length, "%s%u", length ? "," : "",
				    shares ? READ_ONCE(vcpu->share) : READ_ONCE(vcpu->wanted));
	}
	return length + scnprintf(buffer + length, PAGE_SIZE - length, "\n");
}

static int get_shares(char *buffer, const struct kernel_param *param)
{
	return print(buffer, true);
}

static int get_balloons(char *buffer, const struct kernel_param *param)
{
	return print(buffer, false);
}

static const struct kernel_param_ops shares_ops = {.get = get_shares, .set = set_nothing};
static const struct kernel_param_ops balloons_ops = {.get = get_balloons, .set = set_nothing};
module_param_cb(shares, &shares_ops, NULL, 0444);
MODULE_PARM_DESC(shares, "what each vCPU was given between the last two looks, of 1000");
module_param_cb(balloons, &balloons_ops, NULL, 0444);
MODULE_PARM_DESC(balloons, "how many each vCPU has");

static int __init microslice_balloon_init(void)
{
	if (interval_ms < 50 || interval_ms > 60000) {
		pr_err("interval_ms=%u: it must be 50 to 60000\n", interval_ms);
		return -EINVAL;
	}
	if (!kvm_para_available()) {
		pr_err("no guest of KVM: nobody says what the host takes\n");
		return -ENODEV;
	}
	poller = kthread_run(poll, NULL, "microslice_balloons");
	return PTR_ERR_OR_ZERO(poller);
}

static void __exit microslice_balloon_exit(void)
{
	u32 cpu, i;

	kthread_stop(poller);
	for_each_possible_cpu(cpu)
	{
		struct vcpu *vcpu = per_cpu_ptr(&vcpus, cpu);

		for (i = 0; i < vcpu->made; i++)
			kthread_stop(vcpu->threads[i]);
	}
}

module_init(microslice_balloon_init);
module_exit(microslice_balloon_exit);
MODULE_LICENSE("GPL");
MODULE_DESCRIPTION("Time balloons: work moves away from vCPUs that the host gives less time");
MODULE_VERSION("0.1.0");
