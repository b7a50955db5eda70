//! Where few threads can be made or none: a command does its work, or says why it can't.

use crate::common::{Files, PROGRAM, text};
use std::io::{self, ErrorKind};
use std::os::unix::process::CommandExt;
use std::process::{Command, Output};

/// Nobody's: root has no limit.
const USER: u32 = 3_141_592_653;

const SCENARIO: &str = "host = 'xeon-e5645'\nduration = '5 ms'\n[[vm]]\nname = 'a'\nvcpus = 2\n\
                        kernel = 'linux-4.4'\nworkloads = ['lookbusy']\n";

/// Runs a command whose user may have so many threads. `None` if that user can't read the program.
fn run(folder: &str, arguments: &[&str], threads: u64) -> Option<Output> {
    let mut command = Command::new(PROGRAM);
    command.current_dir(folder).args(arguments);
    // SAFETY: a plain system call without arguments.
    if unsafe { libc::geteuid() } == 0 {
        command.uid(USER);
    }
    let limit = move || {
        let limit = libc::rlimit { rlim_cur: threads, rlim_max: threads };
        // SAFETY: `limit` outlives the call, which is allowed between fork and exec.
        match unsafe { libc::setrlimit(libc::RLIMIT_NPROC, &raw const limit) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    };
    // SAFETY: it makes one system call.
    match unsafe { command.pre_exec(limit) }.output() {
        Err(error) if error.kind() == ErrorKind::PermissionDenied => None,
        output => Some(output.expect("the binary starts")),
    }
}

#[test]
fn without_threads_a_command_works_or_says_so() {
    let files = Files::new();
    let everyone = std::os::unix::fs::PermissionsExt::from_mode(0o777);
    std::fs::set_permissions(files.path(""), everyone).expect("changed");
    files.write("mine.toml", SCENARIO);
    files.write("sweep.toml", "scenarios = ['mine.toml']\npolicies = ['credit', 'eevdf']\nseeds = 2\n");
    let folder = files.name("");
    let commands: [&[&str]; 6] = [
        &["simulate", "./mine.toml"],
        &["compare", "./mine.toml", "--policies", "credit,eevdf", "--seeds", "2"],
        &["sweep", "sweep.toml"],
        &["regret", "--scenarios", "1"],
        &["reproduce", "eurosys18", "--only", "table2"],
        &["symbols", "list", "sweep.toml"],
    ];
    for arguments in commands {
        // One is the command's first thread.
        let Some(output) = run(&folder, arguments, 1) else { return };
        let said = text(&output.stderr);
        assert!(output.status.code() == Some(2) && said.lines().count() == 1, "{arguments:?}: {said}");
        assert!(
            said.contains("no thread can be made (") || arguments[0] == "symbols",
            "{arguments:?}: {said}"
        );
    }
    for threads in 2..7 {
        for arguments in &commands[..3] {
            let Some(output) = run(&folder, arguments, threads) else { return };
            let said = text(&output.stderr);
            let is_refused = output.status.code() == Some(2) && said.contains("no thread can be made (");
            assert!(output.status.success() || is_refused, "{threads} threads, {arguments:?}: {said}");
            assert!(!said.contains("panicked"), "{said}");
        }
    }
}
