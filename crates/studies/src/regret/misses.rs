//! Misses: how often a policy is worse than the first one, against how often that one is worse than itself.
//!
//! With other seeds the first policy misses, too. So what counts is by how much more a policy misses than
//! that, scenario by scenario: VMs of one scenario are late together. A policy is *never worse* if no kind of
//! miss exceeds what chance gives by two standard deviations.

use super::felt::FELT_WAITS;
use super::summary::Verdict;

/// A kind of miss: of scenarios, or of VMs' felt waits.
#[derive(Debug, Clone, PartialEq)]
pub struct Miss {
    pub what: String,
    pub count: usize,
    /// Than the first policy with other seeds has.
    pub more: i64,
    /// Two standard deviations of `more`, from its spread over scenarios.
    pub two_deviations: f64,
}

impl Miss {
    /// True if chance doesn't explain it.
    pub fn is_worse(&self) -> bool {
        self.more as f64 > self.two_deviations
    }
}

/// Less work than that, times the first policy's, is a miss.
const WORK_MISSES: [f64; 2] = [0.95, 0.98];
/// As is a felt wait that is so many times as long.
pub const WAIT_MISS: f64 = 1.25;

/// Returns the misses of each kind of one policy, beside those of the first one with other seeds.
pub fn misses(of: &[Verdict], other_seeds: &[Verdict]) -> Vec<Miss> {
    let work = WORK_MISSES.map(|bound| (format!("work below {bound}"), Kind::Work(bound)));
    let felt = FELT_WAITS.map(|wait| (wait.word().to_owned(), Kind::Felt(wait as usize)));
    let miss = |(what, kind): (String, Kind)| {
        let more = |(own, other): (&Verdict, &Verdict)| kind.count(own) as f64 - kind.count(other) as f64;
        let more: Vec<f64> = of.iter().zip(other_seeds).map(more).collect();
        Miss {
            what,
            count: of.iter().map(|verdict| kind.count(verdict)).sum(),
            more: more.iter().sum::<f64>() as i64,
            two_deviations: 2.0 * deviation_of_sum(&more),
        }
    };
    work.into_iter().chain(felt).map(miss).collect()
}

enum Kind {
    Work(f64),
    /// In the order of [`FELT_WAITS`].
    Felt(usize),
}

impl Kind {
    fn count(&self, verdict: &Verdict) -> usize {
        match *self {
            Self::Work(bound) => usize::from(verdict.throughput < bound),
            Self::Felt(wait) => verdict.felt(wait).filter(|ratio| *ratio > WAIT_MISS).count(),
        }
    }
}

/// The standard deviation of the sum of independent values, estimated from them.
fn deviation_of_sum(values: &[f64]) -> f64 {
    let count = values.len() as f64;
    if count < 2.0 {
        return f64::INFINITY;
    }
    let mean = values.iter().sum::<f64>() / count;
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    (squares / (count - 1.0) * count).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sums_deviation_grows_with_the_root_of_its_length() {
        let few = deviation_of_sum(&[0.0, 1.0, 0.0, 1.0]);
        let many = deviation_of_sum(&[0.0, 1.0].repeat(200));
        assert!((few - (4.0_f64 / 3.0).sqrt()).abs() < 1e-9);
        assert!((many / few / 10.0 - 0.87).abs() < 0.02, "{many} {few}");
        assert_eq!(deviation_of_sum(&[1.0]), f64::INFINITY, "one scenario shows nothing");
    }

    #[test]
    fn as_many_misses_as_chance_gives_are_not_worse() {
        let miss = |more, two_deviations| Miss { what: String::new(), count: 9, more, two_deviations };
        assert!(!miss(5, 5.0).is_worse() && !miss(-9, 1.0).is_worse() && miss(6, 5.0).is_worse());
    }
}
