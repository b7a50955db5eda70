/* SPDX-License-Identifier: GPL-2.0-only */
/* How pv_ticket.h accesses memory where nobody watches: in the kernel, and in programs. */
#ifndef GUEST_ACCESS_H
#define GUEST_ACCESS_H

#define LOCK_LOAD(p) __atomic_load_n(p, __ATOMIC_ACQUIRE)
#define LOCK_STORE(p, value) __atomic_store_n(p, value, __ATOMIC_RELEASE)
#define LOCK_FETCH_ADD(p, value) __atomic_fetch_add(p, value, __ATOMIC_SEQ_CST)
#define LOCK_FETCH_OR(p, value) __atomic_fetch_or(p, value, __ATOMIC_SEQ_CST)
#define LOCK_FETCH_AND(p, value) __atomic_fetch_and(p, value, __ATOMIC_SEQ_CST)
#define LOCK_COMPARE_SWAP(p, old, new)                                                                       \
	({                                                                                                   \
		__typeof__(*(p)) expected = (old);                                                           \
		__atomic_compare_exchange_n(p, &expected, new, 0, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED);       \
	})

#endif
