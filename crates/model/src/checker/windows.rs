//! Windows around the ends of turns (VM'04, 3.3), from the trace alone.
//!
//! | invariant | how |
//! |---|---|
//! | a window at the most puts a preemption off | `PreemptionPutOff` to `WindowEnded`, or to its leaving |
//! | only a vCPU that isn't safe is put off | its class, where that decides |
//! | where an urgent vCPU waits none is put off | `UrgentQueued` until served, or gone |
//! | turns are as long as due on average | the sum of all that a vCPU's turns ended late or early: bounded |

use crate::config::DelayPreemptionConfig;
use crate::events::{StopReason, TraceEvent};
use crate::ids::{IdVec, PcpuId, VcpuId};
use microslice_policy::DelayUnsafe;
use microslice_policy::GuestClass;

pub struct Windows {
    delay: Option<DelayPreemptionConfig>,
    vcpus: IdVec<VcpuId, Window>,
    urgent_waiters: IdVec<PcpuId, u32>,
}

#[derive(Debug, Default, Clone, Copy)]
struct Window {
    until_ns: Option<u64>,
    /// By how much its turns were longer than due, all together.
    beyond_ns: i64,
}

impl Windows {
    pub fn new(pcpus: usize, vcpus: usize, delay: Option<&DelayPreemptionConfig>) -> Self {
        Self {
            delay: delay.cloned(),
            vcpus: IdVec::of(Window::default(), vcpus),
            urgent_waiters: IdVec::of(0, pcpus),
        }
    }

    pub fn observe(&mut self, time_ns: u64, event: &TraceEvent) -> Result<(), String> {
        let Some(delay) = &self.delay else { return Ok(()) };
        match *event {
            TraceEvent::UrgentQueued { pcpu, .. } => {
                self.urgent_waiters[pcpu] += 1;
                Ok(())
            }
            TraceEvent::UrgentUnqueued { pcpu, .. } | TraceEvent::UrgentServed { pcpu, .. } => {
                self.urgent_waiters[pcpu] = self.urgent_waiters[pcpu].saturating_sub(1);
                Ok(())
            }
            TraceEvent::PreemptionPutOff { vcpu, pcpu, class, until_ns } => {
                if self.urgent_waiters[pcpu] > 0 {
                    return Err(format!("vCPU {vcpu} is put off on pCPU {pcpu}, where an urgent vCPU waits"));
                }
                if until_ns > time_ns + delay.window_ns {
                    return Err(format!(
                        "vCPU {vcpu} is put off by {} ns, longer than a window",
                        until_ns - time_ns
                    ));
                }
                if delay.unsafe_where == DelayUnsafe::InKernel
                    && matches!(class, GuestClass::User | GuestClass::Idle)
                {
                    return Err(format!("vCPU {vcpu} is put off in {class:?}, where it is safe"));
                }
                match self.vcpus[vcpu].until_ns.replace(until_ns) {
                    Some(_) => Err(format!("vCPU {vcpu} is put off twice in one window")),
                    None => Ok(()),
                }
            }
            TraceEvent::WindowEnded { vcpu, due_ns, .. } => {
                let window = &mut self.vcpus[vcpu];
                if window.until_ns.take().is_some_and(|until_ns| time_ns > until_ns) {
                    return Err(format!("vCPU {vcpu}'s window ends too late"));
                }
                window.beyond_ns += due_ns.map_or(0, |due_ns| time_ns as i64 - due_ns as i64);
                let most_ns = delay.window_ns * u64::from(delay.history + 1) / 2;
                if window.beyond_ns.unsigned_abs() > most_ns + delay.window_ns {
                    return Err(format!(
                        "vCPU {vcpu}'s turns are {} ns longer than due, all together",
                        window.beyond_ns
                    ));
                }
                Ok(())
            }
            TraceEvent::Stopping { vcpu, reason, .. } => match self.vcpus[vcpu].until_ns.take() {
                Some(_) if matches!(reason, StopReason::SliceExpired | StopReason::Preempted) => {
                    Err(format!("vCPU {vcpu} is preempted in its window, which hasn't ended"))
                }
                _ => Ok(()),
            },
            _ => Ok(()),
        }
    }

    pub fn nobody_is_put_off_for_ever(&self, now_ns: u64) -> Result<(), String> {
        let late = self
            .vcpus
            .enumerate()
            .find(|(_, window)| window.until_ns.is_some_and(|until_ns| now_ns > until_ns));
        late.map_or(Ok(()), |(vcpu, _)| Err(format!("vCPU {vcpu} is put off beyond its window")))
    }
}
