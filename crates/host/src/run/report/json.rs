//! A report as one JSON object.

use crate::interface::HostStats;
use crate::machine::cgroups::CpuLimit;
use crate::output::words::merge;
use crate::run::report::delays;
use crate::run::report::{Report, VmReport, micro, urgent};
use crate::settings::SchedulerChoice;
use crate::shares::due::fairness_error;
use serde_json::{Value, json};

impl Report {
    pub fn to_json(&self) -> Value {
        let total = self.total();
        let counters = match self.scheduler {
            SchedulerChoice::Microslice => micro::counters_json,
            SchedulerChoice::Coordinated => urgent::counters_json,
        };
        let shares = self.shares();
        let vms: Vec<_> = self
            .vms
            .iter()
            .zip(&shares)
            .map(|(vm, (received, due))| {
                let mut object = vm_json(vm, *received, *due);
                merge(&mut object, counters(&vm.stats));
                merge(&mut object, json!({"delays": delays::json(&vm.stats.delays)}));
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
        merge(&mut object, json!({"delays": delays::json(&total.delays)}));
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
        "wait_bound_ns": vm.bound_ns,
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
        "interrupts_found": host.interrupts_found,
        "kernel_refusals": {
            "rest_timer": host.rest_timers_refused,
            "turn_timer": host.turn_timers_refused,
            "slice_timer": host.slice_timers_refused,
            "look_timer": host.look_timers_refused,
            "pool_timer": host.pool_timers_refused,
            "interrupts_timer": host.interrupts_timers_refused,
            "vcpu_address": host.vcpu_addresses_refused,
        },
        "urgent_events": {"ipi": host.urgent_ipis, "ple": host.urgent_ples, "virq": host.urgent_irqs},
    })
}
