//! The scheduler's end, and what follows it: the same again with what is known, or the last report.

use crate::HostError;
use crate::bpf::counters::sum;
use crate::guests::kernel_reader::VmKey;
use crate::guests::pinned::pinned_pcpus;
use crate::machine::{cgroups, preflight};
use crate::run::readings::{Counted, exit_line};
use crate::run::scheduler::{Exit, Scheduler};
use crate::run::{Daemon, Output, restarts};
use crate::settings::SchedulerChoice;
use crate::shares::limits::{self, LimitTable};
use crate::shares::service_weights::ServiceTable;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

impl Daemon<'_> {
    /// Once the kernel has ended the scheduler: if it asks for a restart, the same again, with what is known
    /// of guests and what was counted.
    pub(super) fn start_again(
        &mut self,
        exit: &Exit,
        stop: &AtomicBool,
        output: &mut Output<'_>,
    ) -> Result<(), HostError> {
        if !exit.asks_for_restart() {
            return Err(HostError::Ejected(exit_line(exit)));
        }
        self.restarts
            .add(Instant::now())
            .map_err(|cause| HostError::Ejected(format!("{}; {cause}", exit_line(exit))))?;
        restarts::wait_for_rest(|| stop.load(Ordering::Relaxed));
        if stop.load(Ordering::Relaxed) {
            return Ok(());
        }
        self.drain(output)?;
        let mut host = preflight::look_again(&self.host)?;
        // What was named may be gone.
        host.topology.keep_normal(&self.settings.normal_cpus.0, &pinned_pcpus());
        let mut settings = self.settings.within(host.topology.micro_order.len());
        // Another host: its pCPUs, and the numbers of its VMs, are others.
        settings.trace = None;
        let tree = limits::read_tree(Path::new(cgroups::MOUNT))
            .map_err(|cause| HostError::broken(format!("limits of cgroups can't be read: {cause}")))?;
        let mut limits = LimitTable::default();
        let first_limits = limits.update(&tree.limited);
        let counted = Counted::of(self);
        self.end_trace(output)?;
        // Its programs go before others come: two of each would see every event.
        self.scheduler = None;
        counted.keep(self);
        self.shared_codes.clear();
        self.hint_pages.forget();
        self.limits = limits;
        self.scheduler = Some(Scheduler::start(&host, &settings, self.choice, &first_limits)?);
        self.services = ServiceTable::default();
        self.weigh_services(&tree.weighed, output);
        let pool = match self.choice {
            SchedulerChoice::Microslice => format!(
                ": {} of {} pCPUs micro-sliced at most",
                settings.pool_limit(host.topology.micro_order.len())?,
                host.topology.wide_pcpu_count()
            ),
            SchedulerChoice::Coordinated => String::new(),
        };
        (output.say)(&format!("started again ({}){pool}", exit.message));
        self.host = host;
        Ok(())
    }

    /// VMs whose process has ended since a restart.
    pub(super) fn forget_ended(&mut self, output: &mut Output<'_>) {
        let is_there = |(pid, _): &VmKey| Path::new(&format!("/proc/{pid}")).exists();
        let (there, ended): (BTreeMap<_, _>, BTreeMap<_, _>) =
            std::mem::take(&mut self.remembered).into_iter().partition(|(key, _)| is_there(key));
        self.remembered = there;
        for vm in ended.into_values() {
            (output.say)(&format!("{}: gone", vm.name));
            self.gone_before = sum(&self.gone_before, &vm.stats_before);
        }
    }

    /// The last report, and the scheduler's end.
    pub(super) fn finish(
        mut self,
        result: Result<(), HostError>,
        output: &mut Output<'_>,
    ) -> Result<(), HostError> {
        let drained = self.drain(output);
        let traced = self.end_trace(output);
        let exit = self.scheduler.as_ref().and_then(Scheduler::exit).map(|exit| exit_line(&exit));
        self.scheduler.iter_mut().for_each(Scheduler::detach);
        let report = self.final_report(exit);
        (output.report)(&report);
        let is_complete = self.is_trace_complete();
        if let Some(recorder) = self.recorder {
            let count = recorder.finish()?;
            let dropped = report.host.records_dropped;
            (output.say)(&format!("recorded {count} decisions, {dropped} dropped"));
        }
        result.and(drained).and(traced).and(is_complete)
    }
}
