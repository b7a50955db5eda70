// SPDX-License-Identifier: GPL-2.0-only
/* The lab's machine: the tables that its processor reads, and the state that a vCPU begins in. */
#ifndef LAB_MACHINE_H
#define LAB_MACHINE_H

#include <stdbool.h>
#include <stdint.h>

/* Writes page tables into the guest's memory. */
void write_page_tables(unsigned char *memory);

/* Writes a vCPU's descriptors, and its handlers: each counts, acknowledges and returns. */
void write_descriptors(unsigned char *memory, unsigned int id);

/* Sets a new vCPU's registers: ring 3, at the guest's first instruction. 0, or negative. */
int prepare_vcpu(int vcpu, unsigned int id, bool in_user_half);

#endif
