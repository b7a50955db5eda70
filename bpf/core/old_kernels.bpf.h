/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The core without sched_ext: what an object that defines BESIDE does otherwise, on kernels down to 5.15.
 *
 * Problem.   Open-coded iterators came with 6.4, and nobody makes task contexts where there is no
 *            ops.init_task.
 * Mechanism. A loop is an ordinary one with a constant bound, in a function that the verifier checks once by
 *            itself. A vCPU's thread has a context from its first turn in KVM on, and other tasks have none.
 */
#ifndef BPF_OLD_KERNELS_H
#define BPF_OLD_KERNELS_H

#ifdef BESIDE
#undef bpf_for
#define bpf_for(index, start, end) for ((index) = (start); (index) < (end); (index)++)
/*
 * Global, so that what it returns is any number to its callers: they are checked once, not for each of them.
 */
#define SEARCH __noinline
#define TASK_CTX_OF_VCPU BPF_LOCAL_STORAGE_GET_F_CREATE
#else
#define SEARCH static __always_inline
#define TASK_CTX_OF_VCPU 0
#endif

#endif
