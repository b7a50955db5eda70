// SPDX-License-Identifier: GPL-2.0-only
/*
 * Faults of a host that a shell can't make, and the witness of what they do to others
 * (crates/testbed/src/campaign).
 *
 *   faults real-time PRIORITY MS     computes as SCHED_FIFO for so long, then ends: a stop may wait for it
 *   faults memory LEAVE_MIB SECONDS  takes all available memory but that much, holds it for so long, and ends
 *   faults witness                   wakes ten times a second, in four threads. Each second it prints the
 *                                    longest wait of one for a pCPU, in microseconds: "waited 120"
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define NS_PER_S 1000000000L
#define MIB (1024L * 1024)
#define CHUNK (4 * MIB)
#define PAGE 4096
#define WITNESSES 4
#define NAP_NS (NS_PER_S / 10)
/* Some milliseconds of an emulated CPU. */
#define WORK 20000

static long longest_ns[WITNESSES];

static long now_ns(clockid_t clock)
{
	struct timespec now;

	clock_gettime(clock, &now);
	return now.tv_sec * NS_PER_S + now.tv_nsec;
}

static int real_time(int priority, long ms)
{
	const struct sched_param parameters = {.sched_priority = priority};
	const long end = now_ns(CLOCK_MONOTONIC) + ms * (NS_PER_S / 1000);

	if (sched_setscheduler(0, SCHED_FIFO, &parameters)) {
		perror("real-time");
		return 1;
	}
	while (now_ns(CLOCK_MONOTONIC) < end)
		;
	return 0;
}

static long available_mib(void)
{
	FILE *file = fopen("/proc/meminfo", "re");
	char line[128];
	long kib = 0;

	while (file && fgets(line, sizeof(line), file))
		if (sscanf(line, "MemAvailable: %ld", &kib) == 1)
			break;
	if (file)
		fclose(file);
	return kib / 1024;
}

/* If memory runs out it shall be this process that goes. */
static void volunteer(void)
{
	FILE *file = fopen("/proc/self/oom_score_adj", "we");

	if (file) {
		fputs("1000", file);
		fclose(file);
	}
}

static int memory(long leave_mib, long seconds)
{
	volunteer();
	while (available_mib() > leave_mib) {
		char *chunk = mmap(NULL, CHUNK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

		if (chunk == MAP_FAILED)
			break;
		for (long at = 0; at < CHUNK; at += PAGE)
			chunk[at] = 1;
	}
	sleep(seconds);
	return 0;
}

/*
 * It waited from when its nap was over to when it ran, and, while it worked, for all time that it didn't run.
 */
static void *watch(void *argument)
{
	long *longest = argument, due = now_ns(CLOCK_MONOTONIC);

	for (;;) {
		struct timespec until;
		long woke, ran, waited;

		due += NAP_NS;
		until = (struct timespec){.tv_sec = due / NS_PER_S, .tv_nsec = due % NS_PER_S};
		clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL);
		woke = now_ns(CLOCK_MONOTONIC);
		ran = now_ns(CLOCK_THREAD_CPUTIME_ID);
		waited = woke - due;
		for (volatile int n = 0; n < WORK; n++)
			;
		ran = now_ns(CLOCK_THREAD_CPUTIME_ID) - ran;
		due = now_ns(CLOCK_MONOTONIC);
		if (due - woke - ran > waited)
			waited = due - woke - ran;
		if (waited > __atomic_load_n(longest, __ATOMIC_RELAXED))
			__atomic_store_n(longest, waited, __ATOMIC_RELAXED);
	}
	return NULL;
}

static int witness(void)
{
	pthread_t thread;

	for (int n = 0; n < WITNESSES; n++)
		if (pthread_create(&thread, NULL, watch, &longest_ns[n]))
			return 1;
	for (;;) {
		long longest = 0;

		sleep(1);
		for (int n = 0; n < WITNESSES; n++) {
			const long one = __atomic_exchange_n(&longest_ns[n], 0, __ATOMIC_RELAXED);

			longest = one > longest ? one : longest;
		}
		printf("waited %ld\n", longest / 1000);
		fflush(stdout);
	}
}

int main(int count, char **words)
{
	if (count == 4 && !strcmp(words[1], "real-time"))
		return real_time(atoi(words[2]), atol(words[3]));
	if (count == 4 && !strcmp(words[1], "memory"))
		return memory(atol(words[2]), atol(words[3]));
	if (count == 2 && !strcmp(words[1], "witness"))
		return witness();
	fputs("usage: faults real-time PRIORITY MS | memory LEAVE_MIB SECONDS | witness\n", stderr);
	return 2;
}
