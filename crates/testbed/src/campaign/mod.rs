//! The campaign: one emulated boot after the other, with honest guests on it, and faults drawn by a seed.
//! After each fault it is looked whether what docs/reference/specification.md promises still holds.
//!
//! What emulation takes away (docs/explanation/testbed.md) ends a boot, is told, and isn't a finding: the
//! campaign of the kernel's own scheduler, by the same seed, shows whether it is ours.

pub mod faults;
mod inflict;
mod report;
mod scene;

use crate::host::Host;
use crate::testbed::Testbed;
use crate::{Error, Result, kernels};
use faults::{Boot, Boots, Fault};
pub use report::{findings, to_json, to_text};
use scene::Scene;
use serde::Serialize;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// What an emulated host may take for a single thing, unless it is lost.
const PATIENCE: Duration = Duration::from_secs(180);

/// What schedules.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Scheduler {
    Microslice,
    Coordinated,
    /// The kernel's own: what is seen then isn't ours.
    None,
}

impl Scheduler {
    /// Of `microslice run`. Slices are as long as on hardware, but micro slices: an emulated vCPU needs
    /// longer to enter its guest.
    fn flags(self) -> Option<&'static str> {
        match self {
            Self::Microslice => Some("--scheduler microslice --micro-slice-us 3000"),
            Self::Coordinated => Some("--scheduler coordinated"),
            Self::None => None,
        }
    }
}

/// How a campaign runs.
#[derive(Debug, Clone)]
pub struct Plan {
    /// No fault begins later.
    pub time: Duration,
    /// At most so many, if a number is given.
    pub boots: Option<usize>,
    pub faults_per_boot: usize,
    pub seed: u64,
    pub scheduler: Scheduler,
    /// The host's kernel series.
    pub kernel: String,
    /// What lies at `/usr/bin/microslice` of the host.
    pub binary: PathBuf,
}

impl Plan {
    /// The boots to come, for ever. Without a scheduler of ours nothing is done to its daemon; everything
    /// else is the same.
    pub fn boots(&self) -> impl Iterator<Item = Boot> {
        let scheduler = self.scheduler;
        Boots::new(self.seed, self.faults_per_boot).map(move |mut boot| {
            boot.faults.retain(|fault| scheduler != Scheduler::None || !fault.is_of_the_daemon());
            boot
        })
    }
}

/// A fault, and what was seen.
#[derive(Debug, Clone, Serialize)]
pub struct FaultReport {
    pub what: String,
    pub fault: Fault,
    /// The fault, and the look at everything afterwards.
    pub seconds: f64,
    pub back_ms: Option<u64>,
    pub hostile_ratio: Option<f64>,
    pub longest_wait_ms: u64,
    /// By how much an equal's share was off, in each span of ten seconds that was looked at.
    pub share_errors: Vec<f64>,
    pub findings: Vec<String>,
}

/// A boot, and what was seen.
#[derive(Debug, Clone, Serialize)]
pub struct BootReport {
    pub kernel: String,
    pub pause_exits: bool,
    pub seconds: f64,
    pub faults: Vec<FaultReport>,
    /// What emulation took away: the boot ended there.
    pub lost: Option<String>,
}

impl BootReport {
    /// Nothing has been done yet.
    fn new(kernel: &str, boot: &Boot) -> Self {
        let Boot { pause_exits, .. } = *boot;
        Self { kernel: kernel.to_owned(), pause_exits, seconds: 0.0, faults: Vec::new(), lost: None }
    }
}

/// Runs it; `progress` hears what comes next, and `done` each boot's report.
pub fn run(
    plan: &Plan,
    progress: &dyn Fn(&str),
    done: &mut dyn FnMut(&BootReport) -> Result<()>,
) -> Result<Vec<BootReport>> {
    let began = Instant::now();
    let mut reports = Vec::new();
    for (at, boot) in plan.boots().enumerate().take(plan.boots.unwrap_or(usize::MAX)) {
        if at > 0 && began.elapsed() >= plan.time {
            break;
        }
        progress(&format!("boot {}: {} faults", at + 1, boot.faults.len()));
        let testbed = Testbed::new(&plan.kernel)?.with_guest_kernels(&[kernels::DEFAULT_GUEST])?;
        let testbed = if boot.pause_exits { testbed.pause_exits() } else { testbed };
        let report = match testbed.with_binary(&plan.binary).boot() {
            Ok(host) => run_boot(plan, &boot, &host, began + plan.time, progress),
            // What was seen so far shall not be lost with a host that doesn't come up.
            Err(error @ Error::Stage { .. }) if at > 0 => {
                BootReport { lost: Some(one_line(&error)), ..BootReport::new(&plan.kernel, &boot) }
            }
            Err(error) => return Err(error),
        };
        done(&report)?;
        reports.push(report);
    }
    Ok(reports)
}

/// Does the faults of `boot` to a host that has no guests yet; none begins after `end`.
pub fn run_boot(plan: &Plan, boot: &Boot, host: &Host, end: Instant, progress: &dyn Fn(&str)) -> BootReport {
    let began = Instant::now();
    let mut report = BootReport::new(host.release(), boot);
    match Scene::new(host, plan) {
        Ok(mut scene) => {
            for (at, fault) in boot.faults.iter().enumerate() {
                if report.lost.is_some() || (at > 0 && Instant::now() >= end) {
                    break;
                }
                progress(&format!("fault {} of {}: {fault}", at + 1, boot.faults.len()));
                let seen = run_fault(&mut scene, fault);
                if !seen.findings.is_empty() {
                    report.lost = scene.loss();
                }
                // What a host says that was lost says nothing.
                let findings = if report.lost.is_some() { Vec::new() } else { seen.findings };
                findings.iter().for_each(|finding| progress(&format!("FINDING: {finding}")));
                report.faults.push(FaultReport { findings, ..seen });
            }
            scene.end();
        }
        // Guests don't always come up (docs/explanation/testbed.md), nor does a scheduler while the machine
        // is busy: told, and no finding of a fault.
        Err(error) => report.lost = Some(format!("nothing was done yet: {error}")),
    }
    if let Some(lost) = &report.lost {
        progress(&format!("the boot ends here: {lost}"));
    }
    report.seconds = began.elapsed().as_secs_f64();
    report
}

fn run_fault(scene: &mut Scene<'_>, fault: &Fault) -> FaultReport {
    let began = Instant::now();
    let mut report = FaultReport {
        what: fault.to_string(),
        fault: fault.clone(),
        seconds: 0.0,
        back_ms: None,
        hostile_ratio: None,
        longest_wait_ms: 0,
        share_errors: Vec::new(),
        findings: Vec::new(),
    };
    let outcome = inflict::inflict(scene, fault).and_then(|inflicted| {
        report.back_ms = inflicted.back_ms;
        report.hostile_ratio = inflicted.hostile_ratio;
        report.findings.extend(inflicted.findings);
        scene.look(began)
    });
    match outcome {
        Ok(seen) => {
            report.longest_wait_ms = seen.longest_wait_ms;
            report.share_errors = seen.share_errors;
            report.findings.extend(seen.findings);
        }
        Err(error) => report.findings.push(one_line(&error)),
    }
    report.seconds = began.elapsed().as_secs_f64();
    report
}

fn one_line(error: &Error) -> String {
    error.to_string().lines().map(str::trim).collect::<Vec<_>>().join("; ")
}
