//! The fuzz corpus (`fuzz/corpus/<target>/`), replayed on stable: what was once found stays found.
//!
//! `MICROSLICE_WRITE_CORPUS=1` writes the seeds that the generators of these tests know.

use crate::blobs;
#[path = "../../../../fuzz/targets.rs"]
mod targets;

use crate::blobs::{Generation, encode};
use microslice_symbols::store::format;
use microslice_symbols::{Identity, text};
use std::fs;
use std::path::{Path, PathBuf};

const TEXT: u64 = 0xffff_ffff_8100_0000;

fn corpus(target: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(target)
}

fn replay(target: &str, run: fn(&[u8])) {
    let mut files: Vec<PathBuf> =
        fs::read_dir(corpus(target)).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    assert!(!files.is_empty(), "no corpus for {target}");
    for file in files {
        let bytes = fs::read(&file).unwrap();
        let outcome = std::panic::catch_unwind(|| run(&bytes));
        assert!(outcome.is_ok(), "{} breaks {target}", file.display());
    }
}

#[test]
fn the_corpus_of_every_target_replays() {
    write_seeds_if_asked();
    replay("kallsyms", targets::kallsyms);
    replay("image", targets::image);
    replay("memory", targets::memory);
    replay("text", targets::text);
    replay("stored_table", targets::stored_table);
    replay("notes", targets::notes);
    replay("catalogue", targets::catalogue);
    replay("slide", targets::slide);
}

fn write_seeds_if_asked() {
    if std::env::var_os("MICROSLICE_WRITE_CORPUS").is_none() {
        return;
    }
    for generation in Generation::ALL {
        let symbols = blobs::symbols(generation, 300, TEXT);
        let blob = encode(generation, &symbols, 64, TEXT).bytes;
        seed("kallsyms", &format!("{generation:?}"), &blob);
    }
    let vmlinux = blobs::images::vmlinux(Generation::V7_0, 300);
    seed("image", "vmlinux", &vmlinux);
    let bare = blobs::images::bzimage(&vmlinux, "6.9.0-test");
    seed("image", "unified", &blobs::images::unified(&[(".initrd", b"070701"), (".linux", &bare)]));
    for compression in microslice_symbols::image::compression::Compression::ALL {
        let packed = blobs::images::pack(compression, &vmlinux);
        seed("image", compression.name(), &blobs::images::bzimage(&packed, "6.9.0-test"));
        let choice = microslice_symbols::image::compression::Compression::ALL
            .iter()
            .position(|&other| other == compression);
        let chosen = [
            &[choice.unwrap() as u8][..],
            &blobs::images::pack(compression, b"a payload, a payload, a payload"),
        ]
        .concat();
        seed("image", &format!("{}-alone", compression.name()), &chosen);
    }
    for generation in [Generation::V6_4, Generation::V7_0] {
        seed("memory", &format!("{generation:?}"), &blobs::guest::Guest::boot_small(generation).ram);
    }
    let map = "ffffffff81000000 T _text\nffffffff81000010 t helper.constprop.0\nffffffffc0000000 t kvm_init\t[kvm]\n";
    seed("text", "system-map", map.as_bytes());
    seed("text", "stub", b"ffffffffffffffff B The real System.map is in the linux-image-6.1-dbg package\n");
    let identity = Identity { release: Some("6.1".into()), build_id: Some("ab".into()), banner: None };
    let table = text::read_symbol_text(map.as_bytes()).unwrap().with_identity(identity);
    seed("stored_table", "small", &format::encode(&table, &[0xffff_ffff_8100_0004]));
    seed(
        "notes",
        "vmcoreinfo",
        b"OSRELEASE=6.1.0\nBUILD-ID=ab12\nSYMBOL(_stext)=ffffffff9a600000\nKERNELOFFSET=19600000\n",
    );
    seed("catalogue", "linux", include_bytes!("../../../../critical/linux.toml"));
    let halt = TEXT + 0x1_000e + 0x280_0000;
    let lstar = TEXT + 0x20_0080 + 0x280_0000;
    let witness = |kind: u8, address: u64| [&[kind][..], &address.to_le_bytes()].concat();
    let agreeing =
        [witness(0, 0xf_fff0), witness(0, halt), witness(1, lstar), witness(2, 0x280_0000)].concat();
    seed("slide", "agreeing", &[&[0][..], &agreeing].concat());
    let rebooted = [witness(0, halt), witness(0, halt), witness(0, halt + 0x20_0000)].concat();
    seed("slide", "rebooted", &[&[1][..], &rebooted].concat());
    seed("notes", "build-id", b"\x04\0\0\0\x04\0\0\0\x03\0\0\0GNU\0\xab\xcd\xef\x01");
}

fn seed(target: &str, name: &str, bytes: &[u8]) {
    fs::create_dir_all(corpus(target)).unwrap();
    fs::write(corpus(target).join(format!("seed-{name}")), bytes).unwrap();
}
