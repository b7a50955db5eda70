/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * simple: one shared queue by virtual time and nothing else, as tools/sched_ext/scx_simple.bpf.c of the
 * kernel does it.
 *
 * Not for use: it is what the costs of microslice are compared with (`microslice testbed costs`).
 */
#include "bpf/core/compat.bpf.h"

char _license[] SEC("license") = "GPL";

#define DSQ_SHARED 0ull
#define SLICE_NS 20000000ull /* SCX_SLICE_DFL */

static u64 vtime_now;

static __always_inline bool is_before(u64 a, u64 b)
{
	return (s64)(a - b) < 0;
}

s32 STRUCT_OPS(simple_select_cpu, struct task_struct *p, s32 prev_cpu, u64 wake_flags)
{
	bool is_idle = false;
	s32 cpu = scx_bpf_select_cpu_dfl(p, prev_cpu, wake_flags, &is_idle);

	if (is_idle)
		dsq_insert(p, SCX_DSQ_LOCAL, SLICE_NS, 0);
	return cpu;
}

void STRUCT_OPS(simple_enqueue, struct task_struct *p, u64 enq_flags)
{
	u64 vtime = p->scx.dsq_vtime;

	/* What an idle task can save up is one slice. */
	if (is_before(vtime, vtime_now - SLICE_NS))
		vtime = vtime_now - SLICE_NS;
	dsq_insert_vtime(p, DSQ_SHARED, SLICE_NS, vtime, enq_flags);
}

void STRUCT_OPS(simple_dispatch, s32 cpu, struct task_struct *prev)
{
	dsq_move_to_local(DSQ_SHARED);
}

void STRUCT_OPS(simple_running, struct task_struct *p)
{
	if (is_before(vtime_now, p->scx.dsq_vtime))
		vtime_now = p->scx.dsq_vtime;
}

void STRUCT_OPS(simple_stopping, struct task_struct *p, bool runnable)
{
	task_set_vtime(p, p->scx.dsq_vtime + (SLICE_NS - p->scx.slice) * 100 / p->scx.weight);
}

void STRUCT_OPS(simple_enable, struct task_struct *p)
{
	task_set_vtime(p, vtime_now);
}

s32 STRUCT_OPS_SLEEPABLE(simple_init)
{
	return scx_bpf_create_dsq(DSQ_SHARED, -1);
}

SEC(".struct_ops.link")
struct sched_ext_ops simple_ops = {
    .select_cpu = (void *)simple_select_cpu,
    .enqueue = (void *)simple_enqueue,
    .dispatch = (void *)simple_dispatch,
    .running = (void *)simple_running,
    .stopping = (void *)simple_stopping,
    .enable = (void *)simple_enable,
    .init = (void *)simple_init,
    .timeout_ms = 10000,
    .name = "simple",
};
