//! Puts the files of `scenarios/` into the binary, so that `microslice simulate gmake-swaptions` works
//! anywhere. It also puts in the fingerprint of the model, by which results of a sweep know what made them.
//!
//! All paths are relative to the crate: a build folder that another clone has used must not bring that
//! clone's files.

use fnv::FnvHasher;
use std::fmt::Write;
use std::hash::Hasher;
use std::path::{Path, PathBuf};
use std::{env, fs, io};

const ROOT: &str = "../../scenarios";
/// What a run's figures depend on beside its configuration.
const MODEL: [&str; 9] = [
    "src",
    "../engine/src",
    "../model/src",
    "../model/tables",
    "../policy/src",
    "../symbols/src",
    "../metrics/src",
    "../../policy",
    "../../critical",
];

fn main() -> io::Result<()> {
    let mut files = Vec::new();
    collect(Path::new(ROOT), &["toml"], &mut files)?;
    files.sort();
    let mut list = String::from("&[\n");
    for file in &files {
        let below = file.strip_prefix(ROOT).map_err(io::Error::other)?.display().to_string();
        let from_crate = format!("/{}", file.display());
        writeln!(list, "({below:?}, include_str!(concat!(env!(\"CARGO_MANIFEST_DIR\"), {from_crate:?}))),")
            .map_err(io::Error::other)?;
    }
    list.push_str("]\n");
    fs::write(Path::new(&env::var("OUT_DIR").unwrap_or_default()).join("built_in_scenarios.rs"), list)?;
    println!("cargo::rustc-env=MICROSLICE_MODEL={:016x}", model()?);
    Ok(())
}

/// Results of two models don't belong into one table, and the program's version doesn't tell them apart while
/// it is written.
fn model() -> io::Result<u64> {
    let mut files = Vec::new();
    for folder in MODEL {
        collect(Path::new(folder), &["rs", "c", "h", "toml", "map"], &mut files)?;
    }
    files.sort();
    let mut hasher = FnvHasher::default();
    for file in files {
        hasher.write(file.display().to_string().as_bytes());
        hasher.write(&fs::read(&file)?);
    }
    Ok(hasher.finish())
}

/// All files below a folder whose names end so. Folders are watched, so that a new file is found.
fn collect(folder: &Path, ends: &[&str], files: &mut Vec<PathBuf>) -> io::Result<()> {
    println!("cargo::rerun-if-changed={}", folder.display());
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            collect(&path, ends, files)?;
        } else if path.extension().is_some_and(|extension| ends.iter().any(|end| extension == *end)) {
            files.push(path);
        }
    }
    Ok(())
}
