//! A trial on this machine's own KVM: the lab's VMs under the kernel's own scheduler, and with boosts beside
//! it.

use crate::lab::{Lab, LabVm, Running};
use crate::measure::Measurement;
use crate::{Error, Result};
use microslice_metrics::trial::{Compared, Verdict, compare_all, order};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// What a VM of the trial does.
#[derive(Debug, PartialEq, Eq)]
pub struct Load {
    pub name: &'static str,
    /// Of the lab's VMM.
    pub arguments: &'static [&'static str],
    /// The latency that it measures, and what a reader calls it.
    pub latency: Option<(&'static str, &'static str)>,
}

/// The trial's VMs. They run at the same time. `scenarios/lab.toml` has the same ones.
pub const LOADS: [Load; 4] = [
    Load {
        name: "locks",
        arguments: &["load=ticket", "vcpus=2", "compute=60000", "hold=20000"],
        latency: Some(("lock", "lock wait")),
    },
    Load {
        name: "calls",
        arguments: &["load=calls", "vcpus=2", "compute=60000"],
        latency: Some(("shootdown", "call")),
    },
    Load {
        name: "sleeps",
        arguments: &["load=sleep", "vcpus=2", "compute=60000", "sleep-us=1000"],
        latency: Some(("wake", "wake-up")),
    },
    Load { name: "hog", arguments: &["load=compute", "vcpus=2", "compute=60000"], latency: None },
];
/// Of fewer, a percentile is what single ones took.
const ENOUGH: [(f64, u64); 2] = [(50.0, 10), (99.0, 100)];
/// The arm with boosts; the other one is what it is compared with.
const TREATMENT: usize = 1;
/// After boosts began or ended, until it counts.
const SETTLE: Duration = Duration::from_millis(300);

/// How a trial runs.
#[derive(Debug, Clone)]
pub struct Plan {
    pub pairs: usize,
    /// Measured time of a block.
    pub block: Duration,
    /// Draws the order of blocks.
    pub seed: u64,
    pub microslice: PathBuf,
    /// More flags of `run --scheduler beside`.
    pub flags: Vec<String>,
}

impl Plan {
    /// A trial of about a minute.
    pub fn of_a_minute(microslice: PathBuf) -> Self {
        Self { pairs: 8, block: Duration::from_millis(2000), seed: 1, microslice, flags: Vec::new() }
    }
}

/// What was measured in one block.
#[derive(Debug, Clone, Default)]
pub struct Block {
    /// Of each VM, and how many CPUs its vCPUs had.
    pub vms: Vec<(Measurement, f64)>,
    /// How many boosts there were in a second; 0 without them.
    pub boosts_per_second: f64,
    /// How many CPUs the thread that boosts had.
    pub helper_cpus: f64,
}

/// The control's block of each pair, and the treatment's.
pub type Pairs = Vec<[Block; 2]>;

/// A figure of a VM.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Figure {
    /// Rounds of its load in a second.
    Work,
    Cpus,
    /// A percentile of the load's latency, in microseconds.
    Latency(f64),
}

impl Figure {
    pub const ALL: [Self; 4] = [Self::Work, Self::Cpus, Self::Latency(50.0), Self::Latency(99.0)];

    pub fn name(self, load: &Load) -> Option<String> {
        match self {
            Self::Work => Some("work".into()),
            Self::Cpus => Some("CPUs".into()),
            Self::Latency(percent) => load.latency.map(|(_, name)| format!("{name} p{percent:.0}")),
        }
    }

    fn of(self, load: &Load, (measured, cpus): &(Measurement, f64)) -> Option<f64> {
        match self {
            Self::Work => Some(measured.work_rate()),
            Self::Cpus => Some(*cpus),
            Self::Latency(percent) => {
                let latency = measured.latency(load.latency?.0);
                let enough = ENOUGH.iter().find(|(of, _)| *of >= percent).map_or(u64::MAX, |of| of.1);
                (latency.count() >= enough).then(|| latency.percentile_us(percent)).flatten()
            }
        }
    }
}

/// Runs it, in about twice the blocks' time.
///
/// # Errors
/// A VM or the daemon ends, or doesn't start.
pub fn run(lab: &Lab, plan: &Plan, progress: &dyn Fn(&str)) -> Result<Pairs> {
    let start = |load: &Load| lab.start(&[load.arguments, &["window-ms=50"]].concat());
    let vms = LOADS.iter().map(start).collect::<Result<Vec<_>>>()?;
    let mut pairs = Vec::new();
    for (at, arms) in order(2, plan.pairs, plan.seed).into_iter().enumerate() {
        progress(&format!("pair {} of {}", at + 1, plan.pairs));
        let mut pair = [Block::default(), Block::default()];
        for arm in arms {
            pair[arm] = block(lab, plan, &vms, arm == TREATMENT)?;
        }
        pairs.push(pair);
    }
    Ok(pairs)
}

fn block(lab: &Lab, plan: &Plan, vms: &[LabVm], has_boosts: bool) -> Result<Block> {
    let takes_locks = |load: &Load| load.latency.is_some_and(|(kind, _)| kind == "lock");
    let holders: Vec<_> = LOADS.iter().zip(vms).filter(|it| takes_locks(it.0)).map(|it| it.1).collect();
    let daemon = has_boosts.then(|| boost(lab, &plan.microslice, &plan.flags, vms, &holders)).transpose()?;
    std::thread::sleep(SETTLE);
    let (from, ran_before) = (Instant::now(), vms.iter().map(LabVm::ran_ns).collect::<Vec<_>>());
    std::thread::sleep(plan.block);
    let (to, seconds) = (Instant::now(), from.elapsed().as_secs_f64());
    let ran = vms.iter().zip(&ran_before).map(|(vm, before)| vm.ran_ns().saturating_sub(*before));
    let ran: Vec<f64> = ran.map(|ns| ns as f64 / 1e9 / seconds).collect();
    let measured = vms.iter().map(|vm| vm.measured(from, to));
    let mut block = Block { vms: measured.zip(ran).collect(), ..Block::default() };
    if let Some(daemon) = daemon {
        let report = last_report(daemon)?;
        let per_second = |key: &str| {
            report["helper"][key].as_f64().unwrap_or(0.0)
                / report["seconds"].as_f64().unwrap_or(f64::INFINITY)
        };
        block.boosts_per_second = per_second("boosts");
        block.helper_cpus = per_second("ran_ns") / 1e9;
    }
    Ok(block)
}

/// Starts boosts with these flags, and returns once the daemon knows every guest's code. Where the flags
/// tell holders by guests' counts, those of the `holders` are believed by then.
///
/// # Errors
/// It ends, or doesn't learn all this.
pub fn boost<'v>(
    lab: &Lab,
    microslice: &Path,
    flags: &[impl AsRef<str>],
    vms: impl IntoIterator<Item = &'v LabVm>,
    holders: &[&LabVm],
) -> Result<Running> {
    let vms: Vec<&LabVm> = vms.into_iter().collect();
    let mut command = Command::new(microslice);
    command.args(["run", "--scheduler", "beside", "--json"]).args(flags.iter().map(AsRef::as_ref));
    for vm in &vms {
        command.arg("--guest").arg(format!("{}={}", vm.name(), lab.symbols().display()));
    }
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let daemon = Running::start(command)?;
    for vm in vms {
        daemon.wait_for(&format!("{}: slide 0x0", vm.name()))?;
    }
    if flags.iter().any(|flag| ["counter", "both"].iter().any(|by| flag.as_ref().ends_with(by))) {
        for vm in holders {
            daemon.wait_for(&format!("{}: preempt_count of", vm.name()))?;
        }
    }
    Ok(daemon)
}

/// Ends it, and returns its last report.
///
/// # Errors
/// It has failed.
pub fn last_report(daemon: Running) -> Result<Value> {
    daemon.signal(libc::SIGINT);
    let (code, lines) = daemon.finish();
    let report = lines.iter().rev().find_map(|line| serde_json::from_str(line).ok());
    report.filter(|_| code == 0).ok_or_else(|| Error::Command {
        machine: "lab".into(),
        command: "microslice run --scheduler beside".into(),
        cause: format!("exit code {code}: {}", lines.last().map_or("it said nothing", String::as_str)),
    })
}

/// Every figure of every load that both arms have, all judged together.
pub fn figures(pairs: &[[Block; 2]]) -> Vec<(&'static Load, Figure, Compared)> {
    let all = || LOADS.iter().enumerate().flat_map(|(at, load)| Figure::ALL.map(|figure| (at, load, figure)));
    let values = all().map(|(at, load, figure)| {
        let of = |block: &Block| block.vms.get(at).and_then(|vm| figure.of(load, vm));
        pairs.iter().map(|pair| [of(&pair[0]), of(&pair[1])]).collect()
    });
    let compared = compare_all(&values.collect::<Vec<_>>());
    all().zip(compared).filter_map(|((_, load, figure), compared)| Some((load, figure, compared?))).collect()
}

/// `{"machine", "seed", "pairs", "block_s", "boosts_per_second", "helper_cpus", "figures": [{"vm", "figure",
/// "kernel", "beside", "ratio", "low", "high", "pairs", "verdict"}]}`.
pub fn to_json(plan: &Plan, pairs: &[[Block; 2]]) -> Value {
    let treated = |of: &dyn Fn(&Block) -> f64| {
        pairs.iter().map(|pair| of(&pair[1])).sum::<f64>() / pairs.len().max(1) as f64
    };
    let figure = |(load, figure, compared): &(&Load, Figure, Compared)| {
        let Compared { control, treatment, ratio, .. } = compared;
        json!({
            "vm": load.name,
            "figure": figure.name(load),
            "kernel": control,
            "beside": treatment,
            "ratio": ratio.mean,
            "low": ratio.low,
            "high": ratio.high,
            "pairs": ratio.count,
            "verdict": match compared.verdict() {
                Verdict::Less => "less",
                Verdict::More => "more",
                Verdict::CannotTell => "cannot_tell",
            },
        })
    };
    json!({
        "machine": machine(),
        "seed": plan.seed,
        "pairs": pairs.len(),
        "block_s": plan.block.as_secs_f64(),
        "boosts_per_second": treated(&|block| block.boosts_per_second),
        "helper_cpus": treated(&|block| block.helper_cpus),
        "figures": figures(pairs).iter().map(figure).collect::<Vec<_>>(),
    })
}

/// Names this machine by its CPU and its kernel only.
pub fn machine() -> Value {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let cpus = read("/proc/cpuinfo");
    let model = cpus.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    let release = read("/proc/sys/kernel/osrelease");
    let numbers = release.trim().split('-').next().unwrap_or_default();
    json!({
        "cpu": model.map(|(_, model)| model),
        "pcpus": std::thread::available_parallelism().map_or(0, std::num::NonZero::get),
        "kernel": numbers,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(rounds: u64, wait_us: u64) -> Block {
        let vm = |load: &Load| {
            let waits = load
                .latency
                .map(|(kind, _)| (kind.to_owned(), std::iter::repeat_n(wait_us * 1000, 200).collect()));
            let work = [("worker".to_owned(), rounds)].into();
            let latency = waits.into_iter().collect();
            (Measurement { windows: 1, seconds: 1.0, work, latency }, 0.5)
        };
        Block { vms: LOADS.iter().map(vm).collect(), boosts_per_second: 10.0, helper_cpus: 0.01 }
    }

    #[test]
    fn every_load_has_its_figures_with_what_they_differ_by() {
        let pairs: Vec<_> = (0..6).map(|at| [block(100 + at, 8000), block(200 + 2 * at, 80)]).collect();
        let all = figures(&pairs);
        assert_eq!(all.len(), 4 * 2 + 3 * 2);
        let (load, figure, work) = &all[0];
        assert_eq!((load.name, figure.name(load)), ("locks", Some("work".into())));
        assert!((work.ratio.mean - 2.0).abs() < 1e-9 && work.verdict() == Verdict::More, "{work:?}");
        let json = to_json(&Plan::of_a_minute("microslice".into()), &pairs);
        let wait = &json["figures"][2];
        assert_eq!((&wait["figure"], &wait["verdict"]), (&json!("lock wait p50"), &json!("less")));
        assert!(wait["ratio"].as_f64().is_some_and(|ratio| (ratio - 0.01).abs() < 0.002), "{wait}");
    }

    #[test]
    fn the_simulators_scenario_has_the_same_vms() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scenarios/lab.toml");
        let text = std::fs::read_to_string(path).expect("part of the tree");
        let vms = text.split("[[vm]]\n").skip(1).map(|vm| vm.lines().next().expect("a line").to_owned());
        let names = LOADS.iter().map(|load| format!("name = \"{}\"", load.name));
        assert_eq!(vms.collect::<Vec<_>>(), names.collect::<Vec<_>>());
    }

    #[test]
    fn percentiles_of_few_waits_are_missing() {
        let (load, few) = (&LOADS[0], std::iter::repeat_n(1000, 20).collect());
        let measured = Measurement { latency: [("lock".to_owned(), few)].into(), ..Measurement::default() };
        let has = |percent| Figure::Latency(percent).of(load, &(measured.clone(), 1.0)).is_some();
        assert_eq!((has(50.0), has(99.0)), (true, false));
    }
}
