/* SPDX-License-Identifier: GPL-2.0-only */
/* What bpf/memory_slots.bpf.c writes and crates/host/src/memory_slots.rs reads. */
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

#endif
