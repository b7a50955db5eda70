//! One line per event: `time_ns event vcpu key=value…`. The same run gives the same bytes.

use super::{ipi_name, name_at, stop_name, vcpu_name};
use microslice_model::events::{TraceEvent, TraceNames, TraceSink};
use microslice_model::ids::{LockId, PcpuId, VcpuId};
use microslice_policy::Coded;
use std::io::{self, Write};

/// Writes lines.
pub struct TextTrace<W: Write> {
    out: W,
    names: TraceNames,
    error: Option<io::Error>,
    bytes_left: u64,
    full_at_ns: Option<u64>,
}

impl<W: Write> TextTrace<W> {
    /// At most so many bytes.
    pub fn new(out: W, bytes_max: u64) -> Self {
        Self { out, names: TraceNames::default(), error: None, bytes_left: bytes_max, full_at_ns: None }
    }

    /// Where in the run the trace ended because it is as large as it may be.
    pub fn full_at_ns(&self) -> Option<u64> {
        self.full_at_ns
    }

    /// Flushes, and says whether everything was written.
    pub fn finish(mut self) -> io::Result<W> {
        match self.error {
            Some(error) => Err(error),
            None => self.out.flush().map(|()| self.out),
        }
    }

    fn line(&self, event: &TraceEvent) -> String {
        let vcpu = |vcpu: VcpuId| vcpu_name(&self.names, vcpu);
        let at = |what: &str, v: VcpuId, pcpu: PcpuId| format!("{what} {} pcpu={pcpu}", vcpu(v));
        let lock = |lock: LockId| name_at(&self.names.locks, lock);
        let with = |what: &str, v: VcpuId, l: LockId| format!("{what} {} lock={}", vcpu(v), lock(l));
        match *event {
            TraceEvent::Running { vcpu: v, pcpu, micro } => {
                format!("{}{}", at("running", v, pcpu), if micro { " micro" } else { "" })
            }
            TraceEvent::Stopping { vcpu: v, pcpu, reason, ip, symbol } => {
                let (at, symbol) = (at("stopping", v, pcpu), name_at(&self.names.symbols, symbol));
                format!("{at} reason={} ip={ip:#x} in={symbol}", stop_name(reason))
            }
            TraceEvent::Runnable { vcpu: v } => format!("runnable {}", vcpu(v)),
            TraceEvent::Blocked { vcpu: v } => format!("blocked {}", vcpu(v)),
            TraceEvent::PauseLoopExits { vcpu: v, count } => {
                format!("pause_loop_exits {} count={count}", vcpu(v))
            }
            TraceEvent::IpiSent { from, to, kind } => {
                format!("ipi_sent {} to={} kind={}", vcpu(from), vcpu(to), ipi_name(kind))
            }
            TraceEvent::IpiHandled { vcpu: v, kind } => {
                format!("ipi_handled {} kind={}", vcpu(v), ipi_name(kind))
            }
            TraceEvent::VirqRaised { vcpu: v } => format!("virq_raised {}", vcpu(v)),
            TraceEvent::VirqHandled { vcpu: v } => format!("virq_handled {}", vcpu(v)),
            TraceEvent::Accelerated { vcpu: v, pcpu, cause, class } => {
                let at = at("accelerated", v, pcpu);
                format!("{at} cause={} class={}", cause.name(), class.name())
            }
            TraceEvent::ReturnedToNormalPool { vcpu: v, pcpu } => at("returned_to_normal_pool", v, pcpu),
            TraceEvent::TurnGoesOn { vcpu: v, pcpu } => at("turn_goes_on", v, pcpu),
            TraceEvent::TurnEnded { vcpu: v, pcpu } => at("turn_ended", v, pcpu),
            TraceEvent::PreemptionPutOff { vcpu: v, pcpu, class, until_ns } => {
                let at = at("preemption_put_off", v, pcpu);
                format!("{at} class={} until_ns={until_ns}", class.name())
            }
            TraceEvent::WindowEnded { vcpu: v, pcpu, due_ns, forced } => {
                let due = due_ns.map_or(String::new(), |due_ns| format!(" due_ns={due_ns}"));
                format!("{}{due}{}", at("window_ended", v, pcpu), if forced { " forced" } else { "" })
            }
            TraceEvent::UrgencyRequested { vcpu: v } => format!("urgency_requested {}", vcpu(v)),
            TraceEvent::UrgencyEnded { vcpu: v } => format!("urgency_ended {}", vcpu(v)),
            TraceEvent::UrgentQueued { vcpu: v, pcpu } => at("urgent_queued", v, pcpu),
            TraceEvent::UrgentUnqueued { vcpu: v, pcpu } => at("urgent_unqueued", v, pcpu),
            TraceEvent::UrgentServed { vcpu: v, pcpu, ahead_ns } => {
                format!("{} ahead_ns={ahead_ns}", at("urgent_served", v, pcpu))
            }
            TraceEvent::UrgentRefused { vcpu: v, pcpu, ahead_ns } => {
                format!("{} ahead_ns={ahead_ns}", at("urgent_refused", v, pcpu))
            }
            TraceEvent::PoolResized { micro_pcpus } => format!("pool_resized micro_pcpus={micro_pcpus}"),
            TraceEvent::ThreadSwitched { vcpu: v, thread } => {
                format!("thread_switched {} to={}", vcpu(v), name_at(&self.names.threads, thread))
            }
            TraceEvent::LockWaitBegan { vcpu: v, lock: l } => with("lock_wait_began", v, l),
            TraceEvent::LockAcquired { vcpu: v, lock: l, waited_ns } => {
                format!("{} waited_ns={waited_ns}", with("lock_acquired", v, l))
            }
            TraceEvent::LockReleased { vcpu: v, lock: l } => with("lock_released", v, l),
            TraceEvent::ShootdownBegan { vcpu: v, targets } => {
                format!("shootdown_began {} targets={targets}", vcpu(v))
            }
            TraceEvent::ShootdownEnded { vcpu: v, waited_ns } => {
                format!("shootdown_ended {} waited_ns={waited_ns}", vcpu(v))
            }
        }
    }
}

impl<W: Write> TraceSink for TextTrace<W> {
    fn begin(&mut self, names: &TraceNames) {
        self.names = names.clone();
    }

    fn event(&mut self, time_ns: u64, event: &TraceEvent) {
        if self.error.is_some() || self.full_at_ns.is_some() {
            return;
        }
        let line = format!("{time_ns:>12} {}\n", self.line(event));
        match self.bytes_left.checked_sub(line.len() as u64) {
            Some(left) => self.bytes_left = left,
            None => return self.full_at_ns = Some(time_ns),
        }
        self.error = self.out.write_all(line.as_bytes()).err();
    }

    fn progress(&mut self, _time_ns: u64, _end_ns: u64) -> bool {
        self.error.is_none()
    }
}
