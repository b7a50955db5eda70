//! Where outputs go, and that a signal ends a command whatever it is busy with.

use crate::common::await_handler;
use std::fs::{self, File};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

const BRIEF: [&str; 4] = ["--set", "duration=5 ms", "--set", "warmup=0 ms"];

fn microslice(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_microslice"));
    command.args(arguments);
    command
}

fn simulate(arguments: &[&str]) -> Output {
    microslice(&[&["simulate", "gmake-solo"], &BRIEF[..], arguments].concat()).output().expect("it starts")
}

/// Exit code 2 and one line on standard error.
fn refusal(output: &Output) -> String {
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
    said
}

struct Desk(tempfile::TempDir);

impl Desk {
    fn new() -> Self {
        Self(tempfile::tempdir().expect("a folder"))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn name(&self, name: &str) -> String {
        self.path(name).display().to_string()
    }

    fn pipe(&self, name: &str) -> String {
        let made = Command::new("mkfifo").arg(self.path(name)).status().expect("mkfifo");
        assert!(made.success());
        self.name(name)
    }

    fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(self.0.path()).expect("a folder").flatten();
        let mut names: Vec<_> =
            entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }
}

fn is_page(path: &Path) -> bool {
    fs::read_to_string(path).is_ok_and(|text| text.contains("</html>"))
}

#[test]
fn an_output_is_written_through_links_which_stay() {
    let desk = Desk::new();
    fs::create_dir(desk.path("pages")).expect("a folder");
    fs::write(desk.path("pages/there.html"), "old").expect("written");
    for (link, target) in [("there", "pages/there.html"), ("new", "pages/new.html")] {
        symlink(target, desk.path(link)).expect("a link");
        assert!(simulate(&["--html", &desk.name(link)]).status.success());
        assert!(desk.path(link).is_symlink(), "{link}");
        assert!(is_page(&desk.path(target)), "{link}");
    }
}

#[test]
fn a_page_on_standard_output_comes_before_the_table() {
    let desk = Desk::new();
    let file = File::create(desk.path("both")).expect("created");
    let status = microslice(&["simulate", "gmake-solo", "--html", "/dev/stdout"])
        .args(BRIEF)
        .stdout(file)
        .stderr(Stdio::null())
        .status();
    assert!(status.expect("it starts").success());
    let text = fs::read_to_string(desk.path("both")).expect("there");
    let (page, table) = text.split_once("</html>").expect("a page");
    assert!(page.starts_with("<!") && table.contains("throughput"));
}

#[test]
fn an_output_does_not_replace_an_input_whatever_its_name() {
    let desk = Desk::new();
    let text = "host = 'xeon-e5645'\nduration = '5 ms'\n[[vm]]\nname = 'a'\nvcpus = 1\nkernel = 'linux-4.4'\n\
                workloads = ['lookbusy']\n";
    fs::write(desk.path("mine.cfg"), text).expect("written");
    symlink("mine.cfg", desk.path("page.html")).expect("a link");
    let scenario = desk.name("./mine.cfg");
    for (command, rest) in [("simulate", &[][..]), ("compare", &["--policies", "credit"])] {
        let output =
            microslice(&[&[command, &scenario, "--html", &desk.name("page.html")], rest].concat()).output();
        let said = refusal(&output.expect("it starts"));
        assert!(said.ends_with("page.html: an output would replace what is read\n"), "{said}");
    }
    assert_eq!(fs::read_to_string(desk.path("mine.cfg")).expect("there"), text);
}

#[test]
fn a_name_that_no_file_can_have_is_refused_before_the_run() {
    let desk = Desk::new();
    let endless = ["simulate", "gmake-solo", "--set", "duration=60 min", "--html"];
    for name in ["folder/".to_owned(), "folder/.".to_owned(), "x".repeat(300)] {
        let output = microslice(&[&endless[..], &[&desk.name(&name)]].concat()).output().expect("it starts");
        refusal(&output);
    }
    assert!(desk.names().is_empty());
}

#[test]
fn a_named_pipe_is_no_scenario_no_recording_and_no_profile() {
    let desk = Desk::new();
    let pipe = desk.pipe("pipe.toml");
    for command in [&["simulate"][..], &["replay"], &["simulate", "--profile"]] {
        let said = refusal(&microslice(&[command, &[pipe.as_str()]].concat()).output().expect("it starts"));
        assert_eq!(said, format!("microslice: {pipe}: is a named pipe, not a file\n"));
    }
}

fn interrupt(child: &Child) {
    assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().expect("kill").success());
}

/// What an interrupt doesn't end takes minutes, or never ends.
const SOON: Duration = Duration::from_secs(30);

/// Interrupts when it is heard, and shows that the command ends with exit code 130.
fn assert_one_interrupt_ends(mut command: Command) {
    let mut child = command.stderr(Stdio::piped()).spawn().expect("it starts");
    await_handler(&mut child);
    std::thread::sleep(Duration::from_millis(300));
    interrupt(&child);
    let begun = Instant::now();
    let output = child.wait_with_output().expect("it ends");
    assert_eq!(output.status.code(), Some(130));
    assert!(String::from_utf8_lossy(&output.stderr).ends_with("microslice: interrupted\n"));
    assert!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
}

#[test]
fn a_pipe_that_nobody_reads_is_refused_before_the_run() {
    let desk = Desk::new();
    let (pipe, trace) = (desk.pipe("page.html"), desk.name("trace.txt"));
    let endless = ["simulate", "gmake-solo", "--set", "duration=60 min", "--trace", &trace, "--html", &pipe];
    let said = refusal(&microslice(&endless).output().expect("it starts"));
    assert_eq!(said, format!("microslice: {pipe}: nobody reads this pipe: begin to read it first\n"));
    assert_eq!(desk.names(), ["page.html"]);
    let reader = Command::new("cat").arg(&pipe).stdout(Stdio::piped()).spawn().expect("a reader");
    // Refused until it has opened its side.
    while !simulate(&["--html", &pipe]).status.success() {}
    let page = reader.wait_with_output().expect("it ends").stdout;
    assert!(String::from_utf8_lossy(&page).contains("</html>"));
}

#[test]
fn a_kill_leaves_nothing_beside_the_outputs() {
    let desk = Desk::new();
    let (page, trace) = (desk.name("page.html"), desk.name("trace.txt"));
    let endless = ["simulate", "gmake-solo", "--set", "duration=60 min", "--trace", &trace, "--html", &page];
    let mut child = microslice(&endless).stderr(Stdio::null()).spawn().expect("it starts");
    await_handler(&mut child);
    let has_scratch = |child: &Child| {
        let open = fs::read_dir(format!("/proc/{}/fd", child.id())).expect("its files").flatten();
        open.filter_map(|fd| fs::read_link(fd.path()).ok()).any(|file| file.starts_with(desk.0.path()))
    };
    while !has_scratch(&child) {
        assert_eq!(child.try_wait().expect("its state"), None, "it ended by itself");
        std::thread::sleep(Duration::from_millis(5));
    }
    child.kill().expect("killed");
    child.wait().expect("gone");
    assert!(desk.names().is_empty(), "{:?}", desk.names());
}

#[test]
fn a_file_that_is_replaced_keeps_who_may_read_it() {
    let desk = Desk::new();
    fs::write(desk.path("page.html"), "old").expect("written");
    for mode in [0o600, 0o664] {
        fs::set_permissions(desk.path("page.html"), fs::Permissions::from_mode(mode)).expect("changed");
        assert!(simulate(&["--html", &desk.name("page.html")]).status.success());
        assert!(is_page(&desk.path("page.html")));
        let now = fs::metadata(desk.path("page.html")).expect("there").permissions().mode();
        assert_eq!(now & 0o777, mode);
    }
    assert_eq!(desk.names(), ["page.html"]);
}

#[test]
fn a_trace_is_bounded_and_says_where_it_ends() {
    let desk = Desk::new();
    for name in ["trace.txt", "trace.pftrace"] {
        let scenario = ["simulate", "gmake-swaptions", "--set", "duration=2 s"];
        let trace = ["--trace", &desk.name(name), "--trace-size", "1"];
        let output = microslice(&[&scenario[..], &trace].concat()).output().expect("it starts");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{said}");
        assert!(said.contains(&format!("{name}: the trace ends after ")), "{said}");
        assert!(said.contains("(as large as it may be: --trace-size)\n"), "{said}");
        let bytes = fs::metadata(desk.path(name)).expect("there").len();
        assert!((900 << 10..(1 << 20) + (64 << 10)).contains(&bytes), "{name}: {bytes}");
    }
}

#[test]
fn what_never_ends_is_no_input() {
    // A terminal at whose other side nobody is.
    for command in [&["simulate"][..], &["replay"], &["simulate", "--profile"]] {
        let said = refusal(&microslice(&[command, &["/dev/ptmx"]].concat()).output().expect("it starts"));
        assert!(said.starts_with("microslice: /dev/ptmx: "), "{said}");
        assert!(said.ends_with(": isn't a file that ends: more may come\n"), "{said}");
    }
}

#[test]
fn ctrl_c_ends_a_command_whose_output_nobody_takes() {
    let desk = Desk::new();
    let (_reader, writer) = std::io::pipe().expect("a pipe");
    let mut command =
        microslice(&["simulate", "gmake-solo", "--trace", "/dev/stdout", "--html", &desk.name("page.html")]);
    command.stdout(writer);
    assert_one_interrupt_ends(command);
    assert!(desk.names().is_empty());
}

#[test]
fn ctrl_c_ends_a_scenario_in_which_time_hardly_passes() {
    let desk = Desk::new();
    let program = "{ repeat = 1_000, body = [{ progress = 1 }] }, { compute = '1 us' }";
    let text = format!(
        "host = {{ extends = 'xeon-e5645', pcpus = 1024, llc_pcpus = 0 }}\nduration = '60 min'\n[[vm]]\nname = 'a'\n\
         vcpus = 1024\nkernel = 'linux-4.4'\n\
         workloads = [{{ name = 'w', threads = 'per vcpu', program = [{program}] }}]\n"
    );
    fs::write(desk.path("slow.toml"), text).expect("written");
    let (scenario, page) = (desk.name("slow.toml"), desk.name("page.html"));
    assert_one_interrupt_ends(microslice(&["simulate", &scenario, "--html", &page]));
    assert_eq!(desk.names(), ["slow.toml"]);
}

#[test]
fn a_limit_of_the_size_of_files_is_a_failure_like_a_full_disk_and_leaves_no_file() {
    let desk = Desk::new();
    let output = Command::new("sh")
        .args([
            "-c",
            "ulimit -f 8; exec \"$@\"",
            "sh",
            env!("CARGO_BIN_EXE_microslice"),
            "simulate",
            "gmake-solo",
        ])
        .args(BRIEF)
        .args(["--trace", &desk.name("trace.txt")])
        .output()
        .expect("it starts");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("trace.txt: File too large"), "{said}");
    assert!(desk.names().is_empty(), "{:?}", desk.names());
}
