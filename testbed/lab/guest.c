// SPDX-License-Identifier: GPL-2.0-only
/*
 * The lab's guest: a program in ring 3 that does to its host what a kernel does.
 *
 * Problem.   On a host without virtualization extensions KVM runs ring 3 natively, and interprets ring 0.
 *            Stock kernels don't boot there.
 * Mechanism. All loads run in ring 3, in the upper half of the address space, where host tools take code for
 *            a kernel's. It reaches its local APIC by memory. Handlers of interrupts, in ring 0, are three
 *            instructions (vmm.c). Functions have the names of those of Linux that do the same, so that a
 *            table of its symbols says where it holds locks.
 * Limits.    It halts by asking its VMM for it (LAB_DOOR): KVM then has it halted as if it had executed HLT.
 *            Nobody tells it of steal time, and it has no paravirtual locks.
 */
#include "lab.h"

#include <stddef.h>

#define SHARED ((struct lab_shared *)(LAB_TEXT + LAB_SHARED))
#define APIC_REGISTER(offset) (*(volatile uint32_t *)(LAB_APIC_VIRTUAL + (offset)))
#define APIC_SPURIOUS APIC_REGISTER(0xf0)
#define APIC_COMMAND APIC_REGISTER(0x300)
#define APIC_COMMAND_TO APIC_REGISTER(0x310)
#define APIC_TIMER APIC_REGISTER(0x320)
#define APIC_TIMER_COUNT APIC_REGISTER(0x380)
#define APIC_TIMER_DIVIDER APIC_REGISTER(0x3e0)
#define APIC_DIVIDE_BY_1 0xb
#define APIC_ENABLED 0x1ff
#define APIC_ALL_BUT_SELF 0xc0000u
#define PAGE_OFFSET 0xffff888000000000ul
#define KERNEL_MAP 0xffffffff80000000ul
#define IDLE_US 1000
#define IDLE_EVERY_US 200000

#define LISTED __attribute__((noinline, noclone, section(".text")))

static inline uint64_t now(void)
{
	uint32_t low, high;

	__asm__ volatile("rdtsc" : "=a"(low), "=d"(high)::"memory");
	return (uint64_t)high << 32 | low;
}

static inline void relax(void)
{
	__asm__ volatile("pause" ::: "memory");
}

static inline void turn(uint64_t turns)
{
	while (turns--)
		__asm__ volatile("" ::: "memory");
}

/* ---- Where host tools find the vCPUs' counts, as they do in Linux ---- */

_Static_assert(LAB_SHARED + offsetof(struct lab_shared, vcpus) == 0x200100, "guest.ld");
_Static_assert(offsetof(struct lab_vcpu, cpu_number) == 0x4, "guest.ld");
_Static_assert(offsetof(struct lab_vcpu, this_cpu_off) == 0x30, "guest.ld");
_Static_assert(offsetof(struct lab_vcpu, apic_id) == 0x38, "guest.ld");

const char linux_banner[] __attribute__((used)) = "Linux version 0 (the lab's guest)";
const uint64_t phys_base __attribute__((used)) = KERNEL_MAP - LAB_TEXT;
const uint64_t page_offset_base __attribute__((used)) = PAGE_OFFSET;
volatile uint64_t __per_cpu_offset[LAB_VCPUS_MAX] = {};

static void name_oneself(struct lab_vcpu *self, uint64_t id)
{
	self->cpu_number = id;
	self->apic_id = id;
	self->this_cpu_off = PAGE_OFFSET - LAB_TEXT + id * sizeof(*self);
	__per_cpu_offset[id] = self->this_cpu_off;
}

static unsigned int bucket_of(uint64_t value)
{
	unsigned int octave;

	if (value < 8)
		return value;
	octave = 63 - __builtin_clzl(value);
	return 8 * (octave - 2) + ((value >> (octave - 3)) & 7);
}

static void count(struct lab_vcpu *self, enum lab_latency kind, uint64_t ticks)
{
	self->latency[kind][bucket_of(ticks)]++;
	if (ticks > self->max[kind])
		self->max[kind] = ticks;
}

/* ---- Locks: a round takes one, holds it for a while, and gives it up ---- */

/* Known to hold a lock: critical/linux.toml. */
LISTED void rmqueue_bulk(uint64_t turns)
{
	turn(turns);
}

LISTED void hold_without_a_name(uint64_t turns)
{
	turn(turns);
}

static void hold(struct lab_shared *shared)
{
	if (shared->is_listed)
		rmqueue_bulk(shared->hold);
	else
		hold_without_a_name(shared->hold);
}

/* Where kernels without queued locks wait for one. */
LISTED void _raw_spin_lock(struct lab_shared *shared, struct lab_vcpu *self)
{
	uint32_t mine = __atomic_fetch_add(&shared->ticket_next, 1, __ATOMIC_SEQ_CST);

	while (shared->ticket_owner != mine)
		relax();
}

LISTED void native_queued_spin_lock_slowpath(struct lab_shared *shared, struct lab_vcpu *self)
{
	uint64_t me = 1 + (self - shared->vcpus), before;

	self->queue_next = 0;
	self->queue_waits = 1;
	before = __atomic_exchange_n(&shared->queue_tail, me, __ATOMIC_SEQ_CST);
	if (!before)
		return;
	shared->vcpus[before - 1].queue_next = me;
	while (self->queue_waits)
		relax();
}

LISTED void queued_spin_unlock(struct lab_shared *shared, struct lab_vcpu *self)
{
	uint64_t me = 1 + (self - shared->vcpus), mine = me;

	if (__atomic_compare_exchange_n(&shared->queue_tail, &mine, 0, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
		return;
	while (!self->queue_next)
		relax();
	shared->vcpus[self->queue_next - 1].queue_waits = 0;
}

static void lock_round(struct lab_shared *shared, struct lab_vcpu *self)
{
	int is_queued = shared->load == LAB_QUEUED_LOCK;
	uint64_t since = now();

	self->preempt_count = 1;
	if (is_queued)
		native_queued_spin_lock_slowpath(shared, self);
	else
		_raw_spin_lock(shared, self);
	count(self, LAB_LOCK, now() - since);
	hold(shared);
	if (is_queued)
		queued_spin_unlock(shared, self);
	else
		shared->ticket_owner++;
	self->preempt_count = shared->lies;
}

/* It computes for as long, and says that it holds something. Nobody waits for it. */
static void claim_round(struct lab_shared *shared, struct lab_vcpu *self)
{
	self->preempt_count = 1;
	hold(shared);
	self->preempt_count = shared->lies;
}

/* ---- Calls to all siblings, which wait for each answer ---- */

LISTED void smp_call_function_many_cond(struct lab_shared *shared, struct lab_vcpu *self)
{
	uint64_t taken[LAB_VCPUS_MAX], since = now();

	for (uint64_t id = 0; id < shared->vcpu_count; id++)
		taken[id] = shared->vcpus[id].calls_taken;
	APIC_COMMAND = APIC_ALL_BUT_SELF | LAB_CALL;
	for (uint64_t id = 0; id < shared->vcpu_count; id++)
		while (&shared->vcpus[id] != self && shared->vcpus[id].calls_taken == taken[id])
			relax();
	count(self, LAB_SHOOTDOWN, now() - since);
}

static void call_round(struct lab_shared *shared, struct lab_vcpu *self)
{
	/* One at a time: else an answer to another's call would be taken for one's own. */
	if (__atomic_exchange_n(&shared->is_calling, 1, __ATOMIC_SEQ_CST))
		return;
	self->preempt_count = 1;
	smp_call_function_many_cond(shared, self);
	self->preempt_count = shared->lies;
	__atomic_store_n(&shared->is_calling, 0, __ATOMIC_SEQ_CST);
}

/* ---- Sleepers ---- */

/* Where Linux halts: what KVM shows of a halted vCPU is an address in here. */
LISTED void pv_native_safe_halt(uint32_t timers_taken)
{
	*(volatile uint32_t *)LAB_DOOR_VIRTUAL = timers_taken;
	__asm__ volatile("nop");
}

/* Returns by how many ticks it was late. */
static uint64_t sleep(struct lab_shared *shared, struct lab_vcpu *self, uint64_t us)
{
	uint64_t taken = self->timers_taken, due = now() + us * shared->ticks_per_us, woken;

	APIC_TIMER_COUNT = us * 1000;
	self->preempt_count = 1;
	while (self->timers_taken == taken)
		pv_native_safe_halt(taken);
	self->preempt_count = shared->lies;
	woken = now();
	return woken > due ? woken - due : 0;
}

/* Every vCPU idles now and then, as those of kernels do: who looks for where it halts sees it. */
static void idle_sometimes(struct lab_shared *shared, struct lab_vcpu *self, uint64_t *idles_at)
{
	if (now() < *idles_at)
		return;
	sleep(shared, self, IDLE_US);
	*idles_at = now() + IDLE_EVERY_US * shared->ticks_per_us;
}

/* ---- Rounds ---- */

LISTED void compute_in_user_half(uint64_t turns)
{
	turn(turns);
}

/* Computes in the lower half of the address space, as guests' programs do. */
static void compute(uint64_t turns)
{
	uint64_t within = (uint64_t)compute_in_user_half & (LAB_SHARED - 1);

	((void (*)(uint64_t))(LAB_USER_TEXT + within))(turns);
}

static void round_of(struct lab_shared *shared, struct lab_vcpu *self)
{
	compute(shared->compute);
	switch (shared->load) {
	case LAB_TICKET_LOCK:
	case LAB_QUEUED_LOCK:
	case LAB_USER_LOCK:
		lock_round(shared, self);
		break;
	case LAB_CLAIMS:
		claim_round(shared, self);
		break;
	case LAB_CALLS:
		call_round(shared, self);
		break;
	case LAB_SLEEP:
		count(self, LAB_WAKE, sleep(shared, self, shared->sleep_us));
		break;
	}
	self->work++;
}

/* Where each vCPU begins, in ring 3. */
__attribute__((section(".text.start"))) void start(uint64_t id)
{
	struct lab_shared *shared = SHARED;
	struct lab_vcpu *self = &shared->vcpus[id];
	uint64_t idles_at;

	name_oneself(self, id);
	APIC_SPURIOUS = APIC_ENABLED;
	APIC_TIMER_DIVIDER = APIC_DIVIDE_BY_1;
	APIC_TIMER = LAB_TIMER;
	__atomic_fetch_add(&shared->started, 1, __ATOMIC_SEQ_CST);
	while (shared->started < shared->vcpu_count)
		relax();
	idles_at = now();
	for (;;) {
		idle_sometimes(shared, self, &idles_at);
		round_of(shared, self);
	}
}
