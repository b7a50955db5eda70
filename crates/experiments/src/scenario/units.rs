//! Numbers with units as people write them: `30 ms`, `2.4 GHz`, `1 Gbit/s`, `256 KiB`, `5 %`, and
//! distributions of times: `exponential 3 us`, `lognormal 2 us sigma 0.8`. Nothing is ever guessed: a number
//! without its unit is refused.

use super::error::quoted;
use microslice_model::config::Duration;
use std::ops::RangeInclusive;

/// What a unit stands for, as (symbol, factor to the base unit).
type UnitTable = &'static [(&'static str, f64)];

const TIMES: UnitTable = &[("ns", 1.0), ("us", 1e3), ("ms", 1e6), ("s", 1e9), ("min", 60e9)];
const FREQUENCIES: UnitTable = &[("Hz", 1.0), ("kHz", 1e3), ("MHz", 1e6), ("GHz", 1e9)];
const RATES: UnitTable = &[("bit/s", 1.0), ("kbit/s", 1e3), ("Mbit/s", 1e6), ("Gbit/s", 1e9)];
const SIZES: UnitTable = &[("B", 1.0), ("KiB", 1024.0), ("MiB", 1024.0 * 1024.0), ("kB", 1e3), ("MB", 1e6)];

/// Longest time that a scenario may contain: an hour; beyond it someone forgot a unit's prefix.
pub const HOUR_NS: u64 = 3_600_000_000_000;
/// Fattest tail of a log-normal that makes sense for hold times: 4 means 50 times the median at one sigma.
const SIGMA_MAX: f64 = 4.0;

/// A time in ns within limits. `cycles` is allowed if the host's frequency (Hz) is given.
pub fn time_ns(text: &str, frequency_hz: Option<f64>, allowed: &RangeInclusive<u64>) -> Result<u64, String> {
    let (number, unit) = split(text);
    let ns = match (frequency_hz, unit) {
        (Some(hz), "cycles") => parse_number(number, text)? / hz * 1e9,
        _ => {
            let cycles: &[&str] = if frequency_hz.is_some() { &["cycles"] } else { &[] };
            with_unit_or(text, TIMES, cycles, "a time such as \"30 ms\"")?
        }
    };
    match ns.round() as u64 {
        ns if allowed.contains(&ns) => Ok(ns),
        _ => Err(format!(
            "{} isn't allowed, only {} to {}",
            quoted(text),
            shown(*allowed.start()),
            shown(*allowed.end())
        )),
    }
}

/// A time in the largest unit that it is a whole number of.
fn shown(ns: u64) -> String {
    let whole = TIMES.iter().rev().find(|(_, factor)| ns > 0 && ns.is_multiple_of(*factor as u64));
    let (symbol, factor) = whole.unwrap_or(&TIMES[0]);
    format!("{} {symbol}", ns / *factor as u64)
}

/// A frequency in Hz.
pub fn frequency_hz(text: &str) -> Result<f64, String> {
    with_unit(text, FREQUENCIES, "a frequency such as \"2.4 GHz\"")
}

/// A data rate in bit/s.
pub fn rate_bits_per_s(text: &str) -> Result<f64, String> {
    with_unit(text, RATES, "a rate such as \"1 Gbit/s\"")
}

/// A size in bytes.
pub fn size_bytes(text: &str) -> Result<u64, String> {
    let bytes = with_unit(text, SIZES, "a size such as \"256 KiB\"")?;
    if bytes > 1e12 {
        Err("larger than 1 TB, the limit for any size".to_owned())
    } else {
        Ok(bytes.round() as u64)
    }
}

/// A whole percentage.
pub fn percent(text: &str) -> Result<u32, String> {
    share(text, 100)
}

/// A percentage in 1/1000.
pub fn permille(text: &str) -> Result<u32, String> {
    share(text, 1_000)
}

/// A probability in 1/1,000,000.
pub fn ppm(text: &str) -> Result<u32, String> {
    share(text, 1_000_000)
}

/// A percentage in parts of `whole`. One that lies between two of them is refused: rounded to 0, what was
/// meant to be rare would never happen.
fn share(text: &str, whole: u32) -> Result<u32, String> {
    let percent = with_unit(text, &[("%", 1.0)], "a percentage such as \"5 %\"")?;
    if percent > 100.0 {
        return Err("more than 100 %".to_owned());
    }
    let parts = percent / 100.0 * f64::from(whole);
    if (parts - parts.round()).abs() > 1e-6 {
        return Err(format!("finer than the resolution, {} %", 100.0 / f64::from(whole)));
    }
    Ok(parts.round() as u32)
}

const DISTRIBUTIONS: &str = "\"3 us\", \"exponential 3 us\", \"uniform 1 us to 5 us\", \"lognormal 3 us sigma 0.8\" (median) or \
     \"mix 3 us with 2 % of 100 us\"";

/// A distribution of times.
pub fn distribution(text: &str) -> Result<Duration, String> {
    let words: Vec<&str> = text.split_whitespace().collect();
    let time = |words: &[&str]| time_ns(&words.join(" "), None, &(0..=HOUR_NS));
    match words.as_slice() {
        ["exponential", mean @ ..] => Ok(Duration::Exponential { mean_ns: time(mean)? }),
        ["uniform", limits @ ..] => {
            let to =
                limits.iter().position(|word| *word == "to").ok_or(format!("expected {DISTRIBUTIONS}"))?;
            let (min_ns, max_ns) = (time(&limits[..to])?, time(&limits[to + 1..])?);
            if min_ns > max_ns {
                return Err("the lower limit is above the upper one".to_owned());
            }
            Ok(Duration::Uniform { min_ns, max_ns })
        }
        ["lognormal", median @ .., "sigma", sigma] => {
            let sigma = parse_number(sigma, text)?;
            if sigma > SIGMA_MAX {
                return Err(format!("sigma above {SIGMA_MAX}, the limit"));
            }
            Ok(Duration::LogNormal {
                median_ns: time(median)?,
                sigma_permille: (sigma * 1000.0).round() as u32,
            })
        }
        ["mix", rest @ ..] => {
            let position = |word: &str| rest.iter().position(|candidate| *candidate == word);
            match (position("with"), position("of")) {
                (Some(with), Some(of)) if with < of => Ok(Duration::TwoPoint {
                    body_ns: time(&rest[..with])?,
                    tail_permille: permille(&rest[with + 1..of].join(" "))?,
                    tail_ns: time(&rest[of + 1..])?,
                }),
                _ => Err(format!("expected {DISTRIBUTIONS}")),
            }
        }
        [first, ..]
            if first.starts_with(|c: char| c.is_ascii_digit() || c == '.' || c == '-' || c == '+') =>
        {
            Ok(Duration::Constant { ns: time(&words)? })
        }
        _ => Err(format!("expected {DISTRIBUTIONS}")),
    }
}

/// Mean of a distribution, in ns.
pub fn mean_ns(duration: &Duration) -> f64 {
    match *duration {
        Duration::Constant { ns } => ns as f64,
        Duration::Uniform { min_ns, max_ns } => (min_ns as f64 + max_ns as f64) / 2.0,
        Duration::Exponential { mean_ns } => mean_ns as f64,
        Duration::LogNormal { median_ns, sigma_permille } => {
            let sigma = f64::from(sigma_permille) / 1000.0;
            median_ns as f64 * (sigma * sigma / 2.0).exp()
        }
        Duration::TwoPoint { body_ns, tail_ns, tail_permille } => {
            let tail = f64::from(tail_permille) / 1000.0;
            body_ns as f64 * (1.0 - tail) + tail_ns as f64 * tail
        }
    }
}

/// The number and the unit of `30 ms` (the blank may be missing).
fn split(text: &str) -> (&str, &str) {
    let text = text.trim();
    let end = text
        .find(|c: char| !(c.is_ascii_digit() || matches!(c, '.' | '_' | '-' | '+')))
        .unwrap_or(text.len());
    (&text[..end], text[end..].trim())
}

fn parse_number(number: &str, text: &str) -> Result<f64, String> {
    let value: f64 = number
        .replace('_', "")
        .parse()
        .map_err(|_| format!("{} doesn't begin with a number", quoted(text)))?;
    match value {
        v if !v.is_finite() => Err("not a finite number".to_owned()),
        v if v < 0.0 => Err("negative".to_owned()),
        v => Ok(v),
    }
}

fn with_unit(text: &str, units: UnitTable, expected: &str) -> Result<f64, String> {
    with_unit_or(text, units, &[], expected)
}

/// `others` are allowed, too: the caller has looked for them.
fn with_unit_or(text: &str, units: UnitTable, others: &[&str], expected: &str) -> Result<f64, String> {
    let all = || units.iter().map(|(symbol, _)| symbol).chain(others).copied();
    let symbols = || all().collect::<Vec<_>>().join(", ");
    let (number, unit) = split(text);
    let value = parse_number(number, text).map_err(|cause| format!("{cause}; expected {expected}"))?;
    if unit.is_empty() {
        return Err(format!("{} has no unit; allowed: {}", quoted(text), symbols()));
    }
    match units.iter().find(|(symbol, _)| *symbol == unit) {
        Some((_, factor)) => Ok(value * factor),
        None => Err(format!("unknown unit {}; allowed: {}", quoted(unit), symbols())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn time(text: &str, frequency_hz: Option<f64>) -> Result<u64, String> {
        time_ns(text, frequency_hz, &(0..=HOUR_NS))
    }

    #[test]
    fn times_need_their_unit() {
        assert_eq!(time("30 ms", None), Ok(30_000_000));
        assert_eq!(time("0.1ms", None), Ok(100_000));
        assert_eq!(time("4096 cycles", Some(2.4e9)), Ok(1_707));
        assert_eq!(time("30", None), Err("`30` has no unit; allowed: ns, us, ms, s, min".to_owned()));
        assert_eq!(
            time("30 parsecs", None),
            Err("unknown unit `parsecs`; allowed: ns, us, ms, s, min".to_owned())
        );
        assert!(time("-1 ms", None).expect_err("negative").starts_with("negative"));
        assert_eq!(time("61 min", None), Err("`61 min` isn't allowed, only 0 ns to 60 min".to_owned()));
    }

    #[test]
    fn every_distribution_can_be_written() {
        assert_eq!(distribution("3 us"), Ok(Duration::Constant { ns: 3_000 }));
        assert_eq!(distribution("exponential 1.5 us"), Ok(Duration::Exponential { mean_ns: 1_500 }));
        assert_eq!(
            distribution("uniform 1 us to 2 us"),
            Ok(Duration::Uniform { min_ns: 1_000, max_ns: 2_000 })
        );
        assert_eq!(
            distribution("lognormal 2 us sigma 0.8"),
            Ok(Duration::LogNormal { median_ns: 2_000, sigma_permille: 800 })
        );
        assert_eq!(
            distribution("mix 2 us with 2.5 % of 1 ms"),
            Ok(Duration::TwoPoint { body_ns: 2_000, tail_ns: 1_000_000, tail_permille: 25 })
        );
        assert!(distribution("gamma 3 us").expect_err("unknown").contains("exponential"));
    }

    #[test]
    fn rates_sizes_and_percentages_have_units_too() {
        assert_eq!(rate_bits_per_s("1 Gbit/s"), Ok(1e9));
        assert_eq!(size_bytes("64 KiB"), Ok(65_536));
        assert_eq!(permille("2.5 %"), Ok(25));
        assert!(permille("101 %").is_err());
        assert_eq!(ppm("0.0125 %"), Ok(125));
    }

    #[test]
    fn a_percentage_between_two_steps_is_refused_instead_of_rounded_to_never() {
        assert_eq!(permille("0.04 %"), Err("finer than the resolution, 0.1 %".to_owned()));
        assert_eq!(ppm("0.00001 %"), Err("finer than the resolution, 0.0001 %".to_owned()));
        assert!(
            (0..=1000).all(|tenths| permille(&format!("{}.{} %", tenths / 10, tenths % 10)) == Ok(tenths))
        );
    }

    proptest! {
        #[test]
        fn no_text_panics(text in "\\PC{0,40}") {
            let _ = (time(&text, Some(1e9)), distribution(&text), permille(&text), size_bytes(&text));
        }

        #[test]
        fn near_misses_of_distributions_do_not_panic(words in prop::collection::vec("uniform|to|mix|with|of|lognormal|sigma|exponential|1 us|2 %|3|-1|us|9e99", 0..7)) {
            let _ = distribution(&words.join(" "));
        }
    }
}
