// SPDX-License-Identifier: GPL-2.0-only
/*
 * Makes a thread real-time, as an operator does with chrt, which the emulated host hasn't.
 *
 *   real-time PRIORITY TID      by SCHED_FIFO; 0: an ordinary one again
 */
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>

int main(int count, char **words)
{
	struct sched_param parameters = {};
	int policy;

	if (count != 3)
		return 2;
	parameters.sched_priority = atoi(words[1]);
	policy = parameters.sched_priority ? SCHED_FIFO : SCHED_OTHER;
	if (sched_setscheduler(atoi(words[2]), policy, &parameters)) {
		perror("real-time");
		return 1;
	}
	return 0;
}
