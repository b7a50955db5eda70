//! Schedulers that people run, beside ours: the demo's phases under each, in one boot after the other.
//!
//! A boot's guests run first alone, one after the other, under the kernel's own scheduler. What they have in a later
//! phase is divided by what they had there: so the emulator's slowness cancels.

mod build;
mod peer;
mod report;

pub use build::obtain;
pub use peer::{Peer, VERSION};
pub use report::{to_json, to_text};

use crate::demo::{self, Phase, Plan, Round, Scheduler};
use crate::guest::{Guest, Pv};
use crate::host::Host;
use crate::{Error, Result, say};
use std::time::{Duration, Instant};

/// How often a boot starts again after emulation took a machine away.
const BOOT_TRIES: usize = 5;
/// Of these, how many one scheduler may be in charge of.
const LOSSES_OF_A_SCHEDULER: usize = 2;
/// Characters of what a scheduler said.
const CAUSE_LENGTH: usize = 400;
/// After a scheduler that failed, until the kernel's own is in charge again.
const RETURN_PATIENCE: Duration = Duration::from_secs(60);

/// What one scheduler's phase brought, or why it brought nothing.
pub struct Row {
    pub scheduler: Scheduler,
    pub outcome: std::result::Result<Phase, String>,
}

/// One boot: its guests alone, then under each scheduler.
pub struct Boot {
    pub alone: Phase,
    pub rows: Vec<Row>,
}

/// Emulation took a machine away while this scheduler was in charge.
struct Loss {
    scheduler: Scheduler,
    cause: String,
}

/// What is measured: the demo's phases in one round, in each of so many boots.
pub struct Comparison<'a> {
    pub plan: &'a Plan,
    pub boots: u32,
    /// Peers of the plan that can't be built, and why.
    pub missing: &'a [(Peer, String)],
    /// Gives a host that has all others.
    pub boot: &'a dyn Fn() -> Result<Host>,
    pub progress: &'a dyn Fn(&str),
}

/// Measures, and hands each boot to `keep` as it ends: an error leaves the boots before it.
///
/// # Errors
/// Emulation loses a machine again and again, or a host can't be booted at all.
pub fn run(comparison: &Comparison<'_>, keep: &mut dyn FnMut(Boot)) -> Result<()> {
    (0..comparison.boots).try_for_each(|number| {
        keep(surviving_boot(comparison, number)?);
        Ok(())
    })
}

/// A boot starts again after a loss. Whoever was in charge of two is left out: it may be the cause.
fn surviving_boot(comparison: &Comparison<'_>, number: u32) -> Result<Boot> {
    let mut losses: Vec<Loss> = Vec::new();
    loop {
        let of = |scheduler| losses.iter().filter(move |loss| loss.scheduler == scheduler);
        let left_out = |scheduler| {
            if let Scheduler::Peer(peer) = scheduler
                && let Some((_, why)) = comparison.missing.iter().find(|(missing, _)| *missing == peer)
            {
                return Some(why.clone());
            }
            let last = of(scheduler).nth(LOSSES_OF_A_SCHEDULER - 1)?;
            Some(format!("left out after {LOSSES_OF_A_SCHEDULER} lost machines: {}", last.cause))
        };
        match one_boot(comparison, number, &left_out)? {
            Ok(boot) => return Ok(boot),
            Err(loss) if losses.len() + 1 < BOOT_TRIES => {
                let name = loss.scheduler.name();
                say(format_args!("a machine was lost under {name} ({}); the boot starts again", loss.cause));
                losses.push(loss);
            }
            Err(Loss { cause, .. }) => {
                return Err(Error::Stage { machine: "the testbed".into(), stage: "peers", cause });
            }
        }
    }
}

fn one_boot(
    comparison: &Comparison<'_>,
    number: u32,
    left_out: &dyn Fn(Scheduler) -> Option<String>,
) -> Result<std::result::Result<Boot, Loss>> {
    let Comparison { plan, boots, .. } = comparison;
    let progress = |what: &str| (comparison.progress)(&format!("boot {} of {boots}: {what}", number + 1));
    progress("booting a host and two guests");
    let host = (comparison.boot)()?;
    demo::dilate_kernel_slices(&host, plan.dilation)?;
    let _echo = host.start_echo()?;
    let round = plan.rounds.first().copied().unwrap_or(Round { pv: Pv::Off, pause_exits: false });
    let guests = demo::start_guests(&host, plan, round)?;
    let lost_before = host.lost_guests();
    let measure = |scheduler: Scheduler| {
        progress(&scheduler.name());
        demo::phase(&host, plan, &guests, scheduler, round)
    };
    let lost = |scheduler, cause| Ok(Err(Loss { scheduler, cause }));
    let alone = match measure(Scheduler::Alone) {
        Ok(phase) => phase,
        Err(error) => return lost(Scheduler::Alone, error.to_string()),
    };
    let mut rows = Vec::new();
    for scheduler in turn(&plan.schedulers, number as usize) {
        let outcome = match left_out(scheduler).map_or_else(|| measure(scheduler), |why| Err(refusal(why))) {
            Ok(phase) => Ok(phase),
            Err(error) => match loss(&host, &guests, lost_before) {
                Some(what) => return lost(scheduler, format!("{what}: {error}")),
                None => {
                    recover(&host, &guests)?;
                    let cause = cause_of(&error);
                    progress(&format!("{}: {cause}", scheduler.name()));
                    Err(cause)
                }
            },
        };
        rows.push(Row { scheduler, outcome });
    }
    guests.into_iter().try_for_each(Guest::stop)?;
    // All boots have one order in the report.
    rows.sort_by_key(|row| plan.schedulers.iter().position(|scheduler| *scheduler == row.scheduler));
    Ok(Ok(Boot { alone, rows }))
}

/// Each boot begins with another scheduler: a machine that others load isn't the same all the time.
fn turn(schedulers: &[Scheduler], number: usize) -> Vec<Scheduler> {
    let mut turned = schedulers.to_vec();
    // Of seven and three boots, say, each third of the order comes first once.
    let step = schedulers.len().div_ceil(3);
    turned.rotate_left((number * step) % schedulers.len().max(1));
    turned
}

fn refusal(cause: String) -> Error {
    Error::Command { machine: String::new(), command: String::new(), cause }
}

/// In a row's length: without machine and command, colours, and all but the beginning.
fn cause_of(error: &Error) -> String {
    let text = match error {
        Error::Command { cause, .. } => cause.clone(),
        error => error.to_string(),
    };
    let mut parts = text.split("\x1b[");
    let mut plain = parts.next().unwrap_or_default().to_owned();
    // A colour ends with its m.
    parts.for_each(|part| plain += part.split_once('m').map_or(part, |(_, rest)| rest));
    match plain.char_indices().nth(CAUSE_LENGTH) {
        Some((end, _)) => format!("{}…", &plain[..end]),
        None => plain,
    }
}

fn loss(host: &Host, guests: &[Guest], lost_before: u32) -> Option<&'static str> {
    match guests.iter().any(Guest::has_ended) {
        true => Some("a guest was lost"),
        false => host.loss(lost_before),
    }
}

/// After a scheduler that failed: guests run, and the kernel's own is in charge.
fn recover(host: &Host, guests: &[Guest]) -> Result<()> {
    guests.iter().try_for_each(Guest::go_on)?;
    let began = Instant::now();
    while began.elapsed() < RETURN_PATIENCE {
        if host.read_file("/sys/kernel/sched_ext/state")?.trim() == "disabled" {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(500));
    }
    let cause = "sched_ext is still enabled after the scheduler ended".into();
    Err(Error::Stage { machine: host.release().into(), stage: "the kernel's own is back", cause })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_boot_begins_with_another_scheduler_and_has_all_of_them() {
        let all: Vec<_> = Peer::ALL.map(Scheduler::Peer).into_iter().chain(demo::SCHEDULERS).collect();
        let firsts: Vec<_> = (0..3).map(|number| turn(&all, number)[0]).collect();
        assert!(firsts[0] != firsts[1] && firsts[1] != firsts[2] && firsts[0] != firsts[2], "{firsts:?}");
        let mut last = turn(&all, 2);
        last.sort_by_key(|scheduler| all.iter().position(|other| other == scheduler));
        assert_eq!(last, all);
    }

    #[test]
    fn a_cause_has_no_colours_and_a_rows_length() {
        let error = |cause: &str| refusal(cause.to_owned());
        assert_eq!(cause_of(&error("\x1b[2mit \x1b[0m\x1b[31mfailed\x1b[0m")), "it failed");
        assert_eq!(cause_of(&error(&"é".repeat(1000))).chars().count(), CAUSE_LENGTH + 1);
    }
}
