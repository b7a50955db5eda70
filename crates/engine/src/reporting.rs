//! The report made of what was counted (`measurements.rs`).

use crate::guest::Act;
use crate::measurements::VmCounters;
use crate::report::{PcpuTimes, RunReport, VmReport, WorkloadReport};
use crate::simulation::Simulation;
use crate::text;
use microslice_model::config::cgroups_around;
use microslice_model::counters::PoolReport;
use microslice_model::ids::{IdVec, ThreadId, VmId};
use microslice_model::machine::{HostVcpu, VcpuState};
use microslice_policy::{Coded, GuestClass};

/// For how long a vCPU has run and waited since measuring began.
pub(crate) fn run_and_wait_ns(host: &HostVcpu, measured_since_ns: u64, now_ns: u64) -> (u64, u64) {
    let since_ns = now_ns - host.since_ns.max(measured_since_ns);
    let (run_ns, wait_ns) = (host.turns.run_ns, host.turns.wait_ns);
    match host.state {
        VcpuState::Running => (run_ns + since_ns, wait_ns),
        VcpuState::Runnable => (run_ns, wait_ns + since_ns),
        VcpuState::Blocked => (run_ns, wait_ns),
    }
}

/// How long it would have run in all this time if it had never waited for a pCPU. While it doesn't wait it
/// runs or has nothing to do. It is taken to need a pCPU for the same part of the rest. A wait is no demand:
/// a vCPU that waits 1 ms for each burst of 0.1 ms asks for the bursts. Of one that has only waited nothing
/// else is known.
fn demand_ns(run_ns: u64, wait_ns: u64, measured_ns: u64) -> f64 {
    if run_ns == 0 {
        return wait_ns as f64;
    }
    let (run_ns, measured_ns) = (run_ns as f64, measured_ns as f64);
    (measured_ns * run_ns / (measured_ns - wait_ns as f64)).min(measured_ns)
}

/// What lies in a cgroup.
enum Inner {
    Vm(VmId),
    Cgroup(usize),
}

/// Divides a time by weights, and tells the part of each. None is more than is wanted: what somebody leaves
/// goes to the others.
fn fill<T>(mut left_ns: f64, mut shares: Vec<(T, f64, f64)>, mut tell: impl FnMut(T, f64)) {
    // The one that asked for the least, by weight, is satisfied first.
    let by_weight = |&(_, weight, wanted_ns): &(T, f64, f64)| wanted_ns / weight;
    shares.sort_by(|left, right| by_weight(left).total_cmp(&by_weight(right)));
    let mut left_weight = shares.iter().map(|&(_, weight, _)| weight).sum::<f64>();
    for (of, weight, wanted_ns) in shares {
        let part_ns = wanted_ns.min(left_ns * weight / left_weight);
        tell(of, part_ns);
        left_ns -= part_ns;
        left_weight -= weight;
    }
}

impl Simulation<'_> {
    /// What is left of each workload's steps of user-mode work that were begun.
    pub(crate) fn uncomputed_ns(&self) -> Vec<u64> {
        let mut left_ns = vec![0; self.workloads.len()];
        for thread in &self.threads {
            left_ns[thread.workload.index()] += thread.compute_left_ns;
        }
        for guest in self.guest.iter().filter(|guest| guest.thread != ThreadId::NONE) {
            let frame = &guest.frames[0];
            if frame.act == Act::Timed && frame.symbol == text::USER {
                left_ns[self.threads[guest.thread].workload.index()] += frame.left_ns;
            }
        }
        left_ns
    }

    /// Brings the accounts of all pCPUs and vCPUs up to now.
    pub(crate) fn finish_accounts(&mut self) {
        self.finish_rests();
        let now_ns = self.machine.now_ns;
        for pcpu in self.machine.pcpus.ids() {
            if let Some(vcpu) = self.machine.current(pcpu) {
                self.sync(vcpu);
            } else {
                let pcpu = &mut self.machine.pcpu_times[pcpu];
                pcpu.idle_ns += now_ns - pcpu.since_ns;
                pcpu.since_ns = now_ns;
            }
        }
    }

    pub(crate) fn report(&mut self) -> RunReport {
        let (since_ns, now_ns) = (self.measured.since_ns(), self.machine.now_ns);
        let measured_ns = now_ns - since_ns;
        for (host, guest) in self.machine.vcpus.iter().zip(&self.guest) {
            let times = run_and_wait_ns(host, since_ns, now_ns);
            self.measured.add_vcpu(host, times, &guest.spins);
            if host.state == VcpuState::Runnable {
                let waited_ns = now_ns - host.since_ns.max(since_ns).min(now_ns);
                self.measured.still_waits(host.vm, now_ns, waited_ns);
            }
        }
        for (workload, left_ns) in self.workloads.ids().zip(self.uncomputed_ns()) {
            // A step in user mode may be a packet's, which isn't counted.
            let computed_ns = &mut self.workloads[workload].computed_ns;
            *computed_ns = computed_ns.saturating_sub(left_ns);
        }
        let (guest_ns, overhead_ns) = self.measured.guest_and_overhead_ns();
        let idle_ns = self.machine.pcpu_times.iter().map(|pcpu| pcpu.idle_ns).sum();
        let due_ns = self.due_ns(measured_ns);
        let vms = self.vms.ids().map(|vm| self.vm_report(vm, measured_ns, due_ns[vm])).collect();
        let fairness_error_permille = self.fairness_error(measured_ns, &due_ns);
        RunReport {
            seed: self.config.seed,
            measured_ns,
            events: self.measured.events(),
            batched_exits: self.measured.batched_exits(),
            vms,
            pcpus: PcpuTimes { guest_ns, overhead_ns, idle_ns },
            pool: self.pool_report(measured_ns),
            fairness_error_permille,
            wait_to_run: self.measured.wait_to_run(),
            queue_locks: self.machine.queue_locks.as_ref().map(|_| self.measured.queue_locks()),
            delays: self.config.delay.as_ref().map(|_| self.machine.delays),
        }
    }

    fn pool_report(&mut self, measured_ns: u64) -> PoolReport {
        let mut pool = std::mem::take(&mut self.machine.pool);
        let end_ns = self.machine.now_ns;
        let mut weighted = 0.0;
        for (at, &(from_ns, size)) in pool.sizes.iter().enumerate() {
            let to_ns = pool.sizes.get(at + 1).map_or(end_ns, |&(ns, _)| ns);
            weighted += (to_ns - from_ns.max(self.measured.since_ns()).min(to_ns)) as f64 * f64::from(size);
        }
        pool.still_accelerated = self.machine.count_still_accelerated();
        pool.mean_micro_pcpus = weighted / measured_ns.max(1) as f64;
        pool
    }

    /// What each VM is due of the time that all ran, by the weights that the scheduler takes: of each vCPU,
    /// or of the whole VM.
    ///
    /// No VM is due more than it asked for ([`demand_ns`]): what it leaves goes to the others (water
    /// filling). That a VM may not run on some pCPUs isn't looked at.
    fn due_ns(&self, measured_ns: u64) -> IdVec<VmId, f64> {
        let mut due: IdVec<VmId, f64> = IdVec::of(0.0, self.vms.len());
        let weight_of = |vm: VmId| f64::from(self.machine.vms[vm].weight);
        let demand = |host: &HostVcpu| {
            let (run_ns, wait_ns) = run_and_wait_ns(host, self.measured.since_ns(), self.machine.now_ns);
            (host.vm, demand_ns(run_ns, wait_ns, measured_ns))
        };
        let mut demands: Vec<(VmId, f64)> = self.machine.vcpus.iter().map(demand).collect();
        if self.config.scheduler.shares_by_vm() {
            let mut of_vms: IdVec<VmId, f64> = IdVec::of(0.0, self.vms.len());
            demands.iter().for_each(|&(vm, wanted_ns)| of_vms[vm] += wanted_ns);
            demands = of_vms.enumerate().map(|(vm, &wanted_ns)| (vm, wanted_ns)).collect();
        }
        let all_ns = self.measured.vms().iter().map(|vm| vm.run_ns as f64).sum::<f64>();
        if self.config.cgroups.is_empty() {
            let shares = demands.into_iter().map(|(vm, wanted_ns)| (vm, weight_of(vm), wanted_ns));
            fill(all_ns, shares.collect(), |vm, part_ns| due[vm] += part_ns);
        } else {
            self.fill_cgroup(None, all_ns, &demands.into_iter().map(|(_, ns)| ns).collect(), &mut due);
        }
        due
    }

    /// Divides what is due to a cgroup, or to the root, among what lies in it. `wanted_ns`: of each VM.
    fn fill_cgroup(
        &self,
        cgroup: Option<usize>,
        all_ns: f64,
        wanted_ns: &IdVec<VmId, f64>,
        due: &mut IdVec<VmId, f64>,
    ) {
        let cgroups = &self.config.cgroups;
        let vms = self.vms.ids().filter(|&vm| self.machine.vms[vm].cgroup == cgroup);
        let of_vm = |vm: VmId| (Inner::Vm(vm), f64::from(self.machine.vms[vm].weight), wanted_ns[vm]);
        let of_cgroup = |at: usize| {
            let lies_in =
                |vm: &VmId| cgroups_around(cgroups, self.machine.vms[*vm].cgroup).any(|out| out == at);
            let wanted_ns = self.vms.ids().filter(lies_in).map(|vm| wanted_ns[vm]).sum::<f64>();
            (Inner::Cgroup(at), f64::from(cgroups[at].weight), wanted_ns)
        };
        let inner = (0..cgroups.len()).filter(|&at| cgroups[at].parent == cgroup);
        let shares = vms.map(of_vm).chain(inner.map(of_cgroup)).collect();
        fill(all_ns, shares, |inner, part_ns| match inner {
            Inner::Vm(vm) => due[vm] += part_ns,
            Inner::Cgroup(at) => self.fill_cgroup(Some(at), part_ns, wanted_ns, due),
        });
    }

    /// The largest difference between what a VM got and what it is due.
    fn fairness_error(&self, measured_ns: u64, due_ns: &IdVec<VmId, f64>) -> u64 {
        let capacity = (measured_ns * self.machine.pcpus.len() as u64).max(1) as f64;
        let error = |(vm, due): (&VmCounters, &f64)| {
            ((vm.run_ns as f64 - due).abs() / capacity * 1000.0).round() as u64
        };
        self.measured.vms().iter().zip(due_ns).map(error).max().unwrap_or(0)
    }

    /// Of each of a VM's lock statistics. The locks of a VM are consecutive, those of its runqueues first.
    fn lock_acquisitions(&self, vm: VmId) -> Vec<u64> {
        let first = self.vms[vm].runqueue_lock;
        let end = self.vms.get(vm.plus(1)).map_or(self.locks.next_id(), |next| next.runqueue_lock);
        let mut acquisitions = vec![0; self.measured.vms()[vm].locks.len()];
        for lock in first.until(end).map(|lock| &self.locks[lock]) {
            acquisitions[lock.statistics as usize] += lock.acquisitions;
        }
        let first = self.vms[vm].first_user_lock as usize;
        let end =
            self.vms.get(vm.plus(1)).map_or(self.user_locks.len(), |next| next.first_user_lock as usize);
        for lock in &self.user_locks[first..end] {
            acquisitions[lock.statistics as usize] += lock.acquisitions;
        }
        acquisitions
    }

    fn vm_report(&self, vm: VmId, measured_ns: u64, due_ns: f64) -> VmReport {
        let counters = &self.measured.vms()[vm];
        let config = &self.config.vms[vm.index()];
        let seconds = measured_ns as f64 / 1e9;
        let workloads = self
            .workloads
            .iter()
            .filter(|workload| workload.vm == vm)
            .zip(&config.workloads)
            .map(|(workload, config)| {
                let units_per_s = workload.units_done as f64 / seconds;
                let timed = config.run_units > 0 && units_per_s > 0.0;
                WorkloadReport {
                    name: config.name.clone(),
                    units_done: workload.units_done,
                    computed_ns: workload.computed_ns,
                    units_per_s,
                    execution_time_s: timed.then(|| config.run_units as f64 / units_per_s),
                    run_time_s: (config.run_time_ns > 0).then_some(config.run_time_ns as f64 / 1e9),
                }
            })
            .collect();
        let acquisitions = self.lock_acquisitions(vm);
        let used = || counters.locks.iter().zip(&acquisitions).filter(|(_, count)| **count > 0);
        VmReport {
            name: config.name.clone(),
            vcpus: config.vcpus,
            run_ns: counters.run_ns,
            due_ns: due_ns.round() as u64,
            wait_ns: counters.wait_ns,
            skew_ns: counters.least_and_most_waited_ns.map_or(0, |(least, most)| most - least),
            spin_ns: counters.spin_ns,
            shootdown_spin_ns: counters.shootdown_spin_ns,
            workloads,
            yields: counters.yields.clone(),
            lock_waits: used().map(|(lock, _)| (lock.name.clone(), lock.waits.clone())).collect(),
            lock_acquisitions: used().map(|(lock, count)| (lock.name.clone(), *count)).collect(),
            lockstat_waits: used().map(|(lock, _)| (lock.name.clone(), lock.lockstat)).collect(),
            tlb_sync: counters.tlb_sync.clone(),
            grace_periods: self.vms[vm].grace_periods.as_ref().map(|_| counters.grace_periods.clone()),
            throttled_ns: self.cpu_limits.has_any(vm).then_some(counters.throttled_ns),
            waits: counters.waits.clone(),
            wake_waits: counters.wake_waits.clone(),
            late_waits: (self.machine.vms[vm].max_wait_ns > 0).then_some(counters.late_waits),
            longest_waits: counters.longest_waits.seconds(),
            timer_lateness: counters.timer_lateness.clone(),
            ipis_sent: counters.ipis_sent,
            call_function_ipis: counters.call_function_ipis,
            refill_ns: counters.refill_ns,
            holder_preemptions: used()
                .filter(|(lock, _)| lock.holder_preemptions > 0)
                .map(|(lock, _)| (lock.name.clone(), lock.holder_preemptions))
                .collect(),
            barrier_waits: counters.barrier_waits,
            ipis_handled: counters.ipis_handled,
            context_switches: counters.context_switches,
            preemptions_by_class: std::iter::zip(
                GuestClass::ALL.iter().copied(),
                counters.preemptions_by_class,
            )
            .filter(|&(_, count)| count > 0)
            .collect(),
            network: self.vms[vm].nic.as_ref().map(|nic| nic.report(measured_ns)),
            guest_times: self.times_guests.then(|| counters.guest_times.clone()),
            balance: self.vms[vm]
                .balancing
                .as_ref()
                .map_or(Vec::new(), |balancing| balancing.samples().to_vec()),
        }
    }
}
