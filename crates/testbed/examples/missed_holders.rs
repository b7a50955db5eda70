//! Which vCPUs that are stopped while they hold something are found by the list of critical functions: stock
//! guests of three kernels side by side, under three kinds of load, as `microslice observe` counts them.
//!
//! ```sh
//! make build && cargo run --release -p microslice-testbed --example missed_holders -- 120   # seconds a load
//! ```

use microslice_testbed::{GuestSpec, Host, Pv, Standstill, Testbed, built_binary};
use serde_json::Value;
use std::collections::BTreeMap;
use std::io::Write;
use std::time::{Duration, Instant};

const KERNELS: [&str; 3] = ["6.1", "6.12", "6.18-cloud"];
const LOADS: [(&str, &str); 3] =
    [("build", "build,worker"), ("network", "pingpong:16,wake:2"), ("memory", "storm,shootdown")];
const HEAD: &str = "\
| load | guest | stops | held something | of these found | recall | held a lock | in listed functions | rightly \
| precision | recall of locks |
|---|---|---|---|---|---|---|---|---|---|---|";
const BELIEF_PATIENCE: Duration = Duration::from_secs(240);
const END_PATIENCE: Duration = Duration::from_secs(120);
const MISSES_SHOWN: usize = 10;

type Failure = Box<dyn std::error::Error>;

fn main() -> Result<(), Failure> {
    let seconds = std::env::args().nth(1).map_or(Ok(120), |word| word.parse())?;
    let testbed = Testbed::new("6.18")?.with_guest_kernels(&KERNELS)?;
    let host = testbed.with_binary(built_binary()?).boot()?;
    let _echo = host.start_echo()?;
    let mut out = std::io::stdout();
    writeln!(out, "{HEAD}")?;
    let mut missed = BTreeMap::<&str, BTreeMap<String, u64>>::new();
    for (name, load) in LOADS {
        let spec = |(at, kernel): (usize, &&str)| {
            GuestSpec::new(kernel).kernel(kernel).workload(load).network(1 + at as u8).pv(Pv::Off)
        };
        let guests = host.start_guests(KERNELS.iter().enumerate().map(spec).collect())?;
        let report = observed(&host, Duration::from_secs(seconds))?;
        let vms = report["vms"].as_array().into_iter().flatten();
        for (kernel, vm) in vms.filter_map(|vm| Some((KERNELS.into_iter().find(|it| vm["name"] == *it)?, vm)))
        {
            writeln!(out, "| {name} | {kernel} | {}", row(&vm["holders"]))?;
            let functions = missed.entry(kernel).or_default();
            for entry in vm["missed_holders"].as_array().into_iter().flatten() {
                let function = entry["function"].as_str().unwrap_or("?").to_owned();
                *functions.entry(function).or_default() += number(&entry["stops"]);
            }
        }
        for guest in guests {
            guest.stop()?;
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

/// Returns the report of an observer that has seen the guests for so long since their counts are believed.
fn observed(host: &Host, length: Duration) -> Result<Value, Failure> {
    let mut command = "exec microslice observe --json --interval 10".to_owned();
    for kernel in KERNELS {
        command += &format!(" --guest {kernel}={}", host.image(kernel)?.kernel);
    }
    // Beside busy guests it takes minutes to read their kernels.
    let still = Standstill::of_guests(host)?;
    let observer = host.start(&command)?;
    observer.wait_for("{", 0, BELIEF_PATIENCE)?;
    drop(still);
    let began = Instant::now();
    while observer.stderr().matches("tells who holds locks").count() < KERNELS.len() {
        if began.elapsed() > BELIEF_PATIENCE {
            eprintln!("not all counts are believed: {}", observer.stderr());
            break;
        }
        std::thread::sleep(Duration::from_secs(1));
    }
    std::thread::sleep(length);
    observer.signal(libc::SIGINT)?;
    let output = observer.wait(END_PATIENCE)?;
    eprintln!("{}", output.stderr);
    Ok(serde_json::from_str(output.stdout.lines().last().unwrap_or_default())?)
}

fn row(holders: &Value) -> String {
    let [known, holding, found, listed, vain] =
        ["known", "holding", "found_by_symbols", "listed", "in_vain_by_symbols"]
            .map(|key| number(&holders[key]));
    let locks = number(&holders["preemptions_by_count"]["preemption"]);
    let right = listed.saturating_sub(vain);
    format!(
        "{known} | {holding} | {found} | {} | {locks} | {listed} | {right} | {} | {} |",
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
