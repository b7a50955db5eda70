//! Decisions of `policy/`, rule by rule and as properties.

mod accelerate;
mod boost_budget;
mod classify;
mod coordinated;
mod cpu_limit;
mod delay_preemption;
mod fair_share;
mod heirs;
mod held;
mod interrupts;
mod looks;
mod max_wait;
mod pay_back;
mod pool_size;
mod queue_domain;
mod replay;
mod rules;
mod urgent_events;
mod vm_owner;
