/* SPDX-License-Identifier: GPL-2.0-only WITH Linux-syscall-note */
/*
 * What microslice_hints has for programs: /dev/microslice_hints.
 *
 *	int hints = open("/dev/microslice_hints", O_RDWR | O_CLOEXEC);
 *
 *	ioctl(hints, MICROSLICE_NOT_NOW, 50);
 *	... take the lock, hold it, give it up ...
 *	ioctl(hints, MICROSLICE_NOT_NOW, 0);
 */
#ifndef MICROSLICE_USER_H
#define MICROSLICE_USER_H

#include <linux/ioctl.h>

/*
 * The vCPU that runs this thread isn't to be preempted for so many microseconds; 0: as you like. It counts
 * while the thread runs: when the guest's scheduler switches away from it, it is taken back.
 *
 * Returns what is said from now on, which is the module's limit at most. For 0 it returns what was said until
 * now: 0 if it had been taken back.
 */
#define MICROSLICE_NOT_NOW _IO(0xb7, 1)

#endif
