/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Hooks: where the core asks the mechanisms of a scheduler.
 *
 * Mechanism. The core declares them, the scheduler defines them (bpf/schedulers), out of whatever mechanisms
 *            it has. They are inlined: one that does nothing costs nothing.
 */
#ifndef BPF_HOOKS_H
#define BPF_HOOKS_H

#include "bpf/core/maps.bpf.h"

#define HOOK static __always_inline

/* ---- Coming and going ---- */

/* Its slot may have been another one's. */
HOOK void on_vm_joins(struct vm *vm);
HOOK void on_vcpu_joins(struct vcpu *vcpu);
/* Its task ends, or runs another vCPU from now on. It isn't runnable any more. */
HOOK void on_vcpu_leaves(struct vcpu *vcpu);

/*
 * ---- A hint came (observe.bpf.h). Not inlined: the verifier then checks them once by themselves, not at
 * each call ----
 */

/* The vCPU whose thread this is gives up its pCPU, or is about to. `cause`: enum yield_cause. */
int on_yield(u32 cause);
/* An interrupt is on its way to this vCPU (the address of its struct kvm_vcpu). */
static __noinline int on_interrupt(u64 kvm_vcpu, u32 vector);

/* ---- pCPUs ---- */

/* It isn't one of the normal pool's. */
HOOK bool is_reserved(s32 cpu);
/* Do such pCPUs run vCPUs of the normal pool, while they have nothing else to do? */
HOOK bool reserved_are_lent(void);
/* Does what runs on this reserved pCPU give way to a vCPU? */
HOOK bool reserved_gives_way(const struct pcpu *pcpu);
/*
 * A vCPU was queued, and no pCPU of the normal pool is idle. Returns the reserved pCPU that comes for it;
 * negative: none does.
 */
HOOK s32 kick_idle_reserved(struct task_struct *p);
/* True if the occupant of that pCPU isn't to be preempted, not even by a kernel thread of that pCPU. */
HOOK bool is_undisturbed(s32 cpu, const struct pcpu *pcpu);
/* May it run on reserved pCPUs only? Callers hold RCU (every non-sleepable program does). */
HOOK bool is_confined(struct task_struct *p);

/* ---- A vCPU waits ---- */

/* A confined task waits: the scheduler queues it. */
HOOK void enqueue_confined(struct task_struct *p, struct vcpu *vcpu, u64 enq_flags);
/* It stays on its pCPU, because no other task wants that. */
HOOK void on_stay(struct vcpu *vcpu);
/* It is queued anew; it may have been about to run on a reserved pCPU. */
HOOK void on_enqueue(struct vcpu *vcpu);
/* It comes back at once, for so long, though its turn was cut off; 0: it waits like any other. */
HOOK u64 comes_back_for(struct vcpu *vcpu, u32 slot);
/* It waits by its clock from now on. */
HOOK void on_clock_set(struct vcpu *vcpu);
/* It was sent away from a pCPU that it had been woken for: it goes on elsewhere, as if it were woken now. */
HOOK bool was_sent_away(struct vcpu *vcpu);
/* It waits: no pCPU is idle, and it isn't boosted. */
HOOK void on_wait(struct task_struct *p, struct vcpu *vcpu, u32 slot);
/* It is in a queue, where it can be found. */
HOOK void on_queued(struct vcpu *vcpu, u32 slot);
/* It has used up what cpu.max allows it. */
HOOK void on_rest(struct vcpu *vcpu);
/* A confined task may run again: the scheduler queues it. */
HOOK void release_confined(struct bpf_iter_scx_dsq *it, struct task_struct *p);

/* ---- Turns. `owed`: vCPU slot + 1 to which a mechanism owes a turn on this pCPU; 0: none ---- */

/* Chooses the next task of a reserved pCPU. */
HOOK void dispatch_reserved(s32 cpu, struct pcpu *pcpu, struct task_struct *prev);
/* A task goes before all others, or the present one goes on. */
HOOK bool goes_before_all(s32 cpu, struct pcpu *pcpu, struct task_struct *prev, u32 *owed);
/* A task goes before the boosted. */
HOOK bool goes_before_boosted(s32 cpu, struct pcpu *pcpu, struct task_struct *prev, u32 owed);
/* A task goes before those that wait by their clocks. */
HOOK bool goes_before_the_line(s32 cpu, struct pcpu *pcpu, u32 owed);
/* The present vCPU goes on for another turn. */
HOOK void on_another_turn(struct vcpu *vcpu, struct pcpu *pcpu);
/* The same, of any task. Its slice is set: a kick from now on ends it. */
HOOK void on_new_slice(s32 cpu, const struct pcpu *pcpu);
/* The present vCPU goes on, and only its slice ends that. */
HOOK void on_open_turn(struct pcpu *pcpu);
/*
 * It runs from now on. Returns what occupies the pCPU: `occupant`, or something of the mechanisms. Sets its
 * state.
 */
HOOK u32 on_turn_begins(struct vcpu *vcpu, s32 cpu, u32 occupant);
/* The same, of any task, when all is known of its pCPU. */
HOOK void on_running(struct task_struct *p, struct vcpu *vcpu, s32 cpu, struct pcpu *pcpu, u64 now);
/*
 * A hint said that help is on its way: KVM's directed yield is refused, and the vCPU goes back into its
 * guest.
 */
HOOK bool keeps_its_pcpu(struct vcpu *vcpu);
/* May the vCPU that KVM found come to its pCPU, if it gives that up? */
HOOK bool heir_comes(struct task_struct *from, struct vcpu *vcpu, struct task_struct *to);
/* It gives its pCPU up, to the vCPU that KVM found; NULL: to none. */
HOOK void on_gives_up(struct vcpu *vcpu, struct task_struct *to);
/* It doesn't run any more. True if it has set its state. */
HOOK bool on_turn_ends(struct vcpu *vcpu, u32 slot, u64 ran_ns, bool runnable);
/* No task runs on that pCPU any more. */
HOOK void on_pcpu_stops(struct pcpu *pcpu, u64 now);
/* It sleeps from now on. */
HOOK void on_block(struct vcpu *vcpu);
/* It ran for so long, and is charged for it. */
HOOK void on_charge(struct vcpu *vcpu, struct pcpu *pcpu, u64 ran_ns);

/* ---- Traces ---- */

/* Returns the purpose of the turn that begins there: enum trace_turn. */
HOOK u32 traced_turn(s32 cpu);

#endif
