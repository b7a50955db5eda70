//! How each fault is done to the host.

use super::PATIENCE;
use super::faults::{CgroupStep, Fault, HostileGuest};
use super::scene::Scene;
use crate::guest::{GuestSpec, Pv};
use crate::host::Host;
use crate::link::Process;
use crate::{Error, Result, say};
use std::time::{Duration, Instant};

/// The cgroup of the guest that means ill.
const HOSTILE: &str = "hostile";
/// VMs that have come are looked at for so long before they are killed.
const VMS_STAY: Duration = Duration::from_secs(4);
/// "A second" until the kernel's own scheduler is back, on a CPU that is 20 to 50 times slower.
const BACK_MS_MAX: u64 = 20_000;
/// Of its share, that a guest that means ill may have more than an honest one:
/// docs/reference/specification.md, Shares.
const HOSTILE_GAIN_MAX: f64 = 0.05;

const BARE_GUEST_TRIES: u32 = 3;
/// Of what a host's kernel calls available, when memory has run out.
const MEMORY_LEFT_MIB: u32 = 8;
/// Try what follows until it works: a killed task leaves its cgroup a moment later.
const GONE: &str = "gone() { tries=0; until \"$@\" 2>/dev/null; do tries=$((tries + 1)); [ $tries -lt 300 ] || return 1; sleep 0.1; done; }; gone";

/// What was seen of a fault itself.
#[derive(Debug, Default)]
pub struct Inflicted {
    /// Until the kernel's own scheduler was back, where ours was killed: milliseconds of the host's clock.
    pub back_ms: Option<u64>,
    /// CPU time of a hostile guest as a part of what honest ones had on average meanwhile.
    pub hostile_ratio: Option<f64>,
    pub findings: Vec<String>,
}

/// Does it, and takes it back.
pub fn inflict(scene: &mut Scene<'_>, fault: &Fault) -> Result<Inflicted> {
    let host = scene.host;
    match fault {
        Fault::Kill => kill(scene),
        Fault::Stop { seconds } => stop(scene, *seconds),
        Fault::Hotplug { pcpu, rounds, pause_ms } => hotplug(host, *pcpu, *rounds, *pause_ms),
        Fault::Cgroups { steps } => cgroups(host, steps),
        Fault::Vms { vms, vcpus, does, rounds } => {
            (0..*rounds).try_for_each(|_| vms_come_and_go(host, *vms, *vcpus, does))?;
            Ok(Inflicted::default())
        }
        Fault::RealTime { pcpu, priority, milliseconds } => real_time(host, *pcpu, *priority, *milliseconds),
        Fault::Memory { leave_mib, seconds } => memory(host, *leave_mib, *seconds),
        Fault::ClockJumps { by_seconds } => clock_jumps(host, by_seconds),
        Fault::Affinity { rounds, masks } => affinity(host, *rounds, masks),
        Fault::Hostile { guest, vcpus, seconds } => {
            hostile(scene, *guest, *vcpus, Duration::from_secs((*seconds).into()))
        }
    }
}

fn script(host: &Host, script: &str) -> Result<Inflicted> {
    host.must_run(script, PATIENCE).map(|_| Inflicted::default())
}

fn kill(scene: &mut Scene<'_>) -> Result<Inflicted> {
    let Some(scheduler) = scene.scheduler.take() else { return Ok(Inflicted::default()) };
    let timed = "read from _ < /proc/uptime; kill -9 $(pidof microslice); tries=0; \
                 until [ $(cat /sys/kernel/sched_ext/state) = disabled ] || [ $tries = 1200 ]; do sleep 0.05; tries=$((tries + 1)); done; \
                 read to _ < /proc/uptime; echo $from $to";
    let said = scene.host.must_run(timed, PATIENCE)?;
    let times: Vec<f64> = said.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    let [from, to] = times[..] else {
        return Err(Error::file("/proc/uptime", format!("says {said:?}")));
    };
    scheduler.wait(PATIENCE)?;
    let back_ms = ((to - from) * 1000.0).round() as u64;
    let findings = (back_ms > BACK_MS_MAX).then(|| {
        format!("the kernel's own scheduler was back after {back_ms} ms only: at most {BACK_MS_MAX}")
    });
    Ok(Inflicted { back_ms: Some(back_ms), findings: findings.into_iter().collect(), ..Inflicted::default() })
}

fn stop(scene: &Scene<'_>, seconds: u32) -> Result<Inflicted> {
    if let Some(scheduler) = &scene.scheduler {
        scheduler.signal(libc::SIGSTOP)?;
        std::thread::sleep(Duration::from_secs(seconds.into()));
        scheduler.signal(libc::SIGCONT)?;
    }
    Ok(Inflicted::default())
}

fn hotplug(host: &Host, pcpu: u32, rounds: u32, pause_ms: u32) -> Result<Inflicted> {
    let (file, pause) = (format!("/sys/devices/system/cpu/cpu{pcpu}/online"), f64::from(pause_ms) / 1000.0);
    script(
        host,
        &format!(
            "for round in $(seq {rounds}); do echo 0 > {file} && sleep {pause:.3} && echo 1 > {file} && sleep {pause:.3} || exit 1; done"
        ),
    )
}

fn cgroups(host: &Host, steps: &[CgroupStep]) -> Result<Inflicted> {
    // All that lies in them ends with them.
    let mut lines = vec![
        "cd /sys/fs/cgroup && echo +cpu > cgroup.subtree_control".to_owned(),
        "group() { echo campaign$1; }".into(),
        format!("remove() {{ echo 1 > $(group $1)/cgroup.kill; {GONE} rmdir $(group $1) || exit 1; }}"),
        "make() { mkdir $(group $1); (echo 0 > $(group $1)/cgroup.procs; exec sh -c 'while :; do :; done') > /dev/null 2>&1 & }".into(),
        // A task may end while it is moved.
        "move() { for task in $(cat $(group $1)/cgroup.procs); do echo $task > $(group $2)/cgroup.procs; done 2>/dev/null; }".into(),
    ];
    for step in steps {
        lines.push(match *step {
            CgroupStep::Make { group } => format!("make {group}"),
            CgroupStep::Remove { group } => format!("remove {group}"),
            CgroupStep::Move { group, to } => format!("move {group} {to}"),
            CgroupStep::Weigh { group, weight } => format!("echo {weight} > $(group {group})/cpu.weight"),
            CgroupStep::Limit { group, quota_us } => {
                format!("echo {quota_us} 100000 > $(group {group})/cpu.max")
            }
            CgroupStep::Unlimit { group } => format!("echo max > $(group {group})/cpu.max"),
        });
        lines.push("sleep 0.2".into());
    }
    lines.push("for made in campaign*; do [ ! -d $made ] || remove ${made#campaign}; done".into());
    script(host, &lines.join("\n"))
}

fn vms_come_and_go(host: &Host, vms: u32, vcpus: u32, does: &str) -> Result<()> {
    let vmm = host.start(&format!("exec vcpus {vms} {vcpus} {does}"))?;
    vmm.wait_for("ready", 0, PATIENCE)?;
    std::thread::sleep(VMS_STAY);
    end(&vmm)
}

fn end(process: &Process) -> Result<()> {
    process.signal(libc::SIGKILL)?;
    process.wait(PATIENCE).map(drop)
}

fn real_time(host: &Host, pcpu: u32, priority: u32, milliseconds: u32) -> Result<Inflicted> {
    script(host, &format!("exec taskset {:x} faults real-time {priority} {milliseconds}", 1u32 << pcpu))
}

/// To take gigabytes would take an emulated CPU minutes, which zeroes them. So the kernel is told to keep
/// most of it free: a raise of that keeps half as much again (`high` watermarks in `mm/page_alloc.c`). What
/// is left is taken.
fn memory(host: &Host, leave_mib: u32, seconds: u32) -> Result<Inflicted> {
    script(
        host,
        &format!(
            "kept=$(cat /proc/sys/vm/min_free_kbytes); \
             while read name kib _; do [ $name != MemAvailable: ] || available=$kib; done < /proc/meminfo; \
             echo $((kept + (available - {leave_mib} * 1024) * 2 / 3)) > /proc/sys/vm/min_free_kbytes; \
             faults memory {MEMORY_LEFT_MIB} {seconds}; echo $kept > /proc/sys/vm/min_free_kbytes; \
             cd /sys/fs/cgroup && echo +memory > cgroup.subtree_control && mkdir campaign-memory && echo 16M > campaign-memory/memory.max && \
             (echo 0 > campaign-memory/cgroup.procs; exec faults memory {MEMORY_LEFT_MIB} {seconds}); {GONE} rmdir campaign-memory"
        ),
    )
}

fn clock_jumps(host: &Host, by_seconds: &[i64]) -> Result<Inflicted> {
    let mut lines = vec!["jump() { date -s @$(($(date +%s) + $1)) > /dev/null; }".to_owned()];
    for by in by_seconds {
        lines.push(format!("jump {by}; sleep 0.5"));
    }
    lines.push(format!("jump {}", -by_seconds.iter().sum::<i64>()));
    script(host, &lines.join("\n"))
}

fn affinity(host: &Host, rounds: u32, masks: &[u32]) -> Result<Inflicted> {
    let masks: Vec<String> = masks.iter().map(|mask| format!("{mask:x}")).collect();
    let threads = "$(cd /proc; for vmm in $(pidof qemu-system-x86_64); do ls $vmm/task; done)";
    script(
        host,
        &format!(
            "all='{masks}'; set -- $all; for round in $(seq {rounds}); do for thread in {threads}; do \
             taskset -p $1 $thread; shift; [ $# != 0 ] || set -- $all; done; done > /dev/null 2>&1; \
             for thread in {threads}; do taskset -p f $thread; done > /dev/null 2>&1; true",
            masks = masks.join(" ")
        ),
    )
}

fn hostile(scene: &Scene<'_>, guest: HostileGuest, vcpus: u32, time: Duration) -> Result<Inflicted> {
    let ratio = match guest {
        HostileGuest::Critical => critical_guest(scene, vcpus, time)?,
        HostileGuest::Interrupts => bare_guest(scene, vcpus, "interrupts", time)?,
        HostileGuest::Pauses => bare_guest(scene, vcpus, "pauses", time)?,
        HostileGuest::Slides => bare_guest(scene, vcpus, "slides", time)?,
    };
    scene.host.must_run(&format!("{GONE} rmdir /sys/fs/cgroup/{HOSTILE}"), PATIENCE)?;
    let has_more = ratio.filter(|ratio| scene.promises_shares() && *ratio > 1.0 + HOSTILE_GAIN_MAX);
    let finding = has_more.map(|ratio| format!("the hostile guest had {ratio:.3} of what an honest one had"));
    Ok(Inflicted { hostile_ratio: ratio, findings: finding.into_iter().collect(), ..Inflicted::default() })
}

fn critical_guest(scene: &Scene<'_>, vcpus: u32, time: Duration) -> Result<Option<f64>> {
    let spec =
        GuestSpec::new(HOSTILE).workload(&format!("storm:{vcpus},lock:{vcpus}")).vcpus(vcpus).pv(Pv::Off);
    let guest = scene.host.start_guest(spec.own_cgroup())?;
    let ratio = ratio_of_hostile(scene, time)?;
    guest.stop()?;
    Ok(Some(ratio))
}

/// One without a kernel. Emulated SVM ends one now and then: it is started again, and at last says nothing
/// about shares.
fn bare_guest(scene: &Scene<'_>, vcpus: u32, does: &str, time: Duration) -> Result<Option<f64>> {
    let cgroup = format!("/sys/fs/cgroup/{HOSTILE}");
    let command =
        format!("mkdir -p {cgroup} && echo $$ > {cgroup}/cgroup.procs && exec vcpus 1 {vcpus} {does}");
    for tries in 1..=BARE_GUEST_TRIES {
        let vmm = scene.host.start(&command)?;
        vmm.wait_for("ready", 0, PATIENCE)?;
        let ratio = ratio_of_hostile(scene, time)?;
        // What ends a VM of its leaves the VMM that started it.
        if vmm.stderr().is_empty() && !vmm.has_ended() {
            end(&vmm)?;
            return Ok(Some(ratio));
        }
        say(format_args!(
            "the hostile guest ended by itself (try {tries} of {BARE_GUEST_TRIES}): {}",
            vmm.last_words()
        ));
        end(&vmm)?;
    }
    Ok(None)
}

/// CPU time of the hostile guest by that of an honest one; if it has too much, of up to four times as long: a
/// stretch in which the machine stopped the emulator isn't all.
fn ratio_of_hostile(scene: &Scene<'_>, time: Duration) -> Result<f64> {
    let before = scene.used_us(&[HOSTILE])?;
    let began = Instant::now();
    loop {
        std::thread::sleep(time);
        let used: Vec<f64> =
            scene.used_us(&[HOSTILE])?.iter().zip(&before).map(|(after, before)| after - before).collect();
        let honest = used[1..].iter().sum::<f64>() / (used.len() - 1) as f64;
        let ratio = used[0] / honest.max(1.0);
        if ratio <= 1.0 + HOSTILE_GAIN_MAX || began.elapsed() >= 4 * time || !scene.promises_shares() {
            return Ok(ratio);
        }
    }
}
