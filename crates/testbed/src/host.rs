//! A host of guests (L1), emulated or this machine: runs commands there.

use crate::cache::{Cache, Lock};
use crate::console::Console;
use crate::emulator::Emulator;
use crate::kernels::{self, Rule};
use crate::link::{Link, Output, Process};
use crate::machine::{Machine, end};
use crate::memory_file::MemoryFile;
use crate::testbed::{LOCK_PATIENCE, Testbed, guest_root};
use crate::{AGENT, Error, Result, WORKLOAD};
use std::collections::BTreeMap;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::time::{Duration, Instant};

/// A machine that runs commands for us: the emulated host, or this one (`Host::here`). Gone when dropped.
pub struct Host {
    pub(crate) link: Arc<Link>,
    pub(crate) machine: Child,
    /// What the emulated host's console said.
    pub(crate) console: Option<Arc<Console>>,
    /// How it came to be, if it is emulated: it can be made again.
    pub(crate) testbed: Option<Testbed>,
    /// It may take so long to run `true`.
    pub(crate) answer_patience: Duration,
    pub(crate) images: BTreeMap<String, GuestImage>,
    /// How QEMU is called there.
    pub(crate) qemu: String,
    /// Where the workload program lies there.
    pub(crate) workload: String,
    pub(crate) release: String,
    pub(crate) boot_time: Duration,
    /// Guests that ended by themselves.
    pub(crate) lost_guests: Arc<AtomicU32>,
    /// What guests read on this machine; the emulated host keeps its files in its own memory.
    pub(crate) _files: Vec<MemoryFile>,
    pub(crate) lock: Arc<Lock>,
}

/// A guest kernel as the host sees it.
#[derive(Debug, Clone)]
pub struct GuestImage {
    /// Paths on the host.
    pub kernel: String,
    pub initrd: String,
    pub release: String,
}

impl Host {
    /// This machine itself, for the guest kernels called `guest_kernels`: same agent, same guests, no
    /// emulation.
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
            answer_patience: Machine::Amd.answer_patience(),
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

    /// Stops the emulated host's CPUs between two instructions and lets them go on, which nothing in it
    /// should notice. The emulator does that for reasons of its own, too; guests don't always survive it
    /// (`examples/kicks.rs`).
    pub fn stop_and_go_on(&self) -> Result<()> {
        let console =
            self.console.as_ref().ok_or_else(|| Error::file("monitor", "only an emulated host has one"))?;
        let monitor = console.monitor().ok_or_else(|| Error::file("monitor", "this emulator has none"))?;
        monitor.stop_and_go_on().map_err(|cause| Error::file("the emulator's monitor", cause))
    }

    /// Whether it still runs a command at all.
    pub fn answers(&self) -> bool {
        self.run("true", self.answer_patience).is_ok()
    }

    /// Ends the emulated host, whatever state it is in, and boots a fresh one in its place. Guests end with
    /// the old one.
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

/// The program under test: `$MICROSLICE_BINARY`, or the one that cargo has built into the same folder as the
/// program that asks.
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
