//! A campaign's report: a table of each boot, and one of all.

use super::{BootReport, FaultReport, Plan};
use microslice_metrics::table::Table;
use serde_json::{Value, json};
use std::collections::BTreeMap;

impl BootReport {
    /// A row per fault, then what was found.
    pub fn to_text(&self, number: usize) -> String {
        let mut table = Table::new(&[
            "fault",
            ">s",
            ">longest wait ms",
            ">share off %",
            ">spans",
            ">back ms",
            ">hostile",
            "verdict",
        ]);
        for fault in &self.faults {
            let is_last = self.faults.last().is_some_and(|last| std::ptr::eq(last, fault));
            let verdict = match (&self.lost, fault.findings.len()) {
                (Some(_), _) if is_last => "machine lost".into(),
                (_, 0) => "held".into(),
                (_, count) => format!("{count} FINDINGS"),
            };
            table.row(vec![
                fault.what.clone(),
                format!("{:.0}", fault.seconds),
                fault.longest_wait_ms.to_string(),
                fault.share_errors.last().map_or("-".into(), |error| format!("{:.2}", error * 100.0)),
                fault.share_errors.len().to_string(),
                fault.back_ms.map_or("-".into(), |ms| ms.to_string()),
                fault.hostile_ratio.map_or("-".into(), |ratio| format!("{ratio:.2}")),
                verdict,
            ]);
        }
        let exits = if self.pause_exits { ", PAUSE exits" } else { "" };
        let mut text = format!("boot {number}: {}{exits}, {:.0} s\n{table}", self.kernel, self.seconds);
        for fault in &self.faults {
            for finding in &fault.findings {
                text += &format!("FINDING after {}: {finding}\n", fault.what);
            }
        }
        if let Some(lost) = &self.lost {
            text += &format!("machine lost: {lost}\n");
        }
        text
    }
}

/// By kind of fault, over all boots: what a lost machine said last isn't in it.
fn by_kind(boots: &[BootReport]) -> BTreeMap<&'static str, Vec<&FaultReport>> {
    let mut kinds: BTreeMap<&'static str, Vec<&FaultReport>> = BTreeMap::new();
    for boot in boots {
        let told = boot.faults.len() - usize::from(boot.lost.is_some() && !boot.faults.is_empty());
        for fault in &boot.faults[..told] {
            kinds.entry(fault.fault.name()).or_default().push(fault);
        }
    }
    kinds
}

/// The sum of all boots.
pub fn to_text(boots: &[BootReport]) -> String {
    let mut table = Table::new(&[
        "fault",
        ">times",
        ">findings",
        ">longest wait ms",
        ">share off %",
        ">back ms",
        ">hostile",
    ]);
    for (kind, faults) in by_kind(boots) {
        let most = |of: &dyn Fn(&FaultReport) -> Option<f64>| {
            faults.iter().filter_map(|fault| of(fault)).reduce(f64::max)
        };
        let cell = |value: Option<f64>, digits| value.map_or("-".into(), |value| format!("{value:.digits$}"));
        table.row(vec![
            kind.to_owned(),
            faults.len().to_string(),
            faults.iter().map(|fault| fault.findings.len()).sum::<usize>().to_string(),
            cell(most(&|fault| Some(fault.longest_wait_ms as f64)), 0),
            cell(most(&|fault| fault.share_errors.last().map(|error| error * 100.0)), 2),
            cell(most(&|fault| fault.back_ms.map(|ms| ms as f64)), 0),
            cell(most(&|fault| fault.hostile_ratio), 2),
        ]);
    }
    format!(
        "{table}\n{} boots, {} faults, {} findings, {} machines lost to emulation\n",
        boots.len(),
        boots.iter().map(|boot| boot.faults.len()).sum::<usize>(),
        findings(boots),
        boots.iter().filter(|boot| boot.lost.is_some()).count()
    )
}

/// How many there are.
pub fn findings(boots: &[BootReport]) -> usize {
    boots.iter().flat_map(|boot| &boot.faults).map(|fault| fault.findings.len()).sum()
}

/// All that was seen.
pub fn to_json(plan: &Plan, boots: &[BootReport]) -> Value {
    json!({ "seed": plan.seed, "scheduler": plan.scheduler, "findings": findings(boots), "boots": boots })
}

#[cfg(test)]
mod tests {
    use super::super::faults::Fault;
    use super::*;

    fn boot(findings: &[&str], lost: Option<&str>) -> BootReport {
        let fault = |findings: &[&str]| FaultReport {
            what: "SIGKILL".into(),
            fault: Fault::Kill,
            seconds: 30.2,
            back_ms: Some(420),
            hostile_ratio: None,
            longest_wait_ms: 99,
            share_errors: vec![0.02, 0.004],
            findings: findings.iter().map(|&text| text.to_owned()).collect(),
        };
        BootReport {
            kernel: "6.18".into(),
            pause_exits: false,
            seconds: 99.0,
            faults: vec![fault(&[]), fault(findings)],
            lost: lost.map(str::to_owned),
        }
    }

    #[test]
    fn a_finding_is_told_with_its_fault_and_counted() {
        let boots = [boot(&["no heartbeat"], None), boot(&[], None)];
        assert!(
            boots[0].to_text(1).contains("FINDING after SIGKILL: no heartbeat"),
            "{}",
            boots[0].to_text(1)
        );
        assert!(to_text(&boots).ends_with("2 boots, 4 faults, 1 findings, 0 machines lost to emulation\n"));
        assert_eq!(findings(&boots), 1);
    }

    #[test]
    fn what_a_lost_machine_said_last_is_in_no_sum() {
        let boots = [boot(&[], Some("guest a was lost"))];
        assert!(boots[0].to_text(1).contains("machine lost: guest a was lost"));
        assert_eq!(by_kind(&boots)["SIGKILL"].len(), 1);
    }
}
