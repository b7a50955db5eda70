//! What a run did: one JSON object, or one screenful, of an interval or of the whole run.
//!
//! Sums that hold in every report of a whole run, up to what changes while the counters are read:
//! requests = accelerations + failed pulls + pending; accelerations = returns + in flight.

use crate::cgroups::{CpuLimit, CpuLimits};
use crate::config::SchedulerChoice;
use crate::interface::BoostStats;
use crate::pool_history::Change;
use crate::recursion_misses::RecursionMisses;
use crate::scheduler::{HostStats, VmStats};
use crate::{delay_preemption, micro_report, urgent_report};
use microslice_metrics::Histogram;
use microslice_metrics::table::Table;
use microslice_policy::{Cause, Coded, GuestClass, InterruptKind, YieldCause};
use serde_json::{Value, json};
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// One VM's part of a report.
#[derive(Debug, Clone)]
pub struct VmReport {
    pub name: String,
    /// libvirt's, if it is one of its domains.
    pub uuid: Option<String>,
    pub pid: u32,
    pub vcpu_count: u32,
    pub weight: u32,
    /// What its cgroups allow it.
    pub cpu_limits: CpuLimits,
    pub kernel: Option<String>,
    pub slide: Option<u64>,
    pub state: String,
    pub stats: VmStats,
}

/// Counts of an interval, or of the whole run.
#[derive(Debug, Clone)]
pub struct Report {
    pub scheduler: SchedulerChoice,
    pub is_final: bool,
    pub dry_run: bool,
    /// Seconds that it covers.
    pub seconds: f64,
    pub micro_cpus: u32,
    pub vms: Vec<VmReport>,
    /// VMs that are gone, summed up.
    pub gone: VmStats,
    pub host: HostStats,
    /// How often the scheduler was started again because pCPUs came or went, since the start.
    pub restarts: u64,
    pub pool_size_history: Vec<Change>,
    /// How much time micro-sliced pCPUs had, all together; in a dry run those that there would have been.
    pub micro_pcpu_ns: u64,
    pub exit: Option<String>,
    /// Runs of its BPF programs that the kernel left out.
    pub recursion_misses: RecursionMisses,
    /// What its BPF programs cost, if that is measured: `program_costs::of_object`.
    pub programs: Option<Value>,
}

/// Counters that only grow: structs of `u64`.
pub trait Counters: Copy + FromBytes + IntoBytes + Immutable {}

impl Counters for VmStats {}

impl VmStats {
    /// Reschedule and call-function interrupts between its vCPUs.
    pub(crate) fn ipis(&self) -> u64 {
        [InterruptKind::IpiReschedule, InterruptKind::IpiCallFunction]
            .map(|kind| add_up(&self.interrupts[kind as usize]))
            .iter()
            .sum()
    }

    /// Likewise, as the scheduler `coordinated` sees them.
    pub(crate) fn urgent_ipis(&self) -> u64 {
        [InterruptKind::IpiReschedule, InterruptKind::IpiCallFunction]
            .map(|kind| self.urgent.ipis[kind as usize])
            .iter()
            .sum()
    }

    /// Device interrupts to its vCPUs.
    pub(crate) fn virqs(&self) -> u64 {
        add_up(&self.interrupts[InterruptKind::Virq as usize])
    }

    /// What its vCPUs and its VMM's other threads ran.
    pub(crate) fn had_ns(&self) -> u64 {
        self.ran_ns + self.vmm_ran_ns
    }
}
impl Counters for HostStats {}
impl Counters for BoostStats {}

/// `now - before`, counter by counter.
pub fn difference<C: Counters>(now: &C, before: &C) -> C {
    combine(now, before, u64::saturating_sub)
}

/// Both together.
pub fn sum<C: Counters>(a: &C, b: &C) -> C {
    combine(a, b, u64::wrapping_add)
}

fn combine<C: Counters>(a: &C, b: &C, operation: impl Fn(u64, u64) -> u64) -> C {
    let mut result = *a;
    let words =
        <[u64]>::mut_from_bytes(result.as_mut_bytes()).expect("aligned as u64, and a whole number of them");
    let more = <[u64]>::ref_from_bytes(b.as_bytes()).expect("likewise");
    for (word, more) in words.iter_mut().zip(more) {
        *word = operation(*word, *more);
    }
    result
}

pub(crate) fn add_up(counters: &[u64]) -> u64 {
    counters.iter().sum()
}

impl Report {
    /// All VMs together, those that are gone included.
    pub fn total(&self) -> VmStats {
        self.vms.iter().fold(self.gone, |total, vm| sum(&total, &vm.stats))
    }

    /// Shares of the CPU time that VMs got together, their VMMs included: received, and due by weight and demand.
    pub fn shares(&self) -> Vec<(f64, f64)> {
        let vm = |vm: &VmReport| (f64::from(vm.weight), vm.stats.had_ns(), vm.stats.waited_ns);
        shares_of(&self.vms.iter().map(vm).collect::<Vec<_>>())
    }

    /// Micro-sliced pCPUs on average.
    pub fn mean_micro_cpus(&self) -> f64 {
        if self.seconds > 0.0 { self.micro_pcpu_ns as f64 / 1e9 / self.seconds } else { 0.0 }
    }

    /// The part of their time in which they ran accelerated vCPUs, if there were any.
    pub fn micro_cpus_busy(&self) -> Option<f64> {
        self.part_of_micro_cpus(self.total().micro_ran_ns)
    }

    /// The part of their time in which they ran vCPUs of the normal pool, because nobody asked for them.
    pub fn micro_cpus_lent(&self) -> Option<f64> {
        self.part_of_micro_cpus(self.total().lent_ran_ns)
    }

    fn part_of_micro_cpus(&self, ran_ns: u64) -> Option<f64> {
        (self.micro_pcpu_ns > 0).then(|| ran_ns as f64 / self.micro_pcpu_ns as f64)
    }

    pub fn to_json(&self) -> Value {
        let total = self.total();
        let counters = match self.scheduler {
            SchedulerChoice::Microslice => micro_report::counters_json,
            SchedulerChoice::Coordinated => urgent_report::counters_json,
        };
        let shares = self.shares();
        let vms: Vec<_> = self
            .vms
            .iter()
            .zip(&shares)
            .map(|(vm, (received, due))| {
                let mut object = vm_json(vm, *received, *due);
                merge(&mut object, counters(&vm.stats));
                merge(&mut object, json!({"delays": delay_preemption::json(&vm.stats.delays)}));
                object
            })
            .collect();
        let mut object = json!({
            "scheduler": self.scheduler.name(),
            "final": self.is_final,
            "seconds": self.seconds,
            "scheduler_restarts": self.restarts,
            "vms": vms,
            "host": host_json(&self.host),
            "fairness_error": fairness_error(&shares),
            "program_runs_left_out": self.recursion_misses.to_json(),
            "exit": self.exit,
            "programs": self.programs,
        });
        merge(&mut object, counters(&total));
        merge(&mut object, json!({"delays": delay_preemption::json(&total.delays)}));
        if self.scheduler == SchedulerChoice::Microslice {
            merge(&mut object, self.pool_json());
        }
        object
    }

    fn pool_json(&self) -> Value {
        json!({
            "dry_run": self.dry_run,
            "micro_pool_size": self.micro_cpus,
            "micro_pool_mean": self.mean_micro_cpus(),
            "micro_pool_time_ns": self.micro_pcpu_ns,
            "micro_pool_busy": self.micro_cpus_busy(),
            "micro_pool_lent": self.micro_cpus_lent(),
            "pool_size_history": self.pool_size_history.iter()
                .map(|(at_ms, count, reason)| json!({"at_ms": at_ms, "micro_cpus": count, "reason": reason}))
                .collect::<Vec<_>>(),
        })
    }

    pub fn to_text(&self) -> String {
        let total = self.total();
        let span = if self.is_final { "whole run" } else { "last interval" };
        let mut text = match self.scheduler {
            SchedulerChoice::Microslice => format!("{span}: {:.1} s, {}\n\n", self.seconds, self.pool_line()),
            SchedulerChoice::Coordinated => format!("{span}: {:.1} s, urgent vCPUs first\n\n", self.seconds),
        };
        text.push_str(&self.vm_table().to_string());
        for vm in &self.vms {
            if !vm.cpu_limits.is_empty() {
                let rested = vm.stats.rested_ns as f64 / 1e9;
                text.push_str(&format!("{}: limited to {}, rested {rested:.1} s\n", vm.name, vm.cpu_limits));
            }
        }
        text.push('\n');
        text.push_str(&match self.scheduler {
            SchedulerChoice::Microslice => {
                let causes = micro_report::cause_table(&total, self.dry_run);
                format!("{causes}\n{}{}", class_lines(&total), micro_report::flow_lines(&total))
            }
            SchedulerChoice::Coordinated => urgent_report::lines(&total),
        });
        text.push_str(&delay_preemption::line(&total.delays));
        text.push_str(&self.recursion_misses.line());
        text.push_str(&self.programs.as_ref().map(program_table).unwrap_or_default());
        if let Some(exit) = &self.exit {
            text.push_str(&format!("ended by the kernel: {exit}\n"));
        }
        text
    }

    /// Micro-sliced pCPUs, and what they did.
    fn pool_line(&self) -> String {
        let mode = if self.dry_run { ", dry run: nothing is moved" } else { "" };
        let percent = |part: Option<f64>, word: &str| {
            part.map_or(String::new(), |part| format!(", {:.0} % {word}", part * 100.0))
        };
        let busy = percent(self.micro_cpus_busy(), "busy") + &percent(self.micro_cpus_lent(), "lent");
        format!(
            "{} micro-sliced pCPU{} ({:.2} on average{busy}){mode}",
            self.micro_cpus,
            if self.micro_cpus == 1 { "" } else { "s" },
            self.mean_micro_cpus(),
        )
    }

    fn vm_table(&self) -> Table {
        let [requests, served] = match self.scheduler {
            SchedulerChoice::Microslice => [">requests", ">accelerated"],
            SchedulerChoice::Coordinated => [">urgent", ">urgent slices"],
        };
        let mut table = Table::new(&[
            "vm",
            ">pid",
            ">vcpus",
            ">weight",
            ">share",
            ">due",
            ">wait p50",
            ">wait p99",
            ">preempted",
            requests,
            served,
            "guest",
        ]);
        for (vm, (received, due)) in self.vms.iter().zip(self.shares()) {
            let wait = Histogram::from_log2(&vm.stats.wait_to_run_us, 0);
            let us = |percent| wait.percentile(percent).map_or("-".into(), |us| format!("{us} us"));
            let accelerations = || vm.stats.accelerations.iter().map(|row| add_up(row)).sum();
            let [requests, served] = match self.scheduler {
                SchedulerChoice::Microslice => [add_up(&vm.stats.requests), accelerations()],
                SchedulerChoice::Coordinated => [vm.stats.urgent.became_urgent, vm.stats.urgent.slices],
            };
            table.row([
                vm.name.clone(),
                vm.pid.to_string(),
                vm.vcpu_count.to_string(),
                vm.weight.to_string(),
                format!("{:.1} %", received * 100.0),
                format!("{:.1} %", due * 100.0),
                us(50.0),
                us(99.0),
                add_up(&vm.stats.preemptions).to_string(),
                requests.to_string(),
                served.to_string(),
                match &vm.kernel {
                    Some(kernel) => format!("{kernel}, {}", vm.state),
                    None => vm.state.clone(),
                },
            ]);
        }
        table
    }
}

pub(crate) fn class_lines(total: &VmStats) -> String {
    let list = |names: &mut dyn Iterator<Item = (&str, u64)>| {
        let some: Vec<_> =
            names.filter(|(_, count)| *count > 0).map(|(name, count)| format!("{name} {count}")).collect();
        if some.is_empty() { "none".to_owned() } else { some.join(", ") }
    };
    let preempted =
        list(&mut GuestClass::ALL.iter().map(|class| class.name()).zip(total.preemptions.iter().copied()));
    let yields = list(
        &mut YieldCause::ALL.iter().map(|cause| cause.name()).zip(total.yields.iter().map(|row| add_up(row))),
    );
    let interrupts = list(
        &mut InterruptKind::ALL
            .iter()
            .map(|kind| kind.name())
            .zip(total.interrupts.iter().map(|row| add_up(row))),
    );
    format!("preempted in    {preempted}\nyields          {yields}\ninterrupts      {interrupts}\n")
}

/// Shares received and due of VMs of which each has its weight, what it had and what it waited for, both in nanoseconds.
pub(crate) fn shares_of(vms: &[(f64, u64, u64)]) -> Vec<(f64, f64)> {
    let total: f64 = vms.iter().map(|(_, had_ns, _)| *had_ns as f64).sum();
    if total == 0.0 {
        return vec![(0.0, 0.0); vms.len()];
    }
    let demand = |(_, had_ns, waited_ns): &(f64, u64, u64)| (had_ns + waited_ns) as f64 / total;
    let demand: Vec<f64> = vms.iter().map(demand).collect();
    let weights: Vec<f64> = vms.iter().map(|(weight, ..)| *weight).collect();
    let due = shares_due(&weights, &demand);
    vms.iter().zip(due).map(|((_, had_ns, _), due)| (*had_ns as f64 / total, due)).collect()
}

/// Weighted shares of 1 in which nobody gets more than it asked for and nothing that is asked for is left over.
fn shares_due(weights: &[f64], demand: &[f64]) -> Vec<f64> {
    let mut due = vec![0.0; weights.len()];
    let mut open: Vec<usize> = (0..weights.len()).collect();
    let mut left = 1.0f64;
    while !open.is_empty() {
        let weight: f64 = open.iter().map(|&vm| weights[vm]).sum();
        let part = |vm: usize| left * weights[vm] / weight.max(f64::MIN_POSITIVE);
        let (satisfied, hungry): (Vec<_>, Vec<_>) = open.iter().partition(|&&vm| demand[vm] <= part(vm));
        if satisfied.is_empty() {
            for vm in hungry {
                due[vm] = part(vm);
            }
            break;
        }
        for &vm in &satisfied {
            due[vm] = demand[vm];
        }
        left = (left - satisfied.iter().map(|&vm| demand[vm]).sum::<f64>()).max(0.0);
        open = hungry;
    }
    due
}

/// What each BPF program cost; those that never ran are left out.
fn program_table(programs: &Value) -> String {
    let mut table = Table::new(&["BPF program", ">runs", ">ns/run", ">instructions verified"]);
    for program in programs.as_array().into_iter().flatten() {
        let number = |key: &str| program[key].as_u64().unwrap_or(0);
        let (runs, ns) = (number("runs"), number("ns"));
        if runs > 0 {
            let name = program["program"].as_str().unwrap_or_default().to_owned();
            let cells = [name, runs.to_string(), (ns / runs).to_string(), number("instructions").to_string()];
            table.row(cells.to_vec());
        }
    }
    format!("\n{table}")
}

/// The largest difference between what a VM received and what was due to it, as a share of all.
pub(crate) fn fairness_error(shares: &[(f64, f64)]) -> f64 {
    shares.iter().map(|(received, due)| (received - due).abs()).fold(0.0, f64::max)
}

/// `{"total", "by_cause"}`, but for [`Cause::None`].
pub(crate) fn counted_by_cause(counts: &[u64]) -> Value {
    json!({"total": add_up(counts), "by_cause": named(names::<Cause>().skip(1), &counts[1..])})
}

pub(crate) fn named(names: impl Iterator<Item = &'static str>, counts: &[u64]) -> Value {
    Value::Object(names.zip(counts).map(|(name, count)| (name.to_owned(), json!(count))).collect())
}

pub(crate) fn names<E: Coded>() -> impl Iterator<Item = &'static str> {
    E::ALL.iter().map(|value| value.name())
}

/// `{cause: count}` of rows by cause, but for [`Cause::None`].
pub(crate) fn sums_by_cause<const N: usize>(rows: &[[u64; N]]) -> Value {
    let sums = names::<Cause>().zip(rows).skip(1).map(|(cause, row)| (cause.to_owned(), json!(add_up(row))));
    Value::Object(sums.collect())
}

/// `{row: {column: count}}`
pub(crate) fn matrix<R: Coded, C: Coded, const N: usize>(rows: &[[u64; N]]) -> Value {
    Value::Object(
        names::<R>().zip(rows).map(|(name, row)| (name.to_owned(), named(names::<C>(), row))).collect(),
    )
}

fn vm_json(vm: &VmReport, share_received: f64, share_due: f64) -> Value {
    json!({
        "name": vm.name,
        "uuid": vm.uuid,
        "pid": vm.pid,
        "vcpus": vm.vcpu_count,
        "vm_weight": vm.weight,
        "cpu_limits": vm.cpu_limits.of_vm.iter().map(CpuLimit::cpus).collect::<Vec<_>>(),
        "vcpu_limit": vm.cpu_limits.of_each_vcpu.as_ref().map(CpuLimit::cpus),
        "kernel": vm.kernel,
        "slide": vm.slide.map(|slide| format!("{slide:#x}")),
        "state": vm.state,
        "vmm_time_ns": vm.stats.vmm_ran_ns,
        "share_received": share_received,
        "share_due": share_due,
    })
}

fn host_json(host: &HostStats) -> Value {
    json!({
        "others_ran_ns": host.others_ran_ns,
        "pool_resizes": host.pool_resizes,
        "starving_served": host.starving_served,
        "strays_evicted": host.strays_evicted,
        "confined_inserts": host.confined_inserts,
        "rescued": host.rescued,
        "events_dropped": host.events_dropped,
        "records_dropped": host.records_dropped,
        "vcpus_refused": host.vcpus_refused,
        "rested_time_ns": host.rested_ns,
        "late_requests": host.late_requests,
        "taken_from_domains": {"idle": host.taken_when_idle, "balance": host.taken_by_balance},
        "kernel_refusals": {
            "rest_timer": host.rest_timers_refused,
            "turn_timer": host.turn_timers_refused,
            "slice_timer": host.slice_timers_refused,
            "look_timer": host.look_timers_refused,
            "pool_timer": host.pool_timers_refused,
            "vcpu_address": host.vcpu_addresses_refused,
        },
        "urgent_events": {"ipi": host.urgent_ipis, "ple": host.urgent_ples, "virq": host.urgent_irqs},
    })
}

pub(crate) fn merge(object: &mut Value, more: Value) {
    if let (Value::Object(object), Value::Object(more)) = (object, more) {
        object.extend(more);
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn vm(name: &str, weight: u32, ran_ns: u64, waited_ns: u64) -> VmReport {
        VmReport {
            name: name.into(),
            uuid: None,
            pid: 1,
            vcpu_count: 4,
            weight,
            cpu_limits: CpuLimits::default(),
            kernel: None,
            slide: None,
            state: String::new(),
            stats: VmStats { ran_ns, waited_ns, ..VmStats::default() },
        }
    }

    pub(crate) fn report(vms: Vec<VmReport>) -> Report {
        Report {
            scheduler: SchedulerChoice::Microslice,
            is_final: true,
            dry_run: false,
            seconds: 1.0,
            micro_cpus: 1,
            vms,
            gone: VmStats::default(),
            host: HostStats::default(),
            restarts: 0,
            pool_size_history: vec![(10, 1, "ipi_dominant")],
            micro_pcpu_ns: 500_000_000,
            exit: None,
            recursion_misses: RecursionMisses::default(),
            programs: None,
        }
    }

    #[test]
    fn counters_of_a_vm_and_of_the_host_are_told_apart_before_and_after_an_interval() {
        let host = |others_ran_ns| HostStats { others_ran_ns, rescued: 7, ..HostStats::default() };
        let interval = difference(&host(5), &host(3));
        assert_eq!((interval.others_ran_ns, interval.rescued), (2, 0));
        assert_eq!(sum(&interval, &host(3)).others_ran_ns, 5);
        let vm = |ran_ns| VmStats { ran_ns, ..VmStats::default() };
        assert_eq!(difference(&vm(5), &vm(3)).ran_ns, 2);
    }

    #[test]
    fn what_one_vm_does_not_ask_for_is_due_to_the_others_by_weight() {
        assert_eq!(shares_due(&[100.0, 100.0], &[1.0, 1.0]), [0.5, 0.5]);
        assert_eq!(shares_due(&[200.0, 100.0, 100.0], &[1.0, 0.1, 1.0]), [0.6, 0.1, 0.3]);
        assert_eq!(shares_due(&[], &[]), Vec::<f64>::new());
    }

    #[test]
    fn shares_add_up_to_the_time_that_was_had() {
        let shares = report(vec![vm("a", 200, 2_000, 2_000), vm("b", 100, 1_000, 2_000)]).shares();
        assert!(
            (shares[0].0 - 2.0 / 3.0).abs() < 1e-9 && (shares[0].1 - 2.0 / 3.0).abs() < 1e-9,
            "{shares:?}"
        );
        assert!((shares.iter().map(|share| share.1).sum::<f64>() - 1.0).abs() < 1e-9);
    }

    #[test]
    fn json_carries_the_sums_that_must_hold() {
        let mut one = vm("a", 100, 1, 1);
        one.stats.requests[1] = 5;
        one.stats.accelerations[1][5] = 3;
        one.stats.failures[2] = 1;
        one.stats.returns[0] = 2;
        let json = report(vec![one]).to_json();
        assert_eq!(json["acceleration_requests"]["total"], 5);
        assert_eq!(json["accelerations"]["by_cause"]["tlb_yield"], 3);
        assert_eq!(json["accelerations"]["by_class"]["tlb_shootdown"], 3);
        assert_eq!(
            (&json["pending_requests"], &json["acceleration_returns"]["total"], &json["still_accelerated"]),
            (&json!(1), &json!(2), &json!(1))
        );
        assert_eq!(json["pool_size_history"][0]["micro_cpus"], 1);
    }

    #[test]
    fn the_pools_mean_size_and_how_busy_it_was_are_shown() {
        let mut used = report(vec![vm("a", 100, 1, 1)]);
        used.vms[0].stats.micro_ran_ns = 170_000_000;
        used.vms[0].stats.lent_ran_ns = 300_000_000;
        assert!(
            used.to_text().starts_with(
                "whole run: 1.0 s, 1 micro-sliced pCPU (0.50 on average, 34 % busy, 60 % lent)\n"
            ),
            "{}",
            used.to_text()
        );
        assert_eq!(used.to_json()["micro_pool_busy"], 0.34);
        assert_eq!(used.to_json()["micro_pool_lent"], 0.6);
        let none = Report { micro_cpus: 0, micro_pcpu_ns: 0, ..used };
        assert!(none.to_text().starts_with("whole run: 1.0 s, 0 micro-sliced pCPUs (0.00 on average)\n"));
        assert_eq!(none.to_json()["micro_pool_busy"], Value::Null);
    }

    #[test]
    fn one_screenful_shows_every_vm_and_cause() {
        let text = report(vec![vm("web", 100, 1, 1)]).to_text();
        assert!(text.lines().count() <= 30, "{text}");
        for word in ["web", "tlb_yield", "virq", "failed pulls", "in flight 0"] {
            assert!(text.contains(word), "{word} is missing in {text}");
        }
    }

    #[test]
    fn an_interval_is_the_difference_of_two_readings() {
        let before = vm("a", 100, 5, 1).stats;
        let now = vm("a", 100, 12, 1).stats;
        assert_eq!(difference(&now, &before).ran_ns, 7);
    }

    #[test]
    fn limits_are_in_the_text_and_in_the_json_with_how_long_vcpus_rested() {
        let limit =
            |quota_us| CpuLimit { quota_us, period_us: 100_000, burst_us: 0, file: "/g/cpu.max".into() };
        let cpu_limits = CpuLimits { of_vm: vec![limit(150_000)], of_each_vcpu: Some(limit(50_000)) };
        let limited = VmReport { cpu_limits, ..vm("web", 100, 1, 1) };
        let report = report(vec![limited, vm("free", 100, 1, 1)]);
        let text = report.to_text();
        let line =
            "web: limited to 1.50 CPUs (/g/cpu.max), 0.50 CPUs (/g/cpu.max) for each vCPU, rested 0.0 s\n";
        assert!(text.contains(line) && text.matches("limited to").count() == 1, "{text}");
        let vms = report.to_json()["vms"].clone();
        assert_eq!((&vms[0]["cpu_limits"], &vms[0]["vcpu_limit"]), (&json!([1.5]), &json!(0.5)));
        assert_eq!((&vms[1]["cpu_limits"], &vms[1]["vcpu_limit"]), (&json!([]), &Value::Null));
    }
}
