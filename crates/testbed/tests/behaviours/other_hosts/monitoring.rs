//! What a real `run` and a real `observe` serve, as Debian's Prometheus takes it. (That names and units are
//! right, and what the server withstands: `crates/cli/tests/commands/prometheus.rs`, `crates/host`.)

use super::beside::start;
use crate::common::{FLAGS, PATIENCE, count, run, start_scheduler_that_knows, statistics, stop_scheduler};
use microslice_testbed::Host;
use microslice_testbed::prometheus::{Prometheus, dashboard_queries, judged};
use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// What asks for OpenMetrics, as Prometheus does.
const ACCEPT: &str = "application/openmetrics-text; version=1.0.0";
/// Each scrape is a command on a host that is busy.
const INTERVAL: Duration = Duration::from_secs(5);
/// Rates need two scrapes within it, and queues of vCPUs that had something to count.
const WINDOW: &str = "60s";

/// A way to what one daemon serves on the host, byte for byte. The host has no network.
struct Relay<'h> {
    host: &'h Host,
    port: u16,
    listener: TcpListener,
    /// The last text that was passed on.
    last: Mutex<String>,
}

impl<'h> Relay<'h> {
    fn new(host: &'h Host, port: u16) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        listener.set_nonblocking(true).expect("a socket");
        Self { host, port, listener, last: Mutex::default() }
    }

    fn address(&self) -> SocketAddr {
        self.listener.local_addr().expect("an address")
    }

    fn fetch(&self) -> String {
        let port = self.port;
        run(self.host, &format!("wget -q -O - --header 'Accept: {ACCEPT}' http://127.0.0.1:{port}/metrics"))
    }

    fn serve(&self, is_over: &AtomicBool) {
        while !is_over.load(Ordering::Relaxed) {
            match self.listener.accept() {
                // The client may have gone meanwhile.
                Ok((stream, _)) => drop(self.answer(stream)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    std::thread::sleep(Duration::from_millis(20));
                }
                Err(error) => panic!("{error}"),
            }
        }
    }

    fn answer(&self, mut stream: TcpStream) -> std::io::Result<()> {
        stream.set_nonblocking(false)?;
        stream.set_read_timeout(Some(INTERVAL))?;
        let request = BufReader::new(stream.try_clone()?);
        for line in request.lines() {
            if line?.is_empty() {
                break;
            }
        }
        let text = self.fetch();
        let head = format!(
            "HTTP/1.1 200 OK\r\nContent-Type: {ACCEPT}; charset=utf-8\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
            text.len()
        );
        stream.write_all(head.as_bytes())?;
        stream.write_all(text.as_bytes())?;
        *self.last.lock().expect("a text") = text;
        Ok(())
    }
}

/// Both daemons at once, on guests with something of each kind to count.
pub fn prometheus_takes_what_is_served(host: &Host) {
    let _echo = host.start_echo().expect("the other end of the ping-pong");
    let scheduler = start_scheduler_that_knows(host, 2, &format!("{FLAGS} --metrics-listen 127.0.0.1:9477"));
    let observer = start(host, "exec microslice observe --json --interval 1 --metrics-listen 127.0.0.1:9478");
    statistics(&scheduler, |report| count(&report["accelerations"]["total"]) > 0, "acceleration");

    let relays = [9477, 9478].map(|port| Relay::new(host, port));
    let is_over = AtomicBool::new(false);
    let said = std::thread::scope(|scope| {
        relays.iter().for_each(|relay| drop(scope.spawn(|| relay.serve(&is_over))));
        // Threads end with the scope, whatever comes.
        let ended =
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| every_question_is_answered(&relays)));
        is_over.store(true, Ordering::Relaxed);
        ended
    });
    said.unwrap_or_else(|panic| std::panic::resume_unwind(panic));

    for relay in &relays {
        let text = relay.last.lock().expect("a text").clone();
        assert!(text.ends_with("# EOF\n") && text.contains("vm=\"a\""), "{text}");
        // promtool knows the older format only.
        let older = run(host, &format!("wget -q -O - http://127.0.0.1:{}/metrics", relay.port));
        let (is_clean, words) = judged(&["check", "metrics"], &older).expect("promtool");
        assert!(is_clean && words.is_empty(), "{words}{older}");
    }
    observer.signal(libc::SIGINT).expect("signal");
    assert_eq!(observer.wait(PATIENCE).expect("end").code, 0);
    stop_scheduler(host, &scheduler);
}

fn every_question_is_answered(relays: &[Relay<'_>; 2]) {
    let jobs = [("microslice", relays[0].address()), ("microslice-observe", relays[1].address())];
    let prometheus = Prometheus::start(&jobs, INTERVAL).expect("Prometheus");
    let answer = |query: &str| prometheus.answer(query, PATIENCE).unwrap_or_else(|error| panic!("{error}"));
    for (job, _) in jobs {
        answer(&format!("up{{job=\"{job}\"}} == 1"));
    }
    let queries = dashboard_queries(WINDOW).expect("a dashboard");
    assert!(queries.len() > 20, "{queries:?}");
    queries.iter().for_each(|query| drop(answer(query)));
    prometheus.evaluate_alerts(PATIENCE).unwrap_or_else(|error| panic!("{error}"));
}
