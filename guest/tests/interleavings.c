// SPDX-License-Identifier: GPL-2.0-only
/*
 * The guest's locks in every order in which their accesses to memory can happen, with up to so many
 * preemptions.
 *
 *   interleavings KIND THREADS ROUNDS PREEMPTIONS
 *
 * Each thread takes the lock ROUNDS times. For `line` (lock_line.h) there are two spinlocks, taken by turns,
 * whose lines get in each other's way. A thread waits in line and as the kernel has it (kernel_waiters.h), by
 * turns, too.
 *
 * Threads are coroutines that stop before each access, halt and kick; what follows is tried for each of them
 * in turn (as CHESS does: a switch away from a thread that could go on is a preemption, others are free).
 * Accesses happen one after the other: what a processor may do besides, x86's store buffers, isn't tried.
 * There every exchange empties them, and a waiter makes two between its last store and its last look.
 *
 * Prints one line of JSON. Ends with 1 and the order of the steps if two hold the lock at once, or one
 * overtakes. So it does if all that are left have halted (a lost kick), or if the order takes too long to be
 * one.
 */
#define _GNU_SOURCE
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

typedef uint16_t u16;
typedef uint32_t u32;
typedef uint64_t u64;

static int changed; /* memory, by the last step */

static void step(void);
static void spin(void);
static void halt(void);
static void kick(u32 cpu);

#define STEP(expression)                                                                                     \
	({                                                                                                   \
		step();                                                                                      \
		expression;                                                                                  \
	})
#define CHANGE(expression) STEP((changed = 1, expression))
#define LOCK_LOAD(p) STEP(*(p))
#define LOCK_STORE(p, value) CHANGE(*(p) = (value))
#define LOCK_FETCH_ADD(p, value) CHANGE(__atomic_fetch_add(p, value, __ATOMIC_RELAXED))
#define LOCK_FETCH_OR(p, value) CHANGE(__atomic_fetch_or(p, value, __ATOMIC_RELAXED))
#define LOCK_FETCH_AND(p, value) CHANGE(__atomic_fetch_and(p, value, __ATOMIC_RELAXED))
#define LOCK_COMPARE_SWAP(p, old, new) STEP(*(p) == (old) ? (*(p) = (new), changed = 1) : 0)
#define LOCK_EXCHANGE(p, value)                                                                              \
	CHANGE(({                                                                                            \
		__typeof__(*(p)) was = *(p);                                                                 \
		*(p) = (value);                                                                              \
		was;                                                                                         \
	}))
#define LOCK_WORD(lock) (&(lock)->val)
#define LOCK_PAUSE() ((void)0)
#define LOCK_SPIN() spin()
#define LOCK_BEGIN_WAIT() 0
#define LOCK_END_WAIT(before) ((void)(before))
#define LOCK_HALT(before) ((void)(before), halt())
#define LOCK_KICK(cpu) kick(cpu)
#define LINES_BITS 1
#define LINE_PROBES 1
#define THREADS_MAX 4
#include "../locks/pv_ticket.h"
#include "kernel_waiters.h"

#define STEPS_MAX 2000
#define STACK_BYTES 65536
#define TRACE_END 48 /* steps that are printed */

enum { LINE = PV_TICKET_KINDS, KINDS };
static const char *const kinds[KINDS] = {"pv-ticket", "oticket", "iticket", "line"};
static int kind_tried = -1;

/* A waiter looks once, then halts; the next two are kicked by an oticket lock. */
static struct pv_ticket_rules rules = {.queue_wait = 3, .wake_ahead = 2, .spin = 1, .spin_max = 2};
static struct pv_ticket_lock lock;
static struct pv_ticket_cpus cpus;
#define WORDS 2
static struct qspinlock words[WORDS];
static struct lock_line lines[LINES];

static struct thread {
	ucontext_t context;
	char stack[STACK_BYTES];
	int done, halted, kicked, spins;
} threads[THREADS_MAX];
static u32 thread_count, rounds, preemptions_max, running;
static ucontext_t explorer;

static u32 holders[WORDS];
static u16 next_ticket;
static const char *broken;

/* The order that is tried: at step i the choice-th of the tasks that can go on, the running one first. */
static struct choice {
	u16 choice, choices, preemptions;
} path[STEPS_MAX];
static u32 path_length;
static u16 trace[STEPS_MAX];

static void step(void)
{
	swapcontext(&threads[running].context, &explorer);
}

/* Until another thread has changed something: that isn't a preemption. */
static void spin(void)
{
	threads[running].spins = 1;
	step();
}

static void halt(void)
{
	step();
	threads[running].halted = !threads[running].kicked;
	while (threads[running].halted)
		step();
	threads[running].kicked = 0;
}

/* As with KVM, one that comes before the halt ends that at once. */
static void kick(u32 cpu)
{
	step();
	threads[cpu].kicked = 1;
	threads[cpu].halted = 0;
}

static void hold(u32 word)
{
	if (holders[word]++)
		broken = "two hold the lock";
	step();
	holders[word]--;
}

/* Every other time as the kernel has it. */
static void take_word(u32 self, u32 round)
{
	struct qspinlock *word = &words[round % WORDS];

	if (!LOCK_COMPARE_SWAP(&word->val, 0, WORD_LOCKED) &&
	    ((self + round) % 2 || !line_lock(&rules, lines, &cpus, self, word)))
		kernel_lock_slow(word, self);
	hold(round % WORDS);
	kernel_unlock(word);
	broken = broken ? broken : kernel_fault;
}

static void take_ticket(u32 self)
{
	u16 ticket = pv_ticket_lock(&rules, &lock, &cpus, self);

	if (ticket != next_ticket)
		broken = "somebody overtook";
	next_ticket = ticket + TICKET_STEP;
	hold(0);
	pv_ticket_unlock(&rules, &lock, &cpus, self);
}

static void run(void)
{
	u32 self = running;

	for (u32 round = 0; round < rounds; round++) {
		if (kind_tried == LINE)
			take_word(self, round);
		else
			take_ticket(self);
	}
	threads[self].done = 1;
	for (;;)
		step();
}

static void begin(void)
{
	memset(&lock, 0, sizeof(lock));
	memset(cpus.waiting, 0, sizeof(cpus.waiting));
	memset(cpus.of, 0, sizeof(cpus.of[0]) * thread_count);
	lock.head = lock.tail = next_ticket = (u16)-TICKET_STEP; /* it wraps around at once */
	memset(holders, 0, sizeof(holders));
	memset(words, 0, sizeof(words));
	memset(lines, 0, sizeof(lines));
	kernel_fault = NULL;
	for (u32 i = 0; i < thread_count; i++) {
		struct thread *thread = &threads[i];

		thread->done = thread->halted = thread->kicked = thread->spins = 0;
		getcontext(&thread->context);
		thread->context.uc_stack.ss_sp = thread->stack;
		thread->context.uc_stack.ss_size = STACK_BYTES;
		makecontext(&thread->context, run, 0);
	}
}

static int can_run(u32 thread)
{
	return !threads[thread].done && !threads[thread].halted && !threads[thread].spins;
}

/* The tasks that can go on, the running one first. */
static u32 candidates(u32 *of)
{
	u32 count = 0;

	for (u32 i = 0; i < thread_count; i++) {
		u32 thread = (running + i) % thread_count;

		if (can_run(thread))
			of[count++] = thread;
	}
	return count;
}

/* All that are left have looked, maybe before the last change: they look again, or halt for good. */
static void end_spins(void)
{
	for (u32 i = 0; i < thread_count; i++)
		threads[i].spins = 0;
}

/* Repeats the path's choices, then always the first; says what is broken, if something is. */
static const char *try_path(u32 known)
{
	u32 of[THREADS_MAX], count, preemptions = 0, left;

	begin();
	broken = NULL;
	running = 0;
	for (path_length = 0; path_length < STEPS_MAX; path_length++) {
		struct choice *choice = &path[path_length];
		u32 goes_on = can_run(running);

		count = candidates(of);
		if (!count) {
			end_spins();
			count = candidates(of);
		}
		if (!count)
			break;
		if (path_length >= known) {
			left = goes_on && preemptions >= preemptions_max ? 1 : count;
			*choice = (struct choice){.choices = left, .preemptions = preemptions};
		}
		preemptions += goes_on && choice->choice;
		running = of[choice->choice];
		trace[path_length] = running;
		changed = 0;
		swapcontext(&explorer, &threads[running].context);
		for (u32 i = 0; changed && i < thread_count; i++)
			threads[i].spins &= i == running;
		if (broken)
			return broken;
	}
	if (path_length == STEPS_MAX)
		return "it doesn't end";
	for (u32 i = 0; i < thread_count; i++)
		if (!threads[i].done)
			return "all who are left have halted";
	for (u32 i = 0; i < LINES; i++)
		if (lines[i].lock_and_waiters)
			return "a line stays";
	for (u32 i = 0; i < WORDS; i++)
		if (words[i].val || words[i].hashed)
			return "a lock stays";
	return NULL;
}

/* The next path, by the last choice that can be another one; how much of it is known, or 0 at the end. */
static u32 next_path(void)
{
	while (path_length) {
		struct choice *last = &path[path_length - 1];

		if (++last->choice < last->choices)
			return path_length;
		path_length--;
	}
	return 0;
}

int main(int argc, char **argv)
{
	const char *fault;
	u64 paths = 0;
	u32 known = 0;

	for (int kind = 0; argc == 5 && kind < KINDS; kind++)
		kind_tried = strcmp(kinds[kind], argv[1]) ? kind_tried : kind;
	rules.kind = kind_tried < LINE ? (enum pv_ticket_kind)kind_tried : PV_OTICKET;
	if (argc == 5) {
		thread_count = atoi(argv[2]);
		rounds = atoi(argv[3]);
		preemptions_max = atoi(argv[4]);
	}
	if (thread_count < 1 || thread_count > THREADS_MAX || !rounds || kind_tried < 0) {
		fprintf(
		    stderr,
		    "usage: interleavings pv-ticket|oticket|iticket|line THREADS ROUNDS PREEMPTIONS   (1 to "
		    "%d threads)\n",
		    THREADS_MAX);
		return 2;
	}
	do {
		fault = try_path(known);
		paths++;
	} while (!fault && (known = next_path()));
	printf("{\"kind\":\"%s\",\"paths\":%lu,\"fault\":\"%s\",\"threads\":[", argv[1], paths,
	       fault ? fault : "");
	for (u32 i = path_length > TRACE_END ? path_length - TRACE_END : 0; fault && i < path_length; i++)
		printf("%s%u", i + TRACE_END > path_length && i ? "," : "", trace[i]);
	printf("]}\n");
	return fault != NULL;
}
