// SPDX-License-Identifier: GPL-2.0-only
/*
 * The smallest VMM: so many VMs of so many vCPUs that halt, sleep a second, and halt again, or that spin. For
 * measuring what vCPUs cost those that watch and schedule them. Each VM is a process, as with real VMMs; all
 * end with this one.
 *
 *   vcpus VMS VCPUS [spin [busy=THREADS | naps | faults | kernel | mixed | keeps=US | hints=US | forged=US]]
 *   vcpus 1 VCPUS beats -name=NAME                   vCPUs that count in memory, of a VM that is called
 *                                                    NAME; reports as testbed/guest/main.c does
 *   vcpus VMS VCPUS leave                            vCPUs that end after some halts; each VMM then
 *                                                    closes its VM, prints "left", and lives on
 *   vcpus VMS VCPUS pauses | interrupts | slides     vCPUs that mean ill (hostile.h)
 *   vcpus naps                                       has no VM: to compare with
 *
 * Spinning vCPUs run in the lower half of the address space, where user mode is; with "kernel" in the upper
 * half, in long mode; with "mixed" in both, turn about. Whether they may do what a kernel may isn't what a
 * host sees of them.
 *
 * With a number of microseconds a VM has a hint page (guest/hints/hint_page.h): its vCPUs say all the time
 * that they aren't to be preempted for so long, with "hints" turn about with nothing; with "forged" in a page
 * of a version that nobody knows.
 *
 * Prints "ready" once all vCPUs halted, or are about to spin. Busy threads of the VMM compute all the time;
 * one that naps sleeps for 10 ms, works for some microseconds, and prints each second by how much it was
 * woken too late on average: "late 120 us". With faults the vCPUs touch pages that a thread of the VMM takes
 * away all the time. It prints each second how long that took at most: "waited 120 us".
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/kvm.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

typedef unsigned char u8;
typedef unsigned int u32;
typedef unsigned long long u64;
#include "../../guest/hints/hint_page.h"
#include "hostile.h"

#define PAGE 4096
/* No interrupt comes, but Bochs lets nothing stop a vCPU that has them off. */
#define INTERRUPTS_ON 0x202
/* Real mode: hlt; jmp to it. */
static const unsigned char halting[] = {0xf4, 0xeb, 0xfd};
static const unsigned char spinning[] = {0xeb, 0xfe, 0xcc};
/*
 * Real mode: inc dword [BEATS]; jmp to it. In a page without code, where real mode has no use for tables.
 * QEMU translates what lies beside a write anew.
 */
#define BEATS 0x3800
static const unsigned char counting[] = {0x66, 0xff, 0x06, BEATS & 0xff, BEATS >> 8, 0xeb, 0xf9};
/*
 * Real mode: mov bx, FAULTS; mov [bx], al; add bx, PAGE; jnz to the second, below 64 KiB; jmp to the first.
 */
#define FAULTS 0x8000
#define FAULTS_END 0x10000
static const unsigned char touching[] = {0xbb, FAULTS & 0xff, FAULTS >> 8, 0x88, 0x07, 0x81, 0xc3,
					 0x00, PAGE >> 8,     0x75,	   0xf8, 0xeb, 0xf3};

/* Long mode: both halves of the address space show the first 2 MiB of memory. */
#define UPPER_HALF 0xffffffff80000000ul
enum { CODE = PAGE, PML4 = 2 * PAGE, PDPT = 3 * PAGE, PD = 4 * PAGE, MEMORY = 4 * PAGE };
/* Of a VM with a hint page: that, and enough memory for a daemon to look into. */
enum { HINTS = 32 * PAGE, MEMORY_WITH_HINTS = 128 * PAGE };
/* Present, writable, accessed, dirty; of 2 MiB. */
#define TABLE 0x63ul
#define HUGE_PAGE 0xe3ul
#define CR0_PE_ET_NE_PG 0x80000031ul
#define CR4_PAE 0x20ul
#define EFER_LME_LMA 0x500ul
/*
 * So often it counts in each half: milliseconds, emulated; and with a hint, which is to be shorter than a
 * window.
 */
#define COUNTS 200000u
#define COUNTS_WITH_HINT 20000u

/* A second each. */
#define HALTS_OF_WHO_LEAVES 5

static int kvm, vm, ready;
static bool spins, beats, leaves, naps, faults, in_kernel, mixed, takes_back, forged;
static enum hostility hostility;
static unsigned int not_now_us;
static long busy;
static unsigned char *memory_of_vm;

/* Where a kernel's name stands, of guests that change it. */
#define NAME 0x200
/* Between two halts of a guest that means ill. */
#define HOSTILE_NAP_US 1000

static void die(const char *what)
{
	perror(what);
	_exit(1);
}

/* mov dword [rbx], US */
static unsigned char *write_hint(unsigned char *at, unsigned int us)
{
	memcpy(at, "\xc7\x03", 2);
	memcpy(at + 2, &us, sizeof(us));
	return at + 2 + sizeof(us);
}

static void write_hint_page(unsigned char *page, long vcpu_count)
{
	struct hint_head head = {
	    .version = HINT_VERSION + (forged ? 8 : 0), .vcpu_count = vcpu_count, .guest_physical = HINTS};

	memcpy(head.signature, HINT_SIGNATURE, sizeof(head.signature));
	memcpy(page, &head, sizeof(head));
}

/* mov ecx, COUNTS; dec ecx; jnz back; mov rax, the other half; jmp rax */
static void write_counting(unsigned char *at, unsigned long next)
{
	const unsigned int counts = not_now_us ? COUNTS_WITH_HINT : COUNTS;

	*at++ = 0xb9;
	memcpy(at, &counts, sizeof(counts));
	at += sizeof(counts);
	memcpy(at, "\xff\xc9\x75\xfc\x48\xb8", 6);
	at += 6;
	memcpy(at, &next, sizeof(next));
	memcpy(at + sizeof(next), "\xff\xe0", 2);
}

static void write_memory(unsigned char *memory, long vcpu_count)
{
	unsigned long *pml4 = (void *)(memory + PML4 - PAGE), *pdpt = (void *)(memory + PDPT - PAGE),
		      *pd = (void *)(memory + PD - PAGE);

	memcpy(memory, spins ? spinning : halting, sizeof(halting));
	if (beats)
		memcpy(memory, counting, sizeof(counting));
	if (faults)
		memcpy(memory, touching, sizeof(touching));
	if (mixed) {
		write_counting(memory, CODE + 64);
		write_counting(memory + 64, UPPER_HALF + CODE);
	}
	if (not_now_us) {
		write_counting(write_hint(memory, not_now_us), CODE + 64);
		write_counting(write_hint(memory + 64, takes_back ? 0 : not_now_us), CODE);
		write_hint_page(memory + HINTS - PAGE, vcpu_count);
	}
	pml4[0] = pml4[511] = PDPT | TABLE;
	pdpt[0] = pdpt[510] = PD | TABLE;
	for (int entry = 0; entry < (hostility == SLIDES ? 512 : 1); entry++)
		pd[entry] = HUGE_PAGE;
	write_hostile_code(hostility, memory, CODE);
}

static void enter_long_mode(struct kvm_sregs *sregs)
{
	struct kvm_segment segment = {.limit = 0xffffffff, .type = 3, .present = 1, .s = 1, .g = 1, .db = 1};

	sregs->ds = sregs->es = sregs->ss = segment;
	segment.type = 11;
	segment.db = 0;
	segment.l = 1;
	segment.selector = 8;
	sregs->cs = segment;
	sregs->cr0 = CR0_PE_ET_NE_PG;
	sregs->cr3 = PML4;
	sregs->cr4 = CR4_PAE;
	sregs->efer = EFER_LME_LMA;
}

static void *run_vcpu(void *id)
{
	int vcpu = ioctl(vm, KVM_CREATE_VCPU, (long)id);
	int bytes = ioctl(kvm, KVM_GET_VCPU_MMAP_SIZE, 0);
	struct kvm_regs regs = {.rip = PAGE, .rflags = INTERRUPTS_ON, .rbx = HINTS + hint_offset((long)id)};
	struct kvm_sregs sregs;
	struct kvm_run *run;

	if (vcpu < 0 || bytes < 0 || prctl(PR_SET_NAME, "vcpu"))
		die("KVM_CREATE_VCPU");
	run = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, vcpu, 0);
	if (run == MAP_FAILED || ioctl(vcpu, KVM_GET_SREGS, &sregs))
		die("vCPU state");
	sregs.cs.base = 0;
	sregs.cs.selector = 0;
	if (in_kernel || mixed || not_now_us || hostility == SLIDES)
		enter_long_mode(&sregs);
	if (in_kernel || mixed || hostility == SLIDES)
		regs.rip = regs.rbx = UPPER_HALF + CODE;
	if (hostility == INTERRUPTS)
		regs.rsp = HOSTILE_STACK;
	if (prepare_hostile_vcpu(hostility, kvm, vcpu, CODE, &sregs))
		die("vCPU that means ill");
	if (ioctl(vcpu, KVM_SET_SREGS, &sregs) || ioctl(vcpu, KVM_SET_REGS, &regs))
		die("vCPU state");
	if (spins && write(ready, "", 1) != 1)
		die("pipe");
	for (int halts = 0; !leaves || halts < HALTS_OF_WHO_LEAVES; halts++) {
		/* A stop and its end interrupt it. */
		while (ioctl(vcpu, KVM_RUN, 0))
			if (errno != EINTR)
				die("KVM_RUN");
		if (run->exit_reason != KVM_EXIT_HLT) {
			fprintf(stderr, "a vCPU ended: exit reason %u, suberror %u\n", run->exit_reason,
				run->internal.suberror);
			_exit(1);
		}
		if (!halts && write(ready, "", 1) != 1)
			die("pipe");
		if (hostility == SLIDES) {
			rename_kernel((char *)memory_of_vm + NAME);
			usleep(HOSTILE_NAP_US);
		} else {
			sleep(1);
		}
	}
	if (munmap(run, bytes) || close(vcpu))
		die("the end of a vCPU");
	return NULL;
}

static void *compute(void *unused)
{
	for (volatile unsigned long n = 0;; n++)
		;
	return unused;
}

#define NAP_NS 10000000L
#define NAPS_A_LINE 100

static long ns_since(const struct timespec *start)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (now.tv_sec - start->tv_sec) * 1000000000L + now.tv_nsec - start->tv_nsec;
}

static void *nap(void *unused)
{
	const struct timespec length = {.tv_nsec = NAP_NS};

	for (;;) {
		long late_ns = 0;

		for (int naps_left = NAPS_A_LINE; naps_left; naps_left--) {
			struct timespec start;

			clock_gettime(CLOCK_MONOTONIC, &start);
			nanosleep(&length, NULL);
			late_ns += ns_since(&start) - NAP_NS;
			for (volatile int n = 0; n < 1000; n++)
				;
		}
		printf("late %ld us\n", late_ns / NAPS_A_LINE / 1000);
		fflush(stdout);
	}
	return unused;
}

/* Whoever changes what is mapped waits for all that look for a page. */
static void *take_pages_away(void *unused)
{
	for (;;) {
		struct timespec second, start;
		long longest_ns = 0;

		clock_gettime(CLOCK_MONOTONIC, &second);
		while (ns_since(&second) < 1000000000L) {
			void *page;
			long ns;

			if (madvise(memory_of_vm + FAULTS - PAGE, FAULTS_END - FAULTS, MADV_DONTNEED))
				die("madvise");
			clock_gettime(CLOCK_MONOTONIC, &start);
			page = mmap(NULL, PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
			if (page == MAP_FAILED || munmap(page, PAGE))
				die("mmap");
			ns = ns_since(&start);
			longest_ns = ns > longest_ns ? ns : longest_ns;
			usleep(3000);
		}
		printf("waited %ld us\n", longest_ns / 1000);
		fflush(stdout);
	}
	return unused;
}

/* A heartbeat is a tenth of a second in whose second a vCPU has run. Reports come each second. */
#define BEATS_A_REPORT 10

/* All vCPUs run: reports of them until this process ends. */
static void report_beats(void)
{
	const volatile u32 *counted = (void *)(memory_of_vm + BEATS - PAGE);
	unsigned long heartbeat = 0;
	u32 before = *counted;

	puts("{\"ready\": true}");
	for (;;) {
		fflush(stdout);
		sleep(1);
		if (*counted != before)
			heartbeat += BEATS_A_REPORT;
		before = *counted;
		printf("{\"heartbeat\": %lu}\n", heartbeat);
	}
}

/* Waits until so many vCPUs have halted, or are about to spin. */
static void await_vcpus(int end, long left)
{
	char byte;

	for (; left > 0; left--)
		if (read(end, &byte, 1) != 1)
			die("a vCPU");
}

/* The last holder closes the VM: this thread frees its vCPUs, and ran none of them. */
static void leave(const pthread_t *threads, long vcpu_count)
{
	for (long id = 0; id < vcpu_count; id++)
		if (pthread_join(threads[id], NULL))
			die("pthread_join");
	if (close(vm))
		die("the end of a VM");
	puts("left");
	fflush(stdout);
}

static void start_vm(long vcpu_count)
{
	const unsigned long bytes = not_now_us || faults ? MEMORY_WITH_HINTS : MEMORY;
	void *page = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct kvm_userspace_memory_region memory = {
	    .guest_phys_addr = PAGE, .memory_size = bytes, .userspace_addr = (unsigned long)page};
	pthread_t *threads = calloc(vcpu_count, sizeof(*threads)), thread;
	pthread_attr_t small;

	if (page == MAP_FAILED || !threads)
		die("memory");
	memory_of_vm = page;
	write_memory(page, vcpu_count);
	vm = ioctl(kvm, KVM_CREATE_VM, 0);
	if (vm < 0 || ioctl(vm, KVM_SET_USER_MEMORY_REGION, &memory) || prepare_hostile_vm(hostility, vm))
		die("KVM_CREATE_VM");
	pthread_attr_init(&small);
	pthread_attr_setstacksize(&small, 64 << 10);
	for (long id = 0; id < vcpu_count; id++)
		if (pthread_create(&threads[id], &small, run_vcpu, (void *)id))
			die("pthread_create");
	for (long n = 0; n < busy; n++)
		if (pthread_create(&thread, &small, compute, NULL))
			die("pthread_create");
	if (naps && pthread_create(&thread, &small, nap, NULL))
		die("pthread_create");
	if (faults && pthread_create(&thread, &small, take_pages_away, NULL))
		die("pthread_create");
	if (leaves)
		leave(threads, vcpu_count);
}

static void run_vm(long vcpu_count)
{
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	start_vm(vcpu_count);
	for (;;)
		pause();
}

int main(int count, char **arguments)
{
	long vm_count = count >= 3 ? atol(arguments[1]) : 0, vcpu_count = count >= 3 ? atol(arguments[2]) : 0;
	int ends[2];

	hostility = count == 4 ? hostility_of(arguments[3]) : NO_HOSTILITY;
	beats = count == 5 && vm_count == 1 && !strcmp(arguments[3], "beats");
	spins = beats || (count >= 4 && !strcmp(arguments[3], "spin")) || hostility == PAUSES ||
		hostility == INTERRUPTS;
	leaves = count == 4 && !strcmp(arguments[3], "leave");
	naps = count == 5 && !strcmp(arguments[4], "naps");
	faults = count == 5 && !strcmp(arguments[4], "faults");
	in_kernel = count == 5 && !strcmp(arguments[4], "kernel");
	mixed = count == 5 && !strcmp(arguments[4], "mixed");
	if (count == 5 && !strncmp(arguments[4], "busy=", 5))
		busy = atol(arguments[4] + 5);
	takes_back = count == 5 && !strncmp(arguments[4], "hints=", 6);
	forged = count == 5 && !strncmp(arguments[4], "forged=", 7);
	if (takes_back || forged || (count == 5 && !strncmp(arguments[4], "keeps=", 6)))
		not_now_us = atol(strchr(arguments[4], '=') + 1);
	if (count == 2 && !strcmp(arguments[1], "naps"))
		nap(NULL);
	if (vm_count < 1 || vcpu_count < 1 || count > 5 || (count >= 4 && !spins && !leaves && !hostility) ||
	    (count == 5 && !beats && !naps && !faults && !in_kernel && !mixed && !not_now_us && busy < 1)) {
		fputs("usage: vcpus VMS VCPUS [leave | pauses | interrupts | slides | spin [busy=THREADS | "
		      "naps | faults | kernel | mixed | keeps=US | "
		      "hints=US | forged=US]], vcpus 1 VCPUS beats -name=NAME, or vcpus naps\n",
		      stderr);
		return 2;
	}
	kvm = open("/dev/kvm", O_RDWR);
	if (kvm < 0 || pipe(ends))
		die("/dev/kvm");
	ready = ends[1];
	if (beats) {
		/* In this process, which is what is stopped and killed. */
		prctl(PR_SET_NAME, "bare-guest");
		start_vm(vcpu_count);
		await_vcpus(ends[0], vcpu_count);
		report_beats();
	}
	for (long i = 0; i < vm_count; i++)
		if (!fork())
			run_vm(vcpu_count);
	await_vcpus(ends[0], vm_count * vcpu_count);
	puts("ready");
	fflush(stdout);
	for (;;)
		pause();
}
