/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Delayed preemption: a turn ends where nobody waits for what its vCPU holds.
 *
 * Problem.   Nobody tells the host when a guest goes to user mode, or leaves critical code; nor when it takes
 *            back a hint.
 * Mechanism. The host looks at the instruction pointer, which is that of the guest's last exit. A timer
 *            pinned to the pCPU is such an exit, if the guest runs. The first look is where the window begins
 *            (policy/delay_preemption.h). At each look the turn ends, by a preemption, or is looked at again.
 *            The waiter that was put off until then waits no longer. ops.dispatch decides. It is asked at the
 *            end of a turn, and when another task is to run before that. That task waits for a window of its
 *            own at the most. Without a waiter there are no looks.
 * Races.     Between two looks the guest may have been in user mode and back: nobody sees it.
 * Limits.    A vCPU whose registers tell nothing has turns without windows; so has one whose kernel isn't
 *            known, where critical code is what is unsafe. A turn that a limit makes shorter, one on a
 *            reserved pCPU and a micro or an urgent slice have none. Pinned kernel threads and higher classes
 *            don't ask, and wait for nobody. On VMX the register cache is read as for guest_code.bpf.h.
 */
#ifndef BPF_DELAY_PREEMPTION_H
#define BPF_DELAY_PREEMPTION_H

#include "bpf/core/turns.bpf.h"
#include "bpf/mechanisms/hint_page.bpf.h"

/* Nobody is looked at earlier in its turn: its switch takes longer. */
#define LOOK_MIN_NS 10000ull

struct delay_preemption_vcpu {
	struct delay_state state;
};

struct delay_preemption_pcpu {
	struct delay_window window;	  /* around the end of the turn under way */
	struct delay_window interruption; /* another task was to run before that; its end is 0: none was */
	u64 due_ns;			  /* when the turn is over; 0: it has no window */
	u64 look_at_ns;			  /* when the timer is to look; 0: never */
	u32 vcpu;			  /* slot + 1 of the vCPU that runs; 0: none does */
	u32 is_put_off;
};

static __always_inline struct delay_preemption_vcpu *delay_of(const struct vcpu *vcpu);
static __always_inline struct delay_preemption_pcpu *delay_on(const struct pcpu *pcpu);
/* Do turns on this pCPU end in windows, or have grace, as things are? */
static __always_inline bool turns_are_delayed_on(s32 cpu, const struct pcpu *pcpu);

struct look_timer {
	struct bpf_timer timer;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, PCPUS_MAX);
	__type(key, u32);
	__type(value, struct look_timer);
} look_timers SEC(".maps");

static __always_inline bool turns_have_windows(void)
{
	struct delay_config rules = config.delay;

	return window_slides(&rules);
}

static __always_inline struct delay_stats *delay_stats_of(const struct vcpu *vcpu)
{
	struct vm_stats *stats = vm_stats_at(vcpu->vm);

	return stats ? &stats->delays : NULL;
}

/* ---- Looks ---- */

static __always_inline void arm_look(s32 cpu, struct pcpu *pcpu, u64 at_ns, u64 now)
{
	u32 key = cpu;
	struct look_timer *timer = bpf_map_lookup_elem(&look_timers, &key);
	u64 delay_ns = (s64)(at_ns - now) > 0 ? at_ns - now : 0;

	delay_on(pcpu)->look_at_ns = at_ns;
	/* Where the kernel refuses it the turn ends with the host's next tick. */
	if (timer)
		START_TIMER(&timer->timer, delay_ns, BPF_F_TIMER_CPU_PIN, host_stats.look_timers_refused);
}

/* What the guest of a vCPU does that doesn't run in it just now: an exit is over, or an interrupt was one. */
static __always_inline u32 what_its_guest_does(const struct vcpu *vcpu, u32 slot)
{
	if (is_halted(vcpu->kvm_vcpu))
		return GUEST_CLASS_IDLE;
	return classify_rip(slot, vcpu->vm, vcpu->kvm_vcpu, read_guest_rip(vcpu->kvm_vcpu));
}

static __always_inline u32 answer_that_counts(const struct vcpu *vcpu)
{
	if (config.delay.unsafe_where != DELAY_IN_CRITICAL_CODE)
		return ANSWER_UNKNOWN;
	return guest_answer_to_calls(vcpu->kvm_vcpu);
}

/* Would another task run here, if this turn ended? */
static __always_inline bool anybody_waits(s32 cpu)
{
	return somebody_waits_in(DSQ_VCPUS, cpu) || somebody_waits_in(DSQ_BOOSTED, cpu) ||
	       a_host_task_waits(cpu);
}

/* The window that counts now: the turn's own, once that has begun. */
static __always_inline struct delay_window window_now(const struct delay_preemption_pcpu *on, u64 now)
{
	return (s64)(now - on->window.begin_ns) >= 0 ? on->window : on->interruption;
}

/* A waiter that was put off before the window began isn't put off any longer by it. */
static __always_inline u64 no_later_than_interruption(const struct delay_preemption_pcpu *on, u64 at_ns)
{
	u64 limit_ns = on->interruption.end_ns;

	return limit_ns && (s64)(at_ns - limit_ns) > 0 ? limit_ns : at_ns;
}

/*
 * The vCPU that runs here is looked at. Returns for how long it goes on until the next look; 0: its turn
 * ends, for which `*verdict` is the reason.
 */
static __always_inline u64 look(s32 cpu, struct pcpu *pcpu, struct vcpu *vcpu, u32 slot, u64 now,
				u32 *verdict)
{
	struct delay_preemption_pcpu *on = delay_on(pcpu);
	struct delay_stats *stats = delay_stats_of(vcpu);
	struct delay_config rules = config.delay;
	struct delay_observation seen = {.window = window_now(on, now), .now_ns = now};
	struct delay_decision decision;
	u64 until_ns;

	seen.guest_class = what_its_guest_does(vcpu, slot);
	seen.answer = answer_that_counts(vcpu);
	if (rules.unsafe_where == DELAY_WHERE_HINTED)
		seen.hint_ns = hint_of(vcpu);
	decision = decide_on_delay(&rules, &seen);
	RECORD(RECORD_TURN, slot, turn, {.config = rules, .seen = seen, .decision = decision});
	*verdict = decision.verdict;
	until_ns = no_later_than_interruption(on, decision.look_at_ns);
	if (decision.verdict != DELAY_GOES_ON || (s64)(until_ns - now) <= 0)
		return 0;
	arm_look(cpu, pcpu, until_ns, now);
	if (stats) {
		COUNT(stats->looks);
		if (!on->is_put_off)
			COUNT(stats->put_off);
	}
	on->is_put_off = 1;
	return until_ns - now;
}

static __always_inline bool has_window(s32 cpu, const struct pcpu *pcpu, const struct vcpu *vcpu)
{
	if (pcpu->occupant != OCCUPANT_VCPU && pcpu->occupant != OCCUPANT_BOOSTED_VCPU)
		return false;
	if (pcpu->limited_until_ns || is_reserved(cpu) || registers_tell_nothing(vcpu->kvm_vcpu))
		return false;
	return config.delay.unsafe_where != DELAY_IN_CRITICAL_CODE || guest_is_known(vcpu->vm);
}

/* On the pCPU of the vCPU, which has therefore left its guest. */
static __always_inline void timer_fires(s32 cpu)
{
	struct pcpu *pcpu = pcpu_of(cpu);
	u64 now = bpf_ktime_get_ns(), at_ns;
	struct vcpu *vcpu;
	u32 slot, verdict;

	at_ns = pcpu ? delay_on(pcpu)->look_at_ns : 0;
	if (!pcpu || !at_ns)
		return;
	/* The timer was armed for an earlier turn than the one that runs now. */
	if ((s64)(at_ns - now) > 0) {
		arm_look(cpu, pcpu, at_ns, now);
		return;
	}
	delay_on(pcpu)->look_at_ns = 0;
	slot = delay_on(pcpu)->vcpu - 1;
	vcpu = vcpu_at(slot);
	if (vcpu && delay_on(pcpu)->due_ns && turns_are_delayed_on(cpu, pcpu) &&
	    has_window(cpu, pcpu, vcpu) && anybody_waits(cpu) && look(cpu, pcpu, vcpu, slot, now, &verdict))
		return;
	scx_bpf_kick_cpu(cpu, KICK_PREEMPT);
}

static int look_at_turn(void *map, u32 *cpu, struct look_timer *timer)
{
	u64 began = config.program_costs ? bpf_ktime_get_ns() : 0;

	timer_fires(*cpu);
	if (began) {
		COUNT(host_stats.looks);
		ADD(host_stats.looks_ns, bpf_ktime_get_ns() - began);
	}
	return 0;
}

/* ---- A turn begins ---- */

/* It gave its pCPU up by itself, or a task was to run that isn't put off. */
static __always_inline void ends_without_window(struct pcpu *pcpu)
{
	struct delay_preemption_pcpu *on = delay_on(pcpu);
	struct vcpu *vcpu = on->is_put_off ? vcpu_at(on->vcpu - 1) : NULL;
	struct delay_stats *stats = vcpu ? delay_stats_of(vcpu) : NULL;

	if (stats)
		COUNT(stats->ended_otherwise);
	on->is_put_off = 0;
	on->due_ns = 0;
	on->look_at_ns = 0;
	on->interruption = (struct delay_window){};
	on->vcpu = 0;
}

/*
 * Its window is around the end of this turn. `slot` is where the vCPU is that runs here; if none does: beyond
 * all.
 */
__noinline int begin_turn_with_window(u32 slot, s32 cpu)
{
	struct vcpu *vcpu = vcpu_at(slot);
	struct pcpu *pcpu = pcpu_of(cpu);
	struct delay_config rules = config.delay;
	struct delay_preemption_pcpu *on;
	struct delay_window window;
	u64 now = bpf_ktime_get_ns(), due_ns;
	struct delay_state *state;

	if (!pcpu)
		return 0;
	on = delay_on(pcpu);
	ends_without_window(pcpu);
	on->vcpu = vcpu ? slot + 1 : 0;
	if (!vcpu || !has_window(cpu, pcpu, vcpu))
		return 0;
	state = &delay_of(vcpu)->state;
	due_ns = now + pcpu->turn_ns;
	window = delay_window_around(&rules, state, due_ns);
	RECORD(RECORD_WINDOW, slot, window,
	       {.config = rules,
		.offset_sum_ns = state->offset_sum_ns,
		.offset_count = state->offset_count,
		.penalty_turns = state->penalty_turns,
		.due_ns = due_ns,
		.window = window});
	on->window = window;
	on->due_ns = due_ns;
	/* A turn that is shorter than the window comes first. */
	arm_look(cpu, pcpu,
		 (s64)(window.begin_ns - now) < (s64)LOOK_MIN_NS ? now + LOOK_MIN_NS : window.begin_ns, now);
	return 0;
}

/* ---- A turn ends ---- */

/* It does where its window is; another task's coming has nothing to do with where it would have ended. */
static __always_inline void keep_end_of_turn(struct delay_preemption_pcpu *on, struct vcpu *vcpu,
					     struct delay_stats *stats, u64 now, u32 verdict)
{
	struct delay_observation seen = {.window = on->window, .now_ns = now};
	struct delay_config rules = config.delay;
	s64 beyond_ns = now - on->due_ns;

	if (on->interruption.end_ns || (s64)(now - on->window.begin_ns) < 0)
		return;
	if (delay_of(vcpu)->state.penalty_turns)
		COUNT(stats->penalised);
	delay_of(vcpu)->state = delay_after_turn(&rules, &delay_of(vcpu)->state, &seen, verdict);
	COUNT(stats->turns);
	if (beyond_ns > 0)
		ADD(stats->beyond_ns, beyond_ns);
	else
		ADD(stats->short_ns, -beyond_ns);
}

static __always_inline void count_end(struct delay_preemption_pcpu *on, struct delay_stats *stats,
				      u32 verdict)
{
	if (on->is_put_off && verdict == DELAY_ENDS_SAFE)
		COUNT(stats->ended_safe);
	else if (on->is_put_off)
		COUNT(stats->ended_forced);
	on->is_put_off = 0;
}

/*
 * ops.dispatch asks: its turn is over, or another task is to run. For so many nanoseconds the vCPU goes on
 * all the same; 0: the scheduler chooses.
 */
__noinline u32 puts_off(u32 slot, s32 cpu)
{
	struct vcpu *vcpu = vcpu_at(slot);
	struct pcpu *pcpu = pcpu_of(cpu);
	struct delay_config rules = config.delay;
	u64 now = bpf_ktime_get_ns(), goes_on_ns = 0;
	struct delay_preemption_pcpu *on;
	struct delay_stats *stats;
	u32 verdict = DELAY_ENDS_SAFE;

	if (!vcpu || !pcpu)
		return 0;
	on = delay_on(pcpu);
	stats = delay_stats_of(vcpu);
	if (!stats || on->vcpu != slot + 1 || !on->due_ns || !has_window(cpu, pcpu, vcpu))
		return 0;
	if (!on->interruption.end_ns && (s64)(now - on->window.begin_ns) < 0)
		on->interruption = delay_window_from(&rules, &delay_of(vcpu)->state, now);
	if (anybody_waits(cpu))
		goes_on_ns = look(cpu, pcpu, vcpu, slot, now, &verdict);
	if (goes_on_ns)
		return goes_on_ns;
	keep_end_of_turn(on, vcpu, stats, now, verdict);
	count_end(on, stats, verdict);
	on->due_ns = 0;
	on->look_at_ns = 0;
	return 0;
}

/* ---- What runs next ---- */

/* Whose turn ends (NULL: nobody's does) isn't safe: it goes on, in its window. */
static __always_inline bool window_puts_off(s32 cpu, struct task_struct *prev, const struct task_ctx *tctx)
{
	u32 goes_on_ns = tctx ? puts_off(tctx->vcpu - 1, cpu) : 0;

	if (goes_on_ns)
		task_set_slice(prev, goes_on_ns);
	return goes_on_ns;
}

/* Where the vCPU is that this task runs; if it is none: beyond all. */
static __always_inline u32 slot_that_runs(struct task_struct *p)
{
	const struct task_ctx *tctx = task_ctx_of(p);

	return tctx ? tctx->vcpu - 1 : VCPUS_MAX;
}

/* Another turn, or the first one. Where turns have no windows grace alone has looks. */
static __always_inline void turn_begins_on(s32 cpu, u32 slot)
{
	if (turns_have_windows())
		begin_turn_with_window(slot, cpu);
}

/* ---- Start ---- */

static __always_inline s32 init_look_timer(u32 cpu)
{
	struct look_timer *timer = bpf_map_lookup_elem(&look_timers, &cpu);

	if (!timer)
		return -ENOMEM;
	bpf_timer_init(&timer->timer, &look_timers, CLOCK_MONOTONIC);
	bpf_timer_set_callback(&timer->timer, look_at_turn);
	return 0;
}

#endif
