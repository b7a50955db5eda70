// SPDX-License-Identifier: GPL-2.0-only
/*
 * The guest's locks among threads of a program: a thread is a CPU, to halt is to sleep until kicked.
 *
 *   torture KIND THREADS SECONDS [SEED]
 *
 * Prints one line of JSON. Ends with 1 if two held a lock at once, if one overtook, or if nothing moved for
 * ten seconds, as after a lost kick.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

typedef uint16_t u16;
typedef uint32_t u32;
typedef uint64_t u64;

static void halt(void);
static void kick(u32 cpu);
static u64 now_ns(void);

#include "../locks/access.h"
#define LOCK_PAUSE() __builtin_ia32_pause()
#define LOCK_SPIN() sched_yield()
#define LOCK_WORD(lock) (&(lock)->val)
#define LOCK_EXCHANGE(p, value) __atomic_exchange_n(p, value, __ATOMIC_SEQ_CST)
#define LOCK_BEGIN_WAIT() 0
#define LOCK_END_WAIT(before) ((void)(before))
#define LOCK_HALT(before) ((void)(before), halt())
#define LOCK_KICK(cpu) kick(cpu)
#define LOCK_NOW_NS() now_ns()
#define LOCK_YIELD(cpu) ((void)(cpu), sched_yield())
#include "../locks/pv_ticket.h"
#include "../locks/yield_lock.h"
#define THREADS_MAX 64
#include "kernel_waiters.h"

#define STALL_SECONDS 10

enum { YIELD = PV_TICKET_KINDS, SPIN_YIELD, LINE, KINDS };
static const char *const kinds[KINDS] = {"pv-ticket", "oticket", "iticket", "yield", "spin-yield", "line"};
static int kind_wanted;

/* A kick that comes before the halt ends that at once, as KVM's does. */
static struct {
	pthread_mutex_t mutex;
	pthread_cond_t condition;
	int kicked;
} halts[THREADS_MAX];

/* Short times, so that halting is the rule. */
static struct pv_ticket_rules rules = {.queue_wait = 3, .wake_ahead = 2, .spin = 4, .spin_max = 64};
static struct pv_ticket_lock lock;
static struct yield_lock yielding_lock;
static struct qspinlock word;
static struct lock_line lines[LINES];
static struct pv_ticket_cpus cpus;
static __thread u32 this_cpu;
static int ended;

/* Only the holder touches these. */
static u64 held, overlaps, overtakings;
static volatile u32 holder; /* else the compiler knows that only one writes it */
static u16 next_ticket;

static u64 now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000000000ull + now.tv_nsec;
}

static void halt(void)
{
	pthread_mutex_lock(&halts[this_cpu].mutex);
	while (!halts[this_cpu].kicked)
		pthread_cond_wait(&halts[this_cpu].condition, &halts[this_cpu].mutex);
	halts[this_cpu].kicked = 0;
	pthread_mutex_unlock(&halts[this_cpu].mutex);
}

static void kick(u32 cpu)
{
	pthread_mutex_lock(&halts[cpu].mutex);
	halts[cpu].kicked = 1;
	pthread_cond_signal(&halts[cpu].condition);
	pthread_mutex_unlock(&halts[cpu].mutex);
}

static u32 random_below(u32 *state, u32 end)
{
	*state ^= *state << 13;
	*state ^= *state >> 17;
	*state ^= *state << 5;
	return *state % end;
}

static void hold(u32 *random, u16 ticket)
{
	overlaps += holder != 0;
	holder = this_cpu + 1;
	overtakings += ticket != next_ticket;
	next_ticket = ticket + TICKET_STEP;
	for (volatile u32 left = random_below(random, 50); left; left--)
		;
	if (!random_below(random, 64))
		sched_yield(); /* a holder that is preempted */
	overlaps += holder != this_cpu + 1;
	holder = 0;
	__atomic_store_n(&held, held + 1, __ATOMIC_RELAXED);
}

/* Two of three wait as the kernel has it, every other time. */
static void take_word(void)
{
	static __thread u32 times;
	u32 as_kernel = this_cpu % 3 && ++times % 2;

	if (!LOCK_COMPARE_SWAP(&word.val, 0, WORD_LOCKED) &&
	    (as_kernel || !line_lock(&rules, lines, &cpus, this_cpu, &word)))
		kernel_lock_slow(&word, this_cpu);
}

static void hold_once(u32 *random)
{
	if (kind_wanted < PV_TICKET_KINDS) {
		hold(random, pv_ticket_lock(&rules, &lock, &cpus, this_cpu));
		pv_ticket_unlock(&rules, &lock, &cpus, this_cpu);
		return;
	}
	/* Nobody has a place in line, or nobody knows it. */
	if (kind_wanted == LINE) {
		take_word();
		hold(random, next_ticket);
		kernel_unlock(&word);
		return;
	}
	yield_lock(&yielding_lock, &cpus.of[this_cpu], this_cpu,
		   kind_wanted == SPIN_YIELD ? YIELD_SPIN_NS : 0);
	hold(random, next_ticket);
	yield_unlock(&yielding_lock);
}

static void *run(void *argument)
{
	u32 random;

	this_cpu = (uintptr_t)argument;
	random = 2654435769u * (this_cpu + 1) ^ next_ticket;
	while (!__atomic_load_n(&ended, __ATOMIC_RELAXED)) {
		hold_once(&random);
		for (volatile u32 left = random_below(&random, 100); left; left--)
			;
	}
	return NULL;
}

static int stalled;

/* Until the time is over, or nothing moves any more. */
static void watch(double seconds)
{
	struct timespec pause = {.tv_nsec = 50000000};
	u64 seen = 0, now;
	int same = 0;

	for (double passed = 0; passed < seconds; passed += 0.05) {
		nanosleep(&pause, NULL);
		now = __atomic_load_n(&held, __ATOMIC_RELAXED);
		same = now == seen ? same + 1 : 0;
		seen = now;
		if (same * 0.05 > STALL_SECONDS) {
			stalled = 1;
			return;
		}
	}
}

int main(int argc, char **argv)
{
	pthread_t ids[THREADS_MAX];
	u32 threads = argc > 3 ? atoi(argv[2]) : 0;

	for (int kind = 0; argc > 3 && kind < KINDS; kind++)
		kind_wanted = strcmp(kinds[kind], argv[1]) ? kind_wanted : kind;
	rules.kind = kind_wanted < PV_TICKET_KINDS ? (enum pv_ticket_kind)kind_wanted : PV_OTICKET;
	if (argc < 4 || threads < 1 || threads > THREADS_MAX || strcmp(kinds[kind_wanted], argv[1])) {
		fprintf(
		    stderr,
		    "usage: torture pv-ticket|oticket|iticket|yield|spin-yield|line THREADS SECONDS [SEED]   "
		    "(1 to %d threads)\n",
		    THREADS_MAX);
		return 2;
	}
	/* Tickets wrap around soon after the start. */
	lock.head = lock.tail = next_ticket = (u16)(argc > 4 ? atoi(argv[4]) : 0) * TICKET_STEP;
	for (u32 cpu = 0; cpu < threads; cpu++) {
		pthread_mutex_init(&halts[cpu].mutex, NULL);
		pthread_cond_init(&halts[cpu].condition, NULL);
	}
	for (u32 cpu = 0; cpu < threads; cpu++)
		pthread_create(&ids[cpu], NULL, run, (void *)(uintptr_t)cpu);
	watch(atof(argv[3]));
	__atomic_store_n(&ended, 1, __ATOMIC_RELAXED);
	for (u32 cpu = 0; !stalled && cpu < threads; cpu++)
		pthread_join(ids[cpu], NULL);
	printf("{\"kind\":\"%s\",\"threads\":%u,\"taken\":%lu,\"waited\":%lu,\"halts\":%lu,\"kicks\":%lu,"
	       "\"yields\":%lu,"
	       "\"overlaps\":%lu,\"overtakings\":%lu,\"stalled\":%s}\n",
	       argv[1], threads, TICKET_SUM(&cpus, taken), TICKET_SUM(&cpus, waited),
	       TICKET_SUM(&cpus, halts), TICKET_SUM(&cpus, kicks), TICKET_SUM(&cpus, yields), overlaps,
	       overtakings, stalled ? "true" : "false");
	return overlaps || overtakings || stalled || kernel_fault;
}
