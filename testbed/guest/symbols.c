// SPDX-License-Identifier: GPL-2.0-only
/* What the kernel itself says of where it lies, for checking what was found from outside. */
#define _GNU_SOURCE
#include "loads.h"
#include "stats.h"

#include <elf.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define SEGMENTS_MAX 64
#define CPUS_MAX 64
/* Of `pcpu_hot`, from 6.2 until 6.13 (arch/x86/include/asm/current.h). */
#define COUNT_IN_PCPU_HOT 8

struct symbol {
	const char *name;
	uint64_t address; /* 0: there is none */
};

static void look_up(struct symbol *symbols, int count)
{
	FILE *kallsyms = fopen("/proc/kallsyms", "re");
	char line[512];

	while (kallsyms && fgets(line, sizeof(line), kallsyms)) {
		unsigned long address;
		char type, name[256];

		if (sscanf(line, "%lx %c %255s", &address, &type, name) != 3)
			continue;
		for (int i = 0; i < count; i++)
			if (!symbols[i].address && !strcmp(name, symbols[i].name))
				symbols[i].address = address;
	}
	if (kallsyms)
		fclose(kallsyms);
}

void print_kallsyms(int count)
{
	struct symbol symbols[] = {{"_text", 0}, {"entry_SYSCALL_64", 0}};

	(void)count;
	look_up(symbols, 2);
	report("{\"kallsyms\":{\"_text\":\"%lx\",\"entry_SYSCALL_64\":\"%lx\"}}", symbols[0].address,
	       symbols[1].address);
}

/* Parts of the kernel's address space, as /proc/kcore shows them. */
static Elf64_Phdr segments[SEGMENTS_MAX];
static int segment_count;

static int open_kcore(void)
{
	Elf64_Ehdr header;
	int kcore = open("/proc/kcore", O_RDONLY | O_CLOEXEC);

	if (kcore < 0 || pread(kcore, &header, sizeof(header), 0) != sizeof(header))
		return -1;
	segment_count = header.e_phnum < SEGMENTS_MAX ? header.e_phnum : SEGMENTS_MAX;
	if (pread(kcore, segments, segment_count * sizeof(*segments), header.e_phoff) < 0)
		return -1;
	return kcore;
}

static const Elf64_Phdr *segment_of(uint64_t address)
{
	for (int i = 0; i < segment_count; i++)
		if (segments[i].p_type == PT_LOAD && address - segments[i].p_vaddr < segments[i].p_memsz)
			return &segments[i];
	return NULL;
}

static uint64_t read_kernel(int kcore, uint64_t address)
{
	const Elf64_Phdr *segment = segment_of(address);
	uint64_t value = 0;

	if (!segment ||
	    pread(kcore, &value, sizeof(value), segment->p_offset + address - segment->p_vaddr) < 0)
		return 0;
	return value;
}

/* The physical address of each CPU's preempt_count, by the kernel's own tables; 0: it isn't said. */
void print_counts(int count)
{
	struct symbol symbols[] = {{"__per_cpu_offset", 0}, {"__preempt_count", 0}, {"pcpu_hot", 0}};
	uint64_t word;
	int kcore = open_kcore(), cpus = sysconf(_SC_NPROCESSORS_ONLN);
	char text[CPUS_MAX * 24] = "";

	(void)count;
	look_up(symbols, 3);
	word = symbols[1].address ? symbols[1].address : symbols[2].address + COUNT_IN_PCPU_HOT;
	for (int cpu = 0; cpu < cpus && cpu < CPUS_MAX; cpu++) {
		uint64_t own = word + read_kernel(kcore, symbols[0].address + cpu * sizeof(uint64_t));
		const Elf64_Phdr *segment = segment_of(own);
		uint64_t physical = segment ? segment->p_paddr + own - segment->p_vaddr : 0;

		sprintf(text + strlen(text), "%s\"0x%lx\"", cpu ? "," : "", physical);
	}
	report("{\"counts\":[%s]}", text);
	close(kcore);
}
