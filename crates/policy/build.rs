//! Builds the shim, and with it `policy/*.h`, by the same compiler that builds the BPF programs.

use std::path::Path;

fn main() {
    let policy = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../policy");
    println!("cargo::rerun-if-changed={}", policy.display());
    println!("cargo::rerun-if-changed=src/shim.c");
    println!("cargo::rerun-if-env-changed=CLANG");
    let clang = std::env::var("CLANG").unwrap_or_else(|_| "clang-19".into());
    cc::Build::new()
        .compiler(clang)
        .include(policy)
        .file("src/shim.c")
        .std("c11")
        .opt_level(2)
        .flag("-Wextra")
        .flag("-Werror")
        .compile("microslice_policy");
}
