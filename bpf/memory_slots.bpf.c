// SPDX-License-Identifier: GPL-2.0-only
/*
 * Where a VMM's process has its guest's memory: KVM's memory slots, read from the kernel. An object of its
 * own, loaded where a guest's memory is read; the scheduler itself doesn't need it.
 *
 * Problem.   Only KVM knows which of a VMM's mappings are guest RAM; user space has no call that asks for
 *            them.
 * Mechanism. An iterator over the files of one process: the files of KVM's virtual machines are told by their
 *            inode, and each one's active memory slots are written out as `struct memory_slot_record`. Any
 *            VMM, VMX or SVM.
 * Races.     Nothing is locked: a VMM that plugs memory at this moment may give a list that mixes old and
 *            new. The reader drops what doesn't fit together, and what it reads there is believed only where
 *            it proves itself.
 * Limits.    RECORDS_MAX slots of a VM, because one file's records must fit into the iterator's buffer of 32
 *            KiB; slots smaller than SLOT_PAGES_MIN (ROMs) are left out. Linux 6.4 or newer (open-coded
 *            iterators).
 */
#include "bpf/core/vmlinux.h"
#include "bpf/memory_slots.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>
#include <bpf/bpf_core_read.h>

#define ANON_INODE_FS_MAGIC 0x09041934ul
#define SLOT_PAGES_MIN 64u
/* Most buckets of the hash table that are walked (Linux has 128), and most slots in one of them. */
#define BUCKETS_MAX 1024u
#define BUCKET_SLOTS_MAX 512u
#define RECORDS_MAX 1000u

/*
 * Records of the present file. Not on the stack: a counter that grows in a register makes each turn of a loop
 * a new state to the verifier. One object serves one reader.
 */
static u32 written;

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct mm_struct;

struct task_struct___with_memory {
	struct mm_struct *mm;
};

struct super_block {
	unsigned long s_magic;
};

struct inode {
	struct super_block *i_sb;
};

struct qstr {
	const unsigned char *name;
};

struct dentry {
	struct qstr d_name;
};

struct path {
	struct dentry *dentry;
};

struct file {
	struct inode *f_inode;
	struct path f_path;
	void *private_data;
};

struct kvm_memory_slot {
	struct hlist_node id_node[2];
	u64 base_gfn;
	unsigned long npages;
	unsigned long userspace_addr;
};

struct kvm_memslots {
	struct hlist_head id_hash[128];
	int node_idx;
};

struct kvm {
	struct mm_struct *mm;
	struct kvm_memslots *memslots[2];
};

struct seq_file;

struct bpf_iter_meta {
	struct seq_file *seq;
};

struct bpf_iter__task_file {
	struct bpf_iter_meta *meta;
	struct task_struct *task;
	u32 fd;
	struct file *file;
};

#pragma clang attribute pop

/* An anonymous inode's name is the kernel's own: no user makes a file of that name on that file system. */
static __always_inline bool is_kvm_vm(struct file *file)
{
	static const char expected[] = "kvm-vm";
	char name[sizeof(expected)] = {};
	u32 at;

	if (BPF_CORE_READ(file, f_inode, i_sb, s_magic) != ANON_INODE_FS_MAGIC)
		return false;
	if (bpf_probe_read_kernel_str(name, sizeof(name), BPF_CORE_READ(file, f_path.dentry, d_name.name)) !=
	    sizeof(expected))
		return false;
	for (at = 0; at < sizeof(expected); at++)
		if (name[at] != expected[at])
			return false;
	return true;
}

/* The slot whose node `node` is; nodes are embedded, the one in use is `id_node[node_index]`. */
static __always_inline struct kvm_memory_slot *slot_of(struct hlist_node *node, u32 node_index)
{
	u64 offset = bpf_core_field_offset(struct kvm_memory_slot, id_node);

	return (void *)((u64)node - offset - node_index * bpf_core_type_size(struct hlist_node));
}

SEC("iter/task_file")
int memory_slots(struct bpf_iter__task_file *ctx)
{
	u32 bucket, at, node_index, bucket_count;
	struct task_struct *task = ctx->task;
	struct file *file = ctx->file;
	struct kvm_memslots *slots;
	struct kvm *kvm;

	/* Without KVM in the kernel, its types are unknown, and there are no VMs. */
	if (!bpf_core_type_exists(struct kvm_memslots))
		return 0;
	if (!task || !file || !is_kvm_vm(file))
		return 0;
	kvm = BPF_CORE_READ(file, private_data);
	/*
	 * Addresses are of the process that made the VM; one that was only handed the file has others there.
	 */
	if (BPF_CORE_READ(kvm, mm) != BPF_CORE_READ((struct task_struct___with_memory *)task, mm))
		return 0;
	written = 0;
	slots = BPF_CORE_READ(kvm, memslots[0]);
	node_index = BPF_CORE_READ(slots, node_idx) & 1;
	bucket_count = bpf_core_field_size(struct kvm_memslots, id_hash) / sizeof(struct hlist_head);
	bpf_for (bucket, 0, BUCKETS_MAX) {
		u64 head = (u64)slots + bpf_core_field_offset(struct kvm_memslots, id_hash);
		struct hlist_node *node = NULL;

		if (bucket >= bucket_count)
			break;
		bpf_probe_read_kernel(&node, sizeof(node), (void *)(head + bucket * sizeof(node)));
		bpf_for (at, 0, BUCKET_SLOTS_MAX) {
			struct memory_slot_record record = {};
			struct kvm_memory_slot *slot;

			if (!node || written >= RECORDS_MAX)
				break;
			slot = slot_of(node, node_index);
			record.fd = ctx->fd;
			record.base_page = BPF_CORE_READ(slot, base_gfn);
			record.page_count = BPF_CORE_READ(slot, npages);
			record.userspace_addr = BPF_CORE_READ(slot, userspace_addr);
			if (record.page_count >= SLOT_PAGES_MIN) {
				bpf_seq_write(ctx->meta->seq, &record, sizeof(record));
				written++;
			}
			node = BPF_CORE_READ(node, next);
		}
	}
	return 0;
}

char LICENSE[] SEC("license") = "GPL";
