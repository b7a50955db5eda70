//! Whole runs of scenarios: what the simulator promises, what each scheduler and mechanism does in them, and
//! how sweeps keep their results.

mod beside;
mod cgroups;
mod channels;
mod common;
mod coordination;
mod cpu_limits;
mod delay;
mod engine;
mod folding;
mod found_cases;
mod fuzz;
mod guests_of_today;
mod holders;
mod kvm;
mod locks;
mod max_wait;
mod operators;
mod own_scenarios;
mod patience;
mod pins;
mod preempt;
mod promises;
mod ranges;
mod rcu;
mod shares;
mod stealing;
mod sweep_results;
mod tasks;
mod timers;
mod wait_lists;
