//! Arms: what schedules in a block, as a process of our own program.

use crate::HostError;
use rustix::process::Signal;
use std::io::{BufRead, BufReader};
use std::os::unix::net::UnixDatagram;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// An emulated host needs minutes for loading a scheduler.
const START_PATIENCE: Duration = Duration::from_secs(300);
/// It unloads in milliseconds, and writes a last report.
const END_PATIENCE: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(20);
/// What a process said last is kept for its error.
const LINES_KEPT: usize = 20;

/// Where arms say that they are in charge: files of these names.
const SOCKETS: &str = "/run/microslice";
const SOCKET: &str = "trial-ready-";

/// Removes what trials that were killed have left. No other trial runs.
pub fn remove_old_sockets() {
    let files = std::fs::read_dir(SOCKETS).into_iter().flatten().flatten();
    for file in files.filter(|file| file.file_name().to_string_lossy().starts_with(SOCKET)) {
        let _ = std::fs::remove_file(file.path());
    }
}

/// What is compared.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Arm {
    /// As the operator wrote it.
    pub name: String,
    /// Arguments of our own program; `None`: the kernel's own scheduler.
    command: Option<Vec<String>>,
}

impl Arm {
    /// `kernel`, `beside`, `microslice` or `coordinated`, with settings behind it as `run --help` names them:
    /// `beside boost-percent=5`.
    ///
    /// # Errors
    /// There is no such arm.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut words = text.split_whitespace();
        let command: Option<&[&str]> = match words.next() {
            Some("kernel") => None,
            Some("beside") => Some(&["run", "--scheduler", "beside"]),
            Some("microslice") => Some(&["run", "--scheduler", "microslice"]),
            Some("coordinated") => Some(&["run", "--scheduler", "coordinated"]),
            _ => return Err("begins with kernel, beside, microslice or coordinated".into()),
        };
        let mut command: Option<Vec<String>> =
            command.map(|words| words.iter().map(|word| (*word).to_owned()).collect());
        for word in words {
            let Some(command) = &mut command else {
                return Err(format!("{word}: the kernel's own scheduler has no settings"));
            };
            let (name, value) =
                word.split_once('=').map_or((word, None), |(name, value)| (name, Some(value)));
            if name.is_empty() || name.starts_with('-') {
                return Err(format!("{word}: a setting is NAME or NAME=VALUE, without dashes"));
            }
            command.push(format!("--{name}"));
            command.extend(value.map(str::to_owned));
        }
        Ok(Self { name: text.split_whitespace().collect::<Vec<_>>().join(" "), command })
    }

    /// Returns its name without those of VMs and files in it.
    pub fn anonymous_name(&self) -> String {
        let words = self.name.split(' ').map(|word| match word.split_once('=') {
            Some((name @ ("guest" | "weight" | "config"), _)) => format!("{name}=…"),
            _ => word.to_owned(),
        });
        words.collect::<Vec<_>>().join(" ")
    }

    /// Whether it is the kernel's own scheduler.
    pub fn is_kernel(&self) -> bool {
        self.command.is_none()
    }

    /// Returns its arguments, and those of `common` that it doesn't have itself.
    fn arguments(&self, common: &[Vec<String>]) -> Option<Vec<String>> {
        let own = self.command.clone()?;
        let is_new = |flag: &&Vec<String>| flag.first().is_some_and(|name| !own.contains(name));
        let more: Vec<String> = common.iter().filter(is_new).flatten().cloned().collect();
        Some([own, more].concat())
    }

    /// Starts it, and returns once it is in charge. `None`: nothing is to be started. `common` are flags of
    /// all arms, each with its value.
    ///
    /// # Errors
    /// It refuses this host, or ends for another reason.
    pub fn start(
        &self,
        program: &Path,
        common: &[Vec<String>],
        stop: &AtomicBool,
    ) -> Result<Option<Scheduler>, HostError> {
        let Some(arguments) = self.arguments(common) else { return Ok(None) };
        Scheduler::start(program, &arguments, stop).map(Some).map_err(|error| match error {
            HostError::Refused(cause) => HostError::Refused(format!("arm {:?}: {cause}", self.name)),
            other => HostError::broken(format!("arm {:?}: {other}", self.name)),
        })
    }
}

/// A running `microslice run`. It ends when this is dropped, and when this process ends, however it does.
pub struct Scheduler {
    child: Child,
    said: Arc<Mutex<Vec<String>>>,
    reader: Option<JoinHandle<()>>,
}

impl Scheduler {
    fn start(program: &Path, arguments: &[String], stop: &AtomicBool) -> Result<Self, HostError> {
        let failed = |cause: std::io::Error| HostError::broken(format!("{}: {cause}", program.display()));
        let path = Path::new(SOCKETS).join(format!("{SOCKET}{}", std::process::id()));
        std::fs::create_dir_all(SOCKETS).map_err(failed)?;
        let _ = std::fs::remove_file(&path);
        let ready = UnixDatagram::bind(&path).map_err(failed)?;
        ready.set_nonblocking(true).map_err(failed)?;
        let mut command = Command::new(program);
        command.args(arguments).env("NOTIFY_SOCKET", &path);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let parent = std::process::id();
        // SAFETY: both calls are async-signal-safe, and touch no memory of the parent's.
        unsafe { command.pre_exec(move || end_with(parent, Signal::TERM)) };
        let mut child = command.spawn().map_err(failed)?;
        let said = Arc::new(Mutex::new(Vec::new()));
        let reader = child.stderr.take().map(|stderr| {
            let said = Arc::clone(&said);
            std::thread::spawn(move || keep_last_lines(BufReader::new(stderr), &said))
        });
        let mut scheduler = Self { child, said, reader };
        let is_ready = scheduler.wait_until_ready(&ready, stop);
        let _ = std::fs::remove_file(&path);
        is_ready.map(|()| scheduler)
    }

    fn wait_until_ready(&mut self, ready: &UnixDatagram, stop: &AtomicBool) -> Result<(), HostError> {
        let began = Instant::now();
        let mut message = [0; 4096];
        loop {
            let length = ready.recv(&mut message).unwrap_or(0);
            if message[..length].split(|&byte| byte == b'\n').any(|line| line == b"READY=1") {
                return Ok(());
            }
            if let Some(error) = self.end() {
                return Err(error);
            }
            if stop.load(Ordering::Relaxed) {
                return Err(HostError::broken("interrupted"));
            }
            if began.elapsed() > START_PATIENCE {
                return Err(HostError::broken("it wasn't in charge after five minutes"));
            }
            std::thread::sleep(POLL);
        }
    }

    /// Returns why it has ended, if it has.
    pub fn end(&mut self) -> Option<HostError> {
        let status = self.child.try_wait().ok()??;
        self.reader.take().map(JoinHandle::join);
        let said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        let last =
            said.last().map_or("it said nothing", |line| line.strip_prefix("microslice: ").unwrap_or(line));
        Some(match status.code() {
            Some(2) => HostError::refused(last),
            Some(0) => HostError::refused("it ended at once: that is no setting for a trial"),
            _ => HostError::broken(format!("it ended ({status}): {last}")),
        })
    }

    fn signal(&self, signal: i32) {
        // SAFETY: a plain system call; the child hasn't been waited for, so its number is still its own.
        unsafe { libc::kill(self.child.id() as libc::pid_t, signal) };
    }
}

impl Drop for Scheduler {
    fn drop(&mut self) {
        if !matches!(self.child.try_wait(), Ok(None)) {
            return;
        }
        self.signal(libc::SIGINT);
        let began = Instant::now();
        while matches!(self.child.try_wait(), Ok(None)) {
            if began.elapsed() > END_PATIENCE {
                self.signal(libc::SIGKILL);
                let _ = self.child.wait();
            }
            std::thread::sleep(POLL);
        }
        self.reader.take().map(JoinHandle::join);
    }
}

/// The child gets this signal when its parent has gone. It may have gone before.
pub(super) fn end_with(parent: u32, signal: Signal) -> std::io::Result<()> {
    rustix::process::set_parent_process_death_signal(Some(signal))?;
    if rustix::process::getppid().is_none_or(|pid| pid.as_raw_nonzero().get() as u32 != parent) {
        return Err(std::io::ErrorKind::NotFound.into());
    }
    Ok(())
}

fn keep_last_lines(from: impl BufRead, said: &Mutex<Vec<String>>) {
    for line in from.lines().map_while(Result::ok) {
        let mut said = said.lock().unwrap_or_else(PoisonError::into_inner);
        if said.len() == LINES_KEPT {
            said.remove(0);
        }
        said.push(line);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arguments(text: &str) -> Vec<String> {
        Arm::parse(text).expect("an arm").command.expect("a command")
    }

    #[test]
    fn an_arm_is_a_mode_and_its_settings() {
        assert_eq!(Arm::parse("kernel").expect("an arm").command, None);
        assert_eq!(
            arguments("beside  boost-percent=5 dry-run"),
            ["run", "--scheduler", "beside", "--boost-percent", "5", "--dry-run"]
        );
        assert_eq!(arguments("coordinated"), ["run", "--scheduler", "coordinated"]);
        assert_eq!(
            Arm::parse(" microslice  slice-us=3000 ").expect("an arm").name,
            "microslice slice-us=3000"
        );
    }

    #[test]
    fn an_arms_own_settings_go_before_those_of_all() {
        let common =
            [vec!["--no-guest-memory".to_owned()], vec!["--config".to_owned(), "all.toml".to_owned()]];
        let of = |text: &str| Arm::parse(text).expect("an arm").arguments(&common);
        let both = of("beside config=own.toml no-guest-memory").expect("arguments");
        assert_eq!(both, ["run", "--scheduler", "beside", "--config", "own.toml", "--no-guest-memory"]);
        let neither = of("beside").expect("arguments");
        assert_eq!(neither, ["run", "--scheduler", "beside", "--no-guest-memory", "--config", "all.toml"]);
        assert_eq!(of("kernel"), None);
    }

    #[test]
    fn an_arms_name_for_others_names_no_vm() {
        let arm = Arm::parse("beside guest=web=/srv/vmlinuz boost-percent=5").expect("an arm");
        assert_eq!(arm.anonymous_name(), "beside guest=… boost-percent=5");
    }

    #[test]
    fn what_is_no_arm_is_refused_with_its_word() {
        for (text, part) in [
            ("", "begins with"),
            ("eevdf", "begins with"),
            ("kernel slice-us=3", "slice-us=3"),
            ("beside --dry-run", "without dashes"),
        ] {
            let error = Arm::parse(text).expect_err(text);
            assert!(error.contains(part), "{text}: {error}");
        }
    }

    #[test]
    #[allow(clippy::print_stderr)]
    fn a_process_that_refuses_is_named_by_its_last_line() {
        let arm = Arm {
            name: "beside".into(),
            command: Some(vec!["-c".into(), "echo first >&2; echo 'microslice: no KVM' >&2; exit 2".into()]),
        };
        if std::fs::create_dir_all("/run/microslice").is_err() {
            return eprintln!("skipped: /run isn't ours");
        }
        let error = arm.start(Path::new("/bin/sh"), &[], &AtomicBool::new(false)).err().expect("refused");
        assert!(error.is_refusal());
        assert_eq!(error.to_string(), "arm \"beside\": no KVM");
    }
}
