/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Classify: from a guest instruction pointer to what the guest is doing.
 *
 * Problem.   The hypervisor sees a preempted vCPU only as an address. Whether it held a lock or multiplied
 *            matrices is written in the guest kernel's symbols (paper 4.1).
 * Mechanism. Userspace turns the symbols of one guest kernel into at most CLASS_RANGES_MAX sorted, disjoint
 *            ranges, at link-time addresses. An address is moved back by the guest's KASLR slide and looked
 *            up by binary search.
 * Formula.   class(rip) = user             if the sign bit of rip is clear (64-bit Linux)
 *                         unknown          if there are no symbols, no slide yet, or rip is outside the text
 *                         ranges[i].class  if start_i <= rip - slide < end_i
 *                         kernel_other     otherwise
 * Limits.    Modules and BPF programs of the guest are outside the text: unknown. The guest can lie about its
 *            code; a lie buys it micro slices that are charged to it like any others.
 */
#ifndef POLICY_CLASSIFY_H
#define POLICY_CLASSIFY_H

#include "types.h"

/* Power of two, so that the search below takes a constant number of steps: 2^9 ranges, 10 steps. */
#define CLASS_RANGES_MAX 512u
#define CLASS_SEARCH_STEPS 10u

/* Link-time addresses, [start, end). */
struct class_range {
	u64 start;
	u64 end;
	enum guest_class guest_class;
	u32 reserved;
};

/* What is known of one guest kernel image: shared by all guests that run it. */
struct guest_code {
	u64 text_start; /* link-time bounds of the kernel's text, [start, end) */
	u64 text_end;
	u32 range_count; /* at most CLASS_RANGES_MAX; 0: no symbols */
	u32 reserved;
	struct class_range ranges[CLASS_RANGES_MAX]; /* sorted by start, disjoint */
};

/* What is known of one guest's memory layout. */
struct guest_layout {
	u64 slide;	 /* run-time address - link-time address */
	u32 slide_known; /* 0: KASLR slide not found yet, or dropped after a contradiction */
	u32 reserved;
};

POLICY u32 classify(const struct guest_code *code, const struct guest_layout *layout, u64 rip)
{
	u32 low = 0, high = code->range_count;
	u64 address;

	if (!(rip >> 63))
		return GUEST_CLASS_USER;
	if (!layout->slide_known || high == 0 || high > CLASS_RANGES_MAX)
		return GUEST_CLASS_UNKNOWN;

	address = rip - layout->slide;
	if (address < code->text_start || address >= code->text_end)
		return GUEST_CLASS_UNKNOWN;

	/* Invariant: ranges below low end at or before address, ranges from high on start after it. */
	for (u32 step = 0; step < CLASS_SEARCH_STEPS && low < high; step++) {
		u32 middle = ((low + high) / 2) & (CLASS_RANGES_MAX - 1);
		const struct class_range *range = &code->ranges[middle];

		if (address < range->start)
			high = middle;
		else if (address >= range->end)
			low = middle + 1;
		else
			return range->guest_class < GUEST_CLASS_COUNT ? range->guest_class
								      : GUEST_CLASS_UNKNOWN;
	}
	return GUEST_CLASS_KERNEL_OTHER;
}

/* Code whose preemption makes others wait: worth a micro slice (paper, Table 3). */
POLICY u32 class_is_critical(u32 guest_class)
{
	return guest_class == GUEST_CLASS_LOCK_HOLDER || guest_class == GUEST_CLASS_TLB_SHOOTDOWN ||
	       guest_class == GUEST_CLASS_RESCHED_IPI || guest_class == GUEST_CLASS_IRQ_HANDLER;
}

#endif
