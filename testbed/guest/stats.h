/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What a guest measures of itself: work done and latencies, per window of its own time.
 *
 * Latencies are counted in logarithmic octaves of eight equal buckets each (off by at most 12.5 %). The
 * harness's histogram has the same shape, so that windows add up exactly.
 */
#ifndef GUEST_STATS_H
#define GUEST_STATS_H

#include <stdint.h>

#define BUCKETS 496

enum latency { SHOOTDOWN, LOCK, WAKE, PINGPONG, LATENCY_KINDS };
enum work { WORKER, HOG, WORK_KINDS };

uint64_t now_ns(void);
void count_latency(enum latency kind, uint64_t ns);
void count_work(enum work kind, uint64_t amount);
/* Prints what was counted since the last call as one JSON line, and starts afresh. */
void report_window(void);

/*
 * Leaves the guest once, harmlessly. To be called before anything that makes the kernel write to a virtio
 * device. Why: on a host from 6.14 on, KVM may take a device write for a broken event delivery, and stop the
 * guest. It does so if the vCPU took a page fault since it last entered. KVM looks at the type bits of
 * exit_int_info without their valid bit, and QEMU's emulated SVM leaves those bits behind. Any other exit
 * clears them.
 */
void leave_guest_once(void);

/* Prints one line where the harness listens. */
void report(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Lets `report` print to this descriptor. */
void report_to(int fd);

#endif
