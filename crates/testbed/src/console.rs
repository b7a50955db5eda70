//! The emulated host's console: what it said last, for errors, and whether its kernel complained there.

use crate::Result;
use crate::memory_file::MemoryFile;
use std::os::fd::RawFd;

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
const STALLS: [&str; 5] =
    ["detected stalls", "self-detected stall", "soft lockup", "blocked for more than", "workqueue lockup"];
/// What it says of a scheduler that was asked to go, or that came: no complaint.
const ORDINARY: [&str; 2] = ["disabled (unregistered", "\" enabled"];

pub struct Console {
    file: MemoryFile,
}

impl Console {
    pub fn new() -> Result<Self> {
        Ok(Self { file: MemoryFile::new(&[])? })
    }

    /// Its path in a process that inherited its descriptor.
    pub fn path(&self) -> String {
        self.file.path()
    }

    pub fn fd(&self) -> RawFd {
        self.file.fd()
    }

    pub fn text(&self) -> String {
        self.file.tail(LOOKED_AT)
    }
}

fn complains(line: &str) -> bool {
    COMPLAINTS.iter().any(|words| line.contains(words)) && !ORDINARY.iter().any(|words| line.contains(words))
}

/// Whether emulation may be why a host doesn't answer any more: its kernel doesn't complain, or only of a CPU that stands
/// still. That may be ours, too; where it stood is in the console, if it takes a non-maskable interrupt.
pub fn may_be_emulations_end(text: &str) -> bool {
    let is_stall = |line: &str| STALLS.iter().any(|words| line.contains(words));
    text.lines().filter(|line| complains(line)).all(is_stall)
}

/// The end of a console's text, one line below the other, and before it the first complaint with what follows it.
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
            "[    3.1] kvm_amd: TSC scaling supported",
            "[    3.1] x86/cpu: Vulnerable: some warning of no weight",
        ] {
            assert!(!complains(line), "{line}");
        }
    }

    #[test]
    fn a_cpu_that_stands_still_may_be_the_emulators_end_but_nothing_else() {
        let stall = "[  337.7] rcu: INFO: rcu_preempt detected stalls on CPUs/tasks:\n";
        let waits = "[  404.9] watchdog: BUG: soft lockup - CPU#1 stuck for 26s! [sched_ext_helpe:187]\n";
        let bug = "[  100.0] BUG: kernel NULL pointer dereference, address: 0000000000000008\n";
        let thrown_out = "[   40.2] sched_ext: BPF scheduler \"microslice\" disabled (runnable task stall)\n";
        for (text, emulator) in [
            ("[    0.0] Linux version 6.18.15\n".to_owned(), true),
            ([stall, waits].concat(), true),
            ([bug, stall, waits].concat(), false),
            ([thrown_out, stall].concat(), false),
        ] {
            assert_eq!(may_be_emulations_end(&text), emulator, "{text}");
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
