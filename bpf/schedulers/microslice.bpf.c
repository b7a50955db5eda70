/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * microslice: a sched_ext scheduler for KVM hosts.
 *
 * vCPUs that were stopped inside critical guest-kernel code, or have an interrupt coming, run at once for a short slice on
 * a few reserved pCPUs (Ahn et al., EuroSys'18). This file is sched_ext's callbacks, as ladders; each mechanism has
 * a header of its own, and every decision is policy/'s.
 */
#include "bpf/schedulers/microslice.bpf.h"

char _license[] SEC("license") = "GPL";

/* ---- Core scheduling ---- */

/*
 * Tasks with a cookie, SMT and sched_ext together hang a host (sched-ext/scx issue 3715). The daemon doesn't start where
 * there is one; a VMM may ask for one later, and then the host is better off with the kernel's own scheduler.
 */
static __always_inline void leave_if_core_scheduled(struct task_struct *p)
{
	static char message[] = "a task uses core scheduling on a host with SMT, which hangs under sched_ext";
	unsigned long long none[1] = {};

	if (config.smt && bpf_core_field_exists(p->core_cookie) && p->core_cookie)
		scx_bpf_exit_bstr(0, message, none, sizeof(none));
}

/* ---- Waking and queueing ---- */

s32 STRUCT_OPS(microslice_select_cpu, struct task_struct *p, s32 prev_cpu, u64 wake_flags)
{
	struct task_ctx *tctx = task_ctx_of(p);
	struct vcpu *vcpu = vcpu_of(tctx);
	s32 cpu;

	if (!tctx || rests_until(p, tctx, vcpu))
		return prev_cpu;
	cpu = pick_idle_normal(p, prev_cpu);
	if (cpu < 0)
		return prev_cpu; /* ops.enqueue queues it */
	if (vcpu) {
		struct wakeup_decision decision;

		/* It comes from sleep: ops.runnable says so only after this. */
		vcpu->was_blocked = 1;
		decision = queue_clock(p, tctx, vcpu);
		vcpu->goes_first = 1;
		dsq_insert(p, SCX_DSQ_LOCAL, decision.slice_ns, 0);
	} else {
		set_clock(p, tctx);
		dsq_insert(p, SCX_DSQ_LOCAL, config.others_slice_ns, 0);
	}
	forgive_debt(tctx, vcpu);
	return cpu;
}

void STRUCT_OPS(microslice_enqueue, struct task_struct *p, u64 enq_flags)
{
	struct task_ctx *tctx = task_ctx_of(p);
	struct vcpu *vcpu = vcpu_of(tctx);
	u64 rest_until_ns;

	leave_if_core_scheduled(p);
	if (!tctx) {
		insert_here(p, SCX_DSQ_GLOBAL, config.others_slice_ns, enq_flags);
		return;
	}
	if (is_pinned_kthread(p) && (enq_flags & (ENQ(WAKEUP) | ENQ(REENQ)))) {
		enqueue_pinned_kthread(p, enq_flags);
		return;
	}
	rest_until_ns = rests_until(p, tctx, vcpu);
	if (vcpu)
		vcpu->rests = rest_until_ns != 0;
	if (rest_until_ns) {
		if (!vcpu)
			set_clock(p, tctx);
		enqueue_resting(p, tctx, vcpu, rest_until_ns, enq_flags);
		return;
	}
	if (is_confined(p)) {
		enqueue_confined(p, vcpu, enq_flags);
		return;
	}
	/* A micro slice ended here, at home or because the pCPU left the pool, and nobody else wants it (see stay_alone()). */
	if ((enq_flags & ENQ(LAST)) && !pcpu_is_micro(scx_bpf_task_cpu(p))) {
		if (vcpu) {
			grace_of(vcpu)->count = 0;
			request_of(vcpu)->retry = 0;
		}
		insert_here(p, SCX_DSQ_LOCAL, vcpu ? config.fair_share.slice_ns : config.others_slice_ns,
			    enq_flags);
		return;
	}
	if (vcpu) {
		enqueue_vcpu(p, tctx, vcpu, enq_flags);
		/* A micro slice ended, and this pCPU is about to go idle: it looks for whom to lend it to only because of the kick. */
		if ((enq_flags & ENQ(LAST)) && config.lend)
			scx_bpf_kick_cpu(scx_bpf_task_cpu(p), KICK_IDLE);
		return;
	}
	enqueue_other(p, tctx, enq_flags);
}

void STRUCT_OPS(microslice_dispatch, s32 cpu, struct task_struct *prev)
{
	struct task_struct *current = bpf_get_current_task_btf();
	struct pcpu *pcpu = pcpu_of(cpu);

	if (!pcpu)
		return;
	/* The idle task never disables migration itself: what it shows is what entering a BPF program does. */
	if (current->pid == 0 && entry_disables_migration != current->migration_disabled)
		entry_disables_migration = current->migration_disabled;
	if (pcpu_is_micro(cpu))
		dispatch_micro_pool(cpu, pcpu, prev);
	else
		dispatch_normal(cpu, pcpu, prev);
}

/* A higher scheduling class takes the pCPU: what waits in its local queue could not be pulled from there. */
void STRUCT_OPS(microslice_cpu_release, s32 cpu, struct scx_cpu_release_args *args)
{
	scx_bpf_reenqueue_local___v1();
}

/* Directed yield by KVM (to != NULL), or sched_yield(). */
bool STRUCT_OPS(microslice_yield, struct task_struct *from, struct task_struct *to)
{
	struct vcpu *vcpu = vcpu_of(task_ctx_of(from));

	if (vcpu && to && patience_of(vcpu)->keeps_spinning)
		return false; /* help is on its way: KVM goes back into the guest */
	if (vcpu) {
		struct task_ctx *heir = to ? task_ctx_of(to) : NULL;

		vcpu->yielded = 1;
		directed_yield_of(vcpu)->heir = heir ? heir->vcpu : 0;
	}
	task_set_slice(from, 0);
	return true;
}

/* ---- Running and stopping ---- */

void STRUCT_OPS(microslice_runnable, struct task_struct *p, u64 enq_flags)
{
	struct vcpu *vcpu = vcpu_of(task_ctx_of(p));
	struct vm *vm;

	leave_if_core_scheduled(p);
	if (!vcpu)
		return;
	vcpu->runnable_at_ns = bpf_ktime_get_ns();
	vcpu->was_blocked = (enq_flags & ENQ(WAKEUP)) != 0;
	vcpu->preempted = 0;
	vcpu->yielded = 0;
	vcpu_moves(vcpu, VCPU_BLOCKED, VCPU_RUNNABLE);
	vm = vm_at(vcpu->vm);
	if (vm && !vcpu->active) {
		vcpu->active = 1;
		__sync_fetch_and_add(&vm->active_vcpu_count, 1);
	}
}

/* Returns what now occupies the pCPU. */
static __always_inline u32 start_vcpu(struct task_ctx *tctx, struct vcpu *vcpu, s32 cpu, struct pcpu *pcpu,
				      u64 now)
{
	struct vm_stats *stats = vm_stats_at(vcpu->vm);
	u32 occupant = vcpu->was_blocked ? OCCUPANT_BOOSTED_VCPU : OCCUPANT_VCPU;
	u64 waited_ns = vcpu->runnable_at_ns ? now - vcpu->runnable_at_ns : 0;

	if (stats) {
		u32 bucket = histogram_bucket(waited_ns);

		ADD(stats->waited_ns, waited_ns);
		if (bucket < HISTOGRAM_BUCKETS)
			COUNT(stats->wait_to_run_us[bucket]);
	}
	if (vcpu->state == VCPU_MICRO && request_of(vcpu)->pcpu == cpu) {
		occupant = OCCUPANT_MICRO;
	} else {
		/* The normal pool was faster than the micro pool, or the task left its micro pCPU before it ran. */
		fail_request(vcpu, VCPU_RUNNING, FAILURE_OVERTAKEN);
		end_acceleration(vcpu, VCPU_RUNNING, RETURN_NEVER_RAN);
		vcpu->state = VCPU_RUNNING;
	}
	if (occupant != OCCUPANT_MICRO) {
		vcpu->normal_pcpu = cpu;
		advance_clocks(tctx, vcpu, pcpu);
	}
	tctx->out_of_order = 0;
	pcpu->vm = vcpu->vm + 1;
	vcpu->goes_first = 0;
	lending_of(vcpu)->called_back = 0;
	patience_of(vcpu)->spun_until_ns = 0;
	directed_yield_of(vcpu)->heir = 0;
	vcpu->was_blocked = 0;
	vcpu->preempted = 0;
	vcpu->yielded = 0;
	grace_of(vcpu)->turn_over = 0;
	woken_of(vcpu)->blocked_interrupt = 0;
	woken_of(vcpu)->cause = 0;
	return occupant;
}

void STRUCT_OPS(microslice_running, struct task_struct *p)
{
	struct task_ctx *tctx = task_ctx_of(p);
	struct vcpu *vcpu = vcpu_of(tctx);
	s32 cpu = scx_bpf_task_cpu(p);
	struct pcpu *pcpu = pcpu_of(cpu);
	u64 now = bpf_ktime_get_ns();

	if (!tctx || !pcpu)
		return;
	tctx->running_since_ns = now;
	rests_until(p, tctx, vcpu);
	if (tctx->allowed_ns < p->scx.slice)
		task_set_slice(p, tctx->allowed_ns);
	pcpu->turn_ns = p->scx.slice;
	if (vcpu) {
		pcpu->occupant = start_vcpu(tctx, vcpu, cpu, pcpu, now);
	} else {
		pcpu->occupant = tctx->gives_way ? OCCUPANT_BACKGROUND : OCCUPANT_OTHER;
		advance_others_clock(tctx);
		tctx->out_of_order = 0;
	}
	if (pcpu_is_micro(cpu))
		start_on_micro_pcpu(p, vcpu, cpu, pcpu, now);
	else if (vcpu && pcpu->occupant == OCCUPANT_MICRO)
		start_at_home(vcpu, cpu, pcpu, now);
	else if (vcpu && grace_of(vcpu)->count)
		arm_micro_slice(cpu, pcpu, now);
}

static __always_inline void stop_vcpu(struct vcpu *vcpu, u32 slot, u64 ran_ns, bool runnable, u64 now)
{
	struct vm_stats *stats = vm_stats_at(vcpu->vm);
	u32 class;

	vcpu->rip = read_guest_rip(vcpu->kvm_vcpu);
	class = classify_rip(slot, vcpu->vm, vcpu->rip);
	vcpu->guest_class = class;
	vcpu->runnable_at_ns = now;
	vcpu->preempted = runnable && !vcpu->yielded;
	grace_of(vcpu)->interrupted =
	    vcpu->preempted && !grace_of(vcpu)->turn_over && vcpu->state == VCPU_RUNNING;
	patience_of(vcpu)->keeps_spinning = 0;
	/* It has left the halt (one byte long) that it waited for a lock in. */
	if (vcpu->rip - woken_of(vcpu)->lock_halt_rip > 1)
		woken_of(vcpu)->lock_halt_rip = 0;
	if (!runnable)
		woken_of(vcpu)->blocked_interrupt = 0;
	if (stats && vcpu->preempted && class < GUEST_CLASS_COUNT)
		COUNT(stats->preemptions[class]);
	if (vcpu->state == VCPU_MICRO)
		stop_accelerated(vcpu, slot, ran_ns, runnable);
	else
		vcpu->state = runnable ? VCPU_RUNNABLE : VCPU_BLOCKED;
}

void STRUCT_OPS(microslice_stopping, struct task_struct *p, bool runnable)
{
	struct task_ctx *tctx = task_ctx_of(p);
	struct vcpu *vcpu = vcpu_of(tctx);
	struct pcpu *pcpu = pcpu_of(scx_bpf_task_cpu(p));
	u64 now = bpf_ktime_get_ns(), ran_ns;

	if (!tctx)
		return;
	ran_ns = now - tctx->running_since_ns;
	charge_limits_of(p, ran_ns);
	if (vcpu) {
		charge_vcpu(tctx, vcpu, pcpu, ran_ns);
		stop_vcpu(vcpu, tctx->vcpu - 1, ran_ns, runnable, now);
	} else {
		charge_other(p, tctx, pcpu, ran_ns);
	}
	if (pcpu) {
		if (pcpu->occupant == OCCUPANT_MICRO)
			home_slices_on(pcpu)->disturbed_at_ns = now;
		pcpu->occupant = OCCUPANT_NONE;
		micro_slice_on(pcpu)->deadline_ns = 0;
		lending_on(pcpu)->is_lent = 0;
		if (pool_size_on(pcpu)->since_ns) {
			ADD(pool_size_on(pcpu)->busy_ns, micro_busy_until(pcpu, now));
			pool_size_on(pcpu)->since_ns = 0;
		}
	}
}

void STRUCT_OPS(microslice_quiescent, struct task_struct *p, u64 deq_flags)
{
	struct vcpu *vcpu = vcpu_of(task_ctx_of(p));
	struct vm *vm;

	if (!vcpu)
		return;
	woken_of(vcpu)->cause = 0;
	if (!fail_request(vcpu, VCPU_BLOCKED, FAILURE_BLOCKED) &&
	    !end_acceleration(vcpu, VCPU_BLOCKED, RETURN_NEVER_RAN))
		vcpu->state = VCPU_BLOCKED;
	vm = vm_at(vcpu->vm);
	if (vm && vcpu->active) {
		vcpu->active = 0;
		__sync_fetch_and_sub(&vm->active_vcpu_count, 1);
	}
}

/* ---- Coming and going ---- */

s32 STRUCT_OPS_SLEEPABLE(microslice_init_task, struct task_struct *p, struct scx_init_task_args *args)
{
	struct task_ctx *tctx = bpf_task_storage_get(&task_ctxs, p, 0, BPF_LOCAL_STORAGE_GET_F_CREATE);

	if (!tctx)
		return -ENOMEM;
	tctx->vtime_ns = others_vtime_ns;
	return 0;
}

void STRUCT_OPS(microslice_exit_task, struct task_struct *p, struct scx_exit_task_args *args)
{
	unregister_vcpu(task_ctx_of(p));
}

/* Of all pCPUs that are online (when one comes or goes the daemon starts this scheduler again), or of none. */
static __always_inline int create_mask(struct scratch *holder, bool full)
{
	struct bpf_cpumask *mask = bpf_cpumask_create(), *old;

	if (!mask)
		return -ENOMEM;
	if (full) {
		const struct cpumask *online = scx_bpf_get_online_cpumask();

		bpf_cpumask_copy(mask, online);
		scx_bpf_put_cpumask(online);
	}
	old = bpf_kptr_xchg(&holder->mask, mask);
	if (old)
		bpf_cpumask_release(old);
	return 0;
}

static __noinline int init_pcpu(u32 cpu)
{
	struct scratch *scratch = bpf_map_lookup_elem(&scratches, &cpu);
	struct slice_timer *timer = bpf_map_lookup_elem(&slice_timers, &cpu);
	s32 result;

	if (!scratch || !timer)
		return -ENOMEM;
	result = create_mask(scratch, false);
	if (result)
		return result;
	bpf_timer_init(&timer->timer, &slice_timers, CLOCK_MONOTONIC);
	bpf_timer_set_callback(&timer->timer, end_micro_slice);
	return scx_bpf_create_dsq(DSQ_CONFINED + cpu, -1);
}

static __noinline int init_timers(void)
{
	u32 key = 0;
	struct pool_timer *timer = bpf_map_lookup_elem(&pool_timers, &key);
	struct rest_timer *rests = bpf_map_lookup_elem(&rest_timers, &key);

	if (!timer || !rests)
		return -ENOMEM;
	bpf_timer_init(&rests->timer, &rest_timers, CLOCK_MONOTONIC);
	bpf_timer_set_callback(&rests->timer, end_rests);
	if (!config.pool_is_dynamic)
		return apply_pool_size(config.micro_pcpu_count, 0);
	bpf_timer_init(&timer->timer, &pool_timers, CLOCK_MONOTONIC);
	bpf_timer_set_callback(&timer->timer, adapt_pool_size);
	bpf_timer_start(&timer->timer, config.pool_size.profile_interval_ns, 0);
	return 0;
}

s32 STRUCT_OPS_SLEEPABLE(microslice_init)
{
	u32 cpu, key = 0;
	struct scratch *normal = bpf_map_lookup_elem(&normal_pool, &key);
	s32 result;

	if (!normal)
		return -ENOMEM;
	result = create_mask(normal, true);
	if (result)
		return result;
	if ((result = scx_bpf_create_dsq(DSQ_OTHERS, -1)) || (result = scx_bpf_create_dsq(DSQ_BOOSTED, -1)) ||
	    (result = scx_bpf_create_dsq(DSQ_VCPUS, -1)) || (result = scx_bpf_create_dsq(DSQ_RESTING, -1)))
		return result;
	bpf_for (cpu, 0, PCPUS_MAX) {
		if (cpu >= config.pcpu_count)
			break;
		result = init_pcpu(cpu);
		if (result)
			return result;
	}
	return init_timers();
}

void STRUCT_OPS(microslice_exit, struct scx_exit_info *info)
{
	exit_record.code = info->exit_code;
	bpf_probe_read_kernel_str(exit_record.reason, sizeof(exit_record.reason), info->reason);
	bpf_probe_read_kernel_str(exit_record.message, sizeof(exit_record.message), info->msg);
	/* Last: the daemon reads the rest once this is set. */
	__sync_lock_test_and_set(&exit_record.kind, info->kind);
}

SEC(".struct_ops.link")
struct sched_ext_ops microslice_ops = {
    .select_cpu = (void *)microslice_select_cpu,
    .enqueue = (void *)microslice_enqueue,
    .dispatch = (void *)microslice_dispatch,
    .runnable = (void *)microslice_runnable,
    .running = (void *)microslice_running,
    .stopping = (void *)microslice_stopping,
    .quiescent = (void *)microslice_quiescent,
    .yield = (void *)microslice_yield,
    .cpu_release = (void *)microslice_cpu_release,
    .init_task = (void *)microslice_init_task,
    .exit_task = (void *)microslice_exit_task,
    .init = (void *)microslice_init,
    .exit = (void *)microslice_exit,
    .flags = SCX_OPS_ENQ_LAST,
    .timeout_ms = 10000,
    .name = "microslice",
};
