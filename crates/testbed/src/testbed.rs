//! What an emulated host shall be like, and how it comes to be.

use crate::cache::{Cache, Lock};
use crate::emulator::{Emulator, LIBRARIES};
use crate::host::{GuestImage, Host};
use crate::initramfs::Initramfs;
use crate::kernels::{self, Kernel, Rule};
use crate::machine::bochs::Bochs;
use crate::machine::{Machine, Running, amd, intel};
use crate::memory_file::MemoryFile;
use crate::{
    AGENT, COOKIE, Error, FAULTS, REAL_TIME, Result, VCPUS, WORKLOAD, guest_modules, installation, modules,
    say,
};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// Booting is tried again this often, each time saying so. What runs afterwards gets one try.
const BOOT_TRIES: u32 = 3;
/// How long to wait for another testbed: the longest test's time, and some.
pub(crate) const LOCK_PATIENCE: Duration = Duration::from_secs(3600);

/// Names of files, and where they lie on this machine.
type Files = Vec<(String, PathBuf)>;

/// What the host shall be like. `boot` makes it so.
#[derive(Debug, Clone)]
pub struct Testbed {
    machine: Machine,
    kernel: Rule,
    guest_kernels: Vec<Rule>,
    pub(crate) cpus: u32,
    pub(crate) sockets: u32,
    guest_modules: bool,
    is_installed: bool,
    shares_this_machine: bool,
    pub(crate) pause_exits: bool,
    pub(crate) counts_instructions: bool,
    pub(crate) kernel_arguments: String,
    programs: Vec<(String, PathBuf)>,
    files: Vec<(String, PathBuf)>,
}

/// What a machine boots from.
struct Parts {
    emulator: Emulator,
    /// Where it isn't QEMU that emulates the host.
    bochs: Option<Bochs>,
    kernel: Kernel,
    root: MemoryFile,
    disk: Option<PathBuf>,
}

impl Testbed {
    /// An emulated host with 4 CPUs that runs the newest stock kernel of `series` ("6.18"), for guests that
    /// run [`kernels::DEFAULT_GUEST`].
    pub fn new(series: &str) -> Result<Self> {
        let kernel = Rule::host(series)?;
        let guest_kernels = vec![Rule::guest(kernels::DEFAULT_GUEST)?];
        Ok(Self {
            machine: Machine::Amd,
            kernel,
            guest_kernels,
            cpus: 4,
            sockets: 1,
            guest_modules: false,
            is_installed: false,
            shares_this_machine: false,
            pause_exits: false,
            counts_instructions: false,
            kernel_arguments: String::new(),
            programs: Vec::new(),
            files: Vec::new(),
        })
    }

    /// A host whose kernel is chosen by any rule.
    pub fn with_kernel(kernel: Rule) -> Result<Self> {
        Ok(Self { kernel, ..Self::new(kernels::DEFAULT_HOST)? })
    }

    /// An Intel machine has no guest kernels and no QEMU unless [`Testbed::with_guest_kernels`] asks for some
    /// after this: each MiB of its root costs it time.
    pub fn machine(mut self, machine: Machine) -> Self {
        if machine == Machine::Intel {
            self.guest_kernels.clear();
        }
        self.machine = machine;
        self
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

    /// The emulated CPUs' time is the number of instructions they executed, one nanosecond each: durations
    /// measured inside are instruction counts. One thread then emulates all CPUs, some times slower.
    pub fn counts_instructions(mut self) -> Self {
        self.counts_instructions = true;
        self
    }

    /// Others that share this machine, too, may run beside it.
    pub fn shares_this_machine(mut self) -> Self {
        self.shares_this_machine = true;
        self
    }

    /// Every PAUSE of a guest exits (TCG ignores the filter count): for tests of that path, far too many for
    /// a load.
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
    pub fn with_binary(self, path: impl Into<PathBuf>) -> Self {
        self.with_program("microslice", path)
    }

    /// Likewise at `/usr/bin/NAME`.
    pub fn with_program(mut self, name: &str, path: impl Into<PathBuf>) -> Self {
        self.programs.push((name.to_owned(), path.into()));
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

    /// Its root is an installed Debian with systemd, on a disk of its own. All that is the root otherwise
    /// lies in `/testbed` there.
    pub fn with_systemd(mut self) -> Self {
        self.is_installed = true;
        self
    }

    /// Fetches what is missing, then boots; a boot that stalls is tried again, and says so.
    pub fn boot(&self) -> Result<Host> {
        self.boot_with(None)
    }

    /// `lock` keeps other testbeds away; without it this one waits for its turn.
    pub(crate) fn boot_with(&self, lock: Option<Arc<Lock>>) -> Result<Host> {
        let cache = Cache::locate()?;
        let emulator = Emulator::obtain(&cache)?;
        let bochs = (self.machine == Machine::Intel).then(|| Bochs::obtain(&cache)).transpose()?;
        let kernel = kernels::obtain(&cache, &self.kernel)?;
        let guests: Vec<(Rule, Kernel)> = self
            .guest_kernels
            .iter()
            .map(|rule| Ok((rule.clone(), kernels::obtain(&cache, rule)?)))
            .collect::<Result<_>>()?;
        let disk = self.is_installed.then(|| installation::obtain(&cache)).transpose()?;
        let lock = match lock {
            Some(held) => held,
            None if self.shares_this_machine => Arc::new(cache.share("testbed", LOCK_PATIENCE)?),
            None => Arc::new(cache.lock("testbed", LOCK_PATIENCE)?),
        };
        let ours = self.modules_of_guests(&cache, &guests)?;
        let root = self.root(&emulator, &kernel, &guests, &ours)?;
        let images: BTreeMap<String, GuestImage> =
            guests.iter().map(|(rule, kernel)| (rule.to_string(), image_in_host(kernel))).collect();
        let parts = Parts { emulator, bochs, kernel, root, disk };
        let mut tries = 1;
        loop {
            match self.boot_once(&parts) {
                Ok(running) => {
                    let (release, took) = (&parts.kernel.release, running.boot_time.as_secs_f64());
                    say(format_args!("{release} is up after {took:.1} s"));
                    return Ok(self.host(running, parts.kernel.release, images, lock));
                }
                Err(error @ Error::Stage { .. }) if tries < BOOT_TRIES => {
                    say(format_args!("{error}; trying again ({tries} of {BOOT_TRIES} tries used)"));
                    tries += 1;
                }
                Err(error) => return Err(error),
            }
        }
    }

    fn host(
        &self,
        running: Running,
        release: String,
        images: BTreeMap<String, GuestImage>,
        lock: Arc<Lock>,
    ) -> Host {
        let Running { link, process, console, boot_time } = running;
        Host {
            link,
            machine: process,
            console: Some(console),
            testbed: Some(self.clone()),
            answer_patience: self.machine.answer_patience(),
            images,
            qemu: format!("{}qemu-system-x86_64", self.way_to_ours("chroot /testbed ")),
            workload: format!("{}/usr/bin/guest-workload", self.way_to_ours("/testbed")),
            release,
            boot_time,
            lost_guests: Arc::default(),
            _files: Vec::new(),
            lock,
        }
    }

    /// Nothing where what we bring is the root.
    fn way_to_ours<'a>(&self, way: &'a str) -> &'a str {
        if self.is_installed { way } else { "" }
    }

    fn boot_once(&self, parts: &Parts) -> Result<Running> {
        match &parts.bochs {
            None => amd::boot(self, &parts.emulator, &parts.kernel, &parts.root, parts.disk.as_deref()),
            Some(bochs) => intel::boot(self, bochs, &parts.emulator, &parts.kernel, &parts.root),
        }
    }

    /// Our modules for each of the guests' kernels, if there shall be any. A kernel whose headers can't be
    /// had goes without, aloud.
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
        let mut root = bare_root(emulator)?;
        root.file("usr/bin/guest-workload", WORKLOAD).file("usr/bin/vcpus", VCPUS);
        root.file("usr/bin/cookie", COOKIE).file("usr/bin/real-time", REAL_TIME);
        root.file("usr/bin/faults", FAULTS);
        if self.machine == Machine::Amd || !guests.is_empty() {
            for (path, from) in emulator.files_for_guests()? {
                root.file_from(&path, &from)?;
            }
        }
        root.file_from("lib64/ld-linux-x86-64.so.2", &emulator.loader()?)?;
        root.symlink("lib", LIBRARIES);
        let disk: &[&str] = if self.is_installed { &modules::DISK } else { &[] };
        for (name, content) in modules::load_order(kernel, &[self.machine.modules(), disk].concat())? {
            root.file(&format!("modules/{name}"), &content);
        }
        for ((_, guest), ours) in guests.iter().zip(ours) {
            let image = image_in_host(guest);
            root.file_from(image.kernel.trim_start_matches('/'), &guest.image)?;
            root.file(image.initrd.trim_start_matches('/'), &guest_root(guest, ours)?);
        }
        // Stock hosts have it there, and BPF programs may ask for settings. Not each archive's kernel brings
        // one.
        let config = format!("boot/config-{}", kernel.release);
        let config_here = kernel.image.with_file_name(format!("config-{}", kernel.release));
        if config_here.is_file() {
            root.file_from(&config, &config_here)?;
        }
        for (name, binary) in &self.programs {
            root.program_from(&format!("usr/bin/{name}"), binary)?;
            for library in emulator.libraries_of(binary)? {
                let name = library.file_name().unwrap_or_default().to_string_lossy().into_owned();
                root.file_from(&format!("{LIBRARIES}/{name}"), &library)?;
            }
        }
        for (path, from) in &self.files {
            root.file_from(path, from)?;
        }
        let archive = root.finish();
        MemoryFile::new(&match self.machine {
            Machine::Amd => archive,
            Machine::Intel => intel::disk(archive),
        })
    }
}

/// What every emulated host's root begins with: the agent as its init, and a shell.
pub(crate) fn bare_root(emulator: &Emulator) -> Result<Initramfs> {
    let mut root = Initramfs::new();
    for directory in ["proc", "sys", "dev", "tmp", "run", "root", "etc", "sbin", "usr/sbin"] {
        root.directory(directory);
    }
    root.file("init", AGENT).file_from("bin/busybox", &emulator.busybox()?)?.symlink("bin/sh", "busybox");
    Ok(root)
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
