//! `microslice run --scheduler beside`: acceleration on a host whose scheduler stays the kernel's own.
//!
//! [`run`] refuses or starts: the ledger ([`ledger`]), the process that watches over it ([`watcher`]), the
//! BPF side ([`programs`]), and the thread that boosts ([`helper`]). Then it looks for VMs and tells the
//! kernel side what is known of their code ([`crate::guests::list`]), and prints ([`report`]).
//! docs/explanation/beside.md says what can be left behind by whose death.

mod helper;
pub mod latency;
mod ledger;
mod pay_back;
mod programs;
pub mod report;
mod served;
mod threads;
mod waits;
mod watcher;
mod weight_ledger;

pub(crate) use helper::check_real_time;
pub use watcher::{FLAG as WATCHER_FLAG, watch};

use crate::HostError;
use crate::bpf::kernel_vm::KernelVm;
use crate::guests::counts::CountReader;
use crate::guests::guest_kernels::GuestKernels;
use crate::guests::list::{Guests, Lines, Purpose};
use crate::guests::running::refuse_unknown_names;
use crate::machine::cgroups::CpuController;
use crate::machine::preflight::{self, Host};
use crate::machine::privileges;
use crate::output::monitoring::Publisher;
use crate::settings::Settings;
use crate::settings::max_wait::LeastBound;
use helper::Helper;
use ledger::Ledger;
use pay_back::{Boosted, PayBack};
use programs::Programs;
use report::{Helped, Report, VmBoosts};
use rustix::fs::FlockOperation;
use sd_notify::NotifyState;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use threads::Means;
use watcher::Watcher;

/// How often the ring is read, and VMs are looked for.
const POLL: Duration = Duration::from_millis(20);
const LOOK_FOR_VMS: Duration = Duration::from_millis(200);
/// How often systemd's watchdog hears of us.
const SAY_ALIVE: Duration = Duration::from_secs(5);
/// A watcher that dies more often isn't replaced: it is killed on purpose.
const WATCHERS_MAX: u32 = 10;

/// Where reports and messages go.
pub struct Output<'o> {
    /// One report: standard output.
    pub report: &'o mut dyn FnMut(&Report),
    /// One line for the operator: standard error.
    pub say: &'o mut dyn FnMut(&str),
}

/// Runs until `stop` is set. No thread stays real-time, and nothing stays loaded, when it returns.
///
/// # Errors
/// The host can't have it: nothing was changed. Or something broke: all was taken back.
pub fn run(settings: &Settings, stop: &AtomicBool, output: &mut Output<'_>) -> Result<(), HostError> {
    settings.check()?;
    let mut kernels = GuestKernels::of(settings.catalogue()?);
    let host = preflight::check_beside()?;
    check_real_time()?;
    for (name, path) in &settings.guests {
        kernels.open(path, path).map_err(|error| settings.refuse_kernel(name, &error))?;
    }
    refuse_unknown_names(settings)?;
    let listener = settings.metrics_listener()?;
    let ledger = Arc::new(Ledger::lock(&ledger::path())?);
    let left = ledger.settle();
    if left > 0 {
        (output.say)(&format!("{left} threads that an earlier run had left real-time were given back"));
    }
    let weights = weight_ledger::beside(&ledger::path());
    let left = weight_ledger::settle(&weights);
    weight_ledger::forget(&weights);
    if left > 0 {
        (output.say)(&format!("{left} weights of cgroups that an earlier run had lowered were given back"));
    }
    let programs = Programs::load(&host, settings)?;
    // Before threads and processes are started: they have no more than they need.
    privileges::keep_only_used()?;
    let watcher = Watcher::start(&ledger::path())?;
    let slice = Duration::from_micros(settings.micro_slice_us);
    let boosts_max = (host.topology.pcpu_count as usize).min(ledger::PLACES);
    let means = Means::RealTime;
    let events = programs.boost_events(settings, host.topology.pcpu_count)?;
    let helper = Helper::start(events, Arc::clone(&ledger), slice, boosts_max, means)?;
    let guests = Guests::new(settings, kernels, Purpose::Boost)?;
    let now = Instant::now();
    let mut beside = Beside {
        settings,
        host,
        ledger,
        programs,
        watcher,
        watchers: 0,
        publisher: listener.map(Publisher::start).transpose()?,
        helper,
        guests,
        pay_back: settings.pay_back.then(|| PayBack::new(CpuController::of_host(), weights)),
        started: now,
        least_bound: LeastBound::default(),
        before: None,
    };
    let result = beside.serve(stop, output);
    beside.finish(result, output)
}

/// Instruction counts of the loaded programs, for `bpf/instruction-counts.toml`: loads, reads, unloads.
///
/// # Errors
/// As [`run`].
pub fn instruction_counts(settings: &Settings) -> Result<Vec<(String, u32)>, HostError> {
    let host = preflight::check_beside()?;
    Ok(Programs::load(&host, settings)?.verified_instruction_counts())
}

/// True while a `run --scheduler beside` boosts threads of this host.
pub fn runs() -> bool {
    let file = std::fs::File::open(ledger::path());
    file.is_ok_and(|file| rustix::fs::flock(&file, FlockOperation::NonBlockingLockShared).is_err())
}

struct Beside<'s> {
    settings: &'s Settings,
    host: Host,
    ledger: Arc<Ledger>,
    // In the order in which they end: the helper that boosts first, the programs that it tells last.
    helper: Helper,
    programs: Programs,
    guests: Guests<'s>,
    watcher: Watcher,
    /// How many were started in place of dead ones.
    watchers: u32,
    /// For clients of `metrics-listen`.
    publisher: Option<Publisher>,
    pay_back: Option<PayBack>,
    started: Instant,
    least_bound: LeastBound,
    /// At the end of the interval before.
    before: Option<Report>,
}

impl Beside<'_> {
    fn serve(&mut self, stop: &AtomicBool, output: &mut Output<'_>) -> Result<(), HostError> {
        (output.say)(&format!(
            "beside the kernel's own scheduler on {} pCPUs: boosts of {} us, at most {} % of the host for a VM{}",
            self.host.topology.pcpu_count,
            self.settings.micro_slice_us,
            self.settings.boost_percent,
            if self.settings.dry_run { " (dry run: nobody is boosted)" } else { "" }
        ));
        if let Some(line) = self.programs.hooks().line() {
            (output.say)(&line);
        }
        let _ = sd_notify::notify(false, &[NotifyState::Ready]);
        let (mut said_alive, mut printed) = (Instant::now(), Instant::now());
        let mut looked: Option<Instant> = None;
        while !stop.load(Ordering::Relaxed) {
            if looked.is_none_or(|at| at.elapsed() >= LOOK_FOR_VMS) {
                looked = Some(Instant::now());
                self.look_after_ourselves(output)?;
                self.guests.look(&mut self.programs, &mut lines_only(output))?;
                self.look_at_bound(output);
                self.pay_back(output);
            }
            self.drain(output)?;
            self.publish();
            if let Some(seconds) = self.settings.stats
                && printed.elapsed().as_secs_f64() >= seconds
            {
                printed = Instant::now();
                self.print_interval(output);
            }
            if said_alive.elapsed() >= SAY_ALIVE {
                said_alive = Instant::now();
                let _ = sd_notify::notify(false, &[NotifyState::Watchdog]);
            }
            std::thread::sleep(POLL);
        }
        Ok(())
    }

    /// Says which bound so many vCPUs can have, if it isn't the one that they shall have.
    fn look_at_bound(&mut self, output: &mut Output<'_>) {
        let vcpus = self.guests.vms.values().map(|vm| vm.kernel_side.vcpu_count).sum();
        let (settings, pcpus) = (self.settings, self.host.topology.pcpu_count);
        let own = self.guests.vms.values().filter_map(|vm| vm.policy.max_wait);
        let bounds = own.chain([settings.max_wait()]);
        let line = self.least_bound.line(bounds, settings.micro_slice_us, vcpus, pcpus);
        line.into_iter().for_each(|line| (output.say)(&line));
    }

    /// What VMs had by boosts is taken from what they have by weight, if it is time.
    fn pay_back(&mut self, output: &mut Output<'_>) {
        let Some(pay_back) = self.pay_back.as_mut().filter(|pay_back| pay_back.is_due()) else { return };
        let boosted = |vm: &KernelVm| Boosted {
            vm: (vm.slot, vm.generation),
            pid: vm.pid,
            // What two of them lie in is the VM's: a vCPU may have a cgroup of its own.
            threads: self.programs.vcpus(vm.slot).iter().take(2).map(|(_, vcpu)| vcpu.pid).collect(),
            boosted_ns: self.programs.boosts(vm.slot).ran_ns,
        };
        let vms: Vec<_> = self.guests.vms.values().map(|vm| boosted(&vm.kernel_side)).collect();
        pay_back.look(&vms, output.say);
    }

    fn drain(&mut self, output: &mut Output<'_>) -> Result<(), HostError> {
        for event in self.programs.poll()? {
            self.guests.hear(event, &mut self.programs, &mut lines_only(output))?;
        }
        Ok(())
    }

    fn look_after_ourselves(&mut self, output: &mut Output<'_>) -> Result<(), HostError> {
        if self.helper.has_failed() {
            return Err(HostError::broken("the thread that boosts has failed"));
        }
        if self.watcher.replace_if_dead()? {
            self.watchers += 1;
            if self.watchers > WATCHERS_MAX {
                return Err(HostError::broken("the watcher of boosts dies again and again"));
            }
            (output.say)("the watcher of boosts was dead: another one watches");
        }
        Ok(())
    }

    fn finish(mut self, result: Result<(), HostError>, output: &mut Output<'_>) -> Result<(), HostError> {
        self.helper.stop();
        // Nothing is left there, unless the helper failed.
        let left = self.ledger.settle();
        if left > 0 {
            (output.say)(&format!("{left} threads were given back that were real-time still"));
        }
        let drained = self.drain(output);
        let report = Report { is_final: true, ..self.report() };
        // Weights are the operator's again.
        self.pay_back = None;
        (output.report)(&report);
        if let Some((count, dropped)) = self.programs.finish_recording()? {
            (output.say)(&format!("recorded {count} decisions, {dropped} dropped"));
        }
        result.and(drained)
    }

    fn report(&self) -> Report {
        let vms = self.guests.vms.values().map(|vm| VmBoosts {
            name: vm.name.clone(),
            uuid: vm.libvirt.uuid().map(str::to_owned),
            pid: vm.kernel_side.pid,
            generation: vm.kernel_side.generation,
            vcpu_count: vm.kernel_side.vcpu_count,
            kernel: vm.release().map(str::to_owned),
            slide: vm.slide_told,
            state: vm.state(),
            stats: self.programs.vm_stats(vm.kernel_side.slot),
            boosts: self.programs.boosts(vm.kernel_side.slot),
            bound_ns: self.programs.bound_ns(vm.kernel_side.slot),
        });
        let is_unused = |slot: &u32| !self.guests.vms.contains_key(slot);
        let slots = (0..crate::interface::VMS_MAX).filter(is_unused);
        let gone = slots.fold(
            (self.programs.gone_stats(), self.programs.boosts_of_gone()),
            |(stats, boosts), slot| {
                let (more, more_boosts) = (self.programs.vm_stats(slot), self.programs.boosts(slot));
                (crate::bpf::counters::sum(&stats, &more), crate::bpf::counters::sum(&boosts, &more_boosts))
            },
        );
        Report {
            is_final: false,
            dry_run: self.settings.dry_run,
            seconds: self.started.elapsed().as_secs_f64(),
            vms: vms.collect(),
            gone,
            helped: Helped::read(&self.helper.counts),
            watchers_replaced: self.watchers,
            hooks: self.programs.hooks().clone(),
            recursion_misses: self.programs.recursion_misses(),
            paid_back: self.pay_back.as_ref().map(PayBack::counts),
        }
    }

    /// For clients of `metrics-listen`, if it is time.
    fn publish(&mut self) {
        if !self.publisher.as_ref().is_some_and(Publisher::is_due) {
            return;
        }
        let reading = self.report();
        if let Some(publisher) = &mut self.publisher {
            publisher.publish(reading);
        }
    }

    fn print_interval(&mut self, output: &mut Output<'_>) {
        let now = self.report();
        (output.report)(&now.since(self.before.as_ref()));
        self.before = Some(now);
    }
}

/// For what prints lines and no reports.
fn lines_only<'a>(output: &'a mut Output<'_>) -> Lines<'a> {
    Lines { say: &mut *output.say }
}
