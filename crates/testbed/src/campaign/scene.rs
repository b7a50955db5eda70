//! A boot of the campaign: the host, honest guests, a witness, and our scheduler; and what is looked at after
//! each fault.

use super::{PATIENCE, Plan, Scheduler};
use crate::console;
use crate::demo::{self, MIX};
use crate::guest::{Guest, GuestSpec};
use crate::host::Host;
use crate::link::Process;
use crate::standstill::Standstill;
use crate::{Result, say};
use serde_json::Value;
use std::time::{Duration, Instant};

/// Guests of equal weight that always want to run: what each has of the pCPUs is compared between them.
pub const EQUALS: [&str; 2] = ["a", "b"];
/// Nobody runnable waits for longer: docs/reference/specification.md.
const WAIT_MS_MAX: u64 = 10_000;
/// Of its share, that an honest VM may be off.
const SHARE_ERROR_MAX: f64 = 0.01;
/// Shares are looked at for so long, so many times at most.
const SHARE_SPAN: Duration = Duration::from_secs(10);
const SHARE_SPANS: u32 = 4;
/// A live guest's heart beats ten times a second of its own.
const BEATS: u64 = 2;
const POLL: Duration = Duration::from_millis(200);

pub struct Scene<'h> {
    pub host: &'h Host,
    plan: &'h Plan,
    pub guests: Vec<Guest>,
    /// Ours, unless it was killed or there is none.
    pub scheduler: Option<Process>,
    witness: Process,
    _echo: Process,
    /// Of the kernel's, on the console.
    complaints_seen: usize,
}

/// What was seen after a fault.
#[derive(Debug, Default)]
pub struct Seen {
    /// The longest that a thread of the witness's waited since the fault began.
    pub longest_wait_ms: u64,
    /// By how much an equal's share was off, in each span that was looked at.
    pub share_errors: Vec<f64>,
    pub findings: Vec<String>,
}

impl<'h> Scene<'h> {
    pub fn new(host: &'h Host, plan: &'h Plan) -> Result<Self> {
        host.learn_symbols()?;
        let echo = host.start_echo()?;
        let mut specs: Vec<GuestSpec> =
            EQUALS.iter().map(|name| GuestSpec::new(name).workload("hog,heartbeat").own_cgroup()).collect();
        specs.push(GuestSpec::new(MIX).workload("mix,heartbeat").vcpus(2).network(1).own_cgroup());
        let guests = host.start_guests(specs)?;
        let witness = host.start("exec faults witness")?;
        let mut scene =
            Self { host, plan, guests, scheduler: None, witness, _echo: echo, complaints_seen: 0 };
        scene.load()?;
        scene.complaints_seen = scene.complaints().len();
        Ok(scene)
    }

    /// Puts ours in charge, unless it is or there shall be none.
    fn load(&mut self) -> Result<()> {
        if self.scheduler.is_none()
            && let Some(flags) = self.plan.scheduler.flags()
        {
            let command = format!("exec microslice run --json --stats 1 {flags}");
            self.scheduler = Some(demo::take_over(self.host, &self.guests, demo::Scheduler::Auto, &command)?);
        }
        Ok(())
    }

    pub fn promises_shares(&self) -> bool {
        self.plan.scheduler != Scheduler::None
    }

    /// CPU time in microseconds that these cgroups have had, and then that of the equals.
    pub fn used_us(&self, cgroups: &[&str]) -> Result<Vec<f64>> {
        let names: Vec<&str> = cgroups.iter().chain(&EQUALS).copied().collect();
        let command = format!(
            "for group in {}; do read _ used < /sys/fs/cgroup/$group/cpu.stat && echo $used || exit 1; done",
            names.join(" ")
        );
        let said = self.host.must_run(&command, PATIENCE)?;
        Ok(said.split_whitespace().filter_map(|word| word.parse().ok()).collect())
    }

    /// Looks at everything that is promised. What doesn't hold is a finding; that nobody can look is an
    /// error.
    pub fn look(&mut self, since: Instant) -> Result<Seen> {
        let mut seen = Seen::default();
        if let Some(ended) = self.scheduler.take_if(|scheduler| scheduler.has_ended()) {
            seen.findings.push(format!("the scheduler ended by itself: {}", ended.last_words()));
        }
        if self.scheduler.is_some() {
            self.look_at_the_scheduler(&mut seen)?;
        }
        self.load()?;
        // Kernel threads of every pCPU run.
        self.host.must_run("cat /proc/sys/vm/stat_refresh", PATIENCE)?;
        self.look_at_hearts(&mut seen);
        self.look_at_shares(&mut seen)?;
        self.look_at_waits(since, &mut seen)?;
        let complaints = self.complaints();
        let new = complaints.iter().skip(self.complaints_seen);
        seen.findings.extend(new.map(|line| format!("the kernel complained: {line}")));
        self.complaints_seen = complaints.len();
        Ok(seen)
    }

    /// It is in charge, at last after a restart, and knows the VMs that are there and no others.
    fn look_at_the_scheduler(&self, seen: &mut Seen) -> Result<()> {
        let Some(scheduler) = &self.scheduler else { return Ok(()) };
        let (deadline, from) = (Instant::now() + PATIENCE, scheduler.lines(0).len());
        let (mut state, mut vms) = (String::new(), None);
        // The kernel verifies it again for seconds of emulation, beside busy guests for minutes.
        let mut still = None;
        while Instant::now() < deadline && !scheduler.has_ended() {
            state = self.host.must_run("cat /sys/kernel/sched_ext/state", PATIENCE)?.trim().to_owned();
            let newest = scheduler.lines(from).pop();
            let report = newest.and_then(|line| serde_json::from_str::<Value>(&line.text).ok());
            vms = report.as_ref().and_then(|report| report["vms"].as_array()).map(Vec::len);
            if state == "enabled" {
                still = None;
                if vms == Some(self.guests.len()) {
                    return Ok(());
                }
            } else if still.is_none() {
                still = Some(Standstill::of_guests(self.host)?);
            }
            std::thread::sleep(POLL);
        }
        let what = if state == "enabled" {
            format!("it lists {vms:?} VMs, and {} are there", self.guests.len())
        } else {
            format!("sched_ext is {state:?}")
        };
        seen.findings.push(format!("{what}; the scheduler said: {}", scheduler.last_words()));
        Ok(())
    }

    fn look_at_hearts(&self, seen: &mut Seen) {
        let before: Vec<u64> = self.guests.iter().map(|guest| guest.heartbeat().unwrap_or(0)).collect();
        let deadline = Instant::now() + PATIENCE;
        for (guest, before) in self.guests.iter().zip(before) {
            while guest.heartbeat().unwrap_or(0) < before + BEATS {
                if Instant::now() >= deadline || guest.has_ended() {
                    seen.findings.push(format!("guest {}: no heartbeat since {before}", guest.name()));
                    break;
                }
                std::thread::sleep(POLL);
            }
        }
    }

    /// Spans one after the other, until they have equal shares in one: what a fault left to be paid back is
    /// paid by then, and a rule that is wrong is so in each.
    fn look_at_shares(&self, seen: &mut Seen) -> Result<()> {
        let mut before = self.used_us(&[])?;
        for _ in 0..SHARE_SPANS {
            std::thread::sleep(SHARE_SPAN);
            let now = self.used_us(&[])?;
            let used: Vec<f64> = now.iter().zip(&before).map(|(after, before)| after - before).collect();
            let [one, other] = used[..] else { break };
            let error = (one - other).abs() / (one + other).max(1.0);
            seen.share_errors.push(error);
            if error <= SHARE_ERROR_MAX || !self.promises_shares() {
                return Ok(());
            }
            before = now;
        }
        let errors: Vec<String> =
            seen.share_errors.iter().map(|error| format!("{:.1} %", error * 100.0)).collect();
        seen.findings.push(format!(
            "equal guests were {} off their share in spans of {} s: at most {:.0} % in one of them",
            errors.join(", "),
            SHARE_SPAN.as_secs(),
            SHARE_ERROR_MAX * 100.0
        ));
        Ok(())
    }

    fn look_at_waits(&self, since: Instant, seen: &mut Seen) -> Result<()> {
        // One that began before now has been counted by the second line from now.
        let from = self.witness.lines(0).len();
        self.witness.wait_for("waited", from + 1, PATIENCE)?;
        let waits = self.witness.lines(0).into_iter().filter(|line| line.at >= since);
        let waited_us = |text: &str| text.strip_prefix("waited ")?.parse::<u64>().ok();
        seen.longest_wait_ms = waits.filter_map(|line| waited_us(&line.text)).max().unwrap_or(0) / 1000;
        if seen.longest_wait_ms > WAIT_MS_MAX {
            seen.findings.push(format!(
                "a runnable task waited for {} ms: at most {WAIT_MS_MAX}",
                seen.longest_wait_ms
            ));
        }
        Ok(())
    }

    fn complaints(&self) -> Vec<String> {
        let text = self.host.console();
        text.lines().filter(|line| console::complains(line)).map(|line| line.trim().to_owned()).collect()
    }

    /// What emulation has taken away, if it has: then nothing that is seen here says anything.
    pub fn loss(&self) -> Option<String> {
        let ended = self.guests.iter().find(|guest| guest.has_ended());
        if let Some(guest) = ended.filter(|_| console::may_be_emulations_end(&self.host.console())) {
            return Some(format!("guest {} was lost: {}", guest.name(), guest.last_words()));
        }
        self.host.loss(self.host.lost_guests()).map(|loss| format!("{loss}; {}", self.host.account()))
    }

    /// Ends guests and scheduler, and waits for both: the host may go on.
    pub fn end(self) {
        // One that is killed is still loaded for seconds.
        if let Some(scheduler) = self.scheduler.filter(|scheduler| !scheduler.has_ended()) {
            let ended = scheduler.signal(libc::SIGINT).and_then(|()| scheduler.wait(PATIENCE));
            if let Err(error) = ended {
                say(error);
            }
        }
        // One that ended by itself is counted as lost when it is dropped.
        for guest in self.guests.into_iter().filter(|guest| !guest.has_ended()) {
            if let Err(error) = guest.stop() {
                say(error);
            }
        }
    }
}
