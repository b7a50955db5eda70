//! What scheduling costs: ours next to the kernel's `scx_simple`, in one boot, with the same guests.

use crate::demo::{MIX, context_switches, finish, start, wait_for_slide};
use crate::guest::GuestSpec;
use crate::host::Host;
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

/// Schedulers to compare; the first is what the others are compared with.
const SCHEDULERS: [(&str, &str); 3] = [
    ("scx_simple's rules", "--simple"),
    ("pool off", "--no-guest-memory --program-costs --json --stats 1 --micro-cpus 0"),
    ("1 micro", "--no-guest-memory --program-costs --json --stats 1 --micro-cpus 1 --micro-slice-us 3000"),
];
const SETTLE: Duration = Duration::from_secs(3);

/// Measures each scheduler for `seconds` while a kernel-heavy guest and a hog compete.
pub fn run(host: &Host, guest_kernel: &str, seconds: u64, progress: &dyn Fn(&str)) -> Result<Vec<Costs>> {
    let _echo = host.start_echo()?;
    let guests = host.start_guests(vec![
        GuestSpec::new(MIX).workload("mix").network(1).kernel(guest_kernel),
        GuestSpec::new("hog").workload("hog").kernel(guest_kernel),
    ])?;
    let mut all = Vec::new();
    for (scheduler, flags) in SCHEDULERS {
        progress(scheduler);
        let loaded = Instant::now();
        let process = start(host, &format!("exec microslice run {flags}"))?;
        if flags.contains("--json") {
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
        let work = guests.iter().map(|guest| Measurement::of(guest, from, to).work_done()).sum();
        all.push(Costs {
            scheduler,
            seconds: (to - from).as_secs_f64(),
            work,
            context_switches: after.saturating_sub(before),
            programs: statistics["programs"].take(),
            loaded_seconds: loaded.elapsed().as_secs_f64(),
        });
    }
    Ok(all)
}

impl Costs {
    fn sum(&self, key: &str) -> u64 {
        let programs = self.programs.as_array().map_or(&[][..], Vec::as_slice);
        programs.iter().filter_map(|program| program[key].as_u64()).sum()
    }

    pub fn switches_per_work(&self) -> f64 {
        self.context_switches as f64 / self.work.max(1) as f64
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
            "programs": self.programs,
        })
    }
}

/// A row per scheduler, ratios to the first; then each program of ours and of the other.
pub fn to_text(all: &[Costs], unit: &str) -> String {
    let per_event = format!(">{unit}/event");
    let mut table =
        Table::new(&["scheduler", ">work/s", ">switches/work", ">BPF events/s", per_event.as_str()]);
    for costs in all {
        let first = all.first().unwrap_or(costs);
        let cell = |of: fn(&Costs) -> f64| {
            let (value, first) = (of(costs), of(first));
            format!("{value:.2} ({:.2}x)", value / first.max(f64::MIN_POSITIVE))
        };
        table.row(vec![
            costs.scheduler.to_owned(),
            cell(|costs| costs.work as f64 / costs.seconds),
            cell(Costs::switches_per_work),
            cell(Costs::events_per_second),
            cell(Costs::ns_per_event),
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
