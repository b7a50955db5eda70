//! Figures of the operator's own: commands that print a number.

use crate::HostError;
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A number takes fewer bytes.
const OUTPUT_MAX: u64 = 4096;
const POLL: Duration = Duration::from_millis(5);

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

    /// Runs it, for so long at most. What it has started ends with it.
    ///
    /// # Errors
    /// It takes longer, fails, or prints something else.
    pub fn ask(&self, patience: Duration) -> Result<f64, HostError> {
        let refused = |cause: &str| HostError::refused(format!("outcome {:?}: {cause}", self.name));
        let mut command = Command::new("/bin/sh");
        command.args(["-c", &self.command]).process_group(0);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().map_err(|cause| refused(&cause.to_string()))?;
        let text = read(&mut child, patience);
        // SAFETY: a plain system call; the group is the child's own, and the child hasn't been waited for.
        unsafe { libc::kill(-(child.id() as libc::pid_t), libc::SIGKILL) };
        let status = child.wait();
        let text =
            text.ok_or_else(|| refused(&format!("it took longer than {} s", patience.as_secs_f64())))?;
        match (text.trim().parse::<f64>(), status) {
            (Ok(number), _) if number.is_finite() && number > 0.0 => Ok(number),
            (Ok(number), _) => Err(refused(&format!("{number} isn't above zero"))),
            (Err(_), Ok(status)) if !status.success() && text.trim().is_empty() => {
                Err(refused(&format!("{status}")))
            }
            (Err(_), _) => {
                let first: String = text.trim().chars().take(40).collect();
                Err(refused(&format!("printed {first:?}, which is no number")))
            }
        }
    }
}

/// What it prints until it ends. `None`: it takes too long.
fn read(child: &mut Child, patience: Duration) -> Option<String> {
    let mut stdout = child.stdout.take()?;
    let (sender, receiver) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let mut text = Vec::new();
        let _ = stdout.by_ref().take(OUTPUT_MAX).read_to_end(&mut text);
        let _ = sender.send(String::from_utf8_lossy(&text).into_owned());
    });
    let began = Instant::now();
    while began.elapsed() < patience {
        if let Ok(text) = receiver.recv_timeout(POLL) {
            return Some(text);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(command: &str) -> Result<f64, String> {
        let asked = Asked::parse(&format!("requests={command}")).expect("an outcome");
        asked.ask(Duration::from_secs(30)).map_err(|error| error.to_string())
    }

    #[test]
    fn a_command_is_asked_for_its_number() {
        assert_eq!(ask("echo ' 12.5 '"), Ok(12.5));
        assert_eq!(ask("printf 3; exit 1"), Ok(3.0));
    }

    #[test]
    fn what_prints_no_number_is_refused_with_what_it_printed() {
        assert_eq!(
            ask("echo many"),
            Err("outcome \"requests\": printed \"many\", which is no number".into())
        );
        assert_eq!(ask("echo 0"), Err("outcome \"requests\": 0 isn't above zero".into()));
        assert!(ask("exit 7").is_err_and(|error| error.contains("exit status: 7")));
        assert!(ask("yes").is_err_and(|error| error.contains("no number")), "endless output is cut");
    }

    #[test]
    fn a_command_that_hangs_is_ended_with_what_it_started() {
        let asked = Asked::parse("x=sleep 1000 & sleep 1000").expect("an outcome");
        let error = asked.ask(Duration::from_millis(50)).expect_err("it hangs");
        assert!(error.to_string().contains("took longer"), "{error}");
    }

    #[test]
    fn an_outcome_needs_a_name_and_a_command() {
        for text in ["", "requests", "=echo 1", "requests="] {
            assert!(Asked::parse(text).is_err(), "{text}");
        }
    }
}
