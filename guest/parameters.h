/* SPDX-License-Identifier: GPL-2.0-only */
/* Parameters of modules that are only read. */
#ifndef GUEST_PARAMETERS_H
#define GUEST_PARAMETERS_H

#include <linux/moduleparam.h>

/* What insmod is told is set without a look at the parameter's mode: parse_one(), kernel/params.c, 6.18. */
static inline int set_nothing(const char *text, const struct kernel_param *param)
{
	return -EPERM;
}

#endif
