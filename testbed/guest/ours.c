// SPDX-License-Identifier: GPL-2.0-only
/* Loads that are our own kernel modules (guest/): what they are told, and what they say of it. */
#define _GNU_SOURCE
#include "../../guest/hints/microslice_user.h"
#include "loads.h"
#include "stats.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#define PARAMETERS "/sys/module/microslice_balloon/parameters/"
#define CROWD_MAX 64
#define CROWD_ITERATIONS 20000
#define HINTS "/sys/module/microslice_hints/parameters/hints"
#define SAID 20
#define RUN_LOCKS "/sys/module/microslice_locks/parameters/run"

/* 0, or why the kernel refused it. */
static int load_our_module(const char *name, const char *parameters)
{
	char path[64];
	int fd, error;

	snprintf(path, sizeof(path), "/ours/%s.ko", name);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	leave_guest_once();
	error = fd < 0 || (syscall(SYS_finit_module, fd, parameters, 0) && errno != EEXIST) ? errno : 0;
	close(fd);
	return error;
}

static void write_text(const char *path, const char *text)
{
	int fd = open(path, O_WRONLY | O_CLOEXEC);

	if (fd < 0 || write(fd, text, strlen(text)) < 0)
		report("{\"error\":\"%s: %s\"}", path, strerror(errno));
	close(fd);
}

/* One run, and its line. */
static void run_locks(const char *name, const char *words, long seconds)
{
	char told[256], line[512] = "";
	ssize_t length;
	int fd;

	snprintf(told, sizeof(told), "%s seconds=%ld", words, seconds);
	write_text(RUN_LOCKS, told);
	fd = open(RUN_LOCKS, O_RDONLY | O_CLOEXEC);
	length = fd < 0 ? 0 : read(fd, line, sizeof(line) - 1);
	line[length > 0 ? length - 1 : 0] = 0;
	close(fd);
	report("{\"%s\":\"%s\",\"locks\":%s}", name, words, *line ? line : "null");
}

static int have_module(const char *name, const char *module)
{
	int error = load_our_module(module, "");

	if (error)
		report("{\"%s\":\"\",\"error\":\"/ours/%s.ko: %s\"}", name, module,
		       error == ENOEXEC ? "it was built for another kernel" : strerror(error));
	return !error;
}

/* The first line of a file, without its end. */
static void read_line(const char *path, char *line, size_t size)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t length = fd < 0 ? 0 : read(fd, line, size - 1);

	line[length > 0 ? length : 0] = 0;
	line[strcspn(line, "\n")] = 0;
	close(fd);
}

/* The greatest hint of a vCPU, as the module shows them. */
static unsigned int greatest_hint(void)
{
	char line[256];
	unsigned int greatest = 0;

	read_line(HINTS, line, sizeof(line));
	for (char *at = line; *at; at += strcspn(at, ","), at += *at == ',') {
		unsigned int hint = strtoul(at, NULL, 10);

		greatest = hint > greatest ? hint : greatest;
	}
	return greatest;
}

/* How often this thread was switched away from. */
static long switches(void)
{
	struct rusage usage = {0};

	getrusage(RUSAGE_THREAD, &usage);
	return usage.ru_nvcsw + usage.ru_nivcsw;
}

/*
 * What a program says by the module's device. Whoever has just said something may be switched away from. So
 * what is said is looked for more than once. And a sleep is no switch if its time is over before it begins.
 */
static void say_by_device(void)
{
	int file = open("/dev/microslice_hints", O_RDWR | O_CLOEXEC);
	int limit = ioctl(file, MICROSLICE_NOT_NOW, 1000000ul), seen = 0, given_back = 0, taken_back = 0,
	    switched = 0;
	long before;
	unsigned int left;

	for (int i = 0; i < SAID; i++) {
		ioctl(file, MICROSLICE_NOT_NOW, 50ul);
		seen += greatest_hint() == 50;
		ioctl(file, MICROSLICE_NOT_NOW, 40ul);
		given_back += ioctl(file, MICROSLICE_NOT_NOW, 0ul) == 40;
		ioctl(file, MICROSLICE_NOT_NOW, 30ul);
		before = switches();
		usleep(1000);
		if (switches() == before)
			continue;
		switched++;
		taken_back += !greatest_hint() && !ioctl(file, MICROSLICE_NOT_NOW, 0ul);
	}
	ioctl(file, MICROSLICE_NOT_NOW, 20ul);
	close(file);
	left = greatest_hint();
	report("{\"said\":{\"times\":%d,\"limit\":%d,\"seen\":%d,\"given_back\":%d,\"switched\":%d,"
	       "\"taken_back\":%d,\"left\":%u}}",
	       SAID, limit, seen, given_back, switched, taken_back, left);
}

/* They halt after a moment, so that halting and kicking are the rule, and hardly any lock is free. */
static void torture(long seconds)
{
	static const char *const runs[] = {
	    "kind=pv-ticket irqs=mixed spin=16 hold=300 gap=30",
	    "kind=oticket irqs=mixed spin=16 spin-max=64 queue-wait=4 wake-ahead=3 hold=300 gap=30",
	    "kind=iticket irqs=mixed spin=1 spin-max=64 hold=300 gap=30 hint=50",
	    "kind=yield irqs=mixed hold=300 gap=30 hint=50",
	    "kind=spin-yield irqs=mixed hold=300 gap=30 hint=50",
	};

	if (!have_module("torture", "microslice_hints") || !have_module("torture", "microslice_locks"))
		return;
	for (size_t i = 0; i < sizeof(runs) / sizeof(runs[0]); i++)
		run_locks("torture", runs[i], seconds);
	say_by_device();
}

/* The paper's spinning times; and, for the emulated CPU, a hundredth of them. */
static void locks(long seconds)
{
	static const char *const runs[] = {
	    "kind=stock",
	    "kind=pv-ticket",
	    "kind=pv-ticket spin=17179869184",
	    "kind=oticket",
	    "kind=iticket",
	    "kind=pv-ticket spin=327",
	    "kind=oticket spin=327 queue-wait=4",
	    "kind=iticket spin=327",
	    "kind=yield",
	    "kind=spin-yield",
	};

	if (!have_module("bench", "microslice_locks"))
		return;
	for (size_t i = 0; i < sizeof(runs) / sizeof(runs[0]); i++) {
		char words[128];

		snprintf(words, sizeof(words), "irqs=on hold=2000 gap=2000 %s", runs[i]);
		run_locks("bench", words, seconds);
	}
}

void load_torture(int seconds)
{
	start_thread(torture, seconds, -1);
}

void load_locks(int seconds)
{
	start_thread(locks, seconds, -1);
}

#define COUNTS "/sys/module/microslice_spinlocks/parameters/counts"
#define FUTEX_LOCKS_PER_ROUND 16
static uint64_t files, builds, futex_locks;

/* All of them in one directory: names come, change and go. */
static void make_files(long number)
{
	char one[32], other[32];

	snprintf(one, sizeof(one), "/tmp/a-%ld", number);
	snprintf(other, sizeof(other), "/tmp/b-%ld", number);
	for (;;) {
		close(open(one, O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
		rename(one, other);
		unlink(other);
		__atomic_fetch_add(&files, 1, __ATOMIC_RELAXED);
	}
}

static void build(long number)
{
	while (build_once(number))
		__atomic_fetch_add(&builds, 1, __ATOMIC_RELAXED);
	report("{\"error\":\"a process to build with\"}");
}

static void take_futex_lock(long argument)
{
	(void)argument;
	for (;;) {
		for (int i = 0; i < FUTEX_LOCKS_PER_ROUND; i++)
			lock_once();
		__atomic_fetch_add(&futex_locks, FUTEX_LOCKS_PER_ROUND, __ATOMIC_RELAXED);
	}
}

static void torture_stock(long seconds)
{
	run_locks("torture", "kind=stock irqs=mixed hold=300 gap=3000", seconds);
}

/* What was done in so many seconds, with the module's counts if it is there. */
static void watch_spinlocks(const char *phase, long seconds)
{
	uint64_t files_before = files, builds_before = builds, locks_before = futex_locks;
	char counts[256];

	sleep(seconds);
	read_line(COUNTS, counts, sizeof(counts));
	report("{\"spinlocks\":\"%s\",\"files\":%lu,\"builds\":%lu,\"futex_locks\":%lu,\"counts\":%s}", phase,
	       files - files_before, builds - builds_before, futex_locks - locks_before,
	       *counts ? counts : "null");
}

/* The kernel's own spinlocks with the module and without, by turns: it comes and goes under load. */
static void spinlocks(long seconds)
{
	static const char *const phases[] = {
	    "queue_wait=4 wake_ahead=3 spin=16 spin_max=64",
	    "",
	    "queue_wait=4 wake_ahead=3 spin=16 spin_max=64 mixed=3",
	};
	int error;

	if (!have_module("spinlocks", "microslice_locks"))
		return;
	start_thread(torture_stock, (2 * sizeof(phases) / sizeof(phases[0]) + 1) * seconds, -1);
	watch_spinlocks("out", seconds);
	for (size_t i = 0; i < sizeof(phases) / sizeof(phases[0]); i++) {
		error = load_our_module("microslice_spinlocks", phases[i]);
		if (error)
			report("{\"error\":\"microslice_spinlocks: %s\"}", strerror(error));
		watch_spinlocks("in", seconds);
		if (syscall(SYS_delete_module, "microslice_spinlocks", O_NONBLOCK))
			report("{\"error\":\"microslice_spinlocks stays: %s\"}", strerror(errno));
		watch_spinlocks("out", seconds);
	}
}

void load_spinlocks(int seconds)
{
	void (*const loads[])(long) = {make_files, build, take_futex_lock};
	int vcpus = sysconf(_SC_NPROCESSORS_ONLN);

	for (int i = 0; i < vcpus; i++)
		start_thread(loads[i % 3], i, i);
	start_thread(spinlocks, seconds, -1);
}

static struct {
	int vcpu;
	uint64_t work;
} crowd[CROWD_MAX];
static int crowd_size;

static void one_of_crowd(long at)
{
	for (;;) {
		compute(CROWD_ITERATIONS);
		__atomic_store_n(&crowd[at].vcpu, sched_getcpu(), __ATOMIC_RELAXED);
		__atomic_fetch_add(&crowd[at].work, 1, __ATOMIC_RELAXED);
	}
}

/* Every 200 ms: threads and work of each of the first two vCPUs, and what the balloon module says of them. */
static void watch_crowd(long argument)
{
	(void)argument;
	for (;;) {
		char shares[128], balloons[128];
		int threads[2] = {0};
		uint64_t work = 0;

		usleep(200000);
		for (int i = 0; i < crowd_size; i++) {
			threads[__atomic_load_n(&crowd[i].vcpu, __ATOMIC_RELAXED) & 1]++;
			work += __atomic_exchange_n(&crowd[i].work, 0, __ATOMIC_RELAXED);
		}
		read_line(PARAMETERS "shares", shares, sizeof(shares));
		read_line(PARAMETERS "balloons", balloons, sizeof(balloons));
		report("{\"crowd\":[%d,%d],\"work\":%lu,\"shares\":[%s],\"balloons\":[%s]}", threads[0],
		       threads[1], work, shares, balloons);
	}
}

void load_crowd(int count)
{
	crowd_size = count < CROWD_MAX ? count : CROWD_MAX;
	for (int i = 0; i < crowd_size; i++)
		start_thread(one_of_crowd, i, -1);
	start_thread(watch_crowd, 0, -1);
}

/* What the host took of the first vCPU so far, in seconds; the eighth number of its line (proc_stat(5)). */
static double stolen_s(void)
{
	unsigned long ticks = 0;
	FILE *file = fopen("/proc/stat", "re");

	if (!file)
		return 0;
	if (fscanf(file, "cpu %*[^\n] cpu0 %*u %*u %*u %*u %*u %*u %*u %lu", &ticks) != 1)
		ticks = 0;
	fclose(file);
	return (double)ticks / sysconf(_SC_CLK_TCK);
}

static void balloons(long seconds)
{
	int error;

	while (stolen_s() < seconds)
		usleep(100000);
	error = load_our_module("microslice_balloon", "");
	if (error)
		report("{\"error\":\"/ours/microslice_balloon.ko: %s\"}",
		       error == ENOEXEC ? "it was built for another kernel" : strerror(error));
}

void load_balloons(int seconds)
{
	start_thread(balloons, seconds, -1);
}
