//! The border between C and Rust comes from one description: the headers. Build scripts call this crate.
//!
//! | C | Rust |
//! |---|---|
//! | `struct yield_decision` | `YieldDecision`: plain bytes both ways (`zerocopy`), laid out as in C |
//! | `enum pass_scope` | `PassScope`, with a table of its values and their names (`Coded`) |
//! | a field of type `enum pass_scope` | `PassScopeCode`: a number of any value (`Code<PassScope>`) |
//! | an unnamed union in a struct | the field `payload`: as many bytes |
//! | `#define RECORD_VERSION 12u` | `pub const RECORD_VERSION: u32` |
//! | a `static inline` function | an unsafe function of that name in the module `c`, and a wrapper in C |
//!
//! Headers keep four rules, and a build ends with the name of the one that breaks one. They parse without
//! `vmlinux.h`. An enumeration counts from 0, without gaps. A struct has no hidden padding, and at most one
//! union.

mod enumerations;
mod names;

use bindgen::CodegenConfig;
use bindgen::callbacks::ParseCallbacks;
use enumerations::{Enumerations, camel_case};
use names::Names;
use std::fmt;
use std::path::{Path, PathBuf};

/// What bindgen calls the unnamed union of a struct, with a number from 1 on behind it.
const PAYLOAD: &str = "payload";

/// What bindgen calls unnamed unions.
const UNIONS: &str = ".*__bindgen_ty_[0-9]+";

/// The integers of `policy/types.h`. Where Rust has the same name, bindgen adds an underscore.
const INTEGERS: &[(&str, &str)] =
    &[("u8_", "u8"), ("u32_", "u32"), ("u64_", "u64"), ("s32", "i32"), ("s64", "i64")];

/// Why there is no Rust side, in one line.
pub struct BorderError(String);

/// As in words: this is what cargo shows of a build script that fails.
impl fmt::Debug for BorderError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Display for BorderError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for BorderError {}

fn failed(path: &Path, cause: impl fmt::Display) -> BorderError {
    BorderError(format!("{}: {cause}", path.display()))
}

/// Headers, and where the Rust code that is made of them finds the rest.
pub struct Border {
    headers: Vec<PathBuf>,
    /// Where `#include "…"` looks, besides beside the header itself.
    root: Option<PathBuf>,
    /// The module that has `Code`, `Coded`, and the types of other headers that these include.
    imports: &'static str,
    has_functions: bool,
}

impl Border {
    /// Types, constants and functions of every header in a folder.
    pub fn of_folder(folder: &Path, imports: &'static str) -> Result<Self, BorderError> {
        let mut headers = Vec::new();
        for entry in std::fs::read_dir(folder).map_err(|error| failed(folder, error))? {
            headers.push(entry.map_err(|error| failed(folder, error))?.path());
        }
        headers.retain(|path| path.extension().is_some_and(|extension| extension == "h"));
        headers.sort();
        Ok(Self { headers, root: None, imports, has_functions: true })
    }

    /// Types and constants of one header, but not of those that it includes, by paths below `root`.
    pub fn of_header(root: &Path, header: &str, imports: &'static str) -> Self {
        let headers = vec![root.join(header)];
        Self { headers, root: Some(root.to_owned()), imports, has_functions: false }
    }

    /// Writes `OUT/border.rs`, to be included into a module. Functions need `OUT/border.c`, to be compiled,
    /// too.
    pub fn generate(&self, out: &Path) -> Result<(), BorderError> {
        load_libclang()?;
        let enumerations = Enumerations::default();
        // Only to learn which enumerations there are, and how large unions.
        let first_look = run(self.builder(enumerations.clone()).opaque_type(UNIONS))?;
        enumerations.check().map_err(BorderError)?;

        let mut code = format!("use {}::*;\n", self.imports);
        for (of_c, of_rust) in INTEGERS {
            code += &format!("type {of_c} = {of_rust};\n");
        }
        code += &payloads(&first_look).map_err(BorderError)?;
        code += &enumerations.declarations();
        code += &self.enumerations(&enumerations)?;
        code += &self.structs(&enumerations)?.replace(&format!("{PAYLOAD}1:"), &format!("{PAYLOAD}:"));
        if self.has_functions {
            code += &format!(
                "pub(crate) mod c {{\nuse super::*;\n{}}}\n",
                self.functions(&enumerations, &out.join("border"))?
            );
        }
        write(&out.join("border.rs"), &code)
    }

    fn enumerations(&self, known: &Enumerations) -> Result<String, BorderError> {
        let builder = bindgen::builder().allowlist_type(known.own_names().join("|"));
        let builder = self.common(builder, Names::Enumerations(known.clone())).rustified_enum(".*");
        run(builder.with_codegen_config(CodegenConfig::TYPES))
    }

    fn structs(&self, known: &Enumerations) -> Result<String, BorderError> {
        let builder = self.builder(Names::Structs(known.clone())).blocklist_type(UNIONS);
        let builder = builder.blocklist_type(known.all_names().join("|"));
        run(builder.with_codegen_config(CodegenConfig::TYPES | CodegenConfig::VARS))
    }

    fn functions(&self, known: &Enumerations, wrappers: &Path) -> Result<String, BorderError> {
        let functions = |names| {
            let builder = self.builder(names).with_codegen_config(CodegenConfig::FUNCTIONS);
            run(builder.wrap_static_fns(true).wrap_static_fns_path(wrappers))
        };
        let rust = functions(Names::Structs(known.clone()))?;
        // bindgen writes the names of Rust into the wrappers: written again, with those of C.
        functions(Names::OfC)?;
        Ok(rust)
    }

    /// All that the headers themselves declare.
    fn builder(&self, callbacks: impl ParseCallbacks + 'static) -> bindgen::Builder {
        let of_headers = |builder: bindgen::Builder, header: &PathBuf| {
            builder.allowlist_file(header.display().to_string().replace('.', "\\."))
        };
        self.common(self.headers.iter().fold(bindgen::builder(), of_headers), callbacks)
    }

    fn common(
        &self,
        builder: bindgen::Builder,
        callbacks: impl ParseCallbacks + 'static,
    ) -> bindgen::Builder {
        builder
            .headers(self.headers.iter().map(|header| header.display().to_string()))
            // Comments become documentation, whichever way they begin.
            .clang_args(["-std=c11", "-fparse-all-comments"])
            .clang_args(self.root.iter().map(|root| format!("-I{}", root.display())))
            .allowlist_recursively(false)
            .blocklist_type("[us](8|32|64)_?")
            .anon_fields_prefix(PAYLOAD)
            // All others by `Names`: bindgen derives few where it doesn't see what a union consists of.
            .derive_default(true)
            .derive_copy(false)
            .derive_debug(false)
            .disable_header_comment()
            .parse_callbacks(Box::new(callbacks))
    }
}

fn run(builder: bindgen::Builder) -> Result<String, BorderError> {
    let bindings = builder.generate().map_err(|error| {
        let said = error.to_string();
        BorderError(said.lines().next().unwrap_or("bindgen fails").to_owned())
    })?;
    Ok(bindings.to_string())
}

/// The types of unnamed unions: as many words as bindgen's check of its own size says.
fn payloads(first_look: &str) -> Result<String, String> {
    let mut text = String::new();
    for line in first_look.lines() {
        let Some((name, rest)) =
            line.trim().strip_prefix("[\"Size of ").and_then(|rest| rest.split_once("\"]"))
        else {
            continue;
        };
        let Some((of, number)) = name.split_once("__bindgen_ty_") else { continue };
        let bytes =
            rest.rsplit_once(" - ").and_then(|(_, size)| size.split_once("usize")?.0.parse::<usize>().ok());
        match bytes {
            _ if number != "1" => return Err(format!("struct {of} has two unions")),
            Some(bytes) if bytes % 8 == 0 => {
                text += &format!("pub type {}Payload = [u64; {}];\n", camel_case(of), bytes / 8)
            }
            _ => return Err(format!("the union of struct {of} isn't made of words of 8 bytes")),
        }
    }
    Ok(text)
}

fn write(path: &Path, text: &str) -> Result<(), BorderError> {
    std::fs::write(path, text).map_err(|error| failed(path, error))
}

/// bindgen would panic.
fn load_libclang() -> Result<(), BorderError> {
    if clang_sys::is_loaded() {
        return Ok(());
    }
    clang_sys::load().map_err(|cause| {
        BorderError(format!(
            "libclang can't be loaded: run `make setup`, which installs libclang1-19 ({cause})"
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TYPES: &str = "typedef unsigned int u32; typedef unsigned long long u64;\n";

    /// What is generated of a folder with this header.
    fn generated(header: &str) -> Result<String, BorderError> {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::write(folder.path().join("some.h"), header).expect("written");
        Border::of_folder(folder.path(), "crate")?.generate(folder.path())?;
        Ok(std::fs::read_to_string(folder.path().join("border.rs")).expect("generated"))
    }

    fn refused(header: &str) -> String {
        let cause = generated(header).expect_err("refused").to_string();
        assert!(!cause.contains('\n'), "{cause}");
        cause
    }

    #[test]
    fn an_enumeration_is_a_table_of_its_values_and_a_field_of_it_a_code() {
        let rust = generated(&format!(
            "{TYPES} enum light {{ LIGHT_DARK_RED, LIGHT_GREEN, LIGHT_COUNT }}; struct lamp {{ enum light seen; }};"
        ))
        .expect("generated");
        assert!(rust.contains(r#"coded! { Light { DarkRed = "dark_red", Green = "green" } }"#), "{rust}");
        assert!(rust.contains("pub seen: LightCode"), "{rust}");
        assert!(!rust.contains("Count"), "{rust}");
    }

    #[test]
    fn an_unnamed_union_is_as_many_bytes() {
        let rust = generated(&format!("{TYPES} struct event {{ u64 at; union {{ u64 a[3]; u32 b; }}; }};"))
            .expect("generated");
        assert!(rust.contains("pub type EventPayload = [u64; 3];"), "{rust}");
        assert!(rust.contains("pub payload: EventPayload"), "{rust}");
    }

    #[test]
    fn a_function_has_a_wrapper_that_rust_can_call() {
        let header = format!(
            "{TYPES} struct sum {{ u64 n; }}; static inline struct sum sum_of(u64 a) {{ return (struct sum){{a}}; }}"
        );
        let rust = generated(&header).expect("generated");
        assert!(rust.contains("pub fn sum_of(a: u64_) -> Sum;"), "{rust}");
    }

    #[test]
    fn a_header_that_breaks_a_rule_is_refused_by_name() {
        assert_eq!(refused("enum light { LIGHT_RED = 1 };"), "enum light: LIGHT_RED is 1, and should be 0");
        let unions = "struct lamp { union { long a; long b; }; union { long c; long d; }; };";
        assert_eq!(refused(unions), "struct lamp has two unions");
        assert!(refused("struct lamp { u64 of_vmlinux; };").contains("some.h"));
        assert!(
            Border::of_folder(Path::new("/nonexistent"), "crate")
                .err()
                .expect("refused")
                .to_string()
                .contains("/nonexistent")
        );
    }
}
