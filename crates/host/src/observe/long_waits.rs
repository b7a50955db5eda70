//! Each VM's longest wait: when it began, how long it was, and who had the pCPU meanwhile.
//!
//! Problem.   The longest wait of an interval isn't the difference of two sums, and who ran is known only
//!            when it ends.
//! Mechanism. The BPF side keeps each vCPU's longest wait since the last look. Of each VM they are kept here
//!            as stairs: one that is longer than those before removes them. So the longest of any time up to
//!            now is the first that ended in it.
//! Limits.    Waits below 1 ms aren't told. Who runs is known of the pCPU where the wait began, and of its
//!            last turns (`bpf/observe.bpf.c`). Of a wait that isn't over it isn't known.

use crate::interface::{
    LONG_WAIT_NS, LongWait, RUNNER_GENERATION_MASK, RUNNER_GENERATION_SHIFT, RUNNER_IS_VM,
};
use crate::machine::cgroup_names::CgroupNames;
use crate::machine::cgroups;
use crate::machine::clock::{monotonic_ns, real_time_ns};
use crate::observe::VmSeen;
use crate::output::monitoring::LongWaitView;
use jiff::Timestamp;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Steps that are kept of a VM.
const STAIRS_MAX: usize = 32;
/// How long a wait is one of the last ones: whoever looks once a minute misses none.
const LATELY_NS: u64 = 60_000_000_000;
/// From which length on a wait is felt, and by what. RCU's is Linux's default (`RCU_CPU_STALL_TIMEOUT`,
/// `kernel/rcu/Kconfig.debug`).
const FELT: [(u64, &str, &str); 4] = [
    (21_000_000_000, "rcu", "its kernel may report that RCU stalls"),
    (100_000_000, "heartbeats", "heartbeats come late"),
    (25_000_000, "consoles", "consoles stutter"),
    (10_000_000, "tlb", "siblings that flush their TLBs stand still"),
];

/// Whoever had a pCPU while a vCPU waited for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Runner {
    /// The pCPU was idle: a limit kept the vCPU from it, or it waited elsewhere by then.
    Nobody,
    /// Other vCPUs of the same VM.
    Siblings,
    /// Another VM's vCPUs.
    Vm(String),
    /// Tasks of a cgroup, and the name of one of them. The folder is empty for the root; `None`: it has gone.
    Cgroup(Option<PathBuf>, String),
}

impl Runner {
    fn words(&self) -> String {
        match self {
            Self::Nobody => "nobody".into(),
            Self::Siblings => "its own vCPUs".into(),
            Self::Vm(name) => name.clone(),
            Self::Cgroup(folder, task) => match folder.as_deref().filter(|path| *path != Path::new("")) {
                Some(folder) => format!("{} ({task})", folder.display()),
                None => task.clone(),
            },
        }
    }

    fn to_json(&self) -> Value {
        match self {
            Self::Nobody => json!({"kind": "nobody"}),
            Self::Siblings => json!({"kind": "siblings"}),
            Self::Vm(name) => json!({"kind": "vm", "name": name}),
            Self::Cgroup(folder, task) => json!({"kind": "cgroup", "name": folder, "task": task}),
        }
    }
}

/// The longest wait of a VM's vCPUs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LongestWait {
    /// As its VMM numbers it.
    pub vcpu: u32,
    /// When it began, by the monotonic clock.
    pub since_ns: u64,
    /// When that was, since 1970.
    pub began_ns: u64,
    pub length_ns: u64,
    /// Where it began and who ran there most, and for how long; `None` while it lasts.
    pub behind: Option<(u32, Runner, u64)>,
}

impl LongestWait {
    fn end_ns(&self) -> u64 {
        self.since_ns.saturating_add(self.length_ns)
    }

    fn felt(&self) -> Option<&(u64, &'static str, &'static str)> {
        FELT.iter().find(|(from_ns, _, _)| self.length_ns >= *from_ns)
    }

    fn began(&self) -> Timestamp {
        Timestamp::from_nanosecond(self.began_ns.into()).unwrap_or(Timestamp::MAX)
    }

    /// Returns when it began, in UTC.
    pub fn time(&self) -> String {
        self.began().strftime("%F %T UTC").to_string()
    }

    /// Returns who ran meanwhile, in words.
    pub fn runner(&self) -> String {
        let known = self.behind.as_ref().filter(|(_, _, ran_ns)| *ran_ns > 0);
        known.map_or_else(|| "-".into(), |(_, runner, _)| runner.words())
    }

    /// Says what an operator should hear of it, if it is long enough to be felt.
    pub fn judgement(&self) -> Option<String> {
        let (_, _, felt) = self.felt()?;
        let (length, time) = (shown(self.length_ns), self.time());
        Some(match &self.behind {
            None => format!("vCPU {} has waited for {length}, since {time}: {felt}", self.vcpu),
            Some((pcpu, _, ran_ns)) if *ran_ns > 0 => format!(
                "its longest wait was {length} at {time}, while {} had pCPU {pcpu} for {} of it: {felt}",
                self.runner(),
                shown(*ran_ns)
            ),
            Some(_) => format!("its longest wait was {length} at {time}: {felt}"),
        })
    }

    pub fn to_json(&self) -> Value {
        let behind = self.behind.as_ref();
        json!({
            "vcpu": self.vcpu,
            "began_at": format!("{:.6}", self.began()),
            "length_ns": self.length_ns,
            "over": behind.is_some(),
            "pcpu": behind.map(|(pcpu, _, _)| pcpu),
            "runner": behind.filter(|(_, _, ran_ns)| *ran_ns > 0).map(|(_, runner, _)| runner.to_json()),
            "runner_ns": behind.map(|(_, _, ran_ns)| ran_ns),
            "felt_by": self.felt().map(|(_, name, _)| name),
        })
    }

    /// Returns what `microslice top` shows of it.
    pub(super) fn view(&self) -> LongWaitView {
        let ran_ns = self.behind.as_ref().map_or(0, |(_, _, ran_ns)| *ran_ns);
        LongWaitView { length_ns: self.length_ns, began: self.time(), runner: self.runner(), ran_ns }
    }
}

pub(super) fn shown(ns: u64) -> String {
    microslice_metrics::Unit::Nanoseconds.show(ns as f64)
}

/// A VM's long waits, as stairs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LongWaits {
    /// Those that are over, in the order of their ends: each is shorter than the one before.
    stairs: Vec<LongestWait>,
    /// The longest of those that aren't over.
    under_way: Option<LongestWait>,
    looked_ns: u64,
}

impl LongWaits {
    /// Returns the longest of all.
    pub fn longest(&self) -> Option<&LongestWait> {
        self.stairs.first().into_iter().chain(&self.under_way).max_by_key(|wait| wait.length_ns)
    }

    /// Returns the longest of those that weren't over a minute before the last look.
    pub fn lately(&self) -> Option<LongestWait> {
        let looked_ns = self.looked_ns.saturating_sub(LATELY_NS);
        self.since(&Self { looked_ns, ..Self::default() }).longest().cloned()
    }

    /// The VM has gone: nobody of it waits any more.
    pub fn end(&mut self) {
        self.under_way = None;
    }

    /// Returns those that weren't over at the last look of `before`.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        let mut since = self.clone();
        since.stairs.retain(|wait| wait.end_ns() > before.looked_ns);
        since
    }

    fn add(&mut self, wait: LongestWait) {
        self.stairs.retain(|old| old.length_ns > wait.length_ns);
        self.stairs.push(wait);
        if self.stairs.len() > STAIRS_MAX {
            self.stairs.remove(1);
        }
    }
}

/// Returns the name of the VM of this slot and generation, if it is there.
pub type NameVm<'n> = dyn Fn(u32, u32) -> Option<String> + 'n;

/// Keeps the long waits of VMs from look to look.
#[derive(Debug)]
pub struct LongWaitWatch {
    names: CgroupNames,
    /// By slot and generation.
    vms: BTreeMap<(u32, u32), LongWaits>,
}

impl LongWaitWatch {
    /// Watches this host.
    pub fn of_host() -> Self {
        Self { names: CgroupNames::below(Path::new(cgroups::MOUNT)), vms: BTreeMap::new() }
    }

    /// Puts into the figures of each VM its long waits until `now_ns`. VMs that aren't among these are
    /// forgotten.
    pub fn look<'f>(&mut self, vms: impl Iterator<Item = VmSeen<'f>>, name_vm: &NameVm<'_>, now_ns: u64) {
        let is_long = |length_ns: u64| length_ns >= LONG_WAIT_NS.into();
        let mut before = std::mem::take(&mut self.vms);
        let since_1970_ns = real_time_ns().saturating_sub(monotonic_ns());
        for VmSeen { key, figures, .. } in vms {
            let mut waits = before.remove(&key).unwrap_or_default();
            let mut new: Vec<(u32, LongWait)> =
                figures.vcpus.iter().map(|vcpu| (vcpu.id, vcpu.longest)).collect();
            let end_ns = |wait: &LongWait| wait.since_ns.saturating_add(wait.length_ns);
            new.retain(|(_, wait)| is_long(wait.length_ns) && end_ns(wait) > waits.looked_ns);
            new.sort_by_key(|(_, wait)| end_ns(wait));
            for (vcpu, wait) in new {
                let runner = self.runner(&wait, key, name_vm);
                waits.add(LongestWait {
                    vcpu,
                    since_ns: wait.since_ns,
                    began_ns: wait.since_ns.saturating_add(since_1970_ns),
                    length_ns: wait.length_ns,
                    behind: Some((wait.pcpu as u32, runner, wait.runner_ns)),
                });
            }
            let waiting = figures.vcpus.iter().filter(|vcpu| is_long(vcpu.waiting_ns));
            waits.under_way = waiting.max_by_key(|vcpu| vcpu.waiting_ns).map(|vcpu| {
                let since_ns = now_ns.saturating_sub(vcpu.waiting_ns);
                let (began_ns, length_ns) = (since_ns.saturating_add(since_1970_ns), vcpu.waiting_ns);
                LongestWait { vcpu: vcpu.id, since_ns, began_ns, length_ns, behind: None }
            });
            waits.looked_ns = now_ns;
            figures.long_waits = waits.clone();
            self.vms.insert(key, waits);
        }
    }

    fn runner(&mut self, wait: &LongWait, own: (u32, u32), name_vm: &NameVm<'_>) -> Runner {
        if wait.runner == 0 {
            return Runner::Nobody;
        }
        if wait.runner & RUNNER_IS_VM.cast_unsigned() == 0 {
            let folder = self.names.folder(wait.runner, Instant::now()).map(Path::to_owned);
            let name = wait.comm.iter().take_while(|&&byte| byte != 0).map(|&byte| byte as u8);
            return Runner::Cgroup(folder, String::from_utf8_lossy(&name.collect::<Vec<_>>()).into_owned());
        }
        let generation = (wait.runner >> RUNNER_GENERATION_SHIFT) as u32 & RUNNER_GENERATION_MASK;
        let slot = wait.runner as u32;
        if (slot, generation) == (own.0, own.1 & RUNNER_GENERATION_MASK) {
            return Runner::Siblings;
        }
        Runner::Vm(name_vm(slot, generation).unwrap_or_else(|| "a VM that has gone".into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::cgroups::tests::mount_with;
    use crate::observe::report::tests::report;
    use std::os::unix::fs::MetadataExt;
    use zerocopy::FromZeros;

    const MS: u64 = 1_000_000;

    fn wait(end_ms: u64, length_ms: u64) -> LongestWait {
        LongestWait {
            vcpu: 2,
            since_ns: (end_ms - length_ms) * MS,
            began_ns: 1_798_805_384_000_042_000,
            length_ns: length_ms * MS,
            behind: Some((3, Runner::Vm("b".into()), length_ms * MS / 2)),
        }
    }

    #[test]
    fn the_longest_since_any_look_is_kept() {
        let mut waits = LongWaits::default();
        for (end, length) in [(100, 30), (200, 90), (300, 20), (400, 40), (500, 10)] {
            waits.add(wait(end, length));
        }
        let since = |looked| {
            let before = LongWaits { looked_ns: looked * MS, ..LongWaits::default() };
            waits.since(&before).longest().map(|wait| wait.length_ns / MS)
        };
        assert_eq!([0, 200, 400, 500].map(since), [Some(90), Some(40), Some(10), None]);
        let many = (0..1_000).map(|at| wait(2_000 + at, 1_999 - at));
        many.for_each(|wait| waits.add(wait));
        assert_eq!((waits.stairs.len(), waits.longest().unwrap().length_ns), (STAIRS_MAX, 1_999 * MS));
    }

    #[test]
    fn the_longest_lately_is_of_the_last_minute() {
        let mut waits = LongWaits::default();
        for (end, length) in [(1_000, 90), (30_000, 40), (50_000, 10)] {
            waits.add(wait(end, length));
        }
        let mut lately = |looked_ms| {
            waits.looked_ns = looked_ms * MS;
            waits.lately().map(|wait| wait.length_ns / MS)
        };
        let expected = [Some(90), Some(40), Some(10), None];
        assert_eq!([60_000, 61_000, 90_000, 110_000].map(&mut lately), expected);
        waits.under_way = Some(LongestWait { behind: None, ..wait(110_000, 20) });
        assert_eq!(waits.lately().unwrap().view().runner, "-", "it lasts");
    }

    #[test]
    fn a_wait_is_judged_by_who_feels_it() {
        let judged = |ms| wait(50_000, ms).judgement();
        assert_eq!(judged(9), None);
        assert_eq!(
            judged(130).unwrap(),
            "its longest wait was 130 ms at 2027-01-01 12:09:44 UTC, while b had pCPU 3 for 65 ms of it: \
             heartbeats come late"
        );
        assert_eq!(wait(50_000, 130).to_json()["began_at"], "2027-01-01T12:09:44.000042Z");
        for (ms, felt) in [(10, "TLBs stand still"), (25, "consoles stutter"), (22_000, "RCU stalls")] {
            assert!(judged(ms).unwrap().ends_with(felt), "{ms}");
        }
        let lasts = LongestWait { behind: None, ..wait(500, 130) };
        assert_eq!(
            lasts.judgement().unwrap(),
            "vCPU 2 has waited for 130 ms, since 2027-01-01 12:09:44 UTC: heartbeats come late"
        );
        assert_eq!(
            (&lasts.to_json()["over"], &lasts.to_json()["felt_by"]),
            (&json!(false), &json!("heartbeats"))
        );
    }

    fn looked(watch: &mut LongWaitWatch, runner: u64, length_ms: u64, now_ms: u64) -> LongWaits {
        let mut figures = report(true).vms.remove(0).figures;
        let mut longest = LongWait { length_ns: length_ms * MS, runner, ..LongWait::new_zeroed() };
        (longest.since_ns, longest.runner_ns) = ((now_ms - length_ms) * MS, MS);
        longest.comm[..2].copy_from_slice(&[b'r' as _, b'z' as _]);
        figures.vcpus[0].longest = longest;
        let name_vm = |slot, _| Some(format!("vm{slot}"));
        let vm = VmSeen { key: (7, 1), pid: 70, figures: &mut figures };
        watch.look([vm].into_iter(), &name_vm, now_ms * MS);
        figures.long_waits
    }

    #[test]
    fn whoever_ran_meanwhile_has_a_name() {
        let mount = mount_with(&[("system.slice/backup/cpu.stat", "")]);
        let folder = std::fs::metadata(mount.path().join("system.slice/backup")).unwrap().ino();
        let root = std::fs::metadata(mount.path()).unwrap().ino();
        let mut watch = LongWaitWatch { names: CgroupNames::below(mount.path()), vms: BTreeMap::new() };
        let vm = |slot: u64| RUNNER_IS_VM.cast_unsigned() | 1 << RUNNER_GENERATION_SHIFT | slot;
        let cases = [(0, "nobody"), (vm(7), "its own vCPUs"), (vm(9), "vm9"), (root, "rz")];
        for (at, (runner, name)) in (1..).zip(cases.into_iter().chain([(folder, "system.slice/backup (rz)")]))
        {
            let waits = looked(&mut watch, runner, 20 + at, 1_000 * at);
            assert_eq!(waits.longest().unwrap().runner(), name);
        }
        let mut figures = report(true).vms.remove(0).figures;
        figures.vcpus[0].waiting_ns = 40 * MS;
        let vm = VmSeen { key: (7, 1), pid: 70, figures: &mut figures };
        watch.look([vm].into_iter(), &|_, _| None, 3_900 * MS);
        let longest = figures.long_waits.longest().unwrap();
        assert_eq!((longest.length_ns, longest.since_ns), (40 * MS, 3_860 * MS), "it lasts");
        assert_eq!(longest.behind, None);
        figures.long_waits.end();
        assert_eq!(figures.long_waits.longest().unwrap().length_ns, 25 * MS, "of a VM that has gone");
        let same = looked(&mut watch, 0, 5, 4_000);
        assert_eq!(same.longest().unwrap().length_ns, 25 * MS, "one that was seen before isn't a new one");
    }
}
