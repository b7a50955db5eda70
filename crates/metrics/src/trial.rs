//! Trials: arms by turns in blocks, and by how much one differs from another.
//!
//! Problem.   No machine is the same for a minute. What is measured first and what is measured next differ by
//!            that, too.
//! Mechanism. Blocks come in rounds, one of each arm. A seed draws their order, each arm as often at each
//!            place. By what an arm differs from the first is taken within each round, as a ratio. Over all
//!            rounds that is a geometric mean, with Student's 95 % interval. A randomisation test, which
//!            assumes nothing of how blocks differ, has to agree.
//! Limits.    What one block leaves to the next isn't seen: whoever runs a trial lets the machine settle in
//!            between. Of few pairs nothing is said.

use crate::Estimate;
use chacha20::ChaCha8Rng;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};

/// Fewer pairs say nothing: so many are needed until chance alone is less likely than one in twenty.
pub const PAIRS_MIN: usize = 6;
/// Chance is one in so many where a verdict is given.
const ONE_IN: f64 = 20.0;
/// An interval is narrower than a difference by this factor where four of five trials tell it: the quantiles
/// of 0.975 and 0.8 over that of 0.975.
const FOUR_OF_FIVE: f64 = (1.96 + 0.84) / 1.96;
/// Up to so many pairs each way of exchanging arms is tried; beyond, as many are drawn.
const EXHAUSTIVE_MAX: usize = 10;

/// What an interval says of the treatment's figure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    Less,
    More,
    /// The interval has 1 in it, chance alone would do as much, or there are too few pairs.
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
    /// How often the arms, exchanged within pairs by chance, differ by as much in any of the figures that are
    /// judged together (a randomisation test). So a trial of many figures tells no more by chance than one.
    pub chance: f64,
}

/// Returns the arms of each round, in their order. It is the same for the same seed, and balanced: among as
/// many rounds as there are arms, each arm stands once at each place.
pub fn order(arms: usize, rounds: usize, seed: u64) -> Vec<Vec<usize>> {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let rotated = |at: usize| (0..arms).map(|place| (place + at) % arms.max(1)).collect();
    let mut all: Vec<Vec<usize>> = (0..rounds).map(rotated).collect();
    all.shuffle(&mut random);
    all
}

/// A figure's values of each pair: of the control's block, and of the treatment's.
pub type Pairs = Vec<[Option<f64>; 2]>;

/// Compares a figure by itself. Pairs in which one of both is missing or isn't above zero are left out.
/// `None`: all are.
pub fn compare(pairs: &[[Option<f64>; 2]]) -> Option<Compared> {
    compare_all(&[pairs.to_vec()]).pop().flatten()
}

/// Compares figures of the same pairs, all together: what is told of any of them isn't chance.
pub fn compare_all(figures: &[Pairs]) -> Vec<Option<Compared>> {
    let differences: Vec<Vec<Option<f64>>> =
        figures.iter().map(|pairs| pairs.iter().map(difference).collect()).collect();
    let chances = chances_of(&differences);
    let compared = |(pairs, chance): (&Pairs, f64)| {
        let whole: Vec<[f64; 2]> = pairs.iter().filter_map(whole).collect();
        let mean_of =
            |of: fn(&[f64; 2]) -> f64| Estimate::of_ratios(&whole.iter().map(of).collect::<Vec<_>>());
        Some(Compared {
            control: mean_of(|pair| pair[0])?.mean,
            treatment: mean_of(|pair| pair[1])?.mean,
            ratio: mean_of(|pair| pair[1] / pair[0])?,
            chance,
        })
    };
    figures.iter().zip(chances).map(compared).collect()
}

fn whole(pair: &[Option<f64>; 2]) -> Option<[f64; 2]> {
    match *pair {
        [Some(control), Some(treatment)] if control > 0.0 && treatment > 0.0 => Some([control, treatment]),
        _ => None,
    }
}

fn difference(pair: &[Option<f64>; 2]) -> Option<f64> {
    whole(pair).map(|[control, treatment]| (treatment / control).ln())
}

/// By how much a figure's sum is off 0, in units of what it would be off by chance.
fn off_by(differences: &[Option<f64>], is_exchanged: &[bool]) -> f64 {
    let signed = differences
        .iter()
        .zip(is_exchanged)
        .filter_map(|(of, is_exchanged)| of.map(|of| if *is_exchanged { -of } else { of }));
    let (sum, squares) = signed.fold((0.0, 0.0), |(sum, squares), of| (sum + of, squares + of * of));
    if squares == 0.0 { 0.0 } else { f64::abs(sum) / f64::sqrt(squares) }
}

/// How often the figure that is off most is as far off as each is, if arms are exchanged by chance. They are
/// exchanged in the same pairs for all figures (Westfall and Young's single step). Figures of too few pairs
/// don't count.
fn chances_of(figures: &[Vec<Option<f64>>]) -> Vec<f64> {
    let pairs = figures.iter().map(Vec::len).max().unwrap_or(0);
    let counts = |of: &&Vec<Option<f64>>| of.iter().flatten().count() >= PAIRS_MIN;
    // Sums of the same numbers differ by rounding.
    let observed = |of: &Vec<Option<f64>>| off_by(of, &vec![false; pairs]) * (1.0 - 1e-9);
    let observed: Vec<f64> = figures.iter().map(observed).collect();
    let mut as_far = vec![0u32; figures.len()];
    let mut random = ChaCha8Rng::seed_from_u64(0);
    let is_exhaustive = pairs <= EXHAUSTIVE_MAX;
    let ways = 1u32 << pairs.min(EXHAUSTIVE_MAX);
    let mut is_exchanged = vec![false; pairs];
    for way in 0..ways {
        for (at, is_exchanged) in is_exchanged.iter_mut().enumerate() {
            *is_exchanged = if is_exhaustive { way >> at & 1 == 1 } else { random.random() };
        }
        let furthest = figures.iter().filter(counts).map(|of| off_by(of, &is_exchanged)).fold(0.0, f64::max);
        for (as_far, observed) in as_far.iter_mut().zip(&observed) {
            *as_far += u32::from(furthest >= *observed);
        }
    }
    // What was drawn counts as one more way.
    let more = u32::from(!is_exhaustive);
    as_far.iter().map(|as_far| f64::from(as_far + more) / f64::from(ways + more)).collect()
}

impl Compared {
    pub fn verdict(&self) -> Verdict {
        let Estimate { low, high, count, .. } = self.ratio;
        match () {
            () if count < PAIRS_MIN || self.chance * ONE_IN > 1.0 => Verdict::CannotTell,
            () if high < 1.0 => Verdict::Less,
            () if low > 1.0 => Verdict::More,
            () => Verdict::CannotTell,
        }
    }

    /// Returns about how many pairs tell a true ratio of `1 + difference` from 1 in four of five trials.
    /// Blocks are taken to go on to differ as they do. `None`: too few were measured to say.
    pub fn pairs_to_tell(&self, difference: f64) -> Option<usize> {
        let Estimate { mean, high, count, .. } = self.ratio;
        let half_width = (high / mean).ln();
        let wanted = difference.ln_1p() / FOUR_OF_FIVE;
        (count >= PAIRS_MIN && half_width.is_finite())
            .then(|| ((half_width / wanted).powi(2) * count as f64).ceil() as usize)
            .map(|pairs| pairs.max(PAIRS_MIN))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let mut block = |arm: usize| {
            slowness = 0.9 * slowness + 0.05 * normal() + 0.02;
            [1.0, ratio][arm] * (slowness + noise * normal()).exp()
        };
        let pairs = order(2, pairs, seed).into_iter().map(|arms| {
            let mut pair = [None; 2];
            arms.into_iter().for_each(|arm| pair[arm] = Some(block(arm)));
            pair
        });
        compare(&pairs.collect::<Vec<_>>()).expect("all are there")
    }

    #[test]
    fn of_a_thousand_null_trials_five_per_cent_alarm_at_most() {
        for (pairs, least) in [(6, 0.005), (8, 0.02), (20, 0.02)] {
            let alarms = seen(pairs, 1.0, 0.1);
            // Three standard errors of 1,000 trials are 2 %.
            assert!((least..=0.072).contains(&alarms), "{alarms} of {pairs} pairs");
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
    fn each_arm_has_each_place_as_often_whatever_the_seed() {
        for (arms, seed) in [(2, 1), (3, 7), (4, 50)] {
            let all = order(arms, 2 * arms, seed);
            for place in 0..arms {
                for arm in 0..arms {
                    assert_eq!(all.iter().filter(|round| round[place] == arm).count(), 2);
                }
            }
            assert_eq!(all, order(arms, 2 * arms, seed));
        }
        assert!((1..50).any(|seed| order(2, 8, seed) != order(2, 8, 0)));
        assert!(order(2, 0, 1).is_empty());
    }

    #[test]
    fn chance_is_how_often_signs_alone_do_as_much() {
        let chance_of = |of: &[f64]| chances_of(&[of.iter().copied().map(Some).collect()])[0];
        assert_eq!(chance_of(&[1.0; 6]), 2.0 / 64.0);
        assert_eq!(chance_of(&[1.0, -1.0, 1.0, -1.0, 1.0, -1.0]), 1.0);
        assert!(chance_of(&[1.0; 20]) < 0.002);
        assert_eq!(chances_of(&[Vec::new()]), [1.0]);
    }

    #[test]
    fn a_null_trial_of_many_figures_tells_one_of_them_in_five_of_100_trials() {
        const FIGURES: usize = 25;
        let tells = |seed: u64| {
            let mut random = ChaCha8Rng::seed_from_u64(seed);
            let mut pairs =
                || (0..20).map(|_| [Some(1.0), Some((random.random::<f64>() - 0.5).exp())]).collect();
            let figures: Vec<Pairs> = (0..FIGURES).map(|_| pairs()).collect();
            compare_all(&figures).into_iter().flatten().any(|of| of.verdict() != Verdict::CannotTell)
        };
        let share = (0..300).filter(|&seed| tells(seed)).count() as f64 / 300.0;
        // Three standard errors of 300 trials are 4 %.
        assert!((0.01..=0.09).contains(&share), "{share}");
    }

    #[test]
    fn pairs_to_tell_grow_with_the_square_of_what_they_differ_by() {
        let narrow = simulated(20, 1.0, 0.05, 3);
        let pairs = |difference| narrow.pairs_to_tell(difference).expect("enough") as f64;
        assert!((pairs(0.01) / pairs(0.02) / 4.0 - 1.0).abs() < 0.1);
        assert_eq!(simulated(3, 1.0, 0.05, 3).pairs_to_tell(0.05), None);
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
