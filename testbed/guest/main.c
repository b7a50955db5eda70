// SPDX-License-Identifier: GPL-2.0-only
/*
 * The testbed's guest: the init process of an unmodified kernel, and the loads that it runs.
 *
 * What to do comes on the kernel's command line, which hands unknown words to init as environment:
 *   WORKLOAD=load[:count],…   hog dozer sleeper shootdown storm lock wake worker build collector pingpong
 *                             heartbeat kallsyms counts torture locks spinlocks crowd balloons costs, or
 *                             `mix` (default count: a thread per vCPU; one for wake and pingpong; ten for
 *                             crowd; seconds of torture, locks and spinlocks)
 *   NETWORK=10.77.1           the first three numbers of its network: the host is .1, the guest .2
 *   WINDOW_MS=1000            length of a reporting window, in guest time
 * Everything it measures it prints as JSON lines on its virtio port: {"ready"}, {"heartbeat"}, {"window"},
 * {"kallsyms"}, {"counts"}.
 *
 * Run on a host as `workload echo [PORT]` it answers the guests' datagrams, and as `workload switches` it
 * tells what a switch takes.
 */
#define _GNU_SOURCE
#include "loads.h"
#include "stats.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static int windows_wanted;

static void load_modules(void)
{
	struct dirent **files;
	int count =
	    scandir("/modules", &files, NULL, alphasort); /* numbered in the order of their dependencies */

	for (int i = 0; i < count; i++) {
		char path[512];
		int fd;

		if (files[i]->d_name[0] == '.')
			continue;
		snprintf(path, sizeof(path), "/modules/%s", files[i]->d_name);
		fd = open(path, O_RDONLY | O_CLOEXEC);
		leave_guest_once();
		if (fd < 0 || (syscall(SYS_finit_module, fd, "", 0) && errno != EEXIST))
			fprintf(stderr, "guest: %s: %s\n", path, strerror(errno));
		close(fd);
	}
}

/* The port that QEMU connects to the harness. */
static int open_port(void)
{
	for (int tries = 0; tries < 200; tries++) {
		for (int device = 0; device < 4; device++) {
			char path[32];
			int fd;

			snprintf(path, sizeof(path), "/dev/vport%dp1", device);
			leave_guest_once();
			fd = open(path, O_WRONLY | O_CLOEXEC);
			if (fd >= 0)
				return fd;
		}
		usleep(50000);
	}
	fprintf(stderr, "guest: no virtio port\n");
	return STDOUT_FILENO;
}

static void build_machine(void)
{
	const char *network = getenv("NETWORK");
	char address[64];

	mount("proc", "/proc", "proc", 0, "");
	mount("sysfs", "/sys", "sysfs", 0, "");
	mount("devtmpfs", "/dev", "devtmpfs", 0, "");
	mount("tmpfs", "/tmp", "tmpfs", 0, "");
	load_modules();
	report_to(open_port());
	if (!network)
		return;
	snprintf(address, sizeof(address), "%s.2", network);
	for (int tries = 0; set_address(address) && tries < 100; tries++)
		usleep(50000);
}

static void heartbeat(long argument)
{
	struct timespec pause = {.tv_nsec = 100000000};

	(void)argument;
	for (uint64_t beat = 1;; beat++) {
		report("{\"heartbeat\":%lu}", beat);
		nanosleep(&pause, NULL);
	}
}

static void load_heartbeat(int count)
{
	(void)count;
	start_thread(heartbeat, 0, -1);
}

static const struct {
	const char *name;
	void (*start)(int count);
	int default_count; /* 0: one per vCPU */
	int measures;
} loads[] = {
    {"hog", load_hog, 0, 1},
    {"dozer", load_dozer, 0, 1},
    {"sleeper", load_sleeper, 0, 1},
    {"shootdown", load_shootdown, 0, 1},
    {"storm", load_storm, 0, 1},
    {"lock", load_lock, 0, 1},
    {"wake", load_wake, 1, 1},
    {"worker", load_worker, 0, 1},
    {"build", load_build, 0, 1},
    {"collector", load_collector, 0, 1},
    {"pingpong", load_pingpong, 1, 1},
    {"heartbeat", load_heartbeat, 1, 0},
    {"kallsyms", print_kallsyms, 1, 0},
    {"counts", print_counts, 1, 0},
    {"torture", load_torture, 5, 0},
    {"locks", load_locks, 5, 0},
    {"spinlocks", load_spinlocks, 5, 0},
    {"crowd", load_crowd, 10, 0},
    {"balloons", load_balloons, 1, 0},
    {"costs", load_costs, 0, 0},
};

static void start_load(const char *word)
{
	int vcpus = sysconf(_SC_NPROCESSORS_ONLN);
	size_t length = strcspn(word, ":");
	int count = word[length] ? atoi(word + length + 1) : 0;

	for (size_t i = 0; i < sizeof(loads) / sizeof(loads[0]); i++) {
		if (strlen(loads[i].name) != length || strncmp(loads[i].name, word, length))
			continue;
		if (count < 1)
			count = loads[i].default_count ? loads[i].default_count : vcpus;
		windows_wanted |= loads[i].measures;
		loads[i].start(count);
		return;
	}
	report("{\"error\":\"no load is called %.32s\"}", word);
}

static void start_loads(const char *workload)
{
	char words[512];

	snprintf(words, sizeof(words), "%s", workload);
	for (char *word = strtok(words, ","); word; word = strtok(NULL, ",")) {
		if (strcmp(word, "mix")) {
			start_load(word);
			continue;
		}
		start_load("collector");
		start_load("wake");
		start_load("pingpong");
	}
}

int main(int argc, char **argv)
{
	const char *workload, *window;
	struct timespec length = {.tv_sec = 1};

	if (argc > 1 && !strcmp(argv[1], "echo"))
		return serve_echo(argc > 2 ? atoi(argv[2]) : 0);
	if (argc > 1 && !strcmp(argv[1], "switches"))
		return measure_switches();
	if (getpid() != 1) {
		fprintf(stderr, "usage: %s echo [PORT] | switches   (anything else is for guests)\n",
			argv[0]);
		return 2;
	}
	build_machine();
	workload = getenv("WORKLOAD");
	if (!workload)
		workload = "heartbeat";
	report("{\"ready\":\"%.200s\"}", workload);
	start_loads(workload);
	window = getenv("WINDOW_MS");
	if (window && atoi(window) > 0)
		length = (struct timespec){.tv_sec = atoi(window) / 1000,
					   .tv_nsec = atoi(window) % 1000 * 1000000L};
	for (;;) {
		nanosleep(&length, NULL);
		if (windows_wanted)
			report_window();
	}
}
