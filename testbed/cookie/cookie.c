// SPDX-License-Identifier: GPL-2.0-only
/*
 * Asks the kernel for a core-scheduling cookie of its own, and for the one that it has
 * (include/uapi/linux/prctl.h).
 *
 *   cookie      prints a line for each: "create: ANSWER", "get: ANSWER"; ANSWER is "granted", or the error
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>

#define PR_SCHED_CORE 62
#define GET 0
#define CREATE 1
#define ONE_TASK 0

static void ask(const char *what, int command, unsigned long long *cookie)
{
	int result = prctl(PR_SCHED_CORE, command, 0, ONE_TASK, cookie);

	printf("%s: %s\n", what, result ? strerror(errno) : "granted");
}

int main(void)
{
	unsigned long long cookie = 0;

	ask("create", CREATE, NULL);
	ask("get", GET, &cookie);
	return 0;
}
