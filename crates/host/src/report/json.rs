//! A report as one JSON object.

use super::{Report, VmReport, add_up, fairness_error};
use crate::cgroups::CpuLimit;
use crate::config::SchedulerChoice;
use crate::scheduler::HostStats;
use crate::{delay_preemption, micro_report, urgent_report};
use microslice_policy::{Cause, Coded};
use serde_json::{Value, json};

impl Report {
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
