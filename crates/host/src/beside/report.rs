//! What boosts did: one JSON object, or one screenful, of an interval or of the whole run.
//!
//! Sums that hold in every report of a whole run, up to what changes while the counters are read: requests =
//! refusals + missed + boosts that ran + pending; boosts that ran = ends + in flight; of the helper: boosts =
//! returns.

use crate::beside::helper::Counts;
use crate::beside::pay_back::PaidBack;
use crate::bpf::counters::{add_up, difference, sum};
use crate::bpf::hooks::Hooks;
use crate::bpf::recursion_misses::RecursionMisses;
use crate::interface::{BoostMiss, BoostStats, VmStats};
use crate::output::holders::Stops;
use crate::output::words::{counted_by_cause, matrix, merge, named, names, sums_by_cause};
use microslice_metrics::Histogram;
use microslice_metrics::table::Table;
use microslice_policy::{
    BoostDecision, Cause, Coded, GuestClass, InterruptKind, InterruptReason, MicroSliceOutcome,
    SiblingDecision, YieldCause, YieldReason,
};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

/// One VM's part of a report.
#[derive(Debug, Clone)]
pub struct VmBoosts {
    pub name: String,
    /// libvirt's, if it is one of its domains.
    pub uuid: Option<String>,
    pub pid: u32,
    /// The generation of its slot, which tells VMs apart.
    pub generation: u32,
    pub vcpu_count: u32,
    pub kernel: Option<String>,
    pub slide: Option<u64>,
    pub state: String,
    pub stats: VmStats,
    pub boosts: BoostStats,
    /// For how long its vCPUs may wait now, in nanoseconds. `None`: for ever.
    pub bound_ns: Option<u64>,
}

/// Counts of the helper.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Helped {
    pub boosts: u64,
    pub returns: u64,
    pub late: u64,
    pub crowded: u64,
    pub not_ours: u64,
    pub by_deadline: u64,
    pub refused: u64,
    pub helper_ns: u64,
}

impl Helped {
    pub(super) fn read(counts: &Counts) -> Self {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Self {
            boosts: of(&counts.boosts),
            returns: of(&counts.returns),
            late: of(&counts.late),
            crowded: of(&counts.crowded),
            not_ours: of(&counts.not_ours),
            by_deadline: of(&counts.by_deadline),
            refused: of(&counts.refused),
            helper_ns: of(&counts.helper_ns),
        }
    }

    fn since(self, before: Self) -> Self {
        Self {
            boosts: self.boosts - before.boosts,
            returns: self.returns - before.returns,
            late: self.late - before.late,
            crowded: self.crowded - before.crowded,
            not_ours: self.not_ours - before.not_ours,
            by_deadline: self.by_deadline - before.by_deadline,
            refused: self.refused - before.refused,
            helper_ns: self.helper_ns.saturating_sub(before.helper_ns),
        }
    }
}

/// Counts of an interval, or of the whole run.
#[derive(Debug, Clone)]
pub struct Report {
    pub is_final: bool,
    pub dry_run: bool,
    /// Seconds that it covers.
    pub seconds: f64,
    pub vms: Vec<VmBoosts>,
    /// VMs that are gone, summed up.
    pub gone: (VmStats, BoostStats),
    pub helped: Helped,
    /// Watchers that were found dead, and replaced, since the start.
    pub watchers_replaced: u32,
    /// By what KVM is seen.
    pub hooks: Hooks,
    /// Runs of BPF programs that the kernel left out.
    pub recursion_misses: RecursionMisses,
    /// `None`: nothing is paid back.
    pub paid_back: Option<PaidBack>,
}

impl Report {
    /// Returns the report of the time since `before`.
    pub fn since(&self, before: Option<&Self>) -> Self {
        let Some(before) = before else { return self.clone() };
        let mut interval = self.clone();
        interval.seconds -= before.seconds;
        for vm in &mut interval.vms {
            let same = |old: &&VmBoosts| (old.pid, old.generation) == (vm.pid, vm.generation);
            if let Some(old) = before.vms.iter().find(same) {
                vm.stats = difference(&vm.stats, &old.stats);
                vm.boosts = difference(&vm.boosts, &old.boosts);
            }
        }
        interval.gone = (difference(&self.gone.0, &before.gone.0), difference(&self.gone.1, &before.gone.1));
        interval.helped = self.helped.since(before.helped);
        interval.recursion_misses = self.recursion_misses.since(&before.recursion_misses);
        interval
    }

    /// All VMs together, those that are gone included.
    pub fn total(&self) -> (VmStats, BoostStats) {
        self.vms
            .iter()
            .fold(self.gone, |(stats, boosts), vm| (sum(&stats, &vm.stats), sum(&boosts, &vm.boosts)))
    }

    pub fn to_json(&self) -> Value {
        let (stats, boosts) = self.total();
        let vms: Vec<Value> = self.vms.iter().map(vm_json).collect();
        let helped = &self.helped;
        let mut object = json!({
            "scheduler": "beside",
            "final": self.is_final,
            "dry_run": self.dry_run,
            "seconds": self.seconds,
            "vms": vms,
            "helper": {
                "boosts": helped.boosts,
                "returns": helped.returns,
                "late": helped.late,
                "crowded": helped.crowded,
                "not_ours": helped.not_ours,
                "by_deadline": helped.by_deadline,
                "refused_by_the_kernel": helped.refused,
                "ran_ns": helped.helper_ns,
                "watchers_replaced": self.watchers_replaced,
            },
            "program_runs_left_out": self.recursion_misses.to_json(),
            "hooks": self.hooks.to_json(),
            "pay_back": self.paid_back.map(PaidBack::to_json),
        });
        merge(&mut object, counters_json(&stats, &boosts));
        object
    }

    pub fn to_text(&self) -> String {
        let (stats, boosts) = self.total();
        let span = if self.is_final { "whole run" } else { "last interval" };
        let mode = if self.dry_run { ", dry run: nobody is boosted" } else { "" };
        let mut text = format!("{span}: {:.1} s beside the kernel's own scheduler{mode}\n\n", self.seconds);
        text.push_str(&self.vm_table().to_string());
        text.push('\n');
        text.push_str(&cause_table(&stats, &boosts, self.dry_run).to_string());
        text.push('\n');
        let list = |names: &mut dyn Iterator<Item = &'static str>, counts: &[u64]| {
            let all: Vec<_> = names.zip(counts).map(|(name, count)| format!("{name} {count}")).collect();
            all.join(", ")
        };
        text.push_str(&format!(
            "refused         {}\nmissed          {}\nended           {}\n",
            list(&mut names::<BoostDecision>().skip(1), &boosts.refusals[1..]),
            list(&mut names::<BoostMiss>(), &boosts.missed),
            list(&mut names::<MicroSliceOutcome>(), &boosts.ends),
        ));
        let helped = &self.helped;
        let wait = Histogram::from_log2(&boosts.wait_us, 0);
        let us = |percent| wait.percentile(percent).map_or("-".into(), |us| format!("{us} us"));
        text.push_str(&format!(
            "helper          {} boosts, {} taken back, {} late, {} crowded, {} real-time already, {} refused by the kernel\n\
             from request    p50 {}, p99 {} until it ran; the helper ran for {:.1} ms\n",
            helped.boosts,
            helped.returns,
            helped.late,
            helped.crowded,
            helped.not_ours,
            helped.refused,
            us(50.0),
            us(99.0),
            helped.helper_ns as f64 / 1e6,
        ));
        if boosts.late_waits > 0 {
            text.push_str(&format!(
                "late            {} waits were longer than max-wait allows\n",
                boosts.late_waits
            ));
        }
        text.extend(self.paid_back.map(PaidBack::line));
        text.extend(Stops::of(&stats).line());
        text.push_str(&self.recursion_misses.line());
        text
    }

    fn vm_table(&self) -> Table {
        let columns = [
            "vm",
            ">pid",
            ">vcpus",
            ">ran",
            ">wait p50",
            ">wait p99",
            ">bound",
            ">preempted",
            ">requests",
            ">boosted",
            ">boosted for",
            "guest",
        ];
        let mut table = Table::new(&columns);
        for vm in &self.vms {
            let wait = Histogram::from_log2(&vm.stats.wait_to_run_us, 0);
            let us = |percent| wait.percentile(percent).map_or("-".into(), |us| format!("{us} us"));
            table.row([
                vm.name.clone(),
                vm.pid.to_string(),
                vm.vcpu_count.to_string(),
                format!("{:.1} s", vm.stats.ran_ns as f64 / 1e9),
                us(50.0),
                us(99.0),
                vm.bound_ns.map_or("none".into(), |ns| format!("{} us", ns / 1000)),
                add_up(&vm.stats.preemptions).to_string(),
                add_up(&vm.boosts.requests).to_string(),
                ran(&vm.boosts).to_string(),
                format!("{:.1} ms", vm.boosts.ran_ns as f64 / 1e6),
                match &vm.kernel {
                    Some(kernel) => format!("{kernel}, {}", vm.state),
                    None => vm.state.clone(),
                },
            ]);
        }
        table
    }
}

/// Boosts that ran.
fn ran(boosts: &BoostStats) -> u64 {
    boosts.boosts.iter().map(|row| add_up(row)).sum()
}

/// Requests that came to nothing, by the budget's word and by what came in between.
pub(crate) fn failed_pulls(boosts: &BoostStats) -> impl Iterator<Item = (&'static str, u64)> {
    let refused = names::<BoostDecision>().zip(boosts.refusals);
    let refused = refused.enumerate().filter(|(at, _)| *at != BoostDecision::Granted as usize);
    refused.map(|(_, refused)| refused).chain(names::<BoostMiss>().zip(boosts.missed))
}

fn cause_table(stats: &VmStats, boosts: &BoostStats, dry_run: bool) -> Table {
    let mut table = Table::new(&["cause", ">requests", ">boosted", "of these, by guest class"]);
    for (at, cause) in names::<Cause>().enumerate().skip(1) {
        let row = if dry_run { &stats.would_request[at] } else { &boosts.boosts[at] };
        let classes: Vec<_> = names::<GuestClass>()
            .zip(row)
            .filter(|(_, count)| **count > 0)
            .map(|(class, count)| format!("{class} {count}"))
            .collect();
        let requests = if dry_run { add_up(row) } else { boosts.requests[at] };
        let boosted = if dry_run { 0 } else { add_up(row) };
        table.row([cause.to_owned(), requests.to_string(), boosted.to_string(), classes.join(", ")]);
    }
    table
}

/// Returns the JSON that a VM's counters and the sum of all have in common.
fn counters_json(stats: &VmStats, boosts: &BoostStats) -> Value {
    let (requests, total) = (add_up(&boosts.requests), ran(boosts));
    let lost = add_up(&boosts.refusals) + add_up(&boosts.missed);
    let by_class: Vec<u64> = (0..GuestClass::ALL.len())
        .map(|class| boosts.boosts.iter().map(|of_cause| of_cause[class]).sum())
        .collect();
    json!({
        "acceleration_requests": counted_by_cause(&boosts.requests),
        "would_accelerate": sums_by_cause(&stats.would_request),
        "failed_pulls": failed_pulls(boosts).collect::<BTreeMap<_, _>>(),
        "pending_requests": requests.saturating_sub(total + lost),
        "accelerations": {
            "total": total,
            "by_cause": sums_by_cause(&boosts.boosts),
            "by_class": named(names::<GuestClass>(), &by_class),
            "by_cause_and_class": matrix::<Cause, GuestClass, _>(&boosts.boosts),
        },
        "acceleration_returns": {
            "total": add_up(&boosts.ends),
            "by_reason": named(names::<MicroSliceOutcome>(), &boosts.ends),
        },
        "still_accelerated": total.saturating_sub(add_up(&boosts.ends)),
        "boosted_ns": boosts.ran_ns,
        "late_waits": boosts.late_waits,
        "boost_wait_us": Histogram::from_log2(&boosts.wait_us, 0),
        "micro_slice_us": Histogram::from_log2(&boosts.slice_us, boosts.ran_ns / 1000),
        "preemptions": {
            "total": add_up(&stats.preemptions),
            "by_class": named(names::<GuestClass>(), &stats.preemptions),
        },
        "holders": Stops::of(stats).to_json(),
        "yields": matrix::<YieldCause, YieldReason, _>(&stats.yields),
        "siblings": named(names::<SiblingDecision>(), &stats.siblings),
        "interrupts": matrix::<InterruptKind, InterruptReason, _>(&stats.interrupts),
        "ipis": stats.ipis(),
        "virqs": stats.virqs(),
        "wait_to_run_us": Histogram::from_log2(&stats.wait_to_run_us, stats.waited_ns / 1000),
        "cpu_time_ns": stats.ran_ns,
        "ready_time_ns": stats.waited_ns,
    })
}

fn vm_json(vm: &VmBoosts) -> Value {
    let mut object = json!({
        "name": vm.name,
        "uuid": vm.uuid,
        "pid": vm.pid,
        "vcpus": vm.vcpu_count,
        "kernel": vm.kernel,
        "slide": vm.slide.map(|slide| format!("{slide:#x}")),
        "state": vm.state,
        "wait_bound_ns": vm.bound_ns,
    });
    merge(&mut object, counters_json(&vm.stats, &vm.boosts));
    object
}

#[cfg(test)]
mod tests {
    use super::*;
    use zerocopy::FromZeros;

    fn report() -> Report {
        let mut boosts = BoostStats::new_zeroed();
        boosts.requests[Cause::TlbYield as usize] = 10;
        boosts.refusals[BoostDecision::OverBudget as usize] = 3;
        boosts.missed[BoostMiss::Overtaken as usize] = 2;
        boosts.boosts[Cause::TlbYield as usize][GuestClass::User as usize] = 4;
        boosts.ends[0] = 3;
        let vm = VmBoosts {
            name: "web".into(),
            uuid: None,
            pid: 7,
            generation: 1,
            vcpu_count: 2,
            kernel: None,
            slide: None,
            state: "slide 0x0".into(),
            stats: VmStats::new_zeroed(),
            boosts,
            bound_ns: Some(25_000_000),
        };
        Report {
            is_final: true,
            dry_run: false,
            seconds: 2.0,
            vms: vec![vm],
            gone: (VmStats::new_zeroed(), BoostStats::new_zeroed()),
            helped: Helped { boosts: 5, returns: 5, ..Helped::default() },
            watchers_replaced: 0,
            hooks: Hooks::default(),
            recursion_misses: RecursionMisses::default(),
            paid_back: None,
        }
    }

    #[test]
    fn what_isnt_counted_yet_is_pending_or_in_flight() {
        let json = report().to_json();
        assert_eq!(
            (&json["acceleration_requests"]["total"], &json["pending_requests"]),
            (&json!(10), &json!(1))
        );
        assert_eq!((&json["accelerations"]["total"], &json["still_accelerated"]), (&json!(4), &json!(1)));
        assert_eq!(json["accelerations"]["by_class"]["user"], 4);
        assert_eq!(json["failed_pulls"]["over_budget"], 3);
        assert_eq!(json["vms"][0]["accelerations"]["by_cause"]["tlb_yield"], 4);
    }

    #[test]
    fn an_interval_has_what_came_after_the_one_before() {
        let before = report();
        let mut now = report();
        now.vms[0].boosts.requests[Cause::TlbYield as usize] = 12;
        now.helped.boosts = 9;
        now.seconds = 3.0;
        let json = now.since(Some(&before)).to_json();
        assert_eq!(
            (&json["acceleration_requests"]["total"], &json["helper"]["boosts"]),
            (&json!(2), &json!(4))
        );
        assert_eq!(json["seconds"], 1.0);
        now.vms[0].generation = 2;
        assert_eq!(
            now.since(Some(&before)).to_json()["acceleration_requests"]["total"],
            12,
            "another VM has the slot"
        );
    }

    #[test]
    fn text_names_refusals_and_the_helpers_counts() {
        let text = report().to_text();
        for part in ["over_budget 3", "overtaken 2", "5 boosts, 5 taken back", "tlb_yield", "web"] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }

    #[test]
    fn the_bound_in_force_is_shown_served_and_in_json() {
        use crate::output::monitoring::Reading;
        let mut report = report();
        let bound = |report: &Report| {
            let snapshot = report.snapshot();
            snapshot.get(&microslice_metrics::figures::WAIT_BOUND, &["web"]).cloned()
        };
        assert!(report.to_text().contains("25000 us"), "{}", report.to_text());
        assert_eq!(report.to_json()["vms"][0]["wait_bound_ns"], 25_000_000);
        assert_eq!(report.view().vms[0].bound_ns, Some(25_000_000));
        assert_eq!(bound(&report), Some(microslice_metrics::Value::Gauge(25e6)));
        report.vms[0].bound_ns = None;
        assert_eq!(
            (bound(&report), report.to_json()["vms"][0]["wait_bound_ns"].clone()),
            (None, Value::Null)
        );
    }
}
