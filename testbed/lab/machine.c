// SPDX-License-Identifier: GPL-2.0-only
#include "machine.h"
#include "lab.h"

#include <linux/kvm.h>
#include <stddef.h>
#include <string.h>
#include <sys/ioctl.h>

/* In LAB_TABLES. */
enum {
	PML4 = 0,
	PDPT = 0x1000,
	PD_KERNEL = 0x2000,
	PD_DEVICES = 0x3000,
	PDPT_USER = 0x4000,
	PD_USER = 0x5000
};
/* Of each vCPU, behind those: a page that has all but its interrupt table, which is the next one. */
enum {
	DESCRIPTORS = 0x10000,
	DESCRIPTORS_BYTES = 0x2000,
	GDT = 0,
	TSS = 0x100,
	HANDLERS = 0x200,
	IDT = 0x1000
};

/* Present, writable, for ring 3, accessed, dirty; and 2 MiB large; and not cached. */
#define TABLE 0x67ul
#define HUGE_PAGE 0xe7ul
#define DEVICE_PAGE 0xf7ul
#define HUGE_BYTES 0x200000ul

enum { KERNEL_CODE = 0x10, KERNEL_DATA = 0x18, USER_DATA = 0x2b, USER_CODE = 0x33, TASK = 0x40 };
#define GATE_INTERRUPT 0x8e00ul
#define TASK_LIMIT 0x67u
#define APIC_END_OF_INTERRUPT 0xb0u

#define CR0_PE_ET_NE_PG 0x80000031ul
#define CR4_PAE 0x20ul
#define EFER_LME_LMA 0x500ul
#define INTERRUPTS_ON 0x202ul

static unsigned long descriptors_of(unsigned int id)
{
	return LAB_TABLES + DESCRIPTORS + id * DESCRIPTORS_BYTES;
}

void write_page_tables(unsigned char *memory)
{
	unsigned char *tables = memory + LAB_TABLES;
	uint64_t *pml4 = (void *)(tables + PML4), *pdpt = (void *)(tables + PDPT);
	uint64_t *kernel = (void *)(tables + PD_KERNEL), *devices = (void *)(tables + PD_DEVICES);
	uint64_t *user_pdpt = (void *)(tables + PDPT_USER), *user = (void *)(tables + PD_USER);

	pml4[511] = (LAB_TABLES + PDPT) | TABLE;
	pml4[0] = (LAB_TABLES + PDPT_USER) | TABLE;
	pdpt[510] = (LAB_TABLES + PD_KERNEL) | TABLE;
	pdpt[511] = (LAB_TABLES + PD_DEVICES) | TABLE;
	user_pdpt[0] = (LAB_TABLES + PD_USER) | TABLE;
	for (unsigned long at = 0; at < LAB_MEMORY; at += HUGE_BYTES) {
		kernel[(LAB_TEXT + at) / HUGE_BYTES % 512] = at | HUGE_PAGE;
		user[(LAB_USER_TEXT + at) / HUGE_BYTES % 512] = at | HUGE_PAGE;
	}
	devices[LAB_APIC_VIRTUAL / HUGE_BYTES % 512] = LAB_APIC | DEVICE_PAGE;
	devices[LAB_DOOR_VIRTUAL / HUGE_BYTES % 512] = LAB_DOOR | DEVICE_PAGE;
}

/* inc qword [counter]; mov dword [end of interrupt], 0; iretq */
static void write_handler(unsigned char *at, uint32_t counter)
{
	const uint32_t end_of_interrupt = (uint32_t)(LAB_APIC_VIRTUAL + APIC_END_OF_INTERRUPT);

	memcpy(at, "\x48\xff\x04\x25", 4);
	memcpy(at + 4, &counter, sizeof(counter));
	memcpy(at + 8, "\xc7\x04\x25", 3);
	memcpy(at + 11, &end_of_interrupt, sizeof(end_of_interrupt));
	memcpy(at + 15, "\0\0\0\0\x48\xcf", 6);
}

static void write_gate(uint64_t *table, unsigned int vector, uint64_t handler)
{
	table[2 * vector] =
	    (handler & 0xffff) | KERNEL_CODE << 16 | GATE_INTERRUPT << 32 | (handler >> 16 & 0xffff) << 48;
	table[2 * vector + 1] = handler >> 32;
}

void write_descriptors(unsigned char *memory, unsigned int id)
{
	const uint64_t place = LAB_TEXT + descriptors_of(id), task = place + TSS;
	const uint64_t stack = LAB_TEXT + LAB_STACKS + (2 * id + 2) * LAB_STACK_BYTES;
	const uint32_t counters = (uint32_t)(LAB_TEXT + LAB_SHARED + offsetof(struct lab_shared, vcpus) +
					     id * sizeof(struct lab_vcpu));
	unsigned char *own = memory + descriptors_of(id);
	uint64_t *gdt = (void *)(own + GDT), *idt = (void *)(own + IDT);

	gdt[KERNEL_CODE / 8] = 0x00af9b000000fffful;
	gdt[KERNEL_DATA / 8] = 0x00cf93000000fffful;
	gdt[USER_DATA / 8] = 0x00cff3000000fffful;
	gdt[USER_CODE / 8] = 0x00affb000000fffful;
	gdt[TASK / 8] = TASK_LIMIT | (task & 0xffffff) << 16 | 0x8bul << 40 | (task >> 24 & 0xff) << 56;
	gdt[TASK / 8 + 1] = task >> 32;
	memcpy(own + TSS + 4, &stack, sizeof(stack));
	write_handler(own + HANDLERS, counters + offsetof(struct lab_vcpu, calls_taken));
	write_handler(own + HANDLERS + 32, counters + offsetof(struct lab_vcpu, timers_taken));
	write_gate(idt, LAB_CALL, place + HANDLERS);
	write_gate(idt, LAB_TIMER, place + HANDLERS + 32);
}

static struct kvm_segment segment(unsigned int selector, unsigned int type)
{
	const bool is_code = type == 11;

	return (struct kvm_segment){.limit = 0xffffffff,
				    .selector = selector,
				    .type = type,
				    .present = 1,
				    .dpl = 3,
				    .db = !is_code,
				    .s = 1,
				    .l = is_code,
				    .g = 1};
}

int prepare_vcpu(int vcpu, unsigned int id, bool in_user_half)
{
	const uint64_t place = LAB_TEXT + descriptors_of(id);
	const uint64_t stack = LAB_TEXT + LAB_STACKS + (2 * id + 1) * LAB_STACK_BYTES;
	struct kvm_mp_state runnable = {.mp_state = KVM_MP_STATE_RUNNABLE};
	/* As behind a call: where the stack is aligned. */
	struct kvm_regs regs = {.rip = in_user_half ? LAB_USER_TEXT : LAB_TEXT,
				.rflags = INTERRUPTS_ON,
				.rsp = stack - 8,
				.rdi = id};
	struct kvm_sregs sregs;

	if (ioctl(vcpu, KVM_GET_SREGS, &sregs))
		return -1;
	sregs.cr0 = CR0_PE_ET_NE_PG;
	sregs.cr3 = LAB_TABLES + PML4;
	sregs.cr4 = CR4_PAE;
	sregs.efer = EFER_LME_LMA;
	sregs.cs = segment(USER_CODE, 11);
	sregs.ds = sregs.es = sregs.fs = sregs.gs = sregs.ss = segment(USER_DATA, 3);
	sregs.gdt = (struct kvm_dtable){.base = place + GDT, .limit = TSS - 1};
	sregs.idt = (struct kvm_dtable){.base = place + IDT, .limit = 0xfff};
	sregs.tr = (struct kvm_segment){
	    .base = place + TSS, .limit = TASK_LIMIT, .selector = TASK, .type = 11, .present = 1};
	return ioctl(vcpu, KVM_SET_SREGS, &sregs) || ioctl(vcpu, KVM_SET_REGS, &regs) ||
		       ioctl(vcpu, KVM_SET_MP_STATE, &runnable)
		   ? -1
		   : 0;
}
