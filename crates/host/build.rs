//! Compiles `bpf/` with the clang that the project names, and generates the skeletons that load it, and what
//! both share.

use libbpf_cargo::SkeletonBuilder;
use microslice_border::{Border, BorderError};
use std::path::{Path, PathBuf};

fn main() -> Result<(), BorderError> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    for folder in ["bpf", "guest/hints", "policy"] {
        println!("cargo::rerun-if-changed={}", root.join(folder).display());
    }
    println!("cargo::rerun-if-env-changed=CLANG");
    let clang = std::env::var("CLANG").unwrap_or_else(|_| "clang-19".into());
    let out = PathBuf::from(std::env::var("OUT_DIR").expect("cargo sets OUT_DIR"));
    let include = format!("-I{}", root.display());
    for source in [
        "schedulers/microslice",
        "schedulers/coordinated",
        "schedulers/simple",
        "schedulers/beside",
        "memory_slots",
        "function_probe",
        "posted_interrupts",
        "observe",
    ] {
        let object = source.rsplit('/').next().expect("rsplit yields at least one part");
        SkeletonBuilder::new()
            .source(root.join(format!("bpf/{source}.bpf.c")))
            .obj(out.join(format!("{object}.bpf.o")))
            .clang(&clang)
            .clang_args(["-mcpu=v3", "-std=gnu11", "-Wall", "-Wno-unused-function", "-Werror", &include])
            .reference_obj(true)
            .build_and_generate(out.join(format!("{object}.skel.rs")))
            .expect("bpf/ compiles: see the compiler's messages above");
    }
    Border::of_header(&root, "bpf/core/intf.h", "microslice_policy").generate(&out)
}
