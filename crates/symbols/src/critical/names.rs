//! Compilers and linkers change the names of functions: from a symbol back to the function it is part of.

/// What GCC, Clang and the kernel's build put behind a function's name; GCC adds a number to most.
///
/// - `.constprop`, `.isra`: a clone with some arguments fixed or split up
/// - `.part`: the piece that was too large to inline; `.cold`: the piece that is rarely run, moved elsewhere
/// - `.llvm`, `.lto_priv`: a static function that link-time optimisation made global
/// - `.__uniq`: a static function under `-funique-internal-linkage-names`
/// - `.localalias`: a second name for calls from the same file
/// - `.cfi`, `.cfi_jt`: control-flow integrity up to 6.0
const SUFFIXES: [&str; 10] =
    ["constprop", "isra", "part", "cold", "llvm", "lto_priv", "__uniq", "localalias", "cfi", "cfi_jt"];
/// What the kernel's build puts before it: `__pfx_` names the padding in front of a function (6.3 on),
/// `__cfi_` the type hash there (6.1 on, Clang). With FineIBT both hold code that runs.
const PREFIXES: [&str; 2] = ["__pfx_", "__cfi_"];
/// Longest chain of suffixes that is looked through.
const SUFFIXES_MAX: usize = 8;

/// The function that `symbol` is, or is a part of: `__pfx_foo.part.0.isra.1` belongs to `foo`.
///
/// A suffix that isn't known stays, so that `foo.bar` never passes for `foo`.
pub fn function_of(symbol: &str) -> &str {
    let mut name = PREFIXES.iter().find_map(|prefix| symbol.strip_prefix(prefix)).unwrap_or(symbol);
    for _ in 0..SUFFIXES_MAX {
        match without_suffix(name) {
            Some(shorter) if !shorter.is_empty() => name = shorter,
            _ => break,
        }
    }
    name
}

fn without_suffix(name: &str) -> Option<&str> {
    let (head, tail) = name.rsplit_once('.')?;
    if is_known(tail) {
        return Some(head);
    }
    let numbered = tail.bytes().all(|byte| byte.is_ascii_digit());
    let (head, tail) = head.rsplit_once('.')?;
    (numbered && is_known(tail)).then_some(head)
}

fn is_known(suffix: &str) -> bool {
    SUFFIXES.contains(&suffix)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_clone_or_part_belongs_to_its_function() {
        for symbol in [
            "leave_mm",
            "__pfx_leave_mm",
            "__cfi_leave_mm",
            "leave_mm.cold",
            "leave_mm.cold.12",
            "leave_mm.constprop.0",
            "leave_mm.isra.0",
            "leave_mm.part.0.isra.1.constprop.2",
            "leave_mm.llvm.9876543210123456789",
            "leave_mm.constprop.0.cold",
            "__pfx_leave_mm.part.0",
            "leave_mm.lto_priv.0",
            "leave_mm.cfi_jt",
        ] {
            assert_eq!(function_of(symbol), "leave_mm", "{symbol}");
        }
    }

    #[test]
    fn other_names_stay_as_they_are() {
        for symbol in [
            "leave_mm.bar",
            "leave_mm.0",
            "leave_mm.cold.x",
            "my_leave_mm",
            "leave_mm2",
            ".cold",
            ".",
            "",
            "a..cold.b.c",
        ] {
            assert_eq!(function_of(symbol), symbol);
        }
        assert_eq!(function_of("__pfx_"), "");
    }

    proptest! {
        #[test]
        fn any_chain_of_known_suffixes_leads_back_to_the_function(
            function in "[a-z_][a-z0-9_]{0,20}",
            prefix in prop_oneof![Just(""), Just("__pfx_"), Just("__cfi_")],
            suffixes in proptest::collection::vec((0..SUFFIXES.len(), proptest::option::of(0u64..)), 0..SUFFIXES_MAX),
        ) {
            prop_assume!(!PREFIXES.iter().any(|prefix| function.starts_with(prefix)));
            let mut symbol = format!("{prefix}{function}");
            for (suffix, number) in suffixes {
                symbol = format!("{symbol}.{}", SUFFIXES[suffix]);
                if let Some(number) = number {
                    symbol = format!("{symbol}.{number}");
                }
            }
            prop_assert_eq!(function_of(&symbol), function);
        }

        #[test]
        fn no_name_is_too_strange(symbol in ".{0,40}") {
            prop_assert!(symbol.contains(function_of(&symbol)));
        }
    }
}
