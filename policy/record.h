/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Record: pairs of observation and decision, so that a run of the real scheduler can be replayed elsewhere.
 *
 * Problem.   "The simulator runs the same policy" is only a claim until the decisions are compared.
 * Mechanism. The real host writes a record of each decision. A replay (crates/policy) makes the decision
 *            again from the observation, and compares them bit for bit. A record holds everything that its
 *            decision depends on.
 * Limits.    Records are little-endian and have one fixed size. RECORD_VERSION changes with any of their
 *            fields.
 */
#ifndef POLICY_RECORD_H
#define POLICY_RECORD_H

#include "accelerate.h"
#include "balance.h"
#include "boost_budget.h"
#include "cpu_limit.h"
#include "delay_preemption.h"
#include "fair_share.h"
#include "heirs.h"
#include "held.h"
#include "pool_size.h"
#include "urgent.h"
#include "urgent_events.h"

#define RECORD_VERSION 22u
/* The number of slots for guest kernels. Slot 0 holds the code of guests without symbols. */
#define GUEST_CODES_MAX 64u

enum record_kind {
	RECORD_CLASSIFY = 0,
	RECORD_YIELD = 1,
	RECORD_SIBLING = 2,
	RECORD_SPINNER = 3,
	RECORD_INTERRUPT = 4,
	RECORD_PLACEMENT = 5,
	RECORD_MICRO_SLICE = 6,
	RECORD_WAKEUP = 7,
	RECORD_POOL_SIZE = 8,
	RECORD_TURN = 9,
	RECORD_WOKEN = 10,
	RECORD_LIMIT = 11,
	RECORD_HOME = 12,
	RECORD_WINDOW = 13,
	RECORD_BOOST = 14,
	RECORD_IPI = 15,
	RECORD_URGENT = 16,
	RECORD_URGENT_TURN = 17,
	RECORD_CANDIDATE = 18,
	RECORD_HELD = 19,
	RECORD_HEIR = 20,
	RECORD_KIND_COUNT = 21,
};

struct classify_record {
	u64 rip;
	struct guest_layout layout;
	u32 code_id; /* the slot of the guest_code; the newest that the recording has for it counts */
	enum guest_class guest_class;
};

struct sibling_record {
	struct sibling_observation seen;
	enum pass_scope scope;
	enum sibling_decision decision;
};

struct spinner_record {
	struct accelerate_config config;
	struct spinner_observation seen;
	enum spinner_decision decision;
	u32 reserved;
};

struct yield_record {
	struct yield_observation seen;
	struct yield_decision decision;
};

struct interrupt_record {
	struct accelerate_config config;
	struct interrupt_observation seen;
	struct interrupt_decision decision;
};

struct woken_record {
	struct accelerate_config config;
	struct woken_observation seen;
	struct woken_decision decision;
};

struct placement_record {
	struct accelerate_config config;
	struct placement_observation seen;
	enum placement_decision decision;
	u32 reserved;
};

struct home_record {
	struct accelerate_config config;
	struct home_observation seen;
	enum home_decision decision;
	u32 reserved;
};

struct micro_slice_record {
	struct accelerate_config config;
	struct micro_slice_observation seen;
	struct micro_slice_decision decision;
};

/* The end of a turn, reached or postponed, in a window or in grace. */
struct turn_record {
	struct delay_config config;
	struct delay_observation seen;
	struct delay_decision decision;
};

/*
 * The window of a turn, decided when the turn begins. The record holds the part of the
 * history that this depends on.
 */
struct window_record {
	struct delay_config config;
	u64 offset_sum_ns;
	u32 offset_count;
	u32 penalty_turns;
	u64 due_ns;
	struct delay_window window;
};

struct wakeup_record {
	struct fair_share_config config;
	struct wakeup_observation seen;
	struct wakeup_decision decision;
};

struct limit_record {
	struct cpu_limit limit;
	struct limit_observation seen;
	struct limit_decision decision;
};

struct boost_record {
	struct boost_config config;
	struct boost_observation seen;
	enum boost_decision decision;
	u32 reserved;
};

/* Holds the part of the configuration that the decision on an IPI depends on. */
struct ipi_record {
	u64 delay_ns;
	struct ipi_observation seen;
	struct ipi_decision decision;
};

struct urgent_record {
	struct urgent_config config;
	struct urgent_observation seen;
	enum urgent_decision decision;
	u32 reserved;
};

struct urgent_turn_record {
	struct urgent_config config;
	struct urgent_state state;
	u64 ran_ns;
	u32 others_count;
	enum urgent_turn decision;
};

struct candidate_record {
	enum balance_scheme scheme;
	u32 decision;
	struct candidate_observation seen;
};

struct held_record {
	struct count_observation seen;
	struct count_decision decision;
};

struct heir_record {
	struct heir_state state;
	struct heir_observation seen;
	struct heir_step decision;
};

/* Holds no state: steps are replayed in order, from an empty state. */
struct pool_size_record {
	struct pool_size_config config;
	struct pool_size_observation seen;
	struct pool_size_decision decision;
};

struct record {
	u64 at_ns; /* on the host's monotonic clock */
	enum record_kind kind;
	u32 vcpu; /* the vCPU in question, by the host's numbers; 0: none */
	union {
		struct classify_record classify;
		struct yield_record yield;
		struct sibling_record sibling;
		struct spinner_record spinner;
		struct interrupt_record interrupt;
		struct placement_record placement;
		struct home_record home;
		struct woken_record woken;
		struct micro_slice_record micro_slice;
		struct turn_record turn;
		struct window_record window;
		struct wakeup_record wakeup;
		struct pool_size_record pool_size;
		struct limit_record limit;
		struct boost_record boost;
		struct ipi_record ipi;
		struct urgent_record urgent;
		struct urgent_turn_record urgent_turn;
		struct candidate_record candidate;
		struct held_record held;
		struct heir_record heir;
	};
};

_Static_assert(sizeof(struct record) == 104, "records have one fixed size: change RECORD_VERSION with it");

#endif
