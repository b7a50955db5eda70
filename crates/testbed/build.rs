//! Builds the static programs that run inside the emulated host and its guests, for the library to carry
//! along.

use std::path::{Path, PathBuf};
use std::process::Command;

fn main() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testbed");
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    println!("cargo::rerun-if-changed={}", root.join("../guest/hints").display());
    build_lab_guest(&root.join("lab"), &out);
    let programs = [
        ("host", "agent"),
        ("guest", "workload"),
        ("vmm", "vcpus"),
        ("lab", "lab"),
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
            .filter(|path| path.extension().is_some_and(|extension| extension == "c" || extension == "S"))
            // Not for this machine: build_lab_guest().
            .filter(|path| !path.ends_with("lab/guest.c"))
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
        compiler.arg(out.join(program)).args(&sources).arg(format!("-Wa,-I,{}", out.display())).arg("-lm");
        let status = compiler.status().expect("gcc (with libc6-dev) is needed: `make setup` installs it");
        assert!(status.success(), "gcc could not build testbed's {program}");
    }
}

/// The lab's guest, as its VMM carries it: code as it lies in memory, and the table of its symbols.
fn build_lab_guest(folder: &Path, out: &Path) {
    let elf = out.join("guest.elf");
    let mut compiler = Command::new("gcc");
    compiler.args(["-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-Wno-unused-parameter"]);
    compiler.args(["-ffreestanding", "-nostdlib", "-static", "-fno-pic", "-no-pie", "-mcmodel=kernel"]);
    // It has no state but general registers, and each function is there under its own name.
    compiler.args(["-mgeneral-regs-only", "-mno-red-zone", "-fno-stack-protector", "-fcf-protection=none"]);
    compiler.args(["-fno-jump-tables", "-fno-ipa-sra", "-fno-ipa-cp", "-Wl,--build-id=none,-z,noexecstack"]);
    compiler.arg("-T").arg(folder.join("guest.ld")).arg("-o").arg(&elf).arg(folder.join("guest.c"));
    let status = compiler.status().expect("gcc is needed: `make setup` installs it");
    assert!(status.success(), "gcc could not build the lab's guest");
    let copied = Command::new("objcopy").args(["-O", "binary"]).arg(&elf).arg(out.join("guest.bin")).status();
    assert!(copied.is_ok_and(|status| status.success()), "objcopy could not read the lab's guest");
    let symbols =
        Command::new("nm").arg("-n").arg(&elf).output().expect("nm is needed, which comes with gcc");
    std::fs::write(out.join("System.map"), symbols.stdout).expect("OUT_DIR can be written");
}
