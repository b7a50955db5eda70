//! A sweep as a Slurm job array: a task per part, each with a journal of its own beside the results.

use super::Work;
use crate::failure::Failure;
use crate::interrupt;
use crate::output::{self, OutputFile};
use crate::progress::ProgressLine;
use microslice_experiments::batch::BatchProgress;
use microslice_experiments::sweep::{Part, ranges};
use serde_json::json;
use std::io::{self, ErrorKind, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

const POLL: Duration = Duration::from_millis(50);
/// How often the queue is looked at: at first, and when a job lasts.
const FIRST_LOOK: Duration = Duration::from_millis(500);
const LOOKS: Duration = Duration::from_secs(15);
/// A controller may be away for a while.
const FAILED_LOOKS_MAX: usize = 20;
/// Squeue's answers and complaints are read up to here.
const WORDS_MAX: u64 = 16 << 20;

pub struct Job {
    id: String,
    tasks: usize,
    parts: usize,
}

/// Submits the parts in which something is left to run.
pub fn submit(work: &Work, parts: usize, cpus: Option<u64>, options: &[String]) -> Result<Job, Failure> {
    let journals = work.journals()?;
    let parts = parts.min(work.sweep.runs());
    let tasks = journals.unfinished(parts);
    if tasks.is_empty() {
        let words =
            format!("nothing is left to run: microslice sweep {} --merge makes the results", work.file);
        return Err(Failure::bad_input(format_args!("{}: {words}", work.results.display())));
    }
    let script = script_beside(&work.results);
    OutputFile::create(&script, work.sweep.files())?
        .finish_with(&script_of(work, parts)?)
        .map_err(Failure::into_bad_input)?;
    let mut sbatch = Command::new("sbatch");
    sbatch.args(["--parsable", "--job-name=microslice-sweep", "--open-mode=append"]);
    sbatch.arg(format!("--array={}", ranges(&tasks))).arg(log_option(&work.results, parts)?);
    sbatch.args(cpus.map(|cpus| format!("--cpus-per-task={cpus}")));
    sbatch.args(options).arg(&script);
    let (status, said, complaint) = {
        let _line = ProgressLine::show("submitting".to_owned(), || None);
        words_of(sbatch, &work.progress)?
    };
    // With --parsable: the job's number, and behind a semicolon the cluster's name.
    let id = said.trim().split(';').next().unwrap_or_default();
    if !status.success() || id.is_empty() || !id.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(Failure::bad_input(format_args!(
            "sbatch {}: {}",
            script.display(),
            cause(status, &complaint)
        )));
    }
    Ok(Job { id: id.to_owned(), tasks: tasks.len(), parts })
}

/// Says what to do when the job has ended.
pub fn tell(work: &Work, job: &Job, json: bool) -> Result<(), Failure> {
    if json {
        return output::print_json(&json!({ "job": job.id, "tasks": job.tasks, "parts": job.parts }));
    }
    output::print(&format!(
        "job {}: {} tasks; when they have ended: microslice sweep {} --results {} --merge\n",
        job.id,
        job.tasks,
        quoted(work.file.as_bytes()).unwrap_or_default(),
        quoted(work.results.as_os_str().as_bytes()).unwrap_or_default()
    ))
}

/// Until the queue doesn't have the job any more.
pub fn wait(work: &Work, job: &Job) -> Result<(), Failure> {
    let states = Arc::new(Mutex::new(String::new()));
    let shown = Arc::clone(&states);
    let _line = ProgressLine::show(format!("waiting for job {}", job.id), move || {
        Some(shown.lock().unwrap_or_else(PoisonError::into_inner).clone())
    });
    let (mut pause, mut failed) = (FIRST_LOOK, 0);
    loop {
        rest(pause, &work.progress).map_err(|_| job.goes_on(work))?;
        pause = (pause * 3 / 2).min(LOOKS);
        let mut squeue = Command::new("squeue");
        squeue.args(["--noheader", "--array", "--format=%T", "--jobs"]).arg(&job.id);
        let looked = words_of(squeue, &work.progress).map_err(|failure| match work.progress.is_stopped() {
            true => job.goes_on(work),
            false => failure,
        });
        let (status, said, complaint) = looked?;
        if status.success() {
            failed = 0;
            match summary(&said) {
                Some(summary) => *states.lock().unwrap_or_else(PoisonError::into_inner) = summary,
                None => return Ok(()),
            }
        } else if complaint.contains("Invalid job id") {
            // It ended a while ago.
            return Ok(());
        } else {
            failed += 1;
            if failed == FAILED_LOOKS_MAX {
                return Err(Failure::bad_input(format_args!("squeue: {}", cause(status, &complaint))));
            }
        }
    }
}

impl Job {
    fn goes_on(&self, work: &Work) -> Failure {
        Failure::interrupted_with(format_args!(
            "job {0} goes on (scancel {0} ends it); when it has ended, microslice sweep {1} --merge makes the results",
            self.id, work.file
        ))
    }

    /// What its tasks lack is said in their logs.
    pub fn blame(&self, work: &Work, failure: Failure) -> Failure {
        if work.progress.is_stopped() {
            return failure;
        }
        let logs = format!("{}.part-*-of-{}.log", work.results.display(), self.parts);
        Failure::bad_input(format_args!("job {} has ended, and {failure}; its tasks' words: {logs}", self.id))
    }
}

/// How many tasks are in which state; `None` if there are none.
fn summary(states: &str) -> Option<String> {
    let mut states: Vec<&str> = states.split_whitespace().collect();
    states.sort_unstable();
    let counts = states.chunk_by(|one, next| one == next);
    let counts: Vec<String> =
        counts.map(|same| format!("{} {}", same.len(), same[0].to_ascii_lowercase())).collect();
    (!counts.is_empty()).then(|| counts.join(", "))
}

fn script_of(work: &Work, parts: usize) -> Result<String, Failure> {
    let broken = |error: io::Error| Failure::broken(format_args!("{}: {error}", work.file));
    let program = std::env::current_exe().map_err(broken)?;
    let word = |path: &Path| {
        let path = std::path::absolute(path).map_err(broken)?;
        quoted(path.as_os_str().as_bytes()).ok_or_else(|| {
            Failure::bad_input(format_args!("{}: a script can't have this name", path.display()))
        })
    };
    Ok(format!(
        "#!/bin/sh\n# A task of a sweep: the runs of its part that nobody has made (microslice sweep --slurm).\n\
         exec {} sweep {} --results {} --jobs \"${{SLURM_CPUS_ON_NODE:-1}}\" --part \"$SLURM_ARRAY_TASK_ID/{parts}\"\n",
        word(&program)?,
        word(Path::new(&work.file))?,
        word(&work.results)?,
    ))
}

/// One word of a shell; `None` if that isn't text of one line.
fn quoted(bytes: &[u8]) -> Option<String> {
    let text = std::str::from_utf8(bytes).ok()?;
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.+/=:".contains(c);
    match text {
        _ if text.contains(['\n', '\r']) => None,
        _ if !text.is_empty() && text.chars().all(is_plain) => Some(text.to_owned()),
        _ => Some(format!("'{}'", text.replace('\'', "'\\''"))),
    }
}

fn script_beside(results: &Path) -> PathBuf {
    let mut path = results.as_os_str().to_owned();
    path.push(".sbatch");
    path.into()
}

/// A log per part. Sbatch reads `%` as a pattern's.
fn log_option(results: &Path, parts: usize) -> Result<String, Failure> {
    let path = std::path::absolute(results);
    let path = path.map_err(|error| Failure::bad_input(output::cause(results, &error)))?;
    let text = path.to_str().filter(|text| !text.contains('\\'));
    let text = text.ok_or_else(|| {
        Failure::bad_input(format_args!(
            "{}: sbatch can't write logs beside a file of this name",
            path.display()
        ))
    })?;
    Ok(format!("--output={}.part-%a-of-{parts}.log", text.replace('%', "%%")))
}

/// The script and the tasks' logs aren't needed beside complete results.
pub fn clean(results: &Path) -> Result<(), Failure> {
    let script = script_beside(results);
    let folder = results.parent().filter(|folder| *folder != Path::new("")).unwrap_or(Path::new("."));
    let refuse = |error: io::Error| Failure::bad_input(output::cause(folder, &error));
    let mut unneeded = vec![script];
    for entry in std::fs::read_dir(folder).map_err(refuse)? {
        let path = folder.join(entry.map_err(refuse)?.file_name());
        if is_log(&path, results) {
            unneeded.push(path);
        }
    }
    for path in unneeded {
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                return Err(Failure::bad_input(output::cause(&path, &error)));
            }
            _ => {}
        }
    }
    Ok(())
}

fn is_log(path: &Path, results: &Path) -> bool {
    let name = |path: &Path| path.file_name().map(|name| name.as_bytes().to_owned()).unwrap_or_default();
    let (name, results) = (name(path), name(results));
    let part = name.strip_prefix(&results[..]).and_then(|behind| behind.strip_prefix(b".part-"));
    let part = part.and_then(|behind| behind.strip_suffix(b".log"));
    let part = part.and_then(|part| std::str::from_utf8(part).ok()).and_then(|part| part.split_once("-of-"));
    part.is_some_and(|(number, of)| format!("{number}/{of}").parse::<Part>().is_ok())
}

/// What a program of Slurm's says, on standard output and standard error. Ctrl-C ends it.
fn words_of(mut command: Command, progress: &BatchProgress) -> Result<(ExitStatus, String, String), Failure> {
    let name = command.get_program().to_string_lossy().into_owned();
    let broken = |error: io::Error| Failure::bad_input(format_args!("{name}: {error}"));
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(|error| match error.kind() {
        ErrorKind::NotFound => {
            Failure::bad_input(format_args!("{name}: no such program; Slurm isn't installed here"))
        }
        _ => broken(error),
    })?;
    let readers = reader_of(child.stdout.take()).and_then(|said| Ok((said, reader_of(child.stderr.take())?)));
    let (said, complaint) = readers.map_err(|error| {
        let _ = child.kill();
        let _ = child.wait();
        interrupt::no_thread(&error)
    })?;
    let status = loop {
        if let Some(status) = child.try_wait().map_err(broken)? {
            break status;
        }
        if rest(POLL, progress).is_err() {
            // Reaped at once: it is gone, or goes.
            let _ = child.kill();
            let _ = child.wait();
            return Err(Failure::interrupted());
        }
    };
    let text = |reader: std::thread::JoinHandle<Vec<u8>>| {
        String::from_utf8_lossy(&reader.join().unwrap_or_default()).into_owned()
    };
    Ok((status, text(said), text(complaint)))
}

fn reader_of(pipe: Option<impl Read + Send + 'static>) -> io::Result<std::thread::JoinHandle<Vec<u8>>> {
    std::thread::Builder::new().spawn(move || {
        let mut bytes = Vec::new();
        // What can't be read is missing from a message.
        let _ = pipe.map(|pipe| pipe.take(WORDS_MAX).read_to_end(&mut bytes));
        bytes
    })
}

/// Sleeps, unless it is stopped.
fn rest(time: Duration, progress: &BatchProgress) -> Result<(), Failure> {
    let mut left = time;
    while !left.is_zero() {
        if progress.is_stopped() {
            return Err(Failure::interrupted());
        }
        let step = left.min(POLL);
        std::thread::sleep(step);
        left -= step;
    }
    Ok(())
}

/// Why a program failed: its own words, without its name, or its exit code.
fn cause(status: ExitStatus, complaint: &str) -> String {
    let words: Vec<&str> = complaint
        .lines()
        .map(|line| {
            line.trim_start_matches("sbatch: ").trim_start_matches("squeue: ").trim_start_matches("error: ")
        })
        .filter(|line| !line.trim().is_empty())
        .collect();
    if words.is_empty() { status.to_string() } else { words.join("; ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shell_reads_a_quoted_name_as_it_is() {
        for name in ["/a/b-c.toml", "it's a 100% sweep; $(reboot) `x` \"y\".toml", ""] {
            let word = quoted(name.as_bytes()).expect("one line");
            let echo =
                Command::new("sh").args(["-c", &format!("printf %s {word}")]).output().expect("a shell");
            assert_eq!(String::from_utf8_lossy(&echo.stdout), name, "{word}");
        }
        assert_eq!(quoted(b"two\nlines"), None);
    }

    #[test]
    fn only_logs_of_this_sweep_are_cleaned_away() {
        let results = Path::new("x/mine.jsonl");
        assert!(is_log(Path::new("x/mine.jsonl.part-3-of-10.log"), results));
        for other in
            ["x/mine.jsonl.part-3-of-10", "x/mine.jsonl.part-11-of-10.log", "x/mine.jsonl.log", "x/a.log"]
        {
            assert!(!is_log(Path::new(other), results), "{other}");
        }
    }

    #[test]
    fn states_of_tasks_are_counted() {
        assert_eq!(summary("RUNNING\nPENDING\nRUNNING\n").as_deref(), Some("1 pending, 2 running"));
        assert_eq!(summary("\n"), None);
    }
}
