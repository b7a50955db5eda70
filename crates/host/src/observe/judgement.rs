//! One line per VM in plain words: what it loses by waiting, and for whom.

use crate::bpf::counters::add_up;
use crate::interface::WaitStats;
use crate::observe::figures::VmFigures;
use crate::observe::long_waits::LongestWait;
use crate::observe::report::VmReport;
use microslice_metrics::Unit;
use microslice_policy::{Coded, GuestClass, class_is_critical};

/// Waits are worth a word from here on: a tick of a 1,000 Hz kernel.
const WORTH_A_WORD_NS: u64 = 1_000_000;
/// Operators of other hypervisors look closer from 5 % ready on, and act from 10 % on (`%RDY`).
const MUCH_PERCENT: f64 = 10.0;
const SOME_PERCENT: f64 = 5.0;
/// A limit is worth a word from here on.
const LIMITED_PERCENT: f64 = 0.5;

pub fn judge(vm: &VmReport, seconds: f64) -> String {
    let seconds = seconds.max(f64::MIN_POSITIVE);
    let figures = &vm.figures;
    let mut parts = vec![ready(figures)];
    if figures.stalls.paused_ns > 0 {
        let paused = Unit::Nanoseconds.show(figures.stalls.paused_ns as f64);
        parts.push(format!("its VMM had it paused for {paused}"));
    }
    if !vm.affinity.is_empty() && figures.ready_percent() >= SOME_PERCENT {
        parts.push(format!("it may run on {} of the host's pCPUs only", vm.affinity.len()));
    }
    parts.extend(figures.long_waits.longest().and_then(LongestWait::judgement));
    let skew = figures.skew_percent();
    if skew >= SOME_PERCENT {
        parts.push(format!("its vCPUs drift apart by {skew:.0} % of the time"));
    }
    parts.extend(waits_a_second("shootdowns", &figures.shootdowns, seconds, "for preempted vCPUs"));
    let sent = figures.sent_interrupt_waits();
    parts.extend(waits_a_second("interrupts", &sent, seconds, "for a vCPU without a pCPU"));
    if vm.has_classes {
        parts.extend(critical_turns(figures, seconds));
    }
    let spins = add_up(&figures.spins());
    if rate(spins, seconds) >= 1.0 {
        parts.push(format!("spins {} times a second", a_second(spins, seconds)));
    }
    format!("{}: {}", vm.name, parts.join("; "))
}

/// Says how much it waited for CPUs, and how much of that for its own limit.
fn ready(figures: &VmFigures) -> String {
    let (ready, limited) = (figures.ready_percent(), figures.rested_percent());
    let contended = ready - limited;
    let rating = match contended {
        _ if contended >= MUCH_PERCENT => ", which is much",
        _ if contended >= SOME_PERCENT => ", which is worth a look",
        _ => "",
    };
    match figures.stalls.limited_by().filter(|_| limited >= LIMITED_PERCENT) {
        Some(cgroup) => format!(
            "{ready:.0} % ready: {limited:.0} % limited by cpu.max of {}, which no scheduler changes, and \
             {contended:.0} % contended{rating}",
            cgroup.display()
        ),
        None if ready >= SOME_PERCENT => format!("{ready:.0} % ready{rating}"),
        None if ready >= 0.05 => format!("{ready:.1} % ready"),
        None => "hardly ever waits for a pCPU".to_owned(),
    }
}

/// Counts the turns that ended in critical code.
pub fn critical(turns_ended: &[u64]) -> u64 {
    let by_class = GuestClass::ALL.iter().zip(turns_ended);
    by_class.filter(|(class, _)| class_is_critical(**class)).map(|(_, count)| count).sum()
}

fn critical_turns(figures: &VmFigures, seconds: f64) -> Option<String> {
    let ended = figures.turns_ended();
    let (all, critical, locks) = (add_up(&ended), critical(&ended), ended[GuestClass::LockHolder as usize]);
    (critical > 0 || figures.stops.holding() > 0).then(|| {
        let percent = critical as f64 / all as f64 * 100.0;
        let holding = match figures.stops.known() {
            0 if locks > 0 => format!(", {} holding a lock", a_second(locks, seconds)),
            0 => String::new(),
            _ => holding_by_count(figures, seconds),
        };
        let critical = a_second(critical, seconds);
        format!("{critical} turns a second ({percent:.0} %) end in critical code{holding}")
    })
}

/// What the guest's own count says, and how much of that symbols find.
fn holding_by_count(figures: &VmFigures, seconds: f64) -> String {
    let (stops, rate) = (&figures.stops, |count| a_second(count, seconds));
    let (holding, found) = (rate(stops.holding()), rate(stops.found_by_symbols()));
    format!(", {holding} holding something by the guest's own count, {found} of these by symbols")
}

fn waits_a_second(what: &str, waits: &WaitStats, seconds: f64, for_whom: &str) -> Option<String> {
    let p99 = waits.percentile_ns(99.0).filter(|&ns| ns >= WORTH_A_WORD_NS)?;
    let (rate, p99) = (a_second(waits.count(), seconds), Unit::Nanoseconds.show(p99 as f64));
    Some(format!("{rate} {what} a second wait {p99} p99 {for_whom}"))
}

fn rate(count: u64, seconds: f64) -> f64 {
    count as f64 / seconds
}

/// Whole numbers, but for what is rare.
pub fn a_second(count: u64, seconds: f64) -> String {
    let rate = rate(count, seconds);
    if rate >= 10.0 { Unit::Count.show(rate.round()) } else { format!("{rate:.1}") }
}
