//! A profile: what a model needs of a host's VMs to ask what another scheduler would bring them. `microslice
//! observe --profile` writes one of a real host, the simulator's own observer one of a simulated host, and
//! `microslice simulate --profile` reads both.
//!
//! It holds counts and sums of the time that was observed. It has no addresses, and names only if the
//! operator wants them. The file is JSON. A change of what a field means, or of which there are, counts
//! [`VERSION`] up: old files are then refused.

use crate::Histogram;
use crate::checksum::{Seal, check, seal};
use serde::{Deserialize, Serialize};
use std::fmt;

/// Of the file's format.
pub const VERSION: u64 = 1;
/// What the file says that it is.
const FORMAT: &str = "microslice profile";
/// Largest file that is read: 512 VMs that are there, and as many that have gone, are less than 4 MiB.
pub const SIZE_MAX: usize = 16 << 20;
/// As `observe` has room for (bpf/core/intf.h), those that have gone included.
const VMS_MAX: usize = 1024;
const VCPUS_MAX: u64 = 4096;
const PCPUS_MAX: u32 = 1024;
/// As cgroups have it.
const WEIGHT_MAX: u32 = 10_000;
const NAME_BYTES_MAX: usize = 256;
/// A year, which is what `observe --for` allows.
const SECONDS_MAX: f64 = 366.0 * 24.0 * 3600.0;
/// By how much a vCPU's states may add up to more than the time that it was seen: they are read one after the
/// other.
const TOLERANCE: f64 = 1.05;
/// Shorter than anything that is counted takes: an exit, a switch, an interrupt.
const EVENT_NS_MIN: u64 = 100;

/// Of one host, over one span of time.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    /// "microslice profile".
    pub format: String,
    /// [`VERSION`].
    pub version: u64,
    /// How long it was observed.
    pub seconds: f64,
    pub host: HostProfile,
    pub vms: Vec<VmProfile>,
}

/// Where the VMs ran.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HostProfile {
    /// pCPUs that were online.
    pub pcpus: u32,
    /// pCPUs that share a last-level cache; 0: all of them, or the host doesn't show it.
    pub llc_pcpus: u32,
    /// Hardware threads of a core that are in use.
    pub smt_threads: u32,
    /// The scheduler: [`Self::KERNEL`], or the name of a sched_ext scheduler.
    pub scheduler: String,
    /// `base_slice_ns` of the kernel's own scheduler; none where nobody could read it.
    pub base_slice_ns: Option<u64>,
    /// Interrupts could be seen: else counts and waits of them are 0 because nobody looked.
    pub sees_interrupts: bool,
}

impl HostProfile {
    /// The kernel's own scheduler.
    pub const KERNEL: &str = "kernel";
    /// `microslice run`, as sched_ext calls it.
    pub const MICROSLICE: &str = "microslice";
}

/// One VM: sums over its vCPUs, since each of them was seen first.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VmProfile {
    /// None if the operator wanted none.
    pub name: Option<String>,
    /// vCPUs that have run.
    pub vcpus: u32,
    /// By which it shares the host, as `cpu.weight`.
    pub weight: u32,
    /// pCPUs where it may run, numbered from 0 over those that were online; empty: all.
    pub affinity: Vec<u32>,
    /// Of its guest's kernel.
    pub kernel: Option<String>,
    /// What its guest was doing is known: else `turns_ended` are all of class `unknown`.
    pub classes_are_known: bool,
    /// How long its vCPUs were seen, all together.
    pub observed_ns: u64,
    pub ran_ns: u64,
    /// Runnable, without a pCPU.
    pub ready_ns: u64,
    /// Waits for a pCPU that are over: after a turn that the host ended, or after a sleep.
    pub waits: Waits,
    /// Turns that ended while the vCPU could have gone on, by what its guest was doing.
    pub turns_ended: Classes,
    /// Pause-loop exits.
    pub pause_exits: u64,
    /// Hypercalls by which a guest yields to a sibling that it waits for.
    pub directed_yields: u64,
    /// Halts with interrupts disabled: in a paravirtual lock.
    pub lock_halts: u64,
    /// Sent to its vCPUs.
    pub interrupts: Interrupts,
    /// Calls of siblings of which one had no pCPU: from the first interrupt until the last recipient has one.
    pub shootdowns: Waits,
}

/// By the policy's classes of guest code (`policy/types.h`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Classes {
    pub unknown: u64,
    pub user: u64,
    pub kernel_other: u64,
    pub lock_holder: u64,
    pub lock_waiter: u64,
    pub tlb_shootdown: u64,
    pub resched_ipi: u64,
    pub irq_handler: u64,
    pub idle: u64,
}

impl Classes {
    /// From counts in the order of the policy's classes.
    pub fn of(
        [
            unknown,
            user,
            kernel_other,
            lock_holder,
            lock_waiter,
            tlb_shootdown,
            resched_ipi,
            irq_handler,
            idle,
        ]: [u64; 9],
    ) -> Self {
        Self {
            unknown,
            user,
            kernel_other,
            lock_holder,
            lock_waiter,
            tlb_shootdown,
            resched_ipi,
            irq_handler,
            idle,
        }
    }

    fn all(&self) -> [u64; 9] {
        let Self {
            unknown,
            user,
            kernel_other,
            lock_holder,
            lock_waiter,
            tlb_shootdown,
            resched_ipi,
            irq_handler,
            idle,
        } = *self;
        [unknown, user, kernel_other, lock_holder, lock_waiter, tlb_shootdown, resched_ipi, irq_handler, idle]
    }

    pub fn total(&self) -> u64 {
        self.all().into_iter().fold(0, u64::saturating_add)
    }

    /// Part of them all that `count` is; 0 without any.
    pub fn share(&self, count: u64) -> f64 {
        count as f64 / self.total().max(1) as f64
    }
}

/// By kind (`policy/types.h`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Interrupts {
    pub other: Interrupt,
    pub reschedule: Interrupt,
    pub call_function: Interrupt,
    pub virq: Interrupt,
    pub timer: Interrupt,
}

impl Interrupts {
    /// From those in the order of the policy's kinds.
    pub fn of([other, reschedule, call_function, virq, timer]: [Interrupt; 5]) -> Self {
        Self { other, reschedule, call_function, virq, timer }
    }
}

/// Of one kind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Interrupt {
    /// To all vCPUs together.
    pub sent: u64,
    /// Of those whose vCPU had no pCPU: until it had one. Several of a kind that wait for one vCPU are one.
    pub waits: Waits,
}

/// How long something waited.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Waits {
    pub count: u64,
    pub total_ns: u64,
    pub p50_ns: u64,
    pub p99_ns: u64,
    pub max_ns: u64,
}

impl From<&Histogram> for Waits {
    fn from(histogram: &Histogram) -> Self {
        let percentile = |percent| histogram.percentile(percent).unwrap_or(0);
        Self {
            count: histogram.count(),
            total_ns: u64::try_from(histogram.sum()).unwrap_or(u64::MAX),
            p50_ns: percentile(50.0),
            p99_ns: percentile(99.0),
            max_ns: histogram.max().unwrap_or(0),
        }
    }
}

impl VmProfile {
    /// How often it was woken: every other wait follows a turn that the host ended.
    pub fn wakeups(&self) -> u64 {
        self.waits.count.saturating_sub(self.turns_ended.total())
    }

    /// How long its vCPUs slept, all together.
    pub fn asleep_ns(&self) -> u64 {
        self.observed_ns.saturating_sub(self.ran_ns).saturating_sub(self.ready_ns)
    }

    /// Part of the observed time.
    pub fn share(&self, ns: u64) -> f64 {
        ns as f64 / self.observed_ns.max(1) as f64
    }
}

/// Why a profile isn't read: the place, where there is one, and the cause.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProfileError(String);

impl fmt::Display for ProfileError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}

impl std::error::Error for ProfileError {}

impl Profile {
    pub fn new(seconds: f64, host: HostProfile, vms: Vec<VmProfile>) -> Self {
        Self { format: FORMAT.into(), version: VERSION, seconds, host, vms }
    }

    /// The same without what could tell whose VMs they are.
    #[must_use]
    pub fn without_names(mut self) -> Self {
        for vm in &mut self.vms {
            (vm.name, vm.kernel) = (None, None);
        }
        self
    }

    /// As it stands in a file.
    pub fn to_text(&self) -> String {
        // Structs of numbers and texts always have a JSON.
        seal(&serde_json::to_string_pretty(self).unwrap_or_default(), b"")
    }

    /// Reads a file's text. `file` is how errors call it.
    ///
    /// # Errors
    /// `FILE:LINE:COLUMN: cause` where it isn't JSON or lacks something; `FILE: cause` for another version,
    /// and for what can't be.
    pub fn parse(file: &str, text: &str) -> Result<Self, ProfileError> {
        let refuse = |cause: String| ProfileError(format!("{file}: {cause}"));
        if text.len() > SIZE_MAX {
            return Err(refuse(format!("larger than {} MiB, the limit for a profile", SIZE_MAX >> 20)));
        }
        let at_its_place = |error: serde_json::Error| {
            let place = format!(" at line {} column {}", error.line(), error.column());
            let cause = error.to_string().replace(&place, "");
            ProfileError(format!("{file}:{}:{}: {cause}", error.line(), error.column()))
        };
        // Who changes a file by hand takes the checksum out.
        let text = match check(text.as_bytes(), b"") {
            Seal::Whole(body) => String::from_utf8_lossy(body) + "}",
            Seal::Missing => text.into(),
            Seal::Broken => {
                let cause = "damaged: its checksum doesn't match (after a change by hand take out `crc32`)";
                return Err(refuse(cause.into()));
            }
        };
        // First the version: of another one everything else may be different.
        let head: Head = serde_json::from_str(&text).map_err(at_its_place)?;
        if head.format.as_deref() != Some(FORMAT) {
            return Err(refuse("not a profile: `microslice observe --profile FILE` writes one".into()));
        }
        match head.version {
            Some(VERSION) => {}
            Some(other) => {
                return Err(refuse(format!(
                    "a profile of version {other}; this program reads version {VERSION}"
                )));
            }
            None => {
                return Err(refuse(format!(
                    "a profile without a version; this program reads version {VERSION}"
                )));
            }
        }
        let profile: Self = serde_json::from_str(&text).map_err(at_its_place)?;
        profile.check().map_err(refuse)?;
        Ok(profile)
    }

    /// What no host can have shown.
    fn check(&self) -> Result<(), String> {
        within("seconds", self.seconds, 0.0, SECONDS_MAX)?;
        let HostProfile { pcpus, llc_pcpus, smt_threads, base_slice_ns, .. } = self.host;
        within("host.pcpus", pcpus, 1, PCPUS_MAX)?;
        within("host.llc_pcpus", llc_pcpus, 0, pcpus)?;
        within("host.smt_threads", smt_threads, 1, 8)?;
        within("host.base_slice_ns", base_slice_ns.unwrap_or(1_000), 1_000, 60_000_000_000)?;
        if self.vms.is_empty() {
            return Err("no VM was observed".into());
        }
        within("the number of VMs", self.vms.len(), 1, VMS_MAX)?;
        within(
            "the number of vCPUs",
            self.vms.iter().map(|vm| u64::from(vm.vcpus)).sum::<u64>(),
            1,
            VCPUS_MAX,
        )?;
        self.vms.iter().enumerate().try_for_each(|(at, vm)| {
            vm.check(pcpus, self.seconds).map_err(|cause| format!("vms[{at}].{cause}"))
        })
    }
}

/// What every version has.
#[derive(Deserialize)]
#[serde(expecting = "a profile, which is a JSON object")]
struct Head {
    format: Option<String>,
    version: Option<u64>,
}

impl VmProfile {
    fn check(&self, pcpus: u32, seconds: f64) -> Result<(), String> {
        within("vcpus", u64::from(self.vcpus), 1, VCPUS_MAX)?;
        within("weight", self.weight, 1, WEIGHT_MAX)?;
        if let Some(pcpu) = self.affinity.iter().find(|&&pcpu| pcpu >= pcpus) {
            return Err(format!("affinity: {pcpu}, on a host with {pcpus} pCPUs"));
        }
        let mut sorted = self.affinity.clone();
        sorted.sort_unstable();
        if sorted.windows(2).any(|pair| pair[0] == pair[1]) {
            return Err("affinity: a pCPU twice".into());
        }
        for (key, text) in [("name", &self.name), ("kernel", &self.kernel)] {
            within(&format!("the length of {key}"), text.as_ref().map_or(0, String::len), 0, NAME_BYTES_MAX)?;
        }
        let most_ns = (seconds * TOLERANCE + 1.0) * 1e9 * f64::from(self.vcpus);
        within("observed_ns", self.observed_ns, 0, most_ns as u64)?;
        let used_ns = self.ran_ns as f64 + self.ready_ns as f64;
        within("ran_ns and ready_ns together", used_ns, 0.0, self.observed_ns as f64 * TOLERANCE)?;
        self.check_counts()
    }

    /// What takes a vCPU some time each time can't be counted as often as one likes.
    fn check_counts(&self) -> Result<(), String> {
        let most = self.observed_ns / EVENT_NS_MIN + 1;
        let Self { pause_exits, directed_yields, lock_halts, .. } = *self;
        for (key, count) in [
            ("turns_ended, all together", self.turns_ended.total()),
            ("pause_exits", pause_exits),
            ("directed_yields", directed_yields),
            ("lock_halts", lock_halts),
        ] {
            within(key, count, 0, most)?;
        }
        let Interrupts { other, reschedule, call_function, virq, timer } = self.interrupts;
        for (key, kind) in [
            ("other", other),
            ("reschedule", reschedule),
            ("call_function", call_function),
            ("virq", virq),
            ("timer", timer),
        ] {
            // One that is sent may have many recipients.
            let most_sent = most.saturating_mul(u64::from(self.vcpus));
            within(&format!("interrupts.{key}.sent"), kind.sent, 0, most_sent)?;
            self.check_waits(&format!("interrupts.{key}.waits"), &kind.waits)?;
        }
        self.check_waits("waits", &self.waits)?;
        self.check_waits("shootdowns", &self.shootdowns)
    }

    fn check_waits(&self, key: &str, waits: &Waits) -> Result<(), String> {
        let Waits { count, total_ns, p50_ns, p99_ns, max_ns } = *waits;
        // Each vCPU may wait for each of the others. Percentiles are as exact as a histogram.
        let most_ns = self.observed_ns.saturating_mul(2);
        let most_total_ns = most_ns.saturating_mul(u64::from(self.vcpus));
        within(&format!("{key}.count"), count, 0, self.observed_ns / EVENT_NS_MIN + 1)?;
        within(&format!("{key}.total_ns"), total_ns, 0, most_total_ns)?;
        for (percentile, ns) in [("p50_ns", p50_ns), ("p99_ns", p99_ns), ("max_ns", max_ns)] {
            within(&format!("{key}.{percentile}"), ns, 0, most_ns)?;
        }
        Ok(())
    }
}

fn within<T: PartialOrd + fmt::Display>(what: &str, value: T, least: T, most: T) -> Result<(), String> {
    // Neither holds for a NaN.
    if value >= least && value <= most {
        Ok(())
    } else {
        Err(format!("{what}: {value}; allowed: {least} to {most}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn profile() -> Profile {
        let waits = Waits {
            count: 40,
            total_ns: 80_000_000,
            p50_ns: 1_900_000,
            p99_ns: 4_000_000,
            max_ns: 4_100_000,
        };
        let vm = VmProfile {
            name: Some("web".into()),
            vcpus: 2,
            weight: 100,
            affinity: vec![0, 1],
            kernel: Some("6.18".into()),
            classes_are_known: true,
            observed_ns: 2_000_000_000,
            ran_ns: 900_000_000,
            ready_ns: 80_000_000,
            waits,
            turns_ended: Classes { user: 20, tlb_shootdown: 5, ..Classes::default() },
            interrupts: Interrupts { call_function: Interrupt { sent: 300, waits }, ..Interrupts::default() },
            shootdowns: waits,
            ..VmProfile::default()
        };
        let host = HostProfile {
            pcpus: 4,
            llc_pcpus: 0,
            smt_threads: 1,
            scheduler: "kernel".into(),
            base_slice_ns: Some(2_800_000),
            sees_interrupts: true,
        };
        Profile::new(1.0, host, vec![vm])
    }

    fn refused(change: impl Fn(&mut Profile)) -> String {
        let mut wrong = profile();
        change(&mut wrong);
        Profile::parse("p.json", &wrong.to_text()).expect_err("it can't be").to_string()
    }

    #[test]
    fn what_is_written_is_read_again() {
        assert_eq!(Profile::parse("p.json", &profile().to_text()), Ok(profile()));
        let nameless = profile().without_names();
        assert!(!nameless.to_text().contains("web"));
        assert_eq!(Profile::parse("p.json", &nameless.to_text()), Ok(nameless));
    }

    #[test]
    fn sleeps_follow_from_what_was_counted() {
        let vm = &profile().vms[0];
        assert_eq!((vm.wakeups(), vm.asleep_ns()), (15, 1_020_000_000));
        assert_eq!(vm.turns_ended.share(5), 0.2);
    }

    #[test]
    fn another_version_is_refused_before_anything_else_is_looked_at() {
        let text = r#"{"format": "microslice profile", "version": 2, "machines": []}"#;
        let error = Profile::parse("p.json", text).expect_err("newer");
        assert_eq!(error.to_string(), "p.json: a profile of version 2; this program reads version 1");
        let error = Profile::parse("p.json", r#"{"version": 1}"#).expect_err("no profile");
        assert!(error.to_string().starts_with("p.json: not a profile: "), "{error}");
    }

    #[test]
    fn a_damaged_file_is_refused_with_its_line_and_column() {
        let text = profile().to_text();
        let error = Profile::parse("p.json", &text[..text.len() / 2]).expect_err("half of it").to_string();
        let mut parts = error.splitn(4, ':');
        assert_eq!(parts.next(), Some("p.json"));
        assert!(
            parts.by_ref().take(2).all(|number| number.parse::<u32>().is_ok_and(|number| number > 0)),
            "{error}"
        );
        assert!(!error.contains('\n') && !error.contains("at line"), "{error}");
        let other = text.replace("\"ran_ns\"", "\"ran\"");
        let error = Profile::parse("p.json", &other).expect_err("damaged").to_string();
        assert!(error.starts_with("p.json: damaged: its checksum doesn't match"), "{error}");
        let (by_hand, _) = other.split_once(",\n  \"crc32\"").expect("a checksum");
        let error = Profile::parse("p.json", &format!("{by_hand}}}")).expect_err("unknown key").to_string();
        assert!(error.contains("unknown field `ran`"), "{error}");
        let by_hand = by_hand.replace("\"ran\"", "\"ran_ns\"");
        assert_eq!(Profile::parse("p.json", &format!("{by_hand}}}")), Ok(profile()));
    }

    #[test]
    fn what_no_host_can_have_shown_is_refused_with_its_place() {
        assert_eq!(refused(|wrong| wrong.vms.clear()), "p.json: no VM was observed");
        assert_eq!(
            refused(|wrong| wrong.vms[0].vcpus = 0),
            "p.json: the number of vCPUs: 0; allowed: 1 to 4096"
        );
        assert_eq!(refused(|wrong| wrong.vms[0].weight = 0), "p.json: vms[0].weight: 0; allowed: 1 to 10000");
        assert_eq!(
            refused(|wrong| wrong.vms[0].affinity.push(4)),
            "p.json: vms[0].affinity: 4, on a host with 4 pCPUs"
        );
        assert!(
            refused(|wrong| wrong.vms[0].ran_ns = u64::MAX)
                .starts_with("p.json: vms[0].ran_ns and ready_ns together: ")
        );
        type Count = fn(&mut VmProfile) -> &mut u64;
        let counts: [(Count, &str); 7] = [
            (|vm| &mut vm.turns_ended.user, "turns_ended, all together"),
            (|vm| &mut vm.pause_exits, "pause_exits"),
            (|vm| &mut vm.interrupts.virq.sent, "interrupts.virq.sent"),
            (|vm| &mut vm.interrupts.timer.waits.count, "interrupts.timer.waits.count"),
            (|vm| &mut vm.waits.total_ns, "waits.total_ns"),
            (|vm| &mut vm.shootdowns.max_ns, "shootdowns.max_ns"),
            (|vm| &mut vm.observed_ns, "observed_ns"),
        ];
        for (count, key) in counts {
            for many in [u64::MAX, 20_000_000_000] {
                let error = refused(|wrong| *count(&mut wrong.vms[0]) = many);
                assert!(error.starts_with(&format!("p.json: vms[0].{key}: ")), "{error}");
            }
        }
        assert!(refused(|wrong| wrong.host.llc_pcpus = 5).contains("host.llc_pcpus: 5; allowed: 0 to 4"));
        assert!(
            refused(|wrong| wrong.vms[0].name = Some("x".repeat(300))).contains("the length of name: 300")
        );
    }

    proptest! {
        #[test]
        fn no_text_panics(text in "\\PC{0,200}") {
            let _ = Profile::parse("p.json", &text);
        }

        #[test]
        fn no_damage_panics(at in 0usize..4000, byte in any::<u8>()) {
            let mut bytes = profile().to_text().into_bytes();
            let at = at % bytes.len();
            bytes[at] = byte;
            if let Ok(text) = String::from_utf8(bytes)
                && let Ok(read) = Profile::parse("p.json", &text)
            {
                prop_assert_eq!(Profile::parse("p.json", &read.to_text()), Ok(read));
            }
        }
    }
}
