//! The demo's phases: two guests side by side, one kernel-heavy and one CPU hog, under one scheduler after
//! another.

use crate::guest::{Guest, GuestSpec, Pv};
use crate::host::Host;
use crate::link::{Output, Process};
use crate::measure::Measurement;
use crate::peers::Peer;
use crate::{Error, Result, say};
use serde_json::Value;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// What schedules in a phase.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scheduler {
    /// The kernel's own.
    Kernel,
    /// Ours, with so many micro-sliced pCPUs.
    Static(u32),
    /// The same by the paper's rules alone. The recipients of a call-function IPI run at once only when its
    /// sender yields. A vCPU that is stopped at a bad moment waits for the next hint.
    StaticPaper(u32),
    /// Ours, with a pool that follows Algorithm 1.
    Auto,
    /// The other one of ours: urgent vCPUs first (ASPLOS'13), with its default schemes.
    Coordinated,
    /// The kernel's own, and boosts beside it.
    Beside,
    /// The kernel's own, while `microslice observe` profiles the guests.
    Observed,
    /// The kernel's own, for one guest after the other: the rest stand still meanwhile.
    Alone,
    /// A scheduler of others.
    Peer(Peer),
}

impl Scheduler {
    /// The shell command that starts it; nothing for the kernel's own.
    fn command(self, plan: &Plan) -> Option<String> {
        if let Self::Peer(peer) = self {
            return Some(format!("exec {}", peer.command(plan.dilation)));
        }
        // Looking through memory would take a part of the pCPUs that are measured.
        let (microslice, flags, slices) = (&plan.microslice, self.flags()?, self.slice_flags(plan));
        Some(format!("exec {microslice} run --no-guest-memory {flags} {slices} --stats 1 --json"))
    }

    /// Flags of `microslice run`; nothing for others.
    pub fn flags(self) -> Option<String> {
        match self {
            Self::Kernel | Self::Observed | Self::Alone | Self::Peer(_) => None,
            Self::Static(count) => Some(format!("--scheduler microslice --micro-cpus {count}")),
            Self::StaticPaper(count) => {
                Some(format!("--scheduler microslice --micro-cpus {count} --rules paper"))
            }
            Self::Auto => Some("--scheduler microslice".into()),
            Self::Coordinated => Some("--scheduler coordinated".into()),
            Self::Beside => Some("--scheduler beside".into()),
        }
    }

    /// Those that say how long its slices are.
    fn slice_flags(self, plan: &Plan) -> String {
        let Plan { slice_us, micro_slice_us, boost_percent, .. } = plan;
        match self {
            Self::Coordinated => {
                let Plan { urgent_slice_us, urgent_allowance_us, urgent_answer_us, .. } = plan;
                format!(
                    "--slice-us {slice_us} --urgent-slice-us {urgent_slice_us} --preemption-delay-us {urgent_slice_us} \
                     --urgent-allowance-us {urgent_allowance_us} --urgent-answer-us {urgent_answer_us}"
                )
            }
            Self::Beside => format!("--micro-slice-us {micro_slice_us} --boost-percent {boost_percent}"),
            _ => format!("--slice-us {slice_us} --micro-slice-us {micro_slice_us}"),
        }
    }

    pub fn name(self) -> String {
        match self {
            Self::Kernel => "kernel's own".into(),
            Self::Static(0) => "pool off".into(),
            Self::Static(count) => format!("{count} micro"),
            Self::StaticPaper(count) => format!("{count} micro, paper"),
            Self::Auto => "auto".into(),
            Self::Coordinated => "coordinated".into(),
            Self::Beside => "beside".into(),
            Self::Observed => "kernel's own, observed".into(),
            Self::Alone => "alone".into(),
            Self::Peer(peer) => peer.program().into(),
        }
    }
}

/// The demo's, in order: everything is compared with the first.
pub const SCHEDULERS: [Scheduler; 5] = [
    Scheduler::Kernel,
    Scheduler::Static(0),
    Scheduler::Static(1),
    Scheduler::StaticPaper(1),
    Scheduler::Auto,
];

/// Phases with the same guests: what KVM does for them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Round {
    /// PV TLB flush, PV IPI, PV sched-yield, PV spinlock.
    pub pv: Pv,
    /// A spinning guest exits, as on hardware with pause-loop exiting. An emulated CPU exits at every PAUSE.
    pub pause_exits: bool,
}

impl Round {
    pub fn name(self) -> &'static str {
        match (self.pv, self.pause_exits) {
            (Pv::On, false) => "PV on",
            (Pv::Off, false) => "PV off",
            (Pv::On, true) => "PV on, PLE",
            (Pv::Off, true) => "PV off, PLE",
        }
    }
}

/// How the demo runs.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Measured time per phase.
    pub seconds: u64,
    /// How many times longer than on hardware every scheduler's slices are: ours and the kernel's own. 1
    /// leaves all alone.
    pub dilation: u32,
    /// Length of a slice in our normal pool.
    pub slice_us: u64,
    /// Length of a micro slice.
    pub micro_slice_us: u64,
    /// Length of an urgent slice, and of the delay of a preemption.
    pub urgent_slice_us: u64,
    /// Virtual time that an urgent vCPU may borrow.
    pub urgent_allowance_us: u64,
    /// For an answer, after its interrupt was acknowledged.
    pub urgent_answer_us: u64,
    /// Of the host, that a VM may have by boosts: as many times more than on hardware as micro slices are
    /// longer.
    pub boost_percent: u32,
    pub guest_kernel: String,
    /// Each guest has a cgroup of its own, as libvirt gives it one: the kernel's own scheduler then shares by
    /// VM, as ours does, not by thread. A real host's cgroups are its operator's.
    pub own_cgroups: bool,
    /// How `microslice` is called on the host.
    pub microslice: String,
    pub schedulers: Vec<Scheduler>,
    pub rounds: Vec<Round>,
}

/// A phase's outcome.
#[derive(Debug, Clone)]
pub struct Phase {
    pub scheduler: Scheduler,
    pub round: Round,
    /// Per VM: name and measurement.
    pub vms: Vec<(String, Measurement)>,
    /// How many CPUs each of them had, its VMM's own threads included; `None` where its VMM wasn't found.
    pub cpus: Vec<Option<f64>>,
    /// What the scheduler counted in the whole phase; `None` for the kernel's own.
    pub statistics: Option<Value>,
    /// What `microslice observe --profile` wrote, where it was asked to.
    pub profile: Option<String>,
    /// Context switches of the host in the measured time, and that time.
    pub context_switches: u64,
    pub seconds: f64,
}

impl Phase {
    /// Context switches of the host per unit of guest work.
    pub fn switches_per_work(&self) -> Option<f64> {
        let work: f64 = self.vms.iter().map(|(_, vm)| vm.work_rate()).sum();
        (work > 0.0).then(|| self.context_switches as f64 / self.seconds / work)
    }
}

/// Of slices, where the host is emulated: less than it is slower, so that a phase still has some dozen turns.
pub const EMULATED_DILATION: u32 = 10;
/// After a scheduler took over: the guests' queues have settled.
const SETTLE: Duration = Duration::from_secs(4);
/// How long a scheduler may take to see the guests, to read their kernels, and to learn where these lie;
/// each.
const KNOWLEDGE_PATIENCE: Duration = Duration::from_secs(60);
/// The guest whose work is micro-sliced, and its workload.
pub(crate) const MIX: &str = "mix";
/// The guest that only computes, likewise.
const HOG: &str = "hog";
const ROUND_TRIES: u32 = 3;
/// An observer that isn't asked to count yet finds the guests and reads their kernels.
const OBSERVER_SETTLES: Duration = Duration::from_secs(100);
/// Where it writes, on the host.
const PROFILE: &str = "/tmp/microslice-profile.json";
const START_PATIENCE: Duration = Duration::from_secs(60);
/// How long a scheduler may take to come, or to go: the kernel verifies it for seconds of emulation, for
/// minutes on a machine that others load.
const LOAD_PATIENCE: Duration = Duration::from_secs(300);
/// A peer's programs may be several times as long as ours: those of lavd took 300 s and more on a machine
/// that others load.
const PEER_LOAD_PATIENCE: Duration = Duration::from_secs(1200);

/// Runs all phases; `boot` gives the host, once for rounds with PAUSE exits and once for those without;
/// `progress` hears what comes next.
pub fn run(plan: &Plan, boot: &dyn Fn(bool) -> Result<Host>, progress: &dyn Fn(&str)) -> Result<Vec<Phase>> {
    let mut phases = Vec::new();
    for rounds in plan.rounds.chunk_by(|a, b| a.pause_exits == b.pause_exits) {
        let host = boot(rounds[0].pause_exits)?;
        dilate_kernel_slices(&host, plan.dilation)?;
        let _echo = host.start_echo()?;
        for &round in rounds {
            run_round(&host, plan, round, &mut phases, progress)?;
        }
    }
    Ok(phases)
}

/// Slices of the kernel's own scheduler are a setting for developers.
pub fn dilate_kernel_slices(host: &Host, dilation: u32) -> Result<()> {
    if dilation == 1 {
        return Ok(());
    }
    let file = "/sys/kernel/debug/sched/base_slice_ns";
    let command = format!(
        "[ -e {file} ] || mount -t debugfs debugfs /sys/kernel/debug; \
         slice=$(cat {file}) && echo $((slice * {dilation})) > {file}"
    );
    host.must_run(&command, START_PATIENCE).map(drop)
}

fn run_round(
    host: &Host,
    plan: &Plan,
    round: Round,
    phases: &mut Vec<Phase>,
    progress: &dyn Fn(&str),
) -> Result<()> {
    let total = plan.rounds.len() * plan.schedulers.len();
    let done = phases.len();
    for tries in 1.. {
        progress(&format!("booting two guests, {}", round.name()));
        let guests = start_guests(host, plan, round)?;
        let mut outcome = Ok(());
        for &scheduler in &plan.schedulers {
            progress(&format!(
                "phase {} of {total}: {}, {}",
                phases.len() + 1,
                scheduler.name(),
                round.name()
            ));
            match phase(host, plan, &guests, scheduler, round) {
                Ok(phase) => phases.push(phase),
                Err(error) => {
                    outcome = Err(error);
                    break;
                }
            }
        }
        for guest in guests {
            guest.stop()?;
        }
        match outcome {
            // Emulated SVM loses a guest now and then (docs/explanation/testbed.md); a round is compared
            // within itself only.
            Err(error @ Error::Stage { .. }) if tries < ROUND_TRIES => {
                say(format_args!("{error}; the round starts again ({tries} of {ROUND_TRIES} tries used)"));
                phases.truncate(done);
            }
            outcome => return outcome,
        }
    }
    unreachable!("the loop above returns")
}

/// The two: one kernel-heavy, one that hogs its vCPUs.
pub(crate) fn start_guests(host: &Host, plan: &Plan, round: Round) -> Result<Vec<Guest>> {
    let guest = |name: &str| {
        let guest = GuestSpec::new(name).workload(name).kernel(&plan.guest_kernel).pv(round.pv);
        if plan.own_cgroups { guest.own_cgroup() } else { guest }
    };
    host.start_guests(vec![guest(MIX).network(1), guest(HOG)])
}

/// What the guests did in a time, and what they had of the host.
struct Sample {
    vms: Vec<(String, Measurement)>,
    cpus: Vec<Option<f64>>,
    context_switches: u64,
    seconds: f64,
}

/// One phase. If its scheduler fails, guests may be left standing still.
pub(crate) fn phase(
    host: &Host,
    plan: &Plan,
    guests: &[Guest],
    scheduler: Scheduler,
    round: Round,
) -> Result<Phase> {
    let running = scheduler.command(plan);
    let running = running.map(|command| take_over(host, guests, scheduler, &command)).transpose()?;
    let observer = (scheduler == Scheduler::Observed).then(|| observe(host, plan, guests)).transpose()?;
    let seconds = Duration::from_secs(plan.seconds);
    let sample = match scheduler {
        Scheduler::Alone => sample_alone(host, guests, seconds)?,
        _ => sample(host, guests, seconds)?,
    };
    let statistics = match running {
        Some(process) if matches!(scheduler, Scheduler::Peer(_)) => end(host, &process).map(|_| None)?,
        running => running.map(|process| finish(host, &process)).transpose()?,
    };
    let profile = observer.map(|process| take_profile(host, &process)).transpose()?;
    let Sample { vms, cpus, context_switches, seconds } = sample;
    Ok(Phase { scheduler, round, vms, cpus, statistics, profile, context_switches, seconds })
}

/// Lets queues settle, then measures.
fn sample(host: &Host, guests: &[Guest], time: Duration) -> Result<Sample> {
    std::thread::sleep(SETTLE);
    let (from, switches_before, used_before) = (Instant::now(), context_switches(host)?, cpu_times(host)?);
    std::thread::sleep(time);
    let (to, switches_after, used_after) = (Instant::now(), context_switches(host)?, cpu_times(host)?);
    let seconds = (to - from).as_secs_f64();
    if let Some(guest) = guests.iter().find(|guest| guest.has_ended()) {
        let cause = format!("it ended: {}", guest.last_words());
        return Err(Error::Stage { machine: guest.name().into(), stage: "workload", cause });
    }
    let vms: Vec<(String, Measurement)> =
        guests.iter().map(|guest| (guest.name().to_owned(), Measurement::of(guest, from, to))).collect();
    let cpus = vms.iter().map(|(name, _)| cpus_between(&used_before, &used_after, name)).collect();
    let context_switches = switches_after.saturating_sub(switches_before);
    for (name, _) in vms.iter().filter(|(_, vm)| vm.windows == 0) {
        say(format_args!("guest {name} reported no whole window in this phase: it hardly ran"));
    }
    Ok(Sample { vms, cpus, context_switches, seconds })
}

/// Each guest by itself, for `time`.
fn sample_alone(host: &Host, guests: &[Guest], time: Duration) -> Result<Sample> {
    let mut sum = Sample { vms: Vec::new(), cpus: Vec::new(), context_switches: 0, seconds: 0.0 };
    for guest in guests {
        let others = || guests.iter().filter(|other| other.name() != guest.name());
        others().try_for_each(Guest::pause)?;
        let one = sample(host, std::slice::from_ref(guest), time)?;
        others().try_for_each(Guest::go_on)?;
        sum.vms.extend(one.vms);
        sum.cpus.extend(one.cpus);
        sum.context_switches += one.context_switches;
        sum.seconds += one.seconds;
    }
    Ok(sum)
}

/// Starts an observer; it begins to count about now.
fn observe(host: &Host, plan: &Plan, guests: &[Guest]) -> Result<Process> {
    let Plan { microslice, seconds, .. } = plan;
    let settle = OBSERVER_SETTLES.as_secs();
    let command = format!(
        "exec {microslice} observe --no-guest-memory --json --interval 1 --settle {settle}s --for {seconds}s --profile {PROFILE}"
    );
    guests.iter().try_for_each(Guest::pause)?;
    let process = start_reporting(host, &command)?;
    let began = Instant::now();
    let_it_learn(&process, guests)?;
    std::thread::sleep(OBSERVER_SETTLES.saturating_sub(began.elapsed()));
    Ok(process)
}

/// What an observer that ends by itself has written.
fn take_profile(host: &Host, process: &Process) -> Result<String> {
    let output = process.wait(LOAD_PATIENCE)?;
    if output.code != 0 {
        let cause = format!("exit code {}: {}", output.code, output.stderr.trim());
        return Err(Error::Command {
            machine: host.release().into(),
            command: "microslice observe".into(),
            cause,
        });
    }
    host.read_file(PROFILE)
}

/// Starts a scheduler and waits until the kernel says that it is in charge.
pub fn start(host: &Host, command: &str) -> Result<Process> {
    start_within(LOAD_PATIENCE, host, command)
}

fn start_within(patience: Duration, host: &Host, command: &str) -> Result<Process> {
    start_until(patience, host, command, "sched_ext wasn't enabled", |_| {
        let state = host.run("cat /sys/kernel/sched_ext/state", START_PATIENCE)?;
        Ok(state.stdout.trim() == "enabled")
    })
}

/// Starts boosts, or an observer, and waits until it reports: sched_ext has no part in these.
fn start_reporting(host: &Host, command: &str) -> Result<Process> {
    start_until(LOAD_PATIENCE, host, command, "it reported nothing", |process| {
        Ok(!process.lines(0).is_empty())
    })
}

/// `missing`: what the error says if it isn't in charge in time.
fn start_until(
    patience: Duration,
    host: &Host,
    command: &str,
    missing: &str,
    is_in_charge: impl Fn(&Process) -> Result<bool>,
) -> Result<Process> {
    let process = host.start(command)?;
    let began = Instant::now();
    while began.elapsed() < patience && !process.has_ended() {
        if is_in_charge(&process)? {
            return Ok(process);
        }
        std::thread::sleep(Duration::from_millis(500));
    }
    let ended = process.exit_code().map(|code| format!("it ended, exit code {code}"));
    let cause = ended.unwrap_or_else(|| format!("{missing} after {} s", began.elapsed().as_secs()));
    let cause = format!("{cause}; it said: {}", process.last_words());
    Err(Error::Command { machine: host.release().into(), command: command.into(), cause })
}

/// Puts a scheduler in charge that knows the guests' kernels. They stand still while it is verified, and
/// while it reads their kernels: an emulated host takes several times as long for either beside busy guests.
pub(crate) fn take_over(
    host: &Host,
    guests: &[Guest],
    scheduler: Scheduler,
    command: &str,
) -> Result<Process> {
    guests.iter().try_for_each(Guest::pause)?;
    let process = match scheduler {
        Scheduler::Peer(_) => start_within(PEER_LOAD_PATIENCE, host, command)?,
        Scheduler::Beside => start_reporting(host, command)?,
        _ => start(host, command)?,
    };
    match scheduler {
        // It knows no guests.
        Scheduler::Peer(_) => guests.iter().try_for_each(Guest::go_on)?,
        _ => let_it_learn(&process, guests)?,
    }
    Ok(process)
}

/// What watches paused guests learns of their vCPUs, of their kernels, and where these lie.
fn let_it_learn(process: &Process, guests: &[Guest]) -> Result<()> {
    guests.iter().try_for_each(Guest::go_on)?;
    let every = |vms: &[Value], is_so: &dyn Fn(&Value) -> bool| {
        guests.iter().all(|guest| vms.iter().any(|vm| vm["name"] == guest.name() && is_so(vm)))
    };
    wait_for_vms(process, |vms| every(vms, &|_| true));
    guests.iter().try_for_each(Guest::pause)?;
    wait_for_vms(process, |vms| every(vms, &|vm| vm["kernel"].is_string()));
    guests.iter().try_for_each(Guest::go_on)?;
    wait_for_slide(process, MIX);
    Ok(())
}

/// Waits until the scheduler knows where the kernel of guest `name` lies: before, it can't tell critical
/// code. The other guest hogs its vCPUs in user mode and never halts, so it tells nothing and needs nothing.
/// If it takes too long the phase is measured all the same, and the reader is told.
pub fn wait_for_slide(process: &Process, name: &str) {
    let is_told = |vm: &Value| vm["slide"].is_string() || vm["classes_are_known"] == true;
    let is_known = |vm: &Value| vm["name"] == name && is_told(vm);
    if !wait_for_vms(process, |vms| vms.iter().any(is_known)) {
        say(format_args!("the slide of {name} isn't known: its code counts as unknown"));
    }
}

/// Waits until what a scheduler reports of VMs is `enough`; false if it takes too long.
fn wait_for_vms(process: &Process, enough: impl Fn(&[Value]) -> bool) -> bool {
    let began = Instant::now();
    while began.elapsed() < KNOWLEDGE_PATIENCE && !process.has_ended() {
        let newest = process.lines(0).pop().and_then(|line| serde_json::from_str::<Value>(&line.text).ok());
        let vms = newest.as_ref().and_then(|report| report["vms"].as_array()).map_or(&[][..], Vec::as_slice);
        if enough(vms) {
            return true;
        }
        std::thread::sleep(Duration::from_millis(500));
    }
    false
}

/// Unloads a scheduler of ours; returns its final statistics.
pub fn finish(host: &Host, process: &Process) -> Result<Value> {
    let output = end(host, process)?;
    let last = output.stdout.lines().rev().find_map(|line| serde_json::from_str::<Value>(line).ok());
    last.ok_or_else(|| ended_badly(host, "it printed no statistics"))
}

/// Unloads a scheduler; returns what it said.
fn end(host: &Host, process: &Process) -> Result<Output> {
    if process.has_ended() {
        return Err(ended_badly(host, format_args!("it ended by itself: {}", process.last_words())));
    }
    process.signal(libc::SIGINT)?;
    let output = process.wait(LOAD_PATIENCE)?;
    match output.code {
        0 => Ok(output),
        code => Err(ended_badly(host, format_args!("exit code {code}: {}", output.stderr.trim()))),
    }
}

fn ended_badly(host: &Host, cause: impl std::fmt::Display) -> Error {
    Error::Command {
        machine: host.release().into(),
        command: "the scheduler".into(),
        cause: cause.to_string(),
    }
}

/// The processor time that a guest's VMM has used at some moment of the host's clock, both in seconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CpuTime {
    used_s: f64,
    at_s: f64,
}

/// That of each guest so far, by its name. A busy host takes seconds to answer: so each has its own moment.
pub fn cpu_times(host: &Host) -> Result<BTreeMap<String, CpuTime>> {
    let command = "for p in $(pidof qemu-system-x86_64); do \
                   tr '\\0' ' ' < /proc/$p/cmdline | sed 's/.* -name guest=\\([^ ,]*\\).*/\\1/'; echo; \
                   cut -d' ' -f14,15 /proc/$p/stat; cut -d' ' -f1 /proc/uptime; done";
    Ok(cpu_times_of(&host.must_run(command, START_PATIENCE)?))
}

/// Fields 14 and 15 of a process's stat are user's and kernel's time, in ticks of 10 ms wherever user space
/// sees them.
fn cpu_times_of(text: &str) -> BTreeMap<String, CpuTime> {
    let words: Vec<&str> = text.split_whitespace().collect();
    let times = words.chunks_exact(4).filter_map(|vm| {
        let ticks = vm[1].parse::<u64>().ok()? + vm[2].parse::<u64>().ok()?;
        Some((vm[0].to_owned(), CpuTime { used_s: ticks as f64 / 100.0, at_s: vm[3].parse().ok()? }))
    });
    times.collect()
}

/// How many CPUs the guest `name` had between two answers of [`cpu_times`].
pub fn cpus_between(
    before: &BTreeMap<String, CpuTime>,
    after: &BTreeMap<String, CpuTime>,
    name: &str,
) -> Option<f64> {
    let (before, after) = (before.get(name)?, after.get(name)?);
    let passed_s = after.at_s - before.at_s;
    (passed_s > 0.0).then(|| (after.used_s - before.used_s).max(0.0) / passed_s)
}

pub(crate) fn context_switches(host: &Host) -> Result<u64> {
    let stat = host.read_file("/proc/stat")?;
    let count = stat.lines().find_map(|line| line.strip_prefix("ctxt ")?.trim().parse().ok());
    count.ok_or_else(|| Error::file("/proc/stat", "has no line `ctxt`"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guests_cpus_are_by_the_hosts_clock_at_which_its_time_was_read() {
        let before = cpu_times_of("mix\n100 50\n10.00\nhog\n0 0\n10.50\n");
        // The host took ten seconds to answer for the second one.
        let after = cpu_times_of("mix\n300 50\n11.00\nhog\n1000 1000\n20.50\n");
        assert_eq!(cpus_between(&before, &after, "mix"), Some(2.0));
        assert_eq!(cpus_between(&before, &after, "hog"), Some(2.0));
        assert_eq!(cpus_between(&before, &after, "gone"), None);
    }
}
