//! The published numbers, from `scenarios/paper-results/`: every number gets an id.

use super::{apsys15, asplos13, vm04};
use microslice_experiments::scenario::built_in;

/// A paper whose evaluation can be run again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Paper {
    /// Ahn et al.: flexible micro-sliced cores.
    Eurosys18,
    /// Kim et al.: demand-based coordinated scheduling.
    Asplos13,
    /// Uhlig et al.: towards scalable multiprocessor virtual machines.
    Vm04,
    /// Kashyap et al.: opportunistic spinlocks.
    Apsys15,
    /// Li: semantics-aware directed yield for KVM, version 3 (a proposal on the kernel's mailing list).
    Li2026,
}

impl Paper {
    /// Where the embedded copy of the numbers lives.
    fn file(self) -> &'static str {
        match self {
            Self::Eurosys18 => "paper-results/eurosys18.toml",
            Self::Asplos13 => "paper-results/asplos13.toml",
            Self::Vm04 => "paper-results/vm04.toml",
            Self::Apsys15 => "paper-results/apsys15.toml",
            Self::Li2026 => "proposals/li2026.toml",
        }
    }

    /// What people call it.
    pub fn title(self) -> &'static str {
        match self {
            Self::Eurosys18 => "EuroSys'18",
            Self::Asplos13 => "ASPLOS'13",
            Self::Vm04 => "VM'04",
            Self::Apsys15 => "APSys'15",
            Self::Li2026 => "Li's directed yield (2026)",
        }
    }
}

/// One published number.
#[derive(Debug, Clone, PartialEq)]
pub struct Published {
    pub paper: Paper,
    /// `table4b.dedup.corun.avg`: table or figure, what, `solo` or `corun`, and which number of it.
    pub id: String,
    pub value: f64,
    /// How the paper gives it if not as a plain number: `>`, `>=`, `about`.
    pub relation: Option<String>,
}

impl Published {
    /// The table, figure or section that the number is from: what `--only` selects.
    pub fn group(&self) -> &str {
        self.id.split('.').next().unwrap_or_default()
    }

    /// Unit of the number, for people and for JSON.
    pub fn unit(&self) -> &'static str {
        let last = self.id.rsplit('.').next().unwrap_or_default();
        match self.paper {
            Paper::Vm04 => return vm04::unit(&self.id),
            Paper::Apsys15 => return apsys15::unit(&self.id),
            Paper::Li2026 => return "ratio",
            Paper::Eurosys18 | Paper::Asplos13 => {}
        }
        if self.paper == Paper::Asplos13 {
            return match last {
                "low" | "high" if self.group() == "section3" => "us",
                _ if self.group() == "figure1" => "1/s",
                _ if last.ends_with("_us") => "us",
                _ if last.ends_with("_ms") => "ms",
                _ => "ratio",
            };
        }
        match self.group() {
            "table2" => "count",
            "table4a" | "table4b" => "us",
            _ if last.ends_with("_ms") || self.id.contains("jitter_ms") => "ms",
            _ if last.ends_with("_us") => "us",
            _ if last.ends_with("_mbps") => "Mbit/s",
            _ if last.ends_with("_limit") => "count",
            _ => "ratio",
        }
    }

    /// Solo figures and parameters went into the model; everything else is predicted by it.
    pub fn is_calibrated(&self) -> bool {
        match self.paper {
            Paper::Asplos13 => return asplos13::is_calibrated(&self.id),
            Paper::Vm04 => return vm04::is_calibrated(&self.id),
            Paper::Apsys15 => return apsys15::is_calibrated(&self.id),
            Paper::Li2026 => return false,
            Paper::Eurosys18 => {}
        }
        self.group() == "parameters" || self.id.split('.').any(|part| part == "solo")
    }
}

/// All numbers of the paper, in the file's order by id.
pub fn published(paper: Paper) -> Vec<Published> {
    let text = built_in(paper.file()).unwrap_or_default();
    let table: toml::Table = text.parse().unwrap_or_default();
    let mut numbers = Vec::new();
    for (section, value) in &table {
        flatten(paper, section, value, &mut numbers);
    }
    numbers
}

fn flatten(paper: Paper, path: &str, value: &toml::Value, numbers: &mut Vec<Published>) {
    let (value, relation) = match value {
        toml::Value::Table(table) => {
            for (key, inner) in table {
                flatten(paper, &format!("{path}.{key}"), inner, numbers);
            }
            return;
        }
        toml::Value::Integer(number) => (*number as f64, None),
        toml::Value::Float(number) => (*number, None),
        toml::Value::String(text) => match number_of(text) {
            Some(found) => found,
            None => return,
        },
        _ => return,
    };
    numbers.push(Published { paper, id: id_of(path), value, relation });
}

/// `"> 8"`, `"about 0"`, `"< 1 % of time"`, `"1 << 34"`; none of a text that only says something.
fn number_of(text: &str) -> Option<(f64, Option<String>)> {
    if let Some((one, bits)) = text.split_once("<<") {
        let (one, bits): (u64, u32) = (one.trim().parse().ok()?, bits.trim().parse().ok()?);
        return Some((one.checked_shl(bits)? as f64, None));
    }
    let text = text.trim_end_matches(" of time");
    let (text, unit) = text.strip_suffix(" %").map_or((text, 1.0), |text| (text, 0.01));
    let (words, number) = text.rsplit_once(' ')?;
    Some((number.parse::<f64>().ok()? * unit, Some(words.to_owned())))
}

/// `table4b.tlb_sync_us.dedup_corun.avg` becomes `table4b.dedup.corun.avg`: a table's second name only says
/// its unit, and the configuration is a part of its own.
fn id_of(path: &str) -> String {
    let parts = path.split('.').enumerate().filter(|(at, _)| !(*at == 1 && path.starts_with("table")));
    let parts = parts.map(|(_, part)| match part.rsplit_once('_') {
        Some((what, configuration @ ("solo" | "corun"))) => format!("{what}.{configuration}"),
        _ => part.to_owned(),
    });
    parts.collect::<Vec<_>>().join(".")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_name_table_workload_configuration_and_number() {
        assert_eq!(id_of("table4b.tlb_sync_us.dedup_corun.avg"), "table4b.dedup.corun.avg");
        assert_eq!(id_of("table2.yields.exim.solo"), "table2.exim.solo");
        assert_eq!(id_of("table4c.iperf.mixed_corun.jitter_ms"), "table4c.mixed.corun.jitter_ms");
        assert_eq!(
            id_of("figure4.gmake_1core.combined_throughput_gain"),
            "figure4.gmake_1core.combined_throughput_gain"
        );
    }

    #[test]
    fn every_number_of_the_file_is_there_once() {
        let numbers = published(Paper::Eurosys18);
        // The sign in ">= 1" doesn't begin a second number.
        let text = built_in(Paper::Eurosys18.file()).expect("embedded").replace(">=", ">");
        let written =
            text.lines().filter_map(|line| line.split('#').next()).flat_map(|line| line.split('=').skip(1));
        // Each "= number" or "= \"> 8\"" is one; "= {" opens a table.
        let count =
            written.filter(|value| value.trim_start().starts_with(|c: char| c.is_ascii_digit() || c == '"'));
        assert_eq!(numbers.len(), count.count());
        let ids: std::collections::BTreeSet<_> = numbers.iter().map(|number| &number.id).collect();
        assert_eq!(ids.len(), numbers.len());
    }

    #[test]
    fn a_number_may_be_a_share_or_a_power_and_what_is_none_is_left_to_the_shapes() {
        let relation = |words: &str| Some(words.to_owned());
        assert_eq!(number_of("< 1 % of time"), Some((0.01, relation("<"))));
        assert_eq!(number_of("about 1"), Some((1.0, relation("about"))));
        assert_eq!(number_of("1 << 34"), Some(((1u64 << 34) as f64, None)));
        for text in ["on par", "often worse than plain spinlocks", "", "<<", "1 << 99"] {
            assert_eq!(number_of(text), None, "{text}");
        }
    }

    #[test]
    fn numbers_with_a_relation_keep_it() {
        let numbers = published(Paper::Eurosys18);
        let find = |id: &str| numbers.iter().find(|number| number.id == id).expect(id);
        let jitter = find("figure9.udp_jitter_ms.baseline");
        assert_eq!((jitter.value, jitter.relation.as_deref(), jitter.unit()), (8.0, Some(">"), "ms"));
        assert!(
            find("table4b.dedup.solo.avg").is_calibrated()
                && !find("table4b.dedup.corun.avg").is_calibrated()
        );
    }
}
