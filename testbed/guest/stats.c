// SPDX-License-Identifier: GPL-2.0-only
#include "stats.h"

#include <cpuid.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

static const char *const latency_names[LATENCY_KINDS] = {"shootdown", "lock", "wake", "pingpong"};
static const char *const work_names[WORK_KINDS] = {"worker", "hog"};

static struct {
	_Atomic uint64_t buckets[BUCKETS];
	_Atomic uint64_t max_ns;
} latencies[LATENCY_KINDS];

/* A cache line each: hogs on all vCPUs count often. */
static struct {
	_Atomic uint64_t amount;
	char pad[56];
} works[WORK_KINDS];

static int report_fd = STDOUT_FILENO;

uint64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000000000ULL + now.tv_nsec;
}

void leave_guest_once(void)
{
	unsigned int a, b, c, d;

	__cpuid(0, a, b, c, d);
}

static unsigned int bucket_of(uint64_t value)
{
	unsigned int octave;

	if (value < 8)
		return value;
	octave = 63 - __builtin_clzll(value);
	return 8 * (octave - 2) + ((value >> (octave - 3)) & 7);
}

void count_latency(enum latency kind, uint64_t ns)
{
	uint64_t max_ns = atomic_load_explicit(&latencies[kind].max_ns, memory_order_relaxed);

	atomic_fetch_add_explicit(&latencies[kind].buckets[bucket_of(ns)], 1, memory_order_relaxed);
	while (ns > max_ns && !atomic_compare_exchange_weak(&latencies[kind].max_ns, &max_ns, ns))
		;
}

void count_work(enum work kind, uint64_t amount)
{
	atomic_fetch_add_explicit(&works[kind].amount, amount, memory_order_relaxed);
}

void report_window(void)
{
	static uint64_t window, began_ns;
	static char line[65536];
	uint64_t ended_ns = now_ns();
	size_t at = 0;

#define PRINT(...) (at += snprintf(line + at, at < sizeof(line) ? sizeof(line) - at : 0, __VA_ARGS__))
	PRINT("{\"window\":%lu,\"length_ns\":%lu,\"work\":{", window++, began_ns ? ended_ns - began_ns : 0);
	began_ns = ended_ns;
	for (int kind = 0; kind < WORK_KINDS; kind++)
		PRINT("%s\"%s\":%lu", kind ? "," : "", work_names[kind],
		      atomic_exchange(&works[kind].amount, 0));
	PRINT("},\"latency\":{");
	for (int kind = 0; kind < LATENCY_KINDS; kind++) {
		const char *separator = "";

		PRINT("%s\"%s\":{\"max_ns\":%lu,\"buckets\":[", kind ? "," : "", latency_names[kind],
		      atomic_exchange(&latencies[kind].max_ns, 0));
		for (int bucket = 0; bucket < BUCKETS; bucket++) {
			uint64_t count = atomic_exchange(&latencies[kind].buckets[bucket], 0);

			if (!count)
				continue;
			PRINT("%s[%d,%lu]", separator, bucket, count);
			separator = ",";
		}
		PRINT("]}");
	}
	PRINT("}}");
#undef PRINT
	if (at < sizeof(line))
		report("%s", line);
}

void report_to(int fd)
{
	report_fd = fd;
}

void report(const char *format, ...)
{
	static pthread_mutex_t one_line_at_a_time = PTHREAD_MUTEX_INITIALIZER;
	static char line[65600];
	va_list arguments;
	int length;

	pthread_mutex_lock(&one_line_at_a_time);
	va_start(arguments, format);
	length = vsnprintf(line, sizeof(line) - 1, format, arguments);
	va_end(arguments);
	line[length++] = '\n';
	for (int at = 0; at < length;) {
		ssize_t n;

		leave_guest_once();
		n = write(report_fd, line + at, length - at);

		if (n <= 0)
			break; /* nobody listens any more */
		at += n;
	}
	pthread_mutex_unlock(&one_line_at_a_time);
}
