/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What the BPF programs and the daemon (crates/host) share: limits, and the layout of every map.
 *
 * crates/border generates the daemon's types from this file (crates/host/src/interface.rs).
 */
#ifndef BPF_INTF_H
#define BPF_INTF_H

#include "policy/boost_budget.h"
#include "policy/queue_domain.h"
#include "policy/record.h"
#include "policy/urgent.h"

struct pcpu; /* maps.bpf.h: the daemon has no use for it */

#define PCPUS_MAX 1024u
#define VMS_MAX 512u
#define VCPUS_MAX 4096u
#define VCPUS_PER_VM_MAX 512u
#define LIMITS_MAX 1024u
#define LIMITED_CGROUPS_MAX 8192u
#define LIMITS_PER_CGROUP 4u
#define HISTOGRAM_BUCKETS 32u /* bucket n counts [2^n, 2^(n+1)) us; bucket 0 also less than 1 us */
#define OWNERS_MAX 1024u      /* that have vCPUs without a place */
#define SERVICE_CGROUPS_MAX 8192u
#define NEVER_MICRO 0xffffffffu

/* Whose part of KVM runs the guests. */
enum kvm_vendor {
	KVM_AMD = 0,
	KVM_INTEL = 1,
	KVM_OTHER = 2, /* another one's, of which nothing is known but what all have in common */
	KVM_VENDOR_COUNT = 3,
};

/* Written once, before the programs are loaded. */
struct run_config {
	u64 micro_slice_ns;
	u64 others_slice_ns; /* of host tasks that aren't vCPUs */
	struct accelerate_config accelerate;
	struct fair_share_config fair_share;
	struct pool_size_config pool_size;
	struct urgent_config urgent;
	struct delay_config delay; /* windows around the ends of turns, or grace; window_ns 0: neither */
	u32 micro_pcpu_count;	   /* of a static pool */
	u32 pool_is_dynamic;
	u32 dry_run;
	u32 recording;
	u32 program_costs; /* they are measured */
	u32 pcpu_count;
	enum kvm_vendor vendor;
	u32 smt;  /* pCPUs share cores */
	u32 lend; /* micro pCPUs that nobody asks for run vCPUs of the normal pool; the paper: 0 */
	/* A task that may run on so many pCPUs may run anywhere: those that are online and not isolated. */
	u32 wide_pcpu_count;
	u32 vm_places;			     /* how many VMs may have a place: VMS_MAX, or fewer in tests */
	u32 micro_order[POOL_LIMIT_MAX + 1]; /* the n-th pCPU to become micro-sliced */
	u32 micro_rank[PCPUS_MAX];	     /* the inverse; NEVER_MICRO */
	u32 domain_count;		     /* of queues: policy/queue_domain.h */
	u32 tracing;			     /* trace.bpf.h */
	u32 looks_for_interrupts;	     /* policy/looks.h */
	u32 boosts_woken;		     /* beside: a vCPU that was woken and has to wait is asked for */
	u32 by_tracepoints;		     /* no function of the kernel is traced: tracepoints.bpf.h */
	struct queue_place places[PCPUS_MAX];
	struct boost_config boost; /* beside the kernel's own scheduler */
	/* How long vCPUs may wait, at the start (policy/max_wait.h); 0: for ever. */
	u64 max_wait_ns;
	u64 max_wait_each_ns; /* microslice: for each vCPU that wants to run and that a pCPU has, if longer */
	enum critical_by critical_by;
	u32 reserved;
};

/* Why a request didn't end in an acceleration. requests = accelerations + all of these + those pending. */
enum request_failure {
	FAILURE_NO_ROOM = 0,	/* every micro pCPU has its queue full */
	FAILURE_AFFINITY = 1,	/* it may not run on any micro pCPU that has room */
	FAILURE_OVERTAKEN = 2,	/* the normal pool ran it first */
	FAILURE_NOT_QUEUED = 3, /* it wasn't in the normal queue when the pCPU reached for it */
	FAILURE_BLOCKED = 4,	/* it went to sleep, or ended */
	FAILURE_RESIZED = 5,	/* the micro pCPU that it was queued for left the micro pool */
	FAILURE_LIMITED = 6,	/* it has used up what cpu.max allows it */
	FAILURE_VM_AHEAD = 7,	/* its VM has had more than that of the first that waits */
	FAILURE_COUNT = 8,
};

/*
 * How an acceleration ended: the policy's outcomes, and one of ours. accelerations = all of these + in
 * flight.
 */
enum acceleration_return {
	RETURN_SERVED = MICRO_SLICE_SERVED,
	RETURN_STILL_CRITICAL = MICRO_SLICE_STILL_CRITICAL,
	RETURN_UNHANDLED = MICRO_SLICE_UNHANDLED,
	RETURN_BLOCKED = MICRO_SLICE_BLOCKED,
	RETURN_NEVER_RAN = MICRO_SLICE_OUTCOME_COUNT, /* taken off the micro pCPU before it ran */
	RETURN_COUNT,
};

/* Why a granted boost came to nothing. */
enum boost_miss {
	BOOST_MISS_OVERTAKEN = 0, /* the kernel ran it first */
	BOOST_MISS_GONE = 1,	  /* its thread ended, or ran another vCPU */
	BOOST_MISS_COUNT = 2,
};

/* Why a vCPU of the normal pool runs before the first of the queue. */
enum overtake {
	OVERTAKE_DIRECTED_YIELD = 0,
	OVERTAKE_WARM_CACHES = 1,
	OVERTAKE_COUNT = 2,
};

/* The schemes of policy/urgent.h: which of them asked for urgency. */
enum urgent_scheme {
	URGENT_SCHEME_RESCHED_DP = 0,
	URGENT_SCHEME_TLB_CO = 1,
	URGENT_SCHEME_RESCHED_CO = 2,
	URGENT_SCHEME_COUNT = 3,
};

/* Why a vCPU isn't urgent any more. became_urgent = all of these + those that are. */
enum urgent_end {
	URGENT_END_ACKNOWLEDGED = 0, /* its guest has taken the interrupt, and said so */
	URGENT_END_TIME_USED = 1,    /* it ran for as long as was asked for */
	URGENT_END_SPUN = 2,	     /* a pause-loop exit: it waits itself */
	URGENT_END_STOPPED = 3,	     /* it went to sleep, rests by cpu.max, or is gone */
	URGENT_END_COUNT = 4,
};

/* Counters of urgent vCPUs (policy/urgent.h), in the scheduler coordinated. */
struct urgent_stats {
	u64 ipis[INTERRUPT_KIND_COUNT]; /* from sibling to sibling */
	u64 requests[URGENT_SCHEME_COUNT];
	u64 became_urgent;
	u64 ends[URGENT_END_COUNT];
	u64 decisions[URGENT_DECISION_COUNT]; /* on urgent vCPUs that waited, whenever one was asked about */
	u64 turned_away;		      /* the urgent queue was full */
	u64 slices;			      /* urgent slices begun: on a pCPU that was taken, or kept */
	u64 protections;		      /* of them, of vCPUs that ran already */
	u64 requeued;			      /* urgent slices that ended with their vCPU still urgent */
	u64 ran_ns;			      /* in urgent slices */
	/* By how far its clock was ahead of the vCPU that it went before. */
	u64 borrowed_ns;
	u64 waited_ns; /* urgent, without a pCPU */
	u64 wait_us[HISTOGRAM_BUCKETS];
};

/*
 * Counters of turns that end in windows (policy/delay_preemption.h), as the simulator counts them.
 * put_off = ended_safe + ended_forced + ended_otherwise + those that are put off now.
 */
struct delay_stats {
	u64 put_off; /* preemptions, because the vCPU wasn't safe */
	u64 ended_safe;
	u64 ended_forced;
	u64 ended_otherwise; /* it gave its pCPU up by itself, or a micro or an urgent slice came */
	u64 turns;	     /* that ended in their window, put off or not */
	u64 beyond_ns;	     /* what those of them had beyond their due end that ended behind it */
	u64 short_ns;	     /* what the others were short of */
	u64 looks;	     /* that found a put-off vCPU not safe yet */
	u64 penalised;	     /* turns of them that ended early, because the guest had overdrawn its hints */
};

/* Counters of one VM since it was first seen. The slot VMS_MAX has those of all VMs that are gone. */
struct vm_stats {
	u64 ran_ns;	  /* vCPUs, in both pools */
	u64 vmm_ran_ns;	  /* its VMM's other threads */
	u64 micro_ran_ns; /* of it, in micro slices */
	u64 lent_ran_ns;  /* of it, in the normal pool on micro pCPUs that nobody asked for */
	u64 called_back;  /* turns there that ended because of a request */
	u64 home_slices;  /* micro slices on pCPUs of the normal pool */
	u64 waited_ns;	  /* runnable, without a pCPU */
	u64 late_waits;	  /* that were longer than the bound (policy/max_wait.h) */
	u64 rested_ns;	  /* runnable, but limited by cpu.max */
	u64 preemptions[GUEST_CLASS_COUNT];
	/* The same by what the vCPU held: of unknown holders only where its guest's words are read. */
	u64 stops[HELD_COUNT][GUEST_CLASS_COUNT];
	u64 yields[YIELD_CAUSE_COUNT][YIELD_REASON_COUNT];
	u64 interrupts[INTERRUPT_KIND_COUNT][INTERRUPT_REASON_COUNT];
	u64 siblings[SIBLING_DECISION_COUNT];
	u64 spinners[2]; /* enum spinner_decision */
	u64 requests[CAUSE_COUNT];
	u64 would_request[CAUSE_COUNT][GUEST_CLASS_COUNT]; /* with --dry-run, instead of requests */
	u64 failures[FAILURE_COUNT];
	u64 accelerations[CAUSE_COUNT][GUEST_CLASS_COUNT];
	u64 returns[RETURN_COUNT];
	/* Turns made longer because they ended at a bad moment: in place, and after an interruption. */
	u64 graces[2];
	u64 asked_again;	       /* passes for siblings that had found no room */
	u64 overtakes[OVERTAKE_COUNT]; /* turns that began before those that had waited longer */
	u64 woken[WOKEN_REASON_COUNT]; /* that were blocked, were woken for a known reason, and had to wait */
	u64 micro_slice_us[HISTOGRAM_BUCKETS];
	u64 wait_to_run_us[HISTOGRAM_BUCKETS];
	struct urgent_stats urgent;
	struct delay_stats delays;
};

/* struct vm's in_use: a slot that is open is held by in_use - VM_SLOT_OPEN vCPUs. */
#define VM_SLOT_FREE 0u
#define VM_SLOT_OPEN 1u
#define VM_SLOT_CLOSING 0x7fffffffu /* nobody may join, nor claim it yet */

/* Bits of `registers` in struct vm: facts about the VM's registers. */
#define REGISTERS_SEEN 1u
#define REGISTERS_64_BIT 2u    /* one of its vCPUs was in long mode */
#define REGISTERS_PROTECTED 4u /* the host can't read them (SEV-ES, SEV-SNP, TDX) */

/*
 * One VM: a `struct kvm`. Written by the BPF programs only. As with vCPUs, mechanisms keep what is theirs
 * behind it.
 */
struct vm {
	u64 kvm;	/* its address: the VM's identity; 0: being set up, or gone from KVM */
	u32 generation; /* changes when the slot is used again, so that nothing of an old VM sticks */
	u32 in_use;	/* VM_SLOT_FREE, _CLOSING, or open */
	u32 pid;	/* of the VMM process */
	u32 vcpu_count;
	s64 active_vcpu_count; /* runnable or running */
	u64 vtime_ns;	       /* its clock: what all its vCPUs ran, in both pools, by its weight */
	u64 first_vm_ns;       /* that of the VM that was furthest ahead when it was looked at last */
	u64 halt_sampled_at_ns;
	u64 registers_sampled_at_ns;
	u32 vcpu_high;		     /* vcpus[] is empty from here on */
	u32 vcpus[VCPUS_PER_VM_MAX]; /* vCPU slot + 1, or 0 */
	u32 registers;		     /* REGISTERS_… */
	u64 owner;		     /* owners.bpf.h */
	u64 threads_vtime_ns;	     /* the clock of its VMM's threads that aren't vCPUs */
	/* What is believed of its guest's words that `count_epoch` is of; 0: of none. */
	struct count_belief belief;
	u32 count_epoch;
	u32 vcpus_to_come; /* how many its VMM had made when the first one came: their places are kept */
	u32 is_refused;	   /* one of its vCPUs has found no place: the others give theirs back */
	u32 reserved;
};

/* Knowledge of userspace about a VM. Written by the daemon only. */
struct vm_feed {
	struct guest_layout layout;
	u32 generation;	    /* of the struct vm that this is about */
	u32 code;	    /* which guest_code; 0: no symbols */
	u32 weight;	    /* of its cgroup; 0: the default */
	u32 urgent_schemes; /* bits of policy/urgent.h */
	u64 max_wait_ns;    /* of its own (max_wait_of_vm_ns()) */
};

/* Where a VM's hint page is (guest/hints/hint_page.h). Written by the daemon only. */
struct hint_place {
	u64 address;	/* in the VMM's process; 0: it has none */
	u32 vcpu_count; /* so many hints are in it */
	u32 generation; /* of the struct vm that this is about */
};

/* Where a vCPU's preempt_count is (policy/held.h). Written by the daemon only. */
struct count_place {
	u64 address;	/* in the VMM's process; 0: unknown */
	u64 kvm_vcpu;	/* that this is about */
	u32 generation; /* of its struct vm */
	u32 epoch;	/* of the search that found the words of its guest */
};

/*
 * What limits the tasks of one cgroup: its own cpu.max and those of the cgroups that it lies in. Written by
 * the daemon only.
 */
struct limit_chain {
	u32 places[LIMITS_PER_CGROUP]; /* in cpu_limits + 1; 0: no more */
};

/* The weight that cpu.weight gives the host tasks of one cgroup. Written by the daemon only. */
struct service_weight {
	u64 group; /* the cgroup whose clock they go by */
	u32 weight;
	u32 reserved;
};

/* How much of a limit has been used: see policy/cpu_limit.h. */
struct limit_state {
	u64 clock_ns;
	/* Of the limit that its clock is for. */
	u32 quota_us;
	u32 period_us;
};

/*
 * One vCPU: a host task that was seen inside KVM_RUN. Mechanisms keep what is theirs behind it, in the same
 * map value.
 */
struct vcpu {
	u64 kvm_vcpu; /* the address of its struct kvm_vcpu; 0: gone from KVM, though the task still lives */
	u32 in_use;
	u32 vm;
	u32 index_in_vm;
	u32 pid;
	u32 vcpu_id;
	enum vcpu_state state;
	u32 active;
	u32 was_blocked;
	u32 preempted;
	u32 yielded;
	/*
	 * Where it was stopped last. GUEST_CLASS_LOCK_HOLDER, too, if it holds something by its guest's
	 * count.
	 */
	enum guest_class guest_class;
	enum held held;	    /* when it was stopped last */
	u32 holds_in_a_row; /* stops that found it holding something, up to HOLDS_ALWAYS */
	u32 heirs_tried;    /* that it didn't yield to, in the present pause-loop exit */
	u64 rip;
	u64 runnable_at_ns;
	u32 rests;	 /* it has used up what it may have, and waits until it may have more */
	u32 normal_pcpu; /* where it ran last, micro slices aside */
	/*
	 * On how many pCPUs it may run. On fewer than wide_pcpu_count: it goes by their clocks, not by the
	 * pool's.
	 */
	u32 breadth;
	/* It waits and runs next, not by its place in line: boosted, on an idle pCPU, or as heir. */
	u32 goes_first;
};

/* A guest's instruction pointer at a HLT exit, or its MSR_LSTAR: a witness of its slide. */
struct witness_event {
	u32 vm;
	u32 generation;
	u64 address;
};

/* The pool has a new size. */
struct resize_event {
	u64 at_ns;
	u32 micro_pcpu_count;
	enum pool_size_reason reason;
};

/* A vCPU has found no place. */
struct refusal_event {
	u32 pid;	     /* of the VMM process */
	u32 uid;	     /* its user */
	u32 is_owners_bound; /* its owner has as many places as one may have; 0: all are taken */
	u32 owner;	     /* the lower half of owner_of_current() */
};

enum event_kind {
	EVENT_HALT = 0,
	EVENT_RESIZE = 1,
	EVENT_LSTAR = 2,
	EVENT_REFUSAL = 3,
};

struct event {
	enum event_kind kind;
	u32 reserved;
	union {
		struct witness_event witness;
		struct resize_event resize;
		struct refusal_event refusal;
	};
};

/* Counters of the host as a whole. */
struct host_stats {
	u64 others_ran_ns; /* host tasks that aren't vCPUs */
	u64 pool_resizes;
	u64 starving_served; /* tasks that had waited for seconds behind heavier ones */
	u64 strays_evicted; /* found on a micro pCPU without having been accelerated, and sent away at once */
	u64 confined_inserts; /* tasks that may run on micro pCPUs only */
	u64 rescued;	      /* queued tasks that a resize had left without a normal pCPU */
	u64 events_dropped;   /* ring full */
	u64 records_dropped;  /* ring full */
	u64 vcpus_refused;    /* no slot left: scheduled as ordinary host tasks */
	u64 urgent_ipis;
	u64 urgent_ples;
	u64 urgent_irqs;
	u64 rested_ns;	      /* host tasks that aren't vCPUs, limited by cpu.max */
	u64 taken_when_idle;  /* tasks that waited in another domain, by a pCPU that had nobody to run */
	u64 taken_by_balance; /* likewise, by one that had a task, further ahead */
	/* Came to a pCPU of the normal pool while that chose its next task: kicked once more. */
	u64 late_requests;
	/* What the kernel said no to: docs/explanation/races.md, When the kernel says no. */
	u64 rest_timers_refused;
	u64 turn_timers_refused;
	u64 slice_timers_refused;
	u64 look_timers_refused;
	/*
	 * Runs of the timer that looks at turns that end in windows, and their time, if costs are measured.
	 */
	u64 looks;
	u64 looks_ns;
	u64 pool_timers_refused;
	u64 interrupts_timers_refused;
	u64 interrupts_found; /* by looks, which no exit told of */
	u64 vcpu_addresses_refused;
	u64 traces_dropped; /* ring full */
};

/*
 * Of one VM, beside the kernel's own scheduler. requests = refusals + missed + boosts by cause and class +
 * those pending.
 */
struct boost_stats {
	u64 requests[CAUSE_COUNT];
	u64 refusals[BOOST_DECISION_COUNT];
	u64 missed[BOOST_MISS_COUNT];
	u64 boosts[CAUSE_COUNT][GUEST_CLASS_COUNT]; /* that ran real-time; = ends + those in flight */
	u64 ends[MICRO_SLICE_OUTCOME_COUNT];
	u64 ran_ns;			/* boosted */
	u64 late_waits;			/* that were longer than the VM's bound (policy/max_wait.h) */
	u64 wait_us[HISTOGRAM_BUCKETS]; /* from the request until it ran */
	u64 slice_us[HISTOGRAM_BUCKETS];
};

/* What the helper asks the BPF side: look at this vCPU's wait. */
struct bound_request {
	u32 slot;
	u32 reserved;
	u64 host_bound_ns;  /* how long vCPUs may wait now */
	u64 least_bound_ns; /* and of VMs with a bound of their own, at least */
};

/* What the BPF side tells the helper that boosts. */
enum boost_event_kind {
	BOOST_ASKED = 0,
	BOOST_SERVED = 1, /* what it was boosted for is done, or it sleeps: it may be taken back */
	BOOST_EVENT_COUNT = 2,
};

#define ASKED_BY_ITSELF 0xffffffffu

struct boost_event {
	enum boost_event_kind kind;
	u32 slot;      /* of the vCPU */
	u32 tid;       /* its thread */
	u32 asked_on;  /* the pCPU of whoever waits for it; ASKED_BY_ITSELF: nobody has complained */
	u32 waits_on;  /* where it was stopped: balancing may have moved it since */
	u32 for_bound; /* its VM's bound asks: also if it is pinned */
	/* When that thread was started, by the boot clock: with the tid it is that thread and no other. */
	u64 start_ns;
	u64 at_ns; /* when it was asked for */
};

/* ---- What overcommit costs (bpf/observe.bpf.c) ---- */

/*
 * Bucket n of a wait, in units of 1,024 ns: units n, up to 3; from there on four to an octave, [4 + n % 4, 5
 * + n % 4) * 2^(n / 4 - 1). So a wait's bucket is at most a quarter longer than it.
 */
#define WAIT_BUCKETS 128u

struct wait_stats {
	u64 total_ns;
	u64 max_ns;
	u64 counts[WAIT_BUCKETS];
};

/* Who had a turn: a VM, or the cgroup of a task that isn't a vCPU, by its number. 0: the pCPU was idle. */
#define RUNNER_IS_VM (1ull << 63) /* the slot in the low half, above it the slot's generation */
#define RUNNER_GENERATION_SHIFT 32
#define RUNNER_GENERATION_MASK 0x7fffffffu

/* Shorter waits aren't told: a tick of a 1,000 Hz kernel. */
#define LONG_WAIT_NS 1000000u

/* The longest wait of a vCPU among those that are over, and who had its pCPU meanwhile. */
struct long_wait {
	u64 since_ns;
	u64 length_ns;
	u64 runner;    /* of those that ran there meanwhile, the one that had most */
	u64 runner_ns; /* how much that was */
	u64 pcpu;      /* where it began to wait: balancing may have moved it since */
	char comm[16]; /* the name of one of that runner's tasks */
};

/* Of one vCPU since it was first seen. */
struct observed_vcpu {
	u64 joined_at_ns;
	u64 since_ns; /* it is what its state says since then */
	u64 ran_ns;   /* in turns that are over */
	u64 turns_ended
	    [GUEST_CLASS_COUNT];      /* by the host, while it could have gone on: by what it was doing */
	u64 turns_ended_owing;	      /* of these, with a call of a sibling that it hadn't answered */
	u64 spins[GUEST_CLASS_COUNT]; /* pause-loop exits, likewise */
	u64 halts;
	u64 lock_halts;	     /* of these, in a paravirtual lock */
	u64 directed_yields; /* by hypercall, to a sibling that it waits for */
	/* The guest has asked for its steal time; the two below are what KVM has told it. */
	u64 steal_is_told;
	u64 steal_before_ns;	  /* at the end of the first turn that was seen */
	u64 steal_ns;		  /* at the end of the last one */
	struct wait_stats ready;  /* runnable, without a pCPU: waits that are over */
	struct long_wait longest; /* of those that ended after longest_from_ns, if one did */
};

/* Of one VM since it was first seen. */
struct observed_vm {
	u64 interrupts[INTERRUPT_KIND_COUNT]; /* on their way to one of its vCPUs */
	/*
	 * From there until its vCPU had a pCPU, if it had none. Several of a kind that wait for one vCPU are
	 * one wait.
	 */
	struct wait_stats interrupt_waits[INTERRUPT_KIND_COUNT];
	/* From a vCPU's first call of siblings until the last of those that had no pCPU then has one. */
	struct wait_stats shootdowns;
};

#define MISSED_HOLDERS_MAX 8192u

/* Where vCPUs were stopped that held something, and of which symbols don't say so. */
struct missed_holder {
	u64 address; /* as linked */
	u32 vm;
	u32 generation; /* of that slot */
};

/* ---- Traces (bpf/core/trace.bpf.h) ---- */

enum trace_kind {
	TRACE_SWITCH = 0, /* `task` leaves its pCPU, and `next` has it */
	TRACE_WAKEUP = 1,
	TRACE_REQUESTED = 2,	  /* by `cause` */
	TRACE_REQUEST_FAILED = 3, /* `reason`: enum request_failure */
	TRACE_ACCELERATED = 4,	  /* by `cause` */
	TRACE_RETURNED = 5,	  /* `reason`: enum acceleration_return */
	TRACE_BECAME_URGENT = 6,
	TRACE_URGENCY_ENDED = 7, /* `reason`: enum urgent_end */
	TRACE_KIND_COUNT = 8,
};

/* Why a vCPU leaves its pCPU. */
enum trace_stop {
	TRACE_STOP_BLOCKED = 0, /* it sleeps in the host */
	TRACE_STOP_HLT = 1,
	TRACE_STOP_LOCK_HLT = 2,  /* with the guest's interrupts disabled: in a paravirtual lock (AMD) */
	TRACE_STOP_PLE = 3,	  /* KVM yields for it: it spun */
	TRACE_STOP_IPI_WAIT = 4,  /* it yields by hypercall; seen by our own schedulers only */
	TRACE_STOP_PREEMPTED = 5, /* its time is over, or another one comes */
	TRACE_STOP_COUNT = 6,
};

/* The purpose of a vCPU's turn. */
enum trace_turn {
	TRACE_TURN_NORMAL = 0,
	TRACE_TURN_MICRO = 1,
	TRACE_TURN_URGENT = 2,
	TRACE_TURN_COUNT = 3,
};

struct traced_task {
	u32 tid;	/* 0: a pCPU's idle task */
	u32 vm;		/* slot + 1 of its VM, of a vCPU; 0: it is none */
	u32 generation; /* of that slot */
	u32 vcpu_id;
};

struct trace_event {
	u64 at_ns; /* the host's monotonic clock */
	enum trace_kind kind;
	u32 pcpu; /* where it happened */
	struct traced_task task;
	struct traced_task next;
	enum trace_stop stop;
	enum guest_class guest_class; /* of `task`, a vCPU: where it was stopped last */
	enum trace_turn turn;	      /* of `next` */
	enum cause cause;
	u32 reason;
	u32 lost;      /* events before it, since the start, for which there was no room */
	char comm[16]; /* the name of `next`, if it isn't a vCPU */
};

/* Why the scheduler stopped, as the kernel says it. */
struct exit_record {
	s32 kind;
	u32 reserved;
	s64 code;
	char reason[128];
	char message[1024];
};

/* ---- A vCPU of no guest (bpf/posted_interrupts.bpf.c) ---- */

#define MADE_VCPU_BYTES 32768u
#define MADE_APIC_BYTES 4096u
#define MADE_REGISTERS_BYTES 4096u

#endif
