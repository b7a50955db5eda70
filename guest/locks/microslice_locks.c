// SPDX-License-Identifier: GPL-2.0-only
/*
 * The guest's locks over KVM's own kick and HLT, tried and measured: a worker on each of some vCPUs takes one
 * lock over and over.
 *
 *   echo 'kind=oticket seconds=10 cpus=4' > /sys/module/microslice_locks/parameters/run
 *   cat /sys/module/microslice_locks/parameters/run
 *
 * The first ends when the run has; the second prints one line of JSON. It says how often the lock was taken,
 * and waited for (a hand-over), halts and kicks. It also says what must be 0: two that held it at once,
 * overtakers, kicks that were lost. A waiter has lost a kick if it is its turn, it has halted, and nothing
 * moves for ten seconds: it is kicked again.
 *
 * `kind=stock` is the kernel's own spinlock, whose halts aren't counted (-1). `kind=yield` and `spin-yield`
 * have no order. With `hint=50` a vCPU says, by microslice_hints, that it isn't to be preempted for 50 us.
 * That counts from when it wants the lock until it has given it up.
 */
#define pr_fmt(format) KBUILD_MODNAME ": " format
#include <linux/version.h>
#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 1, 0)
#error "microslice_locks: these headers are of a kernel before 6.1, which isn't supported"
#endif
#ifndef CONFIG_X86_64
#error "microslice_locks: only for x86-64, where KVM's guests halt by HLT and kick by hypercall"
#endif
#include <linux/cpu.h>
#include <linux/delay.h>
#include <linux/kthread.h>
#include <linux/ktime.h>
#include <linux/module.h>
#include <linux/random.h>
#include <linux/sched.h>
#include <linux/sched/signal.h>
#include <linux/smp.h>
#include <linux/spinlock.h>
#include <linux/string.h>

#include "../hints/microslice_hints.h"
#include "kvm_waits.h"
#include "pv_ticket.h"
#include "yield_lock.h"

/* Behind enum pv_ticket_kind. */
enum { YIELD = PV_TICKET_KINDS, SPIN_YIELD, STOCK };
#define STALL_MS 10000
#define LOOK_MS 100

static const char *const kinds[] = {"pv-ticket", "oticket", "iticket", "yield", "spin-yield", "stock"};
static const char *const interrupts[] = {"on", "off", "mixed"};
enum { INTERRUPTS_ON, INTERRUPTS_OFF, INTERRUPTS_MIXED };

/* A run; what `run` is told. */
static struct {
	u64 kind, irqs, seconds, cpus, spin, spin_max, queue_wait, wake_ahead, yield_spin_ns, hold, gap, hint;
} wanted;

static const struct {
	const char *name;
	u64 *value, least, most, by_default;
} numbers[] = {
    {"seconds", &wanted.seconds, 1, 86400, 1},
    {"cpus", &wanted.cpus, 0, TICKET_CPUS_MAX, 0}, /* 0: all */
    {"spin", &wanted.spin, 1, 1ull << 40, 1ull << 15},
    {"spin-max", &wanted.spin_max, 1, 1ull << 40, 1ull << 34},
    {"queue-wait", &wanted.queue_wait, 1, 64, 18},
    {"wake-ahead", &wanted.wake_ahead, 1, 64, 4},
    {"yield-spin", &wanted.yield_spin_ns, 1, 1u << 30, YIELD_SPIN_NS}, /* nanoseconds */
    {"hint", &wanted.hint, 0, 1000000, 0},			       /* microseconds; 0: none */
    {"hold", &wanted.hold, 0, 1u << 30, 100},			       /* up to so many rounds of a loop */
    {"gap", &wanted.gap, 0, 1u << 30, 200},
};

static struct pv_ticket_rules rules;
static struct pv_ticket_lock lock;
static DEFINE_RAW_SPINLOCK(stock_lock);
static struct yield_lock yielding_lock;
static struct pv_ticket_cpus cpus;
/* Of microslice_hints, while a run needs them. */
static typeof(microslice_not_now) *not_now;
static typeof(microslice_preempt_again) *preempt_again;
static struct task_struct *workers[TICKET_CPUS_MAX];
static bool ended, loaded;
static char result[512] = "{\"error\":\"nothing has run yet\"}";

/* Only the lock's holder touches these. */
static u64 overlaps, overtakings;
static u32 holder;
static u16 next_ticket;

static u32 random_below(u32 *state, u32 end)
{
	*state ^= *state << 13;
	*state ^= *state >> 17;
	*state ^= *state << 5;
	return end ? *state % end : 0;
}

static void spend(u32 rounds)
{
	while (rounds--)
		barrier();
}

static void hold_lock(u32 cpu, u32 rounds)
{
	overlaps += READ_ONCE(holder) != 0;
	WRITE_ONCE(holder, cpu + 1);
	spend(rounds);
	overlaps += READ_ONCE(holder) != cpu + 1;
	WRITE_ONCE(holder, 0);
}

static void take_yielding(u32 cpu, u32 rounds)
{
	yield_lock(&yielding_lock, &cpus.of[cpu], cpu, wanted.kind == SPIN_YIELD ? wanted.yield_spin_ns : 0);
	hold_lock(cpu, rounds);
	yield_unlock(&yielding_lock);
}

static void take_stock(u32 cpu, u32 rounds)
{
	raw_spin_lock(&stock_lock);
	hold_lock(cpu, rounds);
	cpus.of[cpu].taken++;
	raw_spin_unlock(&stock_lock);
}

static void take_ticket(u32 cpu, u32 rounds)
{
	u16 ticket;

	ticket = pv_ticket_lock(&rules, &lock, &cpus, cpu);
	overtakings += ticket != next_ticket;
	next_ticket = ticket + TICKET_STEP;
	hold_lock(cpu, rounds);
	pv_ticket_unlock(&rules, &lock, &cpus, cpu);
}

static void take_once(u32 cpu, u32 *random)
{
	u32 rounds = random_below(random, wanted.hold + 1), before = not_now ? not_now(wanted.hint) : 0;

	if (wanted.kind == STOCK)
		take_stock(cpu, rounds);
	else if (wanted.kind == YIELD || wanted.kind == SPIN_YIELD)
		take_yielding(cpu, rounds);
	else
		take_ticket(cpu, rounds);
	if (preempt_again)
		preempt_again(before);
}

static int work(void *argument)
{
	u32 cpu = (unsigned long)argument, random = get_random_u32() | 1;
	unsigned long flags;

	while (!READ_ONCE(ended)) {
		bool irqs_off = wanted.irqs == INTERRUPTS_OFF ||
				(wanted.irqs == INTERRUPTS_MIXED && random_below(&random, 2));

		preempt_disable();
		if (irqs_off)
			local_irq_save(flags);
		take_once(cpu, &random);
		if (irqs_off)
			local_irq_restore(flags);
		preempt_enable();
		spend(random_below(&random, wanted.gap + 1));
		cond_resched();
	}
	while (!kthread_should_stop())
		schedule_timeout_idle(1);
	return 0;
}

/* Kicks waiters that have halted although it is their turn; returns how many have. */
static u32 kick_again(void)
{
	u32 cpu, lost = 0;

	for (cpu = 0; cpu < TICKET_CPUS_MAX; cpu++) {
		struct pv_ticket_cpu *of = &cpus.of[cpu];

		if (READ_ONCE(of->lock) && ticket_is_turn(READ_ONCE(lock.head), READ_ONCE(of->want))) {
			pr_err("CPU %u has halted, and it is its turn\n", cpu);
			kick(cpu);
			lost++;
		}
	}
	return lost;
}

/* Until the time is over, or a signal has come; how many kicks were lost. */
static u32 watch(void)
{
	u64 end_ns = ktime_get_ns() + wanted.seconds * NSEC_PER_SEC, taken, seen = 0,
	    moved_ns = ktime_get_ns();
	u32 lost = 0;

	while (ktime_get_ns() < end_ns && !signal_pending(current)) {
		msleep_interruptible(LOOK_MS);
		taken = TICKET_SUM(&cpus, taken);
		if (taken != seen) {
			seen = taken;
			moved_ns = ktime_get_ns();
		} else if (ktime_get_ns() - moved_ns > STALL_MS * NSEC_PER_MSEC) {
			lost += kick_again();
			moved_ns = ktime_get_ns();
		}
	}
	return lost;
}

static int start_workers(u32 *count)
{
	u32 cpu;

	*count = 0;
	for_each_online_cpu(cpu)
	{
		struct task_struct *worker;

		if (wanted.cpus && *count == wanted.cpus)
			break;
		worker = kthread_create(work, (void *)(unsigned long)cpu, "microslice_lock/%u", cpu);
		if (IS_ERR(worker))
			return PTR_ERR(worker);
		kthread_bind(worker, cpu);
		workers[(*count)++] = worker;
	}
	return 0;
}

/* Until end_hints(). */
static int begin_hints(void)
{
	not_now = symbol_get(microslice_not_now);
	preempt_again = symbol_get(microslice_preempt_again);
	return not_now && preempt_again ? 0 : -ENOENT;
}

static void end_hints(void)
{
	if (not_now)
		symbol_put(microslice_not_now);
	if (preempt_again)
		symbol_put(microslice_preempt_again);
	not_now = NULL;
	preempt_again = NULL;
}

static int run(void)
{
	u32 count, i, lost;
	u64 began_ns;
	int error;

	rules = (struct pv_ticket_rules){.kind = wanted.kind % PV_TICKET_KINDS,
					 .queue_wait = wanted.queue_wait,
					 .wake_ahead = wanted.wake_ahead,
					 .spin = wanted.spin,
					 .spin_max = wanted.spin_max};
	memset(&cpus, 0, sizeof(cpus));
	memset(&lock, 0, sizeof(lock));
	memset(&yielding_lock, 0, sizeof(yielding_lock));
	overlaps = overtakings = holder = next_ticket = 0;
	ended = false;
	cpus_read_lock();
	error = start_workers(&count);
	began_ns = ktime_get_ns();
	for (i = 0; i < count; i++)
		wake_up_process(workers[i]);
	lost = watch();
	WRITE_ONCE(ended, true);
	for (i = 0; i < count; i++)
		kthread_stop(workers[i]);
	cpus_read_unlock();
	if (error)
		return error;
	scnprintf(
	    result, sizeof(result),
	    "{\"kind\":\"%s\",\"irqs\":\"%s\",\"cpus\":%u,\"elapsed_ns\":%llu,\"taken\":%llu,\"waited\":%lld,"
	    "\"halts\":%lld,\"kicks\":%lld,\"yields\":%lld,\"overlaps\":%llu,\"overtakings\":%llu,\"lost_"
	    "kicks\":%u}",
	    kinds[wanted.kind], interrupts[wanted.irqs], count, ktime_get_ns() - began_ns,
	    TICKET_SUM(&cpus, taken), wanted.kind == STOCK ? -1ll : TICKET_SUM(&cpus, waited),
	    wanted.kind == STOCK ? -1ll : TICKET_SUM(&cpus, halts),
	    wanted.kind == STOCK ? -1ll : TICKET_SUM(&cpus, kicks),
	    wanted.kind == STOCK ? -1ll : TICKET_SUM(&cpus, yields), overlaps, overtakings, lost);
	return 0;
}

static int refuse(const char *word, const char *cause)
{
	pr_err("run: \"%s\": %s\n", word, cause);
	scnprintf(result, sizeof(result), "{\"error\":\"%s\"}", cause);
	return -EINVAL;
}

static int read_word(char *word)
{
	char *value = word;
	char *name = strsep(&value, "=");
	u64 number;
	int at;
	size_t i;

	if (!value)
		return refuse(word, "not of the form NAME=VALUE");
	if (!strcmp(name, "kind") || !strcmp(name, "irqs")) {
		bool is_kind = !strcmp(name, "kind");

		at = is_kind ? match_string(kinds, ARRAY_SIZE(kinds), value)
			     : match_string(interrupts, ARRAY_SIZE(interrupts), value);
		if (at < 0)
			return refuse(value,
				      is_kind ? "not pv-ticket, oticket, iticket, yield, spin-yield or stock"
					      : "not on, off or mixed");
		*(is_kind ? &wanted.kind : &wanted.irqs) = at;
		return 0;
	}
	for (i = 0; i < ARRAY_SIZE(numbers); i++) {
		if (strcmp(name, numbers[i].name))
			continue;
		if (kstrtoull(value, 10, &number) || number < numbers[i].least || number > numbers[i].most)
			return refuse(name, "not a number, or out of its bounds");
		*numbers[i].value = number;
		return 0;
	}
	return refuse(name, "no such word; kind irqs seconds cpus spin spin-max queue-wait wake-ahead "
			    "yield-spin hint hold gap");
}

static int set_run(const char *text, const struct kernel_param *param)
{
	static char words[256];
	char *rest = words, *word;
	int error;
	size_t i;

	if (!loaded)
		return refuse("run", "nothing runs before the module is loaded");
	wanted.kind = PV_TICKET;
	wanted.irqs = INTERRUPTS_MIXED;
	for (i = 0; i < ARRAY_SIZE(numbers); i++)
		*numbers[i].value = numbers[i].by_default;
	if (strscpy(words, text, sizeof(words)) < 0)
		return refuse("", "too long");
	while ((word = strsep(&rest, " \n"))) {
		error = *word ? read_word(word) : 0;
		if (error)
			return error;
	}
	if ((wanted.kind == YIELD || wanted.kind == SPIN_YIELD) && !host_has(KVM_FEATURE_PV_SCHED_YIELD))
		return refuse(kinds[wanted.kind],
			      "no host here that takes yields (KVM_FEATURE_PV_SCHED_YIELD)");
	if (wanted.hint && begin_hints()) {
		end_hints();
		return refuse("hint", "microslice_hints isn't loaded");
	}
	error = run();
	end_hints();
	return error;
}

static int get_run(char *buffer, const struct kernel_param *param)
{
	return scnprintf(buffer, PAGE_SIZE, "%s\n", result);
}

static const struct kernel_param_ops run_ops = {.set = set_run, .get = get_run};
module_param_cb(run, &run_ops, NULL, 0600);
MODULE_PARM_DESC(run, "write: kind=… seconds=… cpus=…: runs it; read: what came of the last run");

static int __init microslice_locks_init(void)
{
	if (!host_has(KVM_FEATURE_PV_UNHALT)) {
		pr_err("no host here that kicks (KVM_FEATURE_PV_UNHALT): who halts for a lock would never "
		       "wake up\n");
		return -ENODEV;
	}
	if (nr_cpu_ids > TICKET_CPUS_MAX) {
		pr_err("%u CPUs are too many: at most %u\n", nr_cpu_ids, TICKET_CPUS_MAX);
		return -E2BIG;
	}
	loaded = true;
	return 0;
}

static void __exit microslice_locks_exit(void)
{
}

module_init(microslice_locks_init);
module_exit(microslice_locks_exit);
MODULE_LICENSE("GPL");
MODULE_DESCRIPTION(
    "Opportunistic ticket locks and their alternatives over KVM's kick and HLT: torture and benchmark");
MODULE_VERSION("0.1.0");
