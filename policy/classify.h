/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Classify: from a guest instruction pointer to what the guest is doing.
 *
 * Problem.   The hypervisor sees only the address at which a vCPU was preempted. The symbols of the guest
 *            kernel tell whether it held a lock there or multiplied matrices (paper 4.1).
 * Mechanism. Userspace turns the symbols of a guest kernel into at most CLASS_RANGES_MAX sorted, disjoint
 *            ranges of link-time addresses. A run-time address is moved back by the guest's KASLR slide and
 *            looked up by binary search.
 * Formula.   class(rip) = user             if the sign bit of rip is clear (64-bit Linux)
 *                         unknown          if there are no symbols, no slide yet, or rip is outside the text
 *                         ranges[i].class  if start_i <= rip - slide < end_i
 *                         kernel_other     otherwise
 * Limits.    Modules and BPF programs of the guest are outside the text, so they are unknown. A guest can
 *            lie about its code. The micro slices that it gains are charged to it like any others.
 */
#ifndef POLICY_CLASSIFY_H
#define POLICY_CLASSIFY_H

#include "types.h"

/* A power of two. The search takes a constant number of steps: 10 for 2^9 ranges. */
#define CLASS_RANGES_MAX 512u
#define CLASS_SEARCH_STEPS 10u

/* A range [start, end) of link-time addresses. */
struct class_range {
	u64 start;
	u64 end;
	enum guest_class guest_class;
	u32 reserved;
};

/* The code of one guest kernel image, shared by all guests that run it. */
struct guest_code {
	u64 text_start; /* link-time bounds of the kernel's text: [start, end) */
	u64 text_end;
	u32 range_count; /* at most CLASS_RANGES_MAX; 0: no symbols */
	u32 reserved;
	struct class_range ranges[CLASS_RANGES_MAX]; /* sorted by start, disjoint */
};

/* The memory layout of one guest. */
struct guest_layout {
	u64 slide;	 /* run-time address - link-time address */
	u32 slide_known; /* 0: the KASLR slide isn't known yet, or was dropped after a contradiction */
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

	/*
	 * Invariant: ranges before `low` end at or before the address, ranges from `high` on start after it.
	 */
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

/* True for code whose preemption makes other vCPUs wait: it is worth a micro slice (paper, Table 3). */
POLICY u32 class_is_critical(u32 guest_class)
{
	return guest_class == GUEST_CLASS_LOCK_HOLDER || guest_class == GUEST_CLASS_TLB_SHOOTDOWN ||
	       guest_class == GUEST_CLASS_RESCHED_IPI || guest_class == GUEST_CLASS_IRQ_HANDLER;
}

#endif
