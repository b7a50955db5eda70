//! `microslice top` in a real terminal, tmux's: what it shows of a daemon that listens, what keys do, and
//! what it leaves behind.

use crate::reports;
use microslice_host::output::monitoring::{Board, Limits, Listener, Server};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;
use std::time::{Duration, Instant};

const PROGRAM: &str = env!("CARGO_BIN_EXE_microslice");
const PATIENCE: Duration = Duration::from_secs(120);

/// A server that listens at a socket in this folder.
fn listening(folder: &Path) -> (Server, String) {
    let address = format!("unix:{}", folder.join("metrics.sock").display());
    let board = Arc::new(Board::default());
    board.put(Arc::new(reports::observe_report(10)));
    let listener = Listener::bind(&address.parse().expect("an address")).expect("bound");
    (listener.serve(board, Limits::DEFAULT).expect("a thread"), address)
}

/// A terminal of eighty columns, in a server of its own, that ends with the test.
struct Terminal {
    socket: PathBuf,
}

impl Terminal {
    /// A shell in it runs `command`, then says its exit code and how the terminal is set, and stays.
    fn running(folder: &Path, command: &str) -> Self {
        let terminal = Self { socket: folder.join("tmux") };
        let script = format!("{command}; echo code $?; stty -a; sleep 600");
        let session = ["-f", "/dev/null", "new-session", "-d", "-x", "80", "-y", "24", "sh", "-c", &script];
        terminal.tmux(&session);
        terminal
    }

    fn tmux(&self, arguments: &[&str]) -> String {
        let mut command = Command::new("tmux");
        let output =
            command.arg("-S").arg(&self.socket).args(arguments).env("TERM", "xterm-256color").output();
        let output = output.unwrap_or_else(|error| panic!("tmux: {error}; `make setup-tests` installs it"));
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    fn press(&self, key: &str) {
        self.tmux(&["send-keys", key]);
    }

    /// What is on the screen once all of these words are.
    fn shows(&self, words: &[&str]) -> String {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let screen = self.tmux(&["capture-pane", "-p"]);
            if words.iter().all(|word| screen.contains(word)) {
                return screen;
            }
            assert!(Instant::now() < deadline, "{words:?} aren't all on the screen:\n{screen}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = Command::new("tmux").arg("-S").arg(&self.socket).arg("kill-server").output();
    }
}

fn line(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.code() == Some(2) && text.lines().count() == 1, "{output:?}");
    text
}

#[test]
fn a_vm_is_shown_opened_and_left_and_the_terminal_is_as_it_was() {
    for end in ["q", "C-c"] {
        let folder = tempfile::tempdir().expect("a folder");
        let (_server, address) = listening(folder.path());
        let terminal =
            Terminal::running(folder.path(), &format!("{PROGRAM} top --connect {address} --interval 1"));
        terminal.shows(&["microslice observe", "db-server", "12.5%", "Enter vCPUs"]);
        terminal.press("Enter");
        terminal.shows(&["db-server: pid 7", "4242", "no kernel found", "Esc back"]);
        terminal.press("h");
        terminal.shows(&["any key goes back"]);
        terminal.press("x");
        terminal.press("Space");
        terminal.shows(&["PAUSED"]);
        terminal.press(end);
        let screen = terminal.shows(&["code 0", "icanon", "echo"]);
        assert!(!screen.contains("-icanon") && !screen.contains(" -echo "), "{screen}");
        assert!(!screen.contains("db-server"), "the screen before it is back: {screen}");
    }
}

#[test]
fn it_ends_with_its_terminal() {
    let folder = tempfile::tempdir().expect("a folder");
    let (_server, address) = listening(folder.path());
    let terminal = Terminal::running(folder.path(), &format!("{PROGRAM} top --connect {address}"));
    terminal.shows(&["db-server"]);
    drop(terminal);
    let runs =
        || Command::new("pgrep").args(["-f", &format!("top --connect {address}")]).output().expect("run");
    let deadline = Instant::now() + PATIENCE;
    while runs().status.success() {
        assert!(Instant::now() < deadline, "it is still there");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn a_daemon_that_goes_is_said_and_one_that_comes_back_is_read() {
    let folder = tempfile::tempdir().expect("a folder");
    let (server, address) = listening(folder.path());
    let terminal =
        Terminal::running(folder.path(), &format!("{PROGRAM} top --connect {address} --interval 1"));
    terminal.shows(&["db-server"]);
    drop(server);
    terminal.shows(&["nobody listens there", "db-server"]);
    let (_server, _) = listening(folder.path());
    terminal.shows(&["Enter vCPUs", "db-server"]);
}

#[test]
fn without_a_terminal_or_a_daemon_it_says_so_in_one_line() {
    let folder = tempfile::tempdir().expect("a folder");
    let top = |arguments: &[&str]| Command::new(PROGRAM).arg("top").args(arguments).output().expect("run");
    let nobody = format!("unix:{}/none", folder.path().display());
    let said = line(&top(&["--connect", &nobody]));
    assert!(said.contains(&nobody) && said.contains("nobody listens there"), "{said}");
    assert!(line(&top(&["--connect", "here"])).contains("must be unix:/PATH or IP:PORT"));
    let (_server, address) = listening(folder.path());
    assert!(line(&top(&["--connect", &address])).contains("is no terminal"));
    let json = top(&["--connect", &address, "--json"]);
    let view: serde_json::Value = serde_json::from_slice(&json.stdout).expect("JSON");
    assert_eq!(
        (&view["source"], &view["vms"][0]["name"]),
        (&"observe".into(), &"db-server".into()),
        "{view}"
    );
}
