//! The urgent queues of coordinated scheduling (ASPLOS'13, 3.1.3), from the trace alone.
//!
//! | invariant | how |
//! |---|---|
//! | first come, first served | all before a vCPU that is served, or runs, were refused at this instant |
//! | the allowance is kept | clocks of those served and of those refused, which the trace has |
//! | no vCPU is urgent for ever | one is urgent, and has run for so long since it was asked for last |

use crate::config::SchedulerKind;
use crate::events::TraceEvent;
use crate::ids::{IdVec, PcpuId, VcpuId};
use std::collections::VecDeque;

/// A running vCPU acknowledges an interrupt within microseconds, or within a critical section with interrupts
/// off. What a reschedule IPI asks for is below a millisecond.
const URGENT_RUN_MAX_NS: u64 = 1_000_000_000;

pub struct UrgentQueues {
    allowance_ns: u64,
    queues: IdVec<PcpuId, VecDeque<VcpuId>>,
    vcpus: IdVec<VcpuId, Urgency>,
}

#[derive(Debug, Default, Clone, Copy)]
struct Urgency {
    is_urgent: bool,
    /// It has run for so long since its last request, until it stopped.
    ran_ns: u64,
    running_since_ns: Option<u64>,
    refused_ns: Option<u64>,
    served_ns: Option<u64>,
}

impl UrgentQueues {
    pub fn new(pcpus: usize, vcpus: usize, scheduler: &SchedulerKind) -> Self {
        let allowance_ns = match scheduler {
            SchedulerKind::Cfs(config) => config.coordination.urgent_allowance_ns,
            _ => 0,
        };
        Self {
            allowance_ns,
            queues: IdVec::of(VecDeque::new(), pcpus),
            vcpus: IdVec::of(Urgency::default(), vcpus),
        }
    }

    pub fn observe(&mut self, time_ns: u64, event: &TraceEvent) -> Result<(), String> {
        match *event {
            TraceEvent::UrgencyRequested { vcpu } => {
                let urgency = &mut self.vcpus[vcpu];
                (urgency.is_urgent, urgency.ran_ns) = (true, 0);
                urgency.running_since_ns = urgency.running_since_ns.map(|_| time_ns);
            }
            TraceEvent::UrgencyEnded { vcpu } => self.vcpus[vcpu].is_urgent = false,
            TraceEvent::UrgentQueued { vcpu, pcpu } => {
                if let Some(other) = self.queue_of(vcpu) {
                    return Err(format!(
                        "vCPU {vcpu} is in the urgent queues of pCPU {other} and pCPU {pcpu}"
                    ));
                }
                self.queues[pcpu].push_back(vcpu);
            }
            TraceEvent::UrgentUnqueued { vcpu, pcpu } => self.queues[pcpu].retain(|&waiter| waiter != vcpu),
            TraceEvent::UrgentRefused { vcpu, ahead_ns, .. } => {
                if ahead_ns <= self.allowance_ns {
                    return Err(format!("vCPU {vcpu} is refused though it is only {ahead_ns} ns ahead"));
                }
                self.vcpus[vcpu].refused_ns = Some(time_ns);
            }
            TraceEvent::UrgentServed { vcpu, pcpu, ahead_ns } => {
                return self.served(time_ns, vcpu, pcpu, ahead_ns);
            }
            TraceEvent::Running { vcpu, pcpu, .. } => {
                // Those behind the served one aren't passed over.
                if self.vcpus[vcpu].served_ns != Some(time_ns) {
                    self.nobody_was_passed_over(time_ns, vcpu, pcpu)?;
                }
                self.vcpus[vcpu].running_since_ns = Some(time_ns);
            }
            TraceEvent::Stopping { vcpu, .. } => {
                let urgency = &mut self.vcpus[vcpu];
                urgency.ran_ns += urgency.running_since_ns.take().map_or(0, |since_ns| time_ns - since_ns);
            }
            _ => {}
        }
        Ok(())
    }

    fn queue_of(&self, vcpu: VcpuId) -> Option<PcpuId> {
        self.queues.enumerate().find(|(_, queue)| queue.contains(&vcpu)).map(|(pcpu, _)| pcpu)
    }

    fn served(&mut self, time_ns: u64, vcpu: VcpuId, pcpu: PcpuId, ahead_ns: u64) -> Result<(), String> {
        if ahead_ns > self.allowance_ns {
            return Err(format!(
                "vCPU {vcpu} goes first though it is {ahead_ns} ns ahead, where {} are allowed",
                self.allowance_ns
            ));
        }
        if !self.queues[pcpu].contains(&vcpu) {
            return Err(format!(
                "vCPU {vcpu} is served from the urgent queue of pCPU {pcpu} without being there"
            ));
        }
        self.nobody_was_passed_over(time_ns, vcpu, pcpu)?;
        self.queues[pcpu].retain(|&waiter| waiter != vcpu);
        self.vcpus[vcpu].served_ns = Some(time_ns);
        Ok(())
    }

    /// Those before `vcpu` in the queue were refused just now; so were all, if it isn't there and wasn't
    /// served from it.
    fn nobody_was_passed_over(&self, time_ns: u64, vcpu: VcpuId, pcpu: PcpuId) -> Result<(), String> {
        let before = self.queues[pcpu].iter().take_while(|&&waiter| waiter != vcpu);
        let mut unheard = before.filter(|&&waiter| self.vcpus[waiter].refused_ns != Some(time_ns));
        match unheard.next() {
            Some(waiter) => Err(format!("vCPU {vcpu} goes before vCPU {waiter}, which came sooner")),
            None => Ok(()),
        }
    }

    pub fn nobody_is_urgent_for_ever(&self, now_ns: u64) -> Result<(), String> {
        for (vcpu, urgency) in self.vcpus.enumerate().filter(|(_, urgency)| urgency.is_urgent) {
            let ran_ns = urgency.ran_ns + urgency.running_since_ns.map_or(0, |since_ns| now_ns - since_ns);
            if ran_ns > URGENT_RUN_MAX_NS {
                return Err(format!(
                    "vCPU {vcpu} is urgent though it has run for {ran_ns} ns since it was asked for"
                ));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::events::StopReason;
    use crate::samples;

    const ALLOWED_NS: u64 = 18_000_000;
    const PCPU: PcpuId = PcpuId::new(0);

    fn queued(vcpu: u32) -> TraceEvent {
        TraceEvent::UrgentQueued { vcpu: VcpuId::new(vcpu), pcpu: PCPU }
    }

    fn served(vcpu: u32, ahead_ns: u64) -> TraceEvent {
        TraceEvent::UrgentServed { vcpu: VcpuId::new(vcpu), pcpu: PCPU, ahead_ns }
    }

    fn refused(vcpu: u32, ahead_ns: u64) -> TraceEvent {
        TraceEvent::UrgentRefused { vcpu: VcpuId::new(vcpu), pcpu: PCPU, ahead_ns }
    }

    fn runs(vcpu: u32) -> TraceEvent {
        TraceEvent::Running { vcpu: VcpuId::new(vcpu), pcpu: PCPU, micro: false }
    }

    fn stops(vcpu: u32) -> TraceEvent {
        let reason = StopReason::Preempted;
        TraceEvent::Stopping {
            vcpu: VcpuId::new(vcpu),
            pcpu: PCPU,
            reason,
            ip: 0,
            symbol: Default::default(),
        }
    }

    /// Of a run under `coordinated`, with the paper's allowance.
    fn queues() -> UrgentQueues {
        UrgentQueues::new(2, 3, &SchedulerKind::Cfs(samples::cfs()))
    }

    /// What is said about these events, each with its time.
    fn verdict(events: &[(u64, TraceEvent)]) -> Result<(), String> {
        let mut queues = queues();
        events.iter().try_for_each(|(time_ns, event)| queues.observe(*time_ns, event))
    }

    #[test]
    fn urgent_vcpus_served_in_the_order_of_coming_within_the_allowance_are_in_order() {
        let events = [queued(1), queued(2), served(1, ALLOWED_NS), runs(1), stops(1), served(2, 0), runs(2)];
        let times = [1, 2, 3, 3, 9, 9, 9];
        assert_eq!(verdict(&std::iter::zip(times, events).collect::<Vec<_>>()), Ok(()));
    }

    #[test]
    fn an_urgent_vcpu_served_before_another_that_came_sooner_is_found() {
        let error = verdict(&[(1, queued(1)), (2, queued(2)), (3, served(2, 0))]);
        assert_eq!(error, Err("vCPU 2 goes before vCPU 1, which came sooner".to_owned()));
        let far = ALLOWED_NS + 1;
        let refused_now =
            [(1, queued(1)), (2, queued(2)), (3, refused(1, far)), (3, served(2, 0)), (3, runs(2))];
        assert_eq!(verdict(&refused_now), Ok(()));
        let refused_long_ago = [(1, queued(1)), (2, refused(1, far)), (2, queued(2)), (3, served(2, 0))];
        assert!(verdict(&refused_long_ago).is_err());
    }

    #[test]
    fn a_vcpu_that_runs_though_an_urgent_one_waits_that_was_not_refused_is_found() {
        let error = verdict(&[(1, queued(1)), (2, runs(0))]);
        assert_eq!(error, Err("vCPU 0 goes before vCPU 1, which came sooner".to_owned()));
        assert_eq!(verdict(&[(1, queued(1)), (2, refused(1, ALLOWED_NS + 1)), (2, runs(0))]), Ok(()));
    }

    #[test]
    fn an_allowance_that_is_exceeded_or_withheld_is_found() {
        let error = verdict(&[(1, queued(1)), (2, served(1, ALLOWED_NS + 1))]);
        assert_eq!(
            error,
            Err("vCPU 1 goes first though it is 18000001 ns ahead, where 18000000 are allowed".to_owned())
        );
        let error = verdict(&[(1, queued(1)), (2, refused(1, ALLOWED_NS))]);
        assert_eq!(error, Err("vCPU 1 is refused though it is only 18000000 ns ahead".to_owned()));
    }

    #[test]
    fn a_vcpu_that_is_urgent_for_ever_is_found_once_it_has_run_for_too_long() {
        let requested = TraceEvent::UrgencyRequested { vcpu: VcpuId::new(1) };
        let mut queues = queues();
        for (time_ns, event) in [(1, requested), (5, runs(1)), (105, stops(1)), (200, runs(1))] {
            queues.observe(time_ns, &event).expect("in order");
        }
        let late_ns = 200 + URGENT_RUN_MAX_NS - 100;
        assert_eq!(queues.nobody_is_urgent_for_ever(late_ns), Ok(()));
        assert!(queues.nobody_is_urgent_for_ever(late_ns + 1).is_err());
        queues.observe(late_ns, &requested).expect("asked for again");
        assert_eq!(queues.nobody_is_urgent_for_ever(late_ns + 1), Ok(()));
        queues.observe(late_ns, &TraceEvent::UrgencyEnded { vcpu: VcpuId::new(1) }).expect("in order");
        assert_eq!(queues.nobody_is_urgent_for_ever(u64::MAX / 2), Ok(()));
    }

    #[test]
    fn a_vcpu_in_two_queues_or_served_from_one_that_it_is_not_in_is_found() {
        let elsewhere = TraceEvent::UrgentQueued { vcpu: VcpuId::new(1), pcpu: PcpuId::new(1) };
        assert!(verdict(&[(1, queued(1)), (2, elsewhere)]).is_err());
        assert!(verdict(&[(1, served(1, 0))]).is_err());
    }
}
