//! The other end: reads a [`View`] from a daemon that listens. Blocks, within bounds; nothing is loaded for
//! it.

use crate::output::monitoring::{VcpuTimes, View, Waits};
use crate::settings::listen::Address;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// A daemon that is busy with its scheduler answers all the same: its thread for this has nothing to do with
/// that.
const PATIENCE: Duration = Duration::from_secs(5);
/// The most bytes of a view. 512 VMs with 4096 vCPUs take a tenth of this.
const BYTES_MAX: u64 = 64 << 20;

impl View {
    /// Reads the view that is served at this address.
    ///
    /// # Errors
    /// Nothing listens there, it may not be read, or the listener is none of ours.
    pub fn read(address: &Address) -> io::Result<Self> {
        let answer = match address {
            Address::Unix(path) => {
                let stream = UnixStream::connect(path)?;
                stream.set_read_timeout(Some(PATIENCE))?;
                stream.set_write_timeout(Some(PATIENCE))?;
                ask(stream)
            }
            Address::Tcp(address) => {
                let stream = TcpStream::connect_timeout(address, PATIENCE)?;
                stream.set_read_timeout(Some(PATIENCE))?;
                stream.set_write_timeout(Some(PATIENCE))?;
                ask(stream)
            }
        };
        let answer = answer.map_err(|error| match error.kind() {
            io::ErrorKind::WouldBlock => {
                io::Error::new(io::ErrorKind::TimedOut, "no answer within five seconds")
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
            let text = std::fs::read_to_string(format!("/proc/{}/task/{}/schedstat", vm.pid, vcpu.tid));
            vcpu.times = text.ok().and_then(|text| times_of(&text));
        }
    }
}

fn times_of(schedstat: &str) -> Option<VcpuTimes> {
    let mut numbers = schedstat.split_whitespace().map(str::parse);
    let (ran_ns, ready_ns) = (numbers.next()?.ok()?, numbers.next()?.ok()?);
    Some(VcpuTimes { ran_ns, ready_ns, waits: Waits::default() })
}

fn ask(mut stream: impl Read + Write) -> io::Result<Vec<u8>> {
    // HTTP 1.0: the answer ends where the connection does.
    stream.write_all(b"GET /view HTTP/1.0\r\n\r\n")?;
    let mut answer = Vec::new();
    stream.take(BYTES_MAX).read_to_end(&mut answer)?;
    Ok(answer)
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
    fn the_kernel_counts_what_a_thread_ran_and_waited() {
        let times = times_of("4000 300 12\n").unwrap();
        assert_eq!((times.ran_ns, times.ready_ns), (4000, 300));
        assert_eq!(times_of("0\n"), None);
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
