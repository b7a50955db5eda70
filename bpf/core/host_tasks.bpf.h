/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Host tasks: all that aren't vCPUs.
 *
 * Problem.   A host runs more than vCPUs: QEMU's I/O threads, vhost, kernel threads, people's shells. vCPUs
 *            depend on many of them, so they go first; but a compiler on the host may not stop all guests,
 *            nor a nightly backup take half of the host.
 * Mechanism. Each domain has a queue of them, by virtual time. A task in a cgroup with a weight of its own
 *            goes by the clock of all tasks there. On a pCPU they may have taken a vCPU's slice more than
 *            vCPUs since. Then they let vCPUs go first until these have caught up. Under contention each side
 *            gets half, or what the weights of the outermost cgroups say. Host tasks of a nice value above 0
 *            wait among the vCPUs, as a VM of their weight would. So do those that are a VM's
 *            (vmm_threads.bpf.h), but just after they were woken.
 */
#ifndef BPF_HOST_TASKS_H
#define BPF_HOST_TASKS_H

#include "bpf/core/cpu_limit.bpf.h"
#include "bpf/core/vmm_threads.bpf.h"

/*
 * A host task of a nice value above 0 (a backup, a build) isn't what a guest waits for: it shares with vCPUs,
 * as one VM of its weight would, in place of going first. sched_ext gives tasks of nice 0 the default weight
 * of cgroups.
 */
static __always_inline bool gives_way(const struct task_struct *p, const struct task_ctx *tctx)
{
	return tctx->vm || tctx->host.owner || p->scx.weight < WEIGHT_DEFAULT;
}

/*
 * Its clock is the vCPUs' or the host tasks', by its nice value. Sleeping isn't saving, nor is a change of
 * clocks.
 */
static __always_inline void set_clock(struct task_struct *p, struct task_ctx *tctx)
{
	u64 now, lag_max_ns, lag, earliest;
	bool way;

	find_vm_of_thread(p, tctx);
	way = gives_way(p, tctx);
	now = way ? pool_vtime_ns : others_vtime_ns;
	lag_max_ns = way ? config.fair_share.lag_max_ns : config.others_slice_ns;
	lag = charge(lag_max_ns, weight_of_other(p, tctx));
	earliest = now - lag;
	if (tctx->host.gives_way != way)
		tctx->vtime_ns = now;
	tctx->host.gives_way = way;
	if (tctx->vm || tctx->host.owner || tctx->host.service) {
		read_shared_clock(tctx, now, lag);
		return;
	}
	if (vtime_before(tctx->vtime_ns, earliest))
		tctx->vtime_ns = earliest;
	/*
	 * A light one that is served because it has waited for long may be far ahead: it doesn't wait the
	 * longer for that.
	 */
	if (way && vtime_before(now + lag, tctx->vtime_ns))
		tctx->vtime_ns = now + lag;
}

static __always_inline void enqueue_other(struct task_struct *p, struct task_ctx *tctx, u64 enq_flags)
{
	s32 comes;

	set_clock(p, tctx);
	tctx->queued_at_ns = bpf_ktime_get_ns();
	tctx->host.goes_first = goes_first(p, tctx, tctx->queued_at_ns, enq_flags & ENQ(WAKEUP));
	comes = kick_idle_normal(p);
	if (comes < 0 && (tctx->host.goes_first || !tctx->host.gives_way))
		comes = preempt_for(p, false);
	if (tctx->host.goes_first) {
		/* Not by its clock, which isn't the host tasks'. */
		tctx->out_of_order = 1;
		dsq_insert_vtime(p, line_of_others(p, comes), config.fair_share.boost_slice_ns,
				 others_vtime_ns, enq_flags);
	} else if (tctx->host.gives_way) {
		wait_for(p, tctx, NULL, comes);
		dsq_insert_vtime(p, DSQ_VCPUS + tctx->queue, config.others_slice_ns, tctx->vtime_ns,
				 enq_flags);
	} else {
		dsq_insert_vtime(p, line_of_others(p, comes), config.others_slice_ns, tctx->vtime_ns,
				 enq_flags);
	}
}

static __always_inline void charge_other(struct task_struct *p, struct task_ctx *tctx, struct pcpu *pcpu,
					 u64 ran_ns)
{
	u64 cost = charge(ran_ns, weight_of_other(p, tctx)), *shared = shared_clock_of(tctx);

	tctx->vtime_ns += cost;
	if (shared)
		ADD(*shared, cost);
	charge_vm_of_thread(tctx, ran_ns);
	if (tctx->host.goes_first) {
		tctx->host.first_ran_ns += ran_ns;
		/*
		 * A later task waits behind the host tasks that wait: many of them keep none of these
		 * waiting.
		 */
		ADD(others_vtime_ns, ran_ns);
	}
	ADD(host_stats.others_ran_ns, ran_ns);
	if (!pcpu)
		return;
	/*
	 * No credit is saved up: a pCPU without vCPUs owes them nothing. A task that waits among them makes
	 * up for as they do.
	 */
	if (tctx->host.gives_way)
		make_up_for_others(pcpu, ran_ns);
	else if (pcpu->others_ran_ns < config.fair_share.slice_ns)
		pcpu->others_ran_ns += owed_to_vcpus(ran_ns, vms_side_weight, services_side_weight);
}

/*
 * Into a queue that this pCPU serves by itself. If it has nothing else to run it is about to go idle, and
 * looks again only because of the kick.
 */
static __always_inline void insert_here(struct task_struct *p, u64 dsq, u64 slice_ns, u64 enq_flags)
{
	dsq_insert(p, dsq, slice_ns, enq_flags);
	if (enq_flags & ENQ(LAST))
		scx_bpf_kick_cpu(scx_bpf_task_cpu(p), KICK_IDLE);
}

/*
 * Kernel threads of one pCPU (ksoftirqd, workqueues, migration helpers) are short, and much waits for them.
 */
static __always_inline void enqueue_pinned_kthread(struct task_struct *p, u64 enq_flags)
{
	/*
	 * A thread that ops.cpu_release queues again preempts no task. It would use up the slice of the task
	 * that lost the pCPU to the higher class, and waits in a queue already.
	 */
	s32 cpu = scx_bpf_task_cpu(p);
	struct pcpu *pcpu = pcpu_of(cpu);
	bool waits = is_undisturbed(cpu, pcpu) || (enq_flags & ENQ(REENQ));
	u64 preempt = waits ? 0 : ENQ(PREEMPT);

	insert_here(p, SCX_DSQ_LOCAL, config.others_slice_ns, enq_flags | ENQ(HEAD) | preempt);
}

#endif
