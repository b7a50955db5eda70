//! What is measured for as long as it takes.
//!
//! The machine stops the emulator, or a CPU of it, at any time. A short measurement may have that in its
//! figure, a longer one hardly has it. So what isn't as it should be is measured for longer, within bounds: a
//! rule that is wrong is so however long one looks.

use super::{PATIENCE, count, reports};
use microslice_testbed::Process;
use serde_json::Value;
use std::time::{Duration, Instant};

/// A measurement takes this many times its time at most.
const LOOKS: u32 = 4;

/// What `look` says after `time`; while that isn't right, after twice, thrice, four times as long.
pub fn over_time<T>(time: Duration, look: impl Fn() -> T, is_right: impl Fn(&T) -> bool) -> T {
    for _ in 1..LOOKS {
        std::thread::sleep(time);
        let seen = look();
        if is_right(&seen) {
            return seen;
        }
    }
    std::thread::sleep(time);
    look()
}

/// A figure that is within `tolerance` of what is due.
pub fn near(due: f64, tolerance: f64) -> impl Fn(f64) -> bool {
    move |figure| (figure - due).abs() <= tolerance
}

/// What a scheduler reported of some intervals of one second, one after the other.
pub struct Intervals(Vec<Value>);

impl Intervals {
    pub fn sum(&self, of: impl Fn(&Value) -> u64) -> u64 {
        self.0.iter().map(of).sum()
    }

    pub fn mean(&self, of: impl Fn(&Value) -> f64) -> f64 {
        self.0.iter().map(of).sum::<f64>() / self.0.len() as f64
    }

    pub fn seconds(&self) -> f64 {
        self.0.iter().map(|report| number(&report["seconds"])).sum()
    }

    fn of_vm(&self, name: &str, of: impl Fn(&Value, &Value) -> f64) -> f64 {
        let of_report = |report: &Value| -> f64 {
            let vms = report["vms"].as_array().expect("vms").iter();
            vms.filter(|vm| vm["name"] == name).map(|vm| of(report, vm)).sum()
        };
        self.0.iter().map(of_report).sum()
    }

    /// How many CPUs the VM had.
    pub fn cpus(&self, name: &str) -> f64 {
        self.of_vm(name, |_, vm| number(&vm["cpu_time_ns"])) / 1e9 / self.seconds()
    }

    /// How many CPUs more its vCPUs would have used, if no limit had made them rest.
    pub fn rested(&self, name: &str) -> f64 {
        self.of_vm(name, |_, vm| number(&vm["rested_time_ns"])) / 1e9 / self.seconds()
    }

    /// What the VM had of what all VMs had.
    pub fn share(&self, name: &str) -> f64 {
        self.of_vm(name, |_, vm| number(&vm["cpu_time_ns"])) / self.vms_ran_ns()
    }

    /// What it was due of that, by the weights of the VMs that wanted to run.
    pub fn share_due(&self, name: &str) -> f64 {
        let due_ns = |report: &Value, vm: &Value| number(&vm["share_due"]) * number(&report["cpu_time_ns"]);
        self.of_vm(name, due_ns) / self.vms_ran_ns()
    }

    pub fn vms_ran_ns(&self) -> f64 {
        self.sum(|report| count(&report["cpu_time_ns"])) as f64
    }

    pub fn others_ran_ns(&self) -> f64 {
        self.sum(|report| count(&report["host"]["others_ran_ns"])) as f64
    }
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("no number: {value}"))
}

/// A figure of what the scheduler, which reports every second, does from now on: of as many intervals as
/// `time` has seconds; while that isn't right, of more.
pub fn figure(
    scheduler: &Process,
    time: Duration,
    of: impl Fn(&Intervals) -> f64,
    is_right: impl Fn(f64) -> bool,
) -> f64 {
    // One interval has begun already.
    let from = scheduler.lines(0).len() + 1;
    let look = |looks: u32| {
        let enough = (time * looks).as_secs() as usize;
        let deadline = Instant::now() + time + PATIENCE;
        while scheduler.lines(from).len() < enough {
            let words = scheduler.last_words();
            assert!(
                !scheduler.has_ended() && Instant::now() < deadline,
                "reports are missing; it said: {words}"
            );
            std::thread::sleep(Duration::from_millis(100));
        }
        of(&Intervals(reports(scheduler, from)))
    };
    let found = (1..LOOKS).map(&look).find(|&figure| is_right(figure));
    found.unwrap_or_else(|| look(LOOKS))
}

/// What vCPUs get of all pCPUs' time from now on.
pub fn vms_part(scheduler: &Process, time: Duration, is_right: impl Fn(f64) -> bool) -> f64 {
    let part = |ran: &Intervals| ran.vms_ran_ns() / (ran.vms_ran_ns() + ran.others_ran_ns());
    figure(scheduler, time, part, is_right)
}
