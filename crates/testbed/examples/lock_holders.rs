//! One ticket lock of two, three and four vCPUs beside two that compute, on this machine's own KVM: under the
//! kernel's own scheduler, with boosts by symbols, and with boosts of holders and heirs by the guest's count.
//! Each row has means, and the ratio to the kernel's own with its interval of 95 %.
//!
//! ```sh
//! make build && cargo run --release -p microslice-testbed --example lock_holders -- 12   # rounds
//! ```

use microslice_metrics::trial::{compare, order};
use microslice_testbed::lab::{Lab, LabVm, Running};
use microslice_testbed::trial::{boost, last_report};
use microslice_testbed::{built_binary, exit_code};
use std::io::Write;
use std::process::ExitCode;
use std::time::{Duration, Instant};

const VCPUS: [&str; 3] = ["vcpus=2", "vcpus=3", "vcpus=4"];
const LOCK: [&str; 5] = ["load=ticket", "compute=60000", "hold=20000", "listed=0", "window-ms=50"];
const HOG: [&str; 4] = ["load=compute", "vcpus=2", "compute=60000", "window-ms=50"];
const ARMS: [(&str, &[&str]); 3] = [
    ("the kernel's own", &[]),
    ("boosts by symbols", &["--boost-percent", "5", "--critical-by", "symbols"]),
    ("boosts by counter", &["--boost-percent", "5", "--critical-by", "counter"]),
];
const BLOCK: Duration = Duration::from_secs(2);
const SETTLE: Duration = Duration::from_millis(300);
const SEED: u64 = 1;

/// Figures of one block: work of both VMs a second, p99 of the wait for the lock in microseconds, and boosts
/// of holders and heirs a second.
type Block = [Option<f64>; 5];
const FIGURES: [&str; 5] = ["work", "hogs' work", "lock wait p99, us", "holders /s", "heirs /s"];

type Failure = Box<dyn std::error::Error>;

fn main() -> ExitCode {
    exit_code(measure())
}

fn measure() -> Result<(), Failure> {
    let rounds = std::env::args().nth(1).map_or(Ok(12), |word| word.parse())?;
    if let Some(why) = Lab::missing() {
        return Err(why.into());
    }
    let lab = Lab::open()?;
    let mut out = std::io::stdout();
    writeln!(
        out,
        "| ticket lock | scheduler | {} |\n|---|---|{}",
        FIGURES.join(" | "),
        "---|".repeat(FIGURES.len())
    )?;
    for vcpus in VCPUS {
        let (vm, hog) = (lab.start(&[&[vcpus], &LOCK[..]].concat())?, lab.start(&HOG)?);
        let mut blocks = vec![Vec::<Block>::new(); ARMS.len()];
        for arms in order(ARMS.len(), rounds, SEED) {
            for arm in arms {
                blocks[arm].push(block(&lab, &vm, &hog, ARMS[arm].1)?);
            }
        }
        for (arm, (name, _)) in ARMS.iter().enumerate() {
            write!(out, "| {vcpus} | {name} |")?;
            for at in 0..FIGURES.len() {
                write!(out, " {} |", cell(&blocks[0], &blocks[arm], at, arm == 0))?;
            }
            writeln!(out)?;
        }
    }
    Ok(())
}

fn block(lab: &Lab, vm: &LabVm, hog: &LabVm, flags: &[&str]) -> Result<Block, Failure> {
    let daemon = match flags {
        [] => None,
        flags => Some(boost(lab, &built_binary()?, flags, [vm, hog], &[vm])?),
    };
    std::thread::sleep(SETTLE);
    let from = Instant::now();
    std::thread::sleep(BLOCK);
    let to = Instant::now();
    let (measured, others) = (vm.measured(from, to), hog.measured(from, to));
    let wait = measured.latency("lock").percentile_us(99.0);
    let boosts = daemon.map(|daemon| boosts_of(daemon, vm)).transpose()?.unwrap_or([None, None]);
    Ok([Some(measured.work_rate()), Some(others.work_rate()), wait, boosts[0], boosts[1]])
}

/// Ends it, and returns its boosts of the VM's holders and heirs a second.
fn boosts_of(daemon: Running, vm: &LabVm) -> Result<[Option<f64>; 2], Failure> {
    let report = last_report(daemon)?;
    let seconds = report["seconds"].as_f64().unwrap_or(f64::INFINITY);
    let vms = report["vms"].as_array().map(Vec::as_slice).unwrap_or_default();
    let entry = vms.iter().find(|entry| entry["pid"] == vm.pid()).ok_or("the VM isn't in the report")?;
    let causes = &entry["accelerations"]["by_cause"];
    Ok(["holder", "heir"].map(|cause| Some(causes[cause].as_f64()? / seconds)))
}

fn cell(control: &[Block], treatment: &[Block], at: usize, is_control: bool) -> String {
    let values: Vec<f64> = treatment.iter().filter_map(|block| block[at]).collect();
    if values.is_empty() {
        return "-".to_owned();
    }
    let mean = values.iter().sum::<f64>() / values.len() as f64;
    let pairs: Vec<_> = control.iter().zip(treatment).map(|(control, it)| [control[at], it[at]]).collect();
    match compare(&pairs).filter(|_| !is_control) {
        Some(compared) => {
            let ratio = &compared.ratio;
            format!("{mean:.0} ({:.2}; {:.2} to {:.2})", ratio.mean, ratio.low, ratio.high)
        }
        None => format!("{mean:.0}"),
    }
}
