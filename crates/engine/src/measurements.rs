//! What a run counts: times, waits, exits, of the host and of each VM. It knows nothing of how they are
//! shown.
//!
//! What happens at every exit or switch is counted by each vCPU, lock, workload and NIC itself, next to what
//! is touched then anyway. One function begins all of them anew: [`Simulation::begin_measuring`].
//! `reporting.rs` adds them to these in the end.

use crate::guest::SpinCounters;
use crate::guest::network::StreamCounters;
use crate::longest_waits::LongestWaits;
use crate::report::{BarrierWaits, GraceReport, GuestTimes, LockstatWaits, Yields};
use crate::simulation::Simulation;
use microslice_metrics::Histogram;
use microslice_model::counters::QueueLockTimes;
use microslice_model::ids::{IdVec, VmId};
use microslice_model::machine::HostVcpu;
use microslice_policy::{Coded, GuestClass};

/// A hold, or a wait, that is longer isn't the lock's (VM'04, 5.5).
const EXTENDED_NS: u64 = 1_000_000;

#[derive(Default)]
pub struct LockCounters {
    pub name: String,
    pub waits: Histogram,
    pub lockstat: LockstatWaits,
    /// How often a vCPU was preempted that held it: spinlocks only.
    pub holder_preemptions: u64,
}

#[derive(Default)]
pub struct VmCounters {
    pub run_ns: u64,
    pub wait_ns: u64,
    pub spin_ns: u64,
    pub shootdown_spin_ns: u64,
    pub yields: Yields,
    pub ipis_sent: u64,
    /// Those of them that call functions.
    pub call_function_ipis: u64,
    /// What cold caches have cost.
    pub refill_ns: u64,
    pub ipis_handled: u64,
    pub context_switches: u64,
    /// By number of the class.
    pub preemptions_by_class: [u64; GuestClass::ALL.len()],
    pub tlb_sync: Histogram,
    pub grace_periods: GraceReport,
    /// From a thread's wake-up, of one that slept from when its timer was due, until it runs.
    pub wake_waits: Histogram,
    /// For how long vCPUs rested because of `cpu.max`, all together.
    pub throttled_ns: u64,
    /// From runnable until running.
    pub waits: Histogram,
    pub longest_waits: LongestWaits,
    /// How long the vCPU has waited that has waited least, and the one that has waited most.
    pub least_and_most_waited_ns: Option<(u64, u64)>,
    /// That were longer than its bound.
    pub late_waits: u64,
    /// From when a thread's timer was due until it runs.
    pub timer_lateness: Histogram,
    pub barrier_waits: BarrierWaits,
    pub locks: Vec<LockCounters>,
    pub guest_times: GuestTimes,
}

impl VmCounters {
    /// Everything zero again; names stay.
    fn restart(&mut self, now_ns: u64) {
        let names = self.locks.drain(..).map(|lock| lock.name);
        let locks = names.map(|name| LockCounters { name, ..LockCounters::default() }).collect();
        *self = Self { locks, longest_waits: LongestWaits::since(now_ns), ..Self::default() };
    }
}

/// Since measuring began, but for `events`, which are of the whole run.
pub struct Measurements {
    since_ns: u64,
    events: u64,
    batched_exits: u64,
    guest_ns: u64,
    overhead_ns: u64,
    queue_locks: QueueLockTimes,
    vms: IdVec<VmId, VmCounters>,
}

impl Measurements {
    pub fn new() -> Self {
        Self {
            since_ns: 0,
            events: 0,
            batched_exits: 0,
            guest_ns: 0,
            overhead_ns: 0,
            queue_locks: QueueLockTimes::default(),
            vms: IdVec::new(),
        }
    }

    /// The warm-up is over: what it counted is forgotten.
    fn restart(&mut self, now_ns: u64) {
        self.vms.iter_mut().for_each(|vm| vm.restart(now_ns));
        let vms = std::mem::take(&mut self.vms);
        *self = Self { since_ns: now_ns, events: self.events, vms, ..Self::new() };
    }

    pub fn add_vm(&mut self) {
        self.vms.push(VmCounters { longest_waits: LongestWaits::since(0), ..VmCounters::default() });
    }

    /// Locks of that name are counted together: returns the number of their counters.
    pub fn add_locks(&mut self, vm: VmId, name: &str) -> u32 {
        let locks = &mut self.vms[vm].locks;
        locks.push(LockCounters { name: name.into(), ..LockCounters::default() });
        locks.len() as u32 - 1
    }

    // What happens.
    #[inline(always)]
    pub fn count_event(&mut self) {
        self.events += 1;
    }

    /// So many pause-loop exits at one event.
    #[inline(always)]
    pub fn count_exits(&mut self, exits: u64) {
        self.batched_exits += exits.saturating_sub(1);
    }

    #[inline(always)]
    pub fn guest_ran(&mut self, elapsed_ns: u64) {
        self.guest_ns += elapsed_ns;
    }

    #[inline(always)]
    pub fn host_worked(&mut self, elapsed_ns: u64) {
        self.overhead_ns += elapsed_ns;
    }

    #[inline]
    pub fn got_pcpu_after(&mut self, vm: VmId, now_ns: u64, waited_ns: u64) {
        let vm = &mut self.vms[vm];
        vm.waits.record(waited_ns);
        vm.longest_waits.waited(now_ns, waited_ns);
    }

    /// A vCPU of the VM has waited for longer than its bound.
    pub fn waited_beyond_bound(&mut self, vm: VmId) {
        self.vms[vm].late_waits += 1;
    }

    /// A vCPU of the VM waits in the end, and has done so for so long.
    pub fn still_waits(&mut self, vm: VmId, now_ns: u64, waited_ns: u64) {
        self.vms[vm].longest_waits.waited(now_ns, waited_ns);
    }

    pub fn locked_queues(&mut self, times: QueueLockTimes) {
        self.queue_locks += times;
    }

    #[inline]
    pub fn count_preemption(&mut self, vm: VmId, class: GuestClass) {
        self.vms[vm].preemptions_by_class[class as usize] += 1;
    }

    /// A vCPU was preempted that held a spinlock. `statistics`: which counters ([`Measurements::add_locks`]).
    #[inline]
    pub fn count_holder_preemption(&mut self, vm: VmId, statistics: u32) {
        self.vms[vm].locks[statistics as usize].holder_preemptions += 1;
    }

    /// Cold caches cost a vCPU of the VM so much.
    #[inline]
    pub fn refilled(&mut self, vm: VmId, refill_ns: u64) {
        self.vms[vm].refill_ns += refill_ns;
    }

    /// A thread of the VM had to wait at a barrier at which threads spin before they sleep.
    pub fn waited_at_barrier(&mut self, vm: VmId, departure: bool, slept: bool) {
        self.vms[vm].barrier_waits.count(departure, slept);
    }

    #[inline]
    pub fn count_halt(&mut self, vm: VmId) {
        self.vms[vm].yields.halt += 1;
    }

    #[inline]
    pub fn count_yield_in_ipi_wait(&mut self, vm: VmId) {
        self.vms[vm].yields.ipi += 1;
    }

    /// A vCPU of the VM has spun for answers to a shootdown, with so many exits.
    #[inline]
    pub fn spun_for_shootdown(&mut self, vm: VmId, elapsed_ns: u64, exits: u64) {
        let vm = &mut self.vms[vm];
        vm.shootdown_spin_ns += elapsed_ns;
        vm.yields.ipi += exits;
    }

    #[inline]
    pub fn shootdown_took(&mut self, vm: VmId, waited_ns: u64) {
        self.vms[vm].tlb_sync.record(waited_ns);
    }

    /// A grace period of the VM is over.
    pub fn grace_period_took(&mut self, vm: VmId, length_ns: u64) {
        self.vms[vm].grace_periods.lengths.record(length_ns);
    }

    /// A writer of the VM found a vCPU without a pCPU that hadn't reported.
    pub fn found_holdout(&mut self, vm: VmId, reading: bool, in_user_mode: bool) {
        let holdouts = &mut self.vms[vm].grace_periods.holdouts;
        *match (reading, in_user_mode) {
            (true, _) => &mut holdouts.reading,
            (false, true) => &mut holdouts.in_user_mode,
            (false, false) => &mut holdouts.elsewhere,
        } += 1;
    }

    /// A vCPU of the VM rested from then until now, because of `cpu.max`.
    pub fn rested(&mut self, vm: VmId, now_ns: u64, since_ns: u64) {
        self.vms[vm].throttled_ns += now_ns - since_ns.max(self.since_ns()).min(now_ns);
    }

    /// A thread of the VM runs that slept, so long after the end of its sleep was due.
    #[inline]
    pub fn timer_was_late(&mut self, vm: VmId, late_ns: u64) {
        self.vms[vm].timer_lateness.record(late_ns);
    }

    /// A woken thread of the VM runs, so long after its wake-up.
    #[inline]
    pub fn woken_ran_after(&mut self, vm: VmId, waited_ns: u64) {
        self.vms[vm].wake_waits.record(waited_ns);
    }

    #[inline]
    pub fn count_ipi_sent(&mut self, vm: VmId, calls_function: bool) {
        self.vms[vm].ipis_sent += 1;
        self.vms[vm].call_function_ipis += u64::from(calls_function);
    }

    #[inline]
    pub fn count_ipi_handled(&mut self, vm: VmId) {
        self.vms[vm].ipis_handled += 1;
    }

    /// `statistics`: which counters ([`Measurements::add_locks`]).
    #[inline]
    pub fn lock_taken_after(&mut self, vm: VmId, statistics: u32, waited_ns: u64) {
        let vm = &mut self.vms[vm];
        vm.locks[statistics as usize].waits.record(waited_ns);
        vm.guest_times.extended_waits_ns += if waited_ns > EXTENDED_NS { waited_ns } else { 0 };
    }

    /// A spinlock was held for so long.
    pub fn lock_held(&mut self, vm: VmId, held_ns: u64) {
        let times = &mut self.vms[vm].guest_times;
        times.lock_holds.record(held_ns);
        times.extended_holds_ns += if held_ns > EXTENDED_NS { held_ns } else { 0 };
    }

    /// A vCPU of the VM was unsafe, or safe, for so long.
    pub fn mode_lasted(&mut self, vm: VmId, is_unsafe: bool, lasted_ns: u64) {
        let times = &mut self.vms[vm].guest_times;
        if is_unsafe {
            times.unsafe_times.record(lasted_ns);
            times.unsafe_squares_ms2 += (lasted_ns as f64 / 1e6).powi(2);
        } else {
            times.safe_ns += lasted_ns;
        }
    }

    /// What lockstat in that guest sees of such a wait.
    #[inline]
    pub fn lockstat_saw(&mut self, vm: VmId, statistics: u32, waited_ns: u64) {
        self.vms[vm].locks[statistics as usize].lockstat.record(waited_ns);
    }

    /// What a vCPU has counted itself, and so long it has run and waited.
    pub fn add_vcpu(&mut self, host: &HostVcpu, (run_ns, wait_ns): (u64, u64), spins: &SpinCounters) {
        let vm = &mut self.vms[host.vm];
        vm.run_ns += run_ns;
        vm.wait_ns += wait_ns;
        let (least, most) = vm.least_and_most_waited_ns.unwrap_or((wait_ns, wait_ns));
        vm.least_and_most_waited_ns = Some((least.min(wait_ns), most.max(wait_ns)));
        vm.context_switches += host.turns.switches;
        vm.spin_ns += spins.spin_ns;
        vm.yields.ple += spins.lock_exits;
    }

    // What was counted.
    #[inline]
    pub fn since_ns(&self) -> u64 {
        self.since_ns
    }

    pub fn events(&self) -> u64 {
        self.events
    }

    pub fn batched_exits(&self) -> u64 {
        self.batched_exits
    }

    /// Time of pCPUs in guests, and in the host's work for them.
    pub fn guest_and_overhead_ns(&self) -> (u64, u64) {
        (self.guest_ns, self.overhead_ns)
    }

    /// Returns all vCPUs' times from runnable until running.
    pub fn wait_to_run(&self) -> Histogram {
        let mut waits = Histogram::new();
        self.vms.iter().for_each(|vm| waits.merge(&vm.waits));
        waits
    }

    pub fn queue_locks(&self) -> QueueLockTimes {
        self.queue_locks
    }

    pub fn vms(&self) -> &IdVec<VmId, VmCounters> {
        &self.vms
    }
}

impl Simulation<'_> {
    /// Begins to measure: forgets whatever was counted so far.
    ///
    /// This is the only place where counters begin anew. A counter that it forgets makes the report differ
    /// from that of a run that hasn't begun, which a test compares.
    pub(crate) fn begin_measuring(&mut self) {
        self.finish_accounts();
        let uncomputed_ns = self.uncomputed_ns();
        self.measured.restart(self.machine.now_ns);
        self.machine.restart_counters();
        for guest in &mut self.guest {
            guest.spins = SpinCounters::default();
        }
        for lock in &mut self.locks {
            lock.acquisitions = 0;
        }
        for lock in &mut self.user_locks {
            lock.acquisitions = 0;
        }
        for (workload, uncomputed_ns) in self.workloads.iter_mut().zip(uncomputed_ns) {
            workload.units_done = 0;
            workload.computed_ns = uncomputed_ns;
        }
        for nic in self.vms.iter_mut().filter_map(|vm| vm.nic.as_mut()) {
            nic.counters = StreamCounters::default();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::RunReport;
    use microslice_model::config::*;
    use microslice_model::events::NoTrace;
    use microslice_model::samples;
    use microslice_policy::DelayUnsafe;
    use std::collections::BTreeMap;

    /// A run in which as much as possible is counted: locks, shootdowns, barriers, packets.
    fn busy(
        scheduler: SchedulerKind,
        hold_ns: u64,
        delay: Option<DelayPreemptionConfig>,
    ) -> SimulationConfig {
        let mut config = samples::simulation(scheduler);
        config.host.queue_locks = Some(QueueLockCosts { hold_ns: 40, line_near_ns: 50, line_far_ns: 130 });
        (config.guest_times, config.delay) = (true, delay);
        (config.host.pcpus, config.duration_ns) = (3, S);
        let hold = Duration::Exponential { mean_ns: hold_ns };
        let duration = Duration::Exponential { mean_ns: 30 * US };
        let vm = &mut config.vms[0];
        vm.kernel.preemption_hint_ns = 2_000_000;
        (vm.vcpus, vm.kernel.lock_kind) = (4, LockKind::Ticket);
        vm.kernel.locks.push(LockConfig {
            name: "page_allocator".into(),
            kind: None,
            irqs_off: false,
            instances: 1,
            symbol: "get_page_from_freelist".into(),
        });
        vm.kernel.locks.push(LockConfig {
            name: "futex".into(),
            kind: None,
            irqs_off: false,
            instances: 1,
            symbol: "futex_wait".into(),
        });
        vm.nic = Some(NicConfig {
            vcpu: 0,
            stream: Stream::Udp { bits_per_s: 800_000_000, packet_bytes: 1_470 },
            irq_handler_ns: 2 * US,
            softirq_per_packet_ns: 300,
            reader_per_packet_ns: 300,
            ring_packets: 16,
            worker: None,
        });
        let threads = &mut vm.workloads[0];
        (threads.threads, threads.run_units, threads.run_time_ns) = (6, 1_000, 1_000 * MS);
        threads.program = vec![
            Phase::Compute { duration },
            Phase::Lock { lock: "page_allocator".into(), hold },
            Phase::Shootdown { prepare: duration, under: None },
            Phase::Barrier {
                name: "b".into(),
                count: 0,
                under: Some("futex".into()),
                spin_ns: 20 * US,
                requeues: false,
            },
            Phase::Progress { units: 1 },
        ];
        let reader = WorkloadConfig {
            name: "reader".into(),
            threads: 1,
            program: vec![Phase::NetworkReceive, Phase::Compute { duration }, Phase::Progress { units: 1 }],
            ..threads.clone()
        };
        let section = Phase::ReadRcu { duration, symbol: "link_path_walk".into() };
        let program = |phase| vec![Phase::Compute { duration }, phase, Phase::Progress { units: 1 }];
        let of_rcu = |threads, phase| WorkloadConfig {
            name: format!("rcu{threads}"),
            threads,
            program: program(phase),
            ..reader.clone()
        };
        vm.workloads.extend([of_rcu(1, Phase::Synchronize), of_rcu(3, section)]);
        vm.workloads.push(reader);
        config
    }

    /// Adds a report's figures by name, and whether one of that name isn't zero.
    fn note_counted(report: &RunReport, counted: &mut BTreeMap<String, bool>) {
        let text = format!("{report:#?}");
        let figures = text.lines().filter_map(|line| line.trim().trim_end_matches(',').split_once(": "));
        for (name, value) in figures {
            if let Ok(value) = value.parse::<f64>() {
                *counted.entry(name.to_owned()).or_default() |= value > 0.0;
            }
        }
    }

    #[test]
    fn nothing_counted_before_measuring_begins_is_reported() {
        let windows = |unsafe_where| {
            Some(DelayPreemptionConfig {
                window_ns: 100 * US,
                history: 2,
                unsafe_where,
                look_ns: 10 * US,
                safe_point_ns: None,
            })
        };
        let stride = || SchedulerKind::Stride(StrideConfig { slice_ns: 2 * MS });
        // Readers of 4.4 leave no mark: there no holdout is elsewhere in the kernel.
        let mut of_today = busy(SchedulerKind::Credit(samples::credit()), 20 * US, None);
        of_today.vms[0].kernel.symbols = SymbolTable::LinuxModern;
        let mut counted = BTreeMap::new();
        for config in [
            of_today,
            busy(SchedulerKind::MicroSliced(samples::microslice()), 20 * US, None),
            busy(SchedulerKind::Credit(samples::credit()), 20 * US, None),
            busy(SchedulerKind::MicroSliced(samples::micro()), 20 * US, None),
            busy(stride(), 20 * US, windows(DelayUnsafe::InKernel)),
            busy(stride(), 200 * US, windows(DelayUnsafe::WhereHinted)),
        ] {
            let (mut sink, mut other_sink) = (NoTrace, NoTrace);
            let mut simulation = Simulation::new(&config, &mut sink).expect("it is valid");
            note_counted(&simulation.run().expect("it runs"), &mut counted);
            simulation.begin_measuring();
            let mut begun = simulation.report();
            // The events are those of the whole run, and the sizes say when.
            (begun.events, begun.pool.sizes) = (0, Vec::new());
            let fresh = Simulation::new(&config, &mut other_sink).expect("it is valid").report();
            assert_eq!(format!("{begun:#?}"), format!("{fresh:#?}"));
        }
        // A new figure has to be counted in one of these runs, or nothing is known of it.
        let never: Vec<_> = counted.iter().filter(|(_, is_counted)| !**is_counted).collect();
        assert!(never.is_empty(), "{never:?}");
    }
}
