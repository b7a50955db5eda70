//! Threads as the kernel schedules them: how one is made real-time for a moment, and gets back what it had.

use std::io;
use std::time::Duration;

/// The priority of boosted threads: the least that is real-time. A thread that the operator made real-time
/// goes before them, or as well.
pub const BOOST_PRIORITY: u32 = 1;
/// The priority of the helper, which interrupts the threads that it boosted.
pub const HELPER_PRIORITY: u32 = 2;
/// The priority of the watcher, which sleeps until the daemon is dead.
pub const WATCHER_PRIORITY: u32 = 3;

const SCHED_OTHER: u32 = libc::SCHED_OTHER as u32;
const SCHED_FIFO: u32 = libc::SCHED_FIFO as u32;
const SCHED_BATCH: u32 = libc::SCHED_BATCH as u32;
const SCHED_IDLE: u32 = libc::SCHED_IDLE as u32;
/// `include/uapi/linux/sched.h`.
const SCHED_DEADLINE: u32 = 6;
/// The runtime of a boost by deadline, in slices. It is long enough for the helper to take the boost back
/// before the kernel has the thread rest until its next period. A thread that rests can't be boosted again.
const SLICES_PER_RUNTIME: u64 = 2;
/// The period of a boost by deadline, in runtimes: half of a pCPU, if it isn't taken back. The kernel gives
/// at most 95 % of each pCPU away.
const RUNTIMES_PER_PERIOD: u64 = 2;
/// The kernel takes no shorter period (`sched_deadline_period_min_us`). The helper has this one.
const PERIOD_MIN_NS: u64 = 100_000;
/// The shortest period of a boost by deadline. The kernel runs the earliest deadline first, so it is some
/// times the helper's.
const BOOST_PERIOD_MIN_NS: u64 = 4 * PERIOD_MIN_NS;
/// `include/uapi/linux/sched.h`. Children of a boosted thread aren't real-time.
const SCHED_FLAG_RESET_ON_FORK: u64 = 1;

/// `struct sched_attr` of `include/uapi/linux/sched/types.h`, in its first version: no kernel asks for more.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct SchedAttr {
    size: u32,
    policy: u32,
    flags: u64,
    nice: i32,
    priority: u32,
    /// From 6.12 on also the slice of an ordinary thread, in nanoseconds.
    runtime: u64,
    deadline: u64,
    period: u64,
}

/// How an ordinary thread is scheduled: what it gets back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Former {
    /// `SCHED_OTHER`, `SCHED_BATCH` or `SCHED_IDLE`.
    pub policy: u32,
    pub nice: i32,
    pub resets_on_fork: bool,
    /// The slice that it asked the kernel for, in nanoseconds; 0 if none.
    pub slice_ns: u64,
}

/// How a waiting thread is made to run at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Means {
    /// `SCHED_FIFO` at the least priority. Where the kernel refuses that, `SCHED_DEADLINE`: control groups
    /// without real-time budget (`CONFIG_RT_GROUP_SCHED`) may have that all the same.
    RealTime,
    /// `SCHED_DEADLINE` at once, to measure it.
    Deadline,
}

/// How a thread is scheduled at the moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Now {
    Ordinary(Former),
    /// As a boost makes it.
    Boosted,
    /// By the operator: real-time, or with a deadline.
    NotOurs,
}

/// # Errors
/// `ESRCH`: there is no such thread.
pub fn look_at(tid: u32) -> io::Result<Now> {
    let mut attr = SchedAttr::default();
    // SAFETY: the kernel writes at most `size_of_val(&attr)` bytes to `attr`, which lives until the call
    // returns.
    let result =
        unsafe { libc::syscall(libc::SYS_sched_getattr, tid, &raw mut attr, size_of::<SchedAttr>(), 0) };
    #[cfg(test)]
    tests::CALLS.with(|calls| calls.set(calls.get() + 1));
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    let resets_on_fork = attr.flags & SCHED_FLAG_RESET_ON_FORK != 0;
    Ok(match attr.policy {
        SCHED_OTHER | SCHED_BATCH | SCHED_IDLE => Now::Ordinary(Former {
            policy: attr.policy,
            nice: attr.nice,
            resets_on_fork,
            slice_ns: attr.runtime,
        }),
        SCHED_FIFO if attr.priority == BOOST_PRIORITY && resets_on_fork => Now::Boosted,
        SCHED_DEADLINE if resets_on_fork && is_of_a_boost(&attr) => Now::Boosted,
        _ => Now::NotOurs,
    })
}

fn is_of_a_boost(attr: &SchedAttr) -> bool {
    attr.deadline == attr.period && attr.period == period_of(attr.runtime)
}

fn period_of(runtime_ns: u64) -> u64 {
    (runtime_ns * RUNTIMES_PER_PERIOD).max(BOOST_PERIOD_MIN_NS)
}

/// Returns the number of the pCPU that the calling thread runs on.
pub fn own_pcpu() -> u32 {
    // SAFETY: a plain call without arguments.
    unsafe { libc::sched_getcpu() as u32 }
}

/// Moves the calling thread to a pCPU, which it may leave again at once.
///
/// # Errors
/// It may not run there, or has a deadline.
pub fn move_to(pcpu: u32) -> io::Result<()> {
    // SAFETY: integers only, for which zero is a value.
    let mut allowed: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    let (mut one, bytes) = (allowed, size_of_val(&allowed));
    if pcpu as usize >= libc::CPU_SETSIZE as usize {
        return Err(io::ErrorKind::Unsupported.into());
    }
    // SAFETY: both sets live until the calls return, and the number has a place in them.
    let moved = unsafe {
        libc::CPU_SET(pcpu as usize, &mut one);
        libc::sched_getaffinity(0, bytes, &raw mut allowed) == 0
            && libc::sched_setaffinity(0, bytes, &raw const one) == 0
            && libc::sched_setaffinity(0, bytes, &raw const allowed) == 0
    };
    if moved { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Real-time, with children that aren't. Thread 0 is the calling one.
///
/// # Errors
/// `EPERM`: no right to, or a control group without real-time budget; `ESRCH`: there is no such thread.
pub fn make_real_time(tid: u32, priority: u32) -> io::Result<()> {
    set(
        tid,
        SchedAttr { policy: SCHED_FIFO, priority, flags: SCHED_FLAG_RESET_ON_FORK, ..SchedAttr::default() },
    )
}

/// Boosts a waiting thread for `slice`. True: by a deadline, which the kernel ends by itself after some
/// slices. `before` is done before a deadline is given, and without it none is.
///
/// # Errors
/// As [`make_real_time`], or of `before`. A deadline is refused, too, where the thread may not run on every
/// pCPU. So it is where deadlines have all that they may have of the host.
pub fn boost(
    tid: u32,
    means: Means,
    slice: Duration,
    before: impl FnOnce() -> io::Result<()>,
) -> io::Result<bool> {
    let by_deadline = || before().and_then(|()| give_deadline(tid, slice)).map(|()| true);
    if means == Means::Deadline {
        return by_deadline();
    }
    match make_real_time(tid, BOOST_PRIORITY) {
        Ok(()) => Ok(false),
        Err(refused) if refused.raw_os_error() == Some(libc::EPERM) => by_deadline().map_err(|_| refused),
        Err(cause) => Err(cause),
    }
}

fn give_deadline(tid: u32, slice: Duration) -> io::Result<()> {
    let runtime = slice.as_nanos() as u64 * SLICES_PER_RUNTIME;
    let period = period_of(runtime);
    let flags = SCHED_FLAG_RESET_ON_FORK;
    let policy = SCHED_DEADLINE;
    set(tid, SchedAttr { policy, flags, runtime, deadline: period, period, ..SchedAttr::default() })
}

/// Gives the calling thread a deadline that is earlier than those of boosts. No priority goes before a
/// deadline: without one of its own the helper waits for the thread that it has boosted until the next tick.
///
/// # Errors
/// As [`boost`].
pub fn go_before_deadlines() -> io::Result<()> {
    let (policy, flags) = (SCHED_DEADLINE, SCHED_FLAG_RESET_ON_FORK);
    let (runtime, period) = (PERIOD_MIN_NS / 2, PERIOD_MIN_NS);
    set(0, SchedAttr { policy, flags, runtime, deadline: period, period, ..SchedAttr::default() })
}

/// How it was scheduled before.
///
/// # Errors
/// As [`make_real_time`].
pub fn make_ordinary(tid: u32, former: Former) -> io::Result<()> {
    let flags = if former.resets_on_fork { SCHED_FLAG_RESET_ON_FORK } else { 0 };
    let Former { policy, nice, slice_ns: runtime, .. } = former;
    set(tid, SchedAttr { policy, nice, flags, runtime, ..SchedAttr::default() })
}

fn set(tid: u32, attr: SchedAttr) -> io::Result<()> {
    let attr = SchedAttr { size: size_of::<SchedAttr>() as u32, ..attr };
    // SAFETY: the kernel reads `attr.size` bytes from `attr`, which lives until the call returns.
    let result = unsafe { libc::syscall(libc::SYS_sched_setattr, tid, &raw const attr, 0) };
    #[cfg(test)]
    tests::CALLS.with(|calls| calls.set(calls.get() + 1));
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Was the thread with this ID started at `start_ns` of the boot clock? Else the ID is another thread's by
/// now.
pub fn is_the_one(tid: u32, start_ns: u64) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{tid}/stat")).unwrap_or_default();
    started_at_ticks(&stat) == Some(start_ns / NS_PER_TICK)
}

/// When the thread with this ID was started, in nanoseconds of the boot clock, as exactly as `/proc` says it.
pub fn started_at_ns(tid: u32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{tid}/stat")).ok()?;
    started_at_ticks(&stat).map(|ticks| ticks * NS_PER_TICK)
}

/// `/proc` counts in hundredths of a second on every x86 kernel (`USER_HZ`).
const NS_PER_TICK: u64 = 10_000_000;

/// The 22nd field of `/proc/PID/stat`. A name may hold anything, parentheses and spaces too.
fn started_at_ticks(stat: &str) -> Option<u64> {
    const START_TIME: usize = 22 - 3;
    let (_, rest) = stat.rsplit_once(')')?;
    rest.split_whitespace().nth(START_TIME)?.parse().ok()
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use std::cell::Cell;

    thread_local! {
        /// How often this thread has asked the kernel how a thread is scheduled, or told it.
        pub static CALLS: Cell<u32> = const { Cell::new(0) };
    }

    #[test]
    fn the_layout_is_the_kernels_first_version() {
        assert_eq!(size_of::<SchedAttr>(), 48); // SCHED_ATTR_SIZE_VER0
    }

    #[test]
    fn our_thread_is_ordinary_and_known_by_its_start() {
        // SAFETY: a plain system call without arguments.
        let tid = unsafe { libc::gettid() } as u32;
        assert!(matches!(look_at(tid).unwrap(), Now::Ordinary(_)));
        let stat = std::fs::read_to_string(format!("/proc/{tid}/stat")).unwrap();
        let ticks = started_at_ticks(&stat).unwrap();
        assert!(is_the_one(tid, ticks * NS_PER_TICK + 5));
        assert!(!is_the_one(tid, (ticks + 1) * NS_PER_TICK));
        assert_eq!(look_at(u32::MAX >> 1).unwrap_err().raw_os_error(), Some(libc::ESRCH));
    }

    #[test]
    fn a_start_time_is_read_behind_any_name() {
        let zeros = |count: usize| vec!["0"; count].join(" ");
        assert_eq!(started_at_ticks(&format!("7 (a) b) S {} 4321 0", zeros(18))), Some(4321));
        assert_eq!(started_at_ticks("7 (a"), None);
        assert_eq!(started_at_ticks(""), None);
    }

    #[test]
    fn a_boosted_thread_gets_back_what_it_had() {
        std::thread::spawn(|| {
            let Now::Ordinary(former) = look_at(0).unwrap() else { panic!("a test is ordinary") };
            let niced = Former { nice: former.nice + 3, ..former };
            make_ordinary(0, niced).unwrap();
            match make_real_time(0, BOOST_PRIORITY) {
                // Without the right to, there is nothing to be seen.
                Err(refused) => assert_eq!(refused.raw_os_error(), Some(libc::EPERM)),
                Ok(()) => {
                    assert_eq!(look_at(0).unwrap(), Now::Boosted);
                    make_ordinary(0, niced).unwrap();
                    let Now::Ordinary(again) = look_at(0).unwrap() else { panic!("not given back") };
                    assert_eq!((again.policy, again.nice), (niced.policy, niced.nice));
                }
            }
        })
        .join()
        .unwrap();
    }
}
