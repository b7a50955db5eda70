//! What a run did: one JSON object, or one screenful, of an interval or of the whole run.
//!
//! Sums that hold in every report of a whole run, up to what changes while the counters are read:
//! requests = accelerations + failed pulls + pending; accelerations = returns + in flight.

mod delays;
mod json;
mod micro;
mod text;
mod urgent;

use crate::bpf::counters::sum;
use crate::bpf::recursion_misses::RecursionMisses;
use crate::interface::{HostStats, VmStats};
use crate::machine::cgroups::CpuLimits;
use crate::run::pool_history::Change;
use crate::settings::SchedulerChoice;
use crate::shares::due::shares_of;
use serde_json::Value;

/// One VM's part of a report.
#[derive(Debug, Clone)]
pub struct VmReport {
    pub name: String,
    /// libvirt's, if it is one of its domains.
    pub uuid: Option<String>,
    pub pid: u32,
    pub vcpu_count: u32,
    pub weight: u32,
    /// The limits that its cgroups set.
    pub cpu_limits: CpuLimits,
    pub kernel: Option<String>,
    pub slide: Option<u64>,
    pub state: String,
    /// For how long its vCPUs may wait now, in nanoseconds; `None`: for ever.
    pub bound_ns: Option<u64>,
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
    /// The cost of its BPF programs, if that is measured: `program_costs::of_object`.
    pub programs: Option<Value>,
}

impl Report {
    /// All VMs together, those that are gone included.
    pub fn total(&self) -> VmStats {
        self.vms.iter().fold(self.gone, |total, vm| sum(&total, &vm.stats))
    }

    /// Shares of the CPU time that VMs got together, their VMMs included: received, and due by weight and
    /// demand.
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

    /// The part of their time in which they ran vCPUs of the normal pool, because no vCPU asked for them.
    pub fn micro_cpus_lent(&self) -> Option<f64> {
        self.part_of_micro_cpus(self.total().lent_ran_ns)
    }

    fn part_of_micro_cpus(&self, ran_ns: u64) -> Option<f64> {
        (self.micro_pcpu_ns > 0).then(|| ran_ns as f64 / self.micro_pcpu_ns as f64)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::machine::cgroups::CpuLimit;
    use serde_json::json;

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
            bound_ns: Some(25_000_000),
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
    fn the_pools_mean_size_and_use_are_shown() {
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
        assert!(text.lines().count() <= 31, "{text}");
        for word in ["web", "tlb_yield", "virq", "failed pulls", "in flight 0"] {
            assert!(text.contains(word), "{word} is missing in {text}");
        }
    }

    #[test]
    fn text_and_json_show_limits_and_rested_time() {
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
