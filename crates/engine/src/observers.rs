//! What looks on while a run happens, and changes nothing: the sink of its trace, and the checker.

use crate::SimError;
use microslice_model::checker::Checker;
use microslice_model::events::{TraceEvent, TraceNames, TraceSink};
use microslice_model::ids::{PcpuId, VcpuId};
use microslice_model::machine::VcpuState;

pub struct Observers<'a> {
    sink: &'a mut dyn TraceSink,
    sink_wants: bool,
    checker: Option<Checker>,
}

impl<'a> Observers<'a> {
    pub fn new(sink: &'a mut dyn TraceSink) -> Self {
        Self { sink_wants: sink.wants_events(), sink, checker: None }
    }

    pub fn check_with(&mut self, checker: Checker) {
        self.checker = Some(checker);
    }

    /// Whether an observer wants to know of each event.
    pub fn want_events(&self) -> bool {
        self.sink_wants || self.checker.is_some()
    }

    pub fn begin(&mut self, names: &TraceNames) {
        if self.sink_wants {
            self.sink.begin(names);
        }
    }

    /// Whether the run shall go on.
    pub fn progress(&mut self, now_ns: u64, end_ns: u64) -> bool {
        self.sink.progress(now_ns, end_ns)
    }

    /// The scheduler has chosen a vCPU that is in this state.
    #[inline]
    pub fn picked(&mut self, vcpu: VcpuId, pcpu: PcpuId, state: VcpuState) {
        if let Some(checker) = &mut self.checker {
            checker.picked(vcpu, pcpu, state);
        }
    }

    /// These happened at this instant, which is over.
    pub fn see(&mut self, time_ns: u64, events: &[TraceEvent]) -> Result<(), SimError> {
        let failed = |what| SimError::Check { time_ns, what };
        for event in events {
            if self.sink_wants {
                self.sink.event(time_ns, event);
            }
            if let Some(checker) = &mut self.checker {
                checker.observe(time_ns, event).map_err(failed)?;
            }
        }
        self.checker.as_ref().map_or(Ok(()), |checker| checker.settled().map_err(failed))
    }

    pub fn checker(&self) -> Option<&Checker> {
        self.checker.as_ref()
    }
}
