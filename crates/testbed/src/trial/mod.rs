//! Trials: two arms by turns in blocks, and by how much one differs from the other.
//!
//! Problem.   No machine is the same for a minute. What is measured first and what is measured next differ by
//!            that, too.
//! Mechanism. Blocks come in pairs, one of each arm. A seed draws which arm begins a pair, as often the one
//!            as the other. What they differ by is taken within each pair, as a ratio. Over all pairs that is
//!            a geometric mean, with Student's 95 % interval.
//! Limits.    What one block leaves to the next isn't seen: whoever runs a trial lets the machine settle in
//!            between. Of few pairs nothing is said.

mod lab;

pub use lab::{Block, Figure, LOADS, Load, Pairs, Plan, figures, machine, run, to_json};

use chacha20::ChaCha8Rng;
use microslice_metrics::Estimate;
use rand::SeedableRng;
use rand::seq::SliceRandom;

/// Of fewer an interval says nothing, or is as wide as the world.
pub const PAIRS_MIN: usize = 4;

/// What is compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arm {
    /// What the other one is compared with.
    Control,
    Treatment,
}

/// What an interval says of the treatment's figure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    Less,
    More,
    /// The interval has 1 in it, or there are too few pairs.
    CannotTell,
}

/// A figure in both arms.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Compared {
    /// Geometric means over the pairs that have the figure in both blocks.
    pub control: f64,
    pub treatment: f64,
    /// Of the treatment's to the control's.
    pub ratio: Estimate,
}

/// Returns the order of so many pairs' blocks. It is the same for the same seed, and balanced: either arm
/// begins as many pairs as the other, or one more.
pub fn order(pairs: usize, seed: u64) -> Vec<[Arm; 2]> {
    let begins = |at: usize| match at % 2 {
        0 => [Arm::Control, Arm::Treatment],
        _ => [Arm::Treatment, Arm::Control],
    };
    let mut all: Vec<_> = (0..pairs).map(begins).collect();
    all.shuffle(&mut ChaCha8Rng::seed_from_u64(seed));
    all
}

/// Compares a figure of each pair: of the control's block, and of the treatment's. Pairs in which one of them
/// is missing or isn't above zero are left out. `None`: all are.
pub fn compare(pairs: &[[Option<f64>; 2]]) -> Option<Compared> {
    let whole = |pair: &[Option<f64>; 2]| match *pair {
        [Some(control), Some(treatment)] if control > 0.0 && treatment > 0.0 => Some((control, treatment)),
        _ => None,
    };
    let (control, treatment): (Vec<f64>, Vec<f64>) = pairs.iter().filter_map(whole).unzip();
    let ratios: Vec<f64> = control.iter().zip(&treatment).map(|(control, of)| of / control).collect();
    Some(Compared {
        control: Estimate::of_ratios(&control)?.mean,
        treatment: Estimate::of_ratios(&treatment)?.mean,
        ratio: Estimate::of_ratios(&ratios)?,
    })
}

impl Compared {
    pub fn verdict(&self) -> Verdict {
        let Estimate { low, high, count, .. } = self.ratio;
        match () {
            () if count < PAIRS_MIN => Verdict::CannotTell,
            () if high < 1.0 => Verdict::Less,
            () if low > 1.0 => Verdict::More,
            () => Verdict::CannotTell,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::RngExt;

    const TRIALS: u64 = 1000;

    /// How often, of a thousand trials on a machine that changes, a trial sees a true ratio.
    fn seen(pairs: usize, ratio: f64, noise: f64) -> f64 {
        let verdicts = (0..TRIALS).map(|seed| simulated(pairs, ratio, noise, seed).verdict());
        verdicts.filter(|verdict| *verdict != Verdict::CannotTell).count() as f64 / TRIALS as f64
    }

    /// A figure of blocks one after the other. The machine becomes slower all the time, now and then by much,
    /// and each block differs by `noise`.
    fn simulated(pairs: usize, ratio: f64, noise: f64, seed: u64) -> Compared {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        // The sum of twelve uniform numbers is about normal.
        let mut normal = || (0..12).map(|_| random.random::<f64>()).sum::<f64>() - 6.0;
        let mut slowness = 0.0f64;
        let mut block = |arm: Arm| {
            slowness = 0.9 * slowness + 0.05 * normal() + 0.02;
            let by_arm = if arm == Arm::Treatment { ratio } else { 1.0 };
            by_arm * (slowness + noise * normal()).exp()
        };
        let pairs = order(pairs, seed).into_iter().map(|arms| {
            let blocks = arms.map(&mut block);
            if arms[0] == Arm::Control { blocks } else { [blocks[1], blocks[0]] }.map(Some)
        });
        compare(&pairs.collect::<Vec<_>>()).expect("all are there")
    }

    #[test]
    fn of_a_thousand_null_trials_five_per_cent_alarm() {
        for pairs in [6, 8, 20] {
            let alarms = seen(pairs, 1.0, 0.1);
            // Three standard errors of 1,000 trials are 2 %.
            assert!((0.02..=0.072).contains(&alarms), "{alarms} of {pairs} pairs");
        }
    }

    #[test]
    fn a_true_difference_is_seen() {
        for (pairs, ratio, noise) in [(40, 1.05, 0.04), (8, 0.7, 0.1), (10, 2.0, 0.4)] {
            let power = seen(pairs, ratio, noise);
            assert!(power > 0.8, "{ratio} by {pairs} pairs: {power}");
        }
    }

    #[test]
    fn intervals_hold_the_true_ratio_in_95_of_100_trials() {
        let holds = |seed: u64| {
            let Estimate { low, high, .. } = simulated(10, 1.3, 0.2, seed).ratio;
            low <= 1.3 && 1.3 <= high
        };
        let share = (0..TRIALS).filter(|&seed| holds(seed)).count() as f64 / TRIALS as f64;
        assert!((0.928..=0.98).contains(&share), "{share}");
    }

    #[test]
    fn each_arm_begins_as_often_whatever_the_seed() {
        for seed in 0..50 {
            let all = order(8, seed);
            assert_eq!(all.iter().filter(|pair| pair[0] == Arm::Control).count(), 4);
            assert!(all.iter().all(|pair| pair[0] != pair[1]));
            assert_eq!(all, order(8, seed));
        }
        assert!((1..50).any(|seed| order(8, seed) != order(8, 0)));
        assert!(order(0, 1).is_empty());
    }

    #[test]
    fn pairs_without_a_figure_are_left_out() {
        let pairs =
            [[Some(1.0), Some(2.0)], [None, Some(9.0)], [Some(0.0), Some(1.0)], [Some(4.0), Some(8.0)]];
        let compared = compare(&pairs).expect("two pairs");
        assert_eq!((compared.ratio.mean, compared.ratio.count), (2.0, 2));
        assert_eq!((compared.control, compared.treatment), (2.0, 4.0));
        assert_eq!(compared.verdict(), Verdict::CannotTell, "two pairs say nothing");
        assert_eq!(compare(&[[None, None]]), None);
    }
}
