//! Random numbers and distributions of times: integers only once a run has started.

use crate::config::Duration;

/// SplitMix64: one word of state, so that every guest thread has its own and no other thread's order changes it.
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

/// A distribution as 1,024 equally likely values (the middle of each quantile): sampling is one load.
pub struct Sampler {
    quantiles: Quantiles,
}

/// In half the memory if all are below four seconds: the tables compete for the fastest cache.
enum Quantiles {
    One(u64),
    Short(Box<[u32; QUANTILES]>),
    Long(Box<[u64; QUANTILES]>),
}

impl Sampler {
    pub fn new(duration: Duration) -> Self {
        let quantiles: Vec<u64> = match duration {
            Duration::Constant { ns } => return Self { quantiles: Quantiles::One(ns) },
            Duration::LogNormal { median_ns, sigma_permille } => {
                let sigma = f64::from(sigma_permille) / 1000.0;
                normal_quantiles().map(|z| whole_ns(median_ns as f64 * (z * sigma).exp())).collect()
            }
            _ => (0..QUANTILES).map(|i| quantile(duration, (i as f64 + 0.5) / QUANTILES as f64)).collect(),
        };
        let short = quantiles.iter().all(|&ns| ns <= u64::from(u32::MAX));
        let quantiles = if short {
            Quantiles::Short(Box::new(std::array::from_fn(|i| quantiles[i] as u32)))
        } else {
            Quantiles::Long(Box::new(std::array::from_fn(|i| quantiles[i])))
        };
        Self { quantiles }
    }

    #[inline]
    pub fn sample(&self, random: &mut Random) -> u64 {
        let mut index = || (random.next() >> (64 - QUANTILE_BITS)) as usize;
        match &self.quantiles {
            Quantiles::One(ns) => *ns,
            Quantiles::Short(quantiles) => u64::from(quantiles[index()]),
            Quantiles::Long(quantiles) => quantiles[index()],
        }
    }

    pub fn mean_ns(&self) -> f64 {
        match &self.quantiles {
            Quantiles::One(ns) => *ns as f64,
            Quantiles::Short(quantiles) => {
                quantiles.iter().map(|&ns| f64::from(ns)).sum::<f64>() / QUANTILES as f64
            }
            Quantiles::Long(quantiles) => {
                quantiles.iter().map(|&ns| ns as f64).sum::<f64>() / QUANTILES as f64
            }
        }
    }
}

fn quantile(duration: Duration, share: f64) -> u64 {
    let ns = match duration {
        Duration::Constant { ns } => ns as f64,
        Duration::Uniform { min_ns, max_ns } => min_ns as f64 + share * (max_ns - min_ns) as f64,
        Duration::Exponential { mean_ns } => -(1.0 - share).ln() * mean_ns as f64,
        Duration::LogNormal { .. } => unreachable!("made of normal quantiles"),
        Duration::TwoPoint { body_ns, tail_ns, tail_permille } => {
            let body = 1.0 - f64::from(tail_permille) / 1000.0;
            if share < body {
                -(1.0 - share / body).ln() * body_ns as f64
            } else {
                -(1.0 - (share - body) / (1.0 - body)).ln() * tail_ns as f64
            }
        }
    };
    whole_ns(ns)
}

fn whole_ns(ns: f64) -> u64 {
    ns.round().clamp(0.0, 1e15) as u64
}

/// Quantiles of the normal distribution, by Newton's method from one to the next: free of magic coefficients.
fn normal_quantiles() -> impl Iterator<Item = f64> {
    let mut z: f64 = -3.3;
    (0..QUANTILES).map(move |i| {
        let share = (i as f64 + 0.5) / QUANTILES as f64;
        for _ in 0..20 {
            let density = (-z * z / 2.0).exp() / (2.0 * std::f64::consts::PI).sqrt();
            let step = (normal_cumulative(z) - share) / density;
            z -= step;
            if step.abs() < 1e-9 {
                break;
            }
        }
        z
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
            let found = Sampler::new(duration).mean_ns();
            assert!((found / mean - 1.0).abs() < 0.02, "{duration:?}: {found}, not {mean}");
        }
    }

    #[test]
    fn streams_of_one_seed_differ() {
        assert_ne!(Random::stream(1, 1).next(), Random::stream(1, 2).next());
    }
}
