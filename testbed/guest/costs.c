// SPDX-License-Identifier: GPL-2.0-only
/*
 * What single operations take: for the simulator's model of this machine.
 *
 * Means of a second each, while every vCPU computes. So an emulated CPU has the part of the machine that it
 * has in any busy phase. A median would not show that part: most operations are over within a tick.
 */
#define _GNU_SOURCE
#include "loads.h"
#include "stats.h"

#include <linux/membarrier.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

/* Each is done for so long: many ticks of the machine below. */
#define NS_EACH 1000000000UL
/* The clock is read after so many. */
#define BATCH 16
#define SWITCHES 2000

static uint64_t mean_of(void (*operation)(void))
{
	uint64_t start = now_ns(), took, times = 0;

	do {
		for (int i = 0; i < BATCH; i++)
			operation();
		times += BATCH;
		took = now_ns() - start;
	} while (took < NS_EACH);
	return took / times;
}

static void compute_once(void)
{
	compute(WORKER_ITERATIONS);
}

/* Interrupts each sibling that runs a thread of this process, and waits for all. */
static void call_once(void)
{
	syscall(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0);
}

static void spin(long argument)
{
	(void)argument;
	for (;;)
		compute(WORKER_ITERATIONS);
}

/*
 * In a process of its own, with `siblings` busy threads on as many other vCPUs: what calling them takes; 0
 * siblings: what the rest takes.
 */
static void measure_with(int siblings)
{
	syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, 0, 0);
	for (int i = 1; i <= siblings; i++)
		start_thread(spin, 0, i);
	/* They are there. */
	usleep(500000);
	if (siblings) {
		report("{\"cost\":\"call\",\"siblings\":%d,\"ns\":%lu}", siblings, mean_of(call_once));
		return;
	}
	report("{\"cost\":\"exit\",\"ns\":%lu}", mean_of(leave_guest_once));
	report("{\"cost\":\"compute\",\"ns\":%lu}", mean_of(compute_once));
	report("{\"cost\":\"lock\",\"ns\":%lu}", mean_of(lock_once));
	report("{\"cost\":\"unmap\",\"ns\":%lu}", mean_of(unmap_once));
}

static void in_child(int vcpus, int siblings)
{
	pid_t others = fork(), child;

	if (!others) {
		/* Another process keeps busy the vCPUs that the measured one leaves out. */
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		for (int i = siblings + 1; i < vcpus; i++)
			start_thread(spin, 0, i);
		for (;;)
			pause();
	}
	child = fork();
	if (!child) {
		stay_on(0);
		measure_with(siblings);
		_exit(0);
	}
	waitpid(child, NULL, 0);
	kill(others, SIGKILL);
	waitpid(others, NULL, 0);
}

void load_costs(int vcpus)
{
	in_child(vcpus, 0);
	in_child(vcpus, 1);
	in_child(vcpus, vcpus - 1);
	report("{\"cost\":\"end\"}");
}

/* Two processes wake each other over pipes on one CPU: each time it switches. Returns ns per switch. */
static uint64_t ns_per_switch(int cpu)
{
	int there[2], back[2];
	char byte = 0;
	uint64_t start;
	pid_t child;

	stay_on(cpu);
	if (pipe(there) || pipe(back))
		return 0;
	child = fork();
	if (!child) {
		for (int i = 0; i < SWITCHES; i++)
			if (read(there[0], &byte, 1) != 1 || write(back[1], &byte, 1) != 1)
				_exit(1);
		_exit(0);
	}
	start = now_ns();
	for (int i = 0; i < SWITCHES; i++)
		if (write(there[1], &byte, 1) != 1 || read(back[0], &byte, 1) != 1)
			break;
	start = now_ns() - start;
	waitpid(child, NULL, 0);
	return start / (2 * SWITCHES);
}

/* On every CPU at once, so that each has its part of the machine. */
int measure_switches(void)
{
	int cpus = sysconf(_SC_NPROCESSORS_ONLN);

	for (int cpu = 1; cpu < cpus; cpu++)
		if (!fork()) {
			ns_per_switch(cpu);
			_exit(0);
		}
	printf("{\"cost\":\"switch\",\"ns\":%lu}\n", ns_per_switch(0));
	while (wait(NULL) > 0)
		;
	return 0;
}
