//! Where a server listens, as the operator writes it.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;

/// A socket's address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Address {
    /// `unix:/PATH`
    Unix(PathBuf),
    /// `IP:PORT`
    Tcp(SocketAddr),
}

impl Address {
    /// The address of both services, and where clients look if none is named.
    pub const DEFAULT: &str = "unix:/run/microslice/metrics.sock";
}

impl std::fmt::Display for Address {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Unix(path) => write!(out, "unix:{}", path.display()),
            Self::Tcp(address) => address.fmt(out),
        }
    }
}

impl FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!(
                "{text:?} is no address: must be unix:/PATH or IP:PORT, as {} or 127.0.0.1:9477",
                Self::DEFAULT
            )
        };
        match text.strip_prefix("unix:") {
            Some(path) if path.starts_with('/') && !path.ends_with('/') => Ok(Self::Unix(path.into())),
            Some(_) => Err(wrong()),
            None => text.parse().map(Self::Tcp).map_err(|_| wrong()),
        }
    }
}

/// Whether a server listens, and where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Listen {
    /// `off`: nowhere, whatever a service's environment says.
    Off,
    At(Address),
}

impl Listen {
    /// By which a unit of systemd's names an address that flag and file override.
    pub const ENVIRONMENT: &str = "MICROSLICE_METRICS_LISTEN";

    pub fn address(&self) -> Option<&Address> {
        match self {
            Self::Off => None,
            Self::At(address) => Some(address),
        }
    }
}

impl FromStr for Listen {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "off" => Ok(Self::Off),
            _ => text.parse().map(Self::At).map_err(|cause| format!("{cause}, or off")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn an_address_is_a_socket_file_or_ip_with_port() {
        for text in [Address::DEFAULT, "127.0.0.1:9477", "[::1]:9477", "unix:/a"] {
            assert_eq!(text.parse::<Address>().unwrap().to_string(), text);
        }
        for wrong in [
            "",
            "unix:",
            "unix:a",
            "unix:/run/",
            "9477",
            "localhost:9477",
            "127.0.0.1",
            ":9477",
            "1.2.3.4:99999",
        ] {
            let cause = wrong.parse::<Address>().unwrap_err();
            assert!(cause.starts_with(&format!("{wrong:?} is no address: must be unix:/PATH or")), "{cause}");
        }
    }

    #[test]
    fn off_is_a_place_to_listen_and_no_address() {
        assert_eq!("off".parse(), Ok(Listen::Off));
        assert!("off".parse::<Address>().is_err());
        assert!("on".parse::<Listen>().unwrap_err().ends_with("or 127.0.0.1:9477, or off"));
    }

    proptest! {
        #[test]
        fn whatever_is_an_address_reads_as_it_is_written(text: String) {
            if let Ok(address) = text.parse::<Address>() {
                prop_assert_eq!(address.to_string().parse::<Address>(), Ok(address));
            }
        }
    }
}
