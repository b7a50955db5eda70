//! What the scheduler `microslice` did: its part of a report (`report.rs`).

use crate::bpf::counters::add_up;
use crate::interface::{AccelerationReturn, Overtake, RequestFailure, VmStats};
use crate::output::holders::Stops;
use crate::output::words::{counted_by_cause, matrix, named, names, sums_by_cause};
use microslice_metrics::Histogram;
use microslice_metrics::table::Table;
use microslice_policy::{
    Cause, Coded, GuestClass, InterruptKind, InterruptReason, SiblingDecision, SpinnerDecision, WokenReason,
    YieldCause, YieldReason,
};
use serde_json::{Value, json};

/// Requests and accelerations by their cause.
pub(crate) fn cause_table(total: &VmStats, dry_run: bool) -> Table {
    let mut table = Table::new(&["cause", ">requests", ">accelerated", "of these, by guest class"]);
    for cause in Cause::ALL.iter().skip(1) {
        let at = *cause as usize;
        let row = if dry_run { &total.would_request[at] } else { &total.accelerations[at] };
        let requests = if dry_run { add_up(row) } else { total.requests[at] };
        let classes: Vec<_> = GuestClass::ALL
            .iter()
            .zip(row)
            .filter(|(_, count)| **count > 0)
            .map(|(class, count)| format!("{} {count}", class.name()))
            .collect();
        let accelerated = if dry_run { "0".into() } else { add_up(row).to_string() };
        table.row([cause.name().to_owned(), requests.to_string(), accelerated, classes.join(", ")]);
    }
    table
}

/// Returns lines of what became of requests.
pub(crate) fn flow_lines(total: &VmStats) -> String {
    let pulls: Vec<_> = names::<RequestFailure>()
        .zip(total.failures)
        .map(|(name, count)| format!("{name} {count}"))
        .collect();
    let returns: Vec<_> = names::<AccelerationReturn>()
        .zip(total.returns)
        .map(|(name, count)| format!("{name} {count}"))
        .collect();
    let slice = Histogram::from_log2(&total.micro_slice_us, total.micro_ran_ns / 1000);
    let us = |percent| slice.percentile(percent).map_or("-".into(), |us: u64| format!("{us} us"));
    let mut lines = format!(
        "failed pulls    {}\nreturns         {} ({}), in flight {}\nmicro slices    {} with p50 {}, p99 {}, {} of them on normal CPUs\n\
         grace           {} at the end of a turn, {} after an interruption; asked again {} times\n\
         overtakes       {} by directed yields, {} for warm caches\n\
         woken           {} that had to wait, {} of them to go to a micro pCPU if one is free\n",
        pulls.join(", "),
        add_up(&total.returns),
        returns.join(", "),
        in_flight(total),
        slice.count(),
        us(50.0),
        us(99.0),
        total.home_slices,
        total.graces[0],
        total.graces[1],
        total.asked_again,
        total.overtakes[Overtake::DirectedYield as usize],
        total.overtakes[Overtake::WarmCaches as usize],
        add_up(&total.woken),
        total.woken[WokenReason::Requests as usize],
    );
    if total.late_waits > 0 {
        lines.push_str(&format!(
            "late            {} waits were longer than max-wait allows\n",
            total.late_waits
        ));
    }
    lines
}

fn in_flight(stats: &VmStats) -> u64 {
    let accelerations: u64 = stats.accelerations.iter().map(|row| add_up(row)).sum();
    accelerations.saturating_sub(add_up(&stats.returns))
}

/// Returns the JSON that a VM's counters and the sum of all have in common.
pub(crate) fn counters_json(stats: &VmStats) -> Value {
    let by_class: Vec<u64> = (0..GuestClass::ALL.len())
        .map(|class| stats.accelerations.iter().map(|row| row[class]).sum())
        .collect();
    let accelerations: u64 = stats.accelerations.iter().map(|row| add_up(row)).sum();
    let requests = add_up(&stats.requests);
    json!({
        "acceleration_requests": counted_by_cause(&stats.requests),
        "would_accelerate": sums_by_cause(&stats.would_request),
        "accelerations": {
            "total": accelerations,
            "by_cause": sums_by_cause(&stats.accelerations),
            "by_class": named(names::<GuestClass>(), &by_class),
            "by_cause_and_class": matrix::<Cause, GuestClass, _>(&stats.accelerations),
        },
        "failed_pulls": named(names::<RequestFailure>(), &stats.failures),
        "pending_requests": requests.saturating_sub(accelerations + add_up(&stats.failures)),
        "acceleration_returns": {
            "total": add_up(&stats.returns),
            "by_reason": named(names::<AccelerationReturn>(), &stats.returns),
        },
        "still_accelerated": in_flight(stats),
        "preemptions": {
            "total": add_up(&stats.preemptions),
            "by_class": named(names::<GuestClass>(), &stats.preemptions),
        },
        "holders": Stops::of(stats).to_json(),
        "yields": matrix::<YieldCause, YieldReason, _>(&stats.yields),
        "siblings": named(names::<SiblingDecision>(), &stats.siblings),
        "graces": {"in_place": stats.graces[0], "after_interruption": stats.graces[1]},
        "asked_again": stats.asked_again,
        "overtakes": named(names::<Overtake>(), &stats.overtakes),
        "woken": named(names::<WokenReason>(), &stats.woken),
        "spinners": named(names::<SpinnerDecision>(), &stats.spinners),
        "interrupts": matrix::<InterruptKind, InterruptReason, _>(&stats.interrupts),
        "ipis": stats.ipis(),
        "virqs": stats.virqs(),
        "micro_slice_us": Histogram::from_log2(&stats.micro_slice_us, stats.micro_ran_ns / 1000),
        "wait_to_run_us": Histogram::from_log2(&stats.wait_to_run_us, stats.waited_ns / 1000),
        "cpu_time_ns": stats.ran_ns,
        "micro_pool_use_ns": {"accelerated": stats.micro_ran_ns, "lent": stats.lent_ran_ns},
        "called_back": stats.called_back,
        "home_slices": stats.home_slices,
        "ready_time_ns": stats.waited_ns,
        "late_waits": stats.late_waits,
        "rested_time_ns": stats.rested_ns,
    })
}
