//! Clients as they should be, and as they shouldn't.

use super::*;
use crate::interface::VmStats;
use crate::output::monitoring::vm_figures::{put_hints, put_vm};
use crate::output::monitoring::{View, VmView};
use microslice_metrics::Snapshot;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;

/// Longer than any client's time here, so that no test that waits for that is disappointed.
const PATIENCE: Duration = Duration::from_secs(120);
const SHORT: Limits = Limits { connections: 2, patience: Duration::from_millis(200) };
const ENDLESS: Limits = Limits { connections: 4, patience: Duration::from_secs(3600) };

/// A reading of this many VMs.
struct Vms(u32);

impl Reading for Vms {
    fn snapshot(&self) -> Snapshot {
        let mut snapshot = Snapshot::new();
        let stats = VmStats { ran_ns: 1_000_000_000, waited_ns: 1, ..VmStats::default() };
        for vm in (0..self.0).map(|at| format!("vm{at}")) {
            put_vm(&mut snapshot, &vm, 4, &stats);
            put_hints(&mut snapshot, &vm, &stats);
        }
        snapshot
    }

    fn view(&self) -> View {
        let vm = |at| VmView {
            name: format!("vm{at}"),
            ran_ns: 1_000_000_000,
            shares: Some((0.25, 0.5)),
            ..VmView::default()
        };
        View { source: "run".into(), vms: (0..self.0).map(vm).collect(), ..View::default() }
    }
}

/// A server on a port of its own, and where that is.
fn serving(vms: u32, limits: Limits) -> (Server, Arc<Board>, std::net::SocketAddr) {
    let listener = Listener::bind(&"127.0.0.1:0".parse().unwrap()).unwrap();
    let Address::Tcp(address) = *listener.address() else { panic!("{listener:?}") };
    let board = Arc::new(Board::default());
    board.put(Arc::new(Vms(vms)));
    (listener.serve(Arc::clone(&board), limits).unwrap(), board, address)
}

fn ask(stream: &mut (impl Read + Write), request: &str) -> String {
    stream.write_all(format!("{request}\r\nHost: here\r\n\r\n").as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

fn get(address: std::net::SocketAddr, request: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    ask(&mut stream, request)
}

#[test]
fn figures_are_served_in_the_format_that_is_asked_for() {
    let (_server, _, address) = serving(1, Limits::DEFAULT);
    let text = get(address, "GET /metrics HTTP/1.1");
    assert!(text.starts_with("HTTP/1.1 200 OK\r\n"), "{text}");
    assert!(text.contains("content-type: text/plain; version=0.0.4"), "{text}");
    assert!(text.contains("\nmicroslice_cpu_time_seconds_total{vm=\"vm0\"} 1\n"), "{text}");
    let text = get(address, "GET /metrics HTTP/1.1\r\nAccept: application/openmetrics-text;version=1.0.0");
    assert!(text.contains("content-type: application/openmetrics-text; version=1.0.0"), "{text}");
    assert!(text.ends_with("# EOF\n"), "{text}");
}

#[test]
fn top_reads_what_is_served() {
    let (_server, _, address) = serving(3, Limits::DEFAULT);
    let view = View::read(&Address::Tcp(address)).unwrap();
    assert_eq!((view.source.as_str(), view.vms.len(), view.vms[2].ran_ns), ("run", 3, 1_000_000_000));
    assert_eq!(view.vms[0].shares, Some((0.25, 0.5)));
}

#[test]
fn the_next_client_reads_the_latest_reading() {
    let (_server, board, address) = serving(1, Limits::DEFAULT);
    assert!(!get(address, "GET /metrics HTTP/1.1").contains("vm=\"vm1\""));
    board.put(Arc::new(Vms(2)));
    assert!(get(address, "GET /metrics HTTP/1.1").contains("vm=\"vm1\""));
}

#[test]
fn an_unknown_page_is_answered_with_the_known_ones() {
    let (_server, _, address) = serving(1, Limits::DEFAULT);
    assert!(get(address, "GET / HTTP/1.1").starts_with("HTTP/1.1 404 "));
    let refusal = get(address, "POST /metrics HTTP/1.1");
    assert!(refusal.starts_with("HTTP/1.1 405 ") && refusal.contains("allow: GET, HEAD"), "{refusal}");
    assert!(get(address, "nonsense").starts_with("HTTP/1.1 400 "));
    let endless = format!("GET /metrics HTTP/1.1\r\nX: {}", "x".repeat(20_000));
    let mut stream = TcpStream::connect(address).unwrap();
    let mut answer = String::new();
    // It may be told so, or find the connection gone.
    let _ = stream.write_all(endless.as_bytes()).and_then(|()| stream.read_to_string(&mut answer));
    assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 431 "), "{answer}");
}

#[test]
fn a_client_that_never_reads_delays_no_other() {
    // A page of some megabytes doesn't fit into a socket's buffers.
    let (_server, board, address) = serving(2000, ENDLESS);
    let _deaf: Vec<TcpStream> = (0..ENDLESS.connections - 1)
        .map(|_| {
            let mut stream = TcpStream::connect(address).unwrap();
            stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: here\r\n\r\n").unwrap();
            stream
        })
        .collect();
    for vms in 1..4 {
        board.put(Arc::new(Vms(vms)));
        assert!(get(address, "GET /metrics HTTP/1.1").contains(&format!("vm=\"vm{}\"", vms - 1)));
    }
}

#[test]
fn a_flood_of_clients_that_say_nothing_ends_by_itself() {
    let (_server, board, address) = serving(1, SHORT);
    let _silent: Vec<TcpStream> = (0..40).map(|_| TcpStream::connect(address).unwrap()).collect();
    // The daemon's part isn't held up by them,
    board.put(Arc::new(Vms(3)));
    // and once they have had their time another client is answered.
    assert!(get(address, "GET /metrics HTTP/1.1").contains("vm=\"vm2\""));
}

#[test]
fn the_end_waits_for_nobody() {
    let (server, _, address) = serving(2000, ENDLESS);
    let mut deaf = TcpStream::connect(address).unwrap();
    deaf.write_all(b"GET /metrics HTTP/1.1\r\nHost: here\r\n\r\n").unwrap();
    let _silent = TcpStream::connect(address).unwrap();
    drop(server);
    assert!(TcpStream::connect(address).is_err(), "nobody listens any more");
}

#[test]
fn a_socket_file_goes_with_the_daemon() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run/metrics.sock");
    let address = Address::Unix(path.clone());
    let listener = Listener::bind(&address).unwrap();
    let mode = std::fs::metadata(path.parent().unwrap()).unwrap().mode();
    assert_eq!(mode & 0o777, 0o700, "who else may is the operator's choice");
    let board = Arc::new(Board::default());
    let server = listener.serve(board, Limits::DEFAULT).unwrap();
    let mut stream = UnixStream::connect(&path).unwrap();
    assert!(ask(&mut stream, "GET /metrics HTTP/1.1").starts_with("HTTP/1.1 200 OK"));
    drop(server);
    assert!(!path.exists());
}

#[test]
fn addresses_in_use_are_refused_and_stale_ones_taken() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("metrics.sock");
    let address = Address::Unix(path.clone());
    let first = Listener::bind(&address).unwrap();
    let refusal = Listener::bind(&address).unwrap_err();
    assert_eq!(refusal.to_string(), "another process listens there already");
    // As if it had been killed: the name stays.
    let Socket::Unix(socket, file) = first.socket else { panic!() };
    std::mem::forget(file);
    drop(socket);
    assert!(path.exists());
    drop(Listener::bind(&address).unwrap());
    std::fs::write(&path, "precious").unwrap();
    let refusal = Listener::bind(&address).unwrap_err();
    assert_eq!(refusal.to_string(), "a file that is no socket is there");
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "precious");

    let (_server, _, taken) = serving(1, Limits::DEFAULT);
    let refusal = Listener::bind(&Address::Tcp(taken)).unwrap_err();
    assert_eq!(refusal.kind(), io::ErrorKind::AddrInUse);
}
