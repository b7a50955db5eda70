//! How many offences each folder still has.
//!
//! The tree had comments of the old kind when the rules came. Each is rewritten when its code is next read;
//! until then it is counted here. A folder with more offences than listed fails, and so does one with fewer:
//! then its count is lowered.

use crate::tree::Source;
use std::collections::BTreeMap;
use std::fmt::Write;

/// Rule, folder, count. A folder that isn't listed has none.
const LEFT: &[(&str, &str, usize)] = &[
    ("file_lines", "crates/sim/src", 3),
    ("file_lines", "crates/sim/tests", 1),
    ("function_lines", "crates/cli/src", 1),
    ("function_lines", "crates/cli/tests", 1),
    ("function_lines", "crates/host/src", 1),
    ("function_lines", "crates/host/tests", 1),
    ("function_lines", "crates/policy/src", 1),
    ("function_lines", "crates/policy/tests", 1),
    ("function_lines", "crates/sim/examples", 2),
    ("function_lines", "crates/sim/src", 3),
    ("comment_columns", "bpf", 16),
    ("comment_columns", "bpf/core", 133),
    ("comment_columns", "bpf/mechanisms", 32),
    ("comment_columns", "bpf/schedulers", 6),
    ("comment_columns", "crates/border/src", 2),
    ("comment_columns", "crates/cli/src", 43),
    ("comment_columns", "crates/cli/tests", 18),
    ("comment_columns", "crates/host", 1),
    ("comment_columns", "crates/host/src", 207),
    ("comment_columns", "crates/host/tests", 10),
    ("comment_columns", "crates/metrics/src", 33),
    ("comment_columns", "crates/policy", 1),
    ("comment_columns", "crates/policy/src", 29),
    ("comment_columns", "crates/policy/tests", 14),
    ("comment_columns", "crates/sim", 3),
    ("comment_columns", "crates/sim/benches", 2),
    ("comment_columns", "crates/sim/examples", 2),
    ("comment_columns", "crates/sim/src", 521),
    ("comment_columns", "crates/sim/tests", 31),
    ("comment_columns", "crates/symbols/benches", 3),
    ("comment_columns", "crates/symbols/src", 100),
    ("comment_columns", "crates/symbols/tests", 16),
    ("comment_columns", "crates/testbed", 1),
    ("comment_columns", "crates/testbed/examples", 8),
    ("comment_columns", "crates/testbed/src", 98),
    ("comment_columns", "crates/testbed/tests", 65),
    ("comment_columns", "crates/trace/src", 6),
    ("comment_columns", "fuzz", 4),
    ("comment_columns", "guest/balloon", 6),
    ("comment_columns", "guest/hints", 8),
    ("comment_columns", "guest/locks", 20),
    ("comment_columns", "guest/tests", 7),
    ("comment_columns", "policy", 135),
    ("comment_columns", "scripts", 12),
    ("comment_columns", "testbed/cookie", 2),
    ("comment_columns", "testbed/faults", 4),
    ("comment_columns", "testbed/guest", 16),
    ("comment_columns", "testbed/host", 6),
    ("comment_columns", "testbed/vmm", 11),
    ("old_words", "bpf", 5),
    ("old_words", "bpf/core", 90),
    ("old_words", "bpf/mechanisms", 73),
    ("old_words", "bpf/schedulers", 17),
    ("old_words", "crates/border/src", 1),
    ("old_words", "crates/cli/src", 22),
    ("old_words", "crates/cli/tests", 6),
    ("old_words", "crates/host/src", 82),
    ("old_words", "crates/host/tests", 3),
    ("old_words", "crates/metrics/src", 4),
    ("old_words", "crates/policy/src", 10),
    ("old_words", "crates/policy/tests", 11),
    ("old_words", "crates/sim/src", 346),
    ("old_words", "crates/sim/tests", 18),
    ("old_words", "crates/symbols/src", 6),
    ("old_words", "crates/symbols/tests", 1),
    ("old_words", "crates/testbed/src", 13),
    ("old_words", "crates/testbed/tests", 22),
    ("old_words", "crates/trace/src", 2),
    ("old_words", "guest/balloon", 1),
    ("old_words", "guest/hints", 2),
    ("old_words", "guest/locks", 12),
    ("old_words", "guest/tests", 3),
    ("old_words", "policy", 58),
    ("old_words", "scripts", 4),
    ("old_words", "testbed/faults", 1),
    ("old_words", "testbed/vmm", 1),
    ("sentence_words", "bpf/core", 10),
    ("sentence_words", "bpf/mechanisms", 8),
    ("sentence_words", "bpf/schedulers", 2),
    ("sentence_words", "crates/cli/src", 1),
    ("sentence_words", "crates/host/src", 6),
    ("sentence_words", "crates/policy/src", 2),
    ("sentence_words", "crates/policy/tests", 1),
    ("sentence_words", "crates/sim", 1),
    ("sentence_words", "crates/sim/src", 31),
    ("sentence_words", "crates/sim/tests", 4),
    ("sentence_words", "crates/symbols/src", 6),
    ("sentence_words", "crates/testbed/examples", 1),
    ("sentence_words", "crates/testbed/src", 3),
    ("sentence_words", "crates/testbed/tests", 1),
    ("sentence_words", "crates/trace/src", 1),
    ("sentence_words", "guest/hints", 1),
    ("sentence_words", "guest/locks", 2),
    ("sentence_words", "guest/tests", 1),
    ("sentence_words", "policy", 22),
    ("sentence_words", "testbed/guest", 2),
];

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
