//! Invariants, verified as far as possible from the stream of trace events: independent of the code that they
//! check. The last five look at counters and at the state of host and guests, most of them once a simulated
//! millisecond.
//!
//! | invariant | how |
//! |---|---|
//! | no vCPU on two pCPUs, no pCPU with two vCPUs | running / stopping pairs |
//! | no blocked vCPU runs | what the scheduler picks |
//! | mutual exclusion | acquired / released pairs, per lock |
//! | no lost or duplicated IPI | each vCPU: sent and not merged = handled + pending |
//! | micro pool | only accelerated vCPUs run there, one waits for each pCPU, all return after a slice |
//! | urgent queue | in order, none beyond its allowance, none for ever (`checker/urgent.rs`) |
//! | boosts | each ends before its vCPU stops; a VM keeps to its budget (`checker/boosts.rs`) |
//! | grace | a turn, or a stay in the micro pool, grows a few times in a row, by a micro slice each |
//! | windows | none is put off beyond its window, nor where it is safe (`checker/windows.rs`) |
//! | time adds up | elapsed x pCPUs = guest + overhead + idle, at the end |
//! | no lost wake-up | none waits beside a free lock; none halts that has something to do (`guest/lost.rs`) |
//! | waiting vCPUs are counted right | [`Machine::waiting_adds_up`] |
//! | work conservation | no pCPU of the normal pool stays idle while a vCPU that may run there waits |
//! | no starvation | none waits longer than turns and weights explain (`checker/starvation.rs`) |

use crate::config::{DelayPreemptionConfig, Mechanics, SchedulerKind};
use crate::events::{IpiKind, TraceEvent};
use crate::ids::{IdVec, LockId, PcpuId, VcpuId};
use crate::machine::{Machine, VcpuState};
use boosts::BoostBudgets;
use starvation::Starvation;
use std::collections::{BTreeMap, BTreeSet};
use urgent::UrgentQueues;
use windows::Windows;

/// An idle pCPU looks for work at the latest one host tick after some appeared (idle pCPUs are tickled at
/// wake-ups).
const IDLE_BESIDE_WORK_NS: u64 = 20_000_000;

pub struct Checker {
    on: IdVec<VcpuId, Option<PcpuId>>,
    runs: IdVec<PcpuId, Option<VcpuId>>,
    owners: IdVec<LockId, Option<VcpuId>>,
    /// IPIs to each vCPU that it hasn't handled: reschedule, call function.
    pending: IdVec<VcpuId, [u32; 2]>,
    /// The vCPUs in the micro pool.
    accelerated: BTreeMap<VcpuId, Acceleration>,
    micro_slice: MicroSlice,
    /// A blocked vCPU was picked: which, and for which pCPU.
    blocked_pick: Option<(VcpuId, PcpuId)>,
    grace: GraceLimits,
    /// Of each vCPU.
    longer: IdVec<VcpuId, Longer>,
    urgent: UrgentQueues,
    windows: Windows,
    boosts: BoostBudgets,
    starvation: Starvation,
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
            // No vCPU is switched away from within the rate limit, not even one that came back for a micro
            // slice.
            SchedulerKind::MicroSliced(config) => {
                Self { max: config.grace, slice_ns: config.micro_slice_ns.max(config.normal.ratelimit_ns()) }
            }
            SchedulerKind::Beside(config) => Self { max: config.grace, slice_ns: config.micro_slice_ns },
            _ => Self::default(),
        }
    }
}

/// A stay in the micro pool.
#[derive(Debug, Clone, Copy)]
struct Acceleration {
    pcpu: PcpuId,
    /// Since when its micro slice lasts, once it runs.
    began_ns: Option<u64>,
}

/// How long a stay in the micro pool lasts.
#[derive(Debug, Default, Clone, Copy)]
struct MicroSlice {
    slice_ns: u64,
    /// In the prototype it begins again whenever its vCPU spins and nobody else waits there.
    spinning_renews: bool,
}

impl MicroSlice {
    fn of(scheduler: &SchedulerKind) -> Self {
        match scheduler {
            SchedulerKind::MicroSliced(config) => Self {
                slice_ns: config.micro_slice_ns,
                spinning_renews: config.mechanics == Mechanics::XenPrototype,
            },
            SchedulerKind::Beside(config) => Self { slice_ns: config.micro_slice_ns, spinning_renews: false },
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
    pub fn new(
        pcpus: usize,
        vcpus: usize,
        locks: usize,
        scheduler: &SchedulerKind,
        delay: Option<&DelayPreemptionConfig>,
    ) -> Self {
        Self {
            on: IdVec::of(None, vcpus),
            runs: IdVec::of(None, pcpus),
            owners: IdVec::of(None, locks),
            pending: IdVec::of([0; 2], vcpus),
            accelerated: BTreeMap::new(),
            blocked_pick: None,
            micro_slice: MicroSlice::of(scheduler),
            grace: GraceLimits::of(scheduler),
            longer: IdVec::of(Longer::default(), vcpus),
            urgent: UrgentQueues::new(pcpus, vcpus, scheduler),
            windows: Windows::new(pcpus, vcpus, delay),
            boosts: BoostBudgets::new(vcpus, scheduler),
            starvation: Starvation::new(scheduler, delay),
        }
    }

    /// One event later: is everything as it must be?
    pub fn observe(&mut self, time_ns: u64, event: &TraceEvent) -> Result<(), String> {
        self.urgent.observe(time_ns, event)?;
        self.windows.observe(time_ns, event)?;
        self.boosts.observe(time_ns, event)?;
        match *event {
            TraceEvent::Running { vcpu, pcpu, micro } => self.running(time_ns, vcpu, pcpu, micro),
            TraceEvent::Stopping { vcpu, pcpu, .. } => {
                let (on, runs) = (&mut self.on[vcpu], &mut self.runs[pcpu]);
                if on.take() != Some(pcpu) || runs.take() != Some(vcpu) {
                    return Err(format!("vCPU {vcpu} stops on pCPU {pcpu} where it doesn't run"));
                }
                match self.accelerated.get_mut(&vcpu) {
                    // It was asked for again at the end of its micro slice, and waits now.
                    Some(acceleration) => acceleration.began_ns = None,
                    None => self.longer[vcpu].micro_slices = 0,
                }
                self.turn_ends(time_ns, vcpu)
            }
            TraceEvent::TurnGoesOn { vcpu, .. } => self.turn_goes_on(time_ns, vcpu),
            TraceEvent::TurnEnded { vcpu, .. } => self.turn_ends(time_ns, vcpu),
            TraceEvent::LockAcquired { vcpu, lock, .. } => match self.owners[lock].replace(vcpu) {
                None => Ok(()),
                Some(owner) => Err(format!("vCPU {vcpu} takes lock {lock} that vCPU {owner} holds")),
            },
            TraceEvent::LockReleased { vcpu, lock } => match self.owners[lock].take() {
                Some(owner) if owner == vcpu => Ok(()),
                owner => Err(format!("vCPU {vcpu} releases lock {lock} of {owner:?}")),
            },
            TraceEvent::IpiSent { to, kind, .. } => self.ipi_sent(to, kind),
            TraceEvent::IpiHandled { vcpu, kind } => self.ipi_handled(vcpu, kind),
            TraceEvent::Accelerated { vcpu, pcpu, .. } => {
                // A vCPU that is asked for where its micro slice ends has the next one at once, or waits.
                let began_ns = self.on[vcpu].map(|_| time_ns);
                if self.accelerated.insert(vcpu, Acceleration { pcpu, began_ns }).is_some() {
                    return Err(format!("vCPU {vcpu} is accelerated twice without a return"));
                }
                self.micro_slice_follows(vcpu)
            }
            TraceEvent::ReturnedToNormalPool { vcpu, .. } => {
                self.micro_slice_lasts(time_ns, vcpu)?;
                if self.accelerated.remove(&vcpu).is_none() {
                    return Err(format!("vCPU {vcpu} returns from a micro pool it wasn't in"));
                }
                Ok(())
            }
            TraceEvent::PauseLoopExits { vcpu, .. } | TraceEvent::ShootdownBegan { vcpu, .. } => {
                self.spins(time_ns, vcpu)
            }
            _ => Ok(()),
        }
    }

    fn running(&mut self, time_ns: u64, vcpu: VcpuId, pcpu: PcpuId, micro: bool) -> Result<(), String> {
        if let Some(other) = self.on[vcpu].replace(pcpu) {
            return Err(format!("vCPU {vcpu} runs on pCPU {pcpu} and on pCPU {other}"));
        }
        if let Some(other) = self.runs[pcpu].replace(vcpu) {
            return Err(format!("pCPU {pcpu} runs vCPU {vcpu} and vCPU {other}"));
        }
        if micro != self.accelerated.contains_key(&vcpu) {
            return Err(format!(
                "vCPU {vcpu} runs on pCPU {pcpu} (micro: {micro}) though accelerated is {}",
                !micro
            ));
        }
        if let Some(acceleration) = self.accelerated.get_mut(&vcpu) {
            if acceleration.pcpu != pcpu {
                return Err(format!(
                    "vCPU {vcpu} runs on pCPU {pcpu} though it is accelerated on pCPU {}",
                    acceleration.pcpu
                ));
            }
            acceleration.began_ns = Some(time_ns);
        }
        Ok(())
    }

    fn spins(&mut self, time_ns: u64, vcpu: VcpuId) -> Result<(), String> {
        self.micro_slice_lasts(time_ns, vcpu)?;
        if let Some(acceleration) =
            self.accelerated.get_mut(&vcpu).filter(|_| self.micro_slice.spinning_renews)
        {
            acceleration.began_ns = acceleration.began_ns.map(|_| time_ns);
        }
        Ok(())
    }

    /// Each stay in the micro pool ends with its micro slice; another one is another acceleration, of which
    /// grace allows a few.
    fn micro_slice_lasts(&self, time_ns: u64, vcpu: VcpuId) -> Result<(), String> {
        let Some(began_ns) = self.accelerated.get(&vcpu).and_then(|stay| stay.began_ns) else {
            return Ok(());
        };
        if time_ns - began_ns <= self.micro_slice.slice_ns {
            return Ok(());
        }
        let ran_ns = time_ns - began_ns;
        Err(format!(
            "vCPU {vcpu} runs accelerated for {ran_ns} ns, where {} are allowed",
            self.micro_slice.slice_ns
        ))
    }

    /// IPIs to each vCPU that it hasn't handled: reschedule, call function.
    pub fn pending_ipis(&self) -> &IdVec<VcpuId, [u32; 2]> {
        &self.pending
    }

    /// What the scheduler picks. Not an event: a vCPU that is picked again runs on without one.
    pub fn picked(&mut self, vcpu: VcpuId, pcpu: PcpuId, state: VcpuState) {
        if state == VcpuState::Blocked {
            self.blocked_pick.get_or_insert((vcpu, pcpu));
        }
    }

    fn turn_goes_on(&mut self, time_ns: u64, vcpu: VcpuId) -> Result<(), String> {
        let GraceLimits { max, slice_ns } = self.grace;
        let turn = self.longer[vcpu].turn + 1;
        self.turn_ends(time_ns, vcpu)?;
        self.longer[vcpu].turn = turn;
        self.longer[vcpu].until_ns = Some(time_ns + slice_ns);
        if turn > max {
            return Err(format!(
                "vCPU {vcpu}'s turn is made longer {turn} times in a row, where {max} are allowed"
            ));
        }
        Ok(())
    }

    fn turn_ends(&mut self, time_ns: u64, vcpu: VcpuId) -> Result<(), String> {
        let longer = &mut self.longer[vcpu];
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
    fn micro_slice_follows(&mut self, vcpu: VcpuId) -> Result<(), String> {
        let count = &mut self.longer[vcpu].micro_slices;
        *count = if self.on[vcpu].is_some() { *count + 1 } else { *count };
        if *count > self.grace.max {
            return Err(format!(
                "vCPU {vcpu} gets {count} micro slices more in a row than it was requested for"
            ));
        }
        Ok(())
    }

    fn ipi_sent(&mut self, to: VcpuId, kind: IpiKind) -> Result<(), String> {
        if let Some(index) = index_of(kind) {
            self.pending[to][index] += 1;
        }
        Ok(())
    }

    fn ipi_handled(&mut self, vcpu: VcpuId, kind: IpiKind) -> Result<(), String> {
        let Some(index) = index_of(kind) else { return Ok(()) };
        let pending = &mut self.pending[vcpu][index];
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
        let waiting = self.accelerated.iter().filter(|(vcpu, _)| self.on[**vcpu].is_none());
        for (vcpu, Acceleration { pcpu, .. }) in waiting {
            if !waited_for.insert(pcpu) {
                return Err(format!("vCPU {vcpu} and another one wait for micro pCPU {pcpu}"));
            }
        }
        Ok(())
    }

    /// Slower properties, once a simulated millisecond.
    pub fn check_host(&self, machine: &Machine, may_idle: impl Fn(PcpuId) -> bool) -> Result<(), String> {
        let now_ns = machine.now_ns;
        self.accelerated.keys().try_for_each(|&vcpu| self.micro_slice_lasts(now_ns, vcpu))?;
        self.urgent.nobody_is_urgent_for_ever(now_ns)?;
        self.windows.nobody_is_put_off_for_ever(now_ns)?;
        self.boosts.nobody_exceeds_its_budget(machine)?;
        if !machine.waiting_adds_up() {
            return Err("the waiting vCPUs' kinds are miscounted".into());
        }
        for (id, vcpu) in machine.vcpus.enumerate() {
            if vcpu.state != VcpuState::Runnable {
                continue;
            }
            let waited_ns = now_ns - vcpu.since_ns;
            self.starvation.check(machine, id, waited_ns)?;
            let idle = machine.pcpus.ids().find(|&pcpu| {
                machine.is_idle(pcpu)
                    && !may_idle(pcpu)
                    && machine.allows(id, pcpu)
                    && now_ns - machine.pcpu_times[pcpu].since_ns > IDLE_BESIDE_WORK_NS
            });
            if let Some(pcpu) = idle
                && waited_ns > IDLE_BESIDE_WORK_NS
            {
                return Err(format!("pCPU {pcpu} idles while vCPU {id} waits for {waited_ns} ns"));
            }
        }
        Ok(())
    }
}

fn index_of(kind: IpiKind) -> Option<usize> {
    match kind {
        IpiKind::Reschedule => Some(0),
        IpiKind::CallFunction => Some(1),
        IpiKind::LockKick => None,
    }
}

mod boosts;
mod starvation;
#[cfg(test)]
mod tests;
mod urgent;
mod windows;
