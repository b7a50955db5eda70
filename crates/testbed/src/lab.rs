//! The lab: VMs at full speed on this machine's own KVM, whoever makes it (`testbed/lab/`).
//!
//! A guest of ours runs natively in ring 3, where stock guest kernels wouldn't. So a machine without
//! virtualization extensions has real vCPUs, under its real scheduler.

use crate::cache::{Cache, Lock};
use crate::link::Line;
use crate::measure::Measurement;
use crate::{Error, LAB, Result};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// For what takes no time on a machine that isn't busy.
const PATIENCE: Duration = Duration::from_secs(60);

/// Of others that use it: a trial's length, and some.
const LOCK_PATIENCE: Duration = Duration::from_secs(1200);

/// The VMM, unpacked. There is one at a time on a machine: they would measure each other, and only one
/// `run --scheduler beside` may run.
pub struct Lab {
    folder: tempfile::TempDir,
    _alone: Lock,
}

impl Lab {
    /// Returns why there is no lab on this machine.
    pub fn missing() -> Option<&'static str> {
        // SAFETY: a plain system call.
        let is_root = unsafe { libc::geteuid() } == 0;
        match std::fs::File::options().read(true).write(true).open("/dev/kvm") {
            Err(_) => Some("/dev/kvm can't be opened here"),
            Ok(_) if !is_root => Some("BPF programs need root"),
            Ok(_) => None,
        }
    }

    /// Waits until nobody else uses it.
    ///
    /// # Errors
    /// The program can't be unpacked, or others don't end.
    pub fn open() -> Result<Self> {
        let alone = Cache::locate()?.lock("lab", LOCK_PATIENCE)?;
        let folder = tempfile::tempdir().map_err(|cause| Error::file(std::env::temp_dir(), cause))?;
        let lab = Self { folder, _alone: alone };
        let at = |cause| Error::file(lab.program(), cause);
        std::fs::write(lab.program(), LAB).map_err(at)?;
        std::fs::set_permissions(lab.program(), std::fs::Permissions::from_mode(0o755)).map_err(at)?;
        let symbols = Command::new(lab.program()).arg("symbols").output().map_err(at)?;
        std::fs::write(lab.symbols(), symbols.stdout).map_err(|cause| Error::file(lab.symbols(), cause))?;
        Ok(lab)
    }

    fn program(&self) -> PathBuf {
        self.folder.path().join("lab")
    }

    /// Returns the path of the guest's System.map.
    pub fn symbols(&self) -> PathBuf {
        self.folder.path().join("System.map")
    }

    /// Runs the VMM as a user who may not open KVM.
    ///
    /// # Errors
    /// It can't be started.
    pub fn run_as_nobody(&self) -> Result<std::process::Output> {
        use std::os::unix::process::CommandExt;
        const NOBODY: u32 = 65_534;
        let at = |cause| Error::file(self.program(), cause);
        std::fs::set_permissions(self.folder.path(), std::fs::Permissions::from_mode(0o755)).map_err(at)?;
        Command::new(self.program()).uid(NOBODY).gid(NOBODY).output().map_err(at)
    }

    /// Starts a VM, `KEY=VALUE` as `testbed/lab/vmm.c` has them, and returns once all its vCPUs run.
    ///
    /// # Errors
    /// It ends at once.
    pub fn start(&self, arguments: &[&str]) -> Result<LabVm> {
        let program = self.program();
        let mut command = Command::new(&program);
        command.args(arguments).stdout(Stdio::piped()).stdin(Stdio::null());
        let running = Running::start(command)?;
        running.wait_for("ready")?;
        Ok(LabVm(running))
    }
}

/// A VM that runs. Dropping it ends it.
pub struct LabVm(Running);

impl LabVm {
    pub fn pid(&self) -> u32 {
        self.0.child.id()
    }

    /// Returns the name by which the daemon knows it.
    pub fn name(&self) -> String {
        format!("lab-{}", self.pid())
    }

    /// Returns the threads that run its vCPUs.
    pub fn vcpu_threads(&self) -> Vec<u32> {
        let threads = std::fs::read_dir(format!("/proc/{}/task", self.pid())).into_iter().flatten().flatten();
        let is_vcpu = |path: &Path| {
            std::fs::read_to_string(path.join("comm")).is_ok_and(|name| name.trim_end().ends_with("/KVM"))
        };
        let vcpus = threads.filter(|thread| is_vcpu(&thread.path()));
        vcpus.filter_map(|thread| thread.file_name().to_str()?.parse().ok()).collect()
    }

    /// Returns for how long its vCPUs have run, by the kernel's account, in nanoseconds.
    pub fn ran_ns(&self) -> u64 {
        let ran = |tid: &u32| {
            let text = std::fs::read_to_string(format!("/proc/{}/task/{tid}/schedstat", self.pid())).ok()?;
            text.split_whitespace().next()?.parse::<u64>().ok()
        };
        self.vcpu_threads().iter().filter_map(ran).sum()
    }

    /// What it measured of itself between these two moments.
    pub fn measured(&self, from: Instant, to: Instant) -> Measurement {
        Measurement::of_lines(&self.0.lines(), from, to)
    }
}

/// A process that runs, and the lines that it has written. Dropping it kills it.
pub struct Running {
    child: Child,
    lines: Arc<Mutex<Vec<Line>>>,
    readers: Vec<std::thread::JoinHandle<()>>,
}

impl Running {
    /// Starts it. Piped output is read.
    ///
    /// # Errors
    /// It can't be started.
    pub fn start(mut command: Command) -> Result<Self> {
        let program = command.get_program().to_string_lossy().into_owned();
        let mut child = command.spawn().map_err(|cause| Error::Program { program, cause })?;
        let lines = Arc::new(Mutex::new(Vec::new()));
        let mut readers = Vec::new();
        if let Some(stdout) = child.stdout.take() {
            readers.push(read_lines(stdout, Arc::clone(&lines)));
        }
        if let Some(stderr) = child.stderr.take() {
            readers.push(read_lines(stderr, Arc::clone(&lines)));
        }
        Ok(Self { child, lines, readers })
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns the lines so far, of both outputs.
    pub fn lines(&self) -> Vec<Line> {
        self.lines.lock().map(|lines| lines.clone()).unwrap_or_default()
    }

    /// Waits for a line with this in it.
    ///
    /// # Errors
    /// It ends before, or takes too long.
    pub fn wait_for(&self, part: &str) -> Result<()> {
        let began = Instant::now();
        loop {
            if self.lines().iter().any(|line| line.text.contains(part)) {
                return Ok(());
            }
            let has_ended = self.readers.iter().all(std::thread::JoinHandle::is_finished);
            if has_ended || began.elapsed() > PATIENCE {
                let output: Vec<_> = self.lines().into_iter().map(|line| line.text).collect();
                return Err(Error::Command {
                    machine: "lab".into(),
                    command: format!("wait for {part:?}"),
                    cause: format!("it never came: {}", output.join(" | ")),
                });
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: i32) {
        // SAFETY: a plain system call; the process hasn't been waited for, so its number is still its own.
        unsafe { libc::kill(self.child.id() as libc::pid_t, signal) };
    }

    /// Waits for its end, and returns its exit code (negative: a signal) and its lines.
    pub fn finish(mut self) -> (i32, Vec<String>) {
        use std::os::unix::process::ExitStatusExt;
        let status = self.child.wait();
        for reader in self.readers.drain(..) {
            let _ = reader.join();
        }
        let code = status.ok().map(|status| status.code().unwrap_or(-status.signal().unwrap_or(0)));
        (code.unwrap_or(0), self.lines().into_iter().map(|line| line.text).collect())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn read_lines(
    from: impl std::io::Read + Send + 'static,
    lines: Arc<Mutex<Vec<Line>>>,
) -> std::thread::JoinHandle<()> {
    std::thread::spawn(move || {
        for text in BufReader::new(from).lines().map_while(std::io::Result::ok) {
            if let Ok(mut lines) = lines.lock() {
                lines.push(Line { at: Instant::now(), text });
            }
        }
    })
}
