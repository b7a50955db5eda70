//! The trace of a run: it begins with the first scheduler, and ends with that, or where its bounds are.

use crate::HostError;
use crate::guests::vms::Vm;
use crate::machine::clock::monotonic_ns;
use crate::output::tracer::{Tracer, name_of_newcomer};
use crate::run::scheduler::Scheduler;
use crate::run::{Daemon, Output};
use std::collections::BTreeMap;

impl Daemon<'_> {
    /// The scheduler is in charge.
    pub(super) fn begin_trace(&mut self, tracer: Option<Tracer>) {
        self.tracer = tracer;
        let micro_pcpu_count = self.scheduler().micro_pcpu_count().1;
        if let Some(tracer) = &mut self.tracer {
            let now_ns = monotonic_ns();
            tracer.begin(now_ns);
            tracer.pool_resized(now_ns, micro_pcpu_count);
        }
    }

    /// Writes what has arrived, and ends the trace if its time is over.
    pub(super) fn trace(&mut self, output: &mut Output<'_>) -> Result<(), HostError> {
        let (Some(tracer), Some(scheduler)) = (&mut self.tracer, &self.scheduler) else { return Ok(()) };
        let now_ns = monotonic_ns();
        let vms = &self.vms;
        tracer
            .hear(&scheduler.traces(), now_ns, &|slot, generation| name_of(vms, scheduler, slot, generation));
        if tracer.is_over(now_ns) { self.end_trace(output) } else { Ok(()) }
    }

    /// The file is complete from now on.
    pub(super) fn end_trace(&mut self, output: &mut Output<'_>) -> Result<(), HostError> {
        let Some(scheduler) = &mut self.scheduler else { return Ok(()) };
        let Some(tracer) = self.tracer.take() else { return Ok(()) };
        scheduler.end_trace();
        scheduler.poll_rings()?;
        let (vms, scheduler) = (&self.vms, &*scheduler);
        let lost = scheduler.host_stats().traces_dropped;
        let ended = tracer.finish(&scheduler.traces(), lost, monotonic_ns(), &|slot, generation| {
            name_of(vms, scheduler, slot, generation)
        });
        (output.say)(&ended.line);
        self.trace_has_failed = ended.has_failed;
        Ok(())
    }

    /// A trace that couldn't be written to its end fails the command, after all else.
    pub(super) fn is_trace_complete(&self) -> Result<(), HostError> {
        match &self.settings.trace {
            Some(trace) if self.trace_has_failed => Err(trace.is_incomplete()),
            _ => Ok(()),
        }
    }
}

fn name_of(vms: &BTreeMap<u32, Vm>, scheduler: &Scheduler, slot: u32, generation: u32) -> Option<String> {
    let known = vms.get(&slot).filter(|vm| vm.kernel_side.generation == generation);
    known.map(|vm| vm.name.clone()).or_else(|| name_of_newcomer(&scheduler.vms(), slot, generation))
}
