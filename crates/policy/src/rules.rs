//! Rules that the paper doesn't have: one table for `policy/`, for both worlds, and for the page
//! (docs/explanation/differences.md, Rule by rule).

use crate::*;

/// A rule of the project's.
#[derive(Debug)]
pub struct Rule {
    pub name: &'static str,
    pub gate: Gate,
}

/// What turns a rule off where the paper's rules are asked for.
#[derive(Debug)]
pub enum Gate {
    /// Functions of `policy/` that read `paper_rules`, and a case of each that comes out otherwise with it.
    Word(&'static [(&'static str, Case)]),
    /// A value that both worlds set, by its key in policies of the simulator.
    Value(&'static str),
    /// Nothing does; why.
    Stays(&'static str),
}

/// Returns what is decided with that configuration.
pub type Case = fn(&AccelerateConfig) -> u32;

/// All of them, in the page's order.
pub const RULES: [Rule; 26] = [
    word("Answers are looked for", &[("answers_are_read", |config| u32::from(answers_are_read(config)))]),
    word("A spinner that waits for help or answers keeps its pCPU", &[("decide_on_spinner", spins_on)]),
    word("A spinner yields to nobody in vain", &[("heir_may_come", yields_to_who_is_pinned)]),
    word("A lock's pass ends at one sibling", &[("decide_on_yield", scope_of_lock)]),
    word("Halts for a lock are hints", &[("yield_cause_of_wait", cause_of_halt)]),
    word("Kicks of a lock are hints", &[("cause_of_wakeup", cause_of_kick)]),
    word("An interrupt asks for nobody who goes first", &[("decide_on_interrupt", cause_for_who_goes_first)]),
    word(
        "Urgent events are those that somebody is helped for",
        &[
            ("urgent_event_of_yield", event_of_user_spin),
            ("urgent_event_of_interrupt", event_of_interrupt_to_who_runs),
            ("urgent_event_of_wakeup", event_of_wakeup),
        ],
    ),
    word(
        "VMs that are ahead have no micro slices",
        &[("vm_ahead_is_refused", |config| u32::from(vm_ahead_is_refused(config, Cause::LockYield)))],
    ),
    word(
        "Woken vCPUs have a place of their own",
        &[("woken_have_places", |config| u32::from(woken_have_places(config)))],
    ),
    value("Calls accelerate by themselves", "call_function_ipi"),
    value("Patience", "patience"),
    value("Lending", "lend"),
    value("Micro slices at home", "home_slices"),
    value("Grace, and requests that are remembered", "grace"),
    value("Second looks", "second_looks"),
    value("Growing by demand", "grow_when_busy"),
    value("Turns of 10 ms", "slice"),
    value("Bounds on waits", "max_wait"),
    value("Boosts of the woken beside the kernel's own scheduler", "woken"),
    value("Holders by their kernel's count, and heirs", "critical_by"),
    stays("Looks", "where interrupts exit nowhere, nothing else tells of them"),
    stays(
        "One pass over a VM at a time",
        "passes count in the VM; the paper says nothing of two, and one takes microseconds",
    ),
    stays(
        "The normal pool's clocks, boosts and warm caches",
        "Xen's credit scheduler isn't there; simulated, `micro+rules=paper` has it",
    ),
    stays("Yields go to a sibling", "they are KVM's, which finds whom, or nobody"),
    stays(
        "Budgets of boosts beside the kernel's own scheduler",
        "boosted threads are real-time: without a bound they could take the host",
    ),
];

const fn word(name: &'static str, functions: &'static [(&'static str, Case)]) -> Rule {
    Rule { name, gate: Gate::Word(functions) }
}

const fn value(name: &'static str, key: &'static str) -> Rule {
    Rule { name, gate: Gate::Value(key) }
}

const fn stays(name: &'static str, why: &'static str) -> Rule {
    Rule { name, gate: Gate::Stays(why) }
}

/// The keys of [`Gate::Value`].
pub fn keys() -> impl Iterator<Item = &'static str> {
    RULES.iter().filter_map(|rule| match rule.gate {
        Gate::Value(key) => Some(key),
        Gate::Word(_) | Gate::Stays(_) => None,
    })
}

// ---- Cases ----

fn a_yield(config: &AccelerateConfig, cause: YieldCause, class: GuestClass) -> YieldObservation {
    YieldObservation {
        cause: cause.into(),
        guest_class: class.into(),
        micro_pcpu_count: 1,
        paper_rules: config.paper_rules,
        ..YieldObservation::default()
    }
}

fn spins_on(config: &AccelerateConfig) -> u32 {
    let seen = SpinnerObservation {
        cause: YieldCause::Ple.into(),
        helped_count: 1,
        spun_ns: u64::MAX,
        ..SpinnerObservation::default()
    };
    decide_on_spinner(config, &seen) as u32
}

fn yields_to_who_is_pinned(config: &AccelerateConfig) -> u32 {
    let seen = YieldHeirObservation { is_queued: 1, affinity_allows: 0, paper_rules: config.paper_rules };
    u32::from(heir_may_come(&seen))
}

fn scope_of_lock(config: &AccelerateConfig) -> u32 {
    decide_on_yield(&a_yield(config, YieldCause::Ple, GuestClass::LockWaiter)).scope.value()
}

fn cause_of_halt(config: &AccelerateConfig) -> u32 {
    decide_on_yield(&a_yield(config, YieldCause::Hlt, GuestClass::LockWaiter)).cause.value()
}

fn cause_of_kick(config: &AccelerateConfig) -> u32 {
    let seen =
        WokenObservation { lock_halt: 1, micro_pcpu_count: 1, guest_known: 1, ..WokenObservation::default() };
    decide_on_woken(config, &seen).cause.value()
}

fn an_interrupt(state: VcpuState, recipient_goes_first: u32) -> InterruptObservation {
    InterruptObservation {
        kind: InterruptKind::Virq.into(),
        recipient_state: state.into(),
        micro_pcpu_count: 1,
        guest_known: 1,
        recipient_goes_first,
        ..InterruptObservation::default()
    }
}

fn cause_for_who_goes_first(config: &AccelerateConfig) -> u32 {
    decide_on_interrupt(config, &an_interrupt(VcpuState::Runnable, 1)).cause.value()
}

fn event_of_user_spin(config: &AccelerateConfig) -> u32 {
    let seen = a_yield(config, YieldCause::Ple, GuestClass::User);
    urgent_event_of_yield(&seen, &decide_on_yield(&seen)) as u32
}

fn event_of_interrupt_to_who_runs(config: &AccelerateConfig) -> u32 {
    let seen = an_interrupt(VcpuState::Running, 0);
    urgent_event_of_interrupt(config, seen.kind, &decide_on_interrupt(config, &seen)) as u32
}

fn event_of_wakeup(config: &AccelerateConfig) -> u32 {
    let seen = WokenObservation {
        interrupted: 1,
        kind: InterruptKind::Virq.into(),
        guest_known: 1,
        ..WokenObservation::default()
    };
    urgent_event_of_wakeup(config, &seen, &decide_on_woken(config, &seen)) as u32
}
