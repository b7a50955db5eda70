//! The published numbers, from `scenarios/paper-results/`: every number gets an id.

use super::asplos13;
use crate::scenario::built_in;

/// A paper whose evaluation can be run again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Paper {
    /// Ahn et al.: flexible micro-sliced cores.
    Eurosys18,
    /// Kim et al.: demand-based coordinated scheduling.
    Asplos13,
}

impl Paper {
    /// Where the embedded copy of the numbers lives.
    fn file(self) -> &'static str {
        match self {
            Self::Eurosys18 => "paper-results/eurosys18.toml",
            Self::Asplos13 => "paper-results/asplos13.toml",
        }
    }

    /// What people call it.
    pub fn title(self) -> &'static str {
        match self {
            Self::Eurosys18 => "EuroSys'18",
            Self::Asplos13 => "ASPLOS'13",
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
        if self.paper == Paper::Asplos13 {
            return asplos13::is_calibrated(&self.id);
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
        toml::Value::String(text) => {
            match text.rsplit_once(' ').map(|(words, number)| (words, number.parse())) {
                Some((words, Ok(number))) => (number, Some(words.to_owned())),
                _ => return,
            }
        }
        _ => return,
    };
    numbers.push(Published { paper, id: id_of(path), value, relation });
}

/// `table4b.tlb_sync_us.dedup_corun.avg` becomes `table4b.dedup.corun.avg`: a table's second name only says its unit, and
/// the configuration is a part of its own.
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
