// SPDX-License-Identifier: GPL-2.0-only
/*
 * Runs a command as a real-time task: what busybox has no word for.
 *
 *   realtime PRIORITY COMMAND...    SCHED_FIFO, 1 to 99
 */
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

int main(int argc, char **argv)
{
	struct sched_param param = {.sched_priority = argc > 1 ? atoi(argv[1]) : 0};

	if (argc < 3 || sched_setscheduler(0, SCHED_FIFO, &param)) {
		fprintf(stderr, "realtime: give a priority from 1 to 99 and a command; needs CAP_SYS_NICE\n");
		return 2;
	}
	execvp(argv[2], argv + 2);
	perror(argv[2]);
	return 127;
}
