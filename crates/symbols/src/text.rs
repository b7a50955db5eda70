//! `System.map` and `/proc/kallsyms`: one symbol a line, `address type name`, modules with `[module]` behind.

use crate::{Cause, Error, Identity, Place, SymbolTable, SymbolTableBuilder};
use std::io::BufRead;

/// Longest line that is read; a name has at most 4096 bytes.
const LINE_BYTES_MAX: u64 = 8192;
/// Most bytes of text: `/proc/kallsyms` of a large kernel with all its modules has 20 MB.
const TEXT_BYTES_MAX: u64 = 1 << 30;

/// Does this start like `System.map`, a stub of it, or `/proc/kallsyms`?
pub fn looks_like_symbol_text(head: &[u8]) -> bool {
    let line = head.split(|&byte| byte == b'\n').next().unwrap_or_default();
    std::str::from_utf8(line).is_ok_and(|line| parse_line(line).is_some() || stub_hint(line).is_some())
}

/// Reads symbols from text. Symbols of modules are left out: the table describes the kernel image, and
/// modules lie outside its slide.
///
/// # Errors
/// The line that is no symbol; a stub; addresses hidden by `kptr_restrict`.
pub fn read_symbol_text(mut reader: impl BufRead) -> Result<SymbolTable, Error> {
    let mut builder = SymbolTableBuilder::new();
    let mut line = Vec::new();
    let (mut line_number, mut total_bytes, mut any_address) = (0u64, 0u64, false);
    loop {
        line.clear();
        let bytes = bounded_line(&mut reader, &mut line).map_err(|error| Error::io(&error))?;
        if bytes == 0 {
            break;
        }
        line_number += 1;
        total_bytes += bytes;
        if bytes > LINE_BYTES_MAX {
            let cause = Cause::TooLarge { what: "bytes in one line", limit: LINE_BYTES_MAX };
            return Err(Error::new(Place::Line(line_number), cause));
        }
        if total_bytes > TEXT_BYTES_MAX {
            return Err(Error::too_large("bytes of text", TEXT_BYTES_MAX));
        }
        let at_line = |cause: String| Error::new(Place::Line(line_number), Cause::Malformed(cause));
        let text = std::str::from_utf8(&line).map_err(|_| at_line("isn't text".into()))?.trim_end();
        if text.is_empty() {
            continue;
        }
        if let Some(hint) = stub_hint(text) {
            return Err(Error::new(Place::Line(line_number), Cause::Stub(hint)));
        }
        let parsed = parse_line(text)
            .ok_or_else(|| at_line(format!("{:?} isn't `address type name`", clipped(text))))?;
        any_address |= parsed.address != 0;
        if !parsed.in_module {
            builder
                .push(parsed.address, parsed.kind, parsed.name)
                .map_err(|error| Error::new(Place::Line(line_number), error.cause))?;
        }
    }
    if builder.is_empty() {
        return Err(Error::no_symbols("the text has no line `address type name`"));
    }
    if !any_address {
        return Err(Error::new(Place::Whole, Cause::HiddenAddresses));
    }
    Ok(builder.finish(Identity::default()))
}

fn bounded_line(reader: &mut impl BufRead, line: &mut Vec<u8>) -> std::io::Result<u64> {
    use std::io::Read;
    Ok(reader.by_ref().take(LINE_BYTES_MAX + 1).read_until(b'\n', line)? as u64)
}

struct Line<'l> {
    address: u64,
    kind: char,
    name: &'l str,
    in_module: bool,
}

fn parse_line(line: &str) -> Option<Line<'_>> {
    let mut words = line.split_ascii_whitespace();
    let (address, kind, name) = (words.next()?, words.next()?, words.next()?);
    let module = words.next();
    if words.next().is_some() || module.is_some_and(|module| !module.starts_with('[')) {
        return None;
    }
    let hex = address.len() <= 16 && address.bytes().all(|byte| byte.is_ascii_hexdigit());
    let mut kinds = kind.chars();
    let (kind, rest) = (kinds.next()?, kinds.next());
    (hex && rest.is_none() && (kind.is_ascii_alphabetic() || kind == '?')).then_some(())?;
    let address = u64::from_str_radix(address, 16).ok()?;
    Some(Line { address, kind, name, in_module: module.is_some() })
}

/// Debian's stub reads `ffffffffffffffff B The real System.map is in the linux-image-<version>-dbg package`.
fn stub_hint(line: &str) -> Option<String> {
    let position = line.find("The real System.map is in")?;
    Some(clipped(&line[position..]).replace("The real", "the real"))
}

fn clipped(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(120).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn parse(text: &str) -> Result<SymbolTable, Error> {
        read_symbol_text(text.as_bytes())
    }

    #[test]
    fn a_system_map_becomes_a_table() {
        let table = parse(
            "0000000000000000 A fixed_percpu_data\nffffffff81000000 T _stext\n\
             ffffffff81000040 t helper.constprop.0\nffffffff81001000 T _etext\n",
        )
        .unwrap();
        assert_eq!(table.len(), 4);
        let hit = table.lookup(0xffffffff81000050).unwrap();
        assert_eq!(
            (hit.symbol.name, hit.offset, hit.symbol.end),
            ("helper.constprop.0", 0x10, 0xffffffff81001000)
        );
        assert_eq!(table.text_bounds().unwrap().start, 0xffffffff81000000);
    }

    #[test]
    fn symbols_of_modules_are_left_out() {
        let table = parse("ffffffffb2a00000 T _stext\nffffffffc0201000 t kvm_init\t[kvm]\n").unwrap();
        assert_eq!(table.iter().map(|symbol| symbol.name).collect::<Vec<_>>(), ["_stext"]);
    }

    #[test]
    fn a_stub_is_recognised_and_explained() {
        let error =
            parse("ffffffffffffffff B The real System.map is in the linux-image-6.12.43-dbg package\n")
                .unwrap_err();
        assert!(matches!(error.cause, Cause::Stub(_)));
        assert_eq!(
            error.of("System.map").to_string(),
            "System.map: line 1: is a stub: the real System.map is in the linux-image-6.12.43-dbg package; \
             give the kernel image (vmlinuz) of the same version instead"
        );
    }

    #[test]
    fn hidden_addresses_are_recognised_and_explained() {
        let error = parse("0000000000000000 T _text\n0000000000000000 T do_one\n").unwrap_err();
        assert_eq!(error.cause, Cause::HiddenAddresses);
    }

    #[test]
    fn a_line_that_is_no_symbol_is_named() {
        let error = parse("ffffffff81000000 T _text\nnot a symbol\n").unwrap_err();
        assert_eq!(error.place, Place::Line(2));
        assert!(parse("").is_err());
        let long = parse(&format!("ffffffff81000000 T _text\nffffffff81000000 T {}\n", "x".repeat(9000)));
        assert_eq!(long.unwrap_err().to_string(), "line 2: more than 8192 bytes in one line: refused");
    }

    proptest! {
        #[test]
        fn any_bytes_give_a_table_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            let _ = read_symbol_text(&bytes[..]);
            let _ = looks_like_symbol_text(&bytes);
        }

        #[test]
        fn written_symbols_are_read_back(
            symbols in proptest::collection::vec((1u64.., "[tTdDaA]", "[a-zA-Z_.$][a-zA-Z0-9_.$]{0,40}"), 1..40),
        ) {
            let text: String = symbols.iter().map(|(address, kind, name)| format!("{address:016x} {kind} {name}\n")).collect();
            let table = parse(&text).unwrap();
            let mut expected: Vec<_> =
                symbols.iter().map(|(address, kind, name)| (*address, kind.as_str(), name.as_str())).collect();
            expected.sort_by_key(|&(address, ..)| address);
            let kinds: Vec<_> = table.iter().map(|symbol| symbol.kind.to_string()).collect();
            let found: Vec<_> =
                table.iter().zip(&kinds).map(|(symbol, kind)| (symbol.address, kind.as_str(), symbol.name)).collect();
            prop_assert_eq!(found, expected);
        }
    }
}
