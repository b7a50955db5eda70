/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Gives each policy function an address that Rust can call, and nothing else. Structs travel by pointer, so
 * that no calling convention for aggregates has to be trusted.
 */
#include "accelerate.h"
#include "balance.h"
#include "classify.h"
#include "cpu_limit.h"
#include "fair_share.h"
#include "pool_size.h"
#include "record.h"
#include "urgent.h"

u32 ms_classify(const struct guest_code *code, const struct guest_layout *layout, u64 rip)
{
	return classify(code, layout, rip);
}

u32 ms_class_is_critical(u32 guest_class)
{
	return class_is_critical(guest_class);
}

void ms_decide_on_yield(const struct yield_observation *seen, struct yield_decision *decision)
{
	*decision = decide_on_yield(seen);
}

u32 ms_decide_on_sibling(u32 scope, const struct sibling_observation *seen)
{
	return decide_on_sibling(scope, seen);
}

u32 ms_decide_on_spinner(const struct accelerate_config *config, const struct spinner_observation *seen)
{
	return decide_on_spinner(config, seen);
}

void ms_decide_on_interrupt(const struct accelerate_config *config, const struct interrupt_observation *seen,
			    struct interrupt_decision *decision)
{
	*decision = decide_on_interrupt(config, seen);
}

void ms_decide_on_woken(const struct accelerate_config *config, const struct woken_observation *seen,
			struct woken_decision *decision)
{
	*decision = decide_on_woken(config, seen);
}

u32 ms_decide_on_placement(const struct accelerate_config *config, const struct placement_observation *seen)
{
	return decide_on_placement(config, seen);
}

u32 ms_decide_on_home(const struct accelerate_config *config, const struct home_observation *seen)
{
	return decide_on_home(config, seen);
}

u32 ms_decide_at_turn_end(const struct accelerate_config *config, const struct turn_observation *seen)
{
	return decide_at_turn_end(config, seen);
}

void ms_decide_after_micro_slice(const struct accelerate_config *config,
				 const struct micro_slice_observation *seen,
				 struct micro_slice_decision *decision)
{
	*decision = decide_after_micro_slice(config, seen);
}

void ms_step_pool_size(const struct pool_size_config *config, struct pool_size_state *state,
		       const struct pool_size_observation *seen, struct pool_size_decision *decision)
{
	*decision = step_pool_size(config, state, seen);
}

u64 ms_vcpu_weight(u32 vm_weight, u32 active_vcpu_count)
{
	return vcpu_weight(vm_weight, active_vcpu_count);
}

u64 ms_charge(u64 ran_ns, u64 weight)
{
	return charge(ran_ns, weight);
}

u32 ms_vtime_before(u64 a, u64 b)
{
	return vtime_before(a, b);
}

u64 ms_vm_charge(u64 ran_ns, u32 vm_weight)
{
	return vm_charge(ran_ns, vm_weight);
}

u64 ms_vm_clock(const struct fair_share_config *config, const struct vm_size *size, u64 first_ns, u64 vm_ns)
{
	return vm_clock(config, *size, first_ns, vm_ns);
}

u64 ms_catch_up_weight(const struct fair_share_config *config, const struct vm_size *size, u64 weight,
		       u64 first_ns, u64 vm_ns)
{
	return catch_up_weight(config, *size, weight, first_ns, vm_ns);
}

u32 ms_vm_is_ahead(const struct fair_share_config *config, const struct vm_size *size, u64 vm_ns,
		   const struct vm_size *other_size, u64 other_vm_ns)
{
	return vm_is_ahead(config, *size, vm_ns, *other_size, other_vm_ns);
}

u32 ms_may_go_first(const struct fair_share_config *config, u64 first_vtime_ns, u64 vtime_ns, u64 weight)
{
	return may_go_first(config, first_vtime_ns, vtime_ns, weight);
}

u32 ms_is_worth_warm_caches(const struct fair_share_config *config, u64 first_waited_ns)
{
	return is_worth_warm_caches(config, first_waited_ns);
}

void ms_decide_on_wakeup(const struct fair_share_config *config, const struct wakeup_observation *seen,
			 struct wakeup_decision *decision)
{
	*decision = decide_on_wakeup(config, seen);
}

u64 ms_limit_charge(const struct cpu_limit *limit, u64 ran_ns)
{
	return limit_charge(limit, ran_ns);
}

void ms_decide_on_limit(const struct cpu_limit *limit, const struct limit_observation *seen,
			struct limit_decision *decision)
{
	*decision = decide_on_limit(limit, seen);
}

/* Sizes as C sees them, in the order in which layout.rs lists the same structs. */
const u32 ms_sizes[] = {
    sizeof(struct class_range),
    sizeof(struct guest_code),
    sizeof(struct guest_layout),
    sizeof(struct accelerate_config),
    sizeof(struct yield_observation),
    sizeof(struct yield_decision),
    sizeof(struct sibling_observation),
    sizeof(struct spinner_observation),
    sizeof(struct interrupt_observation),
    sizeof(struct interrupt_decision),
    sizeof(struct woken_observation),
    sizeof(struct woken_decision),
    sizeof(struct placement_observation),
    sizeof(struct home_observation),
    sizeof(struct turn_observation),
    sizeof(struct micro_slice_observation),
    sizeof(struct micro_slice_decision),
    sizeof(struct pool_size_config),
    sizeof(struct pool_size_observation),
    sizeof(struct pool_size_state),
    sizeof(struct pool_size_decision),
    sizeof(struct fair_share_config),
    sizeof(struct vm_size),
    sizeof(struct wakeup_observation),
    sizeof(struct wakeup_decision),
    sizeof(struct cpu_limit),
    sizeof(struct limit_observation),
    sizeof(struct limit_decision),
    sizeof(struct record),
};
const u32 ms_sizes_count = sizeof(ms_sizes) / sizeof(ms_sizes[0]);
const u32 ms_record_version = RECORD_VERSION;

u32 ms_is_urgent(const struct urgent_state *state)
{
	return is_urgent(state);
}

void ms_acknowledge_urgent(struct urgent_state *state, u32 another_waits)
{
	*state = acknowledge_urgent(state, another_waits);
}

void ms_urgent_after_ple(struct urgent_state *state)
{
	*state = urgent_after_ple();
}

void ms_charge_urgent(struct urgent_state *state, u64 ran_ns)
{
	*state = charge_urgent(state, ran_ns);
}

void ms_decide_on_ipi(const struct urgent_config *config, const struct ipi_observation *seen,
		      struct ipi_decision *decision)
{
	*decision = decide_on_ipi(config, seen);
}

u32 ms_decide_on_urgent(const struct urgent_config *config, const struct urgent_observation *seen)
{
	return decide_on_urgent(config, seen);
}

u32 ms_decide_on_urgent_turn(const struct urgent_config *config, const struct urgent_state *state, u64 ran_ns,
			     u32 others_count)
{
	return decide_on_urgent_turn(config, state, ran_ns, others_count);
}

u32 ms_is_protected(const struct urgent_config *config, const struct urgent_state *state, u64 ran_ns)
{
	return is_protected(config, state, ran_ns);
}

u32 ms_is_overloaded(const struct host_load *host, u64 load)
{
	return is_overloaded(host, load);
}

u32 ms_decide_on_candidate(u32 scheme, const struct candidate_observation *seen)
{
	return decide_on_candidate(scheme, seen);
}

u32 ms_decide_on_move(u32 scheme, const struct host_load *host, const struct candidate_observation *seen)
{
	return decide_on_move(scheme, host, seen);
}

/* Likewise, in the order of coordinated.rs. */
const u32 ms_coordinated_sizes[] = {
    sizeof(struct urgent_config),	  sizeof(struct urgent_state), sizeof(struct ipi_observation),
    sizeof(struct ipi_decision),	  sizeof(struct urgent_observation), sizeof(struct host_load),
    sizeof(struct candidate_observation),
};
