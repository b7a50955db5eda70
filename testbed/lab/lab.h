// SPDX-License-Identifier: GPL-2.0-only
/*
 * What the lab's guest and its VMM share: the layout of the guest's memory, and what vCPUs count there.
 *
 * Physical address   what lies there                                  where the guest sees it
 * 0                  its code and data, linked at LAB_TEXT            LAB_TEXT, and LAB_USER_TEXT
 * LAB_SHARED         struct lab_shared                                LAB_TEXT + LAB_SHARED
 * LAB_TABLES         page tables, descriptors, interrupt handlers     LAB_TEXT + LAB_TABLES
 * LAB_STACKS         a stack of each vCPU, and one of its interrupts  LAB_TEXT + LAB_STACKS
 * LAB_APIC           each vCPU's local APIC                           LAB_APIC_VIRTUAL
 * LAB_DOOR           nothing: a write there reaches the VMM           LAB_DOOR_VIRTUAL
 */
#ifndef LAB_H
#define LAB_H

#include <stdint.h>

#define LAB_TEXT 0xffffffff81000000ul
#define LAB_USER_TEXT 0x400000ul
#define LAB_SHARED 0x200000ul
#define LAB_TABLES 0x400000ul
#define LAB_STACKS 0x600000ul
#define LAB_MEMORY 0x800000ul
#define LAB_STACK_BYTES 0x4000ul
#define LAB_APIC 0xfee00000ul
#define LAB_APIC_VIRTUAL 0xffffffffc0000000ul
#define LAB_DOOR 0xd0000000ul
#define LAB_DOOR_VIRTUAL 0xffffffffc0200000ul

#define LAB_VCPUS_MAX 32

/* Vectors, as Linux has them (arch/x86/include/asm/irq_vectors.h). */
#define LAB_TIMER 0xec
#define LAB_CALL 0xfc

/* Latencies are counted in octaves of eight equal buckets each, as by testbed/guest/stats.h. */
#define LAB_BUCKETS 496

enum lab_latency { LAB_LOCK, LAB_SHOOTDOWN, LAB_WAKE, LAB_LATENCIES };

/* What a vCPU does between two rounds of its load. */
enum lab_load {
	LAB_COMPUTE,
	LAB_TICKET_LOCK,
	LAB_QUEUED_LOCK,
	LAB_USER_LOCK,
	LAB_CALLS,
	LAB_SLEEP,
	LAB_CLAIMS,
	LAB_LOADS
};

struct lab_vcpu {
	/* As Linux's preempt_count: 1 while it holds a lock, waits for one, calls its siblings, or idles. */
	volatile uint32_t preempt_count;
	uint32_t cpu_number;
	volatile uint64_t calls_taken;	/* by its handler */
	volatile uint64_t timers_taken; /* likewise */
	volatile uint64_t work;
	volatile uint64_t queue_next; /* of a queued lock: 1 + the vCPU behind it */
	volatile uint64_t queue_waits;
	uint64_t this_cpu_off; /* as Linux has it: what leads from the first vCPU's variables to these */
	uint32_t apic_id;
	uint32_t pad;
	volatile uint64_t max[LAB_LATENCIES];
	volatile uint64_t latency[LAB_LATENCIES][LAB_BUCKETS]; /* in ticks of the time-stamp counter */
};

struct lab_shared {
	/* Written by the VMM before the first vCPU runs. */
	uint64_t load;
	uint64_t vcpu_count;
	uint64_t compute;   /* turns of a loop outside of locks */
	uint64_t hold;	    /* within one */
	uint64_t is_listed; /* it holds them in a function that is known to hold locks */
	uint64_t sleep_us;
	uint64_t ticks_per_us;
	uint64_t lies; /* what a vCPU counts while it holds nothing */
	volatile uint32_t ticket_next, ticket_owner;
	uint64_t pad2[7];
	volatile uint64_t queue_tail; /* 1 + the vCPU at its end */
	uint64_t pad3[7];
	volatile uint32_t is_calling;
	volatile uint32_t started; /* so many vCPUs take interrupts */
	uint32_t pad4[14];
	struct lab_vcpu vcpus[LAB_VCPUS_MAX];
};

#endif
