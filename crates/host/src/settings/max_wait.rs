//! How long a runnable vCPU may wait for a pCPU (`--max-wait`, `policy/max_wait.h`).

use microslice_policy::{MAX_WAIT_LEAST_NS, MAX_WAIT_MOST_NS};
use std::time::Duration;

/// A bound on waits, within what looks can keep.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MaxWait(Duration);

impl MaxWait {
    pub fn nanoseconds(self) -> u64 {
        self.0.as_nanos() as u64
    }
}

impl std::str::FromStr for MaxWait {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let digits = text.bytes().take_while(u8::is_ascii_digit).count();
        let (number, unit) = text.split_at(digits);
        let unit_ns = match unit.trim_start() {
            "us" => 1_000,
            "ms" => 1_000_000,
            "s" => 1_000_000_000,
            _ => return Err(format!("{text:?} is no time such as 10ms")),
        };
        let ns = number.parse::<u64>().ok().and_then(|number| number.checked_mul(unit_ns));
        match ns {
            Some(ns) if (u64::from(MAX_WAIT_LEAST_NS)..=u64::from(MAX_WAIT_MOST_NS)).contains(&ns) => {
                Ok(Self(Duration::from_nanos(ns)))
            }
            _ => Err(format!("{text:?} isn't 1ms to 1s")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_are_from_a_millisecond_to_a_second() {
        let ns = |text: &str| text.parse::<MaxWait>().map(MaxWait::nanoseconds);
        assert_eq!(ns("10ms"), Ok(10_000_000));
        assert_eq!((ns("1500 us"), ns("1s")), (Ok(1_500_000), Ok(1_000_000_000)));
        for (text, cause) in [
            ("50us", "\"50us\" isn't 1ms to 1s"),
            ("2s", "\"2s\" isn't 1ms to 1s"),
            ("99999999999999999999s", "\"99999999999999999999s\" isn't 1ms to 1s"),
            ("10", "\"10\" is no time such as 10ms"),
            ("-1ms", "\"-1ms\" is no time such as 10ms"),
            ("ms", "\"ms\" isn't 1ms to 1s"),
            ("10 bananas", "\"10 bananas\" is no time such as 10ms"),
        ] {
            assert_eq!(ns(text), Err(cause.to_owned()));
        }
    }
}
