//! Mean and confidence interval over seeds (or over repeated real runs).
//!
//! Student's t is a table, not `statrs`: fifteen lines less would change the fourth digit of all intervals.

/// Two-sided 97.5 % quantiles of Student's t for 1 to 30 degrees of freedom (any table of the distribution).
const T_975: [f64; 30] = [
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
    2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
];
/// The same of the normal distribution, to which Student's comes ever closer.
const Z_975: f64 = 1.959_964;

/// Student's t for a two-sided 95 % interval. Beyond the table three terms of the Cornish-Fisher expansion
/// (Abramowitz and Stegun, 26.7.5) are exact to five digits.
fn t_975(degrees: usize) -> f64 {
    let (z, n) = (Z_975, degrees as f64);
    let expanded =
        || z + (z.powi(3) + z) / (4.0 * n) + (5.0 * z.powi(5) + 16.0 * z.powi(3) + 3.0 * z) / (96.0 * n * n);
    T_975.get(degrees - 1).copied().unwrap_or_else(expanded)
}

/// A mean of independent runs with its 95 % confidence interval (Student's t).
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
pub struct Estimate {
    /// Arithmetic mean of the runs.
    pub mean: f64,
    /// Lower end of the interval; equals `mean` if there is only one run.
    pub low: f64,
    /// Upper end of the interval; equals `mean` if there is only one run.
    pub high: f64,
    /// How many runs.
    pub count: usize,
}

impl Estimate {
    /// From one value per run; runs without the figure (NaN, infinite) are left out. `None` if no run has it.
    pub fn of(values: &[f64]) -> Option<Self> {
        let values: Vec<f64> = values.iter().copied().filter(|value| value.is_finite()).collect();
        let count = values.len();
        if count == 0 {
            return None;
        }
        let mean = values.iter().sum::<f64>() / count as f64;
        if count == 1 {
            return Some(Self { mean, low: mean, high: mean, count });
        }
        let variance = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / (count - 1) as f64;
        let half = t_975(count - 1) * (variance / count as f64).sqrt();
        Some(Self { mean, low: mean - half, high: mean + half, count })
    }

    /// The geometric mean of ratios, and an interval that is as wide upwards as downwards, by factors. What
    /// isn't above zero is left out.
    pub fn of_ratios(ratios: &[f64]) -> Option<Self> {
        let logarithms: Vec<f64> =
            ratios.iter().filter(|ratio| **ratio > 0.0).map(|ratio| ratio.ln()).collect();
        let Self { mean, low, high, count } = Self::of(&logarithms)?;
        Some(Self { mean: mean.exp(), low: low.exp(), high: high.exp(), count })
    }

    /// Half of the interval's width.
    pub fn half_width(&self) -> f64 {
        (self.high - self.low) / 2.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_runs_give_students_interval() {
        // Mean 10, standard deviation 1, t(2) = 4.303: half width 4.303 / sqrt(3).
        let estimate = Estimate::of(&[9.0, 10.0, 11.0]).expect("three runs");
        assert_eq!(estimate.mean, 10.0);
        assert!((estimate.half_width() - 4.303 / 3f64.sqrt()).abs() < 1e-9);
    }

    #[test]
    fn any_number_of_runs_has_students_interval() {
        let known = [(30, 2.0423), (31, 2.0395), (40, 2.0211), (60, 2.0003), (120, 1.9799), (1000, 1.9623)];
        for (degrees, t) in known {
            assert!((t_975(degrees) / t - 1.0).abs() < 2e-4, "{degrees}: {}", t_975(degrees));
        }
    }

    #[test]
    fn ratios_have_their_geometric_mean_and_an_interval_by_factors() {
        let estimate = Estimate::of_ratios(&[0.5, 1.0, 2.0, 0.0]).expect("three ratios");
        assert!((estimate.mean - 1.0).abs() < 1e-12);
        assert!((estimate.low * estimate.high - 1.0).abs() < 1e-12 && estimate.low > 0.0);
        assert_eq!(estimate.count, 3);
        assert_eq!(Estimate::of_ratios(&[]), None);
    }

    #[test]
    fn one_run_has_no_width_and_no_run_has_no_estimate() {
        assert_eq!(Estimate::of(&[4.0]).map(|estimate| estimate.half_width()), Some(0.0));
        assert_eq!(Estimate::of(&[f64::NAN]), None);
    }
}
