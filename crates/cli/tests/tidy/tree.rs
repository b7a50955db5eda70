//! The sources of the tree: files that git tracks, and new files that it doesn't ignore.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Language {
    Rust,
    C,
    Shell,
}

pub struct Source {
    /// The path from the root of the repository.
    pub path: String,
    pub language: Language,
    pub text: String,
}

impl Source {
    /// Formats an offence with its place.
    pub fn at(&self, line: usize, what: impl std::fmt::Display) -> String {
        format!("{}:{line}: {what}", self.path)
    }

    /// Returns the text without the unit tests at its end.
    pub fn code(&self) -> &str {
        self.text.split("#[cfg(test)]\nmod tests {").next().unwrap_or(&self.text)
    }

    pub fn is_test(&self) -> bool {
        self.path.contains("/tests/") || self.path.ends_with("tests.rs")
    }
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn language(path: &str) -> Option<Language> {
    match Path::new(path).extension()?.to_str()? {
        "rs" => Some(Language::Rust),
        // The kernel's types are written by bpftool.
        "c" | "h" if !path.ends_with("vmlinux.h") => Some(Language::C),
        "sh" => Some(Language::Shell),
        _ => None,
    }
}

fn read() -> Vec<Source> {
    let listed = Command::new("git")
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .current_dir(root())
        .output()
        .expect("git lists the tree");
    assert!(listed.status.success(), "git ls-files: {}", String::from_utf8_lossy(&listed.stderr));
    let listed = String::from_utf8(listed.stdout).expect("paths are UTF-8");
    // A removed file that is still in git's index can't be read.
    let sources = listed.split('\0').filter_map(|path| {
        let language = language(path)?;
        let text = std::fs::read_to_string(root().join(path)).ok()?;
        Some(Source { path: path.to_owned(), language, text })
    });
    sources.collect()
}

/// Returns all sources of the tree, which are read once.
pub fn sources() -> &'static [Source] {
    static SOURCES: OnceLock<Vec<Source>> = OnceLock::new();
    let sources = SOURCES.get_or_init(read);
    assert!(sources.len() > 100, "{} files are not the whole tree", sources.len());
    sources
}
