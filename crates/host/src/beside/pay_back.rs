//! Pay back: what VMs had by boosts is taken from what their cgroups have by weight (`policy/pay_back.h`).
//!
//! Problem.   The kernel charges real-time turns to no cgroup's share.
//! Mechanism. Once a second each cgroup that a boosted VM lies in, up to the root, is looked at: what its VMs
//!            had by boosts, and what it used. Its weight becomes what the policy says. The operator's stays
//!            in the ledger (`weight_ledger.rs`) until it is there again.
//! Races.     A weight that isn't the one that was written last is somebody else's: it stays, and is the one
//!            to give back from now on. One that is written between a look and our writing is lost.
//! Limits.    VMs in a cgroup without the cpu controller, or in the root alone, pay nothing back: there is no
//!            weight of theirs. So do those in a cgroup that this process may not write to; the ones around
//!            it pay.

use crate::beside::weight_ledger::{self, Lent};
use crate::machine::cgroups::{self, CpuController};
use microslice_policy::{PAY_BACK_PERIOD_NS, PayBackObservation, decide_on_pay_back};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// A VM, and what it had by boosts since its start.
#[derive(Debug, Clone)]
pub struct Boosted {
    /// Slot and generation.
    pub vm: (u32, u32),
    pub pid: u32,
    /// Of its vCPUs.
    pub threads: Vec<u32>,
    pub boosted_ns: u64,
}

/// What is owed by a cgroup.
#[derive(Debug)]
struct Account {
    inode: u64,
    /// The operator's weight, and the one that is in force.
    weight: u32,
    weight_now: u32,
    /// At the look before; `None`: this is its first.
    used_ns: Option<u64>,
    /// Boosts since then.
    boosted_ns: u64,
    owed_ns: u64,
    is_said: bool,
}

/// Counts for reports.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PaidBack {
    /// Cgroups whose weight is lowered now.
    pub lowered: usize,
    pub owed_ns: u64,
    /// Weights that somebody else wrote meanwhile.
    pub by_others: u64,
}

impl PaidBack {
    pub fn to_json(self) -> Value {
        json!({
            "lowered_weights": self.lowered,
            "owed_ns": self.owed_ns,
            "weights_by_others": self.by_others,
        })
    }

    pub fn line(self) -> String {
        let Self { lowered, owed_ns, by_others } = self;
        format!(
            "paid back       {lowered} weights are lowered, {:.1} ms are owed; others wrote {by_others}\n",
            owed_ns as f64 / 1e6
        )
    }
}

pub struct PayBack {
    controller: CpuController,
    ledger: PathBuf,
    looked: Instant,
    boosted_ns: BTreeMap<(u32, u32), u64>,
    /// By folder, relative to the hierarchy's root.
    accounts: BTreeMap<PathBuf, Account>,
    by_others: u64,
    is_refusal_said: bool,
}

impl PayBack {
    pub fn new(controller: CpuController, ledger: PathBuf) -> Self {
        Self {
            controller,
            ledger,
            looked: Instant::now(),
            boosted_ns: BTreeMap::new(),
            accounts: BTreeMap::new(),
            by_others: 0,
            is_refusal_said: false,
        }
    }

    pub fn is_due(&self) -> bool {
        self.looked.elapsed() >= Duration::from_nanos(PAY_BACK_PERIOD_NS.into())
    }

    pub fn counts(&self) -> PaidBack {
        PaidBack {
            lowered: self.accounts.values().filter(|account| account.weight_now < account.weight).count(),
            owed_ns: self.accounts.values().map(|account| account.owed_ns).sum(),
            by_others: self.by_others,
        }
    }

    /// Looks at the cgroups of these VMs, which are all that there are.
    pub fn look(&mut self, vms: &[Boosted], say: &mut dyn FnMut(&str)) {
        self.looked = Instant::now();
        let mut inhabited = BTreeSet::new();
        let mut before = std::mem::take(&mut self.boosted_ns);
        for vm in vms {
            let was_ns = before.remove(&vm.vm).unwrap_or(0);
            self.boosted_ns.insert(vm.vm, vm.boosted_ns);
            // VMs that were never boosted cost nothing.
            if vm.boosted_ns == 0 {
                continue;
            }
            for folder in self.controller.groups_of(vm.pid, &vm.threads) {
                self.owes(&folder, vm.boosted_ns.saturating_sub(was_ns));
                inhabited.insert(folder);
            }
        }
        // Those that have gone by themselves leave the ledger, too.
        let before = self.accounts.len();
        self.settle_accounts(say);
        let controller = &self.controller;
        self.accounts.retain(|folder, account| {
            let stays = inhabited.contains(folder);
            if !stays {
                weight_ledger::give_back(&controller.weight_file(folder), &account.lent(account.weight_now));
            }
            stays
        });
        if self.accounts.len() < before {
            self.note_lowered(say);
        }
    }

    /// A VM in this cgroup had so much by boosts.
    fn owes(&mut self, folder: &Path, boosted_ns: u64) {
        if let Some(account) = self.accounts.get_mut(folder) {
            account.boosted_ns += boosted_ns;
            return;
        }
        let file = self.controller.weight_file(folder);
        // One that an earlier start couldn't give back isn't the operator's.
        if !weight_ledger::still_lent(&self.ledger).is_ok_and(|lent| !lent.contains_key(&file)) {
            return;
        }
        let (Ok(metadata), Ok(weight)) = (std::fs::metadata(&file), weight_ledger::read(&file)) else {
            return;
        };
        let account = Account {
            inode: metadata.ino(),
            weight,
            weight_now: weight,
            used_ns: None,
            boosted_ns,
            owed_ns: 0,
            is_said: false,
        };
        self.accounts.insert(folder.to_owned(), account);
    }

    /// Every cgroup's weight becomes what the policy says.
    fn settle_accounts(&mut self, say: &mut dyn FnMut(&str)) {
        let mut next = BTreeMap::new();
        self.accounts.retain(|folder, account| {
            let file = self.controller.weight_file(folder);
            let (Ok(weight), Some(used_ns)) = (weight_ledger::read(&file), self.controller.used_ns(folder))
            else {
                // It has gone, or can't be read: then it owes nothing any more.
                weight_ledger::give_back(&file, &account.lent(account.weight_now));
                return false;
            };
            if weight != account.weight_now {
                self.by_others += 1;
                if !std::mem::replace(&mut account.is_said, true) {
                    let file = file.display();
                    say(&format!("{file}: somebody else wrote {weight}, which is what is given back now"));
                }
                (account.weight, account.weight_now) = (weight, weight);
            }
            let weight = match account.used_ns.replace(used_ns) {
                Some(before_ns) => account.pays(used_ns.saturating_sub(before_ns)),
                None => account.weight,
            };
            next.insert(folder.clone(), weight.max(self.controller.weight_least()).min(account.weight));
            true
        });
        let changes = |(folder, weight): &(PathBuf, u32)| self.accounts[folder].weight_now != *weight;
        let changes: Vec<_> =
            next.iter().map(|(folder, weight)| (folder.clone(), *weight)).filter(changes).collect();
        if changes.is_empty() {
            return;
        }
        // Before any weight is written.
        let lent = self
            .accounts
            .iter()
            .map(|(folder, account)| (self.controller.weight_file(folder), account.lent(next[folder])));
        if let Err(cause) = weight_ledger::replace(&self.ledger, &lent.collect()) {
            return self.say_refusal(&self.ledger.clone(), &cause, say);
        }
        for (folder, weight) in changes {
            let file = self.controller.weight_file(&folder);
            match weight_ledger::write(&file, weight) {
                Ok(()) => {
                    if let Some(account) = self.accounts.get_mut(&folder) {
                        account.weight_now = weight;
                    }
                }
                Err(cause) if cgroups::is_gone(&cause) => {}
                Err(cause) => self.say_refusal(&file, &cause, say),
            }
        }
        self.note_lowered(say);
    }

    /// Those that are lowered are in the ledger, and no others.
    fn note_lowered(&mut self, say: &mut dyn FnMut(&str)) {
        let lowered = self.accounts.iter().filter(|(_, account)| account.weight_now != account.weight);
        let lent = lowered
            .map(|(folder, account)| (self.controller.weight_file(folder), account.lent(account.weight_now)));
        if let Err(cause) = weight_ledger::replace(&self.ledger, &lent.collect()) {
            self.say_refusal(&self.ledger.clone(), &cause, say);
        }
    }

    fn say_refusal(&mut self, file: &Path, cause: &std::io::Error, say: &mut dyn FnMut(&str)) {
        if !std::mem::replace(&mut self.is_refusal_said, true) {
            say(&format!("{}: {cause}: what was had by boosts isn't paid back there", file.display()));
        }
    }
}

impl Drop for PayBack {
    /// Every weight is the operator's again.
    fn drop(&mut self) {
        for (folder, account) in &self.accounts {
            weight_ledger::give_back(&self.controller.weight_file(folder), &account.lent(account.weight_now));
        }
        weight_ledger::forget(&self.ledger);
    }
}

impl Account {
    /// Returns its weight until the next look; it used so much since the one before.
    fn pays(&mut self, ran_ns: u64) -> u32 {
        let decision = decide_on_pay_back(&PayBackObservation {
            owed_ns: self.owed_ns,
            boosted_ns: std::mem::take(&mut self.boosted_ns),
            ran_ns,
            weight: self.weight,
            weight_now: self.weight_now,
        });
        self.owed_ns = decision.owed_ns;
        decision.weight
    }

    fn lent(&self, next: u32) -> Lent {
        Lent { inode: self.inode, weight: self.weight, ours: [self.weight_now, next] }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::cgroups::tests::mount_with;

    /// A second in which a cgroup used so much, some of it by boosts.
    fn second(pay: &mut PayBack, mount: &Path, used_ms: &mut u64, boosted_ms: u64) -> Vec<String> {
        *used_ms += 1000;
        std::fs::write(mount.join("a/cpu.stat"), format!("usage_usec {}\n", *used_ms * 1000)).unwrap();
        let mut said = Vec::new();
        pay.owes(Path::new("a"), boosted_ms * 1_000_000);
        pay.settle_accounts(&mut |line| said.push(line.to_owned()));
        said
    }

    #[test]
    fn weights_are_lowered_given_back_and_left_to_others() {
        let mount = mount_with(&[("a/cpu.weight", "1000\n"), ("run/x", "")]);
        let (file, ledger) = (mount.path().join("a/cpu.weight"), mount.path().join("run/weights"));
        let mut pay = PayBack::new(CpuController::below(mount.path(), false), ledger.clone());
        let mut used_ms = 0;
        let weight = || weight_ledger::read(&file).unwrap();
        let mut pass = |pay: &mut PayBack, boosted_ms| second(pay, mount.path(), &mut used_ms, boosted_ms);
        pass(&mut pay, 0);
        assert_eq!(weight(), 1000, "nothing is known of it yet");
        pass(&mut pay, 200);
        assert_eq!((weight(), pay.counts().lowered), (800, 1));
        // Killed now, another one gives it back.
        assert_eq!((weight_ledger::settle(&ledger), weight()), (1, 1000));
        std::fs::write(&file, "800").unwrap();
        pass(&mut pay, 0);
        assert_eq!((weight(), pay.counts().owed_ns), (1000, 0), "it has paid");
        pass(&mut pay, 500);
        assert!(weight() < 1000);
        std::fs::write(&file, "300").unwrap();
        let said = pass(&mut pay, 500);
        assert!(said.len() == 1 && said[0].contains("somebody else wrote 300"), "{said:?}");
        assert!(weight() < 300 && pay.counts().by_others == 1);
        std::fs::write(&file, "200").unwrap();
        assert!(pass(&mut pay, 0).is_empty(), "it is said once");
        drop(pay);
        assert_eq!(weight(), 200);
        assert_eq!(weight_ledger::settle(&ledger), 0);
    }

    #[test]
    fn a_cgroup_that_cannot_be_read_has_its_weight_again() {
        let mount = mount_with(&[("a/cpu.weight", "1000\n"), ("run/x", "")]);
        let file = mount.path().join("a/cpu.weight");
        let ledger = mount.path().join("run/weights");
        let mut pay = PayBack::new(CpuController::below(mount.path(), false), ledger);
        let mut used_ms = 0;
        second(&mut pay, mount.path(), &mut used_ms, 0);
        second(&mut pay, mount.path(), &mut used_ms, 500);
        assert!(weight_ledger::read(&file).unwrap() < 1000);
        std::fs::remove_file(mount.path().join("a/cpu.stat")).unwrap();
        pay.settle_accounts(&mut |_| {});
        assert_eq!(weight_ledger::read(&file).unwrap(), 1000);
    }

    #[test]
    fn the_ledger_forgets_cgroups_that_are_gone() {
        let mount = mount_with(&[("a/cpu.weight", "1000\n"), ("run/x", "")]);
        let ledger = mount.path().join("run/weights");
        let mut pay = PayBack::new(CpuController::below(mount.path(), false), ledger.clone());
        let mut used_ms = 0;
        second(&mut pay, mount.path(), &mut used_ms, 0);
        second(&mut pay, mount.path(), &mut used_ms, 500);
        let entries = || std::fs::read_to_string(&ledger).map(|text| text.lines().count()).ok();
        assert_eq!(entries(), Some(1));
        std::fs::remove_dir_all(mount.path().join("a")).unwrap();
        pay.look(&[], &mut |_| {});
        assert_eq!(entries(), Some(0));
        drop(pay);
        assert_eq!(entries(), None, "nothing is lent any more");
    }

    #[test]
    fn without_a_ledger_no_weight_is_written() {
        let mount = mount_with(&[("a/cpu.weight", "1000\n")]);
        let controller = CpuController::below(mount.path(), false);
        let mut pay = PayBack::new(controller, mount.path().join("nowhere/weights"));
        let mut used_ms = 0;
        second(&mut pay, mount.path(), &mut used_ms, 0);
        let said = second(&mut pay, mount.path(), &mut used_ms, 500);
        assert!(said.len() == 1 && said[0].contains("isn't paid back"), "{said:?}");
        assert!(second(&mut pay, mount.path(), &mut used_ms, 500).is_empty(), "it is said once");
        assert_eq!(weight_ledger::read(&mount.path().join("a/cpu.weight")).unwrap(), 1000);
    }
}
