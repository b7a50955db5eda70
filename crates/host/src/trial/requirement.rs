//! Requirements: what a trial has to show.

use super::report::{HOST, Row, Verdicts, interval, shown};
use super::{ALL_VMS, Outcome, Plan};
use crate::HostError;
use microslice_metrics::Estimate;

/// What a trial is to hold, such as `felt wait <= 1.25`: for each VM, in each arm.
#[derive(Debug, Clone, PartialEq)]
pub struct Requirement {
    figure: String,
    bound: Bound,
    limit: f64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Bound {
    Most,
    Least,
}

impl Bound {
    const fn sign(self) -> &'static str {
        match self {
            Self::Most => "<=",
            Self::Least => ">=",
        }
    }
}

impl Requirement {
    /// # Errors
    /// It isn't FIGURE <= NUMBER or FIGURE >= NUMBER.
    pub fn parse(text: &str) -> Result<Self, String> {
        let split = |bound: Bound| Some((bound, text.split_once(bound.sign())?));
        let split = [Bound::Most, Bound::Least].into_iter().find_map(split);
        let (bound, (figure, limit)) =
            split.ok_or("is FIGURE <= NUMBER or FIGURE >= NUMBER, times the first arm's")?;
        match limit.trim().parse::<f64>() {
            Ok(limit) if limit > 0.0 && limit.is_finite() => {
                Ok(Self { figure: figure.trim().to_owned(), bound, limit })
            }
            _ => Err(format!("{:?} is no number above zero", limit.trim())),
        }
    }

    /// # Errors
    /// No figure is called so.
    pub fn check(&self, plan: &Plan) -> Result<(), HostError> {
        let names =
            Outcome::ALL.map(Outcome::name).into_iter().chain(plan.asked.iter().map(|of| of.name.as_str()));
        let names: Vec<&str> = names.collect();
        if names.contains(&self.figure.as_str()) {
            return Ok(());
        }
        Err(HostError::refused(format!(
            "no figure is called {:?}: there are {}",
            self.figure,
            names.join(", ")
        )))
    }

    /// Returns what breaks it, or isn't known well enough, in one phrase.
    pub fn broken_by(&self, verdicts: &Verdicts<'_>) -> Option<String> {
        let required = format!("{} {} {}", self.figure, self.bound.sign(), self.limit);
        let asked = verdicts.plan.asked.iter().any(|of| of.name == self.figure);
        let vms = verdicts.aliases.values().filter(|vm| match asked {
            true => *vm == HOST,
            false => ![HOST, ALL_VMS].contains(&vm.as_str()),
        });
        let vms: Vec<&String> = vms.collect();
        if vms.is_empty() {
            return Some(format!("{required} can't be told: no VM was measured"));
        }
        (1..verdicts.plan.arms.len()).find_map(|arm| {
            let name = &verdicts.plan.arms[arm].name;
            if let Some(why) = verdicts.why_ended(arm) {
                return Some(format!("{required}: arm {name:?} was ended: {why}"));
            }
            vms.iter().find_map(|vm| {
                let is_it = |row: &&Row| row.vm == **vm && row.figure.name() == self.figure;
                let row = verdicts.of_arm(arm).find(is_it);
                let what = self.broken_by_ratio(row.map(|row| &row.compared.ratio))?;
                Some(format!("{required} {what}: {vm} in arm {name:?}"))
            })
        })
    }

    fn broken_by_ratio(&self, ratio: Option<&Estimate>) -> Option<String> {
        let Some((ratio, (low, high))) = ratio.and_then(|ratio| Some((ratio, interval(ratio)?))) else {
            return Some("can't be told, for want of pairs".to_owned());
        };
        let (holds, is_broken) = match self.bound {
            Bound::Most => (high <= self.limit, low > self.limit),
            Bound::Least => (low >= self.limit, high < self.limit),
        };
        match () {
            () if holds => None,
            () if is_broken => Some(format!("isn't so, but {}", shown(ratio))),
            () => Some(format!("can't be told from {}", shown(ratio))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::report::tests::{measured, plan};
    use super::super::{Broken, Ended, Measured};
    use super::*;

    #[test]
    fn a_requirement_holds_is_broken_or_cannot_be_told() {
        let plan = plan();
        let broken = |ratio, limit: &str| {
            let measured = measured(ratio);
            Requirement::parse(&format!("wait p99 {limit}"))
                .expect("one")
                .broken_by(&Verdicts::of(&plan, &measured, true))
        };
        assert_eq!(broken(0.5, "<= 0.75"), None);
        assert_eq!(broken(2.0, ">= 1.25"), None);
        assert!(broken(0.5, ">= 0.75").is_some_and(|what| what.contains(">= 0.75 isn't so, but 0.")));
        assert!(broken(2.0, "<= 1.25").is_some_and(|what| what.contains("isn't so, but 2.")));
        assert!(broken(1.0, "<= 1.0").is_some_and(|what| what.contains("can't be told")));
        for text in ["wait p99 < 1", "wait p99 <= -1", "wait p99 <= x"] {
            assert!(Requirement::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_trial_without_measurements_keeps_no_requirement() {
        let (plan, measured) = (plan(), Measured::default());
        let required = Requirement::parse("wait p99 <= 9").expect("one");
        assert!(required.broken_by(&Verdicts::of(&plan, &measured, true)).is_some());
    }

    #[test]
    fn an_arm_that_was_ended_keeps_no_requirement() {
        let (plan, mut measured) = (plan(), measured(0.5));
        let broken = Broken { vm: "web".into(), what: "waited for 2 s".into() };
        measured.ended.insert(1, Ended::Guard(broken));
        assert!(!Verdicts::of(&plan, &measured, false).to_json("1").to_string().contains("web"));
        let verdicts = Verdicts::of(&plan, &measured, true);
        assert_eq!(verdicts.verdict(1), "ended");
        let required = Requirement::parse("wait p99 <= 1.25").expect("one");
        assert!(Requirement::parse("waits <= 1").is_ok_and(|unknown| unknown.check(&plan).is_err()));
        assert!(required.broken_by(&verdicts).is_some_and(|what| what.contains("was ended")));
    }
}
