/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * vCPUs: which host task runs which vCPU of which VM.
 *
 * Problem.   To the scheduler a vCPU is a thread like any other; VMMs differ, come and go, and may have been
 *            there before us.
 * Mechanism. KVM calls kvm_arch_vcpu_load() in the vCPU's own thread, each time that it gets a pCPU. The
 *            first call registers the task; tasks leave with exit_task. A VM lives as long as one of its
 *            vCPUs.
 * Races.     A VM's last vCPU may leave while another joins. A slot counts its holders (VM_SLOT_OPEN). A
 *            joining vCPU must raise a count that says the slot is open, and the closing one must find no
 *            holder. Every change is a compare-and-exchange, so one of both sees the other. The same holds
 *            for a task that makes an address free. All interleavings of these steps:
 *            crates/host/tests/system/vm_slots.rs.
 * Limits.    VMS_MAX, VCPUS_MAX, VCPUS_PER_VM_MAX, and three quarters of the first two for one owner
 *            (owners.bpf.h): what is beyond has no place, and is counted. How it shares: vmm_threads.bpf.h. A
 *            VM is placed whole or not at all: a vCPU that finds no place takes its siblings along.
 *
 * A vCPU's state, and what moves it:
 *
 *   blocked --runnable--> runnable --request--> pending --pull--> micro --stopping--> runnable
 *                            |  ^                  |                         (or blocked)
 *                         running |             running
 *                            v  stopping           v
 *                          running             running: the normal pool was faster
 *
 * All transitions but `request` and `pull` happen under the runqueue lock of the task itself. These two are
 * compare-and-exchange from the state that they expect; the loser of the race does nothing.
 */
#ifndef BPF_VCPU_H
#define BPF_VCPU_H

#include "bpf/core/held.bpf.h"
#include "bpf/core/owners.bpf.h"

#define REGISTERS_SAMPLE_INTERVAL_NS 100000000ull
/* For how long a vCPU without a slot isn't tried again. */
#define REFUSED_FOR_NS 1000000000ull
/* For how long it is taken for one that still has no place. */
#define REFUSED_IS_TRUE_FOR_NS 10000000000ull
/* What vm_slot_of() says when another thread is just opening or closing that VM's slot. */
#define VM_SLOT_COME_AGAIN (VMS_MAX + 1)
#define VM_SLOT_OWNERS_BOUND (VMS_MAX + 2)
/* Siblings that join or leave at the very same time make an attempt fail. */
#define HOLD_ATTEMPTS 16u

static __always_inline bool vcpu_moves(struct vcpu *vcpu, u32 from, u32 to)
{
	return __sync_val_compare_and_swap(&vcpu->state, from, to) == from;
}

/* What is kept of its process: with the first thread. */
static __always_inline struct process_ctx *process_of(struct task_struct *p)
{
	struct task_ctx *first = bpf_task_storage_get(&task_ctxs, p->group_leader, 0, 0);

	return first ? &first->process : NULL;
}

/* ---- Joining ---- */

SEARCH u32 claim_vm_slot(void)
{
	u32 slot;

	bpf_for (slot, 0, VMS_MAX) {
		struct vm *vm = vm_at(slot);

		if (slot >= config.vm_places)
			break;
		if (vm && vm->in_use == VM_SLOT_FREE &&
		    __sync_val_compare_and_swap(&vm->in_use, VM_SLOT_FREE, VM_SLOT_OPEN + 1) == VM_SLOT_FREE)
			return slot;
	}
	return VMS_MAX;
}

/*
 * The address means this VM no longer. Only one caller takes it away, and only this address: the slot may be
 * another VM's by now.
 */
static __always_inline void forget_address(struct vm *vm, u64 kvm)
{
	if (kvm && __sync_val_compare_and_swap(&vm->kvm, kvm, 0) == kvm)
		bpf_map_delete_elem(&vm_by_address, &kvm);
}

/*
 * Gives back what claim_vm_slot() or hold_vm() gave. The last one closes the slot, unless another joins
 * meanwhile.
 */
static __always_inline void let_go_of_vm(struct vm *vm)
{
	__sync_fetch_and_sub(&vm->in_use, 1);
	if (__sync_val_compare_and_swap(&vm->in_use, VM_SLOT_OPEN, VM_SLOT_CLOSING) != VM_SLOT_OPEN)
		return;
	forget_address(vm, vm->kvm);
	__sync_lock_test_and_set(&vm->in_use, VM_SLOT_FREE);
}

/* Holds the slot for one more, if it is still that VM's. */
static __always_inline bool hold_vm(struct vm *vm, u64 kvm)
{
	u32 attempt;

	bpf_for (attempt, 0, HOLD_ATTEMPTS) {
		u32 holders = vm->in_use;

		if (holders == VM_SLOT_FREE || holders == VM_SLOT_CLOSING)
			return false;
		if (__sync_val_compare_and_swap(&vm->in_use, holders, holders + 1) != holders)
			continue;
		if (vm->kvm == kvm)
			return true;
		let_go_of_vm(vm); /* another VM's by now, or not yet named by its claimant */
		return false;
	}
	return false;
}

/* The slot's former VM is added to those that are gone, so that sums go on holding. */
static __always_inline void retire_vm_stats(u32 slot)
{
	u64 *stats = (u64 *)vm_stats_at(slot), *gone = (u64 *)vm_stats_at(VMS_MAX);
	u32 word;

	if (!stats || !gone)
		return;
	bpf_for (word, 0, sizeof(struct vm_stats) / sizeof(u64)) {
		u64 value = __sync_lock_test_and_set(&stats[word], 0);

		if (value)
			ADD(gone[word], value);
	}
}

/*
 * The slot of this VM, held for one vCPU more. VMS_MAX: there is no room; VM_SLOT_COME_AGAIN: another is at
 * it; VM_SLOT_OWNERS_BOUND: its owner has as many as one may have.
 */
static __noinline u32 vm_slot_of(struct task_ctx *tctx, u64 kvm, u32 pid, u64 owner)
{
	u32 *known = bpf_map_lookup_elem(&vm_by_address, &kvm);
	u32 slot;
	struct vm *vm;

	if (known) {
		slot = *known;
		vm = vm_at(slot);
		return vm && hold_vm(vm, kvm) ? slot : VM_SLOT_COME_AGAIN;
	}
	slot = claim_vm_slot();
	vm = vm_at(slot);
	if (slot >= VMS_MAX || !vm)
		return VMS_MAX;
	retire_vm_stats(slot);
	vm->pid = pid;
	vm->owner = owner;
	vm->threads_vtime_ns = pool_vtime_ns;
	vm->vcpu_count = 0;
	vm->vcpus_to_come = vcpus_of(kvm);
	vm->is_refused = 0;
	vm->active_vcpu_count = 0;
	vm->vtime_ns = first_vm_vtime_ns;
	vm->first_vm_ns = first_vm_vtime_ns;
	vm->halt_sampled_at_ns = 0;
	vm->registers_sampled_at_ns = 0;
	vm->registers = 0;
	vm->vcpu_high = 0;
	vm->count_epoch = 0;
	vm->belief = (struct count_belief){};
	on_vm_joins(vm);
	COUNT(vm->generation);
	if (has_too_many_vms(tctx, owner)) {
		let_go_of_vm(vm);
		return VM_SLOT_OWNERS_BOUND;
	}
	/* Another vCPU of the same VM may have been faster: then its slot counts, and ours is free again. */
	if (bpf_map_update_elem(&vm_by_address, &kvm, &slot, BPF_NOEXIST)) {
		let_go_of_vm(vm);
		return VM_SLOT_COME_AGAIN;
	}
	/* Last: a reader that finds the slot by its address waits for this. */
	__sync_lock_test_and_set(&vm->kvm, kvm);
	return slot;
}

#ifdef BESIDE
/*
 * The first free slot of so many from `first` on. A loop over all at once has more branches than the verifier
 * keeps.
 */
#define SEARCHED_AT_ONCE 64u
__noinline u32 claim_vcpu_slot_from(u32 first)
{
	u32 step;

	bpf_for (step, 0, SEARCHED_AT_ONCE) {
		struct vcpu *vcpu = vcpu_at(first + step);

		if (vcpu && !vcpu->in_use && __sync_val_compare_and_swap(&vcpu->in_use, 0, 1) == 0)
			return first + step;
	}
	return VCPUS_MAX;
}

__noinline u32 claim_vcpu_slot(void)
{
	u32 round;

	bpf_for (round, 0, VCPUS_MAX / SEARCHED_AT_ONCE) {
		u32 slot = claim_vcpu_slot_from(round * SEARCHED_AT_ONCE);

		if (slot < VCPUS_MAX)
			return slot;
	}
	return VCPUS_MAX;
}
#else
static __always_inline u32 claim_vcpu_slot(void)
{
	u32 slot;

	bpf_for (slot, 0, VCPUS_MAX) {
		struct vcpu *vcpu = vcpu_at(slot);

		if (vcpu && !vcpu->in_use && __sync_val_compare_and_swap(&vcpu->in_use, 0, 1) == 0)
			return slot;
	}
	return VCPUS_MAX;
}
#endif

static __always_inline u32 join_vm(struct vm *vm, u32 vcpu_slot)
{
	u32 index;

	bpf_for (index, 0, VCPUS_PER_VM_MAX) {
		u32 at = index & (VCPUS_PER_VM_MAX - 1);

		if (!vm->vcpus[at] && __sync_val_compare_and_swap(&vm->vcpus[at], 0, vcpu_slot + 1) == 0) {
			COUNT(vm->vcpu_count);
			/* A racing smaller value can only shorten what a pass sees until the next join. */
			if (vm->vcpu_high <= index)
				vm->vcpu_high = index + 1;
			return index;
		}
	}
	return VCPUS_PER_VM_MAX;
}

/*
 * Another thread ran this vCPU until now: what it keeps of it would be read in vain, and never be told that
 * the vCPU is gone.
 */
static __always_inline void take_over(u64 kvm_vcpu, u32 slot)
{
	u32 *former = bpf_map_lookup_elem(&vcpu_by_address, &kvm_vcpu);
	struct vcpu *vcpu = former && *former != slot ? vcpu_at(*former) : NULL;

	if (vcpu)
		__sync_val_compare_and_swap(&vcpu->kvm_vcpu, kvm_vcpu, 0);
	/* Without it interrupts are no hints; the vCPU is scheduled all the same. */
	if (bpf_map_update_elem(&vcpu_by_address, &kvm_vcpu, &slot, BPF_ANY))
		COUNT(host_stats.vcpu_addresses_refused);
}

/*
 * Only if it still means this vCPU: another thread may have taken it over. One that does so between the look
 * and the deletion isn't found by address: its interrupts are no hints then, and it is scheduled all the
 * same.
 */
static __always_inline void forget_vcpu_address(u64 kvm_vcpu, u32 slot)
{
	u32 *now = bpf_map_lookup_elem(&vcpu_by_address, &kvm_vcpu);

	if (now && *now == slot)
		bpf_map_delete_elem(&vcpu_by_address, &kvm_vcpu);
}

/* Its other threads are its VM's from now on (vmm_threads.bpf.h), unless they are another one's. */
static __always_inline void name_process(u32 vm_slot, const struct vm *vm)
{
	struct process_ctx *process = process_of(bpf_get_current_task_btf());
	struct vm *named = process ? vm_at(process->vm - 1) : NULL;

	if (!process ||
	    (named && named->in_use > VM_SLOT_OPEN && named->generation == process->vm_generation))
		return;
	process->vm = vm_slot + 1;
	process->vm_generation = vm->generation;
}

/* This vCPU has no place. */
static __always_inline void note_refusal(struct task_ctx *tctx, u64 owner, bool is_owners_bound, u64 now)
{
	struct process_ctx *process = process_of(bpf_get_current_task_btf());
	struct event event = {.kind = EVENT_REFUSAL};

	/* It comes here at each of its turns; looking for a slot takes long. */
	tctx->place.refused_until_ns = now + REFUSED_FOR_NS;
	COUNT(host_stats.vcpus_refused);
	if (process) {
		process->owner = owner;
		process->refused_at_ns = now;
	}
	event.refusal.pid = bpf_get_current_pid_tgid() >> 32;
	event.refusal.uid = bpf_get_current_uid_gid();
	event.refusal.is_owners_bound = is_owners_bound;
	event.refusal.owner = owner;
	send_event(&event);
}

/* Called in the vCPU's thread, which is therefore running. */
static __noinline int register_vcpu(struct task_ctx *tctx, u64 kvm_vcpu, u64 kvm, u32 vcpu_id)
{
	u64 pid_tgid = bpf_get_current_pid_tgid();
	u64 now = bpf_ktime_get_ns(), owner;
	u32 vm_slot = VMS_MAX, slot, index;
	struct vm *vm = NULL;
	struct vcpu *vcpu;
	bool has_all = false, has_room;

	if (!tctx || scheduler_ends || (s64)(tctx->place.refused_until_ns - now) > 0)
		return 0;
	owner = owner_of_current();
	has_room = has_places_for(tctx, owner, kvm, &has_all);
	vm_slot = has_room ? vm_slot_of(tctx, kvm, pid_tgid >> 32, owner) : VMS_MAX;
	if (vm_slot == VM_SLOT_COME_AGAIN)
		return 0; /* the next time that it gets a pCPU */
	if (vm_slot == VM_SLOT_OWNERS_BOUND)
		has_all = true;
	vm = vm_at(vm_slot);
	if (vm_slot >= VMS_MAX || !vm || vm->is_refused)
		goto refused;
	slot = claim_vcpu_slot();
	vcpu = vcpu_at(slot);
	if (slot >= VCPUS_MAX || !vcpu)
		goto refused;
	/* A racing smaller value leaves one out until the next that joins. */
	if (vcpu_slots_high <= slot)
		vcpu_slots_high = slot + 1;
	index = join_vm(vm, slot);
	if (index >= VCPUS_PER_VM_MAX) {
		vcpu->in_use = 0;
		goto refused;
	}
	vcpu->kvm_vcpu = kvm_vcpu;
	vcpu->vm = vm_slot;
	vcpu->index_in_vm = index;
	vcpu->pid = (u32)pid_tgid;
	vcpu->vcpu_id = vcpu_id;
	vcpu->state = VCPU_RUNNING;
	vcpu->was_blocked = 0;
	vcpu->preempted = 0;
	vcpu->yielded = 0;
	vcpu->guest_class = GUEST_CLASS_UNKNOWN;
	vcpu->held = HELD_UNKNOWN;
	vcpu->holds_in_a_row = 0;
	vcpu->rests = 0;
	vcpu->normal_pcpu = bpf_get_smp_processor_id();
	vcpu->breadth = config.wide_pcpu_count;
	vcpu->goes_first = 0;
	on_vcpu_joins(vcpu);
	vcpu->active = 1;
	__sync_fetch_and_add(&vm->active_vcpu_count, 1);
	take_over(kvm_vcpu, slot);
	/* It joins the vCPUs' clock at the present: what it did as a host task is forgiven. */
	tctx->vtime_ns = pool_vtime_ns;
	tctx->vcpu = slot + 1;
	tctx->place.refused_until_ns = 0;
	name_process(vm_slot, vm);
	return 0;
refused:
	/* A VM's slot that was claimed for this vCPU alone is free again. */
	if (vm && vm_slot < VMS_MAX) {
		vm->is_refused = 1;
		let_go_of_vm(vm);
	}
	note_refusal(tctx, owner, has_all, now);
	return 0;
}

/* ---- Leaving ---- */

static __noinline int unregister_vcpu(struct task_ctx *tctx)
{
	struct vcpu *vcpu = vcpu_of(tctx);
	u64 kvm_vcpu;
	struct vm *vm;
	u32 slot;

	if (!tctx || !vcpu)
		return 0;
	slot = tctx->vcpu - 1;
	on_vcpu_leaves(vcpu);
	tctx->vcpu = 0;
	kvm_vcpu = vcpu->kvm_vcpu;
	if (kvm_vcpu)
		forget_vcpu_address(kvm_vcpu, slot);
	vm = vm_at(vcpu->vm);
	if (vm) {
		if (vcpu->active)
			__sync_fetch_and_sub(&vm->active_vcpu_count, 1);
		vm->vcpus[vcpu->index_in_vm & (VCPUS_PER_VM_MAX - 1)] = 0;
		__sync_fetch_and_sub(&vm->vcpu_count, 1);
		let_go_of_vm(vm);
	}
	vcpu->active = 0;
	vcpu->kvm_vcpu = 0;
	vcpu->state = VCPU_BLOCKED;
	vcpu->in_use = 0;
	return 0;
}

/*
 * What kind of guest it is, and its syscall entry: a second witness of its slide, also of a guest that never
 * halts. Not readable on VMX.
 */
static __always_inline void sample_registers(const struct vcpu *vcpu)
{
	struct event event = {.kind = EVENT_LSTAR};
	u64 now = bpf_ktime_get_ns();
	struct vm *vm = vm_at(vcpu->vm);
	u32 seen;

	if (!vm || now - vm->registers_sampled_at_ns < REGISTERS_SAMPLE_INTERVAL_NS ||
	    runs_nested_guest(vcpu->kvm_vcpu))
		return;
	vm->registers_sampled_at_ns = now;
	seen = look_at_registers(vcpu->kvm_vcpu);
	__sync_fetch_and_or(&vm->registers, seen);
	if (seen & REGISTERS_PROTECTED)
		return;
	event.witness.vm = vcpu->vm;
	event.witness.generation = vm->generation;
	event.witness.address = read_guest_lstar(vcpu->kvm_vcpu);
	if (event.witness.address >> 63)
		send_event(&event);
}

/*
 * Another thread may load a vCPU to look at it; only the vCPU's own enters the guest. Before 6.11 nothing
 * says that it is about to, but KVM_RUN names its thread first. The thread that frees a vCPU loads it then
 * once more. That is another thread, or its own as it ends, which has been forgotten.
 */
static __always_inline bool is_its_thread(const struct kvm_vcpu *kvm_vcpu, const struct task_struct *current)
{
	if (bpf_core_field_exists(kvm_vcpu->wants_to_run))
		return kvm_vcpu->wants_to_run;
	return kvm_vcpu->pid == current->thread_pid && !(current->flags & PF_EXITING);
}

/* The current task runs this vCPU. */
static __always_inline int note_vcpu(struct task_struct *current, u64 kvm_vcpu, u64 kvm, u32 vcpu_id)
{
	struct task_ctx *tctx = bpf_task_storage_get(&task_ctxs, current, 0, TASK_CTX_OF_VCPU);
	struct vcpu *vcpu;

	if (!tctx)
		return 0;
	vcpu = vcpu_of(tctx);
	if (vcpu) {
		const struct vm *vm = vm_at(vcpu->vm);
		bool stays = vcpu->kvm_vcpu == kvm_vcpu && vm && !vm->is_refused;

		if (stays) {
			sample_registers(vcpu);
			return 0;
		}
		/* A sibling has no place, or the VMM runs another vCPU in the same thread. */
		unregister_vcpu(tctx);
	}
	return register_vcpu(tctx, kvm_vcpu, kvm, vcpu_id);
}

SEC("fentry/kvm_arch_vcpu_load")
int BPF_PROG(on_vcpu_load, struct kvm_vcpu *kvm_vcpu, int cpu)
{
	struct task_struct *current;

	if (!kvm_vcpu)
		return 0;
	current = bpf_get_current_task_btf();
	if (!is_its_thread(kvm_vcpu, current))
		return 0;
	return note_vcpu(current, (u64)kvm_vcpu, (u64)kvm_vcpu->kvm, kvm_vcpu->vcpu_id);
}

/* No address of this vCPU is used any more. */
static __always_inline void forget_kvm_vcpu(struct vcpu *vcpu, u64 kvm_vcpu, u64 kvm)
{
	struct vm *vm;

	/*
	 * vCPUs are freed with their VM only: another VM may soon have the same address, while threads of
	 * this one live.
	 */
	if (__sync_val_compare_and_swap(&vcpu->kvm_vcpu, kvm_vcpu, 0) != kvm_vcpu)
		return;
	vm = vm_at(vcpu->vm);
	if (vm)
		forget_address(vm, kvm);
}

/* The vCPU is freed, its thread may live on: no address of it may be used any more. */
SEC("fentry/kvm_arch_vcpu_destroy")
int BPF_PROG(on_vcpu_destroy, struct kvm_vcpu *kvm_vcpu)
{
	u64 address = (u64)kvm_vcpu;
	u32 *slot = bpf_map_lookup_elem(&vcpu_by_address, &address);
	struct vcpu *vcpu = slot ? vcpu_at(*slot) : NULL;

	if (vcpu)
		forget_kvm_vcpu(vcpu, address, (u64)kvm_vcpu->kvm);
	bpf_map_delete_elem(&vcpu_by_address, &address);
	return 0;
}

#endif
