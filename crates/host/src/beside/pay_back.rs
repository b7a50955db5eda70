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
    used_ns: u64,
    /// Boosts since `used_ns` was read.
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
        let left = self.accounts.extract_if(.., |folder, _| !inhabited.contains(folder));
        for (folder, account) in left {
            weight_ledger::give_back(
                &self.controller.weight_file(&folder),
                &account.lent(account.weight_now),
            );
        }
        self.settle_accounts(say);
    }

    /// A VM in this cgroup had so much by boosts.
    fn owes(&mut self, folder: &Path, boosted_ns: u64) {
        if let Some(account) = self.accounts.get_mut(folder) {
            account.boosted_ns += boosted_ns;
            return;
        }
        let file = self.controller.weight_file(folder);
        let (Ok(metadata), Ok(weight)) = (std::fs::metadata(&file), weight_ledger::read(&file)) else {
            return;
        };
        let Some(used_ns) = self.controller.used_ns(folder) else { return };
        let account = Account {
            inode: metadata.ino(),
            weight,
            weight_now: weight,
            used_ns,
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
                return false; // it has gone
            };
            if weight != account.weight_now {
                self.by_others += 1;
                if !std::mem::replace(&mut account.is_said, true) {
                    let file = file.display();
                    say(&format!("{file}: somebody else wrote {weight}, which is what is given back now"));
                }
                (account.weight, account.weight_now) = (weight, weight);
            }
            let ran_ns = used_ns.saturating_sub(account.used_ns);
            let seen = PayBackObservation {
                owed_ns: account.owed_ns,
                // It was seen for the first time at this look: what it used isn't known yet.
                boosted_ns: if ran_ns > 0 { std::mem::take(&mut account.boosted_ns) } else { 0 },
                ran_ns,
                weight: account.weight,
                weight_now: account.weight_now,
            };
            let decision = decide_on_pay_back(&seen);
            (account.used_ns, account.owed_ns) = (used_ns, decision.owed_ns);
            next.insert(
                folder.clone(),
                decision.weight.max(self.controller.weight_least()).min(account.weight),
            );
            true
        });
        let changes = |(folder, weight): &(PathBuf, u32)| self.accounts[folder].weight_now != *weight;
        let changes: Vec<_> =
            next.iter().map(|(folder, weight)| (folder.clone(), *weight)).filter(changes).collect();
        if changes.is_empty() {
            return;
        }
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
    }
}

impl Account {
    fn lent(&self, next: u32) -> Lent {
        Lent { inode: self.inode, weight: self.weight, ours: [self.weight_now, next] }
    }
}
