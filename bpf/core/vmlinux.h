/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The kernel's types, as far as this scheduler looks at them.
 *
 * Written by hand instead of generated: a whole vmlinux.h is 140,000 lines of one kernel. Every struct keeps only
 * the members that are read, and `preserve_access_index` lets libbpf move each access to where the running kernel
 * has that member (CO-RE), from 6.12 to 7.2, KVM built in or as a module.
 */
#ifndef BPF_VMLINUX_H
#define BPF_VMLINUX_H

#include "policy/types.h"

typedef unsigned short u16;
typedef int s32;
typedef signed char __s8;
typedef unsigned char __u8;
typedef short __s16;
typedef unsigned short __u16;
typedef int __s32;
typedef unsigned int __u32;
typedef long long __s64;
typedef unsigned long long __u64;
typedef __u16 __be16;
typedef __u32 __be32;
typedef __u64 __be64;
typedef __u32 __wsum;
typedef __u16 __sum16;
typedef _Bool bool;
enum { false = 0, true = 1 };

/* include/uapi/linux/bpf.h: user-space ABI, so the numbers are fixed. */
enum bpf_map_type {
	BPF_MAP_TYPE_HASH = 1,
	BPF_MAP_TYPE_ARRAY = 2,
	BPF_MAP_TYPE_PERCPU_ARRAY = 6,
	BPF_MAP_TYPE_LRU_HASH = 9,
	BPF_MAP_TYPE_RINGBUF = 27,
	BPF_MAP_TYPE_TASK_STORAGE = 29,
};

enum {
	BPF_ANY = 0,
	BPF_NOEXIST = 1,
	BPF_F_NO_PREALLOC = 1u << 0,
	BPF_LOCAL_STORAGE_GET_F_CREATE = 1u << 0,
	BPF_RB_NO_WAKEUP = 1u << 0,
	BPF_RB_FORCE_WAKEUP = 1u << 1,
	BPF_F_MMAPABLE = 1u << 10,
	BPF_F_TIMER_CPU_PIN = 1u << 1,
};

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct cpumask {
	unsigned long bits[1];
};

typedef struct cpumask cpumask_t;

struct bpf_cpumask {
	cpumask_t cpumask;
};

struct sched_ext_entity {
	u32 weight;
	u32 flags;
	u64 slice;
	u64 dsq_vtime;
};

struct kernfs_node {
	u64 id;
	const char *name;
};

struct cgroup {
	int level;
	struct kernfs_node *kn;
	struct cgroup *ancestors[]; /* by level, itself the last */
};

struct css_set {
	struct cgroup *dfl_cgrp;
};

struct kvm___counting {
	int created_vcpus;
};

struct cgroup_subsys_state {
	struct cgroup *cgroup;
};

struct task_group {
	struct cgroup_subsys_state css;
};

struct task_struct;

struct rq {
	struct task_struct *curr;
	int cpu;
};

struct cfs_rq {
	int throttle_count; /* with CONFIG_CFS_BANDWIDTH */
	struct rq *rq;	    /* with CONFIG_FAIR_GROUP_SCHED */
};

struct sched_entity {
	u64 sum_exec_runtime;
	struct cfs_rq *cfs_rq; /* with CONFIG_FAIR_GROUP_SCHED */
};

struct thread_struct {
	unsigned long sp;
};

struct thread_info {
	unsigned long flags;
	u32 cpu;
};

struct hlist_node {
	struct hlist_node *next;
};

struct hlist_head {
	struct hlist_node *first;
};

struct preempt_notifier {
	struct hlist_node link;
};

struct task_struct {
	struct thread_info thread_info;
	unsigned int flags;
	int nr_cpus_allowed;
	const cpumask_t *cpus_ptr;
	unsigned short migration_disabled;
	int rcu_read_lock_nesting; /* with CONFIG_PREEMPT_RCU */
	struct sched_ext_entity scx;
	struct sched_entity se;
	bool throttled;			     /* from 6.18 on, with CONFIG_CFS_BANDWIDTH */
	unsigned long core_cookie;	     /* with CONFIG_SCHED_CORE */
	struct task_group *sched_task_group; /* with CONFIG_CGROUP_SCHED */
	struct css_set *cgroups;
	struct task_struct *group_leader;
	struct pid *thread_pid;
	int pid;
	int tgid;
	unsigned int __state;
	unsigned int policy;
	u64 start_boottime;
	char comm[16];
	struct hlist_head preempt_notifiers; /* KVM's, while it is within one of a vCPU's calls */
	struct thread_struct thread;
};

enum scx_exit_kind {
	SCX_EXIT_NONE = 0,
};

struct scx_exit_info {
	enum scx_exit_kind kind;
	s64 exit_code;
	const char *reason;
	char *msg;
};

struct scx_init_task_args {
	bool fork;
};

struct scx_exit_task_args {
	bool cancelled;
};

struct scx_cpu_release_args {
	int reason;
};

/* Packed arguments of __scx_bpf_dsq_insert_vtime(), from 6.19 on. */
struct scx_bpf_dsq_insert_vtime_args {
	u64 dsq_id;
	u64 slice;
	u64 vtime;
	u64 enq_flags;
};

struct kvm;

struct kvm_lapic {
	struct kvm_vcpu *vcpu;
	bool apicv_active;
	void *regs;
};

struct kvm_vcpu_arch {
	unsigned long regs[17]; /* up to 7.1, the last one is RIP */
	unsigned long rip;	/* from 7.2 on */
	struct kvm_lapic *apic;
	u32 hflags;
	int mp_state;
	u64 efer;
	bool guest_state_protected; /* SEV-ES, SEV-SNP, TDX */
	struct {
		u64 msr_val;
		u64 last_steal;
	} st; /* steal time, as the guest is told it */
};

struct kvm_vcpu {
	struct kvm *kvm;
	struct preempt_notifier preempt_notifier;
	int vcpu_id;
	struct pid *pid;
	bool wants_to_run;
	struct {
		bool in_spin_loop;
	} spin_loop;
	struct kvm_vcpu_arch arch;
};

struct vmcb_save_area {
	u64 rflags;
	u64 lstar;
};

struct vmcb_control_area {
	u32 exit_code; /* its lower half, where it has two */
};

struct vmcb {
	struct vmcb_control_area control;
	struct vmcb_save_area save;
};

struct vcpu_svm {
	struct kvm_vcpu vcpu;
	struct vmcb *vmcb;
};

/* Posted interrupts that wait, a bit of each vector. */
struct pi_desc {
	unsigned long pir[4];
};

union vmx_exit_reason {
	u32 full;
};

struct vcpu_vmx {
	struct kvm_vcpu vcpu;
	struct pi_desc pi_desc; /* up to 6.15, as the next one */
	union vmx_exit_reason exit_reason;
};

struct vcpu_vt {
	struct pi_desc pi_desc;
	union vmx_exit_reason exit_reason;
};

struct vcpu_vmx___vt {
	struct kvm_vcpu vcpu;
	struct vcpu_vt vt; /* from 6.16 on */
};

struct trace_event_raw_kvm_exit {
	unsigned int exit_reason;
	unsigned long guest_rip;
	u32 isa;
};

#pragma clang attribute pop

/* Bits of these move between kernels: read them with bpf_core_enum_value(). */
enum scx_enq_flags {
	SCX_ENQ_WAKEUP = 1,
	SCX_ENQ_HEAD = 16,
	SCX_ENQ_PREEMPT = 1ull << 32,
	SCX_ENQ_REENQ = 1ull << 40,
	SCX_ENQ_LAST = 1ull << 41,
};

enum scx_ent_flags {
	SCX_TASK_QUEUED = 1,
};

enum scx_dsq_iter_flags {
	SCX_DSQ_ITER_REV = 1u << 16,
};

enum scx_kick_flags {
	SCX_KICK_IDLE = 1,
	SCX_KICK_PREEMPT = 2,
};

enum scx_pick_idle_cpu_flags {
	SCX_PICK_IDLE_CORE = 1,
};

/* These are part of sched_ext's ABI: they are written into struct_ops, or name built-in queues. */
#define SCX_OPS_ENQ_LAST (1ull << 1)
#define SCX_DSQ_GLOBAL ((1ull << 63) | 1)
#define SCX_DSQ_LOCAL ((1ull << 63) | 2)

#define PF_EXITING 0x00000004u
#define PF_KTHREAD 0x00200000u
#define CLOCK_MONOTONIC 1
#define ENOMEM 12
#define ENODEV 19

struct bpf_timer {
	u64 opaque[2];
} __attribute__((aligned(8)));

struct bpf_iter_num {
	u64 opaque[1];
} __attribute__((aligned(8)));

struct bpf_iter_scx_dsq {
	u64 opaque[6];
} __attribute__((aligned(8)));

/* The members that are set; libbpf finds each by its name in the kernel's own struct. */
struct sched_ext_ops {
	s32 (*select_cpu)(struct task_struct *p, s32 prev_cpu, u64 wake_flags);
	void (*enqueue)(struct task_struct *p, u64 enq_flags);
	void (*dispatch)(s32 cpu, struct task_struct *prev);
	void (*runnable)(struct task_struct *p, u64 enq_flags);
	void (*running)(struct task_struct *p);
	void (*stopping)(struct task_struct *p, bool runnable);
	void (*tick)(struct task_struct *p);
	void (*quiescent)(struct task_struct *p, u64 deq_flags);
	bool (*yield)(struct task_struct *from, struct task_struct *to);
	void (*cpu_release)(s32 cpu, struct scx_cpu_release_args *args);
	s32 (*init_task)(struct task_struct *p, struct scx_init_task_args *args);
	void (*enable)(struct task_struct *p);
	void (*exit_task)(struct task_struct *p, struct scx_exit_task_args *args);
	s32 (*init)(void);
	void (*exit)(struct scx_exit_info *info);
	u64 flags;
	u32 timeout_ms;
	u64 hotplug_seq; /* of the look at the pCPUs; 0: never mind */
	char name[128];
};

#endif
