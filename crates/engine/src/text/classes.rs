//! Classes of a guest kernel's functions: the catalogue of `critical/` matched against the kernel's table as
//! for a real guest, then `policy/classify.h`. Each function's address is classified once, which is exact
//! because `classify` is a pure function of the address.

use crate::SimError;
use crate::text::Symbol;
use microslice_policy::{ClassRange, Code, GuestClass, GuestCode, GuestLayout, classify};
use microslice_symbols::Catalogue;
use microslice_symbols::text::read_symbol_text;

/// The class of each of `symbols`, which are functions of `map`, a `System.map`.
pub fn classes_of(map: &str, symbols: &[Symbol]) -> Result<Vec<GuestClass>, SimError> {
    let table = read_symbol_text(map.as_bytes()).map_err(|error| broken(&error))?;
    let class_map = Catalogue::linux().class_map(&table);
    let ranges: Vec<_> = class_map
        .ranges()
        .iter()
        .map(|range| ClassRange {
            start: range.start,
            end: range.end,
            guest_class: Code::raw(range.class as u32),
            reserved: 0,
        })
        .collect();
    let (text_start, text_end) = class_map.text();
    let code = GuestCode::new(text_start, text_end, &ranges).map_err(|error| broken(&error))?;
    let layout = GuestLayout::slid_by(0);
    Ok(symbols.iter().map(|symbol| classify(&code, &layout, symbol.address)).collect())
}

fn broken(cause: &dyn std::fmt::Display) -> SimError {
    SimError::Config { place: "guest symbol table".into(), cause: cause.to_string() }
}

#[cfg(test)]
mod tests {
    use crate::text::{IDLE, Text, USER};
    use microslice_model::config::SymbolTable;
    use microslice_policy::{Coded, GuestClass};
    use microslice_symbols::CodeClass;

    #[test]
    fn classes_have_the_same_codes_and_names_in_the_symbols_crate_and_in_the_policy() {
        assert_eq!(CodeClass::ALL.len(), GuestClass::ALL.len());
        for (of_symbols, of_policy) in CodeClass::ALL.iter().zip(GuestClass::ALL) {
            assert_eq!(*of_symbols as u32, *of_policy as u32);
            assert_eq!(of_symbols.name(), of_policy.name());
        }
    }

    #[test]
    fn every_instruction_pointer_lies_within_its_function() {
        for table in SymbolTable::ALL {
            let map = table.map();
            let start = |line: &str| u64::from_str_radix(line.split(' ').next()?, 16).ok();
            let starts: Vec<u64> = map.lines().filter_map(start).collect();
            for symbol in Text::load(table, 7).unwrap().symbols.iter().skip(1) {
                let line = map.lines().find(|line| line.split(' ').nth(2) == Some(&symbol.name)).unwrap();
                let end =
                    starts.iter().find(|&&next| next > start(line).unwrap()).copied().unwrap_or(u64::MAX);
                assert!(symbol.address < end, "{table:?}: {}", symbol.name);
            }
        }
    }

    #[test]
    fn what_the_guest_model_executes_has_the_classes_of_the_papers_table_3() {
        for table in SymbolTable::ALL {
            let text = Text::load(table, 7).unwrap();
            let fixed = &text.fixed;
            let class = |symbol: u16| text.classes[text.index(symbol)];
            assert_eq!(class(USER), GuestClass::User, "{table:?}");
            assert_eq!(class(IDLE), GuestClass::Idle, "{table:?}");
            for spin in [fixed.spin_queued, fixed.spin_pv, fixed.spin_on_owner, fixed.spin_for_turn] {
                assert_eq!(class(spin), GuestClass::LockWaiter, "{table:?}");
            }
            assert_eq!(class(fixed.shootdown_wait), GuestClass::TlbShootdown, "{table:?}");
            assert_eq!(class(fixed.call_function_handler), GuestClass::TlbShootdown, "{table:?}");
            assert_eq!(class(fixed.unlisted), GuestClass::KernelOther, "{table:?}");
            let allocator = text.find("get_page_from_freelist").unwrap();
            assert_eq!(class(allocator), GuestClass::LockHolder, "{table:?}");
            let wake = text.find("ttwu_do_activate").unwrap();
            assert_eq!(class(wake), GuestClass::ReschedIpi, "{table:?}");
        }
    }
}
