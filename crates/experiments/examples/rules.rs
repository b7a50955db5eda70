//! Measures the tables of docs/lab/rules.md that are of today's rules, and prints them as they stand there.
//!
//! ```sh
//! cargo run --release -p microslice-experiments --example rules -- less             # all of its programs
//! cargo run --release -p microslice-experiments --example rules -- sizes dedup vips
//! ```
//!
//! Tables: `beside` (today's default), `sizes` (of hosts), `less` (one rule), `slices`, `growing` (by
//! demand).

use microslice_experiments::batch::BatchProgress;
use microslice_experiments::comparison::{Comparison, Row};
use microslice_experiments::scenario::Overrides;
use microslice_metrics::figures::{MICRO_POOL_MEAN, SHOOTDOWN_WAIT, THROUGHPUT};
use microslice_metrics::{Estimate, Figure};

const PROGRAMS: [&str; 8] =
    ["gmake", "memclone", "dedup", "vips", "exim", "psearchy", "blackscholes", "spec-cpu"];
/// An interval that is no wider isn't printed.
const NARROW: f64 = 0.015;

/// What a table compares: the first policy is what the others are relative to.
struct Table {
    policies: &'static [&'static str],
    /// The first policy that has a column.
    shown_from: usize,
    seeds: u64,
    duration: &'static str,
    warmup: Option<&'static str>,
    programs: &'static [&'static str],
    /// Sizes of hosts, whose VMs are as wide.
    pcpus: &'static [usize],
    cell: fn(&Rows, usize) -> String,
    /// Behind the cells: shootdowns' means in us, of all policies.
    shootdowns_last: bool,
    policies_are_rows: bool,
}

const BESIDE: &[&str] = &["eevdf-flat", "credit", "micro", "microslice:0", "microslice"];
const LESS: &[&str] = &[
    "microslice",
    "microslice+patience=0 us",
    "microslice+lend=false",
    "microslice+home_slices=false",
    "microslice+grace=0",
    "microslice+call_function_ipi=false",
    "microslice+second_looks=0",
    "microslice+grow_when_busy=0 %",
    "microslice+grow_when_busy=75 %",
    "microslice:0",
    "microslice:1",
    "microslice:2",
    "microslice:3",
    "microslice:6",
];
const SLICES: &[&str] =
    &["eevdf-flat", "microslice+slice=30 ms", "microslice", "microslice+slice=8 ms", "microslice+slice=4 ms"];
const GROWING: &[&str] = &[
    "microslice+grow_when_busy=75 %",
    "microslice+grow_when_busy=60 %",
    "microslice+grow_when_busy=50 %",
    "microslice",
    "microslice+grow_when_busy=30 %",
    "microslice+grow_when_busy=0 %",
];

fn table(name: &str) -> Option<Table> {
    let of_all = Table {
        policies: BESIDE,
        shown_from: 1,
        seeds: 10,
        duration: "20 s",
        warmup: None,
        programs: &PROGRAMS,
        pcpus: &[12],
        cell: Rows::speeds,
        shootdowns_last: true,
        policies_are_rows: false,
    };
    Some(match name {
        "beside" => of_all,
        "sizes" => Table {
            seeds: 4,
            duration: "1 s",
            warmup: Some("1 s"),
            programs: &["gmake", "dedup", "vips", "exim"],
            pcpus: &[4, 32, 64],
            ..of_all
        },
        "less" => Table {
            policies: LESS,
            programs: &PROGRAMS[..6],
            cell: Rows::speeds_and_shootdowns,
            shootdowns_last: false,
            policies_are_rows: true,
            ..of_all
        },
        "slices" => Table { policies: SLICES, ..of_all },
        "growing" => Table {
            policies: GROWING,
            shown_from: 0,
            seeds: 6,
            duration: "1 s",
            warmup: Some("1 s"),
            programs: &["dedup", "vips"],
            pcpus: &[4, 12, 24, 32, 48, 64],
            cell: Rows::speeds_shootdowns_and_pool,
            shootdowns_last: false,
            policies_are_rows: false,
        },
        _ => return None,
    })
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let Some((table, programs)) = words.split_first().and_then(|(name, rest)| Some((table(name)?, rest)))
    else {
        return Err("usage: rules beside|sizes|less|slices|growing [PROGRAM…]".into());
    };
    let is_wanted = |program: &&str| programs.is_empty() || programs.iter().any(|wanted| wanted == program);
    let mut columns = vec![table.head()];
    for program in table.programs.iter().copied().filter(is_wanted) {
        for &pcpus in table.pcpus {
            columns.push(table.measure(program, pcpus)?);
        }
    }
    if table.policies_are_rows {
        for at in 0..columns[0].len() {
            let row: Vec<&str> = columns.iter().map(|column| column[at].as_str()).collect();
            println!("| {} |", row.join(" | "));
        }
    } else {
        columns.iter().for_each(|row| println!("| {} |", row.join(" | ")));
    }
    Ok(())
}

impl Table {
    /// What a line is about, once for each policy and once for what stands behind them.
    fn head(&self) -> Vec<String> {
        let sizes = (self.pcpus.len() > 1).then_some("pCPUs");
        let policies = &self.policies[self.shown_from..];
        let words = ["target"].into_iter().chain(sizes).chain(policies.iter().copied());
        words.chain(self.shootdowns_last.then_some("shootdowns")).map(str::to_owned).collect()
    }

    fn measure(&self, program: &str, pcpus: usize) -> Result<Vec<String>, Box<dyn std::error::Error>> {
        let rows = Rows::measure(self, program, pcpus)?;
        let mut line = vec![program.to_owned()];
        line.extend((self.pcpus.len() > 1).then(|| pcpus.to_string()));
        line.extend((self.shown_from..self.policies.len()).map(|policy| (self.cell)(&rows, policy)));
        line.extend(self.shootdowns_last.then(|| rows.shootdowns(self.policies.len())));
        Ok(line)
    }
}

/// The figures of one comparison.
struct Rows(Vec<Row>);

impl Rows {
    fn measure(table: &Table, program: &str, pcpus: usize) -> Result<Self, Box<dyn std::error::Error>> {
        let policies: Vec<String> = table.policies.iter().map(|&policy| policy.to_owned()).collect();
        let mut settings = vec![("duration".to_owned(), table.duration.to_owned())];
        settings.extend(table.warmup.map(|warmup| ("warmup".to_owned(), warmup.to_owned())));
        // The scenarios' own hosts have 12, in one last-level cache.
        if table.pcpus.len() > 1 {
            let keys = ["host.pcpus", "vm.target.vcpus", "vm.corunner.vcpus"];
            settings.extend(keys.map(|key| (key.to_owned(), pcpus.to_string())));
            settings.push(("host.llc_pcpus".to_owned(), "0".to_owned()));
        }
        let overrides = Overrides { settings, ..Overrides::default() };
        let scenario = format!("{program}-swaptions");
        let comparison = Comparison::load(&scenario, &policies, table.seeds, &overrides, false)?;
        Ok(Self(comparison.run(&BatchProgress::default())?))
    }

    fn find(&self, figure: &Figure, vm: Option<&str>) -> Option<&Row> {
        let of_vm = |row: &&Row| vm.is_none_or(|vm| row.labels.first().is_some_and(|label| label == vm));
        self.0.iter().filter(|row| row.figure.id == figure.id).find(of_vm)
    }

    /// Of the target and of swaptions, relative to the first policy.
    fn speeds(&self, policy: usize) -> String {
        let ratio = |vm| ratio_text(self.find(&THROUGHPUT, Some(vm)).and_then(|row| row.ratios[policy]));
        format!("{}, {}", ratio("target"), ratio("corunner"))
    }

    fn speeds_and_shootdowns(&self, policy: usize) -> String {
        let ratio = self.find(&SHOOTDOWN_WAIT, Some("target")).and_then(|row| row.ratios[policy]);
        let speeds = self.speeds(policy);
        if ratio.is_some() { format!("{speeds}, {}", ratio_text(ratio)) } else { speeds }
    }

    fn speeds_shootdowns_and_pool(&self, policy: usize) -> String {
        let pool = self.find(&MICRO_POOL_MEAN, None).and_then(|row| row.estimates[policy]);
        let size = pool.map_or("-".to_owned(), |pool| format!("{:.1}", pool.mean));
        format!("{}, {}, {size}", self.speeds(policy), self.shootdown_us(policy))
    }

    fn shootdown_us(&self, policy: usize) -> String {
        let wait = self.find(&SHOOTDOWN_WAIT, Some("target")).and_then(|row| row.estimates[policy]);
        wait.map_or(String::new(), |wait| thousands((wait.mean / 1e3).round() as u64))
    }

    fn shootdowns(&self, policies: usize) -> String {
        let means: Vec<String> = (0..policies).map(|policy| self.shootdown_us(policy)).collect();
        if means.iter().all(String::is_empty) { String::new() } else { means.join("; ") }
    }
}

fn ratio_text(ratio: Option<Estimate>) -> String {
    match ratio {
        None => "-".to_owned(),
        Some(ratio) if ratio.half_width() < NARROW => format!("{:.2}", ratio.mean),
        Some(ratio) => format!("{:.2} ± {:.2}", ratio.mean, ratio.half_width()),
    }
}

fn thousands(number: u64) -> String {
    if number < 1000 {
        number.to_string()
    } else {
        format!("{},{:03}", thousands(number / 1000), number % 1000)
    }
}
