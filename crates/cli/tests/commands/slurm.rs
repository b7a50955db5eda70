//! `microslice sweep --slurm` with real Slurm: a controller, a node and munge of this test's own, in a folder
//! of its own.

use crate::common::{PROGRAM, refusal, text};
use std::io::Write;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// Daemons begin, and tasks end, in seconds; a busy machine takes longer.
const PATIENCE: Duration = Duration::from_secs(120);
/// A name that sbatch's patterns and a shell would both read as something else.
const FOLDER: &str = "it's 100%a sweep";

const SCENARIO: &str = r#"
host = { extends = "xeon-e5645", pcpus = 2, llc_pcpus = 2 }
duration = "20 ms"
[[vm]]
name = "left"
vcpus = 2
kernel = "linux-4.4"
workloads = [{ name = "busy", threads = "per vcpu", program = [{ compute = "exponential 20 us" }, { progress = 1 }] }]
[[vm]]
name = "right"
vcpus = 2
kernel = "linux-4.4"
workloads = ["lookbusy"]
"#;
const SWEEP: &str = "scenarios = ['mine.toml']\npolicies = ['eevdf', 'microslice']\nseeds = 6\n";

/// The daemons, which end with this.
struct Cluster {
    folder: tempfile::TempDir,
    daemons: Vec<Child>,
}

impl Cluster {
    fn start() -> Self {
        // SAFETY: it only reads which user runs this.
        let user = unsafe { libc::geteuid() };
        assert_eq!(user, 0, "Slurm's daemons run as root here, as scripts/test.sh does");
        let folder = tempfile::tempdir().expect("a folder");
        // Munge's clients have to come through to its socket.
        std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o755)).expect("readable");
        let mut cluster = Self { folder, daemons: Vec::new() };
        cluster.write("munge.key", &std::process::id().to_string().repeat(100));
        std::fs::set_permissions(cluster.path("munge.key"), PermissionsExt::from_mode(0o600))
            .expect("private");
        let munge = [
            "key-file=munge.key",
            "socket=munge.socket",
            "pid-file=munge.pid",
            "log-file=munge.log",
            "seed-file=munge.seed",
        ];
        let munge: Vec<String> = munge
            .iter()
            .filter_map(|option| option.split_once('='))
            .map(|(option, name)| format!("--{option}={}", cluster.path(name).display()))
            .collect();
        cluster.daemon("munged", &[&["--foreground".to_owned()], &munge[..]].concat());
        cluster.await_that("munge's socket", |cluster| cluster.path("munge.socket").exists());
        let host = host_name();
        cluster.write("slurm.conf", &cluster.configuration(&host));
        let conf = cluster.path("slurm.conf").display().to_string();
        cluster.daemon("slurmctld", &["-D".to_owned(), "-f".to_owned(), conf.clone()]);
        cluster.daemon("slurmd", &["-D".to_owned(), "-f".to_owned(), conf, "-N".to_owned(), host]);
        cluster.await_that("an idle node", |cluster| {
            cluster.said("sinfo", &["--noheader", "--format=%T"]) == "idle\n"
        });
        cluster
    }

    fn configuration(&self, host: &str) -> String {
        for folder in ["state", "spool"] {
            std::fs::create_dir(self.path(folder)).expect("a folder");
        }
        let [controller, node] = free_ports();
        let here = self.folder.path().display();
        format!(
            "ClusterName=test\nSlurmctldHost={host}(127.0.0.1)\nSlurmctldPort={controller}\nSlurmdPort={node}\nSlurmUser=root\n\
             AuthType=auth/munge\nCredType=cred/munge\nAuthInfo=socket={here}/munge.socket\n\
             StateSaveLocation={here}/state\nSlurmdSpoolDir={here}/spool\n\
             SlurmctldPidFile={here}/slurmctld.pid\nSlurmdPidFile={here}/slurmd.pid\n\
             SlurmctldLogFile={here}/slurmctld.log\nSlurmdLogFile={here}/slurmd.log\n\
             ProctrackType=proctrack/linuxproc\nTaskPlugin=task/none\nJobAcctGatherType=jobacct_gather/none\n\
             SelectType=select/cons_tres\nSelectTypeParameters=CR_CPU\nSlurmdParameters=config_overrides\n\
             ReturnToService=2\nMpiDefault=none\nMailProg=/bin/true\n\
             NodeName={host} NodeAddr=127.0.0.1 CPUs=2 State=UNKNOWN\n\
             PartitionName=short Nodes={host} Default=YES MaxTime=INFINITE State=UP\n"
        )
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn write(&self, name: &str, text: &str) {
        std::fs::write(self.path(name), text).expect("written");
    }

    fn daemon(&mut self, name: &str, arguments: &[String]) {
        let words = std::fs::File::create(self.path(&format!("{name}.words"))).expect("a file");
        let mut command = Command::new(format!("/usr/sbin/{name}"));
        command.args(arguments).stdin(Stdio::null()).stdout(words.try_clone().expect("a file")).stderr(words);
        // SAFETY: between fork and exec, one call that is allowed there: a test that is killed leaves no
        // daemon.
        unsafe {
            command.pre_exec(|| match libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) {
                0 => Ok(()),
                _ => Err(std::io::Error::last_os_error()),
            });
        }
        let started = command
            .spawn()
            .unwrap_or_else(|error| panic!("{name} (`make setup-tests` installs it): {error}"));
        self.daemons.push(started);
    }

    fn await_that(&self, what: &str, is_there: impl Fn(&Self) -> bool) {
        let begun = Instant::now();
        while !is_there(self) {
            assert!(begun.elapsed() < PATIENCE, "no {what}: {}", self.words());
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// What the daemons say, to find out why there is none.
    fn words(&self) -> String {
        let names =
            ["munged.words", "munge.log", "slurmctld.words", "slurmctld.log", "slurmd.words", "slurmd.log"];
        names.map(|name| std::fs::read_to_string(self.path(name)).unwrap_or_default()).concat()
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.env("SLURM_CONF", self.path("slurm.conf"));
        command
    }

    fn said(&self, program: &str, arguments: &[&str]) -> String {
        text(&self.command(program).args(arguments).output().expect("Slurm's programs").stdout)
    }

    /// A folder with a sweep in it.
    fn desk(&self, name: &str) -> PathBuf {
        let folder = self.folder.path().join(name);
        std::fs::create_dir(&folder).expect("a folder");
        std::fs::write(folder.join("mine.toml"), SCENARIO).expect("written");
        std::fs::write(folder.join("small.toml"), SWEEP).expect("written");
        folder
    }

    fn sweep(&self, folder: &Path, arguments: &[&str]) -> Output {
        let mut command = self.command(PROGRAM);
        command
            .current_dir(folder)
            .args(["sweep", "small.toml"])
            .args(arguments)
            .output()
            .expect("the binary starts")
    }

    fn succeed(&self, folder: &Path, arguments: &[&str]) -> String {
        let output = self.sweep(folder, arguments);
        assert!(output.status.success(), "{arguments:?}: {}\n{}", text(&output.stderr), self.words());
        text(&output.stdout)
    }

    fn refuse(&self, folder: &Path, arguments: &[&str]) -> String {
        refusal(&self.sweep(folder, arguments))
    }

    fn await_end(&self) {
        self.await_that("end of the job", |cluster| cluster.said("squeue", &["--noheader"]).is_empty());
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // A task has a process of its own that outlives the node's daemon.
        let _ = self.command("scancel").args(["--user=root"]).output();
        for daemon in self.daemons.iter_mut().rev() {
            let pid = daemon.id().to_string();
            let _ = Command::new("kill").args(["-TERM", &pid]).status();
            let begun = Instant::now();
            while matches!(daemon.try_wait(), Ok(None)) {
                if begun.elapsed() > Duration::from_secs(5) {
                    let _ = daemon.kill();
                }
                std::thread::sleep(Duration::from_millis(20));
            }
        }
        if std::thread::panicking() {
            let _ = writeln!(std::io::stderr(), "{}", self.words());
        }
    }
}

/// Free at this moment.
fn free_ports() -> [u16; 2] {
    let listeners = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").expect("a port"));
    listeners.map(|listener| listener.local_addr().expect("an address").port())
}

fn host_name() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").expect("a name");
    name.trim().split('.').next().unwrap_or_default().to_owned()
}

fn names_in(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).expect("a folder").flatten();
    let mut names: Vec<_> = entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

const RESULTS: &str = "small.results.jsonl";

/// What one process makes of the sweep.
struct Local {
    table: String,
    json: String,
    results: Vec<u8>,
}

impl Local {
    fn run(cluster: &Cluster) -> Self {
        let here = cluster.desk("here");
        let (table, json) = (cluster.succeed(&here, &[]), cluster.succeed(&here, &["--json"]));
        Self { table, json, results: results_in(&here) }
    }
}

fn results_in(desk: &Path) -> Vec<u8> {
    std::fs::read(desk.join(RESULTS)).expect("results")
}

/// Clusters start slowly: all of it is tried on one.
#[test]
fn a_job_array_makes_the_results_of_a_local_run_byte_for_byte() {
    let cluster = Cluster::start();
    let local = Local::run(&cluster);
    submit_and_merge(&cluster, &local);
    lose_a_part_and_submit_it_again(&cluster, &local);
    submit_what_slurm_refuses_or_does_not_run(&cluster);
    interrupt_a_waiting_command(&cluster);
}

/// Merged when the job has ended; the tasks' options come through, too.
fn submit_and_merge(cluster: &Cluster, local: &Local) {
    let there = cluster.desk(FOLDER);
    let submitted =
        cluster.succeed(&there, &["--slurm", "--parts", "3", "--", "--partition=short", "--comment=ours"]);
    let id =
        submitted.strip_prefix("job ").and_then(|text| text.split(':').next()).expect("a job").to_owned();
    assert!(
        submitted.contains(": 3 tasks; when they have ended: microslice sweep small.toml "),
        "{submitted}"
    );
    let job = cluster.said("scontrol", &["show", "job", &id]);
    assert!(job.contains("Comment=ours") && job.contains("JobName=microslice-sweep"), "{job}");
    cluster.await_end();
    assert!(
        names_in(&there).contains(&format!("{RESULTS}.part-3-of-3")),
        "{:?}\n{}",
        names_in(&there),
        cluster.words()
    );
    assert_eq!(cluster.succeed(&there, &["--merge"]), local.table);
    assert_eq!(results_in(&there), local.results);
    assert_eq!(names_in(&there), ["mine.toml", RESULTS, "small.toml"], "logs and script are gone, too");
}

/// A part that was lost is missed, and submitted again alone.
fn lose_a_part_and_submit_it_again(cluster: &Cluster, local: &Local) {
    let again = cluster.desk("again");
    cluster.succeed(&again, &["--part", "1/4"]);
    cluster.succeed(&again, &["--part", "3/4"]);
    let error = cluster.refuse(&again, &["--merge"]);
    assert!(
        error.contains("6 of 12 runs are missing") && error.contains("unfinished parts of 4: 2,4"),
        "{error}"
    );
    assert_eq!(cluster.succeed(&again, &["--slurm", "--parts", "4", "--wait", "--json"]), local.json);
    assert_eq!(results_in(&again), local.results);
}

/// What Slurm refuses is one line with its own words. Where a task isn't run, the waiting command hears what
/// is missing, and where tasks say why.
fn submit_what_slurm_refuses_or_does_not_run(cluster: &Cluster) {
    let refused = cluster.desk("refused");
    let error = cluster.refuse(&refused, &["--slurm", "--", "--partition=none-such"]);
    assert!(
        error.contains("sbatch small.results.jsonl.sbatch: ") && error.contains("invalid partition"),
        "{error}"
    );
    let error = cluster.refuse(&refused, &["--slurm", "--parts", "2", "--wait", "--", "--array=2"]);
    assert!(
        error.contains("6 of 12 runs are missing") && error.contains("unfinished parts of 2: 1; "),
        "{error}"
    );
    assert!(error.ends_with(&format!("its tasks' words: {RESULTS}.part-*-of-2.log\n")), "{error}");
}

/// The waiting command may go; the job goes on.
fn interrupt_a_waiting_command(cluster: &Cluster) {
    let waited = cluster.desk("waited");
    let mut sweep = cluster.command(PROGRAM);
    sweep.current_dir(&waited).args(["sweep", "small.toml", "--slurm", "--wait", "--", "--hold"]);
    let sweep = sweep.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the binary starts");
    cluster.await_that("waiting job", |cluster| !cluster.said("squeue", &["--noheader"]).is_empty());
    // It may still be told the job's number.
    std::thread::sleep(Duration::from_millis(500));
    assert!(Command::new("kill").args(["-INT", &sweep.id().to_string()]).status().expect("kill").success());
    let output = sweep.wait_with_output().expect("it ends");
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(130), "{said}");
    assert!(said.contains("microslice: interrupted: job ") && said.contains(" goes on (scancel "), "{said}");
    assert!(!cluster.said("squeue", &["--noheader"]).is_empty());
}

#[test]
fn without_slurm_a_job_array_is_refused_in_one_line() {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("mine.toml"), SCENARIO).expect("written");
    std::fs::write(folder.path().join("small.toml"), SWEEP).expect("written");
    let mut sweep = Command::new(PROGRAM);
    sweep.current_dir(folder.path()).env("PATH", "/none-such").args(["sweep", "small.toml", "--slurm"]);
    let output = sweep.output().expect("the binary starts");
    assert_eq!(output.status.code(), Some(2));
    assert_eq!(text(&output.stderr), "microslice: sbatch: no such program; Slurm isn't installed here\n");
}
