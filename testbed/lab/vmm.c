// SPDX-License-Identifier: GPL-2.0-only
/*
 * The lab's VMM: a VM that runs the lab's guest (guest.c), and reports what it measures.
 *
 * Its arguments are KEY=VALUE: load (compute, ticket, queued, user, calls, sleep, claims), vcpus, compute and
 * hold (turns of a loop), listed (0: it holds locks in a function that nobody knows), lies (1: it always says
 * that it holds something), sleep-us, window-ms. It says "ready" once all vCPUs run, then writes a line of
 * JSON for each window, as the testbed's guests do. Its one argument "symbols" prints the guest's System.map.
 */
#include "lab.h"
#include "machine.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/kvm.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

extern const unsigned char guest_image[], guest_image_end[];
extern const char guest_symbols[], guest_symbols_end[];

static const char *const loads[LAB_LOADS] = {"compute", "ticket", "queued", "user",
					     "calls",	"sleep",  "claims"};
static const char *const latencies[LAB_LATENCIES] = {"lock", "shootdown", "wake"};

static int kvm, vm;
static unsigned char *memory;
static struct lab_shared *shared;

/* This machine can't run it. */
static void die(const char *what)
{
	fprintf(stderr, "lab: %s: %s\n", what, strerror(errno));
	_exit(2);
}

static uint64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000000000ul + now.tv_nsec;
}

/* ---- vCPUs ---- */

/* It asks for a halt. Not if an interrupt of its timer was taken since it looked: it says how many were. */
static void halt(int vcpu, const struct kvm_run *run, unsigned long id)
{
	struct kvm_mp_state halted = {.mp_state = KVM_MP_STATE_HALTED};
	uint32_t seen;

	memcpy(&seen, run->mmio.data, sizeof(seen));
	if ((uint32_t)shared->vcpus[id].timers_taken == seen && ioctl(vcpu, KVM_SET_MP_STATE, &halted))
		die("a halt");
}

static void *run_vcpu(void *argument)
{
	unsigned long id = (unsigned long)argument;
	int vcpu = ioctl(vm, KVM_CREATE_VCPU, id), bytes = ioctl(kvm, KVM_GET_VCPU_MMAP_SIZE, 0);
	struct kvm_run *run;
	char name[16];

	snprintf(name, sizeof(name), "CPU %lu/KVM", id);
	prctl(PR_SET_NAME, name);
	if (vcpu < 0 || bytes < 0)
		die("KVM_CREATE_VCPU");
	run = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, vcpu, 0);
	if (run == MAP_FAILED || prepare_vcpu(vcpu, id, shared->load == LAB_USER_LOCK))
		die("a vCPU's state");
	for (;;) {
		if (ioctl(vcpu, KVM_RUN, 0) && errno != EINTR)
			die("KVM_RUN");
		if (run->exit_reason != KVM_EXIT_MMIO || run->mmio.phys_addr != LAB_DOOR) {
			struct kvm_regs regs = {};

			ioctl(vcpu, KVM_GET_REGS, &regs);
			fprintf(stderr, "lab: vCPU %lu ended at %#llx: exit reason %u, suberror %u\n", id,
				regs.rip, run->exit_reason, run->internal.suberror);
			_exit(1);
		}
		halt(vcpu, run, id);
	}
	return NULL;
}

static void start_vm(void)
{
	struct kvm_userspace_memory_region region = {.memory_size = LAB_MEMORY,
						     .userspace_addr = (unsigned long)memory};

	kvm = open("/dev/kvm", O_RDWR | O_CLOEXEC);
	if (kvm < 0)
		die("/dev/kvm");
	vm = ioctl(kvm, KVM_CREATE_VM, 0);
	if (vm < 0 || ioctl(vm, KVM_SET_USER_MEMORY_REGION, &region) || ioctl(vm, KVM_CREATE_IRQCHIP, 0))
		die("KVM_CREATE_VM");
	memcpy(memory, guest_image, guest_image_end - guest_image);
	write_page_tables(memory);
	for (unsigned long id = 0; id < shared->vcpu_count; id++) {
		pthread_t thread;

		write_descriptors(memory, id);
		if (pthread_create(&thread, NULL, run_vcpu, (void *)id))
			die("pthread_create");
	}
}

/* ---- Windows ---- */

static uint64_t take(volatile uint64_t *counter, uint64_t *before)
{
	uint64_t now = *counter, since = now - *before;

	*before = now;
	return since;
}

/* The middle of a bucket of ticks, in nanoseconds' buckets of the same shape. */
static unsigned int bucket_in_ns(unsigned int bucket)
{
	uint64_t ticks = bucket < 8 ? bucket : (8ul + bucket % 8) << (bucket / 8 - 1);
	uint64_t ns = bucket / 8 > 40 ? ~0ul >> 1 : ticks * 1000 / shared->ticks_per_us;
	unsigned int octave;

	if (ns < 8)
		return ns;
	octave = 63 - __builtin_clzl(ns);
	return 8 * (octave - 2) + ((ns >> (octave - 3)) & 7);
}

static void print_latency(enum lab_latency kind)
{
	static uint64_t before[LAB_LATENCIES][LAB_VCPUS_MAX][LAB_BUCKETS];
	uint64_t counts[LAB_BUCKETS] = {}, max = 0;
	const char *separator = "";

	for (unsigned int id = 0; id < shared->vcpu_count; id++) {
		struct lab_vcpu *vcpu = &shared->vcpus[id];
		uint64_t longest = __atomic_exchange_n(&vcpu->max[kind], 0, __ATOMIC_RELAXED);

		max = longest > max ? longest : max;
		for (unsigned int bucket = 0; bucket < LAB_BUCKETS; bucket++)
			counts[bucket_in_ns(bucket)] +=
			    take(&vcpu->latency[kind][bucket], &before[kind][id][bucket]);
	}
	printf("%s\"%s\":{\"max_ns\":%lu,\"buckets\":[", kind ? "," : "", latencies[kind],
	       max * 1000 / shared->ticks_per_us);
	for (unsigned int bucket = 0; bucket < LAB_BUCKETS; bucket++) {
		if (!counts[bucket])
			continue;
		printf("%s[%u,%lu]", separator, bucket, counts[bucket]);
		separator = ",";
	}
	printf("]}");
}

static void print_window(uint64_t window, uint64_t length_ns)
{
	static uint64_t before[LAB_VCPUS_MAX];
	uint64_t work = 0;

	for (unsigned int id = 0; id < shared->vcpu_count; id++)
		work += take(&shared->vcpus[id].work, &before[id]);
	printf("{\"window\":%lu,\"length_ns\":%lu,\"work\":{\"worker\":%lu},\"latency\":{", window, length_ns,
	       work);
	for (enum lab_latency kind = 0; kind < LAB_LATENCIES; kind++)
		print_latency(kind);
	puts("}}");
	fflush(stdout);
}

/* ---- Arguments ---- */

static uint64_t ticks_per_us(void)
{
	uint64_t began = now_ns(), ticks = __builtin_ia32_rdtsc();

	usleep(10000);
	return (__builtin_ia32_rdtsc() - ticks) * 1000 / (now_ns() - began);
}

static void refuse(const char *argument, const char *why)
{
	fprintf(stderr, "lab: %s: %s\n", argument, why);
	exit(2);
}

static void take_argument(const char *argument, uint64_t *window_ms)
{
	const struct {
		const char *key;
		uint64_t *value, least, most;
	} numbers[] = {
	    {"vcpus", &shared->vcpu_count, 1, LAB_VCPUS_MAX},
	    {"compute", &shared->compute, 0, 1000000000},
	    {"hold", &shared->hold, 0, 1000000000},
	    {"listed", &shared->is_listed, 0, 1},
	    {"lies", &shared->lies, 0, 1},
	    {"sleep-us", &shared->sleep_us, 1, 1000000},
	    {"window-ms", window_ms, 10, 1000000},
	};
	const char *value = strchr(argument, '=');
	size_t length = value ? value - argument : 0;
	char *end;

	if (!value)
		refuse(argument, "must be KEY=VALUE");
	value++;
	if (length == 4 && !strncmp(argument, "load", length)) {
		for (shared->load = 0; shared->load < LAB_LOADS; shared->load++)
			if (!strcmp(loads[shared->load], value))
				return;
		refuse(argument, "must be compute, ticket, queued, user, calls, sleep or claims");
	}
	for (size_t at = 0; at < sizeof(numbers) / sizeof(numbers[0]); at++) {
		if (length != strlen(numbers[at].key) || strncmp(argument, numbers[at].key, length))
			continue;
		errno = 0;
		*numbers[at].value = strtoul(value, &end, 10);
		if (errno || *end || end == value || *value == '-' ||
		    *numbers[at].value < numbers[at].least || *numbers[at].value > numbers[at].most)
			refuse(argument, "no number, or out of range");
		return;
	}
	refuse(argument, "no such key");
}

int main(int count, char **arguments)
{
	uint64_t window_ms = 1000, began;

	if (count == 2 && !strcmp(arguments[1], "symbols"))
		return !fwrite(guest_symbols, guest_symbols_end - guest_symbols, 1, stdout);
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	memory = mmap(NULL, LAB_MEMORY, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (memory == MAP_FAILED)
		die("memory");
	shared = (void *)(memory + LAB_SHARED);
	*shared = (struct lab_shared){
	    .vcpu_count = 2, .compute = 60000, .hold = 20000, .is_listed = 1, .sleep_us = 1000};
	for (int at = 1; at < count; at++)
		take_argument(arguments[at], &window_ms);

	shared->ticks_per_us = ticks_per_us();
	start_vm();
	for (unsigned int id = 0; id < shared->vcpu_count; id++)
		while (!shared->vcpus[id].work)
			usleep(1000);
	puts("ready");
	fflush(stdout);
	began = now_ns();
	for (uint64_t window = 0;; window++) {
		uint64_t ended;

		usleep(window_ms * 1000);
		ended = now_ns();
		print_window(window, window ? ended - began : 0);
		began = ended;
	}
}
