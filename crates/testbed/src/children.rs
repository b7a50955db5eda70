//! Child processes that cannot outlive this one.
//!
//! The kernel's parent-death signal fires when the *thread* that forked ends. So one thread forks all
//! children, and lives as long as the process. Each child leads a process group of its own: a Ctrl-C at the
//! terminal reaches only this process, which then decides in which order things end.

use std::io;
use std::os::fd::RawFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Mutex, OnceLock};

type Order = (Command, Sender<io::Result<Child>>);

/// Starts `command`; the descriptors in `inherited` stay open in it, under the same numbers.
pub fn spawn(mut command: Command, inherited: Vec<RawFd>) -> io::Result<Child> {
    static NURSERY: OnceLock<Mutex<Sender<Order>>> = OnceLock::new();
    let nursery = NURSERY.get_or_init(|| {
        let (sender, orders) = channel::<Order>();
        // Without the thread nobody takes orders: each is refused.
        let _ = std::thread::Builder::new().spawn(move || {
            for (mut command, reply) in orders {
                let _ = reply.send(command.spawn());
            }
        });
        Mutex::new(sender)
    });
    command.process_group(0);
    // SAFETY: between fork and exec only async-signal-safe calls are made: prctl and fcntl.
    unsafe {
        command.pre_exec(move || {
            if libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) != 0 {
                return Err(io::Error::last_os_error());
            }
            for &fd in &inherited {
                if libc::fcntl(fd, libc::F_SETFD, 0) < 0 {
                    return Err(io::Error::last_os_error());
                }
            }
            Ok(())
        });
    }
    let (reply, answer) = channel();
    let sender = nursery.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone();
    let gone = |_| io::Error::other("there is no thread that starts children (see `ulimit -u`)");
    sender.send((command, reply)).map_err(|_| gone(()))?;
    answer.recv().map_err(|_| gone(()))?
}
