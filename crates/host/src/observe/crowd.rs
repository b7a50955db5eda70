//! How crowded a host is: vCPUs for each pCPU and for each core.

use super::report::Report;
use serde_json::{Value, json};

/// How many vCPUs there are for a host's CPUs.
pub(super) struct Crowd {
    vcpus: usize,
    pcpus: u32,
    /// Of each core that are in use.
    threads: u32,
}

impl Crowd {
    /// Returns how many share the host now; `None` before the last report.
    pub fn of(report: &Report) -> Option<Self> {
        let host = report.host.as_ref()?;
        let vcpus = report.vms.iter().filter(|vm| !vm.is_gone).map(|vm| vm.figures.vcpus.len()).sum();
        Some(Self { vcpus, pcpus: host.pcpus, threads: host.smt_threads.max(1) })
    }

    fn for_each_pcpu(&self) -> f64 {
        self.vcpus as f64 / f64::from(self.pcpus.max(1))
    }

    fn for_each_core(&self) -> f64 {
        self.for_each_pcpu() * f64::from(self.threads)
    }

    pub fn to_json(&self) -> Value {
        json!({
            "vcpus": self.vcpus,
            "pcpus": self.pcpus,
            "per_pcpu": self.for_each_pcpu(),
            "per_core": self.for_each_core(),
        })
    }

    pub fn line(&self) -> String {
        let cores = match self.threads {
            1 => String::new(),
            _ => format!(", {:.1} for each core", self.for_each_core()),
        };
        format!("{} vCPUs on {} pCPUs: {:.1} for each{cores}\n", self.vcpus, self.pcpus, self.for_each_pcpu())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_of_a_core_are_counted_apart() {
        let line = |threads| Crowd { vcpus: 6, pcpus: 4, threads }.line();
        assert_eq!(line(1), "6 vCPUs on 4 pCPUs: 1.5 for each\n");
        assert_eq!(line(2), "6 vCPUs on 4 pCPUs: 1.5 for each, 3.0 for each core\n");
        assert_eq!(Crowd { vcpus: 6, pcpus: 4, threads: 2 }.to_json()["per_core"], 3.0);
    }

    #[test]
    fn only_the_last_report_knows_the_host() {
        assert!(Crowd::of(&Report::default()).is_none());
    }
}
