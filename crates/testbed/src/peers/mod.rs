//! Schedulers that people run, beside ours: the demo's phases under each, in one boot after the other.
//!
//! Each guest of a boot runs alone first, under the kernel's own scheduler. What it has in a later phase is
//! divided by that: so the emulator's slowness cancels. The demo is such a boot, without peers.

mod build;
mod peer;
mod report;

pub use build::obtain;
pub use peer::{Peer, VERSION};
pub use report::{Column, failures, over_alone_json, phases, shown, significant, table, to_json, to_text};

use crate::demo::{self, Phase, Plan, Round, Scheduler};
use crate::guest::{Guest, Pv};
use crate::host::Host;
use crate::{Error, Result};
use std::rc::Rc;
use std::time::{Duration, Instant};

/// How many machines emulation may take away in one boot.
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
    pub outcome: std::result::Result<Measured, String>,
}

/// A phase, and what its guests had alone on the same host.
pub struct Measured {
    pub phase: Phase,
    pub alone: Rc<Phase>,
}

/// One boot: a row for each scheduler. After a loss another host has those that are left.
#[derive(Default)]
pub struct Boot {
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

/// After a loss another host goes on. A scheduler in charge of two losses is left out: it may be the cause.
fn surviving_boot(comparison: &Comparison<'_>, number: u32) -> Result<Boot> {
    let (plan, boots) = (comparison.plan, comparison.boots);
    let place = if boots == 1 { String::new() } else { format!("boot {} of {boots}: ", number + 1) };
    let progress = |what: &str| (comparison.progress)(&format!("{place}{what}"));
    let mut losses: Vec<Loss> = Vec::new();
    let mut boot = Boot::default();
    loop {
        let has_row = |boot: &Boot, scheduler| boot.rows.iter().any(|row| row.scheduler == scheduler);
        let mut left = turn(&plan.schedulers, number as usize);
        left.retain(|scheduler| !has_row(&boot, *scheduler));
        for &scheduler in &left {
            if let Some(why) = left_out(comparison.missing, &losses, scheduler) {
                boot.rows.push(Row { scheduler, outcome: Err(why) });
            }
        }
        left.retain(|scheduler| !has_row(&boot, *scheduler));
        if left.is_empty() {
            // All boots have one order in the report.
            boot.rows.sort_by_key(|row| plan.schedulers.iter().position(|other| *other == row.scheduler));
            return Ok(boot);
        }
        let Some(loss) = on_one_host(comparison, &left, &mut boot, &progress)? else { continue };
        progress(&format!("a machine was lost under {}: {}", loss.scheduler.name(), loss.cause));
        losses.push(loss);
        if losses.len() == BOOT_TRIES {
            let cause = format!("{BOOT_TRIES} machines were lost in one boot");
            return Err(Error::Stage { machine: "the testbed".into(), stage: "peers", cause });
        }
    }
}

/// Why a scheduler isn't measured.
fn left_out(missing: &[(Peer, String)], losses: &[Loss], scheduler: Scheduler) -> Option<String> {
    let is_it = |peer: Peer| Scheduler::Peer(peer) == scheduler;
    if let Some((_, why)) = missing.iter().find(|(peer, _)| is_it(*peer)) {
        return Some(why.clone());
    }
    let last = losses.iter().filter(|loss| loss.scheduler == scheduler).nth(LOSSES_OF_A_SCHEDULER - 1)?;
    Some(format!("left out after {LOSSES_OF_A_SCHEDULER} lost machines: {}", last.cause))
}

/// The rows of `left`, or those before a loss.
fn on_one_host(
    comparison: &Comparison<'_>,
    left: &[Scheduler],
    boot: &mut Boot,
    progress: &dyn Fn(&str),
) -> Result<Option<Loss>> {
    let plan = comparison.plan;
    progress("booting a host and two guests");
    let host = (comparison.boot)()?;
    demo::dilate_kernel_slices(&host, plan.dilation)?;
    let _echo = host.start_echo()?;
    let round = plan.rounds.first().copied().unwrap_or(Round { pv: Pv::Off, pause_exits: false });
    let guests = demo::start_guests(&host, plan, round)?;
    let lost_before = host.lost_guests();
    let measure = |scheduler: Scheduler| {
        let nth = left.iter().position(|other| *other == scheduler).map_or(1, |at| at + 2);
        progress(&format!("phase {nth} of {}: {}", left.len() + 1, scheduler.name()));
        demo::phase(&host, plan, &guests, scheduler, round)
    };
    let alone = match measure(Scheduler::Alone) {
        Ok(phase) => Rc::new(phase),
        Err(error) => return Ok(Some(Loss { scheduler: Scheduler::Alone, cause: cause_of(&error) })),
    };
    for &scheduler in left {
        let outcome = match measure(scheduler) {
            Ok(phase) => Ok(Measured { phase, alone: Rc::clone(&alone) }),
            Err(error) => {
                let cause = cause_of(&error);
                if let Some(what) = loss(&host, &guests, lost_before) {
                    return Ok(Some(Loss { scheduler, cause: format!("{what}: {cause}") }));
                }
                if let Err(error) = recover(&host, &guests) {
                    return Ok(Some(Loss { scheduler, cause: format!("{cause}; {error}") }));
                }
                progress(&format!("{}: {cause}", scheduler.name()));
                Err(cause)
            }
        };
        boot.rows.push(Row { scheduler, outcome });
    }
    // The host's end ends them, too: what was measured isn't lost for that.
    if let Err(error) = guests.into_iter().try_for_each(Guest::stop) {
        progress(&error.to_string());
    }
    Ok(None)
}

/// Each boot begins with another scheduler: a machine that others load isn't the same all the time.
fn turn(schedulers: &[Scheduler], number: usize) -> Vec<Scheduler> {
    let mut turned = schedulers.to_vec();
    // Of seven and three boots, say, each third of the order comes first once.
    let step = schedulers.len().div_ceil(3);
    turned.rotate_left((number * step) % schedulers.len().max(1));
    turned
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
    fn a_scheduler_that_lost_two_machines_is_left_out_and_a_peer_that_cannot_be_built_at_once() {
        let (flash, lavd) = (Scheduler::Peer(Peer::Flash), Scheduler::Peer(Peer::Lavd));
        let loss = |scheduler| Loss { scheduler, cause: "a guest was lost".into() };
        let missing = [(Peer::Lavd, "no libelf".to_owned())];
        assert_eq!(left_out(&missing, &[], lavd).as_deref(), Some("no libelf"));
        assert_eq!(left_out(&missing, &[loss(flash), loss(Scheduler::Auto)], flash), None);
        assert!(left_out(&missing, &[loss(flash), loss(flash)], flash).is_some());
    }

    #[test]
    fn a_cause_has_no_colours_and_a_rows_length() {
        let error = |cause: &str| Error::Command {
            machine: String::new(),
            command: String::new(),
            cause: cause.into(),
        };
        assert_eq!(cause_of(&error("\x1b[2mit \x1b[0m\x1b[31mfailed\x1b[0m")), "it failed");
        assert_eq!(cause_of(&error(&"é".repeat(1000))).chars().count(), CAUSE_LENGTH + 1);
    }
}
