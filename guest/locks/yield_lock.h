/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Yield locks: a waiter that finds the lock taken gives its vCPU up to the holder (Uhlig et al., VM'04,
 * section 5.2).
 *
 * Problem.   A spinner whose lock's holder is preempted burns the time that the holder would need.
 * Mechanism. A pessimistic lock yields at once: a lock that is taken is taken for longer. An optimistic one
 *            spins first, for as long as the lock is held at most if its holder runs: 20 us.
 * Order.     None: the waiter that comes when it is free has it.
 *
 * Includers say what pv_ticket.h wants, and:
 *
 *   LOCK_NOW_NS()           a clock that goes on
 *   LOCK_YIELD(cpu)         to the vCPU of that CPU, if it is preempted; else at once back
 */
#ifndef GUEST_YIELD_LOCK_H
#define GUEST_YIELD_LOCK_H

#include "pv_ticket.h"

#define YIELD_SPIN_NS 20000u /* 5.2 */

/* Zero: nobody holds it. */
struct yield_lock {
	u32 holder; /* its CPU + 1 */
};

static inline u32 yield_try_lock(struct yield_lock *lock, u32 cpu)
{
	return !LOCK_LOAD(&lock->holder) && LOCK_COMPARE_SWAP(&lock->holder, 0, cpu + 1);
}

/* `spin_ns`: before each yield; 0: pessimistic. `own` counts. */
static inline void yield_lock(struct yield_lock *lock, struct pv_ticket_cpu *own, u32 cpu, u64 spin_ns)
{
	u64 since_ns = spin_ns ? LOCK_NOW_NS() : 0;
	u32 holder, waited = 0;

	while (!yield_try_lock(lock, cpu)) {
		waited = 1;
		LOCK_PAUSE();
		if (spin_ns && LOCK_NOW_NS() - since_ns < spin_ns)
			continue;
		holder = LOCK_LOAD(&lock->holder);
		if (holder) {
			own->yields++;
			LOCK_YIELD(holder - 1);
		}
		since_ns = spin_ns ? LOCK_NOW_NS() : 0;
	}
	own->waited += waited;
	own->taken++;
}

static inline void yield_unlock(struct yield_lock *lock)
{
	LOCK_STORE(&lock->holder, 0);
}

#endif
