//! The emulated host (L1): boots a stock kernel and runs commands in it.

use crate::cache::{Cache, Lock};
use crate::console::{Console, ending};
use crate::emulator::{Emulator, LIBRARIES};
use crate::initramfs::Initramfs;
use crate::installation;
use crate::kernels::{self, Kernel, Rule};
use crate::link::{Link, Output, Process};
use crate::memory_file::MemoryFile;
use crate::{
    AGENT, COOKIE, Error, FAULTS, REAL_TIME, Result, VCPUS, WORKLOAD, children, guest_modules, modules, say,
};
use std::collections::BTreeMap;
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::time::{Duration, Instant};

/// A boot that isn't done by then has stalled. Quiet machines need 8 s.
const BOOT_PATIENCE: Duration = Duration::from_secs(150);
/// Booting is tried again this often, each time saying so. What runs afterwards gets one try.
const BOOT_TRIES: u32 = 3;
/// A host that doesn't run `true` within this doesn't answer any more; one that is merely busy needs a second.
const ANSWER_PATIENCE: Duration = Duration::from_secs(30);
/// How long to wait for another testbed: the longest test's time, and some.
const LOCK_PATIENCE: Duration = Duration::from_secs(3600);
/// The emulated host's memory: QEMU and 256 MiB per guest, for up to eight guests.
const MEMORY_MIB: u32 = 3072;

/// Both the invariant TSC and the tolerance are needed, or guests' timers may never fire (docs/explanation/testbed.md). A watchdog would
/// distrust the clock whenever this machine is busy, and give guests a coarse one.
const KERNEL_ARGUMENTS: &str =
    "console=ttyS0 loglevel=5 panic=-1 kvm.tsc_tolerance_ppm=500000 tsc=reliable mitigations=off";
/// Where the root is a disk: the agent mounts it, and systemd offers nobody a login.
const DISK_ARGUMENTS: &str = " microslice.root-disk systemd.getty_auto=0";

/// Names of files, and where they lie on this machine.
type Files = Vec<(String, PathBuf)>;

/// What the host shall be like. `boot` makes it so.
#[derive(Debug, Clone)]
pub struct Testbed {
    kernel: Rule,
    guest_kernels: Vec<Rule>,
    cpus: u32,
    sockets: u32,
    guest_modules: bool,
    is_installed: bool,
    pause_exits: bool,
    counts_instructions: bool,
    kernel_arguments: String,
    binary: Option<PathBuf>,
    files: Vec<(String, PathBuf)>,
}

/// A machine that runs commands for us: the emulated host, or this one (`Host::here`). Gone when dropped.
pub struct Host {
    link: Arc<Link>,
    machine: Child,
    /// What the emulated host's console said.
    pub(crate) console: Option<Arc<Console>>,
    /// How it came to be, if it is emulated: it can be made again.
    testbed: Option<Testbed>,
    pub(crate) images: BTreeMap<String, GuestImage>,
    /// How QEMU is called there.
    pub(crate) qemu: String,
    /// Where the workload program lies there.
    pub(crate) workload: String,
    release: String,
    boot_time: Duration,
    /// Guests that ended by themselves.
    pub(crate) lost_guests: Arc<AtomicU32>,
    /// What guests read on this machine; the emulated host keeps its files in its own memory.
    _files: Vec<MemoryFile>,
    lock: Arc<Lock>,
}

/// A guest kernel as the host sees it.
#[derive(Debug, Clone)]
pub struct GuestImage {
    /// Paths on the host.
    pub kernel: String,
    pub initrd: String,
    pub release: String,
}

impl Testbed {
    /// An emulated host with 4 CPUs that runs the newest stock kernel of `series` ("6.18"), for guests that run
    /// [`kernels::DEFAULT_GUEST`].
    pub fn new(series: &str) -> Result<Self> {
        let kernel = Rule::host(series)?;
        let guest_kernels = vec![Rule::guest(kernels::DEFAULT_GUEST)?];
        Ok(Self {
            kernel,
            guest_kernels,
            cpus: 4,
            sockets: 1,
            guest_modules: false,
            is_installed: false,
            pause_exits: false,
            counts_instructions: false,
            kernel_arguments: String::new(),
            binary: None,
            files: Vec::new(),
        })
    }

    /// A host whose kernel is chosen by any rule.
    pub fn with_kernel(kernel: Rule) -> Result<Self> {
        Ok(Self { kernel, ..Self::new(kernels::DEFAULT_HOST)? })
    }

    pub fn cpus(mut self, count: u32) -> Self {
        self.cpus = count;
        self
    }

    /// So many packages, each with last-level caches and, of the CPUs, an equal part of its own.
    pub fn sockets(mut self, count: u32) -> Self {
        self.sockets = count;
        self
    }

    /// The emulated CPUs' time is the number of instructions they executed, one nanosecond each: durations measured inside
    /// are instruction counts. One thread then emulates all CPUs, some times slower.
    pub fn counts_instructions(mut self) -> Self {
        self.counts_instructions = true;
        self
    }

    /// Every PAUSE of a guest exits (TCG ignores the filter count): for tests of that path, far too many for a load.
    pub fn pause_exits(mut self) -> Self {
        self.pause_exits = true;
        self
    }

    /// More for the host's kernel command line ("isolcpus=3").
    pub fn with_kernel_arguments(mut self, arguments: &str) -> Self {
        self.kernel_arguments = arguments.into();
        self
    }

    /// Puts this program at `/usr/bin/microslice` of the host, with its libraries.
    pub fn with_binary(mut self, path: impl Into<PathBuf>) -> Self {
        self.binary = Some(path.into());
        self
    }

    /// Puts the file `from` of this machine at `path` of the host.
    pub fn with_file(mut self, path: &str, from: impl Into<PathBuf>) -> Self {
        self.files.push((path.trim_start_matches('/').to_owned(), from.into()));
        self
    }

    /// Guests may run these kernels ("6.12-cloud", "6.1"): the first is the default.
    pub fn with_guest_kernels(mut self, names: &[&str]) -> Result<Self> {
        self.guest_kernels = names.iter().map(|name| Rule::guest(name)).collect::<Result<_>>()?;
        Ok(self)
    }

    /// Guests have our modules (`guest/`) for their kernels.
    pub fn with_guest_modules(mut self) -> Self {
        self.guest_modules = true;
        self
    }

    /// Its root is an installed Debian with systemd, on a disk of its own. All that is the root otherwise lies in `/testbed` there.
    pub fn with_systemd(mut self) -> Self {
        self.is_installed = true;
        self
    }

    /// Fetches what is missing, then boots; a boot that stalls is tried again, and says so.
    pub fn boot(&self) -> Result<Host> {
        self.boot_with(None)
    }

    /// `lock` keeps other testbeds away; without it this one waits for its turn.
    fn boot_with(&self, lock: Option<Arc<Lock>>) -> Result<Host> {
        let cache = Cache::locate()?;
        let emulator = Emulator::obtain(&cache)?;
        let kernel = kernels::obtain(&cache, &self.kernel)?;
        let guests: Vec<(Rule, Kernel)> = self
            .guest_kernels
            .iter()
            .map(|rule| Ok((rule.clone(), kernels::obtain(&cache, rule)?)))
            .collect::<Result<_>>()?;
        let disk = self.is_installed.then(|| installation::obtain(&cache)).transpose()?;
        let lock = match lock {
            Some(held) => held,
            None => Arc::new(cache.lock("testbed", LOCK_PATIENCE)?),
        };
        let ours = self.modules_of_guests(&cache, &guests)?;
        let root = self.root(&emulator, &kernel, &guests, &ours)?;
        let images: BTreeMap<String, GuestImage> =
            guests.iter().map(|(rule, kernel)| (rule.to_string(), image_in_host(kernel))).collect();
        let mut tries = 1;
        loop {
            match self.boot_once(&emulator, &kernel, &root, disk.as_deref()) {
                Ok((link, machine, console, boot_time)) => {
                    say(format_args!("{} is up after {:.1} s", kernel.release, boot_time.as_secs_f64()));
                    return Ok(Host {
                        link,
                        machine,
                        console: Some(console),
                        testbed: Some(self.clone()),
                        images,
                        qemu: format!("{}qemu-system-x86_64", self.way_to_ours("chroot /testbed ")),
                        workload: format!("{}/usr/bin/guest-workload", self.way_to_ours("/testbed")),
                        release: kernel.release,
                        boot_time,
                        lost_guests: Arc::default(),
                        _files: Vec::new(),
                        lock,
                    });
                }
                Err(error @ Error::Stage { .. }) if tries < BOOT_TRIES => {
                    say(format_args!("{error}; trying again ({tries} of {BOOT_TRIES} tries used)"));
                    tries += 1;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Nothing where what we bring is the root.
    fn way_to_ours<'a>(&self, way: &'a str) -> &'a str {
        if self.is_installed { way } else { "" }
    }

    fn boot_once(
        &self,
        emulator: &Emulator,
        kernel: &Kernel,
        root: &MemoryFile,
        disk: Option<&Path>,
    ) -> Result<(Arc<Link>, Child, Arc<Console>, Duration)> {
        let start = Instant::now();
        let console = Arc::new(Console::new()?);
        let mut qemu = emulator.command();
        let cpu = format!(
            "max,+svm,+invtsc,x-force-features=on{}",
            if self.pause_exits { ",+pause-filter,+pfthreshold" } else { "" }
        );
        if self.counts_instructions {
            qemu.args(["-accel", "tcg,thread=single", "-icount", "shift=0,sleep=off"]);
        } else {
            qemu.args(["-accel", "tcg,thread=multi"]);
        }
        qemu.args(["-M", "q35", "-cpu", &cpu]);
        let cpus = format!("{},sockets={}", self.cpus, self.sockets);
        qemu.args(["-smp", &cpus, "-m", &format!("{MEMORY_MIB}M")]);
        qemu.args(["-nodefaults", "-no-user-config", "-no-reboot", "-display", "none"]);
        qemu.arg("-kernel").arg(&kernel.image).args(["-initrd", &root.path()]);
        let mut arguments = format!("{KERNEL_ARGUMENTS} {}", self.kernel_arguments);
        if let Some(disk) = disk {
            arguments += DISK_ARGUMENTS;
            qemu.args(["-drive", &format!("file={},format=raw,if=virtio,snapshot=on", disk.display())]);
        }
        qemu.args(["-append", arguments.trim_end()]);
        qemu.args(console.arguments());
        qemu.args(["-chardev", "stdio,id=control,signal=off", "-device", "virtio-serial-pci"]);
        qemu.args(["-device", "virtserialport,chardev=control,name=microslice.control"]);
        qemu.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let program = "qemu-system-x86_64".to_owned();
        let spawned = children::spawn(qemu, [&[root.fd()], &console.fds()[..]].concat());
        let mut machine = spawned.map_err(|cause| Error::Program { program, cause })?;
        console.handed_over();
        let link = match (machine.stdout.take(), machine.stdin.take()) {
            (Some(reader), Some(writer)) => {
                Link::new(&kernel.release, reader, writer, Some(Arc::clone(&console)))
            }
            _ => return Err(Error::file("qemu", "has no pipes")),
        };
        match wait_up(&link, &mut machine, &console) {
            Ok(()) => Ok((link, machine, console, start.elapsed())),
            Err(cause) => {
                end(&mut machine);
                Err(Error::Stage { machine: kernel.release.clone(), stage: "host up", cause })
            }
        }
    }

    /// Our modules for each of the guests' kernels, if there shall be any. A kernel whose headers can't be had goes without, aloud.
    fn modules_of_guests(&self, cache: &Cache, guests: &[(Rule, Kernel)]) -> Result<Vec<Files>> {
        let of_kernel = |(_, kernel): &(Rule, Kernel)| {
            if !self.guest_modules {
                return Ok(Files::new());
            }
            match guest_modules::obtain(cache, kernel) {
                Err(error @ Error::Kernel { .. }) => {
                    say(&error);
                    Ok(Files::new())
                }
                result => result,
            }
        };
        guests.iter().map(of_kernel).collect()
    }

    /// The host's root file system.
    fn root(
        &self,
        emulator: &Emulator,
        kernel: &Kernel,
        guests: &[(Rule, Kernel)],
        ours: &[Files],
    ) -> Result<MemoryFile> {
        let mut root = Initramfs::new();
        for directory in ["proc", "sys", "dev", "tmp", "run", "root", "etc", "sbin", "usr/sbin"] {
            root.directory(directory);
        }
        root.file("init", AGENT).file("usr/bin/guest-workload", WORKLOAD).file("usr/bin/vcpus", VCPUS);
        root.file("usr/bin/cookie", COOKIE).file("usr/bin/real-time", REAL_TIME);
        root.file("usr/bin/faults", FAULTS);
        for (path, from) in emulator.files_for_guests()? {
            root.file_from(&path, &from)?;
        }
        root.symlink("bin/sh", "busybox").symlink("lib", LIBRARIES);
        let disk: &[&str] = if self.is_installed { &modules::DISK } else { &[] };
        for (name, content) in modules::load_order(kernel, &[&modules::HOST, disk].concat())? {
            root.file(&format!("modules/{name}"), &content);
        }
        for ((_, guest), ours) in guests.iter().zip(ours) {
            let image = image_in_host(guest);
            root.file_from(image.kernel.trim_start_matches('/'), &guest.image)?;
            root.file(image.initrd.trim_start_matches('/'), &guest_root(guest, ours)?);
        }
        if let Some(binary) = &self.binary {
            root.file("usr/bin/microslice", &without_debug_info(binary)?);
            for library in emulator.libraries_of(binary)? {
                let name = library.file_name().unwrap_or_default().to_string_lossy().into_owned();
                root.file_from(&format!("{LIBRARIES}/{name}"), &library)?;
            }
        }
        for (path, from) in &self.files {
            root.file_from(path, from)?;
        }
        MemoryFile::new(&root.finish())
    }
}

/// The program without its debug information, which is most of it and would have to be copied into the host's memory.
fn without_debug_info(binary: &Path) -> Result<Vec<u8>> {
    let scratch = tempfile::tempdir().map_err(|cause| Error::file(std::env::temp_dir(), cause))?;
    let stripped = scratch.path().join("stripped");
    let mut strip = std::process::Command::new("strip");
    let strip = strip.arg("--strip-debug").arg("-o").arg(&stripped).arg(binary).output();
    // Without binutils the program goes as it is.
    let path = if strip.is_ok_and(|output| output.status.success()) { &stripped } else { binary };
    std::fs::read(path).map_err(|cause| Error::file(path, cause))
}

/// A guest's root file system: the workload is its init, and loads the network's modules.
pub(crate) fn guest_root(kernel: &Kernel, ours: &[(String, PathBuf)]) -> Result<Vec<u8>> {
    let mut root = Initramfs::new();
    for directory in ["proc", "sys", "dev", "tmp"] {
        root.directory(directory);
    }
    root.file("init", WORKLOAD);
    for (name, content) in modules::load_order(kernel, &modules::GUEST)? {
        root.file(&format!("modules/{name}"), &content);
    }
    for (name, path) in ours {
        root.file_from(&format!("ours/{name}"), path)?;
    }
    Ok(root.finish())
}

fn image_in_host(kernel: &Kernel) -> GuestImage {
    let file = |name: &str| format!("/guests/{}/{name}", kernel.release);
    GuestImage { kernel: file("vmlinuz"), initrd: file("initrd"), release: kernel.release.clone() }
}

/// Waits for the agent's greeting, for QEMU's death or for the kernel's.
fn wait_up(link: &Link, machine: &mut Child, console: &Console) -> Result<(), String> {
    let deadline = Instant::now() + BOOT_PATIENCE;
    while Instant::now() < deadline {
        match link.wait_ready(Duration::from_secs(1)) {
            Ok(true) => return Ok(()),
            Ok(false) => {}
            Err(why) => {
                let mut said = String::new();
                if let Some(stderr) = &mut machine.stderr {
                    let _ = stderr.take(4096).read_to_string(&mut said);
                }
                return Err(format!("QEMU ended: {why} {}; {}", said.trim(), ending(&console.text())));
            }
        }
        let text = console.text();
        if text.contains("Kernel panic") {
            return Err(ending(&text));
        }
    }
    Err(format!("not up after {} s; {}", BOOT_PATIENCE.as_secs(), console.account()))
}

impl Host {
    /// This machine itself, for the guest kernels called `guest_kernels`: same agent, same guests, no emulation.
    ///
    /// It needs KVM and root. Guests, and all that runs through this value, end with it or with this process.
    pub fn here(guest_kernels: &[&str]) -> Result<Self> {
        let cache = Cache::locate()?;
        let emulator = Emulator::obtain(&cache)?;
        let mut files = Vec::new();
        let mut images = BTreeMap::new();
        for name in guest_kernels {
            let kernel = kernels::obtain(&cache, &Rule::guest(name)?)?;
            let initrd = MemoryFile::new(&guest_root(&kernel, &[])?)?;
            let image = GuestImage {
                kernel: kernel.image.display().to_string(),
                initrd: initrd.path_for_others(),
                release: kernel.release,
            };
            images.insert((*name).to_owned(), image);
            files.push(initrd);
        }
        let workload = MemoryFile::new(WORKLOAD)?;
        let agent = MemoryFile::new(AGENT)?;
        let lock = cache.lock("testbed", LOCK_PATIENCE)?;
        let mut command = std::process::Command::new(agent.path_for_others());
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).process_group(0);
        let program = "agent".to_owned();
        let mut machine = command.spawn().map_err(|cause| Error::Program { program, cause })?;
        let link = match (machine.stdout.take(), machine.stdin.take()) {
            (Some(reader), Some(writer)) => Link::new("this machine", reader, writer, None),
            _ => return Err(Error::file("agent", "has no pipes")),
        };
        let stage = |cause| Error::Stage { machine: "this machine".into(), stage: "agent up", cause };
        if !link.wait_ready(Duration::from_secs(10)).map_err(stage)? {
            return Err(stage("no answer".into()));
        }
        let workload_path = workload.path_for_others();
        files.push(workload);
        let release =
            std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim().to_owned();
        let qemu = emulator.shell_command();
        let boot_time = Duration::ZERO;
        let (workload, console) = (workload_path, None);
        Ok(Self {
            link,
            machine,
            console,
            testbed: None,
            images,
            qemu,
            workload,
            release,
            boot_time,
            lost_guests: Arc::default(),
            _files: files,
            lock: Arc::new(lock),
        })
    }

    /// How the guests' echo service is started on this host.
    pub fn start_echo(&self) -> Result<Process> {
        let echo = self.start(&format!("exec {} echo", self.workload))?;
        echo.wait_for("echoing", 0, Duration::from_secs(60))?;
        Ok(echo)
    }

    /// Runs a shell command to its end, whatever its exit code.
    pub fn run(&self, command: &str, patience: Duration) -> Result<Output> {
        self.link.start(command)?.wait(patience)
    }

    /// Runs a shell command that must succeed; returns its standard output.
    pub fn must_run(&self, command: &str, patience: Duration) -> Result<String> {
        let output = self.run(command, patience)?;
        if output.code != 0 {
            let said = format!("{} {}", output.stdout.trim(), output.stderr.trim());
            let cause = format!("exit code {}: {}", output.code, said.trim());
            return Err(Error::Command { machine: self.release.clone(), command: command.into(), cause });
        }
        Ok(output.stdout)
    }

    /// Starts a shell command and lets it run. It is killed when the value is dropped.
    pub fn start(&self, command: &str) -> Result<Process> {
        self.link.start(command)
    }

    /// Writes a file of the host.
    pub fn write_file(&self, path: &str, content: &[u8]) -> Result<()> {
        let process = self.start(&format!("cat > '{path}'"))?;
        process.input(content, true)?;
        let output = process.wait(Duration::from_secs(60))?;
        let failed = || Error::Command {
            machine: self.release.clone(),
            command: format!("write {path}"),
            cause: output.stderr.clone(),
        };
        if output.code == 0 { Ok(()) } else { Err(failed()) }
    }

    /// Reads a text file of the host.
    pub fn read_file(&self, path: &str) -> Result<String> {
        self.must_run(&format!("cat '{path}'"), Duration::from_secs(60))
    }

    /// `uname -r` there.
    pub fn release(&self) -> &str {
        &self.release
    }

    /// From starting QEMU to the agent's greeting.
    pub fn boot_time(&self) -> Duration {
        self.boot_time
    }

    /// The end of what the emulated host's console said; empty on a real host.
    pub fn console(&self) -> String {
        self.console.as_ref().map(|console| console.text()).unwrap_or_default()
    }

    /// All that the emulated host shows of itself: the end of its console, and where its CPUs are.
    pub fn account(&self) -> String {
        self.console.as_ref().map(|console| console.account()).unwrap_or_default()
    }

    /// Stops the emulated host's CPUs between two instructions and lets them go on, which nothing in it should notice. The
    /// emulator does that for reasons of its own, too; guests don't always survive it (`examples/kicks.rs`).
    pub fn stop_and_go_on(&self) -> Result<()> {
        let console =
            self.console.as_ref().ok_or_else(|| Error::file("monitor", "only an emulated host has one"))?;
        console.monitor().stop_and_go_on().map_err(|cause| Error::file("the emulator's monitor", cause))
    }

    /// Whether it still runs a command at all.
    pub fn answers(&self) -> bool {
        self.run("true", ANSWER_PATIENCE).is_ok()
    }

    /// Ends the emulated host, whatever state it is in, and boots a fresh one in its place. Guests end with the old one.
    pub fn boot_again(&mut self) -> Result<()> {
        let Some(testbed) = self.testbed.clone() else {
            return Err(Error::Stage {
                machine: self.release.clone(),
                stage: "host up",
                cause: "only an emulated host can be booted again".into(),
            });
        };
        end(&mut self.machine);
        *self = testbed.boot_with(Some(Arc::clone(&self.lock)))?;
        Ok(())
    }

    /// The guest kernel called `name` ("6.12-cloud"), as [`Testbed::with_guest_kernels`] brought it.
    pub fn image(&self, name: &str) -> Result<&GuestImage> {
        self.images.get(name).ok_or_else(|| Error::Kernel {
            wanted: name.into(),
            cause: format!("not on this host; it has {:?}", self.images.keys().collect::<Vec<_>>()),
        })
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        if self.console.is_none() {
            // On this machine the agent first ends what it started.
            self.link.quit();
            let deadline = Instant::now() + Duration::from_secs(5);
            while Instant::now() < deadline && matches!(self.machine.try_wait(), Ok(None)) {
                std::thread::sleep(Duration::from_millis(20));
            }
        }
        end(&mut self.machine);
    }
}

/// Kills and reaps. Its memory is all it had.
fn end(machine: &mut Child) {
    let _ = machine.kill();
    let _ = machine.wait();
}

/// The program under test: `$MICROSLICE_BINARY`, or the one that cargo has built into the same folder as the program that asks.
pub fn built_binary() -> Result<PathBuf> {
    if let Some(path) = std::env::var_os("MICROSLICE_BINARY") {
        return Ok(path.into());
    }
    let asker = std::env::current_exe().map_err(|cause| Error::file("this program", cause))?;
    // target/PROFILE/deps/TEST, or target/PROFILE/examples/EXAMPLE.
    let path = asker.parent().and_then(Path::parent).unwrap_or(Path::new("/")).join("microslice");
    if path.is_file() {
        Ok(path)
    } else {
        Err(Error::file(
            path,
            "not built: run `cargo build --bin microslice` (with the same profile) first, or set MICROSLICE_BINARY",
        ))
    }
}
