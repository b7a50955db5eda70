//! Invariants, verified as far as possible from the stream of trace events: independent of the code that they check. The
//! last five look at counters and at the state of host and guests, most of them once a simulated millisecond.
//!
//! | invariant | how |
//! |---|---|
//! | no vCPU on two pCPUs, no pCPU with two vCPUs | running / stopping pairs |
//! | nobody runs who is blocked | what the scheduler picks |
//! | mutual exclusion | acquired / released pairs, per lock |
//! | no lost or duplicated IPI | each vCPU: sent and not merged = handled + pending |
//! | micro pool | only accelerated vCPUs run there, at most one waits for each pCPU, and each returns |
//! | grace | a turn, and a stay in the micro pool, is made longer a few times in a row, by a micro slice each |
//! | time adds up | elapsed x pCPUs = guest + overhead + idle, at the end |
//! | no lost wake-up | nobody waits beside a free lock, or halts beside an interrupt (`guest/lost.rs`) |
//! | who waits is counted right | [`Machine::waiting_adds_up`] |
//! | work conservation | no pCPU of the normal pool stays idle while a vCPU that may run there waits |
//! | no starvation | nobody waits runnable for longer than five seconds, or than a few times its share explains |

use crate::SimError;
use crate::config::SchedulerKind;
use crate::engine::Simulation;
use crate::machine::{HostVm, Machine, VcpuState};
use crate::trace_event::{IpiKind, TraceEvent};
use std::collections::{BTreeMap, BTreeSet};

/// Xen's credit scheduler lets a vCPU without credits wait for whole accounting periods: far below this anyway.
const STARVATION_NS: u64 = 5_000_000_000;
/// Whose share is so small that it is due a turn once in many seconds starves when it has missed that many of them.
const TURNS_MISSED: u64 = 4;
/// An idle pCPU looks for work at the latest one host tick after some appeared (idle pCPUs are tickled at wake-ups).
const IDLE_BESIDE_WORK_NS: u64 = 20_000_000;

pub struct Checker {
    on: Vec<Option<u32>>,
    runs: Vec<Option<u32>>,
    owners: Vec<Option<u32>>,
    /// IPIs to each vCPU that it hasn't handled: reschedule, call function.
    pending: Vec<[u32; 2]>,
    /// And for which micro pCPU.
    accelerated: BTreeMap<u32, u32>,
    /// A blocked vCPU was picked: which, and for which pCPU.
    blocked_pick: Option<(u32, u32)>,
    grace: GraceLimits,
    /// The longest turn of the normal pool.
    turn_ns: u64,
    /// Of each vCPU.
    longer: Vec<Longer>,
}

/// What a scheduler may add to a turn.
#[derive(Debug, Default, Clone, Copy)]
struct GraceLimits {
    max: u32,
    slice_ns: u64,
}

impl GraceLimits {
    fn of(scheduler: &SchedulerKind) -> Self {
        match scheduler {
            // Nobody is switched away from within the rate limit, not even who came back for a micro slice.
            SchedulerKind::MicroSliced(config) => {
                Self { max: config.grace, slice_ns: config.micro_slice_ns.max(config.normal.ratelimit_ns()) }
            }
            _ => Self::default(),
        }
    }
}

/// How often in a row a vCPU was given more, and until when.
#[derive(Debug, Default, Clone, Copy)]
struct Longer {
    turn: u32,
    until_ns: Option<u64>,
    micro_slices: u32,
}

impl Checker {
    pub fn new(pcpus: usize, vcpus: usize, locks: usize, scheduler: &SchedulerKind) -> Self {
        Self {
            on: vec![None; vcpus],
            runs: vec![None; pcpus],
            owners: vec![None; locks],
            pending: vec![[0; 2]; vcpus],
            accelerated: BTreeMap::new(),
            blocked_pick: None,
            grace: GraceLimits::of(scheduler),
            turn_ns: scheduler.turn_ns(),
            longer: vec![Longer::default(); vcpus],
        }
    }

    /// One event later: is everything as it must be?
    pub fn observe(&mut self, time_ns: u64, event: &TraceEvent) -> Result<(), String> {
        match *event {
            TraceEvent::Running { vcpu, pcpu, micro } => self.running(vcpu, pcpu, micro),
            TraceEvent::Stopping { vcpu, pcpu, .. } => {
                let (on, runs) = (&mut self.on[vcpu as usize], &mut self.runs[pcpu as usize]);
                if on.take() != Some(pcpu) || runs.take() != Some(vcpu) {
                    return Err(format!("vCPU {vcpu} stops on pCPU {pcpu} where it doesn't run"));
                }
                if !self.accelerated.contains_key(&vcpu) {
                    self.longer[vcpu as usize].micro_slices = 0;
                }
                self.turn_ends(time_ns, vcpu)
            }
            TraceEvent::TurnGoesOn { vcpu, .. } => self.turn_goes_on(time_ns, vcpu),
            TraceEvent::TurnEnded { vcpu, .. } => self.turn_ends(time_ns, vcpu),
            TraceEvent::LockAcquired { vcpu, lock, .. } => match self.owners[lock as usize].replace(vcpu) {
                None => Ok(()),
                Some(owner) => Err(format!("vCPU {vcpu} takes lock {lock} that vCPU {owner} holds")),
            },
            TraceEvent::LockReleased { vcpu, lock } => match self.owners[lock as usize].take() {
                Some(owner) if owner == vcpu => Ok(()),
                owner => Err(format!("vCPU {vcpu} releases lock {lock} of {owner:?}")),
            },
            TraceEvent::IpiSent { to, kind, .. } => self.ipi_sent(to, kind),
            TraceEvent::IpiHandled { vcpu, kind } => self.ipi_handled(vcpu, kind),
            TraceEvent::Accelerated { vcpu, pcpu, .. } => {
                if self.accelerated.insert(vcpu, pcpu).is_some() {
                    return Err(format!("vCPU {vcpu} is accelerated twice without a return"));
                }
                self.micro_slice_follows(vcpu)
            }
            TraceEvent::ReturnedToNormalPool { vcpu, .. } => {
                if self.accelerated.remove(&vcpu).is_none() {
                    return Err(format!("vCPU {vcpu} returns from a micro pool it wasn't in"));
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn running(&mut self, vcpu: u32, pcpu: u32, micro: bool) -> Result<(), String> {
        if let Some(other) = self.on[vcpu as usize].replace(pcpu) {
            return Err(format!("vCPU {vcpu} runs on pCPU {pcpu} and on pCPU {other}"));
        }
        if let Some(other) = self.runs[pcpu as usize].replace(vcpu) {
            return Err(format!("pCPU {pcpu} runs vCPU {vcpu} and vCPU {other}"));
        }
        if micro != self.accelerated.contains_key(&vcpu) {
            return Err(format!(
                "vCPU {vcpu} runs on pCPU {pcpu} (micro: {micro}) though accelerated is {}",
                !micro
            ));
        }
        Ok(())
    }

    /// What the scheduler picks. Not an event: who is picked again runs on without one.
    pub fn picked(&mut self, vcpu: u32, pcpu: u32, state: VcpuState) {
        if state == VcpuState::Blocked {
            self.blocked_pick.get_or_insert((vcpu, pcpu));
        }
    }

    fn turn_goes_on(&mut self, time_ns: u64, vcpu: u32) -> Result<(), String> {
        let GraceLimits { max, slice_ns } = self.grace;
        let turn = self.longer[vcpu as usize].turn + 1;
        self.turn_ends(time_ns, vcpu)?;
        self.longer[vcpu as usize].turn = turn;
        self.longer[vcpu as usize].until_ns = Some(time_ns + slice_ns);
        if turn > max {
            return Err(format!(
                "vCPU {vcpu}'s turn is made longer {turn} times in a row, where {max} are allowed"
            ));
        }
        Ok(())
    }

    fn turn_ends(&mut self, time_ns: u64, vcpu: u32) -> Result<(), String> {
        let longer = &mut self.longer[vcpu as usize];
        longer.turn = 0;
        match longer.until_ns.take() {
            Some(until_ns) if time_ns > until_ns => Err(format!(
                "vCPU {vcpu}'s turn went on for {} ns longer than a micro slice",
                time_ns - until_ns
            )),
            _ => Ok(()),
        }
    }

    /// Asked for again while it is still where its last micro slice ended: because that ended too early.
    fn micro_slice_follows(&mut self, vcpu: u32) -> Result<(), String> {
        let count = &mut self.longer[vcpu as usize].micro_slices;
        *count = if self.on[vcpu as usize].is_some() { *count + 1 } else { *count };
        if *count > self.grace.max {
            return Err(format!(
                "vCPU {vcpu} gets {count} micro slices more in a row than it was requested for"
            ));
        }
        Ok(())
    }

    fn ipi_sent(&mut self, to: u32, kind: IpiKind) -> Result<(), String> {
        if let Some(index) = index_of(kind) {
            self.pending[to as usize][index] += 1;
        }
        Ok(())
    }

    fn ipi_handled(&mut self, vcpu: u32, kind: IpiKind) -> Result<(), String> {
        let Some(index) = index_of(kind) else { return Ok(()) };
        let pending = &mut self.pending[vcpu as usize][index];
        if *pending != 1 {
            return Err(format!("vCPU {vcpu} handles one {kind:?} IPI of {pending} pending ones"));
        }
        *pending = 0;
        Ok(())
    }

    /// When all that happens at this instant has happened.
    pub fn settled(&self) -> Result<(), String> {
        if let Some((vcpu, pcpu)) = self.blocked_pick {
            return Err(format!("vCPU {vcpu} is picked for pCPU {pcpu}, but is blocked"));
        }
        let mut waited_for = BTreeSet::new();
        let waiting = self.accelerated.iter().filter(|(vcpu, _)| self.on[**vcpu as usize].is_none());
        for (vcpu, pcpu) in waiting {
            if !waited_for.insert(pcpu) {
                return Err(format!("vCPU {vcpu} and another one wait for micro pCPU {pcpu}"));
            }
        }
        Ok(())
    }

    /// Slower properties, once a simulated millisecond.
    pub fn check_host(
        &self,
        machine: &Machine,
        may_idle: impl Fn(u32) -> bool,
        shares_by_vm: bool,
    ) -> Result<(), String> {
        let now_ns = machine.now_ns;
        if !machine.waiting_adds_up() {
            return Err("the waiting vCPUs' kinds are miscounted".into());
        }
        for (index, vcpu) in machine.vcpus.iter().enumerate() {
            if vcpu.state != VcpuState::Runnable {
                continue;
            }
            let waited_ns = now_ns - vcpu.since_ns;
            let starves = || {
                waited_ns > TURNS_MISSED * time_between_turns_ns(machine, vcpu.vm, shares_by_vm, self.turn_ns)
            };
            if waited_ns > STARVATION_NS && starves() {
                return Err(format!("vCPU {index} starves: runnable for {waited_ns} ns"));
            }
            let idle = (0..machine.pcpus.len() as u32).find(|&pcpu| {
                machine.is_idle(pcpu)
                    && !may_idle(pcpu)
                    && machine.allows(index as u32, pcpu)
                    && now_ns - machine.pcpu_times[pcpu as usize].since_ns > IDLE_BESIDE_WORK_NS
            });
            if let Some(pcpu) = idle
                && waited_ns > IDLE_BESIDE_WORK_NS
            {
                return Err(format!("pCPU {pcpu} idles while vCPU {index} waits for {waited_ns} ns"));
            }
        }
        Ok(())
    }
}

/// How often a vCPU of this VM is due a turn if all others always want to run: `shares_by_vm` as in
/// [`crate::scheduler::Scheduler::shares_by_vm`].
fn time_between_turns_ns(machine: &Machine, vm: u32, shares_by_vm: bool, turn_ns: u64) -> u64 {
    let weight_of = |vm: &HostVm| {
        let of_each = f64::from(vm.weight);
        if shares_by_vm { of_each / f64::from(vm.vcpus) } else { of_each }
    };
    let all: f64 = machine.vms.iter().map(|vm| weight_of(vm) * f64::from(vm.vcpus)).sum();
    let own = &machine.vms[vm as usize];
    // Nothing says who else may run where it may: all of them, at the worst.
    let pcpus = (0..machine.pcpus.len() as u32).filter(|&pcpu| own.allows(pcpu)).count();
    (turn_ns as f64 * all / weight_of(own) / pcpus.max(1) as f64) as u64
}

fn index_of(kind: IpiKind) -> Option<usize> {
    match kind {
        IpiKind::Reschedule => Some(0),
        IpiKind::CallFunction => Some(1),
        IpiKind::LockKick => None,
    }
}

impl Simulation<'_> {
    /// Hands the events of this instant to the sink and to the checker.
    pub(crate) fn flush_trace(&mut self) -> Result<(), SimError> {
        let time_ns = self.machine.now_ns;
        let mut events = std::mem::take(&mut self.machine.trace);
        for event in &events {
            if self.sink_wants {
                self.sink.event(time_ns, event);
            }
            if let Some(checker) = &mut self.checker {
                checker.observe(time_ns, event).map_err(|what| SimError::Check { time_ns, what })?;
            }
        }
        if let Some(checker) = &self.checker {
            checker.settled().map_err(|what| SimError::Check { time_ns, what })?;
        }
        events.clear();
        self.machine.trace = events;
        Ok(())
    }

    pub(crate) fn check_now(&self) -> Result<(), SimError> {
        let Some(checker) = &self.checker else { return Ok(()) };
        let lends = self.scheduler.lends();
        let may_idle = |pcpu| self.scheduler.is_micro(pcpu) && !lends;
        checker
            .check_host(&self.machine, may_idle, self.scheduler.shares_by_vm())
            .and_then(|()| self.nothing_is_lost(checker))
            .map_err(|what| SimError::Check { time_ns: self.machine.now_ns, what })
    }

    fn nothing_is_lost(&self, checker: &Checker) -> Result<(), String> {
        self.no_wake_up_is_lost()?;
        self.no_interrupt_is_lost(&checker.pending)
    }

    /// At the end: is nothing lost, and does the time add up?
    pub(crate) fn final_checks(&mut self) -> Result<(), SimError> {
        if self.checker.is_none() {
            return Ok(());
        }
        if let Some(checker) = &self.checker {
            let time_ns = self.machine.now_ns;
            self.nothing_is_lost(checker).map_err(|what| SimError::Check { time_ns, what })?;
        }
        let now_ns = self.machine.now_ns;
        let idle_ns: u64 = self.machine.pcpu_times.iter().map(|pcpu| pcpu.idle_ns).sum();
        let sum_ns = self.guest_ns + self.overhead_ns + idle_ns;
        let elapsed_ns = (now_ns - self.measured_since_ns) * self.machine.pcpus.len() as u64;
        if sum_ns != elapsed_ns {
            let what = format!(
                "time doesn't add up: guest {} + overhead {} + idle {idle_ns} = {sum_ns}, elapsed x pCPUs = {elapsed_ns}",
                self.guest_ns, self.overhead_ns
            );
            return Err(SimError::Check { time_ns: now_ns, what });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{CreditConfig, HostConfig};
    use crate::scenario::{Overrides, load};
    use crate::trace_event::{AccelerationCause, GuestClass, StopReason};

    const SLICE_NS: u64 = 30_000_000;

    fn checker(grace: GraceLimits) -> Checker {
        let credit = CreditConfig {
            slice_ns: SLICE_NS,
            tick_ns: 10_000_000,
            ratelimit_ns: 0,
            boost: true,
            ratelimit_yields: true,
        };
        Checker { grace, ..Checker::new(2, 2, 1, &SchedulerKind::Credit(credit)) }
    }

    /// What the checker says about the last of these events; the ones before are in order.
    fn verdict(events: &[TraceEvent]) -> String {
        let mut checker = checker(GraceLimits { max: 2, slice_ns: 5 });
        let (last, first) = events.split_last().expect("an event");
        // One a nanosecond.
        let mut time_ns = 0..;
        let mut observe = |event| checker.observe(time_ns.next().expect("endless"), event);
        first.iter().for_each(|event| observe(event).expect("in order"));
        observe(last).expect_err("out of order")
    }

    const RUNS: TraceEvent = TraceEvent::Running { vcpu: 0, pcpu: 0, micro: false };
    const IPI: TraceEvent = TraceEvent::IpiSent { from: 0, to: 1, kind: IpiKind::Reschedule };
    const HANDLED: TraceEvent = TraceEvent::IpiHandled { vcpu: 1, kind: IpiKind::Reschedule };
    const ACCELERATED: TraceEvent = TraceEvent::Accelerated {
        vcpu: 0,
        pcpu: 1,
        cause: AccelerationCause::LockYield,
        class: GuestClass::LockHolder,
    };

    #[test]
    fn a_vcpu_on_two_pcpus_is_found() {
        let again = TraceEvent::Running { vcpu: 0, pcpu: 1, micro: false };
        assert_eq!(verdict(&[RUNS, again]), "vCPU 0 runs on pCPU 1 and on pCPU 0");
    }

    #[test]
    fn two_vcpus_on_a_pcpu_are_found() {
        let other = TraceEvent::Running { vcpu: 1, pcpu: 0, micro: false };
        assert_eq!(verdict(&[RUNS, other]), "pCPU 0 runs vCPU 1 and vCPU 0");
    }

    #[test]
    fn two_holders_of_a_lock_are_found() {
        let takes = |vcpu| TraceEvent::LockAcquired { vcpu, lock: 0, waited_ns: 0 };
        assert_eq!(verdict(&[takes(0), takes(1)]), "vCPU 1 takes lock 0 that vCPU 0 holds");
    }

    #[test]
    fn a_duplicated_and_an_invented_ipi_are_found() {
        assert_eq!(verdict(&[IPI, HANDLED, HANDLED]), "vCPU 1 handles one Reschedule IPI of 0 pending ones");
        assert_eq!(verdict(&[IPI, IPI, HANDLED]), "vCPU 1 handles one Reschedule IPI of 2 pending ones");
    }

    #[test]
    fn a_vcpu_in_the_micro_pool_without_acceleration_is_found() {
        let micro = TraceEvent::Running { vcpu: 0, pcpu: 1, micro: true };
        assert!(verdict(&[micro]).contains("(micro: true)"));
    }

    #[test]
    fn an_accelerated_vcpu_that_runs_elsewhere_or_returns_twice_is_found() {
        assert!(verdict(&[ACCELERATED, RUNS]).contains("(micro: false)"));
        let returned = TraceEvent::ReturnedToNormalPool { vcpu: 0, pcpu: 0 };
        assert!(verdict(&[ACCELERATED, returned, returned]).contains("wasn't in"));
    }

    const GOES_ON: TraceEvent = TraceEvent::TurnGoesOn { vcpu: 0, pcpu: 0 };
    const ENDED: TraceEvent = TraceEvent::TurnEnded { vcpu: 0, pcpu: 0 };
    const RETURNED: TraceEvent = TraceEvent::ReturnedToNormalPool { vcpu: 0, pcpu: 0 };
    const MICRO: TraceEvent = TraceEvent::Running { vcpu: 0, pcpu: 1, micro: true };

    #[test]
    fn a_turn_that_goes_on_more_often_than_grace_allows_is_found() {
        let error = verdict(&[RUNS, GOES_ON, GOES_ON, ENDED, GOES_ON, GOES_ON, GOES_ON]);
        assert_eq!(error, "vCPU 0's turn is made longer 3 times in a row, where 2 are allowed");
    }

    #[test]
    fn a_turn_that_goes_on_for_longer_than_a_micro_slice_is_found() {
        let others = [IPI, HANDLED, IPI, HANDLED, IPI, HANDLED];
        let error = verdict(&[&[RUNS, GOES_ON][..], &others, &[ENDED]].concat());
        assert_eq!(error, "vCPU 0's turn went on for 2 ns longer than a micro slice");
    }

    #[test]
    fn a_micro_slice_renewed_more_often_than_grace_allows_is_found() {
        let again = [RETURNED, ACCELERATED];
        let error = verdict(&[&[ACCELERATED, MICRO][..], &again, &again, &again].concat());
        assert_eq!(error, "vCPU 0 gets 3 micro slices more in a row than it was requested for");
    }

    #[test]
    fn two_vcpus_that_wait_for_one_micro_pcpu_are_found() {
        let mut checker = checker(GraceLimits::default());
        let other = TraceEvent::Accelerated {
            vcpu: 1,
            pcpu: 1,
            cause: AccelerationCause::LockYield,
            class: GuestClass::LockHolder,
        };
        [ACCELERATED, other].iter().for_each(|event| checker.observe(0, event).expect("in order"));
        assert_eq!(checker.settled().unwrap_err(), "vCPU 1 and another one wait for micro pCPU 1");
        checker.observe(0, &MICRO).expect("it runs");
        assert_eq!(checker.settled(), Ok(()));
    }

    #[test]
    fn a_pick_of_a_blocked_vcpu_is_found() {
        let mut checker = checker(GraceLimits::default());
        checker.picked(0, 1, VcpuState::Runnable);
        assert_eq!(checker.settled(), Ok(()));
        checker.picked(1, 0, VcpuState::Blocked);
        assert_eq!(checker.settled().unwrap_err(), "vCPU 1 is picked for pCPU 0, but is blocked");
    }

    /// What the checker says when all of a VM with this weight, beside another one with 1,000, have waited for so long.
    fn verdict_on_waiting(weight: u32, waited_ns: u64, shares_by_vm: bool) -> Result<(), String> {
        let host = load("gmake-swaptions", &Overrides::default()).expect("built in").config.host;
        let vms = vec![HostVm::new(2, weight, Vec::new()), HostVm::new(4, 1_000, Vec::new())];
        let mut machine = Machine::new(&HostConfig { pcpus: 2, ..host }, vms);
        (0..2).for_each(|vcpu| machine.wakes(vcpu));
        machine.now_ns = waited_ns;
        checker(GraceLimits::default()).check_host(&machine, |_| true, shares_by_vm)
    }

    #[test]
    fn who_waits_for_five_seconds_starves_unless_a_small_share_explains_it() {
        assert_eq!(verdict_on_waiting(1_000, STARVATION_NS, false), Ok(()));
        let starves = |waited_ns| Err(format!("vCPU 0 starves: runnable for {waited_ns} ns"));
        assert_eq!(verdict_on_waiting(1_000, STARVATION_NS + 1, false), starves(STARVATION_NS + 1));
        // Of two pCPUs one in 2,001 or, by VMs' weights, in 1,001 is its part.
        let due_ns = [TURNS_MISSED * SLICE_NS * 2_001, TURNS_MISSED * SLICE_NS * 1_001];
        for (by_vm, due_ns) in [false, true].into_iter().zip(due_ns) {
            assert_eq!(verdict_on_waiting(1, due_ns, by_vm), Ok(()));
            assert_eq!(verdict_on_waiting(1, due_ns + 1_000, by_vm), starves(due_ns + 1_000));
        }
    }

    #[test]
    fn a_stop_of_what_does_not_run_is_found() {
        let stop = TraceEvent::Stopping { vcpu: 0, pcpu: 1, reason: StopReason::Hlt, ip: 0, symbol: 0 };
        assert_eq!(verdict(&[RUNS, stop]), "vCPU 0 stops on pCPU 1 where it doesn't run");
    }
}
