/* SPDX-License-Identifier: GPL-2.0-only */
/* The loads that a guest can put on itself. Each starts its threads and returns. */
#ifndef GUEST_LOADS_H
#define GUEST_LOADS_H

#include <stdint.h>

/* A thread that runs `body(argument)` forever, on one vCPU (or on any if negative). */
void start_thread(void (*body)(long), long argument, int vcpu);
/* The caller runs on that CPU only. */
void stay_on(int cpu);
/* A fixed piece of user-mode work: the same number of instructions everywhere. */
void compute(uint64_t iterations);
/*
 * What a worker computes between two visits to the kernel: little, so that a good part of preemptions hits
 * kernel code.
 */
#define WORKER_ITERATIONS 20000
/*
 * Maps, touches, write-protects and unmaps pages once; and takes a kernel's spinlock once. Both count how
 * long it took.
 */
void unmap_once(void);
void lock_once(void);
/* Forks a process that touches memory and writes a file, and waits for it; 0 if it couldn't. */
int build_once(long number);

/* `count` threads that only compute, one per vCPU. */
void load_hog(int count);
/* Hogs that sleep for 0.1 ms now and then. */
void load_dozer(int count);
/*
 * `count` threads, one per vCPU, that sleep for 10 ms at a time, and measure by how much they are woken too
 * late.
 */
void load_sleeper(int count);
/*
 * One thread unmaps and write-protects memory while `count - 1` siblings of its process run on the other
 * vCPUs: each operation interrupts them all and waits for their answers.
 */
void load_shootdown(int count);
/*
 * `count` threads of one process that discard memory, all at once: those that owe an answer mostly wait for
 * answers themselves.
 */
void load_storm(int count);
/* `count` threads that take one kernel spinlock (a futex hash bucket's) over and over. */
void load_lock(int count);
/* `count` pairs of threads that wake each other over pipes, across vCPUs. */
void load_wake(int count);
/* `count` threads of one process, each: compute, unmap memory, take the contended lock. */
void load_worker(int count);
/* `count` threads that fork processes one after the other, each of which touches memory and writes a file. */
void load_build(int count);
/*
 * One thread wakes up every 50 ms, unmaps, write-protects and has a memory barrier done, as a garbage
 * collector's does; `count - 1` siblings on the other vCPUs compute and take the contended lock.
 */
void load_collector(int count);
/* One datagram at a time to the host's echo service and back. */
void load_pingpong(int count);

/*
 * The guest's locks (guest/locks): each for `seconds`, with short spinning times; and likewise with the
 * paper's.
 */
void load_torture(int seconds);
void load_locks(int seconds);
/*
 * The kernel's own spinlocks with microslice_spinlocks and without, by turns of so many seconds. Meanwhile
 * vCPUs make files, build, take futexes' locks, and torture one lock.
 */
void load_spinlocks(int seconds);
/* `count` threads that only compute, on whatever vCPU the kernel likes; how many are on each is reported. */
void load_crowd(int count);
/* Time balloons (guest/balloon), from when the host has taken `seconds` of the first vCPU's time on. */
void load_balloons(int seconds);

/* What single operations take, once, while all `vcpus` compute. */
void load_costs(int vcpus);
/* What a switch takes, on the host. */
int measure_switches(void);

/* Where the kernel lies, and where its CPUs count what they hold, by what it says itself. */
void print_kallsyms(int count);
void print_counts(int count);

/* The host's side of `load_pingpong`. */
int serve_echo(int port);
/* Gives the first network card an address, as "10.77.1.2". */
int set_address(const char *address);

#endif
