/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Placement: in which pCPU's urgent queue a vCPU waits, by policy/balance.h.
 *
 * Problem.   A vCPU in a domain's queue is placed on none of its pCPUs. An urgent queue is a pCPU's own. On
 *            the pCPU of its IPI's sender an urgent vCPU would take the sender's place.
 * Mechanism. The pCPU where it ran last and the next few are candidates. Load-conscious balance keeps
 *            siblings apart, unless all pCPUs without one are overloaded. Of those left the least loaded
 *            one is chosen.
 * Formula.   load = urgent vCPUs that wait there + 1 if one runs there urgently
 * Races.     Loads may be old by then: a queue is longer than it might be, for an urgent slice.
 */
#ifndef BPF_PLACEMENT_H
#define BPF_PLACEMENT_H

#include "bpf/core/turns.bpf.h"
#include "policy/balance.h"

/* How many pCPUs are looked at for a vCPU. */
#define PLACE_LOOK_MAX 8u

/* Of the look under way. In the map, for the verifier: see visit_sibling(). */
struct placement_vcpu {
	struct host_load seen;
	u64 least_load;
	u32 some_candidate_has_room;
	u32 found; /* pCPU + 1; 0: none yet */
};

static __always_inline struct placement_vcpu *placement_of(const struct vcpu *vcpu);

/* What urgent vCPUs ask of this pCPU, and whether a sibling of theirs is there: the urgent queue says so. */
static __always_inline u64 urgent_load_on(const struct pcpu *pcpu);
static __always_inline bool has_sibling_on(const struct vcpu *vcpu, const struct pcpu *pcpu);

/* The pCPU that is so many steps from where it ran last; NULL: none. */
static __always_inline struct pcpu *candidate(const struct vcpu *vcpu, u32 step, s32 *cpu)
{
	if (step >= config.pcpu_count)
		return NULL;
	*cpu = vcpu->normal_pcpu + step;
	if ((u32)*cpu >= config.pcpu_count)
		*cpu -= config.pcpu_count;
	return pcpu_of(*cpu);
}

static __always_inline void look_at_loads(struct task_struct *p, struct vcpu *vcpu)
{
	struct placement_vcpu *look = placement_of(vcpu);
	u32 step;

	*look = (struct placement_vcpu){};
	bpf_for (step, 0, PLACE_LOOK_MAX) {
		s32 cpu;
		struct pcpu *pcpu = candidate(vcpu, step, &cpu);

		if (!pcpu || !may_run_on(p, cpu))
			continue;
		look->seen.total += urgent_load_on(pcpu);
		look->seen.pcpus++;
	}
	bpf_for (step, 0, PLACE_LOOK_MAX) {
		struct host_load seen = look->seen;
		s32 cpu;
		struct pcpu *pcpu = candidate(vcpu, step, &cpu);

		if (pcpu && may_run_on(p, cpu) && !has_sibling_on(vcpu, pcpu) &&
		    !is_overloaded(&seen, urgent_load_on(pcpu)))
			look->some_candidate_has_room = 1;
	}
}

__noinline int record_candidate(u32 slot, const struct candidate_observation *seen, u32 decision)
{
	if (!seen)
		return 0;
	RECORD(RECORD_CANDIDATE, slot, candidate,
	       {.scheme = BALANCE_LOAD_CONSCIOUS, .seen = *seen, .decision = decision});
	return 0;
}

/* The pCPU in whose urgent queue it waits; negative: none of those that were looked at. */
static __always_inline s32 place_urgent(struct task_struct *p, struct vcpu *vcpu, u32 slot)
{
	struct placement_vcpu *look = placement_of(vcpu);
	u32 step, decision;

	look_at_loads(p, vcpu);
	bpf_for (step, 0, PLACE_LOOK_MAX) {
		struct candidate_observation seen = {.some_candidate_has_room =
							 look->some_candidate_has_room};
		s32 cpu;
		struct pcpu *pcpu = candidate(vcpu, step, &cpu);

		if (!pcpu || !may_run_on(p, cpu))
			continue;
		seen.load = urgent_load_on(pcpu);
		seen.has_sibling = has_sibling_on(vcpu, pcpu);
		decision = decide_on_candidate(BALANCE_LOAD_CONSCIOUS, &seen);
		if (config.recording)
			record_candidate(slot, &seen, decision);
		if (!decision || (look->found && look->least_load <= seen.load))
			continue;
		look->found = cpu + 1;
		look->least_load = seen.load;
	}
	return (s32)look->found - 1;
}

#endif
