//! Guests (L2): unmodified Debian kernels under KVM, whose init is the workload.

use crate::host::Host;
use crate::link::{Line, Process};
use crate::{Error, Result, kernels, say};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// `cpu.weight` of a cgroup that nobody gave another one.
const DEFAULT_CGROUP_WEIGHT: u32 = 100;
const BOOT_PATIENCE: Duration = Duration::from_secs(240);
const BOOT_TRIES: u32 = 3;
/// Live guests report every second of theirs.
const SILENCE: Duration = Duration::from_secs(8);
/// The first line of every workload.
const READY: &str = "\"ready\"";
/// A virtio device that is driven through I/O ports.
const PORT_IO: &str = "disable-modern=on,disable-legacy=off,vectors=0";
/// What VMMs say when KVM stops a guest for good: QEMU, whose guest's state follows, and that of bare vCPUs.
const STOPPED: [&str; 2] = ["KVM internal error", "a vCPU ended"];

/// What the guest kernel may know of its host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pv {
    /// As KVM ships it: TLB flush, IPI, sched-yield and spinlock by hypercall.
    On,
    /// The classic paths: IPIs by the local APIC, plain spinning.
    Off,
}

/// A guest to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GuestSpec {
    name: String,
    vcpus: u32,
    memory_mib: u32,
    kernel: String,
    pv: Pv,
    /// None: vCPUs that compute without a kernel.
    workload: Option<String>,
    network: Option<u8>,
    cgroup: Option<(String, u32)>,
    pcpus: Option<u32>,
}

/// A running guest. Killed when dropped.
pub struct Guest {
    spec: GuestSpec,
    process: Process,
    boot_time: Duration,
    /// The serial console's lines before this one belong to the boot.
    ready_line: usize,
    /// Counts guests of this host that ended by themselves.
    lost: Arc<AtomicU32>,
    stopped: bool,
}

impl GuestSpec {
    /// Four vCPUs, the default guest kernel, PV helpers on, a heartbeat as workload.
    pub fn new(name: &str) -> Self {
        Self {
            name: name.into(),
            vcpus: 4,
            memory_mib: 256,
            kernel: kernels::DEFAULT_GUEST.into(),
            pv: Pv::On,
            workload: Some("heartbeat".into()),
            network: None,
            cgroup: None,
            pcpus: None,
        }
    }

    pub fn vcpus(mut self, count: u32) -> Self {
        self.vcpus = count;
        self
    }

    /// Which of the host's guest kernels, as "6.12-cloud".
    pub fn kernel(mut self, name: &str) -> Self {
        self.kernel = name.into();
        self
    }

    pub fn pv(mut self, pv: Pv) -> Self {
        self.pv = pv;
        self
    }

    /// What to run, as `testbed/guest/main.c` lists it: "mix", "hog:4", "shootdown,hog:2".
    pub fn workload(mut self, workload: &str) -> Self {
        self.workload = Some(workload.into());
        self
    }

    /// vCPUs without a kernel that compute, and whose VMM reports heartbeats: they are there at once.
    pub fn bare(mut self) -> Self {
        self.workload = None;
        self
    }

    /// A network card, with the host at 10.77.`network`.1 and the guest at .2.
    pub fn network(mut self, network: u8) -> Self {
        self.network = Some(network);
        self
    }

    /// Only on the host's CPUs of this mask, with all of its VMM's threads.
    pub fn pinned(mut self, pcpus: u32) -> Self {
        self.pcpus = Some(pcpus);
        self
    }

    /// Puts it into a cgroup of its own with the weight of one that nobody gave another, as libvirt does.
    pub fn own_cgroup(self) -> Self {
        let name = self.name.clone();
        self.cgroup(&name, DEFAULT_CGROUP_WEIGHT)
    }

    /// Puts it into the cgroup `name` ("tenant/web": below that of the tenant) with this `cpu.weight`, and
    /// without a limit.
    pub fn cgroup(mut self, name: &str, weight: u32) -> Self {
        self.cgroup = Some((name.into(), weight));
        self
    }

    fn command(&self, host: &Host) -> Result<String> {
        let pinned = self.pcpus.map(|mask| format!("taskset {mask:x} ")).unwrap_or_default();
        let vmm = match &self.workload {
            Some(workload) => self.qemu(host, workload)?,
            None => format!("vcpus 1 {} beats -name={}", self.vcpus, self.name),
        };
        Ok(format!("{}exec {pinned}{vmm}", self.enters_cgroup()))
    }

    /// The shell's words before the VMM's: it begins in its cgroup.
    fn enters_cgroup(&self) -> String {
        let Some((cgroup, weight)) = &self.cgroup else { return String::new() };
        let mut words = String::from("cd /sys/fs/cgroup && ");
        for (at, _) in cgroup.match_indices('/').chain([(cgroup.len(), "")]) {
            words += &format!(
                "echo +cpu > cgroup.subtree_control; mkdir -p /sys/fs/cgroup/{above} && \
                 cd /sys/fs/cgroup/{above} && ",
                above = &cgroup[..at]
            );
        }
        words
            + &format!(
                "echo {weight} > cpu.weight && echo max > cpu.max && echo $$ > cgroup.procs && cd / && "
            )
    }

    fn qemu(&self, host: &Host, workload: &str) -> Result<String> {
        let image = host.image(&self.kernel)?;
        let helpers = match self.pv {
            Pv::On => "",
            Pv::Off => ",kvm-pv-tlb-flush=off,kvm-pv-ipi=off,kvm-pv-sched-yield=off,kvm-pv-unhalt=off",
        };
        let mut append = format!("console=ttyS0 quiet loglevel=3 panic=-1 reboot=t WORKLOAD={workload}");
        let mut network = String::new();
        if let Some(net) = self.network {
            append += &format!(" NETWORK=10.77.{net}");
            network = format!(
                " -netdev tap,id=net,ifname=mstap{net},script=no,downscript=no -device virtio-net-pci,netdev=net,romfile=,{PORT_IO},mac=52:54:00:77:00:{net:02x}"
            );
        }
        Ok(format!(
            // Devices on I/O ports, not memory-mapped: emulated SVM and KVM disagree about the latter
            // (docs/explanation/testbed.md).
            "{qemu} -M pc,accel=kvm,usb=off,hpet=off,vmport=off -bios qboot.rom -cpu host{helpers} \
             -smp {vcpus} -m {memory}M -nodefaults -no-user-config -no-reboot -display none \
             -name guest={name},debug-threads=on -kernel {kernel} -initrd {initrd} -append '{append}' \
             -serial file:/proc/self/fd/2 -monitor none -chardev stdio,id=report,signal=off \
             -device virtio-serial-pci,{PORT_IO} -device virtserialport,chardev=report,name=report{network}",
            qemu = host.qemu,
            vcpus = self.vcpus,
            memory = self.memory_mib,
            name = self.name,
            kernel = image.kernel,
            initrd = image.initrd,
        ))
    }
}

impl Host {
    /// Boots a guest and waits until its workload is about to begin.
    pub fn start_guest(&self, spec: GuestSpec) -> Result<Guest> {
        let mut guests = self.start_guests(vec![spec])?;
        guests.pop().ok_or_else(|| Error::file("guest", "none was started"))
    }

    /// Boots several guests side by side. A boot that stalls is tried again, and says so. Bare ones come when
    /// all others are up, whose boot they would disturb.
    pub fn start_guests(&self, specs: Vec<GuestSpec>) -> Result<Vec<Guest>> {
        let mut guests: Vec<Option<Guest>> = specs.iter().map(|_| None).collect();
        for bare in [false, true] {
            let start = Instant::now();
            let these = || specs.iter().enumerate().filter(|(_, spec)| spec.workload.is_none() == bare);
            let launched: Vec<_> = these()
                .map(|(at, spec)| Ok((at, spec.clone(), self.launch(spec)?)))
                .collect::<Result<_>>()?;
            for (at, spec, process) in launched {
                guests[at] = Some(self.wait_up(spec, process, start)?);
            }
        }
        Ok(guests.into_iter().flatten().collect())
    }

    /// How many guests have run and then ended by themselves so far, as emulated SVM ends one now and then
    /// (docs/explanation/testbed.md). A guest counts when its value is dropped.
    pub fn lost_guests(&self) -> u32 {
        self.lost_guests.load(Ordering::Relaxed)
    }

    fn launch(&self, spec: &GuestSpec) -> Result<Process> {
        let process = self.start(&spec.command(self)?)?;
        if let Some(net) = spec.network {
            // QEMU makes the device; it needs an address as soon as it is there.
            let up = format!(
                "for i in $(seq 100); do [ -e /sys/class/net/mstap{net} ] && break; sleep 0.1; done; \
                 ip addr add 10.77.{net}.1/24 dev mstap{net}; ip link set mstap{net} up"
            );
            if let Err(error) = self.must_run(&up, Duration::from_secs(60)) {
                say(format_args!("{}: network: {error}; QEMU said: {}", spec.name, process.last_words()));
            }
        }
        Ok(process)
    }

    fn wait_up(&self, spec: GuestSpec, process: Process, start: Instant) -> Result<Guest> {
        let (mut process, mut start) = (process, start);
        for tries in 1.. {
            match wait_ready(&process) {
                Ok(ready) => {
                    let boot_time = ready.at.saturating_duration_since(start);
                    let ready_line =
                        process.lines(0).iter().position(|line| line.text.contains(READY)).unwrap_or(0);
                    say(format_args!("guest {} is up after {:.1} s", spec.name, boot_time.as_secs_f64()));
                    let lost = Arc::clone(&self.lost_guests);
                    return Ok(Guest { spec, process, boot_time, ready_line, lost, stopped: false });
                }
                Err(error) => {
                    let stage = Error::Stage {
                        machine: spec.name.clone(),
                        stage: "guest up",
                        cause: error.to_string(),
                    };
                    if tries >= BOOT_TRIES {
                        return Err(stage);
                    }
                    say(format_args!("{stage}; trying again ({tries} of {BOOT_TRIES} tries used)"));
                }
            }
            let _ = process.signal(libc::SIGKILL);
            let _ = process.wait(Duration::from_secs(10));
            start = Instant::now();
            process = self.launch(&spec)?;
        }
        unreachable!("the loop above returns")
    }
}

fn says_that_it_stopped(vmm: &Process) -> bool {
    let said = vmm.stderr();
    STOPPED.iter().any(|words| said.contains(words))
}

/// Waits for the workload's first line, for QEMU's end or for KVM's refusal to go on.
fn wait_ready(process: &Process) -> Result<Line> {
    let deadline = Instant::now() + BOOT_PATIENCE;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        match process.wait_for(READY, 0, left.min(Duration::from_secs(2))) {
            Err(_) if !left.is_zero() && !process.has_ended() && !says_that_it_stopped(process) => {}
            result => return result,
        }
    }
}

impl Guest {
    pub fn name(&self) -> &str {
        &self.spec.name
    }

    /// From the start of its QEMU to the workload's first line.
    pub fn boot_time(&self) -> Duration {
        self.boot_time
    }

    /// What the workload printed so far, boot messages left out, from line number `from` on.
    pub fn lines(&self, from: usize) -> Vec<Line> {
        self.process.lines(self.ready_line + from)
    }

    /// Waits for a line that contains `text`, from line number `from` on.
    pub fn wait_for(&self, text: &str, from: usize, patience: Duration) -> Result<Line> {
        self.process.wait_for(text, self.ready_line + from, patience)
    }

    /// Whether it runs no more: its QEMU ended (a guest that panics ends it), or KVM stopped it.
    pub fn has_ended(&self) -> bool {
        self.process.has_ended() || says_that_it_stopped(&self.process)
    }

    /// Whether it has said nothing for much longer than the second between two of its reports.
    pub fn is_silent(&self) -> bool {
        self.lines(0).last().is_none_or(|line| line.at.elapsed() > SILENCE)
    }

    /// The newest heartbeat: a counter that a live guest raises every 100 ms of its own time.
    pub fn heartbeat(&self) -> Option<u64> {
        self.lines(0).iter().rev().find_map(|line| {
            let value: serde_json::Value = serde_json::from_str(&line.text).ok()?;
            value.get("heartbeat")?.as_u64()
        })
    }

    /// The address of `symbol` in the guest's own `/proc/kallsyms`, printed by the workload at its start.
    pub fn kallsyms(&self, symbol: &str) -> Option<u64> {
        u64::from_str_radix(self.said("kallsyms")?.get(symbol)?.as_str()?, 16).ok()
    }

    /// What it printed of this name, first.
    pub fn said(&self, name: &str) -> Option<serde_json::Value> {
        let value = |line: &Line| serde_json::from_str::<serde_json::Value>(&line.text).ok();
        self.lines(0).iter().find_map(|line| value(line)?.get_mut(name).map(serde_json::Value::take))
    }

    /// The first line in which its kernel complains, if it does.
    pub fn complaint(&self) -> Option<String> {
        let said = self.process.stderr();
        said.lines().find(|line| crate::console::complains(line)).map(|line| line.trim().to_owned())
    }

    /// The end of what it printed.
    pub fn last_words(&self) -> String {
        self.process.last_words()
    }

    /// It stands still, with all of its VMM, until [`Guest::go_on`].
    pub fn pause(&self) -> Result<()> {
        self.process.signal(libc::SIGSTOP)
    }

    pub fn go_on(&self) -> Result<()> {
        self.process.signal(libc::SIGCONT)
    }

    /// Pulls the plug and waits until its QEMU is gone.
    pub fn stop(mut self) -> Result<()> {
        self.stopped = true;
        if !self.process.has_ended() {
            self.process.signal(libc::SIGKILL)?;
        }
        self.process.wait(Duration::from_secs(30)).map(drop)
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        if !self.stopped && self.has_ended() {
            let how =
                self.process.exit_code().map_or("KVM stopped it".into(), |code| format!("exit code {code}"));
            say(format_args!("guest {} ended by itself ({how}): {}", self.name(), self.last_words()));
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }
}
