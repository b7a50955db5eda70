//! Debian's own Prometheus scrapes what `run` and `observe` serve, in the way that docs/monitoring.md shows: every query of the
//! dashboard has an answer, every alert can be asked about, and nothing is to be said against names and units.
//!
//! The figures are a report's, made here and growing; the rest is what the daemon has: its conversion, its server, its formats.

use microslice_host::interface::{AccelerationReturn, Overtake, RequestFailure, WaitStats};
use microslice_host::monitoring::{Address, Board, Limits, Listener, Reading, RunReading, Server};
use microslice_host::observe::{VcpuFigures, VmFigures, report as observe};
use microslice_host::recursion_misses::RecursionMisses;
use microslice_host::report::{Report, VmReport};
use microslice_host::scheduler::{HostStats, VmStats};
use microslice_host::{SchedulerChoice, cgroups::CpuLimits};
use microslice_policy::{Cause, Coded, GuestClass, InterruptKind, YieldCause};
use microslice_testbed::prometheus::{Prometheus, dashboard_queries, free_port, judged, rules};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};
use zerocopy::FromZeros;

const PATIENCE: Duration = Duration::from_secs(180);
const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
const S: u64 = 1_000_000_000;

/// After so many seconds: two VMs, one of which waits.
fn run_report(seconds: u64) -> Report {
    let vm = |name: &str, factor: u64| {
        let mut stats = VmStats::new_zeroed();
        let grown = seconds * factor;
        stats.ran_ns = grown * S;
        stats.vmm_ran_ns = grown * S / 10;
        stats.waited_ns = grown * S / 4;
        stats.rested_ns = grown * S / 8;
        stats.micro_ran_ns = grown * S / 16;
        stats.lent_ran_ns = grown * S / 16;
        stats.requests[Cause::TlbYield as usize] = grown * 10;
        stats.accelerations[Cause::TlbYield as usize][GuestClass::TlbShootdown as usize] = grown * 6;
        stats.failures[RequestFailure::NoRoom as usize] = grown * 3;
        stats.returns[AccelerationReturn::Served as usize] = grown * 5;
        stats.overtakes[Overtake::WarmCaches as usize] = grown;
        stats.yields[YieldCause::Ple as usize][0] = grown * 100;
        stats.preemptions[GuestClass::LockHolder as usize] = grown * 7;
        stats.interrupts[InterruptKind::IpiReschedule as usize][0] = grown * 50;
        stats.interrupts[InterruptKind::Virq as usize][0] = grown * 20;
        (stats.wait_to_run_us[12], stats.wait_to_run_us[3]) = (grown * 5, grown * 40);
        stats.micro_slice_us[6] = grown * 6;
        VmReport {
            name: name.into(),
            uuid: None,
            pid: 1,
            vcpu_count: 4,
            weight: 100,
            cpu_limits: CpuLimits::default(),
            kernel: None,
            slide: None,
            state: String::new(),
            stats,
        }
    };
    Report {
        scheduler: SchedulerChoice::Microslice,
        is_final: true,
        dry_run: false,
        seconds: seconds as f64,
        micro_cpus: 1,
        vms: vec![vm("web", 3), vm("a \"quoted\" \\ name", 1)],
        gone: VmStats::new_zeroed(),
        host: HostStats::new_zeroed(),
        restarts: 1,
        pool_size_history: Vec::new(),
        micro_pcpu_ns: seconds * S,
        exit: None,
        recursion_misses: [("kick".to_owned(), seconds)].into_iter().collect(),
        programs: None,
    }
}

fn observe_report(seconds: u64) -> observe::Report {
    let mut waits = WaitStats::new_zeroed();
    (waits.counts[40], waits.total_ns, waits.max_ns) = (seconds * 30, seconds * S / 8, 4_000_000);
    let counts = |of: &[(GuestClass, u64)]| {
        let mut counts = [0; GuestClass::ALL.len()];
        of.iter().for_each(|&(class, count)| counts[class as usize] = count);
        counts
    };
    let vcpu = |id: u32| VcpuFigures {
        id,
        tid: 10 + id,
        observed_ns: seconds * S,
        ran_ns: seconds * S / 2,
        ready_ns: seconds * S / 8,
        waiting_ns: 0,
        waits,
        turns_ended: counts(&[(GuestClass::User, seconds * 9), (GuestClass::TlbShootdown, seconds * 2)]),
        turns_ended_owing: seconds,
        spins: counts(&[(GuestClass::LockWaiter, seconds * 12)]),
        halts: seconds * 4,
        lock_halts: seconds,
        directed_yields: 0,
        steal_ns: Some(seconds * S / 9),
    };
    let figures = VmFigures {
        vcpus: vec![vcpu(0), vcpu(1)],
        interrupts: [seconds * 11; InterruptKind::ALL.len()],
        interrupt_waits: [waits; InterruptKind::ALL.len()],
        shootdowns: waits,
    };
    let vm = observe::VmReport {
        name: "db".into(),
        uuid: None,
        pid: 7,
        generation: 1,
        kernel: None,
        state: String::new(),
        has_classes: true,
        is_gone: false,
        weight: 100,
        affinity: vec![],
        figures,
    };
    observe::Report {
        is_final: false,
        seconds: seconds as f64,
        vms: vec![vm],
        sees_interrupts: true,
        recursion_misses: RecursionMisses::default(),
        programs: None,
        host: None,
    }
}

fn readings(seconds: u64) -> [Reading; 2] {
    [
        Reading::Run(Box::new(RunReading {
            report: run_report(seconds),
            shares: vec![(0.75, 0.7), (0.25, 0.3)],
            vcpus: vec![Vec::new(); 2],
        })),
        Reading::Observe(Box::new(observe_report(seconds))),
    ]
}

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
    Running(child.unwrap_or_else(|error| panic!("{command:?}: {error}; `make setup` installs it")))
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
    // Figures grow for as long as somebody holds the other end.
    let (_alive, is_over) = std::sync::mpsc::channel::<()>();
    let began = Instant::now();
    std::thread::spawn(move || {
        while is_over.recv_timeout(Duration::from_millis(100)) == Err(RecvTimeoutError::Timeout) {
            for (board, reading) in boards.iter().zip(readings(began.elapsed().as_secs())) {
                board.put(reading);
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
    for reading in readings(10) {
        let text = in_format(&reading.snapshot(), Format::Text);
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
