//! What the daemon reports: of each VM, of the host, since the start or the report before; over all
//! schedulers that it has started.

use crate::bpf::counters::{difference, sum};
use crate::bpf::recursion_misses::RecursionMisses;
use crate::guests::kernel_reader::VmKey;
use crate::guests::vms::Vm;
use crate::interface::{HostStats, VMS_MAX, VmStats};
use crate::machine::clock::monotonic_ns;
use crate::output::monitoring::{Publisher, view};
use crate::run::Daemon;
use crate::run::report::{Report, VmReport};
use crate::run::scheduler::{Exit, Scheduler};
use crate::run::served::RunReading;
use crate::settings::SchedulerChoice;
use std::collections::BTreeMap;
use std::time::Instant;

/// The counters at the end of the interval before.
pub(super) struct Readings {
    pub(super) at: Instant,
    pub(super) vms: BTreeMap<VmKey, VmStats>,
    pub(super) gone: VmStats,
    pub(super) host: HostStats,
    pub(super) misses: RecursionMisses,
    pub(super) pool_changes: usize,
    pub(super) micro_pcpu_ns: u64,
}

impl Daemon<'_> {
    fn vm_reports(&self) -> Vec<VmReport> {
        self.vms
            .values()
            .chain(self.remembered.values())
            .map(|vm| VmReport {
                name: vm.name.clone(),
                uuid: vm.libvirt.uuid().map(str::to_owned),
                pid: vm.kernel_side.pid,
                vcpu_count: vm.kernel_side.vcpu_count,
                weight: vm.weight,
                cpu_limits: vm.cpu_limits.clone(),
                kernel: vm.release().map(str::to_owned),
                slide: vm.slide_told,
                state: vm.state(),
                bound_ns: self.bound_in_force_ns(vm),
                stats: self.stats_of(vm),
            })
            .collect()
    }

    /// Only the scheduler `microslice` bounds waits.
    fn bound_in_force_ns(&self, vm: &Vm) -> Option<u64> {
        let scheduler = self.scheduler.as_ref().filter(|_| self.choice == SchedulerChoice::Microslice)?;
        scheduler.bound_in_force_ns(vm.policy.own_max_wait_ns(), self.settings)
    }

    /// Returns the statistics of a VM under all schedulers that it had.
    pub(super) fn stats_of(&self, vm: &Vm) -> VmStats {
        match &self.scheduler {
            Some(scheduler) if !self.remembered.contains_key(&vm.key()) => {
                sum(&vm.stats_before, &scheduler.vm_stats(vm.kernel_side.slot))
            }
            _ => vm.stats_before,
        }
    }

    pub(super) fn final_report(&self, exit: Option<String>) -> Report {
        Report {
            scheduler: self.choice,
            is_final: true,
            dry_run: self.settings.dry_run,
            seconds: self.started.elapsed().as_secs_f64(),
            micro_cpus: self.scheduler.as_ref().map_or(0, |scheduler| scheduler.micro_pcpu_count().0),
            vms: self.vm_reports(),
            gone: self.gone_stats(),
            host: self.host_stats(),
            restarts: self.restarts.count,
            pool_size_history: self.pool_history.changes_after(0),
            micro_pcpu_ns: self.pool_history.pcpu_ns(monotonic_ns()),
            exit,
            recursion_misses: self.recursion_misses(),
            programs: self.measuring.as_ref().and(self.scheduler.as_ref()).map(Scheduler::program_costs),
        }
    }

    pub(super) fn host_stats(&self) -> HostStats {
        let now = self.scheduler.as_ref().map(Scheduler::host_stats).unwrap_or_default();
        sum(&self.host_before, &now)
    }

    pub(super) fn recursion_misses(&self) -> RecursionMisses {
        let now = self.scheduler.as_ref().map(Scheduler::recursion_misses).unwrap_or_default();
        self.misses_before.plus(&now)
    }

    /// Slots that no VM of ours uses any more keep their counts until they are used again.
    pub(super) fn gone_stats(&self) -> VmStats {
        let Some(scheduler) = &self.scheduler else { return self.gone_before };
        let left_over = (0..=VMS_MAX).filter(|slot| !self.vms.contains_key(slot));
        left_over.fold(self.gone_before, |gone, slot| sum(&gone, &scheduler.vm_stats(slot)))
    }

    /// For clients of `metrics-listen`, if it is time.
    pub(super) fn publish(&mut self) {
        if !self.publisher.as_ref().is_some_and(Publisher::is_due) {
            return;
        }
        let report = self.final_report(None);
        let vms = self
            .vms
            .values()
            .map(|vm| self.scheduler().vcpus(vm.kernel_side.slot).iter().map(view::vcpu).collect());
        // VMs that no scheduler has seen since a restart have none yet.
        let unseen = self.remembered.values().map(|_| Vec::new());
        let vcpus = vms.chain(unseen).collect();
        if let Some(publisher) = &mut self.publisher {
            let shares = self.lately.shares_of(&report, Instant::now());
            publisher.publish(RunReading { report, shares, vcpus });
        }
    }

    pub(super) fn interval_report(&mut self) -> Report {
        let now = self.final_report(None);
        let keys: Vec<_> = self.vms.values().chain(self.remembered.values()).map(Vm::key).collect();
        let mut interval = now.clone();
        interval.is_final = false;
        interval.seconds = self.before.at.elapsed().as_secs_f64();
        for (vm, key) in interval.vms.iter_mut().zip(&keys) {
            let before = self.before.vms.get(key).copied().unwrap_or_default();
            vm.stats = difference(&vm.stats, &before);
        }
        interval.gone = difference(&now.gone, &self.before.gone);
        interval.host = difference(&now.host, &self.before.host);
        interval.recursion_misses = now.recursion_misses.since(&self.before.misses);
        interval.pool_size_history = self.pool_history.changes_after(self.before.pool_changes);
        // A change that is told late may take back a part of what the interval before was said to have.
        interval.micro_pcpu_ns = now.micro_pcpu_ns.saturating_sub(self.before.micro_pcpu_ns);
        self.before = Readings {
            at: Instant::now(),
            vms: keys.into_iter().zip(now.vms.iter().map(|vm| vm.stats)).collect(),
            gone: now.gone,
            host: now.host,
            misses: now.recursion_misses,
            pool_changes: self.pool_history.change_count(),
            micro_pcpu_ns: now.micro_pcpu_ns,
        };
        interval
    }
}

/// Why the kernel ended it.
pub(super) fn exit_line(exit: &Exit) -> String {
    let parts = [exit.reason.as_str(), exit.message.as_str()];
    let text: Vec<_> = parts.into_iter().filter(|part| !part.is_empty()).collect();
    format!("{} (kind {}, code {})", text.join(": "), exit.kind, exit.code)
}

/// All that a scheduler has counted, before its counters go.
pub(super) struct Counted {
    vms: BTreeMap<u32, VmStats>,
    gone: VmStats,
    host: HostStats,
    misses: RecursionMisses,
}

impl Counted {
    pub(super) fn of(daemon: &Daemon<'_>) -> Self {
        let vms = daemon.vms.iter().map(|(slot, vm)| (*slot, daemon.stats_of(vm))).collect();
        let misses = daemon.recursion_misses();
        Self { vms, gone: daemon.gone_stats(), host: daemon.host_stats(), misses }
    }

    /// VMs wait until the next scheduler sees them.
    pub(super) fn keep(self, daemon: &mut Daemon<'_>) {
        daemon.gone_before = self.gone;
        daemon.host_before = self.host;
        daemon.misses_before = self.misses;
        for (slot, mut vm) in std::mem::take(&mut daemon.vms) {
            vm.stats_before = self.vms.get(&slot).copied().unwrap_or_default();
            daemon.remembered.insert(vm.key(), vm);
        }
    }
}
