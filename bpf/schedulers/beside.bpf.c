/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * beside: acceleration on a host whose scheduler stays the kernel's own, with or without sched_ext.
 *
 * It observes what microslice observes, and decides by the same policies. It names the vCPUs that they would
 * accelerate to the helper (crates/host/src/beside). The helper makes that vCPU's thread real-time for a
 * micro slice. The kernel's tracepoints show running, stopping and waking; no callbacks of sched_ext do them.
 */
#define BESIDE

#include "bpf/core/observe.bpf.h"
#include "bpf/core/switches.bpf.h"
#include "bpf/mechanisms/asking/heirs.bpf.h"
#include "bpf/mechanisms/asking/passes.bpf.h"
#include "bpf/mechanisms/boost.bpf.h"
#include "bpf/mechanisms/max_wait.bpf.h"
#include "policy/pay_back.h" /* the daemon asks it */

char _license[] SEC("license") = "GPL";

/* ---- State ---- */

struct beside_vcpu {
	struct vcpu core;
	struct boost_vcpu boost;
	struct heirs_vcpu heirs;
};

struct beside_vm {
	struct vm core;
	struct heirs_vm heirs;
	struct passes_vm passes;
	struct boost_vm boost; /* last: its counters are found from the end */
};

struct vcpus_map {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, VCPUS_MAX);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, u32);
	__type(value, struct beside_vcpu);
} vcpus SEC(".maps");

struct vms_map {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, VMS_MAX);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, u32);
	__type(value, struct beside_vm);
} vms SEC(".maps");

/* Boosts of VMs that are gone, summed up. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct boost_stats);
} boosts_of_gone SEC(".maps");

static __always_inline struct boost_vcpu *boost_of(const struct vcpu *vcpu)
{
	return &((struct beside_vcpu *)vcpu)->boost;
}

static __always_inline struct boost_vm *boosts_in(const struct vm *vm)
{
	return &((struct beside_vm *)vm)->boost;
}

static __always_inline struct heirs_vcpu *heirs_of(const struct vcpu *vcpu)
{
	return &((struct beside_vcpu *)vcpu)->heirs;
}

static __always_inline struct heirs_vm *heirs_in(const struct vm *vm)
{
	return &((struct beside_vm *)vm)->heirs;
}

static __always_inline struct passes_vm *passes_in(const struct vm *vm)
{
	return &((struct beside_vm *)vm)->passes;
}

/* ---- Coming and going ---- */

HOOK void on_vm_joins(struct vm *vm)
{
	u32 key = 0, word;
	u64 *gone = bpf_map_lookup_elem(&boosts_of_gone, &key), *stats = (u64 *)&boosts_in(vm)->stats;

	passes_in(vm)->until_ns = 0;
	boosts_in(vm)->clock_ns = 0;
	*heirs_in(vm) = (struct heirs_vm){};
	if (!gone)
		return;
	bpf_for (word, 0, sizeof(struct boost_stats) / sizeof(u64)) {
		u64 value = __sync_lock_test_and_set(&stats[word], 0);

		if (value)
			ADD(gone[word], value);
	}
}

/* Made so by the helper, or by anything else. */
static __always_inline bool is_real_time(const struct task_struct *p)
{
	return p->policy != SCHED_NORMAL && p->policy != SCHED_BATCH && p->policy != SCHED_IDLE;
}

/* By the helper, of a vCPU that it was asked for: with a deadline where the kernel refuses priorities. */
static __always_inline bool is_boosted(const struct task_struct *p)
{
	return p->policy == SCHED_FIFO || p->policy == SCHED_DEADLINE;
}

HOOK void on_vcpu_joins(struct vcpu *vcpu)
{
	struct task_struct *p = bpf_get_current_task_btf();

	*heirs_of(vcpu) = (struct heirs_vcpu){};
	*boost_of(vcpu) = (struct boost_vcpu){.start_ns = p->start_boottime,
					      .running_since_ns = bpf_ktime_get_ns(),
					      .is_real_time = is_real_time(p),
					      /* Nothing tells of its exits: it was found within one. */
					      .is_seen = config.vendor == KVM_OTHER,
					      .is_pinned = p->nr_cpus_allowed == 1};
}

HOOK void on_vcpu_leaves(struct vcpu *vcpu)
{
	struct task_ctx *tctx = task_ctx_of(bpf_get_current_task_btf());
	u32 slot = tctx ? tctx->vcpu - 1 : VCPUS_MAX;

	heir_runs(vcpu);
	miss_boost(vcpu, VCPU_BLOCKED, BOOST_MISS_GONE);
	if (vcpu->state == VCPU_MICRO) {
		end_boost(vcpu, slot, VCPU_BLOCKED, MICRO_SLICE_BLOCKED, bpf_ktime_get_ns());
		tell_helper(vcpu, slot, BOOST_SERVED);
	}
}

/* ---- Hints ---- */

HOOK bool asks_for(struct vcpu *vcpu, u32 slot, u32 cause)
{
	return ask_for_boost(slot, cause, 0);
}

/* Somebody of the VM may wait for a lock. Not static: see ask_for_boost(). */
__noinline int ask_for_heir(u32 vm_slot)
{
	u32 heir = next_heir(vm_slot);

	if (heir && ask_for_boost(heir - 1, CAUSE_HEIR, 0))
		heir_is_tried(heir - 1);
	return 0;
}

/* The vCPU whose thread this is gives up its pCPU, or is about to. */
__noinline int on_yield(u32 cause)
{
	struct task_ctx *tctx = task_ctx_of(bpf_get_current_task_btf());
	struct vcpu *self = vcpu_of(tctx);
	/* Help is always there: there is no pool that could be empty. */
	struct yield_observation seen = {
	    .cause = cause, .micro_pcpu_count = 1, .paper_rules = config.accelerate.paper_rules};
	struct yield_decision decision;
	struct vm *vm;
	u64 now = bpf_ktime_get_ns();
	bool claimed;

	if (!tctx || !self || cause >= YIELD_CAUSE_COUNT)
		return 0;
	vm = vm_at(self->vm);
	if (!vm)
		return 0;
	if (cause != YIELD_HLT)
		self->yielded = 1; /* in this turn */
	claimed = judge_yield(self, tctx->vcpu - 1, read_guest_rip(self->kvm_vcpu), now, &seen, &decision);
	if (decision.scope != PASS_NONE)
		pass_over_all(self, tctx->vcpu - 1, &decision);
	if (decision.scope == PASS_ONE_CRITICAL)
		ask_for_heir(self->vm);
	if (claimed)
		give_pass_back(&passes_in(vm)->until_ns, now);
	return 0;
}

static __noinline int on_interrupt(u64 kvm_vcpu, u32 vector)
{
	u32 *slot = bpf_map_lookup_elem(&vcpu_by_address, &kvm_vcpu);
	struct interrupt_observation seen = {.micro_pcpu_count = 1};
	struct interrupt_decision decision;
	struct vm_stats *stats;
	struct vcpu *vcpu;

	vcpu = slot ? vcpu_at(*slot) : NULL;
	stats = vcpu ? vm_stats_at(vcpu->vm) : NULL;
	if (!stats)
		return 0;
	seen.kind = interrupt_kind_of(vector);
	seen.recipient_state = vcpu->state;
	seen.guest_known = guest_is_known(vcpu->vm);
	decision = judge_interrupt(*slot, stats, &seen);
	if (decision.cause != CAUSE_NONE)
		ask_for_boost(*slot, decision.cause, vector);
	return 0;
}

/* The vCPU whose thread this is has left its guest. */
static __always_inline int leaves_guest(void)
{
	struct task_struct *p = bpf_get_current_task_btf();
	struct task_ctx *tctx = task_ctx_of(p);
	struct vcpu *vcpu = vcpu_of(tctx);

	if (!vcpu)
		return 0;
	boost_of(vcpu)->is_seen = 1;
	if (vcpu->state == VCPU_MICRO)
		look_at_exit(tctx->vcpu - 1, read_guest_rip(vcpu->kvm_vcpu), is_boosted(p));
	return 0;
}

/*
 * A second program on the same tracepoint: observe.bpf.h looks at halts only. The record, which nobody looks
 * at, has KVM's cache of the instruction pointer filled.
 */
SEC("tp/kvm/kvm_exit")
int on_any_exit(struct trace_event_raw_kvm_exit *exit)
{
	return leaves_guest();
}

/* Of AMD's KVM: no record is built. */
SEC("tp_btf/kvm_exit")
int BPF_PROG(on_any_raw_exit)
{
	return leaves_guest();
}

/* ---- Bounds on waits ---- */

/*
 * True if its cgroup has used up what it may have (cpu.max). Until 6.17 whole queues are throttled
 * (throttle_cfs_rq), from 6.18 on tasks on their way to user mode (throttle_cfs_rq_work).
 */
static __always_inline bool is_throttled(struct task_struct *p)
{
	struct cfs_rq *queue = NULL;

	if (bpf_core_field_exists(p->throttled) && BPF_CORE_READ(p, throttled))
		return true;
	if (bpf_core_field_exists(p->se.cfs_rq))
		queue = BPF_CORE_READ(p, se.cfs_rq);
	return queue && bpf_core_field_exists(queue->throttle_count) &&
	       BPF_CORE_READ(queue, throttle_count) > 0;
}

/* The helper runs it for a vCPU that has waited for long, or was stopped when its boost was taken back. */
SEC("syscall")
int look_at_wait(struct bound_request *request)
{
	u32 slot = request->slot;
	struct vcpu *vcpu = vcpu_at(slot);
	struct wait_observation seen = {};
	u32 decision;

	if (!vcpu)
		return 0;
	host_bound_ns = request->host_bound_ns;
	least_bound_ns = request->least_bound_ns;
	settle_taken_back(slot);
	if (vcpu->rests)
		return 0;
	seen.bound_ns = max_wait_of(vcpu->vm);
	seen.waited_ns = elapsed_ns(vcpu->runnable_at_ns, bpf_ktime_get_ns());
	seen.state = vcpu->state;
	decision = decide_on_wait(&seen);
	if (decision == WAIT_ENDS || decision == WAIT_LATE)
		ask_for_boost(slot, CAUSE_MAX_WAIT, 0);
	return 0;
}

/* ---- Running, stopping, waking ---- */

static __always_inline void stops_running(struct task_struct *p, bool runnable, u64 now)
{
	struct task_ctx *tctx = task_ctx_of(p);
	struct vcpu *vcpu = vcpu_of(tctx);
	struct vm_stats *stats;
	u32 slot, class;

	if (!tctx || !vcpu)
		return;
	slot = tctx->vcpu - 1;
	stats = vm_stats_at(vcpu->vm);
	class = classify_rip(slot, vcpu->vm, vcpu->kvm_vcpu, read_guest_rip(vcpu->kvm_vcpu));
	vcpu->guest_class = look_at_count(slot, class);
	vcpu->preempted = runnable;
	vcpu->runnable_at_ns = now;
	vcpu->rests = runnable && is_throttled(p);
	boost_of(vcpu)->is_pinned = p->nr_cpus_allowed == 1;
	boost_of(vcpu)->stopped_on = bpf_get_smp_processor_id();
	heir_stops(vcpu, now - boost_of(vcpu)->running_since_ns);
	if (stats) {
		ADD(stats->ran_ns, now - boost_of(vcpu)->running_since_ns);
		if (runnable && class < GUEST_CLASS_COUNT) {
			COUNT(stats->preemptions[class]);
			count_stop(stats, vcpu, class);
		}
	}
	if (vcpu->state != VCPU_MICRO) {
		charge_what_ran_on(vcpu, slot, is_boosted(p), now);
		boost_of(vcpu)->is_real_time = is_real_time(p);
		vcpu->state = runnable ? VCPU_RUNNABLE : VCPU_BLOCKED;
		if (runnable && is_needed_holder(vcpu))
			ask_for_boost(slot, CAUSE_HOLDER, 0);
		else
			ask_for_heir(vcpu->vm);
		return;
	}
	/* Interrupted by the helper, or by a task that is more real-time than it: it goes on. */
	if (runnable && is_boosted(p))
		return;
	boost_of(vcpu)->is_real_time = 0;
	if (end_with_turn(slot, runnable))
		ask_for_boost(slot, boost_of(vcpu)->cause, boost_of(vcpu)->vector);
	else
		ask_for_heir(vcpu->vm);
}

static __always_inline void starts_running(struct task_struct *p, u64 now)
{
	struct vcpu *vcpu = vcpu_of(task_ctx_of(p));
	struct vm_stats *stats = vcpu ? vm_stats_at(vcpu->vm) : NULL;
	struct vm *vm = vcpu ? vm_at(vcpu->vm) : NULL;
	u64 waited_ns;
	u32 bucket;

	if (!stats || !vm)
		return;
	waited_ns = elapsed_ns(vcpu->runnable_at_ns, now);
	if (!vcpu->rests && is_late_wait(vcpu, waited_ns))
		COUNT(boosts_in(vm)->stats.late_waits);
	bucket = histogram_bucket(waited_ns);
	ADD(stats->waited_ns, waited_ns);
	if (bucket < HISTOGRAM_BUCKETS)
		COUNT(stats->wait_to_run_us[bucket]);
	boost_of(vcpu)->running_since_ns = now;
	boost_of(vcpu)->runs_on_since_ns = now;
	heir_runs(vcpu);
	vcpu->yielded = 0;
	vcpu->preempted = 0;
	if (vcpu->state == VCPU_MICRO)
		return;
	if (is_boosted(p))
		begin_boost(vcpu, now);
	else
		miss_boost(vcpu, VCPU_RUNNING, BOOST_MISS_OVERTAKEN);
	if (vcpu->state != VCPU_MICRO)
		vcpu->state = VCPU_RUNNING;
}

/*
 * TIF_NEED_RESCHED: asm-generic/thread_info_tif.h in 6.18, x86's asm/thread_info.h in 6.1 and 6.12. Elsewhere
 * the wrong one costs the helper a look, or a vCPU its boost.
 */
#define NEED_RESCHED (LINUX_KERNEL_VERSION >= (6 << 16 | 18 << 8) ? 1ul << 4 : 1ul << 3)

/*
 * The pCPU on which a vCPU that was woken has to wait: somebody else runs there, and goes on. -1: it runs at
 * once, because nobody runs there or because the kernel has whoever runs stop for it (wakeup_preempt() is
 * before the tracepoint, ttwu_do_activate()). -1 also where nothing tells, without CONFIG_FAIR_GROUP_SCHED.
 */
static __always_inline s32 woken_waits_on(struct task_struct *p)
{
	struct cfs_rq *queue = NULL;
	struct task_struct *current;
	struct rq *rq;

	if (!bpf_core_field_exists(p->se.cfs_rq) || !bpf_core_field_exists(queue->rq))
		return -1;
	queue = BPF_CORE_READ(p, se.cfs_rq);
	rq = BPF_CORE_READ(queue, rq);
	current = BPF_CORE_READ(rq, curr);
	if (!BPF_CORE_READ(current, pid) || BPF_CORE_READ(current, thread_info.flags) & NEED_RESCHED)
		return -1;
	return BPF_CORE_READ(rq, cpu);
}

SEC("tp_btf/sched_wakeup")
int BPF_PROG(on_wakeup, struct task_struct *p)
{
	struct task_ctx *tctx = task_ctx_of(p);
	struct vcpu *vcpu = vcpu_of(tctx);
	s32 waits_on;

	if (!tctx || !vcpu || !vcpu_moves(vcpu, VCPU_BLOCKED, VCPU_RUNNABLE))
		return 0;
	vcpu->runnable_at_ns = bpf_ktime_get_ns();
	if (!config.boosts_woken)
		return 0;
	waits_on = woken_waits_on(p);
	if (waits_on < 0)
		return 0;
	boost_of(vcpu)->stopped_on = waits_on;
	ask_for_boost(tctx->vcpu - 1, CAUSE_WOKEN, 0);
	return 0;
}
