//! Fits a model to a profile: simulates it, observes that as the host was observed, and corrects what
//! differs.
//!
//! Problem.   What a VM did under its host's scheduler isn't what its programs ask for: they wait, and spin,
//!            for one another.
//! Mechanism. A first guess takes the profile's rates as they are. Then the model runs under the scheduler of
//!            the profile. Each rate is multiplied by what the profile has of it, per second of running, in
//!            terms of what the model has. The best of some rounds is taken.
//! Formula.   rate *= (profile's / model's) ^ DAMPING; likewise mean sleeps, and the factor of the host's
//!            costs by the part of turns that ended in code of calls.

use super::model::{MeasuredHost, Model, Rates, SECTION_NS, VmModel, vm_at_line};
use super::observer::profile_of;
use super::{WhatIfError, on_this_host};
use microslice_experiments::batch::BatchProgress;
use microslice_experiments::scenario::{Overrides, ScenarioError, parse};
use microslice_metrics::profile::{HostProfile, Profile, VmProfile};

const ROUNDS: u32 = 10;
/// A whole correction swings to and fro: what one rate changes changes others.
const DAMPING: f64 = 0.8;
/// Costs act on all VMs at once.
const COST_DAMPING: f64 = 0.5;
/// Of one round.
const CORRECTION_MAX: f64 = 4.0;
const COST_FACTORS: std::ops::RangeInclusive<f64> = 0.5..=200.0;
const RATE_MAX: f64 = 500_000.0;
/// Longer sleeps don't fit into a run often enough: as much sleep comes in more parts.
const SLEEP_NS_MAX: f64 = 100e6;
/// A vCPU that sleeps less computes all the time.
const ASLEEP_MIN: f64 = 0.01;
/// Calls a second and VM: fewer are no shootdowns that an initiator waits for.
const CALLS_MIN: f64 = 2.0;
/// Part of a VM's turns that ended in a class: below, it is chance.
const SHARE_MIN: f64 = 0.002;
/// Turns that a share is taken from.
const TURNS_MIN: u64 = 50;
/// Of interrupts that wait as often as vCPUs do, this part at least waits; else the guest spares preempted
/// siblings.
const SPARED: f64 = 0.2;
/// Of waiting calls, so few can't tell how many recipients a call has.
const WAITING_CALLS_MIN: u64 = 30;
/// A round that is as good ends the fit.
const GOOD_ENOUGH: f64 = 0.03;

/// A model, and how well it does.
#[derive(Debug, Clone, PartialEq)]
pub struct Fit {
    pub model: Model,
    /// What an observer of the model sees, under the scheduler of the profile.
    pub seen: Profile,
    /// That scheduler, as policies are called.
    pub baseline: String,
    /// Mean of |ln(model's / profile's)| over what is fitted.
    pub error: f64,
}

/// Fits a model; it takes some seconds. Costs are fitted, too, unless a host is given whose costs were
/// measured.
pub fn fit(
    profile: &Profile,
    host: Option<&MeasuredHost>,
    progress: &BatchProgress,
) -> Result<Fit, WhatIfError> {
    let baseline = baseline_of(profile)?;
    let mut model = first_guess(profile);
    if let Some(host) = host {
        (model.cost_factor, model.measured_host) = (host.factor, Some(host.clone()));
    }
    let mut best: Option<Fit> = None;
    for _ in 0..ROUNDS {
        let seen = observe(&model, &baseline, progress)?;
        let error = error_of(profile, &seen);
        let is_better = best.as_ref().is_none_or(|best| error < best.error);
        if is_better {
            best = Some(Fit { model: model.clone(), seen: seen.clone(), baseline: baseline.clone(), error });
        }
        if error < GOOD_ENOUGH {
            break;
        }
        correct(&mut model, profile, &seen);
    }
    best.ok_or_else(|| WhatIfError::Profile("no VM to fit".into()))
}

/// The policy that the profile was taken under.
fn baseline_of(profile: &Profile) -> Result<String, WhatIfError> {
    let policy = match profile.host.scheduler.as_str() {
        HostProfile::KERNEL => "eevdf",
        HostProfile::MICROSLICE => "microslice",
        other => {
            let cause = format!(
                "host.scheduler: the simulator has no {other:?}: observe the host under the kernel's own scheduler"
            );
            return Err(WhatIfError::Profile(cause));
        }
    };
    Ok(on_this_host(policy, profile))
}

fn observe(model: &Model, baseline: &str, progress: &BatchProgress) -> Result<Profile, WhatIfError> {
    let overrides = Overrides { policy: Some(baseline.to_owned()), ..Overrides::default() };
    let text = model.to_scenario();
    let scenario = parse(FITTED, &text, &overrides).map_err(|error| blame_profile(error, &text, baseline))?;
    let failed = |error| WhatIfError::Run { policy: baseline.to_owned(), seed: scenario.config.seed, error };
    profile_of(&scenario.config, progress).map_err(failed)
}

/// What errors of the scenario that is fitted call it.
pub const FITTED: &str = "the fitted scenario";

/// Nobody but us has seen the scenario: what it is refused for stands in the profile.
pub fn blame_profile(error: ScenarioError, scenario: &str, policy: &str) -> WhatIfError {
    if *error.place.file != *FITTED {
        return error.into();
    }
    let place = vm_at_line(scenario, error.place.line).map_or("host".to_owned(), |vm| format!("vms[{vm}]"));
    WhatIfError::Profile(format!("{place}: can't be simulated under {policy}: {}", error.cause))
}

/// New numbers of pCPUs, by old ones. Policies micro-slice the last pCPUs: a VM that may run only in the
/// upper half has one of the first pCPUs that no VM is bound to. Neither order means anything.
fn numbering(profile: &Profile) -> Vec<u32> {
    let pcpus = profile.host.pcpus;
    let mut numbers: Vec<u32> = (0..pcpus).collect();
    let mut is_bound = vec![false; pcpus as usize];
    for &pcpu in profile.vms.iter().flat_map(|vm| &vm.affinity) {
        is_bound[pcpu as usize] = true;
    }
    let mut free = (0..pcpus / 2).filter(|&pcpu| !is_bound[pcpu as usize]);
    for vm in &profile.vms {
        let lowest = vm.affinity.iter().copied().min_by_key(|&pcpu| numbers[pcpu as usize]);
        if let Some(lowest) = lowest.filter(|&pcpu| numbers[pcpu as usize] >= pcpus / 2)
            && let Some(free) = free.next()
        {
            numbers.swap(lowest as usize, free as usize);
        }
    }
    numbers
}

fn first_guess(profile: &Profile) -> Model {
    let mut names = Vec::new();
    let numbers = numbering(profile);
    let vms = profile.vms.iter().map(|vm| {
        let name = unused_name(vm.name.as_deref().unwrap_or("vm"), &names);
        names.push(name.clone());
        let affinity = vm.affinity.iter().map(|&pcpu| numbers[pcpu as usize]).collect();
        VmModel { affinity, ..guess(vm, name) }
    });
    Model {
        host: profile.host.clone(),
        vms: vms.collect(),
        pause_exits: profile.vms.iter().any(|vm| vm.pause_exits > 0),
        cost_factor: 1.0,
        measured_host: None,
    }
}

/// As scenarios allow names: of those that look alike a later one has a number.
fn unused_name(name: &str, taken: &[String]) -> String {
    let clean = |c: char| if c.is_ascii_alphanumeric() || "-_.+#".contains(c) { c } else { '_' };
    let name: String = name.chars().take(48).map(clean).collect();
    let name = if name.is_empty() { "vm".to_owned() } else { name };
    let numbered = (2..).map(|number| format!("{name}-{number}"));
    let mut candidates = std::iter::once(name.clone()).chain(numbered);
    candidates.find(|candidate| !taken.contains(candidate)).unwrap_or(name)
}

fn guess(vm: &VmProfile, name: String) -> VmModel {
    let wants = Wants::of(vm);
    let ended = &vm.turns_ended;
    let lost = ended.share(ended.tlb_shootdown + ended.lock_waiter) + wants.section_share;
    // Of its running that is computing.
    let computes = (1.0 - lost).max(0.1);
    let recipients = f64::from(recipients(vm));
    VmModel {
        name,
        vcpus: vm.vcpus,
        weight: vm.weight,
        affinity: vm.affinity.clone(),
        rates: Rates {
            sleeps: wants.sleeps / computes,
            shootdowns: if recipients > 0.0 { wants.calls / recipients / computes } else { 0.0 },
            sections: wants.section_share / SECTION_NS * 1e9 / computes,
        },
        sleep_ns: wants.sleep_ns,
        recipients,
        spares_preempted: spares_preempted(vm),
        yields_by_hypercall: vm.directed_yields > 0,
        locks: locks(vm, wants.section_share),
    }
}

/// How many siblings a call goes to, to begin with. If each waits by itself with probability p, a call to n
/// waits with 1 - (1 - p)^n; p is the part of interrupts that wait. So waiting calls per interrupt fall as n
/// grows. If too few wait, or p tells nothing: to all siblings.
fn recipients(vm: &VmProfile) -> u32 {
    let siblings = vm.vcpus.saturating_sub(1);
    let calls = &vm.interrupts.call_function;
    if siblings <= 1 || vm.shootdowns.count < WAITING_CALLS_MIN || calls.sent == 0 {
        return siblings;
    }
    let waits = (calls.waits.count as f64 / calls.sent as f64).clamp(0.0, 1.0);
    let per_interrupt = vm.shootdowns.count as f64 / calls.sent as f64;
    let expected = |n: u32| (1.0 - (1.0 - waits).powi(n as i32)) / f64::from(n);
    // Nearly no difference: all of them.
    if expected(1) < expected(siblings) * 1.5 {
        return siblings;
    }
    let distance = |n: &u32| (expected(*n) / per_interrupt).ln().abs();
    (1..=siblings).min_by(|a, b| distance(a).total_cmp(&distance(b))).unwrap_or(siblings)
}

/// Call-function interrupts nearly never wait, though its vCPUs do.
fn spares_preempted(vm: &VmProfile) -> bool {
    let wanted = vm.ran_ns + vm.ready_ns;
    let waits = vm.ready_ns as f64 / wanted.max(1) as f64;
    let calls = &vm.interrupts.call_function;
    calls.sent > 100 && waits > 0.02 && (calls.waits.count as f64) < SPARED * waits * calls.sent as f64
}

/// One that all fight for where a waiter was seen and one can do; else so many that they hardly meet.
fn locks(vm: &VmProfile, section_share: f64) -> u32 {
    let is_fought_for = vm.turns_ended.share(vm.turns_ended.lock_waiter) > SHARE_MIN || vm.lock_halts > 0;
    let running = vm.share(vm.ran_ns) * f64::from(vm.vcpus);
    if is_fought_for && running * section_share < 0.7 { 1 } else { 4 * vm.vcpus }
}

/// What the profile has of a VM, per second of running: what the model shall have as well.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Wants {
    sleeps: f64,
    sleep_ns: f64,
    /// Call-function interrupts.
    calls: f64,
    /// Part of its turns that ended in critical sections.
    section_share: f64,
    /// Calls that waited, for each call-function interrupt; 0 if too few did. The more recipients a call has,
    /// the fewer.
    waiting: f64,
}

impl Wants {
    fn of(vm: &VmProfile) -> Self {
        let ran_s = vm.ran_ns.max(1) as f64 / 1e9;
        let seen_s = vm.observed_ns as f64 / 1e9 / f64::from(vm.vcpus.max(1));
        let asleep_ns = vm.asleep_ns() as f64;
        let sleep_ns = (asleep_ns / vm.wakeups().max(1) as f64).min(SLEEP_NS_MAX);
        let calls = vm.interrupts.call_function.sent as f64;
        let ended = &vm.turns_ended;
        let section_share = ended.share(ended.lock_holder);
        Self {
            sleeps: if vm.share(vm.asleep_ns()) < ASLEEP_MIN { 0.0 } else { asleep_ns / sleep_ns / ran_s },
            sleep_ns,
            calls: if calls / seen_s.max(1e-9) < CALLS_MIN { 0.0 } else { calls / ran_s },
            section_share: if ended.total() < TURNS_MIN || section_share < SHARE_MIN {
                0.0
            } else {
                section_share
            },
            waiting: if vm.shootdowns.count < WAITING_CALLS_MIN {
                0.0
            } else {
                vm.shootdowns.count as f64 / calls.max(1.0)
            },
        }
    }

    /// Pairs of what is wanted and what is had, where something is wanted.
    fn beside(self, had: Self) -> impl Iterator<Item = (f64, f64)> {
        let pairs = [
            (self.sleeps, had.sleeps),
            (self.sleep_ns * f64::from(self.sleeps > 0.0), had.sleep_ns),
            (self.calls, had.calls),
            (self.section_share, had.section_share),
            (self.waiting, had.waiting),
        ];
        pairs.into_iter().filter(|(wanted, _)| *wanted > 0.0)
    }
}

/// By which factor something is to grow.
fn correction(wanted: f64, had: f64) -> f64 {
    if had > 0.0 { (wanted / had).clamp(1.0 / CORRECTION_MAX, CORRECTION_MAX) } else { CORRECTION_MAX }
}

fn correct(model: &mut Model, profile: &Profile, seen: &Profile) {
    for (vm, (wanted, had)) in model.vms.iter_mut().zip(profile.vms.iter().zip(&seen.vms)) {
        let (wanted, had) = (Wants::of(wanted), Wants::of(had));
        let grow = |value: f64, wanted: f64, had: f64| {
            if wanted > 0.0 { (value * correction(wanted, had).powf(DAMPING)).min(RATE_MAX) } else { 0.0 }
        };
        vm.rates = Rates {
            sleeps: grow(vm.rates.sleeps, wanted.sleeps, had.sleeps),
            shootdowns: grow(vm.rates.shootdowns, wanted.calls, had.calls),
            sections: grow(vm.rates.sections, wanted.section_share, had.section_share),
        };
        if wanted.waiting > 0.0 && had.waiting > 0.0 {
            let before = vm.recipients;
            let wider = correction(had.waiting, wanted.waiting).powf(DAMPING);
            vm.recipients = (before * wider).clamp(1.0, f64::from(vm.vcpus.max(2) - 1));
            vm.rates.shootdowns *= before / vm.recipients;
        }
        if wanted.sleeps > 0.0 && had.sleep_ns > 0.0 {
            vm.sleep_ns = (vm.sleep_ns * correction(wanted.sleep_ns, had.sleep_ns).powf(DAMPING))
                .clamp(1_000.0, SLEEP_NS_MAX);
        }
    }
    if model.measured_host.is_some() {
        return;
    }
    if let (Some(wanted), Some(had)) = (call_share(profile, profile), call_share(seen, profile)) {
        let factor = model.cost_factor * correction(wanted, had).powf(COST_DAMPING);
        model.cost_factor = factor.clamp(*COST_FACTORS.start(), *COST_FACTORS.end());
    }
}

/// Part of turns that ended in the code of calls, over those VMs of which `known` can tell. A host that needs
/// longer for an interrupt has more of them.
fn call_share(profile: &Profile, known: &Profile) -> Option<f64> {
    let tells = |vm: &VmProfile| vm.classes_are_known && Wants::of(vm).calls > 0.0;
    let told =
        profile.vms.iter().zip(&known.vms).filter(|(_, known)| tells(known)).map(|(vm, _)| &vm.turns_ended);
    let (in_calls, all) =
        told.fold((0, 0), |(in_calls, all), ended| (in_calls + ended.tlb_shootdown, all + ended.total()));
    (all >= TURNS_MIN && in_calls > 0).then(|| in_calls as f64 / all as f64)
}

fn error_of(profile: &Profile, seen: &Profile) -> f64 {
    let mut errors = Vec::new();
    for (wanted, had) in profile.vms.iter().zip(&seen.vms) {
        let shares = (wanted.share(wanted.ran_ns), had.share(had.ran_ns));
        let pairs = std::iter::once(shares).chain(Wants::of(wanted).beside(Wants::of(had)));
        errors.extend(pairs.map(|(wanted, had)| (had.max(1e-9) / wanted.max(1e-9)).ln().abs()));
    }
    if let (Some(wanted), Some(had)) = (call_share(profile, profile), call_share(seen, profile)) {
        errors.push((had / wanted).ln().abs());
    }
    errors.iter().sum::<f64>() / errors.len().max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use microslice_metrics::profile::{Classes, Interrupt, Interrupts, Waits};

    fn vm(sent: u64, waited: u64, shootdowns: u64) -> VmProfile {
        let waits = |count| Waits { count, ..Waits::default() };
        VmProfile {
            vcpus: 9,
            observed_ns: 9_000_000_000,
            ran_ns: 4_000_000_000,
            ready_ns: 2_000_000_000,
            waits: waits(4_000),
            turns_ended: Classes { user: 1_000, ..Classes::default() },
            interrupts: Interrupts {
                call_function: Interrupt { sent, waits: waits(waited) },
                ..Interrupts::default()
            },
            shootdowns: waits(shootdowns),
            ..VmProfile::default()
        }
    }

    #[test]
    fn recipients_of_a_call_follow_from_how_many_calls_wait_for_as_many_interrupts() {
        // p = 0.5: of 1,000 calls to 8 nearly all wait; of 8,000 calls to one, half.
        assert_eq!(recipients(&vm(8_000, 4_000, 996)), 8);
        assert_eq!(recipients(&vm(8_000, 4_000, 4_000)), 1);
        assert_eq!(recipients(&vm(8_000, 4_000, 1_875)), 4);
        assert_eq!(recipients(&vm(8_000, 0, 0)), 8, "nothing waits, nothing is known");
    }

    fn profile_of_vms(vms: Vec<VmProfile>) -> Profile {
        let host = HostProfile {
            pcpus: 8,
            llc_pcpus: 0,
            smt_threads: 1,
            scheduler: HostProfile::KERNEL.into(),
            base_slice_ns: None,
            sees_interrupts: true,
        };
        let profile = Profile::new(1.0, host, vms);
        Profile::parse("p.json", &profile.to_text()).expect("valid")
    }

    fn read(profile: &Profile, policy: &str) -> Result<(), WhatIfError> {
        let text = first_guess(profile).to_scenario();
        let overrides = Overrides { policy: Some(policy.into()), ..Overrides::default() };
        parse(FITTED, &text, &overrides).map(drop).map_err(|error| blame_profile(error, &text, policy))
    }

    #[test]
    fn whatever_a_profile_may_have_a_scenario_has_room_for() {
        let of = |vcpus| VmProfile {
            vcpus,
            weight: 100,
            observed_ns: u64::from(vcpus) * 1_000_000_000,
            ran_ns: u64::from(vcpus) * 1_000_000,
            ..vm(8_000, 4_000, 996)
        };
        for (vms, vcpus) in [(499, 2), (1024, 4), (1, 4095), (1, 4096), (63, 65)] {
            let profile =
                profile_of_vms(vec![VmProfile { turns_ended: Classes::default(), ..of(vcpus) }; vms]);
            read(&profile, "eevdf").unwrap_or_else(|error| panic!("{vms} VMs of {vcpus} vCPUs: {error}"));
        }
    }

    #[test]
    fn vms_bound_to_the_last_pcpus_run_under_every_policy() {
        let bound = |affinity: &[u32]| VmProfile { weight: 100, affinity: affinity.into(), ..vm(0, 0, 0) };
        for vms in [vec![bound(&[7])], vec![bound(&[7]), bound(&[6, 7]), bound(&[0]), bound(&[5])]] {
            let profile = profile_of_vms(vms);
            let models = first_guess(&profile).vms;
            assert!(models.iter().all(|vm| vm.affinity.iter().any(|&pcpu| pcpu < 4)), "{models:?}");
            for policy in ["eevdf", "microslice", "beside"] {
                read(&profile, policy).expect(policy);
            }
        }
        let every = profile_of_vms((0..8).map(|pcpu| bound(&[pcpu])).collect());
        read(&every, "microslice").expect("the micro pool takes none that a VM is bound to");
    }

    #[test]
    fn a_guest_whose_calls_never_wait_though_its_vcpus_do_spares_those() {
        assert!(spares_preempted(&vm(8_000, 10, 10)));
        assert!(!spares_preempted(&vm(8_000, 2_000, 900)));
    }

    #[test]
    fn rates_are_per_second_of_running_and_long_sleeps_come_in_parts() {
        let wants = Wants::of(&vm(8_000, 0, 0));
        assert_eq!((wants.sleeps, wants.sleep_ns, wants.calls), (750.0, 1_000_000.0, 2_000.0));
        let rarely = VmProfile { waits: Waits { count: 1_001, ..Waits::default() }, ..vm(0, 0, 0) };
        let wants = Wants::of(&rarely);
        assert_eq!((wants.sleeps, wants.sleep_ns, wants.calls), (7.5, SLEEP_NS_MAX, 0.0));
    }

    #[test]
    fn names_are_those_that_scenarios_allow_and_none_comes_twice() {
        let taken = ["web_1".to_owned(), "web_1-2".to_owned()];
        assert_eq!(unused_name("web 1", &taken), "web_1-3");
        assert_eq!(unused_name("", &[]), "vm");
    }
}
