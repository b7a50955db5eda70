//! `microslice observe`: what overcommit costs each VM, on a host whose scheduler it leaves alone.
//!
//! [`run`] refuses or starts the BPF side ([`programs`]). Then it looks for VMs and tells that side what is
//! known of their code ([`crate::guests::list`]). It reads what was seen of each ([`figures`]), and prints
//! ([`report`]). docs/how-to/observe.md is the operator's page.

mod crowd;
mod figures;
mod helpers;
mod judgement;
mod long_waits;
mod page;
mod profile;
mod programs;
pub mod report;
mod sampler;
mod served;
mod stalls;

pub use figures::{VcpuFigures, VmFigures};
pub use helpers::HelperTimes;
pub use long_waits::{LongWaits, LongestWait, Runner};
pub use sampler::Sampler;
pub use stalls::Stalls;

use crate::HostError;
use crate::bpf::program_costs::Measuring;
use crate::guests::guest_kernels::GuestKernels;
use crate::guests::list::{Guests, KernelSide, Lines, Purpose};
use crate::guests::running::refuse_unknown_names;
use crate::machine::clock::monotonic_ns;
use crate::machine::{preflight, privileges};
use crate::output::monitoring::Publisher;
use crate::output::tracer::{Tracer, name_of_newcomer};
use crate::settings::Settings;
use crate::shares::weights::{Weighed, weights};
use helpers::HelperWatch;
use long_waits::LongWaitWatch;
use programs::Programs;
use report::{Report, VmReport};
use stalls::StallWatch;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender};
use std::time::{Duration, Instant};

/// How often the ring is read.
const POLL: Duration = Duration::from_millis(20);
/// How often VMs are looked for and read: one that ends is missing what it did since.
const LOOK_FOR_VMS: Duration = Duration::from_millis(200);
/// After so long without a VM the operator hears that there is none.
const VMLESS_PATIENCE: Duration = Duration::from_secs(2);
/// Functions that are named of those in which holders are missed by symbols.
const MISSED_SHOWN: usize = 10;
/// VMs that have gone and are still reported: the latest ones.
const GONE_MAX: usize = 512;

/// Where reports and messages go.
pub struct Output<'o> {
    /// Takes the report of each interval, and the last one, of the whole time.
    pub report: &'o mut dyn FnMut(&Report),
    /// One line for the operator: standard error.
    pub say: &'o mut dyn FnMut(&str),
    /// Everything is attached: the time begins.
    pub begin: &'o mut dyn FnMut(),
}

/// A VM that is looked at: what those who look put into its figures is theirs.
struct VmSeen<'f> {
    /// Its slot and generation, which tell VMs apart. One process may have several.
    key: (u32, u32),
    pid: u32,
    figures: &'f mut VmFigures,
}

/// For how long, and how often.
#[derive(Debug, Clone, Copy)]
pub struct Span {
    /// Before it begins to count: guests' kernels are read meanwhile.
    pub settle: Duration,
    /// `None`: until it is stopped.
    pub length: Option<Duration>,
    /// `None`: one report at the end.
    pub interval: Option<Duration>,
}

/// Observes until `stop` is set, or the time is over. Nothing stays loaded when it returns.
///
/// # Errors
/// The host can't have it: nothing was changed. Or something broke: all was taken back.
pub fn run(
    settings: &Settings,
    span: Span,
    stop: &AtomicBool,
    output: &mut Output<'_>,
) -> Result<(), HostError> {
    run_answering(settings, span, stop, output, None)
}

/// The same, and sends what has been seen until then to whoever asks.
fn run_answering(
    settings: &Settings,
    span: Span,
    stop: &AtomicBool,
    output: &mut Output<'_>,
    questions: Option<Receiver<SyncSender<Report>>>,
) -> Result<(), HostError> {
    let mut kernels = GuestKernels::of(settings.catalogue()?).naming_functions();
    let host = preflight::check_observer()?;
    for (name, path) in &settings.guests {
        kernels.open(path, path).map_err(|error| settings.refuse_kernel(name, &error))?;
    }
    refuse_unknown_names(settings)?;
    let listener = settings.metrics_listener()?;
    let pcpu_count = host.topology.pcpu_count;
    let create = |trace| Tracer::create(trace, "microslice observe", pcpu_count);
    let tracer = settings.trace.as_ref().map(create).transpose()?;
    let measuring = settings.program_costs.then(Measuring::start).transpose()?;
    let mut host_profile = profile::host(&host);
    let nodes = host.topology.neighbourhoods.iter().map(|place| place.node).collect();
    let programs = Programs::load(&host, settings)?;
    privileges::keep_only_used()?;
    if let Some(line) = programs.hooks().line() {
        (output.say)(&line);
    }
    let guests = Guests::new(settings, kernels, Purpose::Observe)?;
    let mut observer = Observer {
        guests,
        gone: Vec::new(),
        stalls: StallWatch::of_host(),
        helpers: HelperWatch::of_host(),
        long_waits: LongWaitWatch::of_host(),
        _measuring: measuring,
        measures: settings.program_costs,
        programs,
        tracer,
        trace_has_failed: false,
        publisher: listener.map(Publisher::start).transpose()?,
        questions,
        started: Instant::now(),
        origin: Report::default(),
        before: Report::default(),
    };
    // Events that came while the programs were attached, one after the other, are before the reported time.
    observer.guests.look(&mut observer.programs, &mut Lines { say: &mut *output.say })?;
    observer.origin = observer.all_seen(false);
    observer.before = observer.origin.clone();
    (output.begin)();
    observer.tracer.iter_mut().for_each(|tracer| tracer.begin(monotonic_ns()));
    if !span.settle.is_zero() {
        observer.observe(Some(span.settle), span.interval, stop, output)?;
        observer.origin = observer.all_seen(false);
        observer.programs.forget_missed_holders();
    }
    let observed = observer.observe(span.length, span.interval, stop, output);
    observer.end_trace(output)?;
    observed?;
    let mut report = observer.all_seen(true).since(&observer.origin);
    report.vms.iter_mut().for_each(profile::look_at_affinity);
    observer.name_missed_holders(&mut report);
    host_profile.sees_interrupts = report.hooks.sees_interrupts();
    profile::note_scheduler(&mut host_profile);
    report.host = Some(host_profile);
    report.nodes = nodes;
    (output.report)(&report);
    match &settings.trace {
        Some(trace) if observer.trace_has_failed => Err(trace.is_incomplete()),
        _ => Ok(()),
    }
}

/// Instruction counts of the loaded programs, for `bpf/instruction-counts.toml`: loads, reads, unloads.
///
/// # Errors
/// As [`run`].
pub fn instruction_counts(settings: &Settings) -> Result<Vec<(String, u32)>, HostError> {
    let host = preflight::check_observer()?;
    Ok(Programs::load(&host, settings)?.verified_instruction_counts())
}

struct Observer<'s> {
    guests: Guests<'s>,
    gone: Vec<VmReport>,
    stalls: StallWatch,
    helpers: HelperWatch,
    long_waits: LongWaitWatch,
    _measuring: Option<Measuring>,
    measures: bool,
    programs: Programs,
    /// Until its trace is complete.
    tracer: Option<Tracer>,
    trace_has_failed: bool,
    /// For clients of `metrics-listen`.
    publisher: Option<Publisher>,
    /// Of a [`Sampler`].
    questions: Option<Receiver<SyncSender<Report>>>,
    started: Instant,
    /// When it began.
    origin: Report,
    /// At the end of the interval before.
    before: Report,
}

impl Observer<'_> {
    /// `length`, `interval`: as those of a [`Span`].
    fn observe(
        &mut self,
        length: Option<Duration>,
        interval: Option<Duration>,
        stop: &AtomicBool,
        output: &mut Output<'_>,
    ) -> Result<(), HostError> {
        let began = Instant::now();
        let mut printed = Instant::now();
        let mut looked: Option<Instant> = None;
        let mut present: Vec<VmReport> = Vec::new();
        let mut has_said_that_there_is_none = false;
        while !stop.load(Ordering::Relaxed) && length.is_none_or(|length| began.elapsed() < length) {
            for event in self.programs.poll()? {
                self.guests.hear(event, &mut self.programs, &mut Lines { say: &mut *output.say })?;
            }
            if looked.is_none_or(|at| at.elapsed() >= LOOK_FOR_VMS) {
                looked = Some(Instant::now());
                self.guests.look(&mut self.programs, &mut Lines { say: &mut *output.say })?;
                let now = self.present();
                self.remember_gone(&present, &now);
                present = now;
            }
            let is_alone = present.is_empty() && self.gone.is_empty();
            if is_alone && !has_said_that_there_is_none && self.started.elapsed() >= VMLESS_PATIENCE {
                has_said_that_there_is_none = true;
                (output.say)("no VM has run here yet: waiting for one");
            }
            self.trace(output)?;
            self.publish();
            self.answer();
            if interval.is_some_and(|interval| printed.elapsed() >= interval) {
                printed = Instant::now();
                let now = self.all_seen(false);
                (output.report)(&now.since(&self.before));
                self.before = now;
            }
            std::thread::sleep(POLL);
        }
        Ok(())
    }

    /// Writes what has arrived for the trace, and ends it if its time is over.
    fn trace(&mut self, output: &mut Output<'_>) -> Result<(), HostError> {
        let (Some(tracer), now_ns) = (&mut self.tracer, monotonic_ns()) else { return Ok(()) };
        let (guests, programs) = (&self.guests, &self.programs);
        tracer.hear(&programs.traces(), now_ns, &|slot, generation| {
            name_of(guests, programs, slot, generation)
        });
        if tracer.is_over(now_ns) { self.end_trace(output) } else { Ok(()) }
    }

    fn end_trace(&mut self, output: &mut Output<'_>) -> Result<(), HostError> {
        let Some(tracer) = self.tracer.take() else { return Ok(()) };
        let lost = self.programs.end_trace();
        for event in self.programs.poll()? {
            self.guests.hear(event, &mut self.programs, &mut Lines { say: &mut *output.say })?;
        }
        let (guests, programs) = (&self.guests, &self.programs);
        let name_of = |slot, generation| name_of(guests, programs, slot, generation);
        let ended = tracer.finish(&programs.traces(), lost, monotonic_ns(), &name_of);
        (output.say)(&ended.line);
        self.trace_has_failed = ended.has_failed;
        Ok(())
    }

    /// For clients of `metrics-listen`, if it is time.
    fn publish(&mut self) {
        if !self.publisher.as_ref().is_some_and(Publisher::is_due) {
            return;
        }
        let reading = self.all_seen(false);
        if let Some(publisher) = &mut self.publisher {
            publisher.publish(reading);
        }
    }

    fn answer(&mut self) {
        let replies: Vec<_> = self.questions.iter().flat_map(Receiver::try_iter).collect();
        for reply in replies {
            // Whoever asked may have gone.
            let _ = reply.try_send(self.all_seen(false));
        }
    }

    fn present(&mut self) -> Vec<VmReport> {
        let now_ns = monotonic_ns();
        let vms = self.guests.vms.values();
        let weights =
            weights(&vms.map(|vm| Weighed { place: &vm.place, is_active: true }).collect::<Vec<_>>());
        let of = |(vm, weight): (&crate::guests::vms::Vm, u32)| VmReport {
            name: vm.name.clone(),
            uuid: vm.libvirt.uuid().map(str::to_owned),
            pid: vm.kernel_side.pid,
            slot: vm.kernel_side.slot,
            generation: vm.kernel_side.generation,
            kernel: vm.release().map(str::to_owned),
            state: vm.state(),
            has_classes: vm.slide_told.is_some(),
            is_gone: false,
            weight,
            affinity: Vec::new(),
            missed: Vec::new(),
            figures: self.programs.figures(vm.kernel_side.slot),
        };
        let mut present: Vec<VmReport> = self.guests.vms.values().zip(weights).map(of).collect();
        let now = Instant::now();
        self.stalls.look(seen_in(&mut present), now);
        self.helpers.look(seen_in(&mut present).collect(), now);
        let (guests, programs) = (&self.guests, &self.programs);
        let name_vm = |slot, generation| name_of(guests, programs, slot, generation);
        self.long_waits.look(seen_in(&mut present), &name_vm, now_ns);
        self.programs.look_for_longest_from(now_ns);
        present
    }

    /// Returns the VMs of `before` that aren't there now.
    fn remember_gone(&mut self, before: &[VmReport], now: &[VmReport]) {
        let is_gone = |vm: &&VmReport| !now.iter().any(|other| other.is_same(vm));
        self.gone.extend(before.iter().filter(is_gone).map(|vm| {
            let mut gone = VmReport { is_gone: true, ..vm.clone() };
            gone.figures.long_waits.end();
            gone
        }));
        let surplus = self.gone.len().saturating_sub(GONE_MAX);
        self.gone.drain(..surplus);
    }

    /// Names the functions in which holders were stopped that symbols don't find.
    fn name_missed_holders(&self, report: &mut Report) {
        let mut counts: BTreeMap<(u32, u32), BTreeMap<String, u64>> = BTreeMap::new();
        for (place, count) in self.programs.missed_holders() {
            let vm = self.guests.vms.get(&place.vm);
            let vm = vm.filter(|vm| vm.kernel_side.generation == place.generation);
            let Some(function) = vm.and_then(|vm| vm.function_at(place.address)) else { continue };
            let of_vm = counts.entry((place.vm, place.generation)).or_default();
            *of_vm.entry(function.to_owned()).or_default() += count;
        }
        for vm in &mut report.vms {
            let mut missed: Vec<_> =
                counts.remove(&(vm.slot, vm.generation)).unwrap_or_default().into_iter().collect();
            missed.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
            missed.truncate(MISSED_SHOWN);
            vm.missed = missed;
        }
    }

    fn all_seen(&mut self, is_final: bool) -> Report {
        let present = self.present();
        let vms = self.gone.iter().cloned().chain(present).collect();
        Report {
            is_final,
            seconds: self.started.elapsed().as_secs_f64(),
            vms,
            hooks: self.programs.hooks().clone(),
            recursion_misses: self.programs.recursion_misses(),
            programs: self.measures.then(|| self.programs.program_costs()),
            host: None,
            nodes: Vec::new(),
        }
    }
}

fn seen_in(vms: &mut [VmReport]) -> impl Iterator<Item = VmSeen<'_>> {
    vms.iter_mut().map(|vm| VmSeen { key: (vm.slot, vm.generation), pid: vm.pid, figures: &mut vm.figures })
}

fn name_of(guests: &Guests<'_>, programs: &Programs, slot: u32, generation: u32) -> Option<String> {
    guests.name_of(slot, generation).or_else(|| name_of_newcomer(&programs.vms(), slot, generation))
}
