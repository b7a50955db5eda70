//! How many offences each folder still has.
//!
//! The tree had comments of the old kind when the rules came. Each is rewritten when its code is next read;
//! until then it is counted here. A folder with more offences than listed fails, and so does one with fewer:
//! then its count is lowered.

use crate::tree::Source;
use std::collections::BTreeMap;
use std::fmt::Write;

/// Rule, folder, count. A folder that isn't listed has none.
const LEFT: &[(&str, &str, usize)] = &[];

pub struct Offence {
    folder: String,
    what: String,
}

impl Offence {
    pub fn new(source: &Source, line: usize, what: impl std::fmt::Display) -> Self {
        Self { folder: source.folder(), what: format!("{}:{line}: {what}", source.path) }
    }
}

/// Panics unless each folder has just as many offences against `rule` as are listed.
pub fn check(rule: &str, offences: &[Offence]) {
    let mut found: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for offence in offences {
        found.entry(&offence.folder).or_default().push(&offence.what);
    }
    let of_rule = || LEFT.iter().filter(|(of, ..)| *of == rule);
    for (_, folder, _) in of_rule() {
        found.entry(folder).or_default();
    }
    let mut wrong = String::new();
    for (folder, offences) in &found {
        let listed = of_rule().find(|(_, of, _)| of == folder).map_or(0, |(.., count)| *count);
        let count = offences.len();
        if count > listed {
            let _ = writeln!(wrong, "{folder}: {count} offences, of which {listed} are listed:");
            offences.iter().for_each(|what| _ = writeln!(wrong, "  {what}"));
        } else if count < listed {
            let _ = writeln!(wrong, "{folder}: lower its count: (\"{rule}\", \"{folder}\", {count}),");
        }
    }
    assert!(wrong.is_empty(), "{rule}:\n{wrong}");
}
