// SPDX-License-Identifier: GPL-2.0-only
#include "hostile.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>

#define CPUID_ENTRIES 256
#define XAPIC_AND_X2APIC_ENABLED 0xc00
#define VECTOR 0x40
/* Of the code's two pages: the second has interrupt vectors, and a stack at its end (HOSTILE_STACK). */
#define VECTORS 0x1000u
/* Behind the code. */
#define HANDLER 0x80u

static const unsigned char pausing[] = {0xf3, 0x90, 0xeb, 0xfc};

/* x2APIC registers are MSRs, and WRMSR works in real mode. */
static const unsigned char interrupting[] = {
    0x66, 0xb9, 0x0f,	0x08, 0x00, 0x00, /* mov ecx, spurious vector register */
    0x66, 0xb8, 0xff,	0x01, 0x00, 0x00, /* mov eax, enabled */
    0x66, 0x31, 0xd2,			  /* xor edx, edx */
    0x0f, 0x30,				  /* wrmsr */
    0xfb,				  /* sti */
    0x66, 0xb9, 0x30,	0x08, 0x00, 0x00, /* again: mov ecx, interrupt command register */
    0x66, 0xb8, VECTOR, 0x40, 0x08, 0x00, /* mov eax, to all including itself */
    0x66, 0x31, 0xd2,			  /* xor edx, edx */
    0x0f, 0x30,				  /* wrmsr */
    0xeb, 0xed,				  /* jmp again */
};

static const unsigned char acknowledging[] = {
    0x66, 0x50, 0x66, 0x51, 0x66, 0x52, /* push eax, ecx, edx */
    0x66, 0xb9, 0x0b, 0x08, 0x00, 0x00, /* mov ecx, end of interrupt */
    0x66, 0x31, 0xc0, 0x66, 0x31, 0xd2, /* xor eax, eax; xor edx, edx */
    0x0f, 0x30,				/* wrmsr */
    0x66, 0x5a, 0x66, 0x59, 0x66, 0x58, /* pop edx, ecx, eax */
    0xcf,				/* iret */
};

/*
 * All 2 MiB of the upper GiB show the same memory: the code goes on in another of them each time. RBX is
 * where it begins.
 */
static const unsigned char sliding[] = {
    0x0f, 0x31,			  /* rdtsc */
    0x25, 0x00, 0x00, 0xe0, 0x1f, /* and eax, 0x1fe00000: a multiple of 2 MiB, below 512 MiB */
    0x4c, 0x8d, 0x04, 0x03,	  /* lea r8, [rbx + rax] */
    0x4c, 0x89, 0xc0,		  /* mov rax, r8 */
    0x4c, 0x89, 0xc2,		  /* mov rdx, r8 */
    0x48, 0xc1, 0xea, 0x20,	  /* shr rdx, 32 */
    0xb9, 0x82, 0x00, 0x00, 0xc0, /* mov ecx, MSR_LSTAR */
    0x0f, 0x30,			  /* wrmsr */
    0x49, 0x83, 0xc0, 0x25,	  /* add r8, offset of the halt */
    0x41, 0xff, 0xe0,		  /* jmp r8 */
    0x90, 0x90,			  /* up to 0x25 */
    0xf4,			  /* hlt */
    0xeb, 0xd8,			  /* jmp to the beginning, there */
};

enum hostility hostility_of(const char *word)
{
	if (!strcmp(word, "pauses"))
		return PAUSES;
	if (!strcmp(word, "interrupts"))
		return INTERRUPTS;
	return strcmp(word, "slides") ? NO_HOSTILITY : SLIDES;
}

void write_hostile_code(enum hostility hostility, unsigned char *memory, unsigned int at)
{
	if (hostility == PAUSES) {
		memcpy(memory, pausing, sizeof(pausing));
	} else if (hostility == SLIDES) {
		memcpy(memory, sliding, sizeof(sliding));
	} else if (hostility == INTERRUPTS) {
		const unsigned short handler[2] = {at + HANDLER, 0};

		memcpy(memory, interrupting, sizeof(interrupting));
		memcpy(memory + HANDLER, acknowledging, sizeof(acknowledging));
		memcpy(memory + VECTORS + VECTOR * sizeof(handler), handler, sizeof(handler));
	}
}

int prepare_hostile_vm(enum hostility hostility, int vm)
{
	return hostility == INTERRUPTS ? ioctl(vm, KVM_CREATE_IRQCHIP, 0) : 0;
}

/* What the host supports, x2APIC among it. */
static int set_cpuid(int kvm, int vcpu)
{
	struct kvm_cpuid2 *cpuid =
	    calloc(1, sizeof(*cpuid) + CPUID_ENTRIES * sizeof(struct kvm_cpuid_entry2));
	int failed;

	if (!cpuid)
		return -1;
	cpuid->nent = CPUID_ENTRIES;
	failed = ioctl(kvm, KVM_GET_SUPPORTED_CPUID, cpuid) || ioctl(vcpu, KVM_SET_CPUID2, cpuid);
	free(cpuid);
	return failed;
}

int prepare_hostile_vcpu(enum hostility hostility, int kvm, int vcpu, unsigned int at,
			 struct kvm_sregs *sregs)
{
	struct kvm_mp_state runnable = {.mp_state = KVM_MP_STATE_RUNNABLE};

	if (hostility != INTERRUPTS)
		return 0;
	sregs->apic_base |= XAPIC_AND_X2APIC_ENABLED;
	sregs->idt.base = at + VECTORS;
	sregs->idt.limit = 0x3ff;
	sregs->ss.base = 0;
	sregs->ss.selector = 0;
	return set_cpuid(kvm, vcpu) || ioctl(vcpu, KVM_SET_MP_STATE, &runnable);
}

void rename_kernel(char *memory)
{
	static unsigned int names; /* vCPUs count together */

	sprintf(memory, "Linux version 6.1.%u (nobody@nowhere) #1 SMP\n",
		__atomic_fetch_add(&names, 1, __ATOMIC_RELAXED) % 200);
}
