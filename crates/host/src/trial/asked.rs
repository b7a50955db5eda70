//! Figures of the operator's own: commands that print a number.

use super::arms::end_with;
use crate::HostError;
use rustix::process::Signal;
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

/// A number takes fewer bytes.
const OUTPUT_MAX: u64 = 4096;
const POLL: Duration = Duration::from_millis(5);
/// What was printed before the end arrives well within this.
const LAST_WORDS: Duration = Duration::from_millis(500);

/// A command that prints a number above zero, such as the requests a second of a service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Asked {
    pub name: String,
    command: String,
}

impl Asked {
    /// `NAME=COMMAND`, which a shell runs.
    ///
    /// # Errors
    /// One of both is missing.
    pub fn parse(text: &str) -> Result<Self, String> {
        match text.split_once('=').map(|(name, command)| (name.trim(), command.trim())) {
            Some((name, command)) if !name.is_empty() && !command.is_empty() => {
                Ok(Self { name: name.to_owned(), command: command.to_owned() })
            }
            _ => Err("is NAME=COMMAND, and the command prints a number".into()),
        }
    }

    /// Runs it, for so long at most, or until it is stopped. What it has started in its own session ends with
    /// it.
    ///
    /// # Errors
    /// It takes longer, fails, or prints something else.
    pub fn ask(&self, patience: Duration, stop: &AtomicBool) -> Result<f64, HostError> {
        let refused = |cause: &str| HostError::refused(format!("outcome {:?}: {cause}", self.name));
        let mut command = Command::new("/bin/sh");
        command.args(["-c", &self.command]).process_group(0);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let parent = std::process::id();
        // SAFETY: the calls are async-signal-safe, and touch no memory of the parent's.
        unsafe { command.pre_exec(move || end_with(parent, Signal::KILL)) };
        let mut child = command.spawn().map_err(|cause| refused(&cause.to_string()))?;
        let printed = child.stdout.take().map(read_in_background);
        let said = child.stderr.take().map(read_in_background);
        let began = Instant::now();
        let status = loop {
            match child.try_wait() {
                Ok(None) if began.elapsed() < patience && !stop.load(Ordering::Relaxed) => {
                    std::thread::sleep(POLL);
                }
                Ok(status) => break status,
                Err(cause) => return Err(refused(&cause.to_string())),
            }
        };
        // SAFETY: a plain system call. Others of the group may be left when the shell has ended; its number
        // stays theirs.
        unsafe { libc::kill(-(child.id() as libc::pid_t), libc::SIGKILL) };
        let Some(status) = status else {
            let _ = child.wait();
            return Err(refused(&format!(
                "took longer than {} s, the time of a block (--block)",
                patience.as_secs_f64()
            )));
        };
        let take = |from: Option<Receiver<String>>| {
            from.and_then(|from| from.recv_timeout(LAST_WORDS).ok()).unwrap_or_default()
        };
        let (printed, said) = (take(printed), take(said));
        if !status.success() {
            let last = said.lines().last().map_or(String::new(), |line| format!(": {line}"));
            return Err(refused(&format!("{status}{last}")));
        }
        match printed.trim().parse::<f64>() {
            Ok(number) if number.is_finite() && number > 0.0 => Ok(number),
            Ok(number) => Err(refused(&format!("printed {number}, which is no finite number above zero"))),
            Err(_) => {
                let first: String = printed.trim().chars().take(40).collect();
                Err(refused(&format!("printed {first:?}, which is no number")))
            }
        }
    }
}

/// Sends what it prints until it ends, or as much as a number may have.
fn read_in_background(mut from: impl Read + Send + 'static) -> Receiver<String> {
    let (sender, receiver) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let mut text = Vec::new();
        let _ = from.by_ref().take(OUTPUT_MAX).read_to_end(&mut text);
        let _ = sender.send(String::from_utf8_lossy(&text).into_owned());
        // Whoever prints more isn't stopped by a full pipe.
        let _ = std::io::copy(&mut from, &mut std::io::sink());
    });
    receiver
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(command: &str) -> Result<f64, String> {
        let asked = Asked::parse(&format!("requests={command}")).expect("an outcome");
        asked.ask(Duration::from_secs(30), &AtomicBool::new(false)).map_err(|error| error.to_string())
    }

    #[test]
    fn a_command_is_asked_for_its_number() {
        assert_eq!(ask("echo ' 12.5 '"), Ok(12.5));
        assert_eq!(ask("sleep 1000 & echo 3"), Ok(3.0), "what it leaves behind isn't waited for");
    }

    #[test]
    fn what_prints_no_number_is_refused_with_what_it_printed() {
        assert_eq!(
            ask("echo many"),
            Err("outcome \"requests\": printed \"many\", which is no number".into())
        );
        assert!(ask("echo 0").is_err_and(|error| error.contains("printed 0, which")));
        assert!(
            ask("echo 3; echo why >&2; exit 7").is_err_and(|error| error.ends_with("exit status: 7: why"))
        );
        assert!(ask("yes | head -1000000").is_err_and(|error| error.contains("no number")), "it is cut");
    }

    #[test]
    fn a_command_that_hangs_is_ended_with_what_it_started() {
        let asked = Asked::parse("x=sleep 1000 & sleep 1000").expect("an outcome");
        let stop = AtomicBool::new(false);
        let error = asked.ask(Duration::from_millis(50), &stop).expect_err("it hangs");
        assert!(error.to_string().contains("took longer"), "{error}");
    }

    #[test]
    fn an_outcome_needs_a_name_and_a_command() {
        for text in ["", "requests", "=echo 1", "requests="] {
            assert!(Asked::parse(text).is_err(), "{text}");
        }
    }
}
