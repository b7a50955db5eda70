//! What the daemon keeps of a guest kernel, measured on every stock kernel in `.cache/kernels` (`make
//! kernels`).

use microslice_host::guests::guest_kernels::GuestKernels;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Set in the process that measures.
const ALONE: &str = "MICROSLICE_MEASURES_ALONE";
/// The operator is promised this much per guest kernel, ranges in the kernel included.
const PROMISED: u64 = 2 << 20;

fn images() -> Vec<PathBuf> {
    let cache = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.cache/kernels");
    let packages = std::fs::read_dir(cache).into_iter().flatten().flatten();
    let boot =
        packages.flat_map(|package| std::fs::read_dir(package.path().join("boot")).into_iter().flatten());
    let is_image =
        |path: &PathBuf| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("vmlinuz-"));
    let mut images: Vec<PathBuf> = boot.flatten().map(|entry| entry.path()).filter(is_image).collect();
    images.sort();
    images
}

/// Resident memory of this process, once what was freed has gone back.
fn resident() -> u64 {
    // SAFETY: malloc_trim only gives unused pages of the heap back to the system.
    unsafe { libc::malloc_trim(0) };
    let status = std::fs::read_to_string("/proc/self/statm").expect("statm");
    let pages: u64 = status.split(' ').nth(1).expect("resident pages").parse().expect("a number");
    // SAFETY: sysconf has no preconditions.
    pages * unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as u64
}

#[test]
fn a_guest_kernel_keeps_less_than_two_mebibytes() {
    if std::env::var_os(ALONE).is_some() {
        return measure();
    }
    // In a process of its own: the memory of this program's other tests would count.
    let name = concat!(module_path!(), "::a_guest_kernel_keeps_less_than_two_mebibytes");
    let (_, name) = name.split_once("::").expect("the crate comes first");
    let mut alone = Command::new(std::env::current_exe().expect("this program"));
    let output =
        alone.args(["--exact", name, "--nocapture"]).env(ALONE, "1").stderr(Stdio::inherit()).output();
    let output = output.expect("this program starts");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("1 passed"), "{said}");
    println!("{said}");
}

fn measure() {
    let images = images();
    if images.len() < 3 {
        writeln!(std::io::stderr(), "SKIPPED: no kernels in .cache/kernels; `make kernels` fetches them")
            .expect("stderr");
        return;
    }
    let mut kernels = GuestKernels::default();
    // The first one brings what all share.
    let mut kept = vec![kernels.open(&images[0], &images[0]).expect("a stock kernel")];
    let before = resident();
    for image in &images[1..] {
        kept.push(kernels.open(image, image).unwrap_or_else(|error| panic!("{}: {error}", image.display())));
    }
    let each = resident().saturating_sub(before) / (images.len() as u64 - 1);
    let in_kernel = size_of_val(&kept[0].code) as u64;
    println!(
        "{} kernels: {each} bytes of the daemon's memory for each, {in_kernel} in the kernel",
        kept.len()
    );
    assert!(each + in_kernel < PROMISED, "{each} + {in_kernel} bytes");
}
