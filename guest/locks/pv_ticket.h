/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Ticket locks for guests: a waiter spins, then halts until its turn, and the holder kicks it when it lets go
 * (Kashyap et al., APSys'15).
 *
 * Problem.   A halted waiter comes tens of microseconds after its kick, and meanwhile nobody has the lock.
 *            Once waiters halt on a lock that is wanted all the time, each hand-over waits for one to wake:
 *            the "sleepy spinlock anomaly".
 * Mechanism. `pv-ticket` is the stock lock of Linux 4.0 (arch/x86/include/asm/spinlock.h,
 *            arch/x86/kernel/kvm.c): it spins for 2^15 looks, then halts. `oticket` spins for longer the
 *            nearer its turn is. It kicks the next few waiters together, so that they wake while others hold
 *            the lock (section 3, Figure 5). `iticket` doubles the time for all waiters of a lock whenever
 *            one of them halts (5.2).
 * Formula.   spin(distance) = spin_max >> (distance - 1) if distance < queue_wait, else spin        oticket
 *            spin           = spin << halts, at most spin_max                                        iticket
 * Order.     All are fair: turns are taken in the order of the tickets.
 *
 * The same C runs in a kernel module, in a program with threads, and in one that tries all interleavings
 * (guest/tests). Each of them brings the words u16, u32 and u64 and says, before it includes this, how memory
 * is accessed and how one halts:
 *
 *   LOCK_LOAD(p)            what is written before a LOCK_STORE or an exchange that this sees is seen, too
 *   LOCK_STORE(p, value)    likewise
 *   LOCK_FETCH_ADD, LOCK_FETCH_OR, LOCK_FETCH_AND(p, value); LOCK_COMPARE_SWAP(p, old, new)    whole barriers
 *   LOCK_PAUSE()            between two looks
 *   LOCK_BEGIN_WAIT()       a number. Until LOCK_END_WAIT(number) no other task takes a lock on this CPU
 *   LOCK_HALT(number)       until this CPU is kicked, or for another reason. An earlier kick isn't lost
 *   LOCK_KICK(cpu)
 */
#ifndef GUEST_PV_TICKET_H
#define GUEST_PV_TICKET_H

#define TICKET_CPUS_MAX 512u
#define TICKET_WORD_BITS 64u
/* Tickets go up by 2. The lowest bit of the head says that a waiter may have halted. */
#define TICKET_STEP 2u
#define TICKET_SOMEBODY_HALTS 1u

enum pv_ticket_kind {
	PV_TICKET = 0,
	PV_OTICKET = 1,
	PV_ITICKET = 2,
	PV_TICKET_KINDS = 3,
};

/* How long is spun, in looks at the lock; figures of the paper's Figure 5. */
struct pv_ticket_rules {
	enum pv_ticket_kind kind;
	/* From so many tickets on a waiter of an oticket lock spins like one of the stock lock: 18. */
	u32 queue_wait;
	u32 wake_ahead; /* so many are kicked at each release of an oticket lock: 4 */
	u64 spin;	/* 2^15; "longer spinning" is the stock lock with 2^34 */
	u64 spin_max;	/* 2^34 */
};

/* Zero: nobody holds it. */
struct pv_ticket_lock {
	union {
		u32 both;
		struct {
			u16 head; /* whose turn it is */
			u16 tail; /* the next ticket */
		};
	};
	u32 halts; /* of an iticket lock, counted to 63 */
};

/* Of a CPU; each on cache lines of its own. */
struct pv_ticket_cpu {
	struct pv_ticket_lock *lock; /* for which it waits, maybe halted */
	u16 want;
	u64 taken;  /* locks */
	u64 waited; /* for so many of them */
	u64 halts;
	u64 kicks;  /* that it has sent */
	u64 yields; /* of yield_lock.h */
} __attribute__((aligned(128)));

/* All CPUs that share locks. */
struct pv_ticket_cpus {
	u64 waiting[TICKET_CPUS_MAX / TICKET_WORD_BITS];
	struct pv_ticket_cpu of[TICKET_CPUS_MAX];
};

/* Returns the sum of what all CPUs have counted in the u64 at that offset of theirs. */
static inline u64 ticket_sum_at(struct pv_ticket_cpus *cpus, unsigned long offset)
{
	u64 sum = 0;
	u32 cpu;

	for (cpu = 0; cpu < TICKET_CPUS_MAX; cpu++)
		sum += LOCK_LOAD((u64 *)((char *)&cpus->of[cpu] + offset));
	return sum;
}
#define TICKET_SUM(cpus, field) ticket_sum_at(cpus, __builtin_offsetof(struct pv_ticket_cpu, field))

static inline u32 ticket_is_turn(u16 head, u16 ticket)
{
	return !((head ^ ticket) & (u16)~TICKET_SOMEBODY_HALTS);
}

static inline u64 ticket_spin_of(const struct pv_ticket_rules *rules, struct pv_ticket_lock *lock,
				 u32 distance)
{
	u32 halts;

	if (rules->kind == PV_OTICKET && distance < rules->queue_wait && distance < TICKET_WORD_BITS)
		return distance ? rules->spin_max >> (distance - 1) : rules->spin_max;
	if (rules->kind != PV_ITICKET)
		return rules->spin;
	halts = LOCK_LOAD(&lock->halts);
	if (halts >= TICKET_WORD_BITS || rules->spin > rules->spin_max >> halts)
		return rules->spin_max;
	return rules->spin << halts;
}

/* Whether its turn has come within so many looks. */
static inline u32 ticket_spin(struct pv_ticket_lock *lock, u16 ticket, u64 looks)
{
	do {
		if (ticket_is_turn(LOCK_LOAD(&lock->head), ticket))
			return 1;
		LOCK_PAUSE();
	} while (looks-- > 1);
	return 0;
}

/* Halts once, unless its turn has come. A waiter kicked for its turn, or ahead of it, looks again. */
static inline void ticket_wait(const struct pv_ticket_rules *rules, struct pv_ticket_lock *lock,
			       struct pv_ticket_cpus *cpus, u32 cpu, u16 ticket)
{
	struct pv_ticket_cpu *own = &cpus->of[cpu];
	u64 *waiting = &cpus->waiting[cpu / TICKET_WORD_BITS];
	u64 bit = 1ull << (cpu % TICKET_WORD_BITS);
	unsigned long before = LOCK_BEGIN_WAIT();

	LOCK_STORE(&own->want, ticket);
	LOCK_STORE(&own->lock, lock);
	LOCK_FETCH_OR(waiting, bit);
	LOCK_FETCH_OR(&lock->head, (u16)TICKET_SOMEBODY_HALTS);
	/* A holder that lets go from here on sees both; one that did so before is seen here. */
	if (!ticket_is_turn(LOCK_LOAD(&lock->head), ticket)) {
		if (rules->kind == PV_ITICKET && LOCK_LOAD(&lock->halts) < TICKET_WORD_BITS)
			LOCK_FETCH_ADD(&lock->halts, 1);
		own->halts++;
		LOCK_HALT(before);
	}
	LOCK_FETCH_AND(waiting, ~bit);
	LOCK_STORE(&own->lock, (struct pv_ticket_lock *)0);
	LOCK_END_WAIT(before);
}

/* Nobody waits behind the holder of this ticket: nobody has halted. */
static inline void ticket_forget_halts(struct pv_ticket_lock *lock, u16 ticket)
{
	u16 next = ticket + TICKET_STEP;
	u32 seen = (u32)next << 16 | ticket | TICKET_SOMEBODY_HALTS;

	if (LOCK_LOAD(&lock->both) == seen)
		LOCK_COMPARE_SWAP(&lock->both, seen, (u32)next << 16 | ticket);
}

/* `cpu` is below TICKET_CPUS_MAX, and this thread stays on it until it has let go. Returns the ticket. */
static inline u16 pv_ticket_lock(const struct pv_ticket_rules *rules, struct pv_ticket_lock *lock,
				 struct pv_ticket_cpus *cpus, u32 cpu)
{
	u32 both = LOCK_FETCH_ADD(&lock->both, TICKET_STEP << 16);
	u16 ticket = both >> 16, head = both & (u16)~TICKET_SOMEBODY_HALTS;
	u64 looks;

	if (head != ticket) {
		looks = ticket_spin_of(rules, lock, (u16)(ticket - head) / TICKET_STEP);
		while (!ticket_spin(lock, ticket, looks)) {
			ticket_wait(rules, lock, cpus, cpu, ticket);
			if (rules->kind == PV_ITICKET)
				looks = ticket_spin_of(rules, lock, 0);
		}
		cpus->of[cpu].waited++;
	}
	ticket_forget_halts(lock, ticket);
	cpus->of[cpu].taken++;
	return ticket;
}

/* Kicks the waiter for the turn `ticket`, if it has halted or is about to. */
static inline void ticket_kick(struct pv_ticket_lock *lock, struct pv_ticket_cpus *cpus, u32 cpu, u16 ticket)
{
	u32 word, other;
	u64 waiting;

	for (word = 0; word < TICKET_CPUS_MAX / TICKET_WORD_BITS; word++) {
		for (waiting = LOCK_LOAD(&cpus->waiting[word]); waiting; waiting &= waiting - 1) {
			other = word * TICKET_WORD_BITS + __builtin_ctzll(waiting);
			if (LOCK_LOAD(&cpus->of[other].lock) == lock &&
			    LOCK_LOAD(&cpus->of[other].want) == ticket) {
				cpus->of[cpu].kicks++;
				LOCK_KICK(other);
				return;
			}
		}
	}
}

static inline void pv_ticket_unlock(const struct pv_ticket_rules *rules, struct pv_ticket_lock *lock,
				    struct pv_ticket_cpus *cpus, u32 cpu)
{
	u16 head = LOCK_FETCH_ADD(&lock->head, (u16)TICKET_STEP);
	u32 ahead = rules->kind == PV_OTICKET ? rules->wake_ahead : 1, n;

	/* From here on the lock may be gone: only its address is compared. */
	if (!(head & TICKET_SOMEBODY_HALTS))
		return;
	for (n = 1; n <= ahead && n < TICKET_CPUS_MAX; n++)
		ticket_kick(lock, cpus, cpu, (head & ~TICKET_SOMEBODY_HALTS) + n * TICKET_STEP);
}

#endif
