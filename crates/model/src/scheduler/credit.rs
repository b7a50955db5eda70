//! Xen 4.7's credit scheduler: the paper's baseline, and the normal pool of its prototype
//! (xen/common/sched_credit.c).
//!
//! Problem.   Share pCPUs among VMs by weight, serve waking vCPUs fast, lose no pCPU time.
//! Mechanism. Every 30 ms each active vCPU earns credits by its VM's weight, those of a pCPU at the most.
//!            What is left over goes to the others. Running burns 10 per millisecond. Those with credits left
//!            (UNDER) run before those without (OVER). A vCPU that wakes within its credits is BOOSTed above
//!            both until a tick (10 ms) finds it running. Run queues are per pCPU, by priority, first in
//!            first out. A pCPU about to run OVER, or nothing, looks for something better in its peers'
//!            queues. A yielding vCPU goes behind one vCPU of lower priority. No vCPU is switched away from
//!            within the first millisecond (`sched_ratelimit_us`) unless it blocks. In 4.7 that holds for
//!            yields too (4.8 exempts them).
//! Limits.    No caps, no parking.

use super::{Core, Pick, Scheduler, TurnEnds, YieldAnswer};
use crate::bits::Bits;
use crate::config::CreditConfig;
use crate::events::StopReason;
use crate::ids::{IdVec, PcpuId, VcpuId, VmId};
use crate::machine::{Machine, VcpuState};
use microslice_policy::YieldCause;

/// Credits of one pCPU in one accounting period of 30 ms.
const CREDITS_PER_PERIOD: i64 = 300;
/// How often vCPUs earn credits.
pub(crate) const PERIOD_NS: u64 = 30_000_000;
/// Credits are kept in 1/1000, so that short runs are charged exactly.
const SCALE: i64 = 1000;
/// Those of one pCPU in one period, so kept.
const PCPU_CREDIT: i64 = CREDITS_PER_PERIOD * SCALE;
const NS_PER_SCALED_CREDIT: u64 = PERIOD_NS / (CREDITS_PER_PERIOD * SCALE) as u64;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Priority {
    Over,
    Under,
    Boost,
}

struct Account {
    priority: Priority,
    active: bool,
    /// On some run queue.
    queued: bool,
    /// It yielded since it was last scheduled; a yield within the rate limit takes effect when the limit
    /// ends.
    yields: bool,
    /// In 1/1000.
    credit: i64,
    charged_until_ns: u64,
}

pub struct Credit {
    config: CreditConfig,
    accounts: IdVec<VcpuId, Account>,
    queues: IdVec<PcpuId, Vec<VcpuId>>,
    /// pCPUs where a vCPU waits, and how many of them within their credits.
    waited_for: Bits<PcpuId>,
    waited_for_within_credits: Bits<PcpuId>,
    within_credits: IdVec<PcpuId, u32>,
    /// Queues are sorted again at the next tick after an accounting.
    unsorted: IdVec<PcpuId, bool>,
    /// pCPUs that this scheduler may use (all, or the normal pool).
    pub usable: IdVec<PcpuId, bool>,
    usable_count: usize,
    /// Whether credits are those of all pCPUs, also of those that others use.
    pub all_pcpus_earn: bool,
    next_accounting_ns: u64,
    queued_total: usize,
    idle_count: usize,
    idle: Bits<PcpuId>,
    /// pCPUs whose vCPU has spent its credits and spins: as soon as another waits anywhere, its yield takes
    /// effect.
    would_steal: Bits<PcpuId>,
}

impl Credit {
    pub fn new(config: CreditConfig, machine: &Machine) -> Self {
        let pcpus = machine.pcpus.len();
        let accounts = machine
            .vcpus
            .iter()
            .map(|_| Account {
                priority: Priority::Under,
                active: false,
                queued: false,
                yields: false,
                credit: 0,
                charged_until_ns: 0,
            })
            .collect();
        Self {
            config,
            accounts,
            queues: IdVec::of(Vec::new(), pcpus),
            waited_for: Bits::new(pcpus, false),
            waited_for_within_credits: Bits::new(pcpus, false),
            within_credits: IdVec::of(0, pcpus),
            unsorted: IdVec::of(false, pcpus),
            usable: IdVec::of(true, pcpus),
            usable_count: pcpus,
            all_pcpus_earn: false,
            next_accounting_ns: PERIOD_NS,
            queued_total: 0,
            idle_count: pcpus,
            idle: Bits::new(pcpus, true),
            would_steal: Bits::new(pcpus, false),
        }
    }

    fn put(&mut self, pcpu: PcpuId, at: usize, vcpu: VcpuId) {
        let account = &mut self.accounts[vcpu];
        debug_assert!(!account.queued, "vCPU {vcpu} is on a queue already");
        let queue = &mut self.queues[pcpu];
        // At the end mostly: nothing has to be moved.
        if at == queue.len() {
            queue.push(vcpu)
        } else {
            queue.insert(at, vcpu)
        }
        account.queued = true;
        self.within_credits[pcpu] += u32::from(account.priority > Priority::Over);
        self.queued_total += 1;
        self.note_queue(pcpu);
    }

    fn take(&mut self, pcpu: PcpuId, at: usize) -> VcpuId {
        let queue = &mut self.queues[pcpu];
        let vcpu = if at + 1 == queue.len() { queue.pop() } else { None }.unwrap_or_else(|| queue.remove(at));
        let account = &mut self.accounts[vcpu];
        account.queued = false;
        self.within_credits[pcpu] -= u32::from(account.priority > Priority::Over);
        self.queued_total -= 1;
        self.note_queue(pcpu);
        vcpu
    }

    fn note_queue(&mut self, pcpu: PcpuId) {
        self.waited_for.set(pcpu, !self.queues[pcpu].is_empty());
        self.waited_for_within_credits.set(pcpu, self.within_credits[pcpu] > 0);
    }

    /// Puts a runnable vCPU on the queue of its pCPU, or of a usable one.
    fn insert(&mut self, machine: &mut Machine, vcpu: VcpuId, yielded: bool) {
        let mut home = machine.vcpus[vcpu].pcpu;
        if !self.usable[home] || !machine.allows(vcpu, home) {
            home = self.shortest_queue(machine, vcpu);
            machine.vcpus[vcpu].pcpu = home;
        }
        let accounts = &self.accounts;
        let priority = accounts[vcpu].priority;
        let queue = &self.queues[home];
        let mut at = queue.iter().take_while(|&&other| accounts[other].priority >= priority).count();
        if yielded && at < queue.len() {
            at += 1;
        }
        self.put(home, at, vcpu);
        self.end_promises(machine, home);
    }

    /// A vCPU waits on this pCPU now: whose answer to a yield is another one than before?
    fn end_promises(&mut self, machine: &mut Machine, pcpu: PcpuId) {
        machine.answers_changed(pcpu);
        if self.queued_total > 1 {
            return;
        }
        while let Some(thief) = self.would_steal.find_between(PcpuId::new(0), self.queues.next_id()) {
            self.would_steal.set(thief, false);
            machine.answers_changed(thief);
        }
    }

    fn shortest_queue(&self, machine: &Machine, vcpu: VcpuId) -> PcpuId {
        let from = machine.vcpus[vcpu].pcpu;
        machine
            .pcpus
            .round_from(from.plus(1))
            .filter(|&pcpu| self.usable[pcpu] && machine.allows(vcpu, pcpu))
            .min_by_key(|&pcpu| self.queues[pcpu].len() + usize::from(!self.idle.has(pcpu)))
            .expect("validation leaves every VM a usable pCPU")
    }

    fn find_idle(&self, machine: &Machine, vcpu: VcpuId) -> Option<PcpuId> {
        let home = machine.vcpus[vcpu].pcpu;
        self.idle.round_from(home).find(|&pcpu| self.usable[pcpu] && machine.allows(vcpu, pcpu))
    }

    /// An idle pCPU may take the first waiter on this one that may run there: not every vCPU may.
    fn offer_to_idler(&self, machine: &mut Machine, pcpu: PcpuId) {
        if self.idle_count == 0 {
            return;
        }
        let mut waiting = self.queues[pcpu].iter();
        if let Some(idler) = waiting.find_map(|&vcpu| self.find_idle(machine, vcpu)) {
            machine.request_schedule(idler);
        }
    }

    fn wake_priority(&mut self, vcpu: VcpuId) {
        let account = &mut self.accounts[vcpu];
        if self.config.boost && account.priority == Priority::Under {
            account.priority = Priority::Boost;
        }
    }

    /// csched_load_balance: a vCPU within its credits from a peer's queue, or of `any_priority`.
    fn steal(&mut self, machine: &mut Machine, thief: PcpuId, any_priority: bool) -> Option<VcpuId> {
        let peers = if any_priority { &self.waited_for } else { &self.waited_for_within_credits };
        let found = peers
            .round_from(thief)
            // An idle peer is about to take from its queue itself.
            .filter(|&peer| peer != thief && !machine.is_idle(peer))
            .find_map(|peer| {
                let at = self.queues[peer].iter().position(|&vcpu| {
                    (any_priority || self.accounts[vcpu].priority > Priority::Over)
                        && machine.allows(vcpu, thief)
                });
                at.map(|at| (peer, at))
            });
        let (peer, at) = found?;
        let vcpu = self.take(peer, at);
        machine.vcpus[vcpu].pcpu = thief;
        Some(vcpu)
    }

    fn take_first(&mut self, pcpu: PcpuId) -> Option<VcpuId> {
        if self.queues[pcpu].is_empty() { None } else { Some(self.take(pcpu, 0)) }
    }

    /// The active vCPUs by the weight of each, the heaviest first, as (weight, how many).
    fn active_by_weight(&self, machine: &Machine) -> Vec<(i64, i64)> {
        let mut active: IdVec<VmId, i64> = IdVec::of(0, machine.vms.len());
        for (vcpu, account) in machine.vcpus.iter().zip(&self.accounts) {
            active[vcpu.vm] += i64::from(account.active);
        }
        let weights = machine.vms.iter().map(|vm| i64::from(vm.weight));
        let mut by_weight: Vec<(i64, i64)> =
            weights.zip(active.iter().copied()).filter(|&(_, active)| active > 0).collect();
        by_weight.sort_unstable_by_key(|&(weight, _)| std::cmp::Reverse(weight));
        by_weight
    }

    /// What this accounting gives, as (credits, for so much weight). A vCPU can't use more than one pCPU:
    /// what the heaviest ones are due beyond that goes to the others, by their weights. Xen gives it to those
    /// further down its list. Over the periods it comes to the same: a vCPU that had too much is put in
    /// front.
    fn credits_by_weight(&self, machine: &Machine) -> (i64, i64) {
        let by_weight = self.active_by_weight(machine);
        let pcpus = if self.all_pcpus_earn { self.queues.len() } else { self.usable_count };
        let mut credit = pcpus as i64 * PCPU_CREDIT;
        let mut weight_left: i64 = by_weight.iter().map(|(weight, active)| weight * active).sum();
        for (weight, active) in by_weight {
            if credit * weight < weight_left * PCPU_CREDIT {
                break;
            }
            credit -= active * PCPU_CREDIT;
            weight_left -= active * weight;
        }
        (credit, weight_left)
    }

    /// csched_acct: every 30 ms each active vCPU earns its share; priorities follow.
    fn account(&mut self, machine: &Machine) {
        if !self.accounts.iter().any(|account| account.active) {
            return;
        }
        let (credit, for_weight) = self.credits_by_weight(machine);
        let period = PCPU_CREDIT;
        for (vcpu, account) in machine.vcpus.iter().zip(&mut self.accounts) {
            if !account.active {
                continue;
            }
            let weight = i64::from(machine.vms[vcpu.vm].weight);
            // With nobody left all have a pCPU each.
            account.credit +=
                if for_weight == 0 { period } else { (credit * weight / for_weight).min(period) };
            if account.credit < 0 {
                account.priority = Priority::Over;
                account.credit = account.credit.max(-period);
            } else {
                account.priority = Priority::Under;
                if account.credit > period {
                    account.active = false;
                    account.credit /= 2;
                }
            }
        }
        self.unsorted.fill(true);
        for pcpu in self.queues.ids() {
            let queued = self.queues[pcpu].iter();
            let within = queued.filter(|&&vcpu| self.accounts[vcpu].priority > Priority::Over);
            self.within_credits[pcpu] = within.count() as u32;
            self.note_queue(pcpu);
        }
    }

    fn sort(&mut self, pcpu: PcpuId) {
        if std::mem::take(&mut self.unsorted[pcpu]) {
            let accounts = &self.accounts;
            self.queues[pcpu].sort_by_key(|&vcpu| std::cmp::Reverse(accounts[vcpu].priority));
        }
    }

    fn within_ratelimit(&self, machine: &Machine, vcpu: VcpuId) -> Option<u64> {
        let until = machine.vcpus[vcpu].since_ns + self.config.ratelimit_ns;
        (machine.now_ns < until).then_some(until)
    }
}

#[cfg(test)]
impl Credit {
    pub(super) fn is_boosted(&self, vcpu: VcpuId) -> bool {
        self.accounts[vcpu].priority == Priority::Boost
    }
}

impl Core for Credit {
    fn set_usable(&mut self, pcpu: PcpuId, usable: bool) -> Vec<VcpuId> {
        if self.usable[pcpu] == usable {
            return Vec::new();
        }
        self.usable[pcpu] = usable;
        if usable {
            self.usable_count += 1;
            return Vec::new();
        }
        self.usable_count -= 1;
        self.set_idle(pcpu, false);
        std::iter::from_fn(|| self.take_first(pcpu)).collect()
    }

    fn set_idle(&mut self, pcpu: PcpuId, idle: bool) {
        if self.idle.has(pcpu) != idle {
            self.idle.set(pcpu, idle);
            if idle { self.idle_count += 1 } else { self.idle_count -= 1 }
        }
    }

    fn put_back(&mut self, machine: &mut Machine, vcpu: VcpuId) {
        self.insert(machine, vcpu, false);
    }

    fn put_first(&mut self, machine: &mut Machine, vcpu: VcpuId) {
        let home = self.shortest_queue(machine, vcpu);
        machine.vcpus[vcpu].pcpu = home;
        self.put(home, 0, vcpu);
        self.end_promises(machine, home);
    }

    /// __runq_tickle: which pCPU should look at its queue because of `vcpu`?
    fn tickle(&mut self, machine: &mut Machine, vcpu: VcpuId) {
        let home = machine.vcpus[vcpu].pcpu;
        let Some(current) = machine.current(home) else {
            return machine.request_schedule(home);
        };
        if self.idle_count > 0
            && let Some(idler) = self.find_idle(machine, vcpu)
        {
            return machine.request_schedule(idler);
        }
        if self.accounts[vcpu].priority > self.accounts[current].priority {
            machine.request_schedule(home);
        }
    }

    fn take_out(&mut self, machine: &Machine, vcpu: VcpuId) -> bool {
        if !self.accounts[vcpu].queued {
            return false;
        }
        let home = machine.vcpus[vcpu].pcpu;
        let queue = &self.queues[home];
        let at = queue.iter().position(|&other| other == vcpu).expect("a queued vCPU is on its pCPU's queue");
        self.take(home, at);
        true
    }

    fn charge(&mut self, now_ns: u64, vcpu: VcpuId) {
        let account = &mut self.accounts[vcpu];
        let scaled = (now_ns - account.charged_until_ns) / NS_PER_SCALED_CREDIT;
        account.credit -= scaled as i64;
        account.charged_until_ns += scaled * NS_PER_SCALED_CREDIT;
    }

    fn begin_run(&mut self, now_ns: u64, vcpu: VcpuId) {
        self.accounts[vcpu].charged_until_ns = now_ns;
    }

    /// It is within its credits from now until the next accounting, whatever it has spent.
    fn forgive(&mut self, vcpu: VcpuId) {
        self.accounts[vcpu].priority = Priority::Under;
    }

    fn kept_until(&self, machine: &Machine, vcpu: VcpuId, reason: StopReason) -> Option<u64> {
        let voluntary = matches!(reason, StopReason::Ple | StopReason::IpiWait);
        let is_limited = reason != StopReason::SliceExpired && (self.config.ratelimit_yields || !voluntary);
        if is_limited { self.within_ratelimit(machine, vcpu) } else { None }
    }

    /// It has yielded within the rate limit, which takes effect when that ends.
    fn has_yielded(&self, vcpu: VcpuId) -> bool {
        self.accounts[vcpu].yields
    }
}

impl Scheduler for Credit {
    fn wake(&mut self, machine: &mut Machine, vcpu: VcpuId) {
        self.wake_priority(vcpu);
        self.insert(machine, vcpu, false);
        self.tickle(machine, vcpu);
    }

    fn schedule(
        &mut self,
        machine: &mut Machine,
        pcpu: PcpuId,
        stopped: Option<(VcpuId, StopReason)>,
    ) -> Option<Pick> {
        let now_ns = machine.now_ns;
        let mut yielded = VcpuId::NONE;
        if let Some((vcpu, reason)) = stopped {
            self.charge(now_ns, vcpu);
            let deferred = self.accounts[vcpu].yields;
            if machine.vcpus[vcpu].state != VcpuState::Blocked {
                let voluntary = matches!(reason, StopReason::Ple | StopReason::IpiWait);
                if let Some(until_ns) = self.kept_until(machine, vcpu, reason) {
                    return Some(Pick { vcpu, slice_end_ns: until_ns });
                }
                if voluntary || deferred {
                    yielded = vcpu;
                }
                self.insert(machine, vcpu, voluntary || deferred);
            }
            self.accounts[vcpu].yields = false;
        }
        let mut next = self.take_first(pcpu);
        let priority = next.map(|vcpu| self.accounts[vcpu].priority);
        if priority.is_none_or(|priority| priority == Priority::Over)
            && let Some(better) = self.steal(machine, pcpu, priority.is_none())
        {
            if let Some(vcpu) = next {
                self.put(pcpu, 0, vcpu);
            }
            next = Some(better);
        }
        self.set_idle(pcpu, next.is_none());
        let vcpu = next?;
        if stopped.is_some() && yielded == VcpuId::NONE {
            self.offer_to_idler(machine, pcpu);
        }
        self.begin_run(now_ns, vcpu);
        Some(Pick { vcpu, slice_end_ns: now_ns + self.config.slice_ns })
    }

    fn yields(
        &mut self,
        machine: &mut Machine,
        vcpu: VcpuId,
        pcpu: PcpuId,
        cause: YieldCause,
    ) -> YieldAnswer {
        if cause == YieldCause::Hlt {
            return YieldAnswer::Yield;
        }
        if self.config.ratelimit_yields
            && let Some(until_ns) = self.within_ratelimit(machine, vcpu)
        {
            // csched_schedule leaves the yield flag set and comes back when the limit is over: the vCPU is
            // switched away from then, whatever it does by that time.
            self.accounts[vcpu].yields = true;
            machine.pcpus[pcpu].slice_end_ns = until_ns;
            return YieldAnswer::KeepSpinning { until_ns };
        }
        // With nobody to give the pCPU to, the scheduler would choose the same vCPU again.
        let is_within_credits = self.accounts[vcpu].priority > Priority::Over;
        if self.queues[pcpu].is_empty() && (self.queued_total == 0 || is_within_credits) {
            self.would_steal.set(pcpu, !is_within_credits);
            return YieldAnswer::KeepSpinning { until_ns: machine.pcpus[pcpu].slice_end_ns };
        }
        YieldAnswer::Yield
    }

    fn tick_ns(&self) -> u64 {
        self.config.tick_ns
    }

    fn tick(&mut self, machine: &mut Machine, pcpu: PcpuId) {
        self.sort(pcpu);
        if let Some(vcpu) = machine.current(pcpu) {
            self.charge(machine.now_ns, vcpu);
            let account = &mut self.accounts[vcpu];
            if account.priority == Priority::Boost {
                account.priority = Priority::Under;
            }
            account.active = true;
            // csched_vcpu_acct looks for an idle pCPU then (_csched_cpu_pick): a vCPU that yielded is offered
            // to none before.
            self.offer_to_idler(machine, pcpu);
        }
    }

    fn timer(&mut self, machine: &mut Machine) -> u64 {
        if machine.now_ns >= self.next_accounting_ns {
            self.account(machine);
            self.next_accounting_ns += PERIOD_NS;
            // Priorities changed: batched answers to yields may be different now.
            machine.pcpus.ids().for_each(|pcpu| machine.answers_changed(pcpu));
        }
        self.next_accounting_ns
    }
}

impl TurnEnds for Credit {}

#[cfg(test)]
mod tests;
