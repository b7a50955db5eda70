/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Core scheduling: no task gets a cookie while this scheduler is loaded.
 *
 * Problem.   Tasks with a cookie, SMT and sched_ext together hang a host (sched-ext/scx issue 3715). Any user
 *            may give one to a task of his own.
 * Mechanism. prctl(PR_SCHED_CORE) is the only way to a cookie. Its first step, the security hook, is answered
 *            in the kernel's place: ENODEV, as on a host without SMT, which VMMs know. Asking which cookie a
 *            task has is allowed.
 * Races.     A task that was past the hook when this was attached may still get its cookie. The daemon looks
 *            for cookies after that (crates/host/src/machine/core_scheduling.rs). Should one come all the
 *            same, the scheduler leaves.
 * Limits.    A kernel without the hook (CONFIG_SECURITY) denies nothing: on a host with SMT the daemon
 *            refuses it.
 */
#ifndef BPF_CORE_SCHEDULING_H
#define BPF_CORE_SCHEDULING_H

#include "bpf/core/maps.bpf.h"

/* include/uapi/linux/prctl.h: user-space ABI. */
#define PR_SCHED_CORE 62
#define PR_SCHED_CORE_GET 0ul

/* `result` is that of the programs before this one. */
SEC("fmod_ret/security_task_prctl")
int BPF_PROG(deny_core_scheduling, int option, unsigned long command, unsigned long task, unsigned long scope,
	     unsigned long cookie, int result)
{
	return option == PR_SCHED_CORE && command != PR_SCHED_CORE_GET ? -ENODEV : result;
}

static __always_inline void leave_if_core_scheduled(struct task_struct *p)
{
	static char message[] = "a task uses core scheduling on a host with SMT, which hangs under sched_ext";
	unsigned long long none[1] = {};

	if (config.smt && bpf_core_field_exists(p->core_cookie) && p->core_cookie)
		scx_bpf_exit_bstr(0, message, none, sizeof(none));
}

#endif
