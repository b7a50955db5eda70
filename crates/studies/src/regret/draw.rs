//! What a generator draws: numbers, choices, and times as scenarios write them. Integers only, so that a seed
//! draws the same everywhere.

use microslice_model::random::Random;

const US: u64 = 1_000;
const MS: u64 = 1_000_000;

/// An octave in four steps, in 1/1000.
const QUARTER_OCTAVES: [u64; 4] = [1_000, 1_189, 1_414, 1_682];

/// A stream of draws.
pub struct Draw(Random);

impl Draw {
    pub fn stream(seed: u64, index: u64) -> Self {
        Self(Random::stream(seed, index))
    }

    /// From `low` to `high`, both included.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        let span = u32::try_from(high.saturating_sub(low)).unwrap_or(u32::MAX - 1);
        low + u64::from(self.0.below(span + 1))
    }

    pub fn chance(&mut self, percent: u64) -> bool {
        self.between(1, 100) <= percent
    }

    /// One of them, which must not be none.
    pub fn one_of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.0.below(choices.len() as u32) as usize]
    }

    /// One of them, by their weights, whose sum must not be 0.
    pub fn weighted<T: Copy>(&mut self, choices: &[(u64, T)]) -> T {
        let sum: u64 = choices.iter().map(|(weight, _)| weight).sum();
        let mut drawn = self.between(1, sum);
        for &(weight, choice) in choices {
            if drawn <= weight {
                return choice;
            }
            drawn -= weight;
        }
        choices[choices.len() - 1].1
    }

    /// From `low` to `high`: each octave is as likely as any other.
    pub fn over_decades(&mut self, low: u64, high: u64) -> u64 {
        let octaves = u64::from((high / low.max(1)).max(1).ilog2());
        let step = self.between(0, 4 * octaves + 3);
        let quarter = QUARTER_OCTAVES[(step % 4) as usize];
        ((low << (step / 4)) * quarter / 1_000).clamp(low, high)
    }

    /// A distribution of about that mean, as a phase writes it: of any form that there is.
    pub fn around(&mut self, mean_ns: u64) -> String {
        let mean = mean_ns.max(10);
        match self.weighted(&[(30, 0), (35, 1), (15, 2), (12, 3), (8, 4)]) {
            0 => format!("\"{}\"", time(mean)),
            1 => format!("\"exponential {}\"", time(mean)),
            2 => format!("\"uniform {} to {}\"", time(mean / 2), time(mean + mean / 2)),
            // The mean of a log-normal is e^(sigma^2 / 2) times its median: 1.38 times.
            3 => format!("\"lognormal {} sigma 0.8\"", time(mean * 100 / 138)),
            // 98 % of a part, and 2 % of 25 times that.
            _ => format!("\"mix {} with 2 % of {}\"", time(mean * 100 / 148), time(mean * 2_500 / 148)),
        }
    }
}

/// A time in the largest unit that it is a whole number of.
pub fn time(ns: u64) -> String {
    match ns {
        ns if ns >= MS && ns % MS == 0 => format!("{} ms", ns / MS),
        ns if ns >= US && ns % US == 0 => format!("{} us", ns / US),
        ns => format!("{ns} ns"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn times_are_written_in_the_largest_unit_that_fits() {
        let times = [(7, "7 ns"), (1_500, "1500 ns"), (2_000, "2 us"), (3_000_000, "3 ms")];
        assert!(times.into_iter().all(|(ns, text)| time(ns) == text));
    }

    proptest! {
        #[test]
        fn draws_keep_within_their_limits(seed: u64, low in 1u64..1_000_000, times in 1u64..10_000) {
            let mut draw = Draw::stream(seed, 0);
            let high = low * times;
            prop_assert!((low..=high).contains(&draw.over_decades(low, high)));
            prop_assert!((low..=high).contains(&draw.between(low, high)));
            prop_assert!(!draw.chance(0) && draw.chance(100));
            prop_assert_eq!(draw.weighted(&[(0, 'a'), (3, 'b'), (0, 'c')]), 'b');
        }
    }

    #[test]
    fn every_choice_and_every_octave_is_drawn() {
        let mut draw = Draw::stream(1, 0);
        let drawn: Vec<u64> = (0..1_000).map(|_| draw.over_decades(1_000, 64_000)).collect();
        assert!((0..6).all(|octave| drawn.iter().any(|ns| (1_000 << octave..2_000 << octave).contains(ns))));
        let choices: Vec<char> = (0..100).map(|_| draw.one_of(&['a', 'b', 'c'])).collect();
        assert!(['a', 'b', 'c'].iter().all(|choice| choices.contains(choice)));
    }
}
