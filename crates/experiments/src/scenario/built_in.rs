//! The files of `scenarios/`, as the binary carries them along.

use serde::Deserialize;
use std::collections::BTreeMap;
use std::sync::LazyLock;

/// (path below `scenarios/`, text) of every file there, in alphabetical order.
const FILES: &[(&str, &str)] = include!(concat!(env!("OUT_DIR"), "/built_in_scenarios.rs"));
const MATRICES: &str = "matrices/";

/// One matrix of a file in `scenarios/matrices/`: scenarios that differ in a program's name only.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Matrix {
    /// Name of a scenario, in which `{program}` stands for the program's.
    name: String,
    programs: Vec<String>,
    /// Text of a scenario, in which `{program}` stands for the program's name, and `{workload}` for its file.
    scenario: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct MatrixFile {
    /// Of programs whose workload has another file than that of their name.
    #[serde(default)]
    workloads: BTreeMap<String, String>,
    matrix: Vec<Matrix>,
}

/// All files and the scenarios of all matrices: path below `scenarios/`, and text.
static ALL: LazyLock<Vec<(String, String)>> = LazyLock::new(|| {
    let (matrices, files): (Vec<_>, Vec<_>) = FILES.iter().partition(|(path, _)| path.starts_with(MATRICES));
    let mut all: Vec<_> = files.into_iter().map(|(path, text)| ((*path).into(), (*text).into())).collect();
    for (path, text) in matrices {
        // A fault would be one of this source tree's, and no run of any test would get past it.
        let file: MatrixFile = toml::from_str(text).unwrap_or_else(|error| panic!("{path}: {error}"));
        all.extend(file.matrix.iter().flat_map(|matrix| matrix.scenarios(&file.workloads)));
    }
    all.sort();
    all
});

impl Matrix {
    fn scenarios(&self, workloads: &BTreeMap<String, String>) -> impl Iterator<Item = (String, String)> {
        self.programs.iter().map(|program| {
            let workload = workloads.get(program).unwrap_or(program);
            let fill = |text: &str| text.replace("{program}", program).replace("{workload}", workload);
            (format!("{}.toml", fill(&self.name)), fill(&self.scenario))
        })
    }
}

/// Returns the text of a built-in file by its path below `scenarios/`.
pub fn built_in(path: &str) -> Option<&'static str> {
    let place = ALL.binary_search_by(|(candidate, _)| candidate.as_str().cmp(path)).ok()?;
    Some(&ALL[place].1)
}

/// Returns the names of the built-in files in `folder`, which ends in a slash or is empty.
pub(super) fn names_in(folder: &str) -> Vec<&'static str> {
    let names = ALL.iter().filter_map(|(path, _)| path.strip_prefix(folder)?.strip_suffix(".toml"));
    names.filter(|name| !name.contains('/')).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_matrix_is_one_scenario_for_each_program() {
        let text = built_in("asplos13-vips-solo.toml").expect("of a matrix");
        assert!(text.contains("extends = \"asplos13-vips\""), "{text}");
        assert!(built_in("matrices/asplos13.toml").is_none());
        assert!(ALL.iter().all(|(_, text)| !text.contains("{program}") && !text.contains("{workload}")));
        let text = built_in("asplos13-dedup-solo.toml").expect("of a matrix");
        assert!(text.contains("use = \"dedup-stages\", name = \"dedup\""), "{text}");
    }

    #[test]
    fn no_two_files_have_one_name() {
        assert!(ALL.windows(2).all(|two| two[0].0 != two[1].0));
    }
}
