// SPDX-License-Identifier: GPL-2.0-only
/*
 * How many balloons a vCPU gets: `balloons SHARE SHARE_MOST SHARE_SUM THREADS` prints it; `balloons NS
 * ELAPSED_NS` the share.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

typedef uint32_t u32;
typedef uint64_t u64;

#include "../balloon/balloons.h"

int main(int argc, char **argv)
{
	u64 given[4] = {0};

	for (int i = 1; i < argc && i <= 4; i++)
		given[i - 1] = strtoull(argv[i], NULL, 10);
	if (argc == 3)
		printf("%u\n", share_of(given[0], given[1]));
	else if (argc == 5)
		printf("%u\n", balloons_due(given[0], given[1], given[2], given[3]));
	return argc != 3 && argc != 5;
}
