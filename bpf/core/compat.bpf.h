/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * sched_ext's kfuncs under one name each, from 6.12 to 7.2.
 *
 * Problem.   The kernel renamed kfuncs in 6.13 and changed signatures in 6.19 and 7.1.
 * Mechanism. Every spelling is declared weak under a name of our own (libbpf ignores what follows `___`);
 *            which one exists is known when the programs are loaded, and the verifier removes the branches
 *            not taken.
 */
#ifndef BPF_COMPAT_H
#define BPF_COMPAT_H

#include "bpf/core/vmlinux.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>
#include <bpf/bpf_core_read.h>

/* ---- The same everywhere ---- */
s32 scx_bpf_create_dsq(u64 dsq_id, s32 node) __ksym;
void scx_bpf_kick_cpu(s32 cpu, u64 flags) __ksym;
s32 scx_bpf_dsq_nr_queued(u64 dsq_id) __ksym;
bool scx_bpf_test_and_clear_cpu_idle(s32 cpu) __ksym;
s32 scx_bpf_pick_idle_cpu(const struct cpumask *cpus_allowed, u64 flags) __ksym;
s32 scx_bpf_select_cpu_dfl(struct task_struct *p, s32 prev_cpu, u64 wake_flags, bool *is_idle) __ksym;
void scx_bpf_exit_bstr(s64 exit_code, char *fmt, unsigned long long *data, u32 data__sz) __ksym;
s32 scx_bpf_task_cpu(const struct task_struct *p) __ksym;
int bpf_iter_scx_dsq_new(struct bpf_iter_scx_dsq *it, u64 dsq_id, u64 flags) __ksym;
struct task_struct *bpf_iter_scx_dsq_next(struct bpf_iter_scx_dsq *it) __ksym;
void bpf_iter_scx_dsq_destroy(struct bpf_iter_scx_dsq *it) __ksym;
struct task_struct *bpf_task_from_pid(s32 pid) __ksym;
void bpf_task_release(struct task_struct *p) __ksym;
struct bpf_cpumask *bpf_cpumask_create(void) __ksym;
void bpf_cpumask_release(struct bpf_cpumask *cpumask) __ksym;
void bpf_cpumask_set_cpu(u32 cpu, struct bpf_cpumask *cpumask) __ksym;
void bpf_cpumask_clear_cpu(u32 cpu, struct bpf_cpumask *cpumask) __ksym;
bool bpf_cpumask_test_cpu(u32 cpu, const struct cpumask *cpumask) __ksym;
bool bpf_cpumask_and(struct bpf_cpumask *dst, const struct cpumask *a, const struct cpumask *b) __ksym;
bool bpf_cpumask_intersects(const struct cpumask *a, const struct cpumask *b) __ksym;
u32 bpf_cpumask_any_and_distribute(const struct cpumask *a, const struct cpumask *b) __ksym;
u32 bpf_cpumask_any_distribute(const struct cpumask *cpumask) __ksym;
u32 bpf_cpumask_first(const struct cpumask *cpumask) __ksym;
void bpf_cpumask_copy(struct bpf_cpumask *dst, const struct cpumask *src) __ksym;
const struct cpumask *scx_bpf_get_online_cpumask(void) __ksym;
const struct cpumask *scx_bpf_get_idle_cpumask(void) __ksym;
void scx_bpf_put_cpumask(const struct cpumask *cpumask) __ksym;
void bpf_rcu_read_lock(void) __ksym;
void bpf_rcu_read_unlock(void) __ksym;

/* ---- Renamed or changed ---- */
bool scx_bpf_dsq_insert___v2___compat(struct task_struct *p, u64 dsq_id, u64 slice,
				      u64 enq_flags) __ksym __weak;
void scx_bpf_dsq_insert___v1(struct task_struct *p, u64 dsq_id, u64 slice, u64 enq_flags) __ksym __weak;
void scx_bpf_dispatch___old(struct task_struct *p, u64 dsq_id, u64 slice, u64 enq_flags) __ksym __weak;
bool __scx_bpf_dsq_insert_vtime(struct task_struct *p,
				struct scx_bpf_dsq_insert_vtime_args *args) __ksym __weak;
void scx_bpf_dsq_insert_vtime___v1(struct task_struct *p, u64 dsq_id, u64 slice, u64 vtime,
				   u64 enq_flags) __ksym __weak;
void scx_bpf_dispatch_vtime___old(struct task_struct *p, u64 dsq_id, u64 slice, u64 vtime,
				  u64 enq_flags) __ksym __weak;
bool scx_bpf_dsq_move_to_local___v2(u64 dsq_id, u64 enq_flags) __ksym __weak;
bool scx_bpf_dsq_move_to_local___v1(u64 dsq_id) __ksym __weak;
bool scx_bpf_consume___old(u64 dsq_id) __ksym __weak;
bool scx_bpf_dsq_move___new(struct bpf_iter_scx_dsq *it__iter, struct task_struct *p, u64 dsq_id,
			    u64 enq_flags) __ksym __weak;
bool scx_bpf_dispatch_from_dsq___old(struct bpf_iter_scx_dsq *it__iter, struct task_struct *p, u64 dsq_id,
				     u64 enq_flags) __ksym __weak;
bool scx_bpf_dsq_move_vtime___new(struct bpf_iter_scx_dsq *it__iter, struct task_struct *p, u64 dsq_id,
				  u64 enq_flags) __ksym __weak;
bool scx_bpf_dispatch_vtime_from_dsq___old(struct bpf_iter_scx_dsq *it__iter, struct task_struct *p,
					   u64 dsq_id, u64 enq_flags) __ksym __weak;
void scx_bpf_dsq_move_set_vtime___new(struct bpf_iter_scx_dsq *it__iter, u64 vtime) __ksym __weak;
void scx_bpf_dispatch_from_dsq_set_vtime___old(struct bpf_iter_scx_dsq *it__iter, u64 vtime) __ksym __weak;
void scx_bpf_dsq_move_set_slice___new(struct bpf_iter_scx_dsq *it__iter, u64 slice) __ksym __weak;
void scx_bpf_dispatch_from_dsq_set_slice___old(struct bpf_iter_scx_dsq *it__iter, u64 slice) __ksym __weak;
u32 scx_bpf_reenqueue_local___v1(void) __ksym __weak;
struct task_struct *scx_bpf_dsq_peek___new(u64 dsq_id) __ksym __weak;
bool scx_bpf_task_set_slice___new(struct task_struct *p, u64 slice) __ksym __weak;
bool scx_bpf_task_set_dsq_vtime___new(struct task_struct *p, u64 vtime) __ksym __weak;

/* 6.12: dispatch; 6.13: insert; 6.19: returns whether it did. */
static __always_inline void dsq_insert(struct task_struct *p, u64 dsq_id, u64 slice_ns, u64 enq_flags)
{
	if (bpf_ksym_exists(scx_bpf_dsq_insert___v2___compat))
		scx_bpf_dsq_insert___v2___compat(p, dsq_id, slice_ns, enq_flags);
	else if (bpf_ksym_exists(scx_bpf_dsq_insert___v1))
		scx_bpf_dsq_insert___v1(p, dsq_id, slice_ns, enq_flags);
	else
		scx_bpf_dispatch___old(p, dsq_id, slice_ns, enq_flags);
}

static __always_inline void dsq_insert_vtime(struct task_struct *p, u64 dsq_id, u64 slice_ns, u64 vtime_ns,
					     u64 enq_flags)
{
	if (bpf_core_type_exists(struct scx_bpf_dsq_insert_vtime_args)) {
		struct scx_bpf_dsq_insert_vtime_args args = {
		    .dsq_id = dsq_id, .slice = slice_ns, .vtime = vtime_ns, .enq_flags = enq_flags};

		__scx_bpf_dsq_insert_vtime(p, &args);
	} else if (bpf_ksym_exists(scx_bpf_dsq_insert_vtime___v1)) {
		scx_bpf_dsq_insert_vtime___v1(p, dsq_id, slice_ns, vtime_ns, enq_flags);
	} else {
		scx_bpf_dispatch_vtime___old(p, dsq_id, slice_ns, vtime_ns, enq_flags);
	}
}

static __always_inline bool dsq_move_to_local(u64 dsq_id)
{
	if (bpf_ksym_exists(scx_bpf_dsq_move_to_local___v2))
		return scx_bpf_dsq_move_to_local___v2(dsq_id, 0);
	if (bpf_ksym_exists(scx_bpf_dsq_move_to_local___v1))
		return scx_bpf_dsq_move_to_local___v1(dsq_id);
	return scx_bpf_consume___old(dsq_id);
}

static __always_inline bool dsq_move(struct bpf_iter_scx_dsq *it, struct task_struct *p, u64 dsq_id)
{
	if (bpf_ksym_exists(scx_bpf_dsq_move___new))
		return scx_bpf_dsq_move___new(it, p, dsq_id, 0);
	return scx_bpf_dispatch_from_dsq___old(it, p, dsq_id, 0);
}

static __always_inline void dsq_move_set_slice(struct bpf_iter_scx_dsq *it, u64 slice_ns)
{
	if (bpf_ksym_exists(scx_bpf_dsq_move_set_slice___new))
		scx_bpf_dsq_move_set_slice___new(it, slice_ns);
	else
		scx_bpf_dispatch_from_dsq_set_slice___old(it, slice_ns);
}

/* Into a queue that is ordered by virtual time. */
static __always_inline bool dsq_move_vtime(struct bpf_iter_scx_dsq *it, struct task_struct *p, u64 dsq_id,
					   u64 vtime_ns)
{
	if (bpf_ksym_exists(scx_bpf_dsq_move_vtime___new)) {
		scx_bpf_dsq_move_set_vtime___new(it, vtime_ns);
		return scx_bpf_dsq_move_vtime___new(it, p, dsq_id, 0);
	}
	scx_bpf_dispatch_from_dsq_set_vtime___old(it, vtime_ns);
	return scx_bpf_dispatch_vtime_from_dsq___old(it, p, dsq_id, 0);
}

/*
 * The first of a queue, without its lock (from 6.19 on), as it was a moment ago. NULL: none, or this kernel
 * can't say.
 */
static __always_inline struct task_struct *dsq_peek(u64 dsq_id)
{
	return bpf_ksym_exists(scx_bpf_dsq_peek___new) ? scx_bpf_dsq_peek___new(dsq_id) : NULL;
}

static __always_inline void task_set_slice(struct task_struct *p, u64 slice_ns)
{
	if (bpf_ksym_exists(scx_bpf_task_set_slice___new))
		scx_bpf_task_set_slice___new(p, slice_ns);
	else
		p->scx.slice = slice_ns;
}

static __always_inline void task_set_vtime(struct task_struct *p, u64 vtime_ns)
{
	if (bpf_ksym_exists(scx_bpf_task_set_dsq_vtime___new))
		scx_bpf_task_set_dsq_vtime___new(p, vtime_ns);
	else
		p->scx.dsq_vtime = vtime_ns;
}

#define ENQ(flag) bpf_core_enum_value(enum scx_enq_flags, SCX_ENQ_##flag)
#define KICK_IDLE ((u64)SCX_KICK_IDLE)
#define KICK_PREEMPT ((u64)SCX_KICK_PREEMPT)

/* Open-coded iteration over a dispatch queue, ended however the body is left. */
#define for_each_queued_from(p, dsq, flags)                                                                  \
	for (struct bpf_iter_scx_dsq it __attribute__((cleanup(bpf_iter_scx_dsq_destroy))),                  \
	     *it_start __attribute__((unused)) = (bpf_iter_scx_dsq_new(&it, dsq, flags), (void *)0);         \
	     ((p) = bpf_iter_scx_dsq_next(&it));)
#define for_each_queued(p, dsq) for_each_queued_from(p, dsq, 0)
#define for_each_queued_last_first(p, dsq)                                                                   \
	for_each_queued_from(p, dsq, bpf_core_enum_value(enum scx_dsq_iter_flags, SCX_DSQ_ITER_REV))

#define STRUCT_OPS(name, args...) SEC("struct_ops/" #name) BPF_PROG(name, ##args)
#define STRUCT_OPS_SLEEPABLE(name, args...) SEC("struct_ops.s/" #name) BPF_PROG(name, ##args)

#endif
