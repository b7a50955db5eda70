//! `microslice sweep`: many runs that one file describes, here or by a Slurm job array.

mod shown;
mod slurm;

use crate::failure::Failure;
use crate::output::{self, OutputFile};
use crate::progress::{self, ProgressLine};
use clap::Args;
use microslice_experiments::batch::{BatchProgress, all_cores};
use microslice_experiments::sweep::{self, FailedRun, Group, Journal, Journals};
use microslice_experiments::sweep::{Part, SweepError, WriteError, are_there, groups};
use microslice_metrics::counted;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// More at once are slower on any host.
const JOBS_MAX: u64 = 4_096;

/// Run what a file says (scenarios x settings x policies x seeds), and go on after a kill
#[derive(Args)]
#[command(after_help = "Examples:
  microslice sweep slices.toml                               all cores; the same command goes on after Ctrl-C or a kill
  microslice sweep slices.toml --relative --all              once more: nothing is left to run, and the table is shown
  microslice sweep slices.toml --json | jq '.groups[] | select(.setting == \"crowded\") | .figures[0]'
  microslice sweep slices.toml --slurm --parts 20 --wait -- --partition=short --time=1:00:00
  microslice sweep slices.toml --slurm -- --account=lab     then, when the job has ended:
  microslice sweep slices.toml --merge
  microslice sweep slices.toml --part 3/20                   the runs of one part, as each task of a job array does

A FILE is TOML: `scenarios`, `policies`, `seeds`, `set`, and a [[setting]] for each way to change the scenarios; an example is
scenarios/sweeps/slices.toml, and docs/how-to/sweep.md says everything. Results are JSON lines in the order of the runs: the same bytes
however many machines made them.")]
pub struct Sweep {
    /// What to run
    file: String,

    /// Where results go, and beside it what is unfinished (default: FILE's name with .results.jsonl, in this
    /// folder)
    #[arg(long, value_name = "FILE")]
    results: Option<PathBuf>,

    /// Runs at once (default: one per core; of a job array's task: one per CPU that it was given)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=JOBS_MAX))]
    jobs: Option<u64>,

    /// Run only every Nth run, from the Kth on, and show no table
    #[arg(long, value_name = "K/N", conflicts_with_all = ["merge", "slurm"])]
    part: Option<Part>,

    /// Run nothing: make results of what parts have run
    #[arg(long, conflicts_with = "slurm")]
    merge: bool,

    /// Submit a Slurm job array that runs what is left; options for sbatch follow behind --
    #[arg(long)]
    slurm: bool,

    /// Tasks of the job array
    #[arg(long, value_name = "N", default_value_t = 10, requires = "slurm", value_parser = clap::value_parser!(u64).range(1..=100_000))]
    parts: u64,

    /// Wait for the job's end, and show the table
    #[arg(long, requires = "slurm")]
    wait: bool,

    /// Show how many times the first policy's figure each other one has
    #[arg(long)]
    relative: bool,

    /// Show every figure, not only the main ones
    #[arg(long)]
    all: bool,

    /// Print JSON
    #[arg(long)]
    json: bool,

    /// What sbatch is given besides, such as --partition=short
    #[arg(last = true, value_name = "SBATCH OPTION", requires = "slurm")]
    sbatch: Vec<String>,
}

/// A sweep, and where it goes.
struct Work {
    file: String,
    sweep: sweep::Sweep,
    results: PathBuf,
    progress: Arc<BatchProgress>,
}

pub fn run(args: Sweep) -> Result<(), Failure> {
    let sweep = {
        let _line = ProgressLine::show(format!("reading {}", args.file), || None);
        sweep::Sweep::load(&args.file).map_err(Failure::bad_input)?
    };
    let results = args.results.clone().unwrap_or_else(|| default_results(&args.file));
    let is_complete = are_there(&sweep, &results).map_err(Failure::bad_input)?;
    // A run that is under way ends soon, and then it is known what is kept.
    let progress = progress::stoppable_within(None)?;
    let work = Work { file: args.file.clone(), sweep, results, progress };
    let jobs = args.jobs.map_or_else(all_cores, |jobs| jobs as usize);
    let (groups, failed) = match (is_complete, args.part) {
        (true, Some(_)) => {
            output::say(format_args!("{}: complete, nothing is left to run", work.results.display()));
            return Ok(());
        }
        (true, None) => {
            let read = work.read()?;
            work.clean_again();
            read
        }
        (false, Some(part)) => return work.make(part, jobs),
        (false, None) if args.merge => work.merge()?,
        (false, None) if args.slurm => {
            let job = slurm::submit(&work, args.parts as usize, args.jobs, &args.sbatch)?;
            if !args.wait {
                return slurm::tell(&work, &job, args.json);
            }
            slurm::wait(&work, &job)?;
            work.merge().map_err(|failure| job.blame(&work, failure))?
        }
        (false, None) => {
            work.make(Part::WHOLE, jobs)?;
            work.merge()?
        }
    };
    let options = shown::Options { relative: args.relative, all: args.all, json: args.json };
    shown::show(&work.sweep, &groups, &failed, &options)
}

/// In the working folder: that of the file may be another user's.
fn default_results(file: &str) -> PathBuf {
    let stem = Path::new(file).file_stem().unwrap_or_default();
    let mut name = stem.to_owned();
    name.push(".results.jsonl");
    name.into()
}

impl Work {
    /// Runs what is left of a part.
    fn make(&self, part: Part, jobs: usize) -> Result<(), Failure> {
        let (journal, had_half_a_line) =
            Journal::open(&self.sweep, &self.results, part).map_err(|e| self.failure(e))?;
        if had_half_a_line {
            output::say(format_args!(
                "{}: half a line at the end; its run is made again",
                journal.path().display()
            ));
        }
        let journals = self.journals()?;
        let left = journals.left(part);
        if left.is_empty() {
            return Ok(());
        }
        let made = self.sweep.runs() - journals.left(Part::WHOLE).len();
        if journals.damaged() > 0 {
            let damaged = counted(journals.damaged(), "damaged line");
            let path = journal.path().display();
            output::say(format_args!("{path}: {damaged}: what isn't whole is made again"));
        }
        if made > 0 {
            output::say(format_args!("{made} of {} runs were made before", self.sweep.runs()));
        }
        drop(journals);
        let _line = ProgressLine::of_batch(format!("sweeping {}", self.file), self.progress.clone());
        let record = |_: usize, line: &str| journal.append(line);
        self.sweep.run(&left, jobs, &self.progress, record).map_err(|error| self.failure(error))
    }

    /// What the results say.
    fn read(&self) -> Result<(Vec<Group>, Vec<FailedRun>), Failure> {
        groups(&self.sweep, &self.results).map_err(Failure::bad_input)
    }

    /// Makes the results of all journals, which aren't needed any more when these can be read.
    fn merge(&self) -> Result<(Vec<Group>, Vec<FailedRun>), Failure> {
        let journals = self.journals()?;
        if !journals.left(Part::WHOLE).is_empty() {
            return Err(Failure::bad_input(format_args!(
                "{}: {}",
                self.results.display(),
                journals.missing()
            )));
        }
        let mut file = OutputFile::create(&self.results, self.sweep.files())?;
        journals.write(&mut file, || self.progress.is_stopped()).map_err(|error| match error {
            WriteError::Read(error) => self.failure(error),
            WriteError::Write(error) => Failure::bad_input(output::cause(&self.results, &error)),
        })?;
        file.commit().map_err(Failure::into_bad_input)?;
        let on_disk = std::fs::File::open(&self.results).and_then(|file| file.sync_all());
        on_disk.map_err(|error| Failure::bad_input(output::cause(&self.results, &error)))?;
        let read = self.read().inspect_err(|_| drop(std::fs::remove_file(&self.results)))?;
        journals.remove().map_err(|error| self.failure(error))?;
        slurm::clean(&self.results).map(|()| read)
    }

    /// A kill may have come between the results and this. What can't be removed (in another user's folder)
    /// does no harm.
    fn clean_again(&self) {
        let _ = Journals::scan(&self.sweep, &self.results).and_then(Journals::remove);
        let _ = slurm::clean(&self.results);
    }

    fn journals(&self) -> Result<Journals<'_>, Failure> {
        Journals::scan(&self.sweep, &self.results).map_err(|error| self.failure(error))
    }

    /// Whatever is in the way of results is bad input: a journal of another sweep, a full disk.
    fn failure(&self, error: SweepError) -> Failure {
        match error {
            SweepError::Stopped => self.interrupted(),
            error => Failure::bad_input(error),
        }
    }

    fn interrupted(&self) -> Failure {
        match Journals::scan(&self.sweep, &self.results) {
            Ok(journals) => Failure::interrupted_with(format_args!(
                "{} of {} runs are kept beside {}; the same command goes on from there",
                self.sweep.runs() - journals.left(Part::WHOLE).len(),
                self.sweep.runs(),
                self.results.display()
            )),
            Err(_) => Failure::interrupted(),
        }
    }
}
