//! How long a runnable vCPU may wait for a pCPU (`--max-wait`, `policy/max_wait.h`).

use microslice_policy::{
    MAX_WAIT_AUTO_NS, MAX_WAIT_LEAST_NS, MAX_WAIT_MOST_NS, WAIT_ROOM, max_wait_each_ns, max_wait_least_ns,
    max_wait_of_vm_ns,
};
use std::time::Duration;

/// Returns for how long vCPUs of a VM may wait now, in nanoseconds. `None`: for ever. The bounds are as
/// `max_wait_of_vm_ns()` takes them.
pub(crate) fn in_force_ns(own_ns: u64, host_ns: u64, least_ns: u64) -> Option<u64> {
    Some(max_wait_of_vm_ns(own_ns, host_ns, least_ns)).filter(|bound_ns| *bound_ns > 0)
}

/// A bound on waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MaxWait {
    /// For ever.
    None,
    /// 10 ms, or longer where many want to run.
    Auto,
    /// Within what looks can keep.
    Of(Duration),
}

impl MaxWait {
    /// Reads a VM's own bound, which a time or `none` may be.
    ///
    /// # Errors
    /// The cause in words, with the value.
    pub fn of_vm(text: &str) -> Result<Self, String> {
        match text.parse() {
            Ok(Self::Auto) => Err(format!("{text:?} is neither a time such as 10ms, nor none")),
            bound => bound,
        }
    }

    /// 0 for [`MaxWait::None`].
    pub fn bound_ns(self) -> u64 {
        match self {
            Self::None => 0,
            Self::Auto => MAX_WAIT_AUTO_NS.into(),
            Self::Of(bound) => bound.as_nanos() as u64,
        }
    }

    /// How long it is for each vCPU that wants to run and that a pCPU has, if that is longer. A bound that
    /// was chosen leaves half of the host to turns by weight, too.
    pub fn each_ns(self, micro_slice_us: u64) -> u64 {
        let micro_slice_ns = micro_slice_us * 1000;
        match self {
            Self::None => 0,
            Self::Auto => max_wait_each_ns(micro_slice_ns),
            Self::Of(_) => u64::from(WAIT_ROOM) * micro_slice_ns,
        }
    }
}

/// As one would write it.
impl std::fmt::Display for MaxWait {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::None => f.write_str("none"),
            Self::Auto => f.write_str("auto"),
            Self::Of(bound) => write!(f, "{bound:?}"),
        }
    }
}

impl std::str::FromStr for MaxWait {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "none" => return Ok(Self::None),
            "auto" => return Ok(Self::Auto),
            _ => {}
        }
        let digits = text.bytes().take_while(|byte| byte.is_ascii_digit() || *byte == b'.').count();
        let (number, unit) = text.split_at(digits);
        let unit_ns = match unit.trim_start() {
            "us" => 1e3,
            "ms" => 1e6,
            "s" => 1e9,
            _ => return Err(format!("{text:?} is neither a time such as 10ms, nor auto or none")),
        };
        // A number that is too large stays so.
        let ns = number.parse::<f64>().map(|number| (number * unit_ns).round() as u64);
        match ns {
            Ok(ns) if (u64::from(MAX_WAIT_LEAST_NS)..=u64::from(MAX_WAIT_MOST_NS)).contains(&ns) => {
                Ok(Self::Of(Duration::from_nanos(ns)))
            }
            _ => Err(format!("{text:?} isn't 1ms to 1s")),
        }
    }
}

/// Which bound the operator was told that vCPUs can have, at least.
#[derive(Debug, Default)]
pub struct LeastBound {
    said_ns: u64,
}

impl LeastBound {
    /// Returns a line if so many vCPUs can't have the shortest of these bounds, and that wasn't said of as
    /// many.
    pub fn line(
        &mut self,
        bounds: impl Iterator<Item = MaxWait>,
        micro_slice_us: u64,
        vcpus: u32,
        pcpus: u32,
    ) -> Option<String> {
        let chosen = bounds.filter(|bound| matches!(bound, MaxWait::Of(_)));
        let bound_ns = chosen.map(MaxWait::bound_ns).min()?;
        let least_ns = max_wait_least_ns(micro_slice_us * 1000, vcpus, pcpus);
        if least_ns <= bound_ns.max(self.said_ns) {
            return None;
        }
        self.said_ns = least_ns;
        Some(format!(
            "{vcpus} vCPUs on {pcpus} pCPUs can't all have a max-wait of {} ms: \
             the least that they can is {} ms",
            bound_ns as f64 / 1e6,
            least_ns as f64 / 1e6
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bound_that_many_vcpus_cannot_have_is_said_once() {
        let bound: MaxWait = "2ms".parse().unwrap();
        let mut least = LeastBound::default();
        let mut line =
            |bounds: &[MaxWait], vcpus, pcpus| least.line(bounds.iter().copied(), 100, vcpus, pcpus);
        assert_eq!(line(&[MaxWait::Auto, MaxWait::None], 4096, 1), None, "it is as long as they need");
        assert_eq!(line(&[bound], 40, 4), None);
        let said = line(&[MaxWait::Auto, "30ms".parse().unwrap(), bound], 80, 4).unwrap();
        let expected =
            "80 vCPUs on 4 pCPUs can't all have a max-wait of 2 ms: the least that they can is 4 ms";
        assert_eq!(said, expected);
        assert_eq!(line(&[bound], 80, 4), None);
        assert!(line(&[bound], 100, 4).is_some(), "more of them, and it is longer");
    }

    #[test]
    fn bounds_are_from_a_millisecond_to_a_second() {
        let ns = |text: &str| text.parse::<MaxWait>().map(MaxWait::bound_ns);
        assert_eq!(ns("10ms"), Ok(10_000_000));
        assert_eq!((ns("1.5ms"), ns("5 ms"), ns("0.25s")), (Ok(1_500_000), Ok(5_000_000), Ok(250_000_000)));
        assert_eq!((ns("1500 us"), ns("1s"), ns("none")), (Ok(1_500_000), Ok(1_000_000_000), Ok(0)));
        assert_eq!((ns("auto"), MaxWait::Auto.each_ns(100)), (Ok(10_000_000), 5_000_000));
        assert_eq!("10ms".parse().map(|bound: MaxWait| bound.each_ns(100)), Ok(200_000));
        for (text, cause) in [
            ("50us", "\"50us\" isn't 1ms to 1s"),
            ("2s", "\"2s\" isn't 1ms to 1s"),
            ("99999999999999999999s", "\"99999999999999999999s\" isn't 1ms to 1s"),
            ("10", "\"10\" is neither a time such as 10ms, nor auto or none"),
            ("-1ms", "\"-1ms\" is neither a time such as 10ms, nor auto or none"),
            ("1.2.3ms", "\"1.2.3ms\" isn't 1ms to 1s"),
            ("ms", "\"ms\" isn't 1ms to 1s"),
            ("10 bananas", "\"10 bananas\" is neither a time such as 10ms, nor auto or none"),
        ] {
            assert_eq!(ns(text), Err(cause.to_owned()));
        }
    }
}
