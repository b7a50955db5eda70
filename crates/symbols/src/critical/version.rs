//! Kernel versions as far as the catalogue needs them: `6.12`.

use serde::{Deserialize, Deserializer, de};
use std::fmt;

/// Major and minor version of a kernel; a third number never changes which functions exist.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct KernelVersion {
    pub major: u16,
    pub minor: u16,
}

impl KernelVersion {
    pub const fn new(major: u16, minor: u16) -> Self {
        Self { major, minor }
    }

    /// The version at the head of a release such as `6.12.43+deb13-cloud-amd64`.
    pub fn of_release(release: &str) -> Option<Self> {
        let (major, rest) = release.split_once('.')?;
        let digits = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        Some(Self { major: number(major)?, minor: number(&rest[..digits])? })
    }

    fn parse(text: &str) -> Option<Self> {
        let (major, minor) = text.split_once('.')?;
        Some(Self { major: number(major)?, minor: number(minor)? })
    }
}

/// `u16::from_str` would let a sign pass.
fn number(digits: &str) -> Option<u16> {
    digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse().ok())?
}

impl fmt::Display for KernelVersion {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}.{}", self.major, self.minor)
    }
}

impl<'de> Deserialize<'de> for KernelVersion {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::parse(&text).ok_or_else(|| {
            de::Error::custom(format_args!("{text:?} isn't a kernel version such as \"6.12\""))
        })
    }
}

/// Kernel versions from `since` to `until`, both inclusive; an open end is unbounded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct VersionRange {
    pub since: Option<KernelVersion>,
    pub until: Option<KernelVersion>,
}

impl VersionRange {
    pub fn is_unbounded(self) -> bool {
        self.since.is_none() && self.until.is_none()
    }

    pub fn contains(self, version: KernelVersion) -> bool {
        self.since.is_none_or(|since| since <= version) && self.until.is_none_or(|until| version <= until)
    }
}

impl fmt::Display for VersionRange {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.since, self.until) {
            (Some(since), Some(until)) => write!(out, "{since} to {until}"),
            (Some(since), None) => write!(out, "{since} on"),
            (None, Some(until)) => write!(out, "up to {until}"),
            (None, None) => write!(out, "every version"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_release_gives_its_first_two_numbers() {
        let version = |release| KernelVersion::of_release(release).map(|v| (v.major, v.minor));
        assert_eq!(version("6.12.43+deb13-cloud-amd64"), Some((6, 12)));
        assert_eq!(version("7.2-rc3"), Some((7, 2)));
        assert_eq!(version("4.4.0-210-generic"), Some((4, 4)));
        for none in ["", "linux", "6", "6.", ".1", "+6.1", "6.-1", "99999.1", "6.99999"] {
            assert_eq!(version(none), None, "{none:?}");
        }
    }

    #[test]
    fn both_ends_of_a_range_belong_to_it() {
        let range =
            VersionRange { since: Some(KernelVersion::new(5, 8)), until: Some(KernelVersion::new(5, 12)) };
        assert!(range.contains(KernelVersion::new(5, 8)) && range.contains(KernelVersion::new(5, 12)));
        assert!(!range.contains(KernelVersion::new(5, 7)) && !range.contains(KernelVersion::new(6, 0)));
        assert!(VersionRange::default().contains(KernelVersion::new(0, 0)));
    }
}
