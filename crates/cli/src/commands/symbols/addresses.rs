//! Addresses and the catalogue, as the subcommands take them.

use crate::failure::Failure;
use clap::Args;
use microslice_symbols::Catalogue;
use std::path::PathBuf;

/// A hexadecimal address with or without `0x`, as kernel logs and /proc/kallsyms print it.
pub fn parse(text: &str) -> Result<u64, String> {
    let digits = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")).unwrap_or(text);
    let plain = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    plain.then(|| u64::from_str_radix(digits, 16).ok()).flatten().ok_or_else(|| {
        "isn't a hexadecimal address of at most 64 bits, such as 0xffffffff81000000".to_owned()
    })
}

/// Which functions are critical.
#[derive(Args)]
pub struct CatalogueArgs {
    /// Critical functions from this file instead of those that the program carries (critical/linux.toml)
    #[arg(long, value_name = "FILE")]
    critical: Option<PathBuf>,
}

impl CatalogueArgs {
    pub fn read(&self) -> Result<Catalogue, Failure> {
        match &self.critical {
            Some(path) => Catalogue::from_file(path).map_err(Failure::bad_input),
            None => Ok(Catalogue::linux()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn addresses_are_hexadecimal_with_or_without_a_prefix() {
        assert_eq!(parse("0xffffffff81000000"), Ok(0xffff_ffff_8100_0000));
        assert_eq!(parse("ffffffff81000000"), Ok(0xffff_ffff_8100_0000));
        assert_eq!(parse("0"), Ok(0));
        for bad in ["", "0x", "+1", "-1", "0x1ffffffffffffffff", "main", "1 2"] {
            assert!(parse(bad).is_err(), "{bad:?}");
        }
    }
}
