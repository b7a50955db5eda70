/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Urgent queue: a pCPU's FIFO of vCPUs that are urgent (policy/urgent.h), over the vCPUs' queue.
 *
 * Mechanism. It holds numbers, not tasks. A vCPU in it waits in the normal queues as well, and leaves both
 *            when it runs, whichever was faster. Any pCPU may put a vCPU into it; only its own takes one out.
 * Races.     A place is claimed first, and written then: a pCPU that looks in between finds it empty, and
 *            is kicked once it is written. A vCPU that ran meanwhile leaves its entry: `line_pcpu` says
 *            that it means nothing.
 * Limits.    URGENT_LINE_MAX entries: a vCPU that finds no room waits like any other, and is counted.
 */
#ifndef BPF_URGENT_QUEUE_H
#define BPF_URGENT_QUEUE_H

#include "bpf/mechanisms/placement.bpf.h"

#define URGENT_LINE_MAX 64u /* a power of two */
#define URGENT_CLAIM_ATTEMPTS 8u
#define LINE_PCPU_CLAIMED (~0u)

struct urgent_queue_vcpu {
	u32 line_pcpu; /* pCPU + 1 in whose urgent queue it waits; 0: in none; or LINE_PCPU_CLAIMED */
};

struct urgent_queue_pcpu {
	u32 head;		   /* entries taken so far */
	u32 tail;		   /* places claimed so far */
	u32 vm;			   /* slot + 1 of the VM whose vCPU came last */
	u32 line[URGENT_LINE_MAX]; /* vCPU slot + 1; 0: free, or not written yet */
};

static __always_inline struct urgent_queue_vcpu *urgent_queue_of(const struct vcpu *vcpu);
static __always_inline struct urgent_queue_pcpu *urgent_queue_on(const struct pcpu *pcpu);

static __always_inline u32 urgent_line_length(const struct pcpu *pcpu)
{
	return urgent_queue_on(pcpu)->tail - urgent_queue_on(pcpu)->head;
}

/* Only one caller puts it into a queue, until it has run or is found not to wait any more. */
static __always_inline bool claim_for_line(struct vcpu *vcpu)
{
	return __sync_val_compare_and_swap(&urgent_queue_of(vcpu)->line_pcpu, 0, LINE_PCPU_CLAIMED) == 0;
}

static __always_inline void leave_line(struct vcpu *vcpu)
{
	urgent_queue_of(vcpu)->line_pcpu = 0;
}

/* At the tail of that pCPU's queue. Callers have claimed the vCPU; false: there is no room. */
__noinline int enter_line(u32 slot, s32 cpu)
{
	struct vcpu *vcpu = vcpu_at(slot);
	struct pcpu *pcpu = pcpu_of(cpu);
	struct urgent_queue_pcpu *queue;
	u32 attempt;

	if (!vcpu || !pcpu)
		return false;
	queue = urgent_queue_on(pcpu);
	bpf_for (attempt, 0, URGENT_CLAIM_ATTEMPTS) {
		u32 tail = queue->tail;

		if (tail - queue->head >= URGENT_LINE_MAX)
			break;
		if (__sync_val_compare_and_swap(&queue->tail, tail, tail + 1) != tail)
			continue;
		urgent_queue_of(vcpu)->line_pcpu = cpu + 1;
		queue->vm = vcpu->vm + 1;
		__sync_lock_test_and_set(&queue->line[tail & (URGENT_LINE_MAX - 1)], slot + 1);
		return true;
	}
	leave_line(vcpu);
	return false;
}

/*
 * The slot + 1 of the first that still waits here, which leaves the queue; 0: nobody. Only for this pCPU's
 * dispatch.
 */
static __always_inline u32 take_from_line(s32 cpu, struct pcpu *pcpu)
{
	struct urgent_queue_pcpu *queue = urgent_queue_on(pcpu);
	u32 entry, step;

	bpf_for (step, 0, URGENT_LINE_MAX) {
		struct vcpu *vcpu;

		if (queue->head == queue->tail)
			break;
		entry = __sync_lock_test_and_set(&queue->line[queue->head & (URGENT_LINE_MAX - 1)], 0);
		if (!entry)
			break;
		queue->head++;
		vcpu = vcpu_at(entry - 1);
		if (!vcpu || urgent_queue_of(vcpu)->line_pcpu != (u32)cpu + 1)
			continue;
		leave_line(vcpu);
		return entry;
	}
	return 0;
}

#endif
