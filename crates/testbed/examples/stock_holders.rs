//! Lock holders of stock guests of three kernels, side by side, under three kinds of load. `missed`: which
//! vCPUs that are stopped while they hold something are found by the list of critical functions, as
//! `microslice observe` counts them. `accelerations`: what `microslice run` accelerates, by symbols and by
//! the guests' own counts.
//!
//! ```sh
//! make build && cargo run --release -p microslice-testbed --example stock_holders -- missed 120   # seconds
//! ```

use microslice_testbed::{
    Guest, GuestSpec, Host, Process, Pv, Standstill, Testbed, built_binary, exit_code, say,
};
use serde_json::Value;
use std::collections::BTreeMap;
use std::io::Write;
use std::process::ExitCode;
use std::time::{Duration, Instant};

const KERNELS: [&str; 3] = ["6.1", "6.12", "6.18-cloud"];
/// Each with the guests' workload.
const LOADS: [(&str, &str); 3] = [
    ("build", "build,worker"),
    ("network", "pingpong:16,wake:2"),
    ("memory", "storm:2,shootdown:2,worker:1"),
];
const HEAD_OF_MISSED: &str = "\
| load | guest | stops | held something | held a lock | of what is held, found by symbols | in listed functions \
| of these, holding (precision) | recall of locks |
|---|---|---|---|---|---|---|---|---|";
/// What `run` is told: with a micro slice for an emulated CPU.
const ARMS: [&str; 4] = [
    "--scheduler microslice --critical-by symbols",
    "--scheduler microslice --critical-by counter",
    "--scheduler beside --critical-by symbols",
    "--scheduler beside --critical-by counter",
];
const RUN: &str = "run --json --stats 1 --micro-slice-us 3000";
const OBSERVE: &str = "observe --json --interval 10";
const KNOWN: &str = ": slide 0x";
const BELIEVED: &str = "tells who holds locks";
const PATIENCE: Duration = Duration::from_secs(240);
const TRIES: u32 = 3;
const MISSES_SHOWN: usize = 10;

type Failure = Box<dyn std::error::Error>;

fn main() -> ExitCode {
    exit_code(measure())
}

fn measure() -> Result<(), Failure> {
    let mut arguments = std::env::args().skip(1);
    let (table, length) = (arguments.next(), arguments.next().map_or(Ok(120), |word| word.parse())?);
    let length = Duration::from_secs(length);
    let testbed = Testbed::new("6.18")?.with_guest_kernels(&KERNELS)?;
    let host = testbed.with_binary(built_binary()?).boot()?;
    let _echo = host.start_echo()?;
    match table.as_deref() {
        Some("missed") => show_missed(&host, length),
        Some("accelerations") => show_accelerations(&host, length),
        _ => Err("say `missed` or `accelerations`, and the seconds of each measurement".into()),
    }
}

fn show_missed(host: &Host, length: Duration) -> Result<(), Failure> {
    let mut out = std::io::stdout();
    writeln!(out, "{HEAD_OF_MISSED}")?;
    let mut missed = BTreeMap::<&str, BTreeMap<String, u64>>::new();
    for (load, workload) in LOADS {
        let mut guests = Vec::new();
        let [_, report] = measured(host, &mut guests, workload, OBSERVE, true, length)?;
        guests.into_iter().try_for_each(Guest::stop)?;
        for (kernel, vm) in vms(&report) {
            writeln!(out, "| {load} | {kernel} | {}", row(&vm["holders"]))?;
            let functions = missed.entry(kernel).or_default();
            for entry in vm["missed_holders"].as_array().into_iter().flatten() {
                let function = entry["function"].as_str().unwrap_or("?").to_owned();
                *functions.entry(function).or_default() += number(&entry["stops"]);
            }
        }
    }
    for (kernel, functions) in missed {
        let mut functions: Vec<_> = functions.into_iter().collect();
        functions.sort_by_key(|(_, stops)| std::cmp::Reverse(*stops));
        let most =
            functions.iter().take(MISSES_SHOWN).map(|(function, stops)| format!("`{function}` {stops}"));
        writeln!(out, "{kernel}: {}", most.collect::<Vec<_>>().join(", "))?;
    }
    Ok(())
}

fn show_accelerations(host: &Host, length: Duration) -> Result<(), Failure> {
    let mut out = std::io::stdout();
    let mut causes = Vec::new();
    for (load, workload) in LOADS {
        let mut guests = Vec::new();
        for arm in ARMS {
            let counts = arm.contains("counter");
            let run = format!("{RUN} {arm}");
            let [before, after] = measured(host, &mut guests, workload, &run, counts, length)?;
            let by_cause = &after["accelerations"]["by_cause"];
            if causes.is_empty() {
                causes = by_cause.as_object().into_iter().flat_map(|map| map.keys().cloned()).collect();
                let line = "---|".repeat(causes.len());
                writeln!(out, "| load | `run` | {} |\n|---|---|{line}", causes.join(" | "))?;
            }
            let since = |cause: &String| {
                number(&by_cause[cause]).saturating_sub(number(&before["accelerations"]["by_cause"][cause]))
            };
            let cells: Vec<_> = causes.iter().map(|cause| since(cause).to_string()).collect();
            writeln!(out, "| {load} | `{arm}` | {} |", cells.join(" | "))?;
        }
        guests.into_iter().try_for_each(Guest::stop)?;
    }
    Ok(())
}

/// Returns what the command says of these guests, or of new ones if there are none: see [`reports`]. Emulated
/// SVM ends a guest now and then: then all is done again, with others.
fn measured(
    host: &Host,
    guests: &mut Vec<Guest>,
    workload: &str,
    command: &str,
    counts: bool,
    length: Duration,
) -> Result<[Value; 2], Failure> {
    for tries in 1.. {
        if guests.is_empty() {
            *guests = start(host, workload)?;
        }
        let reports = reports(host, command, counts, length);
        let Some(lost) = guests.iter().find(|guest| guest.has_ended()) else { return reports };
        let lost = format!("{} has ended (try {tries} of {TRIES}): {command}", lost.name());
        guests.drain(..).try_for_each(Guest::stop)?;
        if tries == TRIES {
            return Err(lost.into());
        }
        say(lost);
    }
    unreachable!("the loop above returns")
}

/// Boots a guest of each kernel. Each stands still once it is up: beside busy ones others take minutes.
fn start(host: &Host, workload: &str) -> Result<Vec<Guest>, Failure> {
    let mut guests = Vec::new();
    for (at, kernel) in KERNELS.iter().enumerate() {
        let spec = GuestSpec::new(kernel).kernel(kernel).workload(workload).network(1 + at as u8).pv(Pv::Off);
        let guest = host.start_guest(spec)?;
        guest.pause()?;
        guests.push(guest);
    }
    Ok(guests)
}

/// Returns what the command says of the guests once it knows them (and believes their counts), and so long
/// afterwards.
fn reports(host: &Host, command: &str, counts: bool, length: Duration) -> Result<[Value; 2], Failure> {
    let mut command = format!("exec microslice {command}");
    for kernel in KERNELS {
        command += &format!(" --guest {kernel}={}", host.image(kernel)?.kernel);
    }
    // Beside busy guests it takes minutes to read their kernels.
    let still = Standstill::of_guests(host)?;
    let process = host.start(&command)?;
    process.wait_for("{", 0, PATIENCE)?;
    drop(still);
    wait_for_all(&process, if counts { BELIEVED } else { KNOWN })?;
    let before = last_report(&process.lines(0).last().map(|line| line.text.clone()).unwrap_or_default())?;
    std::thread::sleep(length);
    process.signal(libc::SIGINT)?;
    let output = process.wait(PATIENCE)?;
    eprintln!("{}", output.stderr);
    Ok([before, last_report(&output.stdout)?])
}

fn wait_for_all(process: &Process, line: &str) -> Result<(), Failure> {
    let began = Instant::now();
    while process.stderr().matches(line).count() < KERNELS.len() {
        if process.has_ended() || began.elapsed() > PATIENCE {
            return Err(format!("not of all guests: {line}: {}", process.stderr()).into());
        }
        std::thread::sleep(Duration::from_secs(1));
    }
    Ok(())
}

fn last_report(stdout: &str) -> Result<Value, Failure> {
    Ok(serde_json::from_str(stdout.lines().last().unwrap_or_default())?)
}

/// The guests of a report.
fn vms(report: &Value) -> impl Iterator<Item = (&'static str, &Value)> {
    let vms = report["vms"].as_array().into_iter().flatten();
    vms.filter_map(|vm| Some((KERNELS.into_iter().find(|kernel| vm["name"] == *kernel)?, vm)))
}

fn row(holders: &Value) -> String {
    let [known, holding, found, listed, vain] =
        ["known", "holding", "found_by_symbols", "listed", "in_vain_by_symbols"]
            .map(|key| number(&holders[key]));
    let locks = number(&holders["preemptions_by_count"]["preemption"]);
    let right = listed.saturating_sub(vain);
    format!(
        "{known} | {holding} | {locks} | {found} ({}) | {listed} | {right} ({}) | {} |",
        percent(found, holding),
        percent(right, listed),
        percent(right, locks),
    )
}

fn percent(part: u64, of: u64) -> String {
    if of == 0 { "-".to_owned() } else { format!("{:.1} %", 100.0 * part as f64 / of as f64) }
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or(0)
}
