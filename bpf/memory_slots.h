/* SPDX-License-Identifier: GPL-2.0-only */
/* What bpf/memory_slots.bpf.c writes and crates/host/src/guests/memory_slots.rs reads. */
#ifndef BPF_MEMORY_SLOTS_H
#define BPF_MEMORY_SLOTS_H

/* One memory slot of a VM that the process holds open as `fd`. */
struct memory_slot_record {
	u64 base_page;
	u64 page_count;
	u64 userspace_addr;
	u32 fd;
	u32 padding;
};

/* The reader's RECORD_BYTES, and where it looks for fd. */
_Static_assert(sizeof(struct memory_slot_record) == 32, "32 bytes a record");
_Static_assert(__builtin_offsetof(struct memory_slot_record, fd) == 24, "fd is the last word but one");

#endif
