// SPDX-License-Identifier: GPL-2.0-only
#define _GNU_SOURCE
#include "loads.h"
#include "stats.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <linux/membarrier.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define PAGE 4096
#define UNMAP_PAGES 8
/* About 0.1 ms on hardware, some milliseconds on the emulated CPU. */
#define COMPUTE_ITERATIONS 100000
#define DISCARDER_ITERATIONS 2000
#define LOCKS_PER_ROUND 16
#define OBJECT_PAGES 16
/*
 * Of the threads that only compute and lock: more than half of their time, so that some are preempted with
 * the lock held.
 */
#define LOCKS_PER_LOCKING_ROUND 64
#define COLLECTOR_PAUSE_NS 50000000L
/* Longer than a boosted turn, so that it waits by its clock now and then. */
#define DOZER_ITERATIONS (20 * COMPUTE_ITERATIONS)
#define DOZER_PAUSE_NS 100000L
#define SLEEPER_PAUSE_NS 10000000L

struct thread {
	void (*body)(long);
	long argument;
	int vcpu;
};

void stay_on(int cpu)
{
	cpu_set_t only;

	CPU_ZERO(&only);
	CPU_SET(cpu, &only);
	sched_setaffinity(0, sizeof(only), &only);
}

static void *run(void *of)
{
	struct thread thread = *(struct thread *)of;

	free(of);
	if (thread.vcpu >= 0)
		stay_on(thread.vcpu);
	thread.body(thread.argument);
	return NULL;
}

void start_thread(void (*body)(long), long argument, int vcpu)
{
	struct thread *thread = malloc(sizeof(*thread));
	pthread_t id;

	*thread = (struct thread){.body = body, .argument = argument, .vcpu = vcpu};
	if (pthread_create(&id, NULL, run, thread))
		report("{\"error\":\"no thread\"}");
}

static int vcpu_count(void)
{
	return sysconf(_SC_NPROCESSORS_ONLN);
}

void compute(uint64_t iterations)
{
	uint64_t state = iterations;

	for (uint64_t i = 0; i < iterations; i++) {
		state = state * 6364136223846793005ULL + 1442695040888963407ULL;
		__asm__ volatile("" : "+r"(state));
	}
}

static void hog(long argument)
{
	(void)argument;
	for (;;) {
		compute(COMPUTE_ITERATIONS);
		count_work(HOG, 1);
	}
}

void load_hog(int count)
{
	for (int i = 0; i < count; i++)
		start_thread(hog, 0, i % vcpu_count());
}

/* It hardly ever sleeps, and never for long; but each time its vCPU halts, and is woken by its timer. */
static void dozer(long argument)
{
	struct timespec pause = {.tv_nsec = DOZER_PAUSE_NS};

	(void)argument;
	for (;;) {
		compute(DOZER_ITERATIONS);
		count_work(HOG, 1);
		nanosleep(&pause, NULL);
	}
}

void load_dozer(int count)
{
	for (int i = 0; i < count; i++)
		start_thread(dozer, 0, i % vcpu_count());
}

/* It does next to nothing: when it is woken it always has lag. */
static void sleeper(long argument)
{
	struct timespec pause = {.tv_nsec = SLEEPER_PAUSE_NS};

	(void)argument;
	for (;;) {
		uint64_t start = now_ns(), slept_ns;

		nanosleep(&pause, NULL);
		slept_ns = now_ns() - start;
		count_latency(WAKE, slept_ns > SLEEPER_PAUSE_NS ? slept_ns - SLEEPER_PAUSE_NS : 0);
	}
}

void load_sleeper(int count)
{
	for (int i = 0; i < count; i++)
		start_thread(sleeper, 0, i % vcpu_count());
}

/* Touched pages that go away: every vCPU that runs this process must forget them first. */
void unmap_once(void)
{
	char *memory =
	    mmap(NULL, UNMAP_PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	uint64_t start;

	if (memory == MAP_FAILED)
		return;
	for (int page = 0; page < UNMAP_PAGES; page++)
		memory[page * PAGE] = 1;
	start = now_ns();
	mprotect(memory, UNMAP_PAGES * PAGE, PROT_READ);
	count_latency(SHOOTDOWN, now_ns() - start);
	start = now_ns();
	munmap(memory, UNMAP_PAGES * PAGE);
	count_latency(SHOOTDOWN, now_ns() - start);
}

static void unmapper(long argument)
{
	(void)argument;
	for (;;) {
		unmap_once();
		count_work(WORKER, 1);
	}
}

void load_shootdown(int count)
{
	start_thread(unmapper, 0, 0);
	for (int i = 1; i < count; i++)
		start_thread(hog, 0, i % vcpu_count());
}

/*
 * Unlike munmap(), which only one thread at a time gets far enough in, all threads can do this side by side.
 */
static void discarder(long argument)
{
	char *memory =
	    mmap(NULL, UNMAP_PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	(void)argument;
	while (memory != MAP_FAILED) {
		uint64_t start;

		compute(DISCARDER_ITERATIONS);
		for (int page = 0; page < UNMAP_PAGES; page++)
			memory[page * PAGE] = 1;
		start = now_ns();
		madvise(memory, UNMAP_PAGES * PAGE, MADV_DONTNEED);
		count_latency(SHOOTDOWN, now_ns() - start);
		count_work(WORKER, 1);
	}
}

/* Every vCPU sends shootdowns all the time: most of those that owe an answer wait for answers themselves. */
void load_storm(int count)
{
	for (int i = 0; i < count; i++)
		start_thread(discarder, 0, i % vcpu_count());
}

/*
 * A futex that never has the expected value: the kernel takes the hash bucket's spinlock, compares, lets go.
 */
void lock_once(void)
{
	static uint32_t word;
	uint64_t start = now_ns();

	syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, 1, NULL, NULL, 0);
	count_latency(LOCK, now_ns() - start);
}

static void lock_times(int count)
{
	for (int i = 0; i < count; i++)
		lock_once();
}

static void locker(long argument)
{
	(void)argument;
	for (;;) {
		lock_times(LOCKS_PER_ROUND);
		count_work(WORKER, 1);
	}
}

void load_lock(int count)
{
	for (int i = 0; i < count; i++)
		start_thread(locker, 0, i % vcpu_count());
}

static int pipes[64][2][2];

static void answer(long pair)
{
	uint64_t sent_ns;

	while (read(pipes[pair][0][0], &sent_ns, sizeof(sent_ns)) == sizeof(sent_ns)) {
		count_latency(WAKE, now_ns() - sent_ns);
		if (write(pipes[pair][1][1], &sent_ns, sizeof(sent_ns)) != sizeof(sent_ns))
			return;
	}
}

static void ask(long pair)
{
	uint64_t sent_ns = now_ns();

	while (write(pipes[pair][0][1], &sent_ns, sizeof(sent_ns)) == sizeof(sent_ns) &&
	       read(pipes[pair][1][0], &sent_ns, sizeof(sent_ns)) == sizeof(sent_ns)) {
		count_work(WORKER, 1);
		sent_ns = now_ns();
	}
}

void load_wake(int count)
{
	for (int i = 0; i < count && i < 64; i++) {
		if (pipe(pipes[i][0]) || pipe(pipes[i][1]))
			return;
		start_thread(answer, i, (2 * i + 1) % vcpu_count());
		start_thread(ask, i, 2 * i % vcpu_count());
	}
}

static void worker(long argument)
{
	(void)argument;
	for (;;) {
		compute(WORKER_ITERATIONS);
		unmap_once();
		lock_times(LOCKS_PER_ROUND);
		count_work(WORKER, 1);
	}
}

void load_worker(int count)
{
	for (int i = 0; i < count; i++)
		start_thread(worker, 0, i % vcpu_count());
}

/* What a compiler asks of its kernel: memory of its own, and a file that it writes and reads. */
static void compile(long number)
{
	char path[32], page[PAGE] = {}, *memory;
	int fd;

	memory = mmap(NULL, OBJECT_PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	snprintf(path, sizeof(path), "/object-%ld", number);
	fd = open(path, O_CREAT | O_RDWR | O_TRUNC | O_CLOEXEC, 0600);
	if (memory == MAP_FAILED || fd < 0)
		_exit(1);
	for (int at = 0; at < OBJECT_PAGES; at++) {
		memory[at * PAGE] = at;
		if (pwrite(fd, page, PAGE, at * PAGE) != PAGE || pread(fd, page, PAGE, at * PAGE) != PAGE)
			_exit(1);
	}
	compute(WORKER_ITERATIONS);
	unlink(path);
	_exit(0);
}

int build_once(long number)
{
	pid_t child = fork();
	int status = 1;

	if (!child)
		compile(number);
	return child > 0 && waitpid(child, &status, 0) == child && !status;
}

static void builder(long number)
{
	while (build_once(number))
		count_work(WORKER, 1);
	report("{\"error\":\"a process to build with\"}");
}

void load_build(int count)
{
	for (int i = 0; i < count; i++)
		start_thread(builder, i, i % vcpu_count());
}

static void locking_worker(long argument)
{
	(void)argument;
	for (;;) {
		compute(WORKER_ITERATIONS);
		lock_times(LOCKS_PER_LOCKING_ROUND);
		count_work(WORKER, 1);
	}
}

/*
 * It sleeps in between, so its vCPU has just woken and has all of its slice before it when the shootdown
 * begins.
 */
static void collector(long argument)
{
	struct timespec pause = {.tv_nsec = COLLECTOR_PAUSE_NS};

	(void)argument;
	syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, 0, 0);
	for (;;) {
		nanosleep(&pause, NULL);
		unmap_once();
		/*
		 * Interrupts whose targets, if preempted, a paravirtual guest yields to; shootdowns leave
		 * those out.
		 */
		syscall(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0);
	}
}

void load_collector(int count)
{
	/* Interrupts and other loads prefer the first vCPUs. */
	start_thread(collector, 0, vcpu_count() - 1);
	for (int i = 0; i < count - 1; i++)
		start_thread(locking_worker, 0, i % vcpu_count());
}
