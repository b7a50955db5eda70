// SPDX-License-Identifier: GPL-2.0-only
/*
 * Guests that mean ill of their host: what a vCPU of theirs does without end, as machine code.
 *
 *   pauses       PAUSE, in real mode: an exit each, where the host has pause-loop exiting
 *   interrupts   an interrupt to all vCPUs, itself included, and each one's acknowledgement, in real mode
 *   slides       in the upper half: another syscall entry (MSR_LSTAR), a halt at another address, and so on;
 *                its VMM writes another kernel's name into its memory meanwhile
 */
#ifndef HOSTILE_H
#define HOSTILE_H

#include <linux/kvm.h>

/* Of the code's two pages the end, where it has a stack: the code lies at 0x1000. */
#define HOSTILE_STACK 0x2ff0ul

enum hostility { NO_HOSTILITY, PAUSES, INTERRUPTS, SLIDES };

/* What the word says; NO_HOSTILITY for any other. */
enum hostility hostility_of(const char *word);

/* Writes the code to `memory`, which lies at the guest's address `at`, and has two pages. */
void write_hostile_code(enum hostility hostility, unsigned char *memory, unsigned int at);

/* Before the VM's first vCPU: an interrupt controller. */
int prepare_hostile_vm(enum hostility hostility, int vm);

/* Before the vCPU's registers are set, which `sregs` are to be; `at` as above. */
int prepare_hostile_vcpu(enum hostility hostility, int kvm, int vcpu, unsigned int at,
			 struct kvm_sregs *sregs);

/* The next name of a kernel, at `memory`. */
void rename_kernel(char *memory);

#endif
