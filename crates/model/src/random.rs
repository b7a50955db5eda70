//! Random numbers and distributions of times: integers only once a run has started, but for distributions
//! beyond the first thousand. Logarithms and exponentials are those of `libm`, so that every platform has the
//! same trace. Those of the standard library are the platform's own, and may differ in the last place.

use crate::config::Duration;
use indexmap::IndexSet;
use std::sync::OnceLock;

/// SplitMix64: one word of state, so that every guest thread has its own and no other thread's order changes
/// it.
#[derive(Clone, Copy)]
pub struct Random(u64);

impl Random {
    /// An independent stream for part `index` of something.
    pub fn stream(seed: u64, index: u64) -> Self {
        let mut mixer = Self(seed ^ index.wrapping_mul(0xd134_2543_de82_ef95));
        Self(mixer.next() ^ mixer.next().rotate_left(17))
    }

    #[inline]
    #[allow(clippy::should_implement_trait)]
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Below `bound`, which must not be 0. The bias is below bound / 2^32.
    #[inline]
    pub fn below(&mut self, bound: u32) -> u32 {
        (((self.next() >> 32) * u64::from(bound)) >> 32) as u32
    }
}

const QUANTILE_BITS: u32 = 10;
const QUANTILES: usize = 1 << QUANTILE_BITS;

/// So many distributions have tables, of 4 or 8 KiB each. No workload comes near; a scenario may name tens of
/// thousands.
const TABLES_MAX: usize = 1_000;

/// The distributions of a run, each once.
#[derive(Default)]
pub struct Samplers {
    samplers: Vec<Sampler>,
    numbers: IndexSet<Duration>,
    tables: usize,
}

impl Samplers {
    /// The number of this distribution.
    pub fn number(&mut self, duration: Duration) -> u32 {
        let (number, new) = self.numbers.insert_full(duration);
        if new {
            let sampler = Sampler::new(duration, self.tables < TABLES_MAX);
            self.tables += usize::from(sampler.has_table());
            self.samplers.push(sampler);
        }
        number as u32
    }

    #[inline]
    pub fn sample(&self, number: u32, random: &mut Random) -> u64 {
        self.samplers[number as usize].sample(random)
    }
}

/// A distribution as 1,024 equally likely values (the middle of each quantile): sampling is one load.
struct Sampler {
    quantiles: Quantiles,
}

/// In half the memory if all are below four seconds: the tables compete for the fastest cache.
enum Quantiles {
    One(u64),
    Short(Box<[u32; QUANTILES]>),
    /// Apart, because a choice of three needs no indirect branch.
    Rare(Box<Rare>),
}

enum Rare {
    Long(Box<[u64; QUANTILES]>),
    /// No table: the same values, each calculated when it is needed.
    Calculated(Duration),
}

impl Sampler {
    fn new(duration: Duration, with_table: bool) -> Self {
        let quantiles = match duration {
            Duration::Constant { ns } => Quantiles::One(ns),
            _ if !with_table => Quantiles::Rare(Box::new(Rare::Calculated(duration))),
            _ => {
                let table: [u64; QUANTILES] = std::array::from_fn(|index| quantile(duration, index));
                if table.iter().all(|&ns| ns <= u64::from(u32::MAX)) {
                    Quantiles::Short(Box::new(table.map(|ns| ns as u32)))
                } else {
                    Quantiles::Rare(Box::new(Rare::Long(Box::new(table))))
                }
            }
        };
        Self { quantiles }
    }

    fn has_table(&self) -> bool {
        match &self.quantiles {
            Quantiles::One(_) => false,
            Quantiles::Short(_) => true,
            Quantiles::Rare(rare) => matches!(**rare, Rare::Long(_)),
        }
    }

    #[inline]
    fn sample(&self, random: &mut Random) -> u64 {
        let mut index = || (random.next() >> (64 - QUANTILE_BITS)) as usize;
        match &self.quantiles {
            Quantiles::One(ns) => *ns,
            Quantiles::Short(quantiles) => u64::from(quantiles[index()]),
            Quantiles::Rare(rare) => rare.at(index()),
        }
    }
}

impl Rare {
    #[inline(never)]
    fn at(&self, index: usize) -> u64 {
        match self {
            Self::Long(quantiles) => quantiles[index],
            Self::Calculated(duration) => quantile(*duration, index),
        }
    }
}

/// The mean of the values that a run takes from a distribution.
pub fn mean_ns(duration: Duration) -> f64 {
    if let Duration::Constant { ns } = duration {
        return ns as f64;
    }
    (0..QUANTILES).map(|index| quantile(duration, index) as f64).sum::<f64>() / QUANTILES as f64
}

fn quantile(duration: Duration, index: usize) -> u64 {
    let share = (index as f64 + 0.5) / QUANTILES as f64;
    let ns = match duration {
        Duration::Constant { ns } => ns as f64,
        Duration::Uniform { min_ns, max_ns } => min_ns as f64 + share * (max_ns - min_ns) as f64,
        Duration::Exponential { mean_ns } => -libm::log(1.0 - share) * mean_ns as f64,
        Duration::LogNormal { median_ns, sigma_permille } => {
            let sigma = f64::from(sigma_permille) / 1000.0;
            median_ns as f64 * libm::exp(normal_quantiles()[index] * sigma)
        }
        Duration::TwoPoint { body_ns, tail_ns, tail_permille } => {
            let body = 1.0 - f64::from(tail_permille) / 1000.0;
            if share < body {
                -libm::log(1.0 - share / body) * body_ns as f64
            } else {
                -libm::log(1.0 - (share - body) / (1.0 - body)) * tail_ns as f64
            }
        }
    };
    whole_ns(ns)
}

fn whole_ns(ns: f64) -> u64 {
    ns.round().clamp(0.0, 1e15) as u64
}

/// Quantiles of the normal distribution, by Newton's method from one to the next: free of magic coefficients.
/// Those of `statrs` use the platform's logarithms.
fn normal_quantiles() -> &'static [f64; QUANTILES] {
    static NORMAL: OnceLock<[f64; QUANTILES]> = OnceLock::new();
    NORMAL.get_or_init(|| {
        let mut z: f64 = -3.3;
        std::array::from_fn(|i| {
            let share = (i as f64 + 0.5) / QUANTILES as f64;
            for _ in 0..20 {
                let density = libm::exp(-z * z / 2.0) / (2.0 * std::f64::consts::PI).sqrt();
                let step = (normal_cumulative(z) - share) / density;
                z -= step;
                if step.abs() < 1e-9 {
                    break;
                }
            }
            z
        })
    })
}

fn normal_cumulative(x: f64) -> f64 {
    // The Taylor series of the integral around 0, which converges for the range used here.
    let (mut term, mut sum) = (x, x);
    for n in 1..200 {
        term *= -x * x / 2.0 / n as f64;
        let part = term / (2 * n + 1) as f64;
        sum += part;
        if part.abs() < 1e-15 {
            break;
        }
    }
    0.5 + sum / (2.0 * std::f64::consts::PI).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sampler_has_the_mean_of_its_distribution() {
        let cases = [
            (Duration::Uniform { min_ns: 100, max_ns: 300 }, 200.0),
            (Duration::Exponential { mean_ns: 1000 }, 1000.0),
            (Duration::LogNormal { median_ns: 1000, sigma_permille: 500 }, 1000.0 * 0.125f64.exp()),
            (Duration::TwoPoint { body_ns: 1000, tail_ns: 50_000, tail_permille: 100 }, 5_900.0),
        ];
        for (duration, mean) in cases {
            let found = mean_ns(duration);
            assert!((found / mean - 1.0).abs() < 0.02, "{duration:?}: {found}, not {mean}");
        }
    }

    #[test]
    fn a_distribution_has_the_same_values_with_a_table_and_without() {
        let cases = [
            Duration::Constant { ns: 7 },
            Duration::Uniform { min_ns: 100, max_ns: 300 },
            Duration::Exponential { mean_ns: 1000 },
            Duration::Exponential { mean_ns: 10_000_000_000 },
            Duration::LogNormal { median_ns: 1000, sigma_permille: 500 },
            Duration::TwoPoint { body_ns: 1000, tail_ns: 50_000, tail_permille: 100 },
        ];
        for duration in cases {
            let (with, without) = (Sampler::new(duration, true), Sampler::new(duration, false));
            let (mut one, mut other) = (Random::stream(5, 0), Random::stream(5, 0));
            for _ in 0..10_000 {
                assert_eq!(with.sample(&mut one), without.sample(&mut other), "{duration:?}");
            }
        }
    }

    #[test]
    fn tables_are_limited_in_number_and_equal_distributions_share_one() {
        let mut samplers = Samplers::default();
        let distribution = |number: usize| Duration::Exponential { mean_ns: 1 + number as u64 };
        for round in 0..2 {
            for number in 0..5 * TABLES_MAX {
                assert_eq!(samplers.number(distribution(number)), number as u32, "round {round}");
            }
        }
        assert_eq!(samplers.samplers.len(), 5 * TABLES_MAX);
        assert_eq!(samplers.samplers.iter().filter(|sampler| sampler.has_table()).count(), TABLES_MAX);
        assert!(size_of::<Rare>() <= 64, "who has no table has no room for one: {}", size_of::<Rare>());
    }

    #[test]
    fn streams_of_one_seed_differ() {
        assert_ne!(Random::stream(1, 1).next(), Random::stream(1, 2).next());
    }
}
