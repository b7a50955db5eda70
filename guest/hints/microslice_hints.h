/* SPDX-License-Identifier: GPL-2.0-only */
/* What microslice_hints has for other modules. */
#ifndef GUEST_MICROSLICE_HINTS_H
#define GUEST_MICROSLICE_HINTS_H

#include <linux/types.h>

/*
 * This vCPU isn't to be preempted for so many microseconds; a longer time that was said before stays. Returns
 * what was said before, to be handed to microslice_preempt_again() when the lock is given up. Between both
 * the caller stays on its CPU.
 */
u32 microslice_not_now(u32 microseconds);
void microslice_preempt_again(u32 before);

#endif
