/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Lines for waiters of the kernel's own spinlocks, that wait as those of an oticket lock do (Kashyap et al.,
 * APSys'15).
 *
 * Problem.   The kernel's spinlocks are taken without contention by code that is inlined everywhere. Only how
 *            one waits is a function that can be replaced (`__pv_queued_spin_lock_slowpath`).
 * Mechanism. A waiter takes a place in a line: an oticket lock (pv_ticket.h) of its own, found by the
 *            spinlock's address. The first in line looks at the spinlock's word until it is free, then lets
 *            the next one be first.
 * Order.     The first in line sets the word's `pending`, so that no newcomer overtakes: the kernel's
 *            stealing (4.5 and later) and its fast path heed it. Until he has, newcomers may.
 * Mixed.     Waiters that wait as the kernel has it may wait for the same lock, as they do while the module
 *            comes and goes. Where such are queued the first in line steals: he takes the lock when it is
 *            free and their head isn't about to (pv_hybrid_queued_unfair_trylock), and leaves `pending` to
 *            that head.
 * Halts.     The first in line doesn't halt, since only the kernel's own waiters can have a holder kick them.
 *            An oticket waiter of distance 1 spins for 2^34 looks, which is as good as for ever.
 * Kicks.     Whoever has become the holder kicks those behind him, while he holds the lock.
 *
 * Includers say what pv_ticket.h wants. They have `struct qspinlock` with its byte `locked`, and:
 *
 *   LOCK_WORD(lock)         pointer to its 32 bits
 *   LOCK_SPIN()             between two looks of one that doesn't stop looking
 */
#ifndef GUEST_LOCK_LINE_H
#define GUEST_LOCK_LINE_H

#include "pv_ticket.h"

/* Locks that are waited for at once are far fewer: a CPU waits for one in each of its three contexts. */
#ifndef LINES_BITS
#define LINES_BITS 10u
#endif
#define LINES (1u << LINES_BITS)
/* A line lies in one of so many places, or nowhere. */
#ifndef LINE_PROBES
#define LINE_PROBES 8u
#endif
#define LINE_TRIES 64u
/* An address is a multiple of 4, and its highest 7 bits are alike: 9 bits are left for who waits. */
#define LINE_ADDRESS_SHIFT 7u
#define LINE_WAITERS 511u

/* The kernel's _Q_LOCKED_VAL, _Q_LOCKED_MASK, _Q_PENDING_VAL and _Q_TAIL_OFFSET. */
#define WORD_LOCKED 1u
#define WORD_LOCKED_MASK 0xffu
#define WORD_PENDING 0x100u
#define WORD_TAIL_SHIFT 16u

struct lock_line {
	u64 lock_and_waiters; /* 0: this place is free */
	struct pv_ticket_lock tickets;
} __attribute__((aligned(64)));

static inline u32 line_place(u64 address)
{
	return (address >> 2) * 0x9e3779b97f4a7c15ull >> (64 - LINES_BITS);
}

/*
 * The line of the lock at `address`, for one waiter more; NULL if there is no place. Two waiters may make two
 * lines for one lock, if a place became free meanwhile: then those who are first compete.
 */
static inline struct lock_line *line_join(struct lock_line *lines, u64 address)
{
	u64 key = address << LINE_ADDRESS_SHIFT, seen;
	u32 probe, tries;

	if (address & 3)
		return (struct lock_line *)0;
	for (probe = 0; probe < LINE_PROBES; probe++) {
		struct lock_line *line = &lines[(line_place(address) + probe) % LINES];

		for (tries = 0; tries < LINE_TRIES; tries++) {
			seen = LOCK_LOAD(&line->lock_and_waiters);
			if (seen && (seen & ~(u64)LINE_WAITERS) != key)
				break;
			if ((seen & LINE_WAITERS) == LINE_WAITERS)
				break;
			if (LOCK_COMPARE_SWAP(&line->lock_and_waiters, seen, (seen ? seen : key) + 1))
				return line;
		}
	}
	return (struct lock_line *)0;
}

static inline void line_leave(struct lock_line *line)
{
	u64 seen;

	do
		seen = LOCK_LOAD(&line->lock_and_waiters);
	while (!LOCK_COMPARE_SWAP(&line->lock_and_waiters, seen,
				  (seen & LINE_WAITERS) == 1 ? (u64)0 : seen - 1));
}

/*
 * Has the lock as soon as it is free. Where the kernel's own waiters are queued, `pending` is their head's
 * alone: he takes it for granted that nobody else sets it.
 */
static inline void line_first(struct qspinlock *lock)
{
	u32 *word = LOCK_WORD(lock), seen;

	for (;;) {
		seen = LOCK_LOAD(word);
		if (seen >> WORD_TAIL_SHIFT) {
			if (!(seen & (WORD_LOCKED_MASK | WORD_PENDING)) &&
			    LOCK_COMPARE_SWAP(&lock->locked, 0, WORD_LOCKED))
				return;
		} else if (!(seen & WORD_LOCKED_MASK)) {
			if (LOCK_COMPARE_SWAP(word, seen, WORD_LOCKED))
				return;
			continue;
		} else if (!(seen & WORD_PENDING)) {
			LOCK_COMPARE_SWAP(word, seen, seen | WORD_PENDING);
			continue;
		}
		LOCK_SPIN();
	}
}

/* Takes the lock that somebody holds; 0 if there is no line for it, and it must be waited for otherwise. */
static inline u32 line_lock(const struct pv_ticket_rules *rules, struct lock_line *lines,
			    struct pv_ticket_cpus *cpus, u32 cpu, struct qspinlock *lock)
{
	struct lock_line *line = line_join(lines, (u64)(unsigned long)lock);

	if (!line)
		return 0;
	pv_ticket_lock(rules, &line->tickets, cpus, cpu);
	line_first(lock);
	pv_ticket_unlock(rules, &line->tickets, cpus, cpu);
	line_leave(line);
	return 1;
}

#endif
