//! The other end: reads a [`View`] from a daemon that listens. Blocks, within bounds; nothing is loaded for
//! it.

use crate::machine::proc::times_ns;
use crate::output::monitoring::{VcpuTimes, View, Waits};
use crate::settings::listen::Address;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with};
use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

/// A daemon that is busy with its scheduler answers all the same: its thread for this has nothing to do with
/// that.
const PATIENCE: Duration = Duration::from_secs(5);
/// The most bytes of a view. 512 VMs with 4096 vCPUs take a tenth of this.
const BYTES_MAX: usize = 64 << 20;

impl View {
    /// Reads the view that is served at this address.
    ///
    /// # Errors
    /// Nothing listens there, it may not be read, or the listener is none of ours.
    pub fn read(address: &Address) -> io::Result<Self> {
        Self::read_within(address, PATIENCE)
    }

    fn read_within(address: &Address, patience: Duration) -> io::Result<Self> {
        let deadline = Instant::now() + patience;
        let answer = match address {
            Address::Unix(path) => connect(path, patience).and_then(|stream| {
                ask(&stream, deadline, |left| {
                    stream.set_read_timeout(Some(left)).and_then(|()| stream.set_write_timeout(Some(left)))
                })
            }),
            Address::Tcp(address) => TcpStream::connect_timeout(address, patience).and_then(|stream| {
                ask(&stream, deadline, |left| {
                    stream.set_read_timeout(Some(left)).and_then(|()| stream.set_write_timeout(Some(left)))
                })
            }),
        };
        let answer = answer.map_err(|error| match error.kind() {
            ErrorKind::WouldBlock | ErrorKind::TimedOut => {
                io::Error::new(ErrorKind::TimedOut, format!("no whole answer within {patience:?}"))
            }
            _ => error,
        })?;
        of_answer(&answer)
            .ok_or_else(|| io::Error::other("what listens there is no microslice of this version"))
    }
}

/// Of vCPUs whose daemon doesn't tell: what the kernel counts of their threads, on this host and readable by
/// all (`/proc/PID/task/TID/schedstat`, Documentation/scheduler/sched-stats.rst: ran, waited, both in
/// nanoseconds).
pub fn read_thread_times(view: &mut View) {
    for vm in &mut view.vms {
        for vcpu in vm.vcpus.iter_mut().filter(|vcpu| vcpu.times.is_none()) {
            let times = times_ns(format!("/proc/{}/task/{}", vm.pid, vcpu.tid).as_ref());
            let waits = Waits::default();
            vcpu.times = times.map(|(ran_ns, ready_ns)| VcpuTimes { ran_ns, ready_ns, waits });
        }
    }
}

/// Connects to a socket. Its listener may accept nobody: then there is no room in its queue.
fn connect(path: &Path, patience: Duration) -> io::Result<UnixStream> {
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    set_socket_timeout(&socket, Timeout::Send, Some(patience))?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket.into())
}

/// Reads the answer, all of which has to come in time. `allow` bounds the next step.
fn ask(
    mut stream: impl Read + Write,
    deadline: Instant,
    allow: impl Fn(Duration) -> io::Result<()>,
) -> io::Result<Vec<u8>> {
    let allow_rest = || {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(ErrorKind::TimedOut.into()) } else { allow(left) }
    };
    allow_rest()?;
    // HTTP 1.0: the answer ends where the connection does.
    stream.write_all(b"GET /view HTTP/1.0\r\n\r\n")?;
    let mut answer = Vec::new();
    let mut piece = [0; 64 << 10];
    loop {
        allow_rest()?;
        match stream.read(&mut piece) {
            Ok(0) => return Ok(answer),
            Ok(bytes) => answer.extend_from_slice(&piece[..bytes]),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
        if answer.len() > BYTES_MAX {
            return Err(io::Error::other("no view is that long"));
        }
    }
}

/// `None`: it isn't ours.
fn of_answer(answer: &[u8]) -> Option<View> {
    const END_OF_HEAD: &[u8] = b"\r\n\r\n";
    let status = answer.split(|&byte| byte == b' ').nth(1)?;
    let head = answer.windows(END_OF_HEAD.len()).position(|four| four == END_OF_HEAD)?;
    let body = answer.get(head + END_OF_HEAD.len()..)?;
    if status == b"200" { serde_json::from_slice(body).ok() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::monitoring::{VcpuView, VmView};
    use proptest::prelude::*;

    #[test]
    fn an_answer_is_ours_or_none() {
        let answer = |status: &str, body: &str| {
            of_answer(format!("HTTP/1.0 {status}\r\ncontent-type: application/json\r\n\r\n{body}").as_bytes())
        };
        let view = View { source: "run".into(), ..View::default() };
        assert_eq!(answer("200 OK", &serde_json::to_string(&view).unwrap()), Some(view));
        assert_eq!(answer("404 Not Found", "{}"), None);
        assert_eq!(answer("200 OK", "<html>"), None);
    }

    #[test]
    fn an_answer_that_comes_drop_by_drop_has_one_deadline() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        let server = std::thread::spawn(move || {
            let (mut client, _) = listener.accept().unwrap();
            let _ = client.write_all(b"HTTP/1.0 200 OK\r\n\r\n");
            // Until the client is gone.
            while client.write_all(b" ").is_ok() {
                std::thread::sleep(Duration::from_millis(5));
            }
        });
        let error = View::read_within(&Address::Unix(path), Duration::from_millis(100)).unwrap_err();
        assert_eq!(error.to_string(), "no whole answer within 100ms");
        server.join().unwrap();
    }

    #[test]
    fn times_that_a_daemon_does_not_tell_are_the_kernels() {
        let own = |tid| VcpuView { tid, ..VcpuView::default() };
        let vm = VmView {
            pid: std::process::id(),
            vcpus: vec![own(std::process::id()), own(0)],
            ..VmView::default()
        };
        let mut view = View { vms: vec![vm], ..View::default() };
        read_thread_times(&mut view);
        let vcpus = &view.vms[0].vcpus;
        assert!(vcpus[0].times.is_some() && vcpus[1].times.is_none(), "{vcpus:?}");
    }

    proptest! {
        #[test]
        fn whatever_comes_is_read_without_a_panic(answer: Vec<u8>) {
            of_answer(&answer);
        }
    }
}
