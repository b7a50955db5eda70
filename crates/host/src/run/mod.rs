//! The daemon: one thread that loads the scheduler, tells it what is known of VMs, and prints. A second one
//! reads kernels.

mod ends;
mod guests;
mod hints;
mod lately;
mod objects;
mod policies;
pub mod pool_history;
mod readings;
mod refusals;
pub mod report;
mod resched_co;
mod restarts;
mod rings;
mod scheduler;
mod served;
mod shares;
pub mod simple;
mod traces;

pub use served::RunReading;

use crate::HostError;
use crate::bpf::program_costs::Measuring;
use crate::bpf::recursion_misses::RecursionMisses;
use crate::guests::guest_kernels::{GuestKernel, GuestKernels};
use crate::guests::hint_pages::HintPages;
use crate::guests::kernel_reader::{KernelReader, VmKey};
use crate::guests::lines::say_slide;
use crate::guests::pinned::pinned_pcpus;
use crate::guests::running::refuse_unknown_names;
use crate::guests::vms::Vm;
use crate::interface::{HostStats, VmStats};
use crate::machine::clock::monotonic_ns;
use crate::machine::cpu_list::cpu_list;
use crate::machine::preflight::{self, Host};
use crate::machine::{cautions, cgroups, kvm_modes, privileges};
use crate::output::monitoring::Publisher;
use crate::output::recorder::Recorder;
use crate::output::tracer::Tracer;
use crate::run::lately::Lately;
use crate::run::pool_history::PoolHistory;
use crate::run::readings::Readings;
use crate::run::refusals::Refusals;
use crate::run::report::Report;
use crate::run::restarts::Restarts;
use crate::run::scheduler::Scheduler;
use crate::settings::max_wait::LeastBound;
use crate::settings::{SchedulerChoice, Settings};
use crate::shares::limits::{self, LimitTable, Troubles};
use crate::shares::service_weights::{ServiceTable, Used};
use microslice_policy::{Coded, QueueDomain};
use sd_notify::NotifyState;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Weak;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How often the rings are read. A recording fills 16 MiB in no less than a second.
const POLL: Duration = Duration::from_millis(20);
/// How often VMs are looked for, and what their cgroups say read again.
const LOOK_FOR_VMS: Duration = Duration::from_millis(200);
const READ_CGROUPS: Duration = Duration::from_secs(5);
const LOOK_WHO_WANTS_TO_RUN: Duration = Duration::from_secs(1);
/// How often systemd's watchdog hears of us.
const SAY_ALIVE: Duration = Duration::from_secs(5);

/// Where reports and messages go.
pub struct Output<'o> {
    /// One report, as text or JSON: standard output.
    pub report: &'o mut dyn FnMut(&Report),
    /// One line for the operator: standard error.
    pub say: &'o mut dyn FnMut(&str),
}

/// Runs a scheduler until `stop` is set or the kernel ends it. Nothing stays loaded when this returns.
pub fn run(
    settings: &Settings,
    choice: SchedulerChoice,
    stop: &AtomicBool,
    output: &mut Output<'_>,
) -> Result<(), HostError> {
    settings.check()?;
    let mut kernels = GuestKernels::of(settings.catalogue()?);
    let mut host = preflight::check()?;
    settings.keep_normal(&mut host.topology, &pinned_pcpus())?;
    settings.pool_limit(host.topology.micro_order.len())?;
    settings.queue_domains(&host.topology)?;
    // Images that the operator named must be good; those that VMMs name may not be.
    for (name, path) in &settings.guests {
        kernels.open(path, path).map_err(|error| settings.refuse_kernel(name, &error))?;
    }
    refuse_unknown_names(settings)?;
    let listener = settings.metrics_listener()?;
    let recorder = settings.record.as_deref().map(Recorder::create).transpose()?;
    let create = |trace| Tracer::create(trace, "microslice run", host.topology.pcpu_count);
    let tracer = settings.trace.as_ref().map(create).transpose()?;
    let mut limits = LimitTable::default();
    let tree = limits::read_tree(Path::new(cgroups::MOUNT))
        .map_err(|cause| HostError::broken(format!("limits of cgroups can't be read: {cause}")))?;
    let first_limits = limits.update(&tree.limited);
    let scheduler = Scheduler::start(&host, settings, choice, &first_limits)?;
    // Before the thread that reads what tenants hold is started.
    privileges::keep_only_used()?;
    let mut daemon = Daemon::new(settings, choice, host, scheduler, kernels, recorder, limits)?;
    daemon.publisher = listener.map(Publisher::start).transpose()?;
    daemon.begin_trace(tracer);
    daemon.weigh_services(&tree.weighed, output);
    let result = daemon.serve(stop, output);
    daemon.finish(result, output)
}

struct Daemon<'s> {
    settings: &'s Settings,
    choice: SchedulerChoice,
    host: Host,
    /// None only between two of them.
    scheduler: Option<Scheduler>,
    restarts: Restarts,
    /// VMs that the scheduler before this one knew, and that this one hasn't seen yet: they may sleep.
    remembered: BTreeMap<VmKey, Vm>,
    /// Counts of schedulers before this one: of VMs that are gone, of the host, and of programs.
    gone_before: VmStats,
    host_before: HostStats,
    misses_before: RecursionMisses,
    kernels: KernelReader,
    hint_pages: HintPages,
    /// The kernels whose ranges the kernel side, and the recording, have, by slot. A slot is used again once
    /// no VM runs its kernel.
    shared_codes: BTreeMap<u32, Weak<GuestKernel>>,
    limits: LimitTable,
    /// Faults that kept limits out of force when they were read last.
    limit_troubles: Troubles,
    services: ServiceTable,
    /// The time that the outermost cgroups had used when they were looked at last, and when that was.
    outermost: (Used, Instant),
    /// Why not every service has its weight, as the operator was told.
    service_trouble: Option<String>,
    refusals: Refusals,
    least_bound: LeastBound,
    recorder: Option<Recorder>,
    /// Until its trace is complete.
    tracer: Option<Tracer>,
    trace_has_failed: bool,
    measuring: Option<Measuring>,
    /// For clients of `metrics-listen`.
    publisher: Option<Publisher>,
    lately: Lately,
    /// By slot.
    vms: BTreeMap<u32, Vm>,
    started: Instant,
    pool_history: PoolHistory,
    before: Readings,
}

impl<'s> Daemon<'s> {
    fn new(
        settings: &'s Settings,
        choice: SchedulerChoice,
        host: Host,
        scheduler: Scheduler,
        kernels: GuestKernels,
        recorder: Option<Recorder>,
        limits: LimitTable,
    ) -> Result<Self, HostError> {
        let now = Instant::now();
        let before = Readings {
            at: now,
            vms: BTreeMap::new(),
            gone: VmStats::default(),
            host: HostStats::default(),
            misses: RecursionMisses::default(),
            pool_changes: 0,
            micro_pcpu_ns: 0,
        };
        let kernels = KernelReader::start(kernels)
            .map_err(|cause| HostError::broken(format!("no thread to read kernels: {cause}")))?;
        let measuring = settings.program_costs.then(Measuring::start).transpose()?;
        Ok(Self {
            settings,
            choice,
            measuring,
            publisher: None,
            lately: Lately::default(),
            host,
            scheduler: Some(scheduler),
            restarts: Restarts::default(),
            remembered: BTreeMap::new(),
            gone_before: VmStats::default(),
            host_before: HostStats::default(),
            misses_before: RecursionMisses::default(),
            kernels,
            hint_pages: HintPages::default(),
            shared_codes: BTreeMap::new(),
            recorder,
            tracer: None,
            trace_has_failed: false,
            limits,
            limit_troubles: Troubles::default(),
            services: ServiceTable::default(),
            outermost: (Used::default(), now),
            service_trouble: None,
            refusals: Refusals::default(),
            least_bound: LeastBound::default(),
            vms: BTreeMap::new(),
            started: now,
            pool_history: PoolHistory::new(monotonic_ns()),
            before,
        })
    }

    /// Which pCPUs are never micro-sliced, and why.
    fn say_who_stays_normal(&self, output: &mut Output<'_>) {
        let topology = &self.host.topology;
        let (isolated, pinned, slow) = (&topology.isolated, &topology.pinned, &topology.slow);
        let has_pool = self.choice == SchedulerChoice::Microslice;
        for (cpus, why, counts) in [
            (isolated, "are isolated", true),
            (slow, "are slower than others", has_pool),
            (pinned, "have threads of VMs pinned to them", has_pool),
        ] {
            if counts && !cpus.is_empty() {
                (output.say)(&format!("CPUs {} {why}: they are never micro-sliced", cpu_list(cpus)));
            }
        }
    }

    /// How many queues there are, where it isn't one because the host has one cache.
    fn say_where_vcpus_wait(&self, output: &mut Output<'_>) -> Result<(), HostError> {
        let domains = self.settings.queue_domains(&self.host.topology)?;
        if domains.count > 1 {
            (output.say)(&format!("vCPUs wait by {}, in {} domains", domains.kind.name(), domains.count));
        } else if self.settings.queue_domain.is_none() && domains.kind == QueueDomain::Host {
            (output.say)(
                "this host doesn't show its last-level caches: all vCPUs wait in one queue (--queue-domain pcpu: one for each CPU)",
            );
        }
        Ok(())
    }

    fn serve(&mut self, stop: &AtomicBool, output: &mut Output<'_>) -> Result<(), HostError> {
        let first_line = self.first_line()?;
        (output.say)(&first_line);
        self.say_where_vcpus_wait(output)?;
        self.say_who_stays_normal(output);
        (output.say)(&kvm_modes::line(&preflight::hints(self.host.vendor)));
        cgroups::of_version_one().into_iter().for_each(|warning| (output.say)(warning));
        cautions::lines(&preflight::kernel("osrelease")).iter().for_each(|line| (output.say)(line));
        // Where systemd started it: it is up, and from now on it says that it lives (WatchdogSec= of its
        // unit).
        let _ = sd_notify::notify(false, &[NotifyState::Ready, NotifyState::Status(&first_line)]);
        let mut said_alive = Instant::now();
        let mut looked_for_vms: Option<Instant> = None;
        let mut read_cgroups = Instant::now();
        let mut looked_who_wants_to_run = Instant::now();
        while !stop.load(Ordering::Relaxed) {
            if looked_for_vms.is_none_or(|at| at.elapsed() >= LOOK_FOR_VMS) {
                looked_for_vms = Some(Instant::now());
                self.look_for_vms(output)?;
                self.look_into_memories();
                self.look_for_hints(output)?;
                self.look_for_counts(output)?;
                self.vms.values_mut().for_each(|vm| say_slide(vm, output.say));
            }
            if looked_who_wants_to_run.elapsed() >= LOOK_WHO_WANTS_TO_RUN {
                looked_who_wants_to_run = Instant::now();
                self.look_at_domains(output)?;
                self.see_which_want_to_run()?;
            }
            if read_cgroups.elapsed() >= READ_CGROUPS {
                read_cgroups = Instant::now();
                self.read_cgroups(output)?;
            }
            self.try_resched_co()?;
            while let Some(answer) = self.kernels.next_answer() {
                self.hear_of_kernel(answer, output)?;
            }
            self.drain(output)?;
            self.trace(output)?;
            if let Some(exit) = self.scheduler().exit() {
                self.start_again(&exit, stop, output)?;
                looked_for_vms = None;
            }
            self.publish();
            if let Some(seconds) = self.settings.stats
                && self.before.at.elapsed().as_secs_f64() >= seconds
            {
                let report = self.interval_report();
                (output.report)(&report);
            }
            if said_alive.elapsed() >= SAY_ALIVE {
                said_alive = Instant::now();
                let _ = sd_notify::notify(false, &[NotifyState::Watchdog]);
            }
            std::thread::sleep(POLL);
        }
        Ok(())
    }

    /// Says by which scheduler, for the operator.
    fn first_line(&self) -> Result<String, HostError> {
        let settings = self.settings;
        Ok(match self.choice {
            SchedulerChoice::Microslice => format!(
                "scheduling with {} of {} pCPUs micro-sliced at most, slices of {} us{}",
                settings.pool_limit(self.host.topology.micro_order.len())?,
                self.host.topology.pcpu_count,
                settings.micro_slice_us,
                if settings.dry_run { " (dry run: nothing is moved)" } else { "" }
            ),
            SchedulerChoice::Coordinated => format!(
                "scheduling urgent vCPUs first on {} pCPUs: {}; urgent slices of {} us",
                self.host.topology.pcpu_count, settings.schemes, settings.urgent_slice_us
            ),
        })
    }

    fn scheduler(&self) -> &Scheduler {
        self.scheduler.as_ref().expect("there is one but within start_again, or nothing is served any more")
    }

    fn scheduler_mut(&mut self) -> &mut Scheduler {
        self.scheduler.as_mut().expect("there is one but within start_again, or nothing is served any more")
    }
}

/// Instruction counts of the loaded programs, for `bpf/instruction-counts.toml`: loads, reads, unloads.
pub fn instruction_counts(
    settings: &Settings,
    choice: SchedulerChoice,
) -> Result<Vec<(String, u32)>, HostError> {
    let host = preflight::check()?;
    let scheduler = Scheduler::start(&host, settings, choice, &limits::Changes::default())?;
    Ok(scheduler.verified_instruction_counts())
}
