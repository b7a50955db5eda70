//! How crowded a host is, and each of its NUMA nodes: vCPUs for each pCPU and for each core.

use super::report::Report;
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// How many vCPUs there are for a host's CPUs.
pub(super) struct Crowd {
    vcpus: usize,
    pcpus: u32,
    /// Of each core that are in use.
    threads: u32,
    /// By number; empty if there is only one.
    nodes: BTreeMap<u32, Node>,
}

/// A NUMA node.
#[derive(Default)]
struct Node {
    pcpus: u32,
    /// A vCPU that may run on several nodes counts for each by its pCPUs there.
    vcpus: f64,
}

impl Crowd {
    /// Returns how many share the host now; `None` before the last report.
    pub fn of(report: &Report) -> Option<Self> {
        let host = report.host.as_ref()?;
        let vcpus = report.vms.iter().filter(|vm| !vm.is_gone).map(|vm| vm.figures.vcpus.len()).sum();
        Some(Self { vcpus, pcpus: host.pcpus, threads: host.smt_threads.max(1), nodes: nodes(report) })
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
            "nodes": self.nodes.iter().map(|(node, of)| json!({
                "node": node,
                "vcpus": of.vcpus,
                "pcpus": of.pcpus,
                "per_pcpu": of.vcpus / f64::from(of.pcpus.max(1)),
            })).collect::<Vec<_>>(),
        })
    }

    pub fn line(&self) -> String {
        let cores = match self.threads {
            1 => String::new(),
            _ => format!(", {:.1} for each core", self.for_each_core()),
        };
        let each =
            self.nodes.iter().map(|(node, of)| format!("; node {node}: {:.1} on {}", of.vcpus, of.pcpus));
        let nodes: String = each.collect();
        let each = self.for_each_pcpu();
        format!("{} vCPUs on {} pCPUs: {each:.1} for each{cores}{nodes}\n", self.vcpus, self.pcpus)
    }
}

fn nodes(report: &Report) -> BTreeMap<u32, Node> {
    let mut nodes: BTreeMap<u32, Node> = BTreeMap::new();
    report.nodes.iter().for_each(|node| nodes.entry(*node).or_default().pcpus += 1);
    if nodes.len() < 2 {
        return BTreeMap::new();
    }
    for vm in report.vms.iter().filter(|vm| !vm.is_gone) {
        let vcpus = vm.figures.vcpus.len() as f64;
        let everywhere: Vec<u32> = (0..report.nodes.len() as u32).collect();
        let allowed = if vm.affinity.is_empty() { &everywhere } else { &vm.affinity };
        for node in allowed.iter().filter_map(|&pcpu| report.nodes.get(pcpu as usize)) {
            nodes.entry(*node).or_default().vcpus += vcpus / allowed.len() as f64;
        }
    }
    nodes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::report::tests::report;

    #[test]
    fn threads_of_a_core_are_counted_apart() {
        let line = |threads| Crowd { vcpus: 6, pcpus: 4, threads, nodes: BTreeMap::new() }.line();
        assert_eq!(line(1), "6 vCPUs on 4 pCPUs: 1.5 for each\n");
        assert_eq!(line(2), "6 vCPUs on 4 pCPUs: 1.5 for each, 3.0 for each core\n");
        assert_eq!(
            Crowd { vcpus: 6, pcpus: 4, threads: 2, nodes: BTreeMap::new() }.to_json()["per_core"],
            3.0
        );
    }

    #[test]
    fn a_pinned_vm_crowds_its_own_node() {
        let mut report = report(true);
        report.nodes = vec![0, 0, 1, 1];
        let mut pinned = report.vms[0].clone();
        pinned.affinity = vec![2, 3];
        report.vms.push(pinned);
        let crowded: Vec<_> = nodes(&report).values().map(|node| (node.pcpus, node.vcpus)).collect();
        assert_eq!(crowded, [(2, 0.5), (2, 1.5)]);
        let crowd = Crowd { vcpus: 2, pcpus: 4, threads: 1, nodes: nodes(&report) };
        assert_eq!(crowd.line(), "2 vCPUs on 4 pCPUs: 0.5 for each; node 0: 0.5 on 2; node 1: 1.5 on 2\n");
        assert_eq!(crowd.to_json()["nodes"][1]["per_pcpu"], 0.75);
        report.nodes = vec![0; 4];
        assert!(nodes(&report).is_empty());
    }

    #[test]
    fn only_the_last_report_knows_the_host() {
        assert!(Crowd::of(&Report::default()).is_none());
    }
}
