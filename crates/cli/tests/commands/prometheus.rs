//! Debian's own Prometheus scrapes what `run` and `observe` serve, in the way that docs/how-to/monitor.md
//! shows: every query of the dashboard has an answer, every alert can be asked about, and nothing is to be
//! said against names and units.
//!
//! The figures are a report's, made here and growing; the rest is what the daemon has: its conversion, its
//! server, its formats.

use crate::reports::readings;
use microslice_host::output::monitoring::{Board, Limits, Listener, Server};
use microslice_host::settings::listen::Address;
use microslice_testbed::prometheus::{Prometheus, dashboard_queries, free_port, judged, rules};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(180);
const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

/// A program that ends with the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn start(command: &mut Command) -> Running {
    let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
    Running(child.unwrap_or_else(|error| panic!("{command:?}: {error}; `make setup-tests` installs it")))
}

fn served(address: &str, board: &Arc<Board>) -> (Server, Address) {
    let listener = Listener::bind(&address.parse().expect("an address")).expect("bound");
    let address = listener.address().clone();
    (listener.serve(Arc::clone(board), Limits::DEFAULT).expect("a thread"), address)
}

#[test]
fn debians_prometheus_scrapes_both_and_every_query_of_the_dashboard_has_an_answer() {
    let folder = tempfile::tempdir().expect("a folder");
    let boards = [Arc::new(Board::default()), Arc::new(Board::default())];
    let (_run, run) = served("127.0.0.1:0", &boards[0]);
    let Address::Tcp(run) = run else { panic!("{run:?}") };
    // The default, and the units that lead to it: a socket in the file system behind systemd's proxy.
    let socket: PathBuf = folder.path().join("metrics.sock");
    let (_observe, _) = served(&format!("unix:{}", socket.display()), &boards[1]);
    let proxy = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port().expect("a port")));
    let _proxy = start(
        Command::new("systemd-socket-activate")
            .args(["--listen", &proxy.to_string(), "/lib/systemd/systemd-socket-proxyd"])
            .arg(&socket),
    );
    let jobs = [("microslice", run), ("microslice-observe", proxy)];
    let prometheus = Prometheus::start(&jobs, Duration::from_secs(1)).expect("Prometheus");

    let queries = dashboard_queries("10s").expect("a dashboard");
    assert!(queries.len() > 20, "{queries:?}");
    // Figures grow for as long as a test holds the other end.
    let (_alive, is_over) = std::sync::mpsc::channel::<()>();
    let began = Instant::now();
    std::thread::spawn(move || {
        while is_over.recv_timeout(Duration::from_millis(100)) == Err(RecvTimeoutError::Timeout) {
            for (board, known) in boards.iter().zip(readings(began.elapsed().as_secs())) {
                board.put(known.served);
            }
        }
    });

    let answer = |query: &str| prometheus.answer(query, PATIENCE).unwrap_or_else(|error| panic!("{error}"));
    for (job, _) in jobs {
        answer(&format!("up{{job=\"{job}\"}} == 1"));
    }
    for query in &queries {
        println!("{} rows: {query}", answer(query).len());
    }
    // The name of a VM is its tenant's choice, and arrives as it is.
    answer("microslice_vcpus{vm=\"a \\\"quoted\\\" \\\\ name\"}");
    prometheus.evaluate_alerts(PATIENCE).unwrap_or_else(|error| panic!("{error}"));
}

#[test]
fn nothing_is_to_be_said_against_names_and_units() {
    use microslice_metrics::openmetrics::{Format, in_format};
    for known in readings(10) {
        let text = in_format(&known.served.snapshot(), Format::Text);
        let (is_clean, words) = judged(&["check", "metrics"], &text).expect("promtool");
        assert!(is_clean && words.is_empty(), "{words}{text}");
    }
    // That it does complain: a counter without its suffix.
    let wrong = "# HELP wrong No suffix.\n# TYPE wrong counter\nwrong 1\n";
    assert!(!judged(&["check", "metrics"], wrong).expect("promtool").0);
}

#[test]
fn alerts_say_what_they_are_for_and_nothing_else() {
    let rules = rules().display().to_string();
    let judged = |arguments: &[&str]| judged(arguments, "").expect("promtool");
    let (is_clean, words) = judged(&["check", "rules", "--lint=all", "--lint-fatal", &rules]);
    assert!(is_clean, "{words}");
    let (is_right, words) = judged(&["test", "rules", &format!("{ROOT}/packaging/prometheus/tests.yml")]);
    assert!(is_right, "{words}");
}
