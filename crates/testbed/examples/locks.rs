//! The guest's locks (`guest/locks`) with the paper's parameters, on the testbed: with four and eight vCPUs
//! on four pCPUs, alone and beside a guest of four vCPUs that always compute: locks taken, handed over to a
//! waiter, and halts, all a second. Figures of one boot can be compared with each other: time is dilated.
//!
//! ```sh
//! cargo run --release -p microslice-testbed --example locks -- 10     # seconds for each
//! ```

use microslice_testbed::{GuestSpec, Testbed, exit_code};
use serde_json::Value;
use std::io::Write;
use std::process::ExitCode;
use std::time::Duration;

/// Runs of the workload `locks` (`testbed/guest/ours.c`).
const RUNS: usize = 8;

fn main() -> ExitCode {
    exit_code(measure())
}

fn measure() -> Result<(), Box<dyn std::error::Error>> {
    let seconds = std::env::args().nth(1).map_or(Ok(10), |word| word.parse::<u64>())?;
    let host = Testbed::new("6.18")?.with_guest_modules().boot()?;
    let mut out = std::io::stdout();
    writeln!(
        out,
        "| guest | lock | taken /s | handed over /s | halts /s | kicks /s |\n|---|---|---|---|---|---|"
    )?;
    for vcpus in [4, 8] {
        for beside in [false, true] {
            let mut specs = vec![GuestSpec::new("locks").vcpus(vcpus).workload(&format!("locks:{seconds}"))];
            if beside {
                specs.push(GuestSpec::new("hog").workload("hog"));
            }
            let guests = host.start_guests(specs)?;
            let name = format!("{vcpus} vCPUs{}", if beside { " beside another" } else { "" });
            let mut seen = 0;
            for run in 0..RUNS {
                let patience = Duration::from_secs(seconds * 6 + 120);
                guests[0].wait_for("\"bench\"", seen, patience)?;
                let lines = guests[0].lines(0);
                let (at, line) = lines
                    .iter()
                    .enumerate()
                    .filter(|(_, line)| line.text.contains("\"bench\""))
                    .nth(run)
                    .ok_or("a line is missing")?;
                seen = at + 1;
                let line: Value = serde_json::from_str(&line.text)?;
                writeln!(out, "| {name} | {} |{}", lock(&line), rates(&line["locks"]))?;
            }
            for guest in guests {
                guest.stop()?;
            }
        }
    }
    Ok(())
}

/// What it was told, without what all were told.
fn lock(line: &Value) -> String {
    let words = line["bench"].as_str().unwrap_or_default();
    words
        .split(' ')
        .filter(|word| !["irqs", "hold", "gap"].contains(&word.split('=').next().unwrap_or("")))
        .collect::<Vec<_>>()
        .join(" ")
}

fn rates(locks: &Value) -> String {
    let elapsed_s = locks["elapsed_ns"].as_f64().unwrap_or(f64::NAN) / 1e9;
    ["taken", "waited", "halts", "kicks"]
        .map(|name| match locks[name].as_f64() {
            Some(count) if count >= 0.0 => format!(" {:.0} |", count / elapsed_s),
            _ => " not counted |".into(),
        })
        .concat()
}
