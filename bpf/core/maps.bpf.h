/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Every map, every global, and how to reach them. Layouts are in intf.h.
 *
 * The verifier checks a function that isn't static once, by itself; a static one at each call, with all that
 * led there. What is called from several places, or has a loop, is therefore not static wherever its
 * arguments allow it.
 */
#ifndef BPF_MAPS_H
#define BPF_MAPS_H

#include "bpf/core/compat.bpf.h"
#include "bpf/core/intf.h"
#include "bpf/core/old_kernels.bpf.h"

const volatile struct run_config config;

/* What limits its turns (cpu_limit.bpf.h). */
struct limit_ctx {
	u64 allowed_ns;	      /* how long they allow its turn to be: the one under way, or the next */
	u64 reserved_ns;      /* for its next turn; 0: nothing */
	u64 rests_until_ns;   /* its next turn begins then at the earliest */
	u64 paid_ns;	      /* for the turn under way; 0: nothing */
	u64 charged_until_ns; /* of all the time that it ran: as sum_exec_runtime */
	u64 by;		      /* the cgroup whose limits have given it that */
	/* It went on in the kernel in place of a rest. */
	u64 went_on_ns;	      /* for how long, since it rested in user mode */
	u32 went_on;	      /* how often */
	u32 goes_on;	      /* it does now */
	u32 rested_in_kernel; /* how often, since it rested in user mode */
};

/* Where its last turn ended (stops.bpf.h). */
struct stop_ctx {
	u64 kernel_sp; /* where on its stack it stopped the time before, if that was in the kernel */
	u32 is_seen;
	u32 in_kernel;
};

/* A task that isn't a vCPU: whose clock it goes by (host_tasks.bpf.h, vmm_threads.bpf.h). */
struct host_ctx {
	u64 owner;	    /* of a VM without a place; 0: it isn't of one */
	u64 service;	    /* the cgroup of a weight of its own; 0: it isn't in one */
	u64 first_ran_ns;   /* since it was woken and went first */
	u32 service_weight; /* of that cgroup */
	u32 goes_first;	    /* it runs before vCPUs, as a task that was just woken */
	u32 gives_way;	    /* its clock is the vCPUs': see gives_way() */
	u32 reserved;
};

/* What is kept of its process, with the first thread. */
struct process_ctx {
	u64 owner;	   /* it has vCPUs without a place: whose they are */
	u64 refused_at_ns; /* when that was seen last */
	u32 vm;		   /* slot + 1 of its VM */
	u32 vm_generation; /* of that slot */
};

/* A vCPU that looks for a place, while it does. */
struct place_ctx {
	u64 refused_until_ns; /* there was no room: not tried again before */
	u32 owned_vms;
	u32 owned_vcpus;
	u32 placed_vcpus; /* of all owners */
	u32 reserved;
};

/* The state that the scheduler keeps for every host task, vCPU or not. */
struct task_ctx {
	u64 vtime_ns;
	u64 running_since_ns;
	u64 queued_at_ns; /* in DSQ_OTHERS, DSQ_RESTING, or one of DSQ_VCPUS */
	u32 queue;	  /* DSQ_BOOSTED or DSQ_VCPUS + this one is where it waits, or waited last */
	/* It runs because it has waited for so long, or goes on, not because of its clock. */
	u32 out_of_order;
	u32 vcpu;	   /* slot + 1; 0: not a vCPU */
	u32 vm;		   /* a VMM's thread that isn't a vCPU: its VM's slot + 1 */
	u32 vm_generation; /* of that slot */
	u32 reserved;
	struct limit_ctx limit;
	struct stop_ctx stop;
	struct host_ctx host;
	struct process_ctx process;
	struct place_ctx place;
};

struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct task_ctx);
} task_ctxs SEC(".maps");

/* The scheduler says what is in these: the structs of this name, and behind them those of its mechanisms. */
extern struct vcpus_map vcpus;

extern struct vms_map vms;

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, VMS_MAX);
	__type(key, u32);
	__type(value, struct vm_feed);
} vm_feeds SEC(".maps");

/*
 * One more than VMs: the last slot sums up those that are gone. Mapped, as vcpus and vms are: the daemon
 * reads them all the time.
 */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, VMS_MAX + 1);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, u32);
	__type(value, struct vm_stats);
} vm_stats_of SEC(".maps");

/*
 * Number of a cgroup (of its folder's inode) -> what limits its tasks. Cgroups without limits aren't in it.
 */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, LIMITED_CGROUPS_MAX);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, u64);
	__type(value, struct limit_chain);
} limit_chains SEC(".maps");

/* The limits of cpu.max. Written by the daemon only. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, LIMITS_MAX);
	__type(key, u32);
	__type(value, struct cpu_limit);
} cpu_limits SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, LIMITS_MAX);
	__type(key, u32);
	__type(value, struct limit_state);
} limit_states SEC(".maps");

/* Slot 0 stays empty: the code of a guest without symbols. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, GUEST_CODES_MAX);
	__type(key, u32);
	__type(value, struct guest_code);
} guest_codes SEC(".maps");

/* Address of a struct kvm_vcpu -> vCPU slot: interrupts arrive by address. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, VCPUS_MAX);
	__type(key, u64);
	__type(value, u32);
} vcpu_by_address SEC(".maps");

/* Address of a struct kvm -> VM slot. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, VMS_MAX);
	__type(key, u64);
	__type(value, u32);
} vm_by_address SEC(".maps");

/*
 * Owner of VMs without a place -> the clock that all their tasks go by. One that is forgotten begins at the
 * present.
 */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, OWNERS_MAX);
	__type(key, u64);
	__type(value, u64);
} owner_clocks SEC(".maps");

/*
 * Number of a cgroup -> what its weight, and those of what it lies in, give its tasks. Cgroups of the default
 * aren't in it.
 */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, SERVICE_CGROUPS_MAX);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, u64);
	__type(value, struct service_weight);
} service_weights SEC(".maps");

/*
 * struct service_weight, group -> the clock that its tasks go by. One that is forgotten begins at the
 * present.
 */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, SERVICE_CGROUPS_MAX);
	__type(key, u64);
	__type(value, u64);
} service_clocks SEC(".maps");

/* The kind of task that runs on a pCPU. */
enum occupant {
	OCCUPANT_NONE = 0,
	OCCUPANT_OTHER = 1,	    /* a host task that isn't a vCPU */
	OCCUPANT_VCPU = 2,	    /* a vCPU of the normal pool */
	OCCUPANT_BOOSTED_VCPU = 3,  /* one that was boosted when it woke */
	OCCUPANT_BACKGROUND = 4,    /* a host task that gives way, as a vCPU of the normal pool does */
	OCCUPANT_OF_MECHANISMS = 5, /* from here on: what the scheduler's mechanisms let run there */
};

/* The task furthest behind that may run on a pCPU, of the queues that were looked through for it. */
struct first_waiter {
	u64 dsq; /* where it waits; 0: nobody does */
	u64 vtime_ns;
	u64 weight;
	u64 queued_at_ns;
	/* Slot + 1 of its VM; FIRST_HAS_NO_VM: a host task, or one of a VM without a place. */
	u32 vm;
	u32 breadth; /* as in struct vcpu */
};

#define FIRST_HAS_NO_VM (VMS_MAX + 1)

struct pcpu {
	u64 others_ran_ns;	       /* by host tasks, not yet made up for by vCPUs */
	u64 turn_ns;		       /* how long the turn that began here last may be */
	u64 limited_until_ns;	       /* the turn under way ends then, by a limit; 0: no limit does */
	u64 looked_at_ns;	       /* when it looked into other domains last */
	u64 others_looked_at_ns;       /* the same, for host tasks */
	struct first_waiter line;      /* of the queues of its own, when it looked last */
	struct first_waiter elsewhere; /* likewise, of some of the other domains */
	/*
	 * Of the vCPUs that began a turn of the normal pool here: the furthest clock, and that of their VMs.
	 * 0: none has.
	 */
	u64 vcpus_vtime_ns;
	u64 vms_vtime_ns;
	u32 occupant;	   /* enum occupant */
	u32 sweep_count;   /* queued tasks to look at that may be starving */
	u32 look_count;	   /* queued tasks that were looked at in one queue */
	u32 look_cursor;   /* the domain that it looked into last though it had a task to run */
	u32 others_cursor; /* the same, for host tasks */
	u32 vm;		   /* slot + 1 of the VM whose vCPU runs, or ran last */
	/* The pCPU that serves a starving task. Not in a register, for a fault of 6.18's verifier. */
	u32 swept_to;
};

extern struct pcpus_map pcpus;

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 256 * 1024);
} events SEC(".maps");

/* Shrunk by the daemon to one page when nothing is recorded. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 16 * 1024 * 1024);
} records SEC(".maps");

/*
 * What is written at each turn has cache lines of its own, apart from what is only read there. Globals lie in
 * the order in which the code names them first.
 */
#define OWN_LINE __attribute__((aligned(64)))

/* The normal pool's clock: virtual time of the vCPU that is furthest ahead of those that were chosen. */
OWN_LINE u64 pool_vtime_ns;
/* The same clock for the VMs of these vCPUs. */
u64 first_vm_vtime_ns;
/* The same clock for host tasks that aren't vCPUs. */
OWN_LINE u64 others_vtime_ns;
/* When the normal queues were last looked through for starving tasks. */
u64 swept_at_ns;
/* From which queue on they are looked through next. */
u32 sweep_cursor;
/* Is there any limit on this host? Written by the daemon. */
OWN_LINE u32 limits_in_force;
/* Set by the daemon: vCPUs leave with the scheduler, and none comes any more. */
u32 scheduler_ends;
/* The time when a limit last came, went or changed. Written by the daemon. */
u64 limits_changed_at_ns;
/* Is anything in service_weights? Written by the daemon. */
u32 services_are_weighed;
/*
 * Weights of the outermost cgroups: of those that have VMs, and of all others, as far as they want to run; 0:
 * unknown. Written by the daemon.
 */
u32 vms_side_weight;
u32 services_side_weight;
/* No vCPU has a slot from this one on. */
u32 vcpu_slots_high;
/* The timer that ends rests is armed. */
u32 rest_timer_armed;

OWN_LINE struct host_stats host_stats;
struct exit_record exit_record;

/* ---- Dispatch queues ---- */

#define DSQ_RESTING 1ull /* tasks that have used up what cpu.max allows them, by when they may run again */
#define DSQ_STOPPED 2ull /* of them, those of which isn't known yet where they stopped */
/* One for each domain, and one for each pCPU, behind them: policy/queue_domain.h, queue_to_join(). */
#define DSQ_BOOSTED 0x20000ull /* + queue: vCPUs that just woke, first come first served */
#define DSQ_VCPUS 0x30000ull   /* + queue: preempted and waiting vCPUs, by virtual time */
#define DSQ_OTHERS 0x40000ull  /* + domain: host tasks that aren't vCPUs, by virtual time */

/* ---- Access ---- */

#define COUNT(counter) __sync_fetch_and_add(&(counter), 1)
#define ADD(counter, amount) __sync_fetch_and_add(&(counter), (amount))

/* A pCPU's timer fires there, if that is where it is armed. */
static __always_inline u64 pinned_to(s32 cpu)
{
	return cpu == (s32)bpf_get_smp_processor_id() ? BPF_F_TIMER_CPU_PIN : 0;
}

/* False, and counted, where the kernel has no memory to arm it. */
#define START_TIMER(timer, delay_ns, flags, refusals)                                                        \
	(bpf_timer_start(timer, delay_ns, flags) ? (COUNT(refusals), false) : true)

static __always_inline struct pcpu *pcpu_of(s32 cpu)
{
	u32 key = cpu;

	return bpf_map_lookup_elem(&pcpus, &key);
}

static __always_inline struct vm *vm_at(u32 slot)
{
	return bpf_map_lookup_elem(&vms, &slot);
}

static __always_inline struct vm_feed *vm_feed_at(u32 slot)
{
	return bpf_map_lookup_elem(&vm_feeds, &slot);
}

static __always_inline struct vm_stats *vm_stats_at(u32 slot)
{
	return bpf_map_lookup_elem(&vm_stats_of, &slot);
}

static __always_inline struct vcpu *vcpu_at(u32 slot)
{
	return bpf_map_lookup_elem(&vcpus, &slot);
}

static __always_inline struct task_ctx *task_ctx_of(struct task_struct *p)
{
	return bpf_task_storage_get(&task_ctxs, p, 0, 0);
}

static __always_inline struct vcpu *vcpu_of(const struct task_ctx *tctx)
{
	return tctx && tctx->vcpu ? vcpu_at(tctx->vcpu - 1) : NULL;
}

/* The task that ran so far, if it could go on: it didn't block. */
static __always_inline bool is_runnable(struct task_struct *prev)
{
	return prev && (prev->scx.flags & bpf_core_enum_value(enum scx_ent_flags, SCX_TASK_QUEUED));
}

static __always_inline bool is_pinned_kthread(struct task_struct *p)
{
	return (p->flags & PF_KTHREAD) && p->nr_cpus_allowed == 1;
}

/* Power-of-two buckets of microseconds: bucket n counts [2^n, 2^(n+1)), bucket 0 also less than 1 us. */
static __always_inline u32 histogram_bucket(u64 ns)
{
	u64 us = ns / 1000;
	u32 bucket = 0;

	/* Five halvings of the search width: log2 without a loop. */
	if (us >> 32)
		return HISTOGRAM_BUCKETS - 1;
	if (us >> 16) {
		bucket += 16;
		us >>= 16;
	}
	if (us >> 8) {
		bucket += 8;
		us >>= 8;
	}
	if (us >> 4) {
		bucket += 4;
		us >>= 4;
	}
	if (us >> 2) {
		bucket += 2;
		us >>= 2;
	}
	return bucket + (us >> 1 ? 1 : 0);
}

static __always_inline void send_event(struct event *event)
{
	if (bpf_ringbuf_output(&events, event, sizeof(*event), BPF_RB_NO_WAKEUP))
		COUNT(host_stats.events_dropped);
}

/*
 * Writes one record, when recording: policy/record.h. The statement behind the slot fills `record`. The
 * daemon polls, so nobody is woken from here: this is called with a runqueue locked.
 */
#define RECORD_BY(record_kind, slot, ...)                                                                    \
	do {                                                                                                 \
		if (config.recording) {                                                                      \
			struct record *record = bpf_ringbuf_reserve(&records, sizeof(struct record), 0);     \
			if (record) {                                                                        \
				__builtin_memset(record, 0, sizeof(*record));                                \
				record->at_ns = bpf_ktime_get_ns();                                          \
				record->kind = record_kind;                                                  \
				record->vcpu = (slot) + 1;                                                   \
				__VA_ARGS__;                                                                 \
				bpf_ringbuf_submit(record, BPF_RB_NO_WAKEUP);                                \
			} else {                                                                             \
				COUNT(host_stats.records_dropped);                                           \
			}                                                                                    \
		}                                                                                            \
	} while (0)

#define RECORD(record_kind, slot, member, ...)                                                               \
	RECORD_BY(record_kind, slot, record->member = (__typeof__(record->member))__VA_ARGS__)

#endif
