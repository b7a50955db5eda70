/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Spinlocks as the kernel's own paravirtual waiters take and release them, for tests of what waits beside
 * them: a model of kernel/locking/qspinlock.c and qspinlock_paravirt.h, Linux 6.1 to 6.18.
 *
 * It has a queue's tail in the word, and a head that alone sets `pending`. Waiters halt, and WORD_SLOW tells
 * the holder to kick the head. It lacks early halts, and the queue places of nested interrupts.
 *
 * Includers say what lock_line.h wants, LOCK_EXCHANGE(p, value), and THREADS_MAX.
 */
#ifndef GUEST_KERNEL_WAITERS_H
#define GUEST_KERNEL_WAITERS_H

struct qspinlock {
	union {
		u32 val;
		struct {
			uint8_t locked, pending;
			u16 tail;
		};
		u16 locked_pending;
	};
	struct kernel_node *hashed; /* in the kernel a table's entry */
};

#include "../locks/lock_line.h"

#define WORD_SLOW 3u
#define KERNEL_LOOKS 2
enum { NODE_RUNS, NODE_HALTS, NODE_HASHED };

struct kernel_node {
	struct kernel_node *next;
	u32 is_head, cpu;
	uint8_t state;
};

static struct kernel_node kernel_nodes[THREADS_MAX];
static const char *kernel_fault;

static void kernel_halt(uint8_t *at, uint8_t value)
{
	unsigned long before = LOCK_BEGIN_WAIT();

	if (LOCK_LOAD(at) == value)
		LOCK_HALT(before);
	LOCK_END_WAIT(before);
}

static void kernel_hash(struct qspinlock *lock, struct kernel_node *node)
{
	if (LOCK_EXCHANGE(&lock->hashed, node))
		kernel_fault = "two heads are to be kicked";
}

/* While nobody is the head: a running waiter takes the lock before those that are queued. */
static u32 kernel_steals(struct qspinlock *lock)
{
	u32 seen;

	for (;;) {
		seen = LOCK_LOAD(&lock->val);
		if (!(seen & (WORD_LOCKED_MASK | WORD_PENDING)) &&
		    LOCK_COMPARE_SWAP(&lock->locked, 0, WORD_LOCKED))
			return 1;
		if (!(seen >> WORD_TAIL_SHIFT) || (seen & WORD_PENDING))
			return 0;
		LOCK_SPIN();
	}
}

static void kernel_wait_for_head(struct kernel_node *node)
{
	for (;;) {
		for (u32 looks = KERNEL_LOOKS; looks; looks--)
			if (LOCK_LOAD(&node->is_head))
				return;
		LOCK_EXCHANGE(&node->state, NODE_HALTS);
		if (!LOCK_LOAD(&node->is_head))
			kernel_halt(&node->state, NODE_HALTS);
		LOCK_COMPARE_SWAP(&node->state, NODE_HALTS, NODE_RUNS);
		LOCK_SPIN();
	}
}

static void kernel_wait_as_head(struct qspinlock *lock, struct kernel_node *node)
{
	u32 is_hashed = LOCK_LOAD(&node->state) == NODE_HASHED;

	for (;;) {
		LOCK_STORE(&node->state, NODE_RUNS);
		LOCK_STORE(&lock->pending, 1);
		for (u32 looks = KERNEL_LOOKS; looks; looks--)
			if (!LOCK_LOAD(&lock->locked) &&
			    LOCK_COMPARE_SWAP(&lock->locked_pending, WORD_PENDING, WORD_LOCKED))
				return;
		LOCK_STORE(&lock->pending, 0);
		if (!is_hashed) {
			is_hashed = 1;
			kernel_hash(lock, node);
			if (!LOCK_EXCHANGE(&lock->locked, WORD_SLOW)) {
				LOCK_STORE(&lock->locked, WORD_LOCKED);
				LOCK_STORE(&lock->hashed, (struct kernel_node *)0);
				return;
			}
		}
		LOCK_STORE(&node->state, NODE_HASHED);
		kernel_halt(&lock->locked, WORD_SLOW);
		LOCK_SPIN();
	}
}

/* Waits in the place of `cpu`, which is below THREADS_MAX and waits for no other lock. */
static void kernel_lock_slow(struct qspinlock *lock, u32 cpu)
{
	struct kernel_node *node = &kernel_nodes[cpu], *next;
	u32 seen;
	u16 before;

	*node = (struct kernel_node){.cpu = cpu};
	if (kernel_steals(lock))
		return;
	before = LOCK_EXCHANGE(&lock->tail, (u16)(cpu + 1));
	if (before) {
		LOCK_STORE(&kernel_nodes[before - 1].next, node);
		kernel_wait_for_head(node);
	}
	kernel_wait_as_head(lock, node);
	seen = LOCK_LOAD(&lock->val) | WORD_LOCKED;
	if (seen >> WORD_TAIL_SHIFT == cpu + 1 && LOCK_COMPARE_SWAP(&lock->val, seen, WORD_LOCKED))
		return;
	LOCK_STORE(&lock->locked, WORD_LOCKED);
	while (!(next = LOCK_LOAD(&node->next)))
		LOCK_SPIN();
	LOCK_STORE(&next->is_head, 1);
	if (LOCK_COMPARE_SWAP(&next->state, NODE_HALTS, NODE_HASHED)) {
		LOCK_STORE(&lock->locked, WORD_SLOW);
		kernel_hash(lock, next);
	}
}

static void kernel_unlock(struct qspinlock *lock)
{
	struct kernel_node *node;

	if (LOCK_COMPARE_SWAP(&lock->locked, WORD_LOCKED, 0))
		return;
	node = LOCK_EXCHANGE(&lock->hashed, (struct kernel_node *)0);
	if (!node) {
		kernel_fault = "nobody is to be kicked";
		return;
	}
	LOCK_STORE(&lock->locked, 0);
	LOCK_KICK(node->cpu);
}

#endif
