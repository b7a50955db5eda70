//! `microslice run`: the scheduler on this host.

use super::trace_args::TraceArgs;
use crate::failure::Failure;
use crate::interrupt;
use crate::output;
use crate::printer::Printer;
use clap::{Args, ValueEnum};
use microslice_host::HostError;
use microslice_host::beside;
use microslice_host::bpf::posted_interrupts::MadeVcpu;
use microslice_host::machine::cpu_list::CpuList;
use microslice_host::machine::domains;
use microslice_host::run::report::Report;
use microslice_host::run::{self, Output};
use microslice_host::settings::coordination::{Acts, Scheme};
use microslice_host::settings::delay_preemption::Unsafe;
use microslice_host::settings::listen::{Address, Listen};
use microslice_host::settings::max_wait::MaxWait;
use microslice_host::settings::rules::{Rules, critical_by_named};
use microslice_host::settings::{PoolChoice, SchedulerChoice, Settings};
use microslice_policy::{CriticalBy, QueueDomain};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// How long the end waits for a reader that takes nothing.
const READERS_PATIENCE: Duration = Duration::from_secs(5);

#[derive(Clone, Copy, ValueEnum)]
enum Scheduler {
    /// The kernel's own stays in charge. Threads of vCPUs are real-time for a micro slice each
    Beside,
    /// In its place: preempted critical code runs at once on micro-sliced pCPUs (EuroSys'18)
    Microslice,
    /// In its place: vCPUs that an IPI makes urgent run first, or aren't preempted, for a short slice
    /// (ASPLOS'13)
    Coordinated,
}

impl Scheduler {
    fn choice(self) -> Option<SchedulerChoice> {
        match self {
            Self::Beside => None,
            Self::Microslice => Some(SchedulerChoice::Microslice),
            Self::Coordinated => Some(SchedulerChoice::Coordinated),
        }
    }
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum Switch {
    On,
    Off,
}

#[derive(Clone, Copy, ValueEnum)]
enum SwitchOrAuto {
    On,
    Off,
    Auto,
}

impl From<Switch> for Acts {
    fn from(said: Switch) -> Self {
        match said {
            Switch::On => Self::On,
            Switch::Off => Self::Off,
        }
    }
}

impl From<SwitchOrAuto> for Acts {
    fn from(said: SwitchOrAuto) -> Self {
        match said {
            SwitchOrAuto::On => Self::On,
            SwitchOrAuto::Off => Self::Off,
            SwitchOrAuto::Auto => Self::Auto,
        }
    }
}

/// Help this host's VMs: vCPUs that their siblings wait for run at once for a micro slice
#[derive(Args)]
#[command(after_help = "Examples:
  microslice run                                     boosts beside the kernel's own scheduler
  microslice run --max-wait 5ms --stats 5            no vCPU waits longer for a CPU; statistics every 5 s
  microslice run --guest web=/srv/web/vmlinuz        the kernel image of a VM that boots from its own disk
  microslice run --dry-run --stats 10 --json         decide and count, move nothing, one JSON object per 10 s
  microslice run --scheduler microslice              replace the kernel's scheduler: micro-sliced pCPUs (Algorithm 1)
  microslice run --scheduler coordinated             replace it: urgent vCPUs first, without micro-sliced pCPUs
  microslice run --metrics-listen 127.0.0.1:9477     figures for Prometheus (docs/how-to/monitor.md)
  microslice run --record run.rec                    keep every decision, to be replayed
  microslice run --scheduler microslice --trace run.pftrace --trace-for 5s
                                                     who runs where for 5 s, to be opened in https://ui.perfetto.dev

Flags override /etc/microslice.toml, whose keys are the flags' names; a VM is a table: [vm.web] kernel = \"...\",
weight = 200. What isn't said there may be in the metadata of its libvirt domain (docs/how-to/libvirt.md). Ctrl-C or SIGTERM
take back what was changed and print the statistics of the whole run. If this process dies in any way, another one takes
boosts back, and the kernel unloads a scheduler that was in the place of its own.")]
pub struct Run {
    /// Which scheduler [default: beside]
    #[arg(long, value_name = "NAME", value_enum)]
    scheduler: Option<Scheduler>,
    /// As --scheduler beside
    #[arg(long, hide = true, conflicts_with = "scheduler")]
    beside: bool,
    /// beside: how much of the host a VM may have that way [default: 1]
    #[arg(long, value_name = "PERCENT")]
    boost_percent: Option<u32>,
    /// beside, microslice: how long a vCPU may wait for a CPU, from 1ms to 1s, none, or auto: 10ms, or 5ms
    /// for each vCPU that wants to run and that a CPU has. Whoever is due has a micro slice [default: auto;
    /// microslice: none]
    #[arg(long, value_name = "TIME")]
    max_wait: Option<MaxWait>,
    /// beside: lower the weights of VMs' cgroups for as long as it takes to pay back what they had by boosts
    #[arg(long)]
    pay_back: bool,
    /// Be the process that takes boosts back when the daemon is dead
    #[arg(long, hide = true, value_name = "FILE")]
    watch_boosts: Option<PathBuf>,
    /// microslice: how many pCPUs are micro-sliced: a number, or `auto` [default: auto]
    #[arg(long, value_name = "N|auto")]
    micro_cpus: Option<PoolChoice>,
    /// microslice: the most pCPUs that may be micro-sliced [default: a quarter]
    #[arg(long, value_name = "N")]
    micro_cpus_limit: Option<u32>,
    /// microslice: CPUs that are never micro-sliced, such as 0-3,8; nor are those that running VMs are pinned
    /// to
    #[arg(long, value_name = "LIST")]
    normal_cpus: Option<CpuList>,
    /// Length of a micro slice [default: 100]
    #[arg(long, value_name = "US")]
    micro_slice_us: Option<u64>,
    /// microslice, coordinated: length of a turn [default: 10000; by the paper's rules 30000]
    #[arg(long, value_name = "US")]
    slice_us: Option<u64>,
    /// microslice, coordinated: which pCPUs share queues, of vCPUs and of host tasks: `pcpu` (none), `llc`
    /// (those of a last-level cache) or `host` (all)
    /// [default: llc; host where the host doesn't show its caches]
    #[arg(long, value_name = "pcpu|llc|host", value_parser = domains::named)]
    queue_domain: Option<QueueDomain>,
    /// `paper`: none of the rules that the paper doesn't have, which docs/explanation/differences.md lists
    /// [default: project]
    #[arg(long, value_name = "project|paper")]
    rules: Option<Rules>,
    /// By what a lock's holder is known: the function that it was stopped in, its guest kernel's own count
    /// (where that is known), or either [default: symbols]
    #[arg(long, value_name = "symbols|counter|both", value_parser = critical_by_named)]
    critical_by: Option<CriticalBy>,
    /// microslice, coordinated: preempt a vCPU where nobody waits for what it holds, in a window so long
    /// around the end of its turn; 0: where the turn is over [default: 0]
    #[arg(long, value_name = "US")]
    delay_preemption: Option<u64>,
    /// With --delay-preemption: which guest isn't preempted in the window: one in its kernel, in critical
    /// code of that, or one that says so in its hint page (docs/how-to/guest-modules.md) [default: kernel]
    #[arg(long, value_name = "kernel|critical|hinted")]
    delay_unsafe: Option<Unsafe>,
    /// With --delay-preemption: between two looks at the guest's instruction pointer in the window [default:
    /// 100]
    #[arg(long, value_name = "US")]
    delay_look_us: Option<u64>,
    /// Never look into a guest's memory for its kernel: VMs whose image nobody names are scheduled normally
    #[arg(long)]
    no_guest_memory: bool,
    /// Decide and count, but never move a vCPU
    #[arg(long)]
    dry_run: bool,
    /// coordinated: the sender of a reschedule IPI isn't preempted for a while [default: on]
    #[arg(long, value_name = "on|off", value_enum, hide_possible_values = true)]
    resched_dp: Option<Switch>,
    /// coordinated: the recipient of a call-function IPI is urgent until it has answered it [default: on]
    #[arg(long, value_name = "on|off", value_enum, hide_possible_values = true)]
    tlb_co: Option<Switch>,
    /// coordinated: the recipient of a reschedule IPI is urgent for a while; `auto`: of VMs whose reschedule
    /// IPIs become rarer by it [default: off]
    #[arg(long, value_name = "on|off|auto", value_enum, hide_possible_values = true)]
    resched_co: Option<SwitchOrAuto>,
    /// coordinated: length of an urgent slice [default: 500]
    #[arg(long, value_name = "US")]
    urgent_slice_us: Option<u64>,
    /// coordinated: how long a reschedule IPI makes its sender or its recipient urgent [default: 500]
    #[arg(long, value_name = "US")]
    preemption_delay_us: Option<u64>,
    /// coordinated: how far an urgent vCPU's clock may be ahead of the vCPU's that it goes before [default:
    /// 18000]
    #[arg(long, value_name = "US")]
    urgent_allowance_us: Option<u64>,
    /// coordinated: how long a vCPU that has acknowledged a call stays urgent, to answer it [default: 100]
    #[arg(long, value_name = "US")]
    urgent_answer_us: Option<u64>,
    /// Critical functions of guest kernels from this file instead of those that the program carries
    #[arg(long, value_name = "FILE")]
    critical: Option<PathBuf>,
    /// Kernel image of a running VM; may be given more than once
    #[arg(long = "guest", value_name = "NAME=VMLINUZ")]
    guests: Vec<String>,
    /// microslice, coordinated: weight of a VM, over its cgroup's cpu.weight; may be given more than once
    #[arg(long = "weight", value_name = "NAME=N")]
    weights: Vec<String>,
    /// Configuration file [default: /etc/microslice.toml if it exists]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Write every observation with its decision to this file
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
    #[command(flatten)]
    trace: TraceArgs,
    /// Print statistics every so many seconds
    #[arg(long, value_name = "SEC")]
    stats: Option<f64>,
    /// Serve figures for Prometheus at this address: unix:/PATH, IP:PORT, or off; without one, at
    /// unix:/run/microslice/metrics.sock
    #[arg(long, value_name = "ADDRESS", num_args = 0..=1, default_missing_value = Address::DEFAULT)]
    metrics_listen: Option<Listen>,
    /// Statistics as JSON, one object per line
    #[arg(long)]
    json: bool,
    /// Show what the kernel and libbpf say when loading fails
    #[arg(short, long)]
    verbose: bool,
    /// Measure what the BPF programs cost, too: the kernel then reads its clock around each run
    #[arg(long)]
    program_costs: bool,
    /// Schedule as the kernel's scx_simple does, to compare costs with; prints them at the end
    #[arg(long, hide = true)]
    simple: bool,
    /// As if there were places for so many VMs only
    #[arg(long, hide = true, value_name = "N")]
    vm_places: Option<u32>,
    /// As if no interrupt exited: those to waiting vCPUs are looked for
    #[arg(long, hide = true)]
    interrupts_by_looks: bool,
    /// Print what is seen of interrupts posted to a vCPU that is made for it, and end
    #[arg(long, hide = true, value_name = "APIC,REGISTERS,POSTED:VECTOR,…")]
    posted_interrupts: Option<MadeVcpu>,
    /// Load, print the verifier's instruction count of each program as TOML, and unload
    #[arg(long, hide = true)]
    instruction_counts: bool,
}
pub fn run(args: Run) -> Result<(), Failure> {
    if let Some(file) = &args.watch_boosts {
        return beside::watch(file).map_err(failure);
    }
    if let Some(made) = &args.posted_interrupts {
        return output::print(&format!("{}\n", made.seen(args.verbose).map_err(failure)?));
    }
    let settings = settings_of(&args)?;
    if args.instruction_counts {
        return print_instruction_counts(&settings);
    }
    let trace = settings.trace.as_ref().map(|trace| trace.path.as_path());
    output::refuse_same_file(trace, settings.record.as_deref())?;
    let stop = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&stop);
    // To unload takes as long as it takes.
    interrupt::on_signal(None, move || flag.store(true, Ordering::Relaxed))?;
    if args.simple {
        return output::print(&format!("{}\n", microslice_host::run::simple::run(&stop).map_err(failure)?));
    }
    let (json, settings) = (args.json, &settings);
    match settings.scheduler {
        None => with_printers(|print, say| {
            let report = &mut |report: &beside::report::Report| {
                print(if json { report.to_json().to_string() } else { report.to_text() }, report.is_final);
            };
            beside::run(settings, &stop, &mut beside::Output { report, say })
        }),
        Some(choice) => with_printers(|print, say| {
            let report = &mut |report: &Report| {
                print(if json { report.to_json().to_string() } else { report.to_text() }, report.is_final);
            };
            run::run(settings, choice, &stop, &mut Output { report, say })
        }),
    }
}

/// Runs `scheduling`, whose statistics (the last of them marked) and lines are printed by threads of their
/// own.
fn with_printers(
    scheduling: impl FnOnce(&mut dyn FnMut(String, bool), &mut dyn FnMut(&str)) -> Result<(), HostError>,
) -> Result<(), Failure> {
    let statistics = Printer::start("standard output", show_statistics()).map_err(Failure::broken)?;
    let lines = Printer::start("standard error", show_line).map_err(Failure::broken)?;
    let mut print = |text: String, is_last: bool| {
        let text = format!("{}\n", output::plain(&text));
        if is_last { statistics.print_last(text) } else { statistics.print(text) }
    };
    let result = scheduling(&mut print, &mut |line| lines.print(line.to_owned()));
    // The scheduler is unloaded, whether its output is read or not.
    let shown = statistics.finish(READERS_PATIENCE);
    // If nothing reads lines, nothing would read one about that.
    let _ = lines.finish(READERS_PATIENCE);
    result.map_err(failure)?;
    shown
}

/// Statistics on standard output. Neither a reader that has gone away nor a full disk is a reason to stop
/// scheduling: what was lost is said once, and fails the command after the scheduler is unloaded.
fn show_statistics() -> impl FnMut(&str, u64) -> Result<(), Failure> {
    let mut is_lost = false;
    move |text, left_out| {
        if left_out > 0 {
            output::say(format_args!(
                "microslice: nobody read standard output: {left_out} statistics left out"
            ));
        }
        let shown = output::print_as_it_is(text);
        if let (Err(failure), false) = (&shown, is_lost) {
            output::say(format_args!("microslice: {failure}: statistics are lost, scheduling goes on"));
            is_lost = true;
        }
        shown
    }
}

/// A line on standard error.
pub(super) fn show_line(line: &str, left_out: u64) -> Result<(), Failure> {
    if left_out > 0 {
        output::say(format_args!("microslice: nobody read standard error: {left_out} lines left out"));
    }
    output::say(format_args!("microslice: {line}"));
    Ok(())
}

fn print_instruction_counts(settings: &Settings) -> Result<(), Failure> {
    let counts = match settings.scheduler {
        None => beside::instruction_counts(settings),
        Some(choice) => run::instruction_counts(settings, choice),
    };
    for (program, count) in counts.map_err(failure)? {
        output::print(&format!("{program} = {count}\n"))?;
    }
    Ok(())
}

pub(super) fn failure(error: HostError) -> Failure {
    if error.is_refusal() { Failure::bad_input(error) } else { Failure::broken(error) }
}

/// Flags that not every scheduler has, and that are no values to be taken.
fn note_given(args: &Run, settings: &mut Settings) {
    let given = [
        ("dry-run", args.dry_run),
        ("weight", !args.weights.is_empty()),
        ("trace", args.trace.settings().is_some()),
        ("program-costs", args.program_costs),
        ("vm-places", args.vm_places.is_some()),
        ("interrupts-by-looks", args.interrupts_by_looks),
    ];
    settings.flags_given.extend(given.into_iter().filter(|(_, given)| *given).map(|(key, _)| key.to_owned()));
}

/// Those flags that aren't a number or a word.
fn take_others(args: &Run, settings: &mut Settings) {
    let is_given = |settings: &mut Settings, key: &str| {
        settings.places.remove(key);
        settings.flags_given.insert(key.to_owned());
    };
    if args.micro_cpus_limit.is_some() {
        is_given(settings, "micro-cpus-limit");
        settings.micro_cpus_limit = args.micro_cpus_limit;
    }
    if let Some(list) = &args.normal_cpus {
        is_given(settings, "normal-cpus");
        settings.normal_cpus = list.clone();
    }
    if args.pay_back {
        is_given(settings, "pay-back");
        settings.pay_back = true;
    }
    if args.queue_domain.is_some() {
        is_given(settings, "queue-domain");
        settings.queue_domain = args.queue_domain;
    }
    if args.max_wait.is_some() {
        is_given(settings, "max-wait");
        settings.max_wait = args.max_wait;
    }
}

/// Flags over file over defaults.
fn settings_of(args: &Run) -> Result<Settings, Failure> {
    let mut settings = Settings::from_file(args.config.as_deref()).map_err(failure)?;
    macro_rules! take {
        ($($field:ident),*) => { $(if let Some(value) = args.$field {
            let key = stringify!($field).replace('_', "-");
            settings.$field = value;
            settings.places.remove(&key);
            settings.flags_given.insert(key);
        })* };
    }
    if let Some(scheduler) = if args.beside { Some(Scheduler::Beside) } else { args.scheduler } {
        settings.scheduler = scheduler.choice();
        settings.places.remove("scheduler");
    }
    take_schemes(args, &mut settings);
    take!(
        urgent_slice_us,
        preemption_delay_us,
        urgent_allowance_us,
        urgent_answer_us,
        boost_percent,
        micro_cpus,
        micro_slice_us,
        slice_us,
        rules,
        critical_by,
        delay_preemption,
        delay_unsafe,
        delay_look_us
    );
    take_others(args, &mut settings);
    note_given(args, &mut settings);
    settings.guest_memory &= !args.no_guest_memory;
    settings.dry_run |= args.dry_run;
    if args.critical.is_some() {
        settings.critical = args.critical.clone();
        settings.places.remove("critical");
    }
    settings.record = args.record.clone().or(settings.record);
    settings.trace = args.trace.settings();
    if let Some(seconds) = args.stats {
        settings.stats = Some(seconds);
        settings.places.remove("stats");
    }
    listen(&mut settings, args.metrics_listen.clone())?;
    settings.json = args.json;
    settings.program_costs = args.program_costs;
    settings.interrupts_by_looks = args.interrupts_by_looks;
    settings.vm_places = args.vm_places.unwrap_or(settings.vm_places);
    settings.verbose = args.verbose;
    take_vms(args, &mut settings)?;
    Ok(settings)
}

fn take_schemes(args: &Run, settings: &mut Settings) {
    let schemes =
        [args.resched_dp.map(Acts::from), args.tlb_co.map(Acts::from), args.resched_co.map(Acts::from)];
    for (scheme, said) in Scheme::ALL.into_iter().zip(schemes) {
        if let Some(said) = said {
            settings.schemes.set(scheme, said);
            settings.places.remove(scheme.key());
            settings.flags_given.insert(scheme.key().to_owned());
        }
    }
}

/// What is said of one VM by its name.
fn take_vms(args: &Run, settings: &mut Settings) -> Result<(), Failure> {
    for guest in &args.guests {
        let (name, path) = pair(guest, "guest", "NAME=VMLINUZ")?;
        settings.guests.insert(name.to_owned(), PathBuf::from(path));
        settings.guests_must_run.push(name.to_owned());
    }
    for weight in &args.weights {
        let (name, number) = pair(weight, "weight", "NAME=N")?;
        let number = number
            .parse()
            .map_err(|_| Failure::bad_input(format!("--weight {weight}: {number:?} isn't a number")))?;
        settings.weights.insert(name.to_owned(), number);
        settings.places.remove(&format!("vm.{name}.weight"));
    }
    Ok(())
}

/// Where figures are served: flag over file over the environment, which is a service's.
pub(super) fn listen(settings: &mut Settings, flag: Option<Listen>) -> Result<(), Failure> {
    if let Some(listen) = flag {
        settings.metrics_listen = Some(listen);
        settings.places.remove("metrics-listen");
        settings.flags_given.insert("metrics-listen".to_owned());
    } else if let (None, Ok(text)) = (&settings.metrics_listen, std::env::var(Listen::ENVIRONMENT)) {
        let listen = text.parse().map_err(|cause| {
            Failure::bad_input(format!("the environment's {}: {cause}", Listen::ENVIRONMENT))
        });
        settings.metrics_listen = Some(listen?);
    }
    Ok(())
}

pub(super) fn pair<'a>(text: &'a str, flag: &str, shape: &str) -> Result<(&'a str, &'a str), Failure> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() && !value.is_empty() => Ok((name, value)),
        _ => Err(Failure::bad_input(format!("--{flag} {text}: must be {shape}"))),
    }
}
