//! The emulated host's own symbols: an address of its kernel gets a name, also when its kernel doesn't answer
//! any more.

use crate::Result;
use crate::host::Host;
use std::fmt::Write;
use std::time::Duration;

/// Some 200,000 lines, of an emulated CPU.
const PATIENCE: Duration = Duration::from_secs(180);
/// No function of a kernel is longer; what lies further behind a symbol is something else.
const REACH: u64 = 1 << 20;
const DIGITS: usize = 16;

/// A kernel's symbols, by their address.
pub struct HostSymbols(Vec<(u64, String)>);

impl HostSymbols {
    /// Of the lines of `/proc/kallsyms`.
    pub fn parse(kallsyms: &str) -> Self {
        let parse = |line: &str| {
            let mut words = line.split_whitespace();
            let address = u64::from_str_radix(words.next()?, 16).ok().filter(|&address| address != 0)?;
            Some((address, words.nth(1)?.to_owned()))
        };
        let mut symbols: Vec<(u64, String)> = kallsyms.lines().filter_map(parse).collect();
        symbols.sort();
        Self(symbols)
    }

    /// `queued_spin_lock_slowpath+0x1f0`
    pub fn name(&self, address: u64) -> Option<String> {
        let behind = self.0.partition_point(|(start, _)| *start <= address);
        let (start, name) = self.0.get(behind.checked_sub(1)?)?;
        let offset = address - start;
        (offset < REACH).then(|| if offset == 0 { name.clone() } else { format!("{name}+{offset:#x}") })
    }

    /// The text, with its name in brackets behind each address of 16 digits that has one.
    pub fn annotate(&self, text: &str) -> String {
        let mut annotated = String::with_capacity(text.len() * 2);
        let mut rest = text;
        while let Some(at) = rest.find(|letter: char| letter.is_ascii_hexdigit()) {
            let length =
                rest[at..].find(|letter: char| !letter.is_ascii_hexdigit()).unwrap_or(rest.len() - at);
            let word = &rest[at..at + length];
            annotated += &rest[..at + length];
            rest = &rest[at + length..];
            let address = if length == DIGITS { u64::from_str_radix(word, 16).ok() } else { None };
            if let Some(name) = address.and_then(|address| self.name(address)) {
                // A String takes all that is written to it.
                let _ = write!(annotated, " ({name})");
            }
        }
        annotated + rest
    }
}

impl Host {
    /// From now on its account of itself has names in place of bare addresses. It takes its kernel some
    /// seconds.
    pub fn learn_symbols(&self) -> Result<()> {
        if let Some(console) = &self.console {
            console.learn_symbols(HostSymbols::parse(&self.must_run("cat /proc/kallsyms", PATIENCE)?));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KALLSYMS: &str = "ffffffff81000000 T _text\nffffffff82001000 t native_queued_spin_lock_slowpath\n\
        ffffffff83000040 d some_lock\nffffffffc0401000 t vcpu_enter_guest\t[kvm]\n0000000000000000 A nothing\n";

    #[test]
    fn addresses_have_the_name_of_the_symbol_that_they_follow_and_others_have_none() {
        let symbols = HostSymbols::parse(KALLSYMS);
        assert_eq!(
            symbols.annotate("RIP=ffffffff820011f0 RFL=00000002 RDI=ffffffff83000040; stack: ffffffffc0401abc ff110000deadbeef"),
            "RIP=ffffffff820011f0 (native_queued_spin_lock_slowpath+0x1f0) RFL=00000002 RDI=ffffffff83000040 (some_lock); \
             stack: ffffffffc0401abc (vcpu_enter_guest+0xabc) ff110000deadbeef"
        );
        assert_eq!(
            symbols.annotate("ffffffff81ffffff then ffffffff8000000"),
            "ffffffff81ffffff then ffffffff8000000"
        );
    }
}
