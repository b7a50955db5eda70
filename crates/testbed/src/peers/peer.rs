//! Schedulers of others, and how each is started.

/// A sched_ext scheduler of the project sched-ext/scx.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Peer {
    Bpfland,
    Lavd,
    Rusty,
    Flash,
}

/// The release of all of them.
pub const VERSION: &str = "1.1.4";

impl Peer {
    pub const ALL: [Self; 4] = [Self::Bpfland, Self::Lavd, Self::Rusty, Self::Flash];

    /// What it is called on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Bpfland => "bpfland",
            Self::Lavd => "lavd",
            Self::Rusty => "rusty",
            Self::Flash => "flash",
        }
    }

    /// Its program, its package and its row.
    pub fn program(self) -> &'static str {
        match self {
            Self::Bpfland => "scx_bpfland",
            Self::Lavd => "scx_lavd",
            Self::Rusty => "scx_rusty",
            Self::Flash => "scx_flash",
        }
    }

    /// The flags that say how long slices and credits for sleep are, with the release's defaults.
    fn times_us(self) -> &'static [(&'static str, u64)] {
        match self {
            Self::Bpfland => &[("--slice-us", 1_000), ("--slice-us-lag", 40_000)],
            Self::Lavd => &[("--slice-min-us", 500), ("--slice-max-us", 5_000), ("--pinned-slice-us", 5_000)],
            Self::Rusty => &[("--slice-us-underutil", 20_000), ("--slice-us-overutil", 1_000)],
            Self::Flash => &[("--slice-us", 700), ("--slice-us-lag", 20_000)],
        }
    }

    /// How it is started. Its slices are so many times as long as its defaults; all else is as its authors
    /// have it.
    pub fn command(self, dilation: u32) -> String {
        let flags = self.times_us().iter().map(|(flag, us)| format!(" {flag} {}", us * u64::from(dilation)));
        format!("{}{}", self.program(), flags.collect::<String>())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peers_slices_are_stretched_and_all_else_is_as_its_authors_have_it() {
        assert_eq!(Peer::Bpfland.command(10), "scx_bpfland --slice-us 10000 --slice-us-lag 400000");
        for peer in Peer::ALL {
            assert!(peer.command(1).starts_with(&format!("scx_{} --slice-", peer.name())));
        }
    }
}
