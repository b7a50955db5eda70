//! Puts the files of `scenarios/` into the binary, so that `microslice simulate gmake-swaptions` works anywhere.
//!
//! All paths are relative to the crate: a build folder that another clone has used must not bring that clone's files.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::{env, fs, io};

const ROOT: &str = "../../scenarios";

fn main() -> io::Result<()> {
    let mut files = Vec::new();
    collect(Path::new(ROOT), &mut files)?;
    files.sort();
    let mut list = String::from("&[\n");
    for file in &files {
        let below = file.strip_prefix(ROOT).map_err(io::Error::other)?.display().to_string();
        let from_crate = format!("/{}", file.display());
        writeln!(list, "({below:?}, include_str!(concat!(env!(\"CARGO_MANIFEST_DIR\"), {from_crate:?}))),")
            .map_err(io::Error::other)?;
    }
    list.push_str("]\n");
    fs::write(Path::new(&env::var("OUT_DIR").unwrap_or_default()).join("built_in_scenarios.rs"), list)
}

/// All `.toml` files below a folder. Folders are watched, so that a new file is found.
fn collect(folder: &Path, files: &mut Vec<PathBuf>) -> io::Result<()> {
    println!("cargo::rerun-if-changed={}", folder.display());
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            collect(&path, files)?;
        } else if path.extension().is_some_and(|extension| extension == "toml") {
            files.push(path);
        }
    }
    Ok(())
}
