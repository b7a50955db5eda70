//! Boosts: a needed vCPU has its thread made real-time for a micro slice, beside the kernel's own scheduler
//! (on a real host: `bpf/mechanisms/boost.bpf.h`, `crates/host/src/beside/helper.rs`).
//!
//! Problem.   A vCPU that holds up its siblings waits for a turn of milliseconds, and nothing of ours may say
//!            which vCPU runs.
//! Mechanism. A request that the budget grants goes to the helper, which handles one after the other. When
//!            its latency is over the vCPU runs on the pCPU in whose queue it waits; if a boosted one runs
//!            there, on the nearest where none does. It runs before all others for a micro slice, or until it
//!            sleeps, or is seen to be served; then it is an ordinary one again. Its VM and the host are
//!            charged for what it ran (`policy/boost_budget.h`).
//! Limits.    A vCPU that the kernel runs before the helper comes has missed its boost. Some exits could show
//!            that a boosted vCPU has been served; of these the model has pause loops.

use crate::bits::Bits;
use crate::config::{BesideConfig, BoostCosts};
use crate::ids::{IdVec, PcpuId, VcpuId, VmId};
use crate::machine::{Machine, VcpuState};
use crate::random::{Random, Samplers};
use microslice_policy::{self as policy, BoostConfig, BoostDecision, BoostObservation, Cause};
use std::collections::BTreeSet;

/// A second's budget can be used at once (crates/host/src/beside/programs.rs).
const BURST_NS: u64 = 1_000_000_000;
const SEED: u64 = 27;

/// Where a vCPU's boost stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// There is none.
    None,
    /// The helper comes for it then.
    Asked {
        due_ns: u64,
    },
    /// It is real-time and runs on this pCPU next.
    Given {
        pcpu: PcpuId,
    },
    Runs {
        pcpu: PcpuId,
        began_ns: u64,
    },
}

#[derive(Clone, Copy)]
struct Boost {
    state: State,
    cause: Cause,
    /// In a row, because the last one ended too early.
    retries: u32,
}

/// Why no boost comes of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refused {
    OverBudget,
    Pinned,
}

pub struct Boosts {
    slice_ns: u64,
    budget: BoostConfig,
    latency: (Samplers, u32),
    random: Random,
    helper_ns: u64,
    give_back_ns: u64,
    /// Until when the helper has requests to handle.
    helper_busy_until_ns: u64,
    of: IdVec<VcpuId, Boost>,
    /// Those that the helper comes for, in the order in which it does.
    asked: BTreeSet<(u64, VcpuId)>,
    /// The vCPU boosted on each pCPU, and the pCPUs without one.
    on: IdVec<PcpuId, Option<VcpuId>>,
    free: Bits<PcpuId>,
    vm_clock_ns: IdVec<VmId, u64>,
    host_clock_ns: u64,
    /// What boosts that ended on a pCPU cost it.
    owed_ns: IdVec<PcpuId, u64>,
}

impl Boosts {
    pub fn new(config: &BesideConfig, costs: &BoostCosts, machine: &Machine) -> Self {
        let pcpus = machine.pcpus.len();
        let mut samplers = Samplers::default();
        let latency = samplers.number(costs.latency);
        let none = Boost { state: State::None, cause: Cause::None, retries: 0 };
        Self {
            slice_ns: config.micro_slice_ns,
            budget: BoostConfig {
                burst_ns: BURST_NS,
                vm_percent: config.boost_percent,
                host_percent: config.host_percent,
                pcpu_count: pcpus as u32,
                reserved: 0,
            },
            latency: (samplers, latency),
            random: Random::stream(SEED, 0),
            helper_ns: costs.helper_ns,
            give_back_ns: costs.give_back_ns,
            helper_busy_until_ns: 0,
            of: IdVec::of(none, machine.vcpus.len()),
            asked: BTreeSet::new(),
            on: IdVec::of(None, pcpus),
            free: Bits::new(pcpus, true),
            // The host has a burst to spend. Its VMs begin with none: the figures of
            // docs/explanation/regret.md were measured so.
            vm_clock_ns: IdVec::of(0, machine.vms.len()),
            host_clock_ns: 0u64.wrapping_sub(BURST_NS),
            owed_ns: IdVec::of(0, pcpus),
        }
    }

    pub fn policy_state(&self, machine: &Machine, vcpu: VcpuId) -> policy::VcpuState {
        match (machine.vcpus[vcpu].state, self.of[vcpu].state) {
            (_, State::Runs { .. }) => policy::VcpuState::Micro,
            (_, State::Asked { .. } | State::Given { .. }) => policy::VcpuState::Pending,
            (VcpuState::Blocked, State::None) => policy::VcpuState::Blocked,
            (VcpuState::Running, State::None) => policy::VcpuState::Running,
            (VcpuState::Runnable, State::None) => policy::VcpuState::Runnable,
        }
    }

    /// Whether it runs boosted.
    pub fn runs(&self, vcpu: VcpuId) -> bool {
        matches!(self.of[vcpu].state, State::Runs { .. })
    }

    /// The vCPU boosted on this pCPU: it runs there, or next.
    pub fn on(&self, pcpu: PcpuId) -> Option<VcpuId> {
        self.on[pcpu]
    }

    pub fn cause_of(&self, vcpu: VcpuId) -> Cause {
        self.of[vcpu].cause
    }

    pub fn retries(&self, vcpu: VcpuId) -> u32 {
        self.of[vcpu].retries
    }

    pub fn set_retries(&mut self, vcpu: VcpuId, retries: u32) {
        self.of[vcpu].retries = retries;
    }

    /// A request for a vCPU that isn't boosted: may it be, and when does the helper come?
    pub fn ask(&mut self, machine: &Machine, vcpu: VcpuId, cause: Cause) -> Result<(), Refused> {
        let vm = machine.vcpus[vcpu].vm;
        let seen = BoostObservation {
            now_ns: machine.now_ns,
            vm_clock_ns: self.vm_clock_ns[vm],
            host_clock_ns: self.host_clock_ns,
            is_seen: 1,
            is_real_time: 0,
            is_pinned: u32::from(machine.only_pcpu(vcpu).is_some()),
            for_bound: u32::from(cause == Cause::MaxWait),
            is_woken: u32::from(cause == Cause::Woken),
            reserved: 0,
        };
        match policy::decide_on_boost(&self.budget, &seen) {
            BoostDecision::Granted => {}
            BoostDecision::Pinned => return Err(Refused::Pinned),
            _ => return Err(Refused::OverBudget),
        }
        let begins_ns = self.helper_busy_until_ns.max(machine.now_ns);
        self.helper_busy_until_ns = begins_ns + self.helper_ns;
        let due_ns = begins_ns + self.latency.0.sample(self.latency.1, &mut self.random);
        self.of[vcpu] = Boost { state: State::Asked { due_ns }, cause, ..self.of[vcpu] };
        self.asked.insert((due_ns, vcpu));
        Ok(())
    }

    /// When the helper's next boost takes effect.
    pub fn next_due_ns(&self) -> u64 {
        self.asked.first().map_or(u64::MAX, |&(due_ns, _)| due_ns)
    }

    /// One whose time has come.
    pub fn take_due(&mut self, now_ns: u64) -> Option<VcpuId> {
        let &(due_ns, vcpu) = self.asked.first().filter(|(due_ns, _)| *due_ns <= now_ns)?;
        self.asked.remove(&(due_ns, vcpu));
        Some(vcpu)
    }

    /// It is real-time now, and waits in the queue of `home`: where it runs, or `None` if no pCPU that it may
    /// use is free.
    pub fn give(&mut self, machine: &Machine, vcpu: VcpuId, home: PcpuId) -> Option<PcpuId> {
        let allowed = |pcpu: &PcpuId| machine.allows(vcpu, *pcpu);
        let own = Some(home).filter(|pcpu| self.on[*pcpu].is_none()).filter(allowed);
        let pcpu = own.or_else(|| machine.near_first(&self.free, home).find(allowed));
        self.of[vcpu].state = pcpu.map_or(State::None, |pcpu| State::Given { pcpu });
        if let Some(pcpu) = pcpu {
            self.on[pcpu] = Some(vcpu);
            self.free.set(pcpu, false);
        }
        pcpu
    }

    /// It runs boosted from now on; returns until when at the latest.
    pub fn begin(&mut self, now_ns: u64, vcpu: VcpuId, pcpu: PcpuId) -> u64 {
        self.of[vcpu].state = State::Runs { pcpu, began_ns: now_ns };
        now_ns + self.slice_ns
    }

    /// Until when a boosted vCPU may go on.
    pub fn until_ns(&self, vcpu: VcpuId) -> Option<u64> {
        match self.of[vcpu].state {
            State::Runs { began_ns, .. } => Some(began_ns + self.slice_ns),
            _ => None,
        }
    }

    /// Its boost comes to nothing: it runs already. Whether there was one.
    pub fn miss(&mut self, vcpu: VcpuId) -> bool {
        match std::mem::replace(&mut self.of[vcpu].state, State::None) {
            State::None => return false,
            State::Asked { due_ns } => {
                self.asked.remove(&(due_ns, vcpu));
                // The helper sees that it runs, and has nothing to do.
                self.helper_busy_until_ns = self.helper_busy_until_ns.saturating_sub(self.helper_ns);
            }
            State::Given { pcpu } => self.leave(pcpu),
            State::Runs { .. } => unreachable!("who runs boosted isn't picked as an ordinary one"),
        }
        true
    }

    /// Its boost is over: it is charged, unless a bound asked for it, and the pCPU loses what that costs.
    /// Returns how long it ran.
    pub fn end(&mut self, now_ns: u64, vcpu: VcpuId, vm: VmId) -> Option<u64> {
        let State::Runs { pcpu, began_ns } = self.of[vcpu].state else { return None };
        let ran_ns = now_ns - began_ns;
        if self.of[vcpu].cause != Cause::MaxWait {
            self.charge(now_ns, vm, ran_ns);
        }
        self.leave(pcpu);
        self.owed_ns[pcpu] += self.give_back_ns + self.helper_ns;
        self.of[vcpu].state = State::None;
        Some(ran_ns)
    }

    fn charge(&mut self, now_ns: u64, vm: VmId, ran_ns: u64) {
        for (clock_ns, percent) in [
            (&mut self.vm_clock_ns[vm], self.budget.vm_percent),
            (&mut self.host_clock_ns, self.budget.host_percent),
        ] {
            *clock_ns = policy::boost_clock(&self.budget, now_ns, *clock_ns)
                .wrapping_add(policy::boost_cost(&self.budget, percent, ran_ns));
        }
    }

    pub fn take_costs_ns(&mut self, pcpu: PcpuId) -> u64 {
        std::mem::take(&mut self.owed_ns[pcpu])
    }

    fn leave(&mut self, pcpu: PcpuId) {
        self.on[pcpu] = None;
        self.free.set(pcpu, true);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Duration;
    use crate::samples;
    use crate::scheduler::Scheduler;
    use crate::scheduler::eevdf::{Eevdf, FairClass};
    use proptest::prelude::*;

    const LATENCY_NS: u64 = 24_000;
    const HELPER_NS: u64 = 10_000;

    /// One VM of so many vCPUs, which all have woken and wait, on so many pCPUs.
    fn all_wait(pcpus: usize, vcpus: u32, affinity: Vec<bool>) -> (Boosts, Eevdf, Machine) {
        let beside = samples::beside();
        let vm = crate::machine::HostVm::new(vcpus, 256, affinity);
        let host = crate::config::HostConfig { pcpus, llc_pcpus: 0, ..samples::host() };
        let mut machine = Machine::new(&host, vec![vm]);
        let mut eevdf = Eevdf::new(beside.eevdf.clone(), &mut machine);
        for vcpu in machine.vcpus.ids() {
            machine.wakes(vcpu);
            eevdf.wake(&mut machine, vcpu);
        }
        let latency = Duration::Constant { ns: LATENCY_NS };
        let costs = BoostCosts { latency, give_back_ns: 10_000, helper_ns: HELPER_NS };
        (Boosts::new(&beside, &costs, &machine), eevdf, machine)
    }

    fn vcpu(number: u32) -> VcpuId {
        VcpuId::new(number)
    }

    #[test]
    fn the_helper_handles_one_request_after_the_other() {
        let (mut boosts, _, machine) = all_wait(4, 3, Vec::new());
        (0..3).for_each(|number| assert_eq!(boosts.ask(&machine, vcpu(number), Cause::TlbYield), Ok(())));
        assert_eq!(boosts.next_due_ns(), LATENCY_NS);
        assert_eq!(boosts.take_due(LATENCY_NS - 1), None);
        let due = [LATENCY_NS, LATENCY_NS + HELPER_NS, LATENCY_NS + 2 * HELPER_NS];
        for (number, due_ns) in (0..3).zip(due) {
            assert_eq!(boosts.next_due_ns(), due_ns);
            assert_eq!(boosts.take_due(due_ns), Some(vcpu(number)));
        }
        assert_eq!(boosts.next_due_ns(), u64::MAX);
    }

    #[test]
    fn a_boosted_vcpu_runs_where_it_waits_or_next_to_one_that_is_boosted_there_or_nowhere() {
        let (mut boosts, _, machine) = all_wait(3, 4, vec![true, true, false]);
        let home = PcpuId::new(1);
        assert_eq!(boosts.give(&machine, vcpu(0), home), Some(home));
        assert_eq!(boosts.give(&machine, vcpu(1), home), Some(PcpuId::new(0)));
        assert_eq!(boosts.give(&machine, vcpu(2), home), None, "pCPU 2 isn't allowed");
        assert_eq!(boosts.on(home), Some(vcpu(0)));
        assert!(boosts.miss(vcpu(0)), "the kernel ran it meanwhile");
        assert_eq!((boosts.on(home), boosts.miss(vcpu(0))), (None, false));
        assert_eq!(boosts.give(&machine, vcpu(2), home), Some(home));
    }

    #[test]
    fn a_vcpu_that_comes_back_has_its_lag_and_the_rest_of_its_slice() {
        let (mut boosts, mut eevdf, mut machine) = all_wait(1, 2, Vec::new());
        let pcpu = PcpuId::new(0);
        let ran = eevdf.schedule(&mut machine, pcpu, None).expect("two wait").vcpu;
        machine.runs(ran);
        machine.pcpus[pcpu].current = ran;
        let other = vcpu(1 - ran.number());
        machine.now_ns = 1_000_000;
        assert!(eevdf.leaves(&machine, other), "it waits");
        assert!(!eevdf.leaves(&machine, other), "it doesn't wait there any more");
        eevdf.gives_way(&machine, pcpu, Some((ran, crate::events::StopReason::Preempted)));
        let until_ns = boosts.begin(machine.now_ns, other, pcpu);
        assert_eq!(until_ns, 1_100_000);
        machine.stops(ran, false);
        machine.runs(other);
        machine.now_ns = until_ns;
        let vm = machine.vcpus[other].vm;
        let ran_ns = boosts.end(machine.now_ns, other, vm).expect("it ran");
        assert_eq!((ran_ns, boosts.take_costs_ns(pcpu), boosts.take_costs_ns(pcpu)), (100_000, 20_000, 0));
        let pick = eevdf.comes_back(&mut machine, pcpu, other).expect("two could run");
        assert_eq!(pick.vcpu, other, "it hasn't had its slice, which the boost was no part of");
        assert_eq!(pick.slice_end_ns, machine.now_ns + 3_000_000);
    }

    proptest! {
        #[test]
        fn nobody_has_more_than_a_burst_and_its_part_of_the_time(
            steps in prop::collection::vec((0u64..3_000_000, 1u64..100_000), 1..3_000)
        ) {
            let (mut boosts, _, mut machine) = all_wait(4, 4, Vec::new());
            let (mut boosted_ns, vm) = (0, machine.vcpus[vcpu(0)].vm);
            for (pause_ns, ran_ns) in steps {
                machine.now_ns += pause_ns;
                if boosts.ask(&machine, vcpu(0), Cause::Virq).is_err() {
                    continue;
                }
                machine.now_ns = boosts.next_due_ns();
                prop_assert_eq!(boosts.take_due(machine.now_ns), Some(vcpu(0)));
                let pcpu = boosts.give(&machine, vcpu(0), PcpuId::new(0)).expect("all are free");
                boosts.of[vcpu(0)].state = State::Runs { pcpu, began_ns: machine.now_ns };
                machine.now_ns += ran_ns;
                boosts.end(machine.now_ns, vcpu(0), vm);
                boosted_ns += ran_ns;
                let budget_ns = 4 * (machine.now_ns + BURST_NS) / 100 + 100_000;
                prop_assert!(boosted_ns <= budget_ns, "{} of {}", boosted_ns, budget_ns);
            }
        }
    }
}
