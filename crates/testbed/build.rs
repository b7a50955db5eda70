//! Builds the static programs that run inside the emulated host and its guests, for the library to carry
//! along.

use std::path::{Path, PathBuf};
use std::process::Command;

fn main() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testbed");
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    println!("cargo::rerun-if-changed={}", root.join("../guest/hints").display());
    let programs = [
        ("host", "agent"),
        ("guest", "workload"),
        ("vmm", "vcpus"),
        ("cookie", "cookie"),
        ("real_time", "real-time"),
        ("faults", "faults"),
    ];
    for (folder, program) in programs {
        let folder = root.join(folder);
        println!("cargo::rerun-if-changed={}", folder.display());
        let mut sources: Vec<PathBuf> = std::fs::read_dir(&folder)
            .expect("testbed's sources are part of the tree")
            .filter_map(|entry| Some(entry.ok()?.path()))
            .filter(|path| path.extension().is_some_and(|extension| extension == "c"))
            .collect();
        sources.sort();
        let mut compiler = Command::new("gcc");
        compiler.args([
            "-std=gnu11",
            "-O2",
            "-Wall",
            "-Wextra",
            "-Werror",
            "-static",
            "-s",
            "-pthread",
            "-o",
        ]);
        compiler.arg(out.join(program)).args(&sources).arg("-lm");
        let status = compiler.status().expect("gcc (with libc6-dev) is needed: `make setup` installs it");
        assert!(status.success(), "gcc could not build testbed's {program}");
    }
}
