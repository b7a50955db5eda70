//! What the scheduler `coordinated` did: its part of a report (`report.rs`).
//!
//! Sums that hold in every report of a whole run, up to what changes while the counters are read:
//! became urgent = ends + urgent now; slices = protections + those of vCPUs that began a turn or went on.

use crate::bpf::counters::add_up;
use crate::interface::{UrgentEnd, UrgentScheme, VmStats};
use crate::output::holders::Stops;
use crate::output::words::{named, names};
use crate::run::report::text::class_lines;
use microslice_metrics::Histogram;
use microslice_metrics::table::Table;
use microslice_policy::coordinated::UrgentDecision;
use microslice_policy::{GuestClass, InterruptKind};
use serde_json::{Value, json};

/// vCPUs that were urgent when the counters were read.
fn urgent_now(stats: &VmStats) -> u64 {
    stats.urgent.became_urgent.saturating_sub(add_up(&stats.urgent.ends))
}

/// Returns the JSON that a VM's counters and the sum of all have in common.
pub(crate) fn counters_json(stats: &VmStats) -> Value {
    let urgent = &stats.urgent;
    json!({
        "ipis": named(names::<InterruptKind>(), &urgent.ipis),
        "urgent_requests": named(names::<UrgentScheme>(), &urgent.requests),
        "became_urgent": urgent.became_urgent,
        "urgent_ends": named(names::<UrgentEnd>(), &urgent.ends),
        "urgent_now": urgent_now(stats),
        "urgent_decisions": named(names::<UrgentDecision>(), &urgent.decisions),
        "urgent_turned_away": urgent.turned_away,
        "urgent_slices": urgent.slices,
        "urgent_protections": urgent.protections,
        "urgent_requeued": urgent.requeued,
        "urgent_ran_ns": urgent.ran_ns,
        "urgent_borrowed_ns": urgent.borrowed_ns,
        "urgent_wait_us": Histogram::from_log2(&urgent.wait_us, urgent.waited_ns / 1000),
        "holders": Stops::of(stats).to_json(),
        "preemptions": {
            "total": add_up(&stats.preemptions),
            "by_class": named(names::<GuestClass>(), &stats.preemptions),
        },
        "wait_to_run_us": Histogram::from_log2(&stats.wait_to_run_us, stats.waited_ns / 1000),
        "cpu_time_ns": stats.ran_ns,
        "ready_time_ns": stats.waited_ns,
        "rested_time_ns": stats.rested_ns,
    })
}

/// The same as text, of all VMs.
pub(crate) fn lines(total: &VmStats) -> String {
    let urgent = &total.urgent;
    let mut table = Table::new(&["scheme", ">urgent requests"]);
    for (name, count) in names::<UrgentScheme>().zip(urgent.requests) {
        table.row([name.to_owned(), count.to_string()]);
    }
    let ends: Vec<_> =
        names::<UrgentEnd>().zip(urgent.ends).map(|(name, count)| format!("{name} {count}")).collect();
    let wait = Histogram::from_log2(&urgent.wait_us, urgent.waited_ns / 1000);
    let us = |percent| wait.percentile(percent).map_or("-".into(), |us: u64| format!("{us} us"));
    let decisions = |decision: UrgentDecision| urgent.decisions[decision as usize];
    format!(
        "{table}\n{}became urgent   {} ({}), urgent now {}\n\
         urgent waits    {} with p50 {}, p99 {}\n\
         asked           {} preempt, {} wait for an urgent slice, {} have used up their allowance, {} found the queue full\n\
         urgent slices   {} in {:.3} s, {} of them to who ran already; {} ended still urgent; borrowed {:.3} s\n",
        preempted_line(total),
        urgent.became_urgent,
        ends.join(", "),
        urgent_now(total),
        wait.count(),
        us(50.0),
        us(99.0),
        decisions(UrgentDecision::Preempts),
        decisions(UrgentDecision::Waits),
        decisions(UrgentDecision::Refused),
        urgent.turned_away,
        urgent.slices,
        urgent.ran_ns as f64 / 1e9,
        urgent.protections,
        urgent.requeued,
        urgent.borrowed_ns as f64 / 1e9,
    )
}

/// The first of the lines that all schedulers have: what their guests did when they were preempted.
fn preempted_line(total: &VmStats) -> String {
    class_lines(total).lines().take(1).map(|line| format!("{line}\n")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urgent_vcpus_are_accounted_for_in_text_and_json() {
        let mut stats = VmStats::default();
        stats.urgent.requests[UrgentScheme::TlbCo as usize] = 9;
        stats.urgent.became_urgent = 5;
        stats.urgent.ends[UrgentEnd::Acknowledged as usize] = 3;
        stats.urgent.decisions[UrgentDecision::Refused as usize] = 2;
        stats.urgent.wait_us[9] = 4;
        let json = counters_json(&stats);
        assert_eq!((&json["urgent_now"], &json["urgent_requests"]["tlb_co"]), (&json!(2), &json!(9)));
        let text = lines(&stats);
        for part in
            ["tlb_co", "became urgent   5 (acknowledged 3", "urgent now 2", "2 have used up their allowance"]
        {
            assert!(text.contains(part), "{part} is missing in {text}");
        }
    }
}
