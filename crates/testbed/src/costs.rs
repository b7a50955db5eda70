//! What scheduling costs: ours next to the kernel's `scx_simple`, in one boot, with the same guests.

use crate::demo::{MIX, context_switches, finish, start, wait_for_slide};
use crate::guest::{Guest, GuestSpec};
use crate::host::Host;
use crate::link::Process;
use crate::measure::Measurement;
use crate::{Error, Result};
use microslice_metrics::table::Table;
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// One scheduler's costs.
#[derive(Debug, Clone)]
pub struct Costs {
    pub scheduler: &'static str,
    pub seconds: f64,
    /// Units of work of both guests.
    pub work: u64,
    pub context_switches: u64,
    /// `[{"program", "instructions", "runs", "ns"}]`, from loading to unloading.
    pub programs: Value,
    /// How long that was.
    pub loaded_seconds: f64,
}

/// Schedulers to compare; the first is what the others are compared with, and they have the length of its
/// slices.
const SCHEDULERS: [(&str, &str); 3] = [
    ("scx_simple's rules", "--simple"),
    (
        "pool off",
        "--scheduler microslice --no-guest-memory --program-costs --json --stats 1 --slice-us 20000 --micro-cpus 0",
    ),
    (
        "1 micro",
        "--scheduler microslice --no-guest-memory --program-costs --json --stats 1 --slice-us 20000 --micro-cpus 1 \
         --micro-slice-us 3000",
    ),
];
const SETTLE: Duration = Duration::from_secs(3);
const VCPUS_PATIENCE: Duration = Duration::from_secs(120);

/// What runs meanwhile.
pub enum Load<'k> {
    /// A kernel-heavy guest and a hog, with this kernel.
    Guests(&'k str),
    /// vCPUs without a guest kernel, some that spin and some that halt: they are there at once, also on a
    /// host that counts instructions, where a kernel would take too long to boot. No work is counted, and no
    /// symbols are looked up.
    BareVcpus,
}

/// Measures each scheduler for `seconds` under `load`.
pub fn run(host: &Host, load: &Load<'_>, seconds: u64, progress: &dyn Fn(&str)) -> Result<Vec<Costs>> {
    let (guests, _others) = start_load(host, load)?;
    SCHEDULERS
        .into_iter()
        .map(|(scheduler, flags)| {
            progress(scheduler);
            measure(host, &guests, scheduler, flags, seconds)
        })
        .collect()
}

fn start_load(host: &Host, load: &Load<'_>) -> Result<(Vec<Guest>, Vec<Process>)> {
    match load {
        Load::Guests(kernel) => {
            let echo = host.start_echo()?;
            let mix = GuestSpec::new(MIX).workload("mix").network(1).kernel(kernel);
            let guests =
                host.start_guests(vec![mix, GuestSpec::new("hog").workload("hog").kernel(kernel)])?;
            Ok((guests, vec![echo]))
        }
        Load::BareVcpus => {
            let vmms = [host.start("exec vcpus 2 4 spin")?, host.start("exec vcpus 8 4")?];
            for vmm in &vmms {
                vmm.wait_for("ready", 0, VCPUS_PATIENCE)?;
            }
            Ok((Vec::new(), vmms.into()))
        }
    }
}

fn measure(
    host: &Host,
    guests: &[Guest],
    scheduler: &'static str,
    flags: &str,
    seconds: u64,
) -> Result<Costs> {
    let loaded = Instant::now();
    let process = start(host, &format!("exec microslice run {flags}"))?;
    if flags.contains("--json") && !guests.is_empty() {
        wait_for_slide(&process, MIX);
    }
    std::thread::sleep(SETTLE);
    let (from, before) = (Instant::now(), context_switches(host)?);
    std::thread::sleep(Duration::from_secs(seconds));
    let (to, after) = (Instant::now(), context_switches(host)?);
    let mut statistics = finish(host, &process)?;
    if let Some(guest) = guests.iter().find(|guest| guest.has_ended()) {
        let cause = format!("it ended: {}", guest.last_words());
        return Err(Error::Stage { machine: guest.name().into(), stage: "workload", cause });
    }
    Ok(Costs {
        scheduler,
        seconds: (to - from).as_secs_f64(),
        work: guests.iter().map(|guest| Measurement::of(guest, from, to).work_done()).sum(),
        context_switches: after.saturating_sub(before),
        programs: statistics["programs"].take(),
        loaded_seconds: loaded.elapsed().as_secs_f64(),
    })
}

impl Costs {
    fn sum(&self, key: &str) -> u64 {
        let programs = self.programs.as_array().map_or(&[][..], Vec::as_slice);
        programs.iter().filter_map(|program| program[key].as_u64()).sum()
    }

    /// None without work.
    pub fn switches_per_work(&self) -> Option<f64> {
        (self.work > 0).then(|| self.context_switches as f64 / self.work as f64)
    }

    /// All its BPF programs together, per task that it ran: what scheduling a task once costs.
    pub fn ns_per_switch(&self) -> f64 {
        let programs = self.programs.as_array().map_or(&[][..], Vec::as_slice);
        let is_stopping =
            |program: &&Value| program["program"].as_str().is_some_and(|name| name.ends_with("_stopping"));
        let stops: u64 =
            programs.iter().filter(is_stopping).filter_map(|program| program["runs"].as_u64()).sum();
        self.sum("ns") as f64 / stops.max(1) as f64
    }

    /// Runs of any of its BPF programs, per second while it was loaded.
    pub fn events_per_second(&self) -> f64 {
        self.sum("runs") as f64 / self.loaded_seconds
    }

    /// Nanoseconds a run of a BPF program; instructions on a host that counts them.
    pub fn ns_per_event(&self) -> f64 {
        self.sum("ns") as f64 / self.sum("runs").max(1) as f64
    }

    pub fn to_json(&self) -> Value {
        json!({
            "scheduler": self.scheduler,
            "seconds": self.seconds,
            "work_done": self.work,
            "context_switches": self.context_switches,
            "context_switches_per_work": self.switches_per_work(),
            "events_per_second": self.events_per_second(),
            "ns_per_event": self.ns_per_event(),
            "ns_per_switch": self.ns_per_switch(),
            "programs": self.programs,
        })
    }
}

/// A row per scheduler, ratios to the first; then each program of ours and of the other.
pub fn to_text(all: &[Costs], unit: &str) -> String {
    let (per_event, per_switch) = (format!(">{unit}/event"), format!(">{unit}/switch"));
    let headings =
        ["scheduler", ">work/s", ">switches/work", ">BPF events/s", per_event.as_str(), per_switch.as_str()];
    let mut table = Table::new(&headings);
    for costs in all {
        let first = all.first().unwrap_or(costs);
        let cell = |of: fn(&Costs) -> Option<f64>| match (of(costs), of(first)) {
            (Some(value), Some(first)) if first > 0.0 => format!("{value:.2} ({:.2}x)", value / first),
            _ => "-".into(),
        };
        table.row(vec![
            costs.scheduler.to_owned(),
            cell(|costs| (costs.work > 0).then(|| costs.work as f64 / costs.seconds)),
            cell(Costs::switches_per_work),
            cell(|costs| Some(costs.events_per_second())),
            cell(|costs| Some(costs.ns_per_event())),
            cell(|costs| Some(costs.ns_per_switch())),
        ]);
    }
    let per_run = format!(">{unit}/run");
    let mut programs = Table::new(&["scheduler", "program", ">runs", per_run.as_str()]);
    for costs in all {
        for program in costs.programs.as_array().into_iter().flatten() {
            let number = |key: &str| program[key].as_u64().unwrap_or(0);
            if number("runs") > 0 {
                programs.row(vec![
                    costs.scheduler.to_owned(),
                    program["program"].as_str().unwrap_or_default().to_owned(),
                    number("runs").to_string(),
                    (number("ns") / number("runs")).to_string(),
                ]);
            }
        }
    }
    format!("{table}\n{programs}")
}
