//! Kernels that no sched_ext scheduler should run on: `crates/host/refused-kernels.toml`, which names its
//! sources.

use crate::HostError;
use serde::Deserialize;

const DATA: &str = include_str!("../../refused-kernels.toml");

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Data {
    kernel: Vec<Refused>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Refused {
    from: String,
    fixed: Option<String>,
    #[serde(default)]
    real_time: bool,
    #[serde(default)]
    tickless: bool,
    cause: String,
    source: String,
}

/// Checks the running kernel: release and version as `uname -r` and `uname -v` say them, and the pCPUs of
/// `nohz_full=`, if there are any.
///
/// # Errors
/// Why this kernel is refused.
pub fn check(release: &str, version: &str, tickless_pcpus: &str) -> Result<(), HostError> {
    let data: Data = toml::from_str(DATA).map_err(HostError::broken)?;
    let is_real_time = version.split_whitespace().any(|word| word == "PREEMPT_RT");
    let is_tickless = tickless_pcpus.starts_with(|first: char| first.is_ascii_digit());
    let running = numbers(release);
    let is_refused = |kernel: &&Refused| {
        running >= numbers(&kernel.from)
            && kernel.fixed.as_deref().is_none_or(|fixed| running < numbers(fixed))
            && (is_real_time || !kernel.real_time)
            && (is_tickless || !kernel.tickless)
    };
    let Some(Refused { fixed, cause, source, .. }) = data.kernel.iter().find(is_refused) else {
        return Ok(());
    };
    let instead = match fixed {
        Some(fixed) => format!("use {fixed} or later"),
        None => "`microslice run --scheduler beside` leaves the kernel's own scheduler in charge".to_owned(),
    };
    Err(HostError::refused(format!("Linux {release}: {cause} ({instead}; source: {source})")))
}

/// Returns 7, 1, 3 of "7.1.3-xanmod1". Missing numbers are 0; release candidates count as their release.
pub fn numbers(release: &str) -> [u32; 3] {
    let version = release.split(|c: char| !c.is_ascii_digit() && c != '.').next().unwrap_or_default();
    let mut parts = version.split('.').map(|part| part.parse().unwrap_or(0));
    std::array::from_fn(|_| parts.next().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ORDINARY: &str = "#1 SMP PREEMPT_DYNAMIC Debian 7.1.8-1 (2026-08-10)";
    const REAL_TIME: &str = "#1 SMP PREEMPT_RT Debian 6.12.117-1 (2026-08-10)";

    #[test]
    fn kernels_that_deadlock_are_refused_with_alternative_and_source() {
        let line = check("7.1.3-xanmod1", ORDINARY, "").unwrap_err();
        assert!(line.is_refusal());
        let line = line.to_string();
        assert!(line.starts_with("Linux 7.1.3-xanmod1: enabling") && !line.contains('\n'), "{line}");
        assert!(line.contains("use 7.1.9 or later") && line.contains("issue 3716"), "{line}");
        for fine in
            ["7.1.9", "7.1.10-amd64", "7.0.13+deb13-amd64", "6.18.15+deb13-amd64", "7.2.12+deb14-amd64"]
        {
            assert!(check(fine, ORDINARY, "(null)").is_ok(), "{fine}");
        }
    }

    #[test]
    fn only_real_time_kernels_without_timers_are_refused() {
        let release = "6.12.117+deb13-rt-amd64";
        assert!(check(release, REAL_TIME, "").unwrap_err().to_string().contains("BPF timers"));
        assert!(check(release, ORDINARY, "").is_ok());
        assert!(check("7.2.13+deb14-rt-amd64", REAL_TIME, "").is_ok(), "no source says so of these");
    }

    #[test]
    fn pcpus_without_ticks_are_refused_from_7_1_on() {
        let line = check("7.2.12+deb14-amd64", ORDINARY, "1-3").unwrap_err().to_string();
        assert!(
            line.contains("nohz_full") && line.contains("--scheduler beside") && line.contains("3687"),
            "{line}"
        );
        assert!(check("7.0.13+deb13-amd64", ORDINARY, "1-3").is_ok());
        for none in ["", "(null)"] {
            assert!(check("7.2.12+deb14-amd64", ORDINARY, none).is_ok(), "{none}");
        }
    }

    #[test]
    fn each_refused_kernel_has_range_cause_and_source() {
        let data: Data = toml::from_str(DATA).unwrap();
        for kernel in data.kernel {
            let ends = kernel.fixed.as_deref().is_none_or(|fixed| numbers(&kernel.from) < numbers(fixed));
            assert!(ends && numbers(&kernel.from) > [0, 0, 0], "{kernel:?}");
            assert!(!kernel.cause.is_empty() && !kernel.source.is_empty(), "{kernel:?}");
            assert!(![&kernel.cause, &kernel.source].iter().any(|text| text.contains('\n')), "{kernel:?}");
        }
    }
}
