//! The published numbers, from `scenarios/paper-results/`: every number gets an id.

use super::study::Study;
use microslice_experiments::scenario::built_in;

/// One published number.
#[derive(Debug, Clone, PartialEq)]
pub struct Published {
    /// `table4b.dedup.corun.avg`: table or figure, what, `solo` or `corun`, and which number of it.
    pub id: String,
    pub value: f64,
    /// How the paper gives it if not as a plain number: `>`, `>=`, `about`.
    pub relation: Option<String>,
}

/// The table, figure or section that a number is from: what `--only` selects.
pub fn group_of(id: &str) -> &str {
    id.split('.').next().unwrap_or_default()
}

/// All numbers of the paper, in the file's order by id.
pub fn published(study: &dyn Study) -> Vec<Published> {
    let text = built_in(study.numbers()).unwrap_or_default();
    let table: toml::Table = text.parse().unwrap_or_default();
    let mut numbers = Vec::new();
    for (section, value) in &table {
        flatten(section, value, &mut numbers);
    }
    numbers
}

fn flatten(path: &str, value: &toml::Value, numbers: &mut Vec<Published>) {
    let (value, relation) = match value {
        toml::Value::Table(table) => {
            for (key, inner) in table {
                flatten(&format!("{path}.{key}"), inner, numbers);
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
    numbers.push(Published { id: id_of(path), value, relation });
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
    use crate::reproduction::eurosys18::Eurosys18;

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
        let numbers = published(&Eurosys18);
        // The sign in ">= 1" doesn't begin a second number.
        let text = built_in(Eurosys18.numbers()).expect("embedded").replace(">=", ">");
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
        let numbers = published(&Eurosys18);
        let find = |id: &str| numbers.iter().find(|number| number.id == id).expect(id);
        let jitter = find("figure9.udp_jitter_ms.baseline");
        assert_eq!(
            (jitter.value, jitter.relation.as_deref(), Eurosys18.unit(&jitter.id)),
            (8.0, Some(">"), "ms")
        );
        assert!(
            Eurosys18.is_calibrated("table4b.dedup.solo.avg")
                && !Eurosys18.is_calibrated("table4b.dedup.corun.avg")
        );
    }
}
