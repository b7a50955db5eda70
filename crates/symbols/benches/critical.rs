//! Classification, matching and slides on a stock kernel.
//!
//! The kernel is the newest 7.2 in `.cache/kernels` (`make kernels`), or the image in
//! `MICROSLICE_BENCH_KERNEL`.

use divan::counter::ItemsCount;
use divan::{Bencher, black_box};
use microslice_symbols::slide::{Landmarks, SlideFinder, halt_sites};
use microslice_symbols::{Catalogue, ClassMap, Kernel, source};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// Addresses of one round: divide the time of a round by it.
const PROBES: usize = 10_000;

fn main() {
    if image().is_none() {
        eprintln!("SKIPPED: no 7.2 kernel in .cache/kernels; `make kernels` fetches it");
        return;
    }
    divan::main();
}

fn image() -> Option<PathBuf> {
    if let Some(path) = std::env::var_os("MICROSLICE_BENCH_KERNEL") {
        return Some(PathBuf::from(path));
    }
    let kernels = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.cache/kernels");
    let packages = std::fs::read_dir(kernels).ok()?.flatten();
    let boot = |package: std::fs::DirEntry| std::fs::read_dir(package.path().join("boot"));
    let images =
        packages.filter_map(|package| boot(package).ok()).flatten().flatten().map(|entry| entry.path());
    images.filter(|path| path.to_string_lossy().contains("/vmlinuz-7.2")).max()
}

fn kernel() -> &'static Kernel {
    static KERNEL: OnceLock<Kernel> = OnceLock::new();
    KERNEL.get_or_init(|| source::open(&image().unwrap()).unwrap().kernel)
}

fn classes() -> &'static ClassMap {
    static CLASSES: OnceLock<ClassMap> = OnceLock::new();
    CLASSES.get_or_init(|| Catalogue::linux().class_map(&kernel().symbols))
}

/// Addresses all over the text, in an order that no cache predicts.
fn probes(slide: u64) -> Vec<u64> {
    let (start, end) = classes().text();
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        start + slide + state % (end - start)
    };
    std::iter::repeat_with(next).take(PROBES).collect()
}

/// The promise is under 40 ns an address.
#[divan::bench]
fn classify_10_000(bencher: Bencher) {
    let (classes, slide) = (classes(), 0x280_0000);
    let probes = probes(slide);
    bencher.counter(ItemsCount::new(PROBES)).bench_local(|| {
        let codes = probes.iter().map(|&address| u64::from(classes.classify(address, Some(slide)).code()));
        codes.sum::<u64>()
    });
}

#[divan::bench]
fn read_catalogue(bencher: Bencher) {
    bencher.bench_local(Catalogue::linux);
}

#[divan::bench]
fn match_a_kernel(bencher: Bencher) {
    let catalogue = Catalogue::linux();
    bencher.bench_local(|| catalogue.class_map(black_box(&kernel().symbols)));
}

#[divan::bench(sample_count = 10, sample_size = 1)]
fn find_halt_sites(bencher: Bencher) {
    let kernel = kernel();
    let code = kernel.code.as_ref().unwrap();
    bencher.bench_local(|| halt_sites(black_box(&kernel.symbols), code));
}

#[divan::bench]
fn observe_a_halt(bencher: Bencher) {
    let kernel = kernel();
    let sites = halt_sites(&kernel.symbols, kernel.code.as_ref().unwrap());
    let mut finder = SlideFinder::new(Landmarks::new(&kernel.symbols, &sites));
    let halt = sites.last().unwrap() + 0x280_0000;
    bencher.bench_local(|| finder.observe_halt(black_box(halt)));
}
