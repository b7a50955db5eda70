/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * observe: what overcommit costs each VM, on a host whose scheduler it leaves alone, with or without
 * sched_ext.
 *
 * Problem.   A host shows what threads wait, not what a guest loses by it: which of its locks were held
 *            meanwhile, which of its shootdowns and interrupts waited.
 * Mechanism. sched_switch and sched_wakeup tell when a vCPU runs, waits or sleeps; KVM's hooks tell what is
 *            sent to it. What is sent to a vCPU without a pCPU waits until that vCPU's next turn. The guest's
 *            instruction pointer tells what a turn's end interrupted. Each pCPU keeps its last turns, so that
 *            a long wait has a name: who ran there meanwhile. Nothing is decided here, and nobody is moved.
 * Races.     The sender writes that something waits, then reads whether the recipient runs. A vCPU that
 *            begins to run writes that, then reads what waits. So one of both sees the other. A pCPU may
 *            write its turns while they are read: one that begins then may count for its predecessor.
 * Limits.    A vCPU is seen from its first turn on. A call whose recipient runs is taken for answered: if its
 *            turn ends before it answers, that is a turn ended with an answer owed. What the hardware
 *            delivers without an exit isn't seen. Time that cpu.max takes counts as waiting, as in the
 *            kernel's own run delay. Of a long wait the last TURNS_KEPT turns are known, on the pCPU where
 *            it began, and RUNNERS_TOLD runners of them.
 */
#define BESIDE

#include "bpf/core/observe.bpf.h"
#include "bpf/core/switches.bpf.h"
#include "bpf/core/trace.bpf.h"

char _license[] SEC("license") = "GPL";

#define KVM_MSR_ENABLED 1u /* arch/x86/include/uapi/asm/kvm_para.h */
#define CALLER_WORDS (VCPUS_PER_VM_MAX / 64)
#define MAX_ATTEMPTS 4u
#define TURNS_KEPT 64u
#define RUNNERS_TOLD 8u

/* ---- State ---- */

/* What waits for a vCPU, and what it waits for. */
struct waiting {
	u64 interrupt_since_ns[INTERRUPT_KIND_COUNT]; /* the first of those that wait; 0: none does */
	u64 callers
	    [CALLER_WORDS]; /* a bit for each sibling, by its index: it has called, and waits for this one */
	u64 call_since_ns;  /* of its own call */
	u64 unanswered;	    /* how many siblings that is still to be answered by */
	u32 pcpu;	    /* where it became runnable last */
	u32 reserved;
};

struct pcpu_turn {
	u64 runner;
	u64 since_ns;
	u64 until_ns; /* 0: it is under way */
	char comm[16];
};

/* A pCPU's last turns: a ring. */
struct pcpu_turns {
	u64 begun; /* how many have; the last one is under way */
	struct pcpu_turn turns[TURNS_KEPT];
};

/* Who ran during a wait: sums, while they are made. */
struct runners {
	u64 runner[RUNNERS_TOLD];
	u64 ran_ns[RUNNERS_TOLD];
	u32 turn[RUNNERS_TOLD]; /* one of its turns */
	u32 count;
};

struct vcpu_seen {
	struct vcpu core;
	struct waiting waiting;
	struct observed_vcpu seen;
};

struct vm_seen {
	struct vm core;
	struct observed_vm seen;
};

struct vcpus_map {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, VCPUS_MAX);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, u32);
	__type(value, struct vcpu_seen);
} vcpus SEC(".maps");

struct vms_map {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, VMS_MAX);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, u32);
	__type(value, struct vm_seen);
} vms SEC(".maps");

/* How often. Of more places than there is room for, those that were seen last. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, MISSED_HOLDERS_MAX);
	__type(key, struct missed_holder);
	__type(value, u64);
} missed_holders SEC(".maps");

/* As many as there are pCPUs. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, PCPUS_MAX);
	__type(key, u32);
	__type(value, struct pcpu_turns);
} turns_of SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct runners);
} runners_of SEC(".maps");

/* The daemon has looked since. Longest waits that ended before it make room for any other. */
u64 longest_from_ns;

static __always_inline struct waiting *waiting_of(const struct vcpu *vcpu)
{
	return &((struct vcpu_seen *)vcpu)->waiting;
}

static __always_inline struct observed_vcpu *seen_of(const struct vcpu *vcpu)
{
	return &((struct vcpu_seen *)vcpu)->seen;
}

static __always_inline struct observed_vm *seen_in(const struct vm *vm)
{
	return &((struct vm_seen *)vm)->seen;
}

/* ---- Waits ---- */

/* See WAIT_BUCKETS. Five halvings of the search width: log2 without a loop. */
static __always_inline u32 wait_bucket(u64 ns)
{
	u64 units = ns >> 10, rest;
	u32 octave = 0;

	if (units >> 32)
		return WAIT_BUCKETS - 1;
	if (units < 4)
		return units;
	rest = units;
	if (rest >> 16) {
		octave += 16;
		rest >>= 16;
	}
	if (rest >> 8) {
		octave += 8;
		rest >>= 8;
	}
	if (rest >> 4) {
		octave += 4;
		rest >>= 4;
	}
	if (rest >> 2) {
		octave += 2;
		rest >>= 2;
	}
	octave += rest >> 1;
	return 4 * (octave - 1) + ((units >> (octave - 2)) & 3);
}

static __always_inline void note_wait(struct wait_stats *waits, u64 ns)
{
	u32 bucket = wait_bucket(ns), attempt;

	ADD(waits->total_ns, ns);
	/* The compiler knows that it is; the verifier doesn't. */
	barrier_var(bucket);
	if (bucket < WAIT_BUCKETS)
		COUNT(waits->counts[bucket]);
	for (attempt = 0; attempt < MAX_ATTEMPTS; attempt++) {
		u64 max_ns = waits->max_ns;

		if (max_ns >= ns || __sync_val_compare_and_swap(&waits->max_ns, max_ns, ns) == max_ns)
			break;
	}
}

/* ---- Who ran meanwhile ---- */

static __always_inline u64 runner_of(struct task_struct *p)
{
	struct vcpu *vcpu = vcpu_of(task_ctx_of(p));
	struct vm *vm = vcpu ? vm_at(vcpu->vm) : NULL;

	if (vm)
		return RUNNER_IS_VM | vcpu->vm |
		       (u64)(vm->generation & RUNNER_GENERATION_MASK) << RUNNER_GENERATION_SHIFT;
	return p->pid ? p->cgroups->dfl_cgrp->kn->id : 0;
}

/* The turn under way on this pCPU ends, and `next` has its own. A runner's turns in a row are one. */
static __always_inline void turn_begins(struct task_struct *next, u64 now)
{
	u32 pcpu = bpf_get_smp_processor_id();
	struct pcpu_turns *of = bpf_map_lookup_elem(&turns_of, &pcpu);
	struct pcpu_turn *turn;
	u64 runner;

	if (!of)
		return;
	runner = runner_of(next);
	turn = &of->turns[(of->begun - 1) & (TURNS_KEPT - 1)];
	if (of->begun && turn->runner == runner)
		return;
	turn->until_ns = now;
	turn = &of->turns[of->begun & (TURNS_KEPT - 1)];
	turn->runner = runner;
	turn->since_ns = now;
	turn->until_ns = 0;
	bpf_core_read_str(turn->comm, sizeof(turn->comm), &next->comm);
	of->begun++;
}

/* How much of this turn lies within the wait. */
static __always_inline u64 turn_within(const struct pcpu_turn *turn, u64 since_ns, u64 now)
{
	u64 begin = turn->since_ns > since_ns ? turn->since_ns : since_ns;
	u64 end = turn->until_ns && turn->until_ns < now ? turn->until_ns : now;

	return turn->since_ns && end > begin ? end - begin : 0;
}

/* Not static: see maps.bpf.h. */
__noinline int add_turn(u32 pcpu, u32 at, u64 since_ns, u64 now)
{
	u32 zero = 0, place;
	struct pcpu_turns *of = bpf_map_lookup_elem(&turns_of, &pcpu);
	struct runners *runners = bpf_map_lookup_elem(&runners_of, &zero);
	struct pcpu_turn *turn;
	u64 within;

	if (!of || !runners)
		return 0;
	turn = &of->turns[at & (TURNS_KEPT - 1)];
	within = turn_within(turn, since_ns, now);
	if (!within)
		return 0;
	for (place = 0; place < RUNNERS_TOLD; place++) {
		if (place >= runners->count) {
			runners->runner[place] = turn->runner;
			runners->ran_ns[place] = 0;
			runners->turn[place] = at;
			runners->count = place + 1;
		}
		if (runners->runner[place] == turn->runner) {
			runners->ran_ns[place] += within;
			break;
		}
	}
	return 0;
}

/* The longest wait of the vCPU in `slot` since the daemon looked has ended. Not static: see maps.bpf.h. */
__noinline int tell_longest(u32 slot, u64 since_ns, u64 now)
{
	struct vcpu *vcpu = vcpu_at(slot);
	u32 zero = 0, pcpu = vcpu ? waiting_of(vcpu)->pcpu : 0, at, place;
	struct pcpu_turns *of = bpf_map_lookup_elem(&turns_of, &pcpu);
	struct runners *runners = bpf_map_lookup_elem(&runners_of, &zero);
	struct long_wait *longest;
	u64 most_ns = 0;
	u32 most = 0;

	if (!vcpu || !of || !runners)
		return 0;
	runners->count = 0;
	for (at = 0; at < TURNS_KEPT; at++)
		add_turn(pcpu, at, since_ns, now);
	longest = &seen_of(vcpu)->longest;
	longest->runner = 0;
	for (place = 0; place < RUNNERS_TOLD; place++) {
		if (place >= runners->count)
			break;
		if (runners->ran_ns[place] > most_ns) {
			most_ns = runners->ran_ns[place];
			most = runners->turn[place];
			longest->runner = runners->runner[place];
		}
	}
	__builtin_memcpy(longest->comm, of->turns[most & (TURNS_KEPT - 1)].comm, sizeof(longest->comm));
	longest->since_ns = since_ns;
	longest->length_ns = now - since_ns;
	longest->runner_ns = most_ns;
	longest->pcpu = pcpu;
	return 0;
}

static __always_inline void note_longest(const struct vcpu *vcpu, u32 slot, u64 now)
{
	const struct long_wait *longest = &seen_of(vcpu)->longest;
	u64 since_ns = seen_of(vcpu)->since_ns, length_ns = elapsed_ns(since_ns, now);

	if (length_ns < LONG_WAIT_NS)
		return;
	if (longest->length_ns < length_ns || longest->since_ns + longest->length_ns < longest_from_ns)
		tell_longest(slot, since_ns, now);
}

/* The scheduler, whichever it is, doesn't say. */
HOOK u32 traced_turn(s32 cpu)
{
	return TRACE_TURN_NORMAL;
}

/* ---- Calls ---- */

/* The siblings in one word of callers[] wait for this vCPU no longer. Not static: see maps.bpf.h. */
__noinline int answer_callers(u32 slot, u32 word, u64 now)
{
	struct vcpu *vcpu = vcpu_at(slot);
	struct vm *vm = vcpu ? vm_at(vcpu->vm) : NULL;
	u64 callers;
	u32 bit;

	if (!vm || word >= CALLER_WORDS)
		return 0;
	callers = __sync_lock_test_and_set(&waiting_of(vcpu)->callers[word], 0);
	for (bit = 0; bit < 64; bit++) {
		u32 entry = vm->vcpus[(word * 64 + bit) & (VCPUS_PER_VM_MAX - 1)];
		struct vcpu *caller = callers >> bit & 1 ? vcpu_at(entry - 1) : NULL;

		/* None, if it has gone meanwhile, and another is in its place. */
		if (!caller || !waiting_of(caller)->unanswered)
			continue;
		if (__sync_fetch_and_sub(&waiting_of(caller)->unanswered, 1) == 1)
			note_wait(&seen_in(vm)->shootdowns,
				  elapsed_ns(waiting_of(caller)->call_since_ns, now));
	}
	return 0;
}

static __always_inline void answer_all(const struct vcpu *vcpu, u32 slot, u64 now)
{
	u32 word;

	for (word = 0; word < CALLER_WORDS; word++)
		if (waiting_of(vcpu)->callers[word])
			answer_callers(slot, word, now);
}

/* The vCPU whose thread this is has called `recipient`, which has no pCPU. */
static __always_inline void note_call(const struct vcpu *recipient, u64 now)
{
	struct vcpu *caller = vcpu_of(task_ctx_of(bpf_get_current_task_btf()));
	u64 *callers, bit;

	if (!caller || caller == recipient || caller->vm != recipient->vm)
		return;
	callers = &waiting_of(recipient)->callers[caller->index_in_vm / 64 & (CALLER_WORDS - 1)];
	bit = 1ull << (caller->index_in_vm & 63);
	/* No other program sets this bit, and the one that clears it counts down what is counted up here. */
	if (*callers & bit)
		return;
	if (!__sync_fetch_and_add(&waiting_of(caller)->unanswered, 1))
		waiting_of(caller)->call_since_ns = now;
	__sync_fetch_and_or(callers, bit);
	/* It has got a pCPU meanwhile, and may have looked for callers before. */
	if (recipient->state == VCPU_RUNNING && __sync_fetch_and_and(callers, ~bit) & bit)
		__sync_fetch_and_sub(&waiting_of(caller)->unanswered, 1);
}

/* ---- Coming and going ---- */

HOOK void on_vm_joins(struct vm *vm)
{
	volatile u64 *words =
	    (u64 *)seen_in(vm); /* or the compiler makes a memset of it, which BPF has not */
	u32 word;

	for (word = 0; word < sizeof(struct observed_vm) / sizeof(u64); word++)
		words[word] = 0;
}

HOOK void on_vcpu_joins(struct vcpu *vcpu)
{
	volatile u64 *words = (u64 *)seen_of(vcpu), *waiting = (u64 *)waiting_of(vcpu);
	u32 word;

	for (word = 0; word < sizeof(struct waiting) / sizeof(u64); word++)
		waiting[word] = 0;
	for (word = 0; word < sizeof(struct observed_vcpu) / sizeof(u64); word++)
		words[word] = 0;
	seen_of(vcpu)->joined_at_ns = bpf_ktime_get_ns();
	seen_of(vcpu)->since_ns = seen_of(vcpu)->joined_at_ns;
}

/* Nobody waits for ever for one that is gone. */
HOOK void on_vcpu_leaves(struct vcpu *vcpu)
{
	struct task_ctx *tctx = task_ctx_of(bpf_get_current_task_btf());

	if (tctx)
		answer_all(vcpu, tctx->vcpu - 1, bpf_ktime_get_ns());
}

/* ---- What KVM tells ---- */

/* The vCPU whose thread this is spins, halts, or yields to a sibling. */
__noinline int on_yield(u32 cause)
{
	struct task_ctx *tctx = task_ctx_of(bpf_get_current_task_btf());
	struct vcpu *self = vcpu_of(tctx);
	u32 class;

	if (!tctx || !self)
		return 0;
	if (cause == YIELD_PLE) {
		class =
		    classify_rip(tctx->vcpu - 1, self->vm, self->kvm_vcpu, read_guest_rip(self->kvm_vcpu));
		if (class < GUEST_CLASS_COUNT)
			COUNT(seen_of(self)->spins[class]);
	} else if (cause == YIELD_HLT) {
		COUNT(seen_of(self)->halts);
		if (!guest_interrupts_enabled(self->kvm_vcpu))
			COUNT(seen_of(self)->lock_halts);
	} else {
		COUNT(seen_of(self)->directed_yields);
	}
	return 0;
}

static __noinline int on_interrupt(u64 kvm_vcpu, u32 vector)
{
	u32 *slot = bpf_map_lookup_elem(&vcpu_by_address, &kvm_vcpu);
	struct vcpu *vcpu = slot ? vcpu_at(*slot) : NULL;
	struct vm *vm = vcpu ? vm_at(vcpu->vm) : NULL;
	u32 kind = interrupt_kind_of(vector);
	u64 now = bpf_ktime_get_ns(), *since;

	barrier_var(kind);
	if (!vm || kind >= INTERRUPT_KIND_COUNT)
		return 0;
	COUNT(seen_in(vm)->interrupts[kind]);
	if (vcpu->state == VCPU_RUNNING)
		return 0;
	since = &waiting_of(vcpu)->interrupt_since_ns[kind];
	__sync_val_compare_and_swap(since, 0, now);
	if (kind == INTERRUPT_IPI_CALL_FUNCTION)
		note_call(vcpu, now);
	/* As in note_call(). */
	if (vcpu->state == VCPU_RUNNING)
		__sync_val_compare_and_swap(since, now, 0);
	return 0;
}

/* ---- Running, stopping, waking ---- */

/* How much of its waiting KVM has told the guest: at its last entry. */
static __always_inline void look_at_steal(const struct vcpu *vcpu)
{
	struct kvm_vcpu *kvm_vcpu = (void *)vcpu->kvm_vcpu;
	struct observed_vcpu *seen = seen_of(vcpu);
	u64 told_ns;

	if (!kvm_vcpu || !bpf_core_field_exists(kvm_vcpu->arch.st.last_steal) ||
	    !(BPF_CORE_READ(kvm_vcpu, arch.st.msr_val) & KVM_MSR_ENABLED))
		return;
	told_ns = BPF_CORE_READ(kvm_vcpu, arch.st.last_steal);
	if (!seen->steal_is_told)
		seen->steal_before_ns = told_ns;
	seen->steal_is_told = 1;
	seen->steal_ns = told_ns;
}

/* It held something, in a function of no list. Not static: see maps.bpf.h. */
__noinline int note_missed_holder(u32 slot, u64 rip)
{
	struct vcpu *vcpu = vcpu_at(slot);
	struct vm *vm = vcpu ? vm_at(vcpu->vm) : NULL;
	struct vm_feed *feed = vcpu ? vm_feed_at(vcpu->vm) : NULL;
	struct missed_holder place = {};
	u64 *count, once = 1;

	if (!vm || !feed)
		return 0;
	place.address = rip - feed->layout.slide;
	place.vm = vcpu->vm;
	place.generation = vm->generation;
	count = bpf_map_lookup_elem(&missed_holders, &place);
	if (count)
		COUNT(*count);
	else
		bpf_map_update_elem(&missed_holders, &place, &once, BPF_NOEXIST);
	return 0;
}

static __always_inline void stops_running(struct task_struct *p, bool runnable, u64 now)
{
	struct task_ctx *tctx = task_ctx_of(p);
	struct vcpu *vcpu = vcpu_of(tctx);
	struct observed_vcpu *seen;
	struct vm_stats *stats;
	u32 class;
	u64 rip;

	if (!tctx || !vcpu)
		return;
	seen = seen_of(vcpu);
	if (vcpu->state == VCPU_RUNNING)
		ADD(seen->ran_ns, now - seen->since_ns);
	look_at_steal(vcpu);
	seen->since_ns = now;
	waiting_of(vcpu)->pcpu = bpf_get_smp_processor_id();
	__sync_lock_test_and_set(&vcpu->state, runnable ? VCPU_RUNNABLE : VCPU_BLOCKED);
	rip = read_guest_rip(vcpu->kvm_vcpu);
	class = classify_rip(tctx->vcpu - 1, vcpu->vm, vcpu->kvm_vcpu, rip);
	look_at_count(tctx->vcpu - 1, class);
	if (!runnable)
		return;
	if (config.tracing)
		vcpu->guest_class = class;
	if (class < GUEST_CLASS_COUNT)
		COUNT(seen->turns_ended[class]);
	stats = vm_stats_at(vcpu->vm);
	if (stats)
		count_stop(stats, vcpu, class);
	if (vcpu->held > HELD_NOTHING && class == GUEST_CLASS_KERNEL_OTHER)
		note_missed_holder(tctx->vcpu - 1, rip);
	if (guest_answer_to_calls(vcpu->kvm_vcpu) == ANSWER_OWED)
		COUNT(seen->turns_ended_owing);
}

/* What waited for it has it from now on. */
static __always_inline void take_interrupts(const struct vcpu *vcpu, u64 now)
{
	struct vm *vm = vm_at(vcpu->vm);
	u32 kind;

	if (!vm)
		return;
	for (kind = 0; kind < INTERRUPT_KIND_COUNT; kind++) {
		u64 *since = &waiting_of(vcpu)->interrupt_since_ns[kind];
		u64 since_ns = *since ? __sync_lock_test_and_set(since, 0) : 0;

		if (since_ns)
			note_wait(&seen_in(vm)->interrupt_waits[kind], elapsed_ns(since_ns, now));
	}
}

static __always_inline void starts_running(struct task_struct *p, u64 now)
{
	struct task_ctx *tctx = task_ctx_of(p);
	struct vcpu *vcpu = vcpu_of(tctx);

	if (tctx && vcpu && vcpu->state == VCPU_RUNNABLE) {
		note_wait(&seen_of(vcpu)->ready, elapsed_ns(seen_of(vcpu)->since_ns, now));
		note_longest(vcpu, tctx->vcpu - 1, now);
	}
	/* Behind that: nobody waits for himself. */
	turn_begins(p, now);
	if (!tctx || !vcpu)
		return;
	seen_of(vcpu)->since_ns = now;
	__sync_lock_test_and_set(&vcpu->state, VCPU_RUNNING);
	take_interrupts(vcpu, now);
	answer_all(vcpu, tctx->vcpu - 1, now);
}

SEC("tp_btf/sched_wakeup")
int BPF_PROG(on_wakeup, struct task_struct *p)
{
	struct vcpu *vcpu = vcpu_of(task_ctx_of(p));

	if (!vcpu || vcpu->state != VCPU_BLOCKED)
		return 0;
	/* First: a reader of both, between two equal ones, has what belongs together. */
	seen_of(vcpu)->since_ns = bpf_ktime_get_ns();
	waiting_of(vcpu)->pcpu = p->thread_info.cpu;
	vcpu_moves(vcpu, VCPU_BLOCKED, VCPU_RUNNABLE);
	return 0;
}
