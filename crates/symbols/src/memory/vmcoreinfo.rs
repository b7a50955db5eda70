//! VMCOREINFO: what a kernel writes down for crash dumps (kernel/vmcore_info.c): lines of `KEY=value` on a
//! page.

use crate::{Identity, SymbolTable};

const FIRST_KEY: &[u8] = b"OSRELEASE=";
/// ELF note header and the name `VMCOREINFO`, padded: what stands before the lines in the note's copy.
const NOTE_HEADER_BYTES: usize = 24;
const BYTES_MAX: usize = 4096;

/// The lines that identify a kernel and place it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct VmcoreInfo {
    pub release: Option<String>,
    pub build_id: Option<String>,
    /// `KERNELOFFSET`: running address minus linked address.
    pub kernel_offset: Option<u64>,
    /// `SYMBOL(_stext)`: where it runs.
    pub stext: Option<u64>,
}

impl VmcoreInfo {
    /// VMCOREINFO at the start of a page, or behind the header of its ELF note.
    pub fn on_page(page: &[u8]) -> Option<Self> {
        let behind_header = page.get(NOTE_HEADER_BYTES..).unwrap_or_default();
        [page, behind_header].into_iter().find(|bytes| bytes.starts_with(FIRST_KEY)).and_then(Self::parse)
    }

    /// Reads lines up to the first NUL, at most a page of them.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let bytes = &bytes[..bytes.len().min(BYTES_MAX)];
        let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
        let text = std::str::from_utf8(&bytes[..end]).ok()?;
        let mut info = Self::default();
        for (key, value) in text.lines().filter_map(|line| line.split_once('=')) {
            let hex = || u64::from_str_radix(value, 16).ok();
            match key {
                "OSRELEASE" if is_plain(value) => info.release = Some(value.to_owned()),
                "BUILD-ID" if value.bytes().all(|byte| byte.is_ascii_hexdigit()) => {
                    info.build_id = Some(value.to_lowercase())
                }
                "KERNELOFFSET" => info.kernel_offset = hex(),
                "SYMBOL(_stext)" => info.stext = hex(),
                _ => {}
            }
        }
        (info != Self::default()).then_some(info)
    }

    /// Is it about the kernel with these (linked) symbols? A guest's memory can hold pages of kernels that
    /// ran before.
    pub fn is_of(&self, symbols: &SymbolTable) -> bool {
        match (self.stext, self.kernel_offset, symbols.address_of("_stext")) {
            (Some(running), Some(offset), Some(linked)) => running.wrapping_sub(offset) == linked,
            _ => false,
        }
    }

    pub fn identity(&self) -> Identity {
        Identity { release: self.release.clone(), build_id: self.build_id.clone(), banner: None }
    }
}

fn is_plain(value: &str) -> bool {
    (1..=64).contains(&value.len()) && value.bytes().all(|byte| byte.is_ascii_graphic())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LINES: &str = "OSRELEASE=6.12.43+deb13-cloud-amd64\nBUILD-ID=0A1b\nPAGESIZE=4096\n\
                         SYMBOL(_stext)=ffffffff9a600000\nKERNELOFFSET=19600000\n";

    #[test]
    fn the_page_and_the_note_are_both_read() {
        let mut page = LINES.as_bytes().to_vec();
        page.resize(4096, 0);
        let info = VmcoreInfo::on_page(&page).unwrap();
        assert_eq!(info.release.as_deref(), Some("6.12.43+deb13-cloud-amd64"));
        assert_eq!(info.build_id.as_deref(), Some("0a1b"));
        assert_eq!((info.kernel_offset, info.stext), (Some(0x1960_0000), Some(0xffff_ffff_9a60_0000)));
        let note = [&[0u8; NOTE_HEADER_BYTES][..], LINES.as_bytes()].concat();
        assert_eq!(VmcoreInfo::on_page(&note), Some(info));
        assert_eq!(VmcoreInfo::on_page(b"PAGESIZE=4096\n"), None);
    }

    proptest! {
        #[test]
        fn any_page_is_read_without_harm(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = VmcoreInfo::on_page(&[FIRST_KEY, &bytes].concat());
        }
    }
}
