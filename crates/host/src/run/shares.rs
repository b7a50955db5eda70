//! What cgroups give VMs and allow them: weights and limits, read again while the scheduler runs.

use crate::HostError;
use crate::guests::vms::{Vm, read_cpu_limits, read_weights};
use crate::machine::cgroups;
use crate::run::guests::tell;
use crate::run::scheduler::Scheduler;
use crate::run::{Daemon, LOOK_WHO_WANTS_TO_RUN, Output};
use crate::shares::limits;
use crate::shares::service_weights::{Group, SERVICE_CGROUPS_MAX};
use crate::shares::weights::{Weighed, weights};
use std::path::Path;
use std::time::Instant;

impl Daemon<'_> {
    pub(super) fn read_cgroups(&mut self, output: &mut Output<'_>) -> Result<(), HostError> {
        for vm in self.vms.values_mut() {
            let threads =
                self.scheduler.as_ref().map(|scheduler| scheduler.vcpu_threads(vm.kernel_side.slot));
            if let Some(cgroups) = read_weights(vm.kernel_side.pid, &threads.unwrap_or_default()) {
                vm.place.cgroups = cgroups;
            }
        }
        self.weigh()?;
        self.read_limits(output);
        Ok(())
    }

    /// A cgroup that wants to run changes what its siblings get, and those of what it lies in.
    pub(super) fn see_which_want_to_run(&mut self) -> Result<(), HostError> {
        const AT_LEAST_NS: u64 = LOOK_WHO_WANTS_TO_RUN.as_nanos() as u64 / 100;
        let wanted: Vec<u64> = self
            .vms
            .values()
            .map(|vm| self.stats_of(vm))
            .map(|stats| stats.ran_ns + stats.waited_ns + stats.rested_ns)
            .collect();
        for (vm, wanted_ns) in self.vms.values_mut().zip(wanted) {
            vm.is_active = wanted_ns.saturating_sub(vm.wanted_ns) >= AT_LEAST_NS;
            vm.wanted_ns = wanted_ns;
        }
        self.weigh()
    }

    /// Tells the kernel side the weights that have changed.
    pub(super) fn weigh(&mut self) -> Result<(), HostError> {
        let Some(scheduler) = &mut self.scheduler else { return Ok(()) };
        let weighed: Vec<_> =
            self.vms.values().map(|vm| Weighed { place: &vm.place, is_active: vm.is_active }).collect();
        let weights = weights(&weighed);
        for (vm, weight) in self.vms.values_mut().zip(weights) {
            if vm.weight != weight {
                vm.weight = weight;
                tell(scheduler, vm)?;
            }
        }
        Ok(())
    }

    /// Weighs host tasks by their cgroups: each service, and all of them together beside VMs.
    pub(super) fn weigh_services(&mut self, weighed: &[(u64, Group)], output: &mut Output<'_>) {
        let vms: Vec<_> =
            self.vms.values().map(|vm| Weighed { place: &vm.place, is_active: vm.is_active }).collect();
        let (used, since) = &mut self.outermost;
        let sides = used.sides(Path::new(cgroups::MOUNT), &vms, since.elapsed());
        *since = Instant::now();
        let changes = self.services.update(weighed);
        let Some(scheduler) = &mut self.scheduler else { return };
        scheduler.set_sides(sides);
        let told = scheduler.set_service_weights(&mut self.services, &changes);
        let trouble = match told {
            Err(cause) => {
                Some(format!("a service's weight isn't kept ({cause}): tried again with the next reading"))
            }
            Ok(()) if changes.left_out > 0 => Some(format!(
                "weights of services aren't kept in all cgroups: this host has more than the {SERVICE_CGROUPS_MAX} that fit"
            )),
            Ok(()) => None,
        };
        if let Some(line) = trouble.as_ref().filter(|_| trouble != self.service_trouble) {
            (output.say)(line);
        }
        self.service_trouble = trouble;
    }

    /// Reads the limits of all cgroups of this host, whether VMs lie in them or not.
    pub(super) fn read_limits(&mut self, output: &mut Output<'_>) {
        let read = limits::read_tree(Path::new(cgroups::MOUNT));
        if let Ok(tree) = &read {
            self.weigh_services(&tree.weighed, output);
        }
        let (changes, mut troubles) = self.limits.follow(read, &self.limit_troubles);
        let untold = self.scheduler_mut().set_cpu_limits(&changes);
        self.limits.forget(&untold);
        troubles.untold = untold.cause.map(|cause| cause.to_string());
        for line in troubles.news(&self.limit_troubles) {
            (output.say)(&line);
        }
        self.limit_troubles = troubles;
        if let Some(scheduler) = &self.scheduler {
            self.vms.values_mut().for_each(|vm| hear_of_limits(scheduler, vm, output));
        }
    }
}

/// Notes the limits that its cgroups set to a VM, and tells the operator of a change.
fn hear_of_limits(scheduler: &Scheduler, vm: &mut Vm, output: &mut Output<'_>) {
    let threads = scheduler.vcpu_threads(vm.kernel_side.slot);
    let Some(limits) = read_cpu_limits(vm.kernel_side.pid, &threads) else { return };
    if limits == vm.cpu_limits {
        return;
    }
    let said =
        if limits.is_empty() { "not limited any more".to_owned() } else { format!("limited to {limits}") };
    (output.say)(&format!("{}: {said}", vm.name));
    vm.cpu_limits = limits;
}
