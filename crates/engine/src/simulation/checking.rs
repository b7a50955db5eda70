//! When a run is checked: at each instant, once a simulated millisecond, and at the end. What is checked, and
//! how: `checker.rs`.

use crate::SimError;
use crate::simulation::Simulation;
use microslice_model::checker::Checker;

impl Simulation<'_> {
    /// Hands the events of this instant to those that look on.
    pub(crate) fn flush_trace(&mut self) -> Result<(), SimError> {
        let mut events = std::mem::take(&mut self.machine.trace);
        self.observers.see(self.machine.now_ns, &events)?;
        events.clear();
        self.machine.trace = events;
        Ok(())
    }

    pub(crate) fn check_now(&self) -> Result<(), SimError> {
        let Some(checker) = self.observers.checker() else { return Ok(()) };
        let lends = self.config.scheduler.lends();
        let may_idle = |pcpu| self.scheduler.is_micro(pcpu) && !lends;
        checker
            .check_host(&self.machine, may_idle)
            .and_then(|()| self.nothing_is_lost(checker))
            .map_err(|what| SimError::Check { time_ns: self.machine.now_ns, what })
    }

    fn nothing_is_lost(&self, checker: &Checker) -> Result<(), String> {
        self.no_wake_up_is_lost()?;
        self.counters_add_up()?;
        self.nobody_is_left_halted()?;
        self.no_interrupt_is_lost(checker.pending_ipis())
    }

    /// At the end: is nothing lost, and does the time add up?
    pub(crate) fn final_checks(&self) -> Result<(), SimError> {
        let Some(checker) = self.observers.checker() else { return Ok(()) };
        let now_ns = self.machine.now_ns;
        self.nothing_is_lost(checker).map_err(|what| SimError::Check { time_ns: now_ns, what })?;
        let idle_ns: u64 = self.machine.pcpu_times.iter().map(|pcpu| pcpu.idle_ns).sum();
        let (guest_ns, overhead_ns) = self.measured.guest_and_overhead_ns();
        let sum_ns = guest_ns + overhead_ns + idle_ns;
        let elapsed_ns = (now_ns - self.measured.since_ns()) * self.machine.pcpus.len() as u64;
        if sum_ns != elapsed_ns {
            let what = format!(
                "time doesn't add up: guest {guest_ns} + overhead {overhead_ns} + idle {idle_ns} = {sum_ns}, elapsed x pCPUs = {elapsed_ns}"
            );
            return Err(SimError::Check { time_ns: now_ns, what });
        }
        Ok(())
    }
}
