//! Generates the Rust side of `policy/*.h`, and builds the policies by the same compiler that builds the BPF
//! programs.

use microslice_border::{Border, BorderError};
use std::path::{Path, PathBuf};

fn main() -> Result<(), BorderError> {
    let policy = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../policy");
    println!("cargo::rerun-if-changed={}", policy.display());
    println!("cargo::rerun-if-env-changed=CLANG");
    let out = PathBuf::from(std::env::var("OUT_DIR").expect("cargo sets OUT_DIR"));
    Border::of_folder(&policy, "crate")?.generate(&out)?;
    let clang = std::env::var("CLANG").unwrap_or_else(|_| "clang-19".into());
    cc::Build::new()
        .compiler(clang)
        .include(policy)
        .file(out.join("border.c"))
        .std("c11")
        .opt_level(2)
        .flag("-Wextra")
        .flag("-Werror")
        .compile("microslice_policy");
    Ok(())
}
