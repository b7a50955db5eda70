/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The hint page: what a guest says to its host of when it isn't to be preempted (Uhlig et al., VM'04, section
 * 3.1).
 *
 * Problem.   Only the guest knows when one of its vCPUs holds a lock that others wait for.
 * Mechanism. A word for each vCPU in the guest's own memory: not now, for so many microseconds; 0: as you
 *            like. The guest writes it, and needs no exit for that. The host looks for the page by its
 *            signature. It looks in the lowest 16 MiB of guest-physical memory (Linux's ZONE_DMA), at the
 *            begin of a page only. It reads the page where a turn may end.
 * Trust.     None. The host believes a word up to its window. A guest that overdraws pays for it by its next
 *            turns (policy/delay_preemption.h). A page that is forged costs its own VM only.
 *
 * Includers bring the words u8, u32 and u64. The reader of the daemon (crates/host/src/guests/hint_page.rs)
 * has the same numbers.
 */
#ifndef GUEST_HINT_PAGE_H
#define GUEST_HINT_PAGE_H

#define HINT_SIGNATURE "microslice-hints" /* 16 bytes, without an end */
#define HINT_VERSION 1u
#define HINT_VCPUS_MAX 512u
/* Of the head, and of each vCPU's hint: a cache line of its own. */
#define HINT_LINE_BYTES 64u
#define HINT_MEMORY_END (16u << 20)

struct hint_head {
	u8 signature[16];
	u32 version;
	u32 vcpu_count;	    /* so many hints follow */
	u64 guest_physical; /* where this lies: a copy of the page is none */
	u8 reserved[32];
};

/* Of the vCPU whose APIC ID, which is KVM's number of it, is its place. */
struct guest_hint {
	u32 not_now_us;
	u32 reserved[15];
};

_Static_assert(sizeof(HINT_SIGNATURE) == 17, "16 bytes and C's end");
_Static_assert(sizeof(struct hint_head) == HINT_LINE_BYTES, "a line");
_Static_assert(sizeof(struct guest_hint) == HINT_LINE_BYTES, "a line");

/* How far behind the page's begin the hint of that vCPU lies. */
static inline u64 hint_offset(u32 vcpu)
{
	return HINT_LINE_BYTES * (1ull + vcpu);
}

#endif
