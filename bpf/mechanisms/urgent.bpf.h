/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Urgency: which vCPUs an IPI makes urgent, for how long, and the urgent slices that follow
 * (policy/urgent.h).
 *
 * Mechanism. KVM delivers an IPI in its sender's thread: the policy says which of both is urgent from now on.
 *            An urgent vCPU that waits stands in a pCPU's urgent queue, whose ops.dispatch lets it run for an
 *            urgent slice. One that runs keeps its pCPU for as long. A timer ends both, because a slice is
 *            shorter than a tick. A guest that takes the interrupt says so at its end (KVM's tracepoint
 *            kvm_eoi), or its local APIC shows it. That end is an exit, just before the guest does what it
 *            was called for. So the vCPU stays urgent for the time of an answer.
 * Races.     State is written by those that send and by the pCPU that runs it, without a lock. An update
 *            that is lost is an urgency that isn't given, or lasts until it is looked at next. Beginnings
 *            and ends are compare-and-exchange, so that counts add up.
 * Limits.    A device's interrupt of an IPI's vector asks for nothing: only a sibling's thread does. The
 *            address where an IPI leaves a guest is the same for shootdowns and other calls, so all calls
 *            count as shootdowns. Where end of interrupt causes no exit and the local APIC can't be read
 *            (Intel's posted interrupts), an event ends after an urgent slice.
 */
#ifndef BPF_URGENT_H
#define BPF_URGENT_H

#include "bpf/core/trace.bpf.h"
#include "bpf/mechanisms/urgent_queue.bpf.h"

/* What runs on a pCPU, beside what the core knows. Nobody preempts it: see gives_way_to(). */
enum urgent_occupant {
	OCCUPANT_URGENT = OCCUPANT_OF_MECHANISMS, /* a vCPU in its urgent slice */
};

/* Entries of the urgent queue that one dispatch looks at. */
#define URGENT_TAKE_MAX 4u

struct urgent_vcpu {
	struct urgent_state state;
	u64 charged_at_ns;  /* what it ran up to then is taken off the state */
	u64 waits_since_ns; /* urgent, without a pCPU; 0: not so */
	u32 is_urgent;
	u32 pcpu;    /* where it runs, or ran last */
	u32 pulled;  /* pCPU + 1 whose urgent queue it has been taken from, to run there; 0: none */
	u32 answers; /* it has acknowledged a call, and may not have answered yet */
};

struct urgent_pcpu {
	u64 since_ns;	   /* the urgent slice that runs here began then; 0: none does */
	u64 turn_since_ns; /* the turn did */
	u64 turn_vtime_ns; /* with this clock */
	u64 turn_weight;   /* which this weight moves */
	u32 vcpu;	   /* slot + 1 of the vCPU that runs here; 0: none */
	u32 borrows;	   /* it runs because it is urgent, not because of its clock */
};

static __always_inline struct urgent_vcpu *urgent_of(const struct vcpu *vcpu);
static __always_inline struct urgent_pcpu *urgent_on(const struct pcpu *pcpu);

struct urgent_timer {
	struct bpf_timer timer;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, PCPUS_MAX);
	__type(key, u32);
	__type(value, struct urgent_timer);
} urgent_timers SEC(".maps");

static __always_inline u64 urgent_load_on(const struct pcpu *pcpu)
{
	return urgent_line_length(pcpu) + (pcpu->occupant == OCCUPANT_URGENT);
}

static __always_inline bool runs_vcpu(const struct pcpu *pcpu)
{
	return pcpu->occupant == OCCUPANT_VCPU || pcpu->occupant == OCCUPANT_BOOSTED_VCPU ||
	       pcpu->occupant == OCCUPANT_URGENT;
}

static __always_inline bool has_sibling_on(const struct vcpu *vcpu, const struct pcpu *pcpu)
{
	return (runs_vcpu(pcpu) && pcpu->vm == vcpu->vm + 1) ||
	       (urgent_line_length(pcpu) && urgent_queue_on(pcpu)->vm == vcpu->vm + 1);
}

/* ---- Beginning and end ---- */

static __always_inline struct urgent_stats *urgent_stats_of(const struct vcpu *vcpu)
{
	struct vm_stats *stats = vm_stats_at(vcpu->vm);

	return stats ? &stats->urgent : NULL;
}

static __always_inline void become_urgent(struct vcpu *vcpu)
{
	struct urgent_stats *stats = urgent_stats_of(vcpu);

	if (__sync_val_compare_and_swap(&urgent_of(vcpu)->is_urgent, 0, 1))
		return;
	urgent_of(vcpu)->answers = 0;
	trace_of(vcpu, TRACE_BECAME_URGENT, 0, 0);
	if (stats)
		COUNT(stats->became_urgent);
}

/* `why`: enum urgent_end. True if it was urgent until now. */
static __always_inline bool end_urgency(struct vcpu *vcpu, u32 why)
{
	struct urgent_stats *stats = urgent_stats_of(vcpu);

	urgent_of(vcpu)->state = urgent_after_ple();
	leave_line(vcpu);
	if (__sync_val_compare_and_swap(&urgent_of(vcpu)->is_urgent, 1, 0) != 1)
		return false;
	trace_of(vcpu, TRACE_URGENCY_ENDED, 0, why);
	urgent_of(vcpu)->waits_since_ns = 0;
	if (stats && why < URGENT_END_COUNT)
		COUNT(stats->ends[why]);
	return true;
}

/* ---- Urgent slices ---- */

static __always_inline bool somebody_waits_for(s32 cpu, const struct pcpu *pcpu)
{
	return urgent_line_length(pcpu) || somebody_waits_in(DSQ_BOOSTED, cpu) || a_host_task_waits(cpu);
}

/* The present vCPU may be preempted again. A borrower of its time gives the pCPU back: the ladder chooses. */
static __always_inline void end_protection(s32 cpu, struct pcpu *pcpu)
{
	__sync_val_compare_and_swap(&pcpu->occupant, OCCUPANT_URGENT, OCCUPANT_VCPU);
	if (urgent_on(pcpu)->borrows || somebody_waits_for(cpu, pcpu))
		scx_bpf_kick_cpu(cpu, KICK_PREEMPT);
}

/* The vCPU isn't urgent any more: nor is its slice, if it runs in one. */
static __always_inline void end_urgent_slice(const struct vcpu *vcpu)
{
	s32 cpu = urgent_of(vcpu)->pcpu;
	struct pcpu *pcpu = pcpu_of(cpu);
	struct urgent_stats *stats = urgent_stats_of(vcpu);

	if (!pcpu || !urgent_on(pcpu)->since_ns)
		return;
	if (stats)
		ADD(stats->ran_ns, bpf_ktime_get_ns() - urgent_on(pcpu)->since_ns);
	urgent_on(pcpu)->since_ns = 0;
	end_protection(cpu, pcpu);
}

/*
 * Where the kernel refuses the timer, a slice ends with the host's next tick, and a protection with the turn.
 */
static __always_inline void begin_urgent_slice(s32 cpu, struct pcpu *pcpu, struct vcpu *vcpu, u64 now)
{
	struct urgent_timer *timer = bpf_map_lookup_elem(&urgent_timers, &cpu);
	struct urgent_stats *stats = urgent_stats_of(vcpu);

	urgent_on(pcpu)->since_ns = now;
	if (timer)
		START_TIMER(&timer->timer, config.urgent.slice_ns, pinned_to(cpu),
			    host_stats.slice_timers_refused);
	if (stats)
		COUNT(stats->slices);
}

/*
 * It runs already, and has become urgent: nobody preempts it for an urgent slice. One that goes on has its
 * own.
 */
static __always_inline void protect(struct vcpu *vcpu, u32 slot, u64 now)
{
	s32 cpu = urgent_of(vcpu)->pcpu;
	struct pcpu *pcpu = pcpu_of(cpu);
	struct urgent_stats *stats = urgent_stats_of(vcpu);
	u32 was;

	if (!pcpu || urgent_on(pcpu)->vcpu != slot + 1 || urgent_on(pcpu)->since_ns)
		return;
	was = pcpu->occupant;
	if (was != OCCUPANT_VCPU && was != OCCUPANT_BOOSTED_VCPU)
		return;
	if (__sync_val_compare_and_swap(&pcpu->occupant, was, OCCUPANT_URGENT) != was)
		return;
	begin_urgent_slice(cpu, pcpu, vcpu, now);
	if (stats)
		COUNT(stats->protections);
}

/* What it ran for is taken off. */
static __always_inline struct urgent_state charged_urgency(struct vcpu *vcpu, u64 now)
{
	struct urgent_state state = urgent_of(vcpu)->state;

	state = charge_urgent(&state, elapsed_ns(urgent_of(vcpu)->charged_at_ns, now));
	urgent_of(vcpu)->charged_at_ns = now;
	return state;
}

/* A call that it was urgent for has been acknowledged, and is about to be answered. */
static __always_inline struct urgent_state answers_call(struct vcpu *vcpu, const struct urgent_state *state,
							u32 another_waits)
{
	struct urgent_config limits = config.urgent;

	urgent_of(vcpu)->answers = 1;
	return acknowledge_urgent(&limits, state, another_waits);
}

/*
 * What it ran for is taken off, and what its guest has acknowledged. Only for the pCPU where it runs. True
 * if it isn't urgent any more: its urgent slice is the caller's to end.
 */
__noinline int settle_urgency(u32 slot, u64 now)
{
	struct vcpu *vcpu = vcpu_at(slot);
	struct pcpu *pcpu;
	struct urgent_state state;
	u32 answer;

	if (!vcpu || !urgent_of(vcpu)->is_urgent)
		return 0;
	pcpu = pcpu_of(urgent_of(vcpu)->pcpu);
	if (!pcpu)
		return 0;
	state = charged_urgency(vcpu, now);
	if (state.events) {
		answer = guest_answer_to_calls(vcpu->kvm_vcpu);
		if (answer == ANSWER_GIVEN ||
		    (answer == ANSWER_UNKNOWN && now - urgent_on(pcpu)->since_ns >= config.urgent.slice_ns))
			state = answers_call(vcpu, &state, 0);
	}
	urgent_of(vcpu)->state = state;
	return !is_urgent(&state) &&
	       end_urgency(vcpu, urgent_of(vcpu)->answers ? URGENT_END_ACKNOWLEDGED : URGENT_END_TIME_USED);
}

/*
 * An answer may be due before the slice is over; or the timer was armed for an earlier slice than this one.
 */
static int urgent_slice_is_over(void *map, u32 *cpu, struct urgent_timer *timer)
{
	struct pcpu *pcpu = pcpu_of(*cpu);
	u64 now = bpf_ktime_get_ns(), since, ran_ns;
	struct vcpu *vcpu;

	if (!pcpu)
		return 0;
	since = urgent_on(pcpu)->since_ns;
	vcpu = vcpu_at(urgent_on(pcpu)->vcpu - 1);
	if (!since || !vcpu)
		return 0;
	if (urgent_of(vcpu)->answers && settle_urgency(urgent_on(pcpu)->vcpu - 1, now)) {
		end_urgent_slice(vcpu);
		return 0;
	}
	ran_ns = now - since;
	if (ran_ns < config.urgent.slice_ns) {
		START_TIMER(&timer->timer, config.urgent.slice_ns - ran_ns, pinned_to(*cpu),
			    host_stats.slice_timers_refused);
		return 0;
	}
	end_protection(*cpu, pcpu);
	return 0;
}

/* ---- Asking (any context) ---- */

/* The clock of the vCPU that runs there, as it stands now. */
static __always_inline u64 vtime_on(const struct pcpu *pcpu, u64 now)
{
	const struct urgent_pcpu *on = urgent_on(pcpu);

	return on->turn_vtime_ns + charge(elapsed_ns(on->turn_since_ns, now), on->turn_weight);
}

/* Not static, as all that records here: ops.dispatch has no room left on its stack. */
__noinline int record_urgent(u32 slot, const struct urgent_observation *seen, u32 decision)
{
	if (!seen)
		return 0;
	RECORD_BY(RECORD_URGENT, slot, {
		record->urgent.config = config.urgent;
		record->urgent.seen = *seen;
		record->urgent.decision = decision;
	});
	return 0;
}

static __always_inline u32 decide_and_count(const struct vcpu *vcpu, u32 slot,
					    const struct urgent_observation *seen)
{
	struct urgent_config limits = config.urgent;
	struct urgent_stats *stats = urgent_stats_of(vcpu);
	u32 decision = decide_on_urgent(&limits, seen);

	if (config.recording)
		record_urgent(slot, seen, decision);
	if (stats && decision < URGENT_DECISION_COUNT)
		COUNT(stats->decisions[decision]);
	if (stats && decision == URGENT_PREEMPTS && seen->current_exists &&
	    vtime_before(seen->current_vtime_ns, seen->vtime_ns))
		ADD(stats->borrowed_ns, seen->vtime_ns - seen->current_vtime_ns);
	return decision;
}

/*
 * It waits, and is urgent: may it have that pCPU now? Host tasks keep theirs: guests wait for many of them.
 */
static __always_inline void ask_pcpu(const struct vcpu *vcpu, u32 slot, u64 vtime_ns, s32 cpu,
				     struct pcpu *pcpu)
{
	u64 now = bpf_ktime_get_ns(), since = urgent_on(pcpu)->since_ns;
	struct urgent_observation seen = {.state = urgent_of(vcpu)->state,
					  .vtime_ns = vtime_ns,
					  .current_vtime_ns = vtime_on(pcpu, now),
					  .current_ran_ns = now - since,
					  .current_is_urgent = pcpu->occupant == OCCUPANT_URGENT,
					  .current_exists = runs_vcpu(pcpu)};

	if (pcpu->occupant == OCCUPANT_OTHER)
		return;
	if (decide_and_count(vcpu, slot, &seen) == URGENT_PREEMPTS)
		scx_bpf_kick_cpu(cpu, pcpu->occupant == OCCUPANT_NONE ? KICK_IDLE : KICK_PREEMPT);
}

/* An urgent vCPU that waits enters a pCPU's urgent queue, which may give way to it at once. */
__noinline int line_up(u32 slot)
{
	struct vcpu *vcpu = vcpu_at(slot);
	struct urgent_stats *stats;
	struct task_struct *p;
	struct task_ctx *tctx;
	struct pcpu *pcpu;
	s32 cpu;

	if (!vcpu || vcpu->state != VCPU_RUNNABLE || vcpu->rests || !urgent_of(vcpu)->is_urgent)
		return 0;
	if (!urgent_of(vcpu)->waits_since_ns)
		urgent_of(vcpu)->waits_since_ns = bpf_ktime_get_ns();
	stats = urgent_stats_of(vcpu);
	if (!stats || !claim_for_line(vcpu))
		return 0;
	p = bpf_task_from_pid(vcpu->pid);
	tctx = p ? task_ctx_of(p) : NULL;
	cpu = tctx ? place_urgent(p, vcpu, slot) : -1;
	pcpu = pcpu_of(cpu);
	if (!tctx || cpu < 0 || !pcpu) {
		leave_line(vcpu);
	} else if (!enter_line(slot, cpu)) {
		COUNT(stats->turned_away);
	} else {
		ask_pcpu(vcpu, slot, tctx->vtime_ns, cpu, pcpu);
	}
	if (p)
		bpf_task_release(p);
	return 0;
}

/* ---- An IPI is about to be delivered, in its sender's thread ---- */

/* Which schemes its VM has: until the daemon has spoken, none, because a knob may be off. */
static __always_inline u32 schemes_of(const struct vcpu *vcpu)
{
	struct vm *vm = vm_at(vcpu->vm);
	struct vm_feed *feed = vm_feed_at(vcpu->vm);

	return vm && feed && feed_is_current(feed, vm) ? feed->urgent_schemes : 0;
}

static __always_inline void count_requests(struct urgent_stats *stats, u32 kind, u32 schemes)
{
	if (kind < INTERRUPT_KIND_COUNT)
		COUNT(stats->ipis[kind]);
	if (kind == INTERRUPT_IPI_CALL_FUNCTION && (schemes & URGENT_TLB_CO))
		COUNT(stats->requests[URGENT_SCHEME_TLB_CO]);
	if (kind == INTERRUPT_IPI_RESCHEDULE && (schemes & URGENT_RESCHED_DP))
		COUNT(stats->requests[URGENT_SCHEME_RESCHED_DP]);
	if (kind == INTERRUPT_IPI_RESCHEDULE && (schemes & URGENT_RESCHED_CO))
		COUNT(stats->requests[URGENT_SCHEME_RESCHED_CO]);
}

/* What was decided of one of both takes effect. */
__noinline int take_urgency(u32 slot)
{
	struct vcpu *vcpu = vcpu_at(slot);
	u64 now = bpf_ktime_get_ns();

	if (!vcpu)
		return 0;
	if (!urgent_of(vcpu)->is_urgent)
		urgent_of(vcpu)->charged_at_ns = now;
	become_urgent(vcpu);
	if (vcpu->state == VCPU_RUNNING)
		protect(vcpu, slot, now);
	else
		line_up(slot);
	return 0;
}

static __noinline int on_interrupt(u64 kvm_vcpu, u32 vector)
{
	u32 *slot = bpf_map_lookup_elem(&vcpu_by_address, &kvm_vcpu), kind = interrupt_kind_of(vector);
	struct task_ctx *tctx;
	struct urgent_config limits = config.urgent;
	struct ipi_observation seen = {.kind = kind};
	struct ipi_decision decision;
	struct urgent_stats *stats;
	struct vcpu *sender, *recipient;

	if (!slot || (kind != INTERRUPT_IPI_RESCHEDULE && kind != INTERRUPT_IPI_CALL_FUNCTION))
		return 0;
	recipient = vcpu_at(*slot);
	tctx = task_ctx_of(bpf_get_current_task_btf());
	sender = vcpu_of(tctx);
	if (!recipient || !tctx || !sender || sender == recipient || sender->vm != recipient->vm)
		return 0;
	stats = urgent_stats_of(sender);
	if (!stats)
		return 0;
	if (settle_urgency(tctx->vcpu - 1, bpf_ktime_get_ns()))
		end_urgent_slice(sender);
	seen.sender = urgent_of(sender)->state;
	seen.recipient = urgent_of(recipient)->state;
	seen.schemes = schemes_of(sender);
	decision = decide_on_ipi(&limits, &seen);
	RECORD(RECORD_IPI, *slot, ipi, {.delay_ns = limits.delay_ns, .seen = seen, .decision = decision});
	count_requests(stats, kind, seen.schemes);
	urgent_of(sender)->state = decision.sender;
	urgent_of(recipient)->state = decision.recipient;
	if (is_urgent(&decision.sender))
		take_urgency(tctx->vcpu - 1);
	if (is_urgent(&decision.recipient))
		take_urgency(*slot);
	return 0;
}

/* ---- The guest acknowledges, or spins: both in its own thread ---- */

/* If it runs in an urgent slice, that is looked at again when the answer is due. */
static __always_inline void look_at_answer(const struct vcpu *vcpu, u64 in_ns)
{
	u32 cpu = urgent_of(vcpu)->pcpu;
	struct urgent_timer *timer = bpf_map_lookup_elem(&urgent_timers, &cpu);
	struct pcpu *pcpu = pcpu_of(cpu);

	if (pcpu && timer && urgent_on(pcpu)->since_ns)
		START_TIMER(&timer->timer, in_ns, pinned_to(cpu), host_stats.slice_timers_refused);
}

SEC("tp_btf/kvm_eoi")
int BPF_PROG(on_end_of_interrupt, struct kvm_lapic *apic, int vector)
{
	struct vcpu *vcpu = vcpu_of(task_ctx_of(bpf_get_current_task_btf()));
	struct urgent_state state;
	u32 another;

	if (!vcpu || !urgent_of(vcpu)->state.events ||
	    interrupt_kind_of(vector) != INTERRUPT_IPI_CALL_FUNCTION)
		return 0;
	another = guest_interrupt_pending(vcpu->kvm_vcpu, VECTOR_CALL_FUNCTION) ||
		  guest_interrupt_pending(vcpu->kvm_vcpu, VECTOR_CALL_FUNCTION_SINGLE);
	state = charged_urgency(vcpu, bpf_ktime_get_ns());
	state = answers_call(vcpu, &state, another);
	urgent_of(vcpu)->state = state;
	if (!is_urgent(&state) && end_urgency(vcpu, URGENT_END_ACKNOWLEDGED))
		end_urgent_slice(vcpu);
	else if (!state.events)
		look_at_answer(vcpu, state.left_ns);
	return 0;
}

/* The vCPU whose thread this is spins: whatever it was urgent for, it waits itself (4.3). */
__noinline int on_yield(u32 cause)
{
	struct vcpu *self = vcpu_of(task_ctx_of(bpf_get_current_task_btf()));

	if (!self)
		return 0;
	self->heirs_tried = 0;
	if (cause == YIELD_PLE && end_urgency(self, URGENT_END_SPUN))
		end_urgent_slice(self);
	return 0;
}

#endif
