//! What the emulated host shows of itself, for errors: what its console said last, whether its kernel
//! complained there, and where its CPUs are.

use crate::Result;
use crate::host_symbols::HostSymbols;
use crate::memory_file::MemoryFile;
use crate::monitor::Monitor;
use std::os::fd::RawFd;
use std::sync::OnceLock;

/// How much of it is looked at: a kernel that complains may go on for long.
const LOOKED_AT: u64 = 256 << 10;
/// What an error shows: so many lines, and so much of each.
const SHOWN_LINES: usize = 40;
const SHOWN_WIDTH: usize = 200;

/// What a kernel says when something is wrong with it, or when it throws a scheduler out.
const COMPLAINTS: [&str; 11] = [
    "Kernel panic",
    "Oops",
    "BUG:",
    "kernel BUG at",
    "WARNING: CPU",
    "general protection fault",
    "blocked for more than",
    "detected stalls",
    "self-detected stall",
    "workqueue lockup",
    "sched_ext:",
];
/// Those that a CPU which stands still leads to, whatever the reason.
const STALLS: [&str; 6] = [
    "detected stalls",
    "self-detected stall",
    "soft lockup",
    // sched_ext's own word, when it decides to throw a scheduler out because of one.
    "Soft lockup",
    "blocked for more than",
    "workqueue lockup",
];
/// With these words sched_ext says why it threw a scheduler out of a host with such a CPU, right after that
/// it did.
const THROWN_OUT_BY_STALL: [&str; 2] = ["RCU CPU stall detected", "soft lockup"];
/// A breakpoint that nobody set. A kernel changes its own code by way of one: at the first byte of each place
/// that it changes, while its other CPUs run on (`arch/x86/kernel/alternative.c`). sched_ext does that
/// whenever a scheduler comes or goes. The emulator translates code, and lets a CPU run on with a translation
/// of the breakpoint that is there no more. Nobody but the kernel writes there: whatever else it says from
/// then on comes of that.
const STALE_BREAKPOINT: &str = "Oops: int3";
/// What it says of a scheduler that was asked to go, that came, or that goes because a pCPU goes on- or
/// offline: no complaint.
const ORDINARY: [&str; 3] = ["disabled (unregistered", "\" enabled", "line, exiting scheduler"];

pub struct Console {
    file: MemoryFile,
    /// Not every emulator has one.
    monitor: Option<Monitor>,
    symbols: OnceLock<HostSymbols>,
}

impl Console {
    pub fn new() -> Result<Self> {
        Ok(Self { monitor: Some(Monitor::new()?), ..Self::without_monitor()? })
    }

    pub fn without_monitor() -> Result<Self> {
        Ok(Self { file: MemoryFile::new(&[])?, monitor: None, symbols: OnceLock::new() })
    }

    /// QEMU's arguments for it.
    pub fn arguments(&self) -> Vec<String> {
        let chardev = format!("file,id=console,path={}", self.file.path());
        let mut arguments = vec!["-chardev".into(), chardev, "-serial".into(), "chardev:console".into()];
        arguments.extend(self.monitor.iter().flat_map(Monitor::arguments));
        arguments
    }

    /// Where an emulator that has inherited it writes.
    pub fn path(&self) -> String {
        self.file.path()
    }

    /// What the emulator must inherit.
    pub fn fds(&self) -> Vec<RawFd> {
        self.monitor.iter().map(Monitor::fd).chain([self.file.fd()]).collect()
    }

    pub fn monitor(&self) -> Option<&Monitor> {
        self.monitor.as_ref()
    }

    /// QEMU has inherited all that it needs.
    pub fn handed_over(&self) {
        if let Some(monitor) = &self.monitor {
            monitor.handed_over();
        }
    }

    pub fn text(&self) -> String {
        self.file.tail(LOOKED_AT)
    }

    /// All that it shows of itself now: its console's end and where its CPUs are. Takes a second or two.
    pub fn account(&self) -> String {
        let Some(monitor) = &self.monitor else { return ending(&self.text()) };
        let cpus = monitor.cpus();
        let cpus = self.symbols.get().map_or(cpus.clone(), |symbols| symbols.annotate(&cpus));
        format!("{}\n{cpus}", ending(&self.text()))
    }

    pub(crate) fn learn_symbols(&self, symbols: HostSymbols) {
        // Those of one boot don't change.
        let _ = self.symbols.set(symbols);
    }
}

pub(crate) fn complains(line: &str) -> bool {
    // As 7.2 words a warning, and 6.18 not yet: "WARNING: kernel/sched/ext.c:2000 at scx_foo+0x1/0x2, CPU#1:
    // bash/99".
    let is_new_warning = line.contains("WARNING: ") && line.contains(", CPU#");
    (is_new_warning || COMPLAINTS.iter().any(|words| line.contains(words)))
        && !ORDINARY.iter().any(|words| line.contains(words))
}

/// Whether emulation may be why a host, or a guest of it, isn't well: the host's kernel doesn't complain, or
/// only of a CPU that stands still or a breakpoint that nobody set. The former may be ours, too: where its
/// CPUs stood is in [`Console::account`].
pub fn may_be_emulations_end(text: &str) -> bool {
    let complaints: Vec<&str> = text
        .lines()
        .filter(|line| complains(line))
        .take_while(|line| !line.contains(STALE_BREAKPOINT))
        .collect();
    let by_stall = |line: Option<&&str>| {
        line.is_some_and(|line| THROWN_OUT_BY_STALL.iter().any(|why| line.contains(why)))
    };
    complaints.iter().enumerate().all(|(at, line)| {
        STALLS.iter().any(|words| line.contains(words))
            || by_stall(Some(line))
            || line.contains("disabled (runtime error)") && by_stall(complaints.get(at + 1))
    })
}

/// Whether its kernel says that a CPU stands still, or stood.
pub fn tells_of_a_stall(text: &str) -> bool {
    text.lines().any(|line| STALLS.iter().any(|words| line.contains(words)))
}

/// Whether its kernel met a breakpoint that nobody set.
pub fn tells_of_a_stale_breakpoint(text: &str) -> bool {
    text.lines().any(|line| line.contains(STALE_BREAKPOINT))
}

/// The end of a console's text, one line below the other, and before it the first complaint with what follows
/// it.
pub fn ending(text: &str) -> String {
    let lines: Vec<&str> = text.lines().map(str::trim_end).filter(|line| !line.is_empty()).collect();
    if lines.is_empty() {
        return "its console said nothing".into();
    }
    let end = lines.len().saturating_sub(SHOWN_LINES);
    let complaint = lines.iter().position(|line| complains(line));
    let mut ending = match complaint {
        Some(at) => format!("its kernel complained ({}); its console:", shortened(lines[at].trim())),
        None => "its kernel didn't complain; its console ended with:".into(),
    };
    // Nothing twice: what follows the complaint may be the end already.
    let after = complaint.filter(|&at| at < end).map_or(end..end, |at| at..end.min(at + SHOWN_LINES));
    for line in lines[after].iter().chain(&lines[end..]) {
        ending += "\n    | ";
        ending += &shortened(line);
    }
    ending
}

fn shortened(line: &str) -> String {
    line.chars().filter(|letter| !letter.is_control()).take(SHOWN_WIDTH).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_way_in_which_a_kernel_complains_is_found() {
        for line in [
            "[   35.1] Kernel panic - not syncing: Attempted to kill init!",
            "[   35.1] Oops: general protection fault, probably for non-canonical address: 0000 [#1] SMP",
            "[   35.1] BUG: kernel NULL pointer dereference, address: 0000000000000008",
            "[   35.1] watchdog: BUG: soft lockup - CPU#2 stuck for 26s! [qemu-system-x86:210]",
            "[   35.1] kernel BUG at kernel/sched/core.c:6400!",
            "[   35.1] WARNING: CPU: 1 PID: 99 at kernel/sched/ext.c:2000 scx_foo+0x1/0x2",
            "[   35.1] WARNING: kernel/sched/ext.c:2000 at scx_foo+0x1/0x2, CPU#1: bash/99",
            "[  242.6] INFO: task kworker/1:2:44 blocked for more than 120 seconds.",
            "[   62.0] rcu: INFO: rcu_preempt detected stalls on CPUs/tasks:",
            "[   62.0] rcu: INFO: rcu_preempt self-detected stall on CPU",
            "[   62.0] BUG: workqueue lockup - pool cpus=2 node=0 flags=0x0 nice=0 stuck for 31s!",
            "[   40.2] sched_ext: BPF scheduler \"microslice\" disabled (runnable task stall)",
            "[   40.2] sched_ext: microslice: hog[310] failed to run for 10.012s",
        ] {
            let text = format!("[    1.0] Linux version 6.18\r\n{line}\r\n[   99.0] later\r\n");
            assert_eq!(text.lines().filter(|line| complains(line)).collect::<Vec<_>>(), [line]);
        }
    }

    #[test]
    fn a_kernel_that_goes_about_its_business_does_not_complain() {
        for line in [
            "",
            "[    0.0] Linux version 6.18.15+deb13-cloud-amd64",
            "[    3.1] sched_ext: BPF scheduler \"microslice\" enabled",
            "[    9.1] sched_ext: BPF scheduler \"microslice\" disabled (unregistered from user space)",
            "[    9.2] sched_ext: microslice: cpu 3 going offline, exiting scheduler",
            "[    3.1] kvm_amd: TSC scaling supported",
            "[    3.1] x86/cpu: Vulnerable: some warning of no weight",
        ] {
            assert!(!complains(line), "{line}");
        }
    }

    #[test]
    fn a_cpu_that_stands_still_or_a_stale_breakpoint_may_be_the_emulators_end_but_nothing_else() {
        let stall = "[  337.7] rcu: INFO: rcu_preempt detected stalls on CPUs/tasks:\n";
        let waits = "[  404.9] watchdog: BUG: soft lockup - CPU#1 stuck for 26s! [sched_ext_helpe:187]\n";
        let bug = "[  100.0] BUG: kernel NULL pointer dereference, address: 0000000000000008\n";
        let thrown_out = "[   40.2] sched_ext: BPF scheduler \"microslice\" disabled (runnable task stall)\n";
        let runtime = "[   40.2] sched_ext: BPF scheduler \"microslice\" disabled (runtime error)\n";
        let by_stall = "[   40.2] sched_ext: microslice: RCU CPU stall detected!\n";
        let breakpoint = "[   93.7] Oops: int3: 0000 [#1] SMP\n";
        let oops = "[   93.7] Oops: Oops: 0002 [#1] SMP NOPTI\n";
        let panic = "[   93.9] Kernel panic - not syncing: Fatal exception in interrupt\n";
        let lockup = "[  228.9] sched_ext: Soft lockup - CPU3 stuck for 15s, disabling \"microslice\"\n";
        let by_lockup = "[   40.2] sched_ext: microslice: soft lockup - CPU#3 stuck for 15s\n";
        let by_us = "[   40.2] sched_ext: microslice: invalid CPU 77\n";
        for (text, emulator) in [
            ("[    0.0] Linux version 6.18.15\n".to_owned(), true),
            ([stall, waits].concat(), true),
            ([bug, stall, waits].concat(), false),
            ([thrown_out, stall].concat(), false),
            ([stall, runtime, by_stall].concat(), true),
            ([stall, runtime, by_us].concat(), false),
            ([lockup, stall, waits].concat(), true),
            ([lockup, runtime, by_lockup].concat(), true),
            ([lockup, runtime, by_us].concat(), false),
            ([by_stall, runtime].concat(), false),
            ([breakpoint, panic].concat(), true),
            ([stall, breakpoint, bug, panic].concat(), true),
            ([bug, breakpoint, panic].concat(), false),
            ([oops, panic].concat(), false),
            (panic.to_owned(), false),
        ] {
            assert_eq!(may_be_emulations_end(&text), emulator, "{text}");
            assert_eq!(tells_of_a_stall(&text), text.contains(stall) || text.contains(lockup), "{text}");
            assert_eq!(tells_of_a_stale_breakpoint(&text), text.contains(breakpoint), "{text}");
        }
    }

    #[test]
    fn an_error_shows_the_consoles_last_lines_and_no_more() {
        let text: String = (0..1000).map(|n| format!("line {n} {}\r\n\r\n", "x".repeat(500))).collect();
        let ending = ending(&text);
        assert_eq!(ending.lines().count(), 1 + SHOWN_LINES);
        assert!(ending.lines().all(|line| line.len() <= SHOWN_WIDTH + 8), "{ending}");
        assert!(ending.contains("line 999 ") && !ending.contains("line 959 "), "{ending}");
        assert!(ending.starts_with("its kernel didn't complain"), "{ending}");
    }

    #[test]
    fn a_complaint_that_has_scrolled_away_is_shown_all_the_same() {
        let later = "later\n".repeat(100);
        let ending = ending(&format!("BUG: bad page state\nin process 7\n{later}"));
        assert!(ending.starts_with("its kernel complained (BUG: bad page state); "), "{ending}");
        assert!(ending.contains("in process 7") && ending.lines().count() <= 1 + 2 * SHOWN_LINES, "{ending}");
        let soon = super::ending("what led to it\nBUG: bad page state\nin process 7\n");
        assert!(soon.ends_with("| what led to it\n    | BUG: bad page state\n    | in process 7"), "{soon}");
        assert_eq!(super::ending(""), "its console said nothing");
    }
}
