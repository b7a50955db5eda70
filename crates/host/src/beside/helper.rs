//! The helper: the one thread that boosts, and takes back.
//!
//! Problem.   A vCPU that is needed now waits behind others for milliseconds, and no BPF program may say
//!            which task runs.
//! Mechanism. The BPF side wakes this thread through a ring. The thread makes the vCPU's thread real-time, at
//!            the least priority. It makes it ordinary again after a micro slice, or once the BPF side says
//!            that it is served. It is real-time itself, by one step more: it runs at once, and interrupts
//!            the threads that it boosted. Each boost is in the ledger before it is made. A thread whose
//!            control group has no real-time budget gets a deadline instead (`threads.rs`, `Means`). It runs
//!            on its own pCPU, or, if the helper is there, on one that the kernel's real-time balancing
//!            finds. So the helper chooses its pCPU before it boosts (`Places`).
//! Limits.    A slice counts from the boost, not from when the thread ran: the difference is the kernel's
//!            latency. One that hasn't run after WAITS_MAX slices loses its boost.

use crate::HostError;
use crate::beside::ledger::{Entry, Ledger};
use crate::beside::threads::{self, BOOST_PRIORITY, HELPER_PRIORITY, Means, Now};
use crate::interface::{ASKED_BY_ITSELF, BoostEventKind};
use microslice_policy::VcpuState;
use std::collections::VecDeque;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How many micro slices a boosted thread may wait for a pCPU.
const WAITS_MAX: u32 = 10;
/// How often it looks whether it shall end.
const LOOK: Duration = Duration::from_millis(50);

/// An event that the helper is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Told {
    pub kind: BoostEventKind,
    /// The slot of the vCPU.
    pub slot: u32,
    pub tid: u32,
    /// When the thread was started, in nanoseconds of the boot clock.
    pub start_ns: u64,
    /// Its VM's bound asks, not a hint: it isn't forgotten while there is no room for it.
    pub for_bound: bool,
    /// `None`: the helper boosts from where it is.
    pub places: Option<Places>,
}

/// The pCPUs that a request is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Places {
    /// Where it was asked for: whoever asks runs there. `ASKED_BY_ITSELF`: it was stopped in need.
    pub asked_on: u32,
    /// Where its thread waits.
    pub waits_on: u32,
}

impl Places {
    /// Returns where the helper has to be, if not on `own`. The kernel pushes a boosted thread away from the
    /// helper's pCPU, and it stays where it is pushed. So it is pushed off the pCPU of its own VM's vCPU that
    /// asks for it, and never onto it.
    fn better_than(self, own: u32) -> Option<u32> {
        if self.asked_on == ASKED_BY_ITSELF {
            return None;
        }
        let is_pushed = self.waits_on == own;
        let should_be = self.waits_on == self.asked_on;
        (is_pushed != should_be).then_some(self.asked_on)
    }
}

/// The helper's ears and eyes: the BPF side, or the measurement of what a boost takes (`latency.rs`).
pub trait Requests: Send + 'static {
    /// Until something is told, or for so long.
    fn wait(&self, patience: Duration);

    /// Returns the next event that hasn't been heard yet, in order.
    fn next(&self) -> Option<Told>;

    /// Where the vCPU in `slot` is, if thread `tid` still runs it.
    fn state(&self, slot: u32, tid: u32) -> Option<VcpuState>;

    /// Asks for whoever has waited for too long. Returns in how long to look again; `None`: nobody's wait is
    /// bounded.
    fn look_at_waits(&mut self) -> Option<Duration> {
        None
    }

    /// The boost was taken back: a thread that is stopped waits like any other from now on.
    fn settle(&self, _slot: u32) {}

    /// Hears that the boost ends now.
    fn note_taken_back(&self, slot: u32);

    /// Does it still wait for its boost?
    fn waits(&self, slot: u32, tid: u32) -> bool {
        self.state(slot, tid) == Some(VcpuState::Pending)
    }
}

/// Waits until there is something to read, or for so long, in nanoseconds. A signal or an error ends that,
/// too.
pub fn wait_for(descriptor: RawFd, patience: Duration) {
    if patience.is_zero() {
        return;
    }
    let mut descriptor = libc::pollfd { fd: descriptor, events: libc::POLLIN, revents: 0 };
    let patience = libc::timespec {
        tv_sec: patience.as_secs() as libc::time_t,
        tv_nsec: libc::c_long::from(patience.subsec_nanos() as i32),
    };
    // SAFETY: one descriptor and one timespec, which live until the call returns.
    unsafe { libc::ppoll(&raw mut descriptor, 1, &raw const patience, std::ptr::null()) };
}

/// Counts of the helper. boosts = returns + boosts in flight.
#[derive(Debug, Default)]
pub struct Counts {
    pub boosts: AtomicU64,
    /// Taken back, or found gone.
    pub returns: AtomicU64,
    /// Asked for, but the thread ran, slept, or was gone when the helper came.
    pub late: AtomicU64,
    /// As many threads are boosted as there may be at a time.
    pub crowded: AtomicU64,
    /// The operator made the thread real-time meanwhile.
    pub not_ours: AtomicU64,
    /// The number of boosts that were by a deadline, because the kernel refused real-time priority.
    pub by_deadline: AtomicU64,
    /// The kernel said no, to a deadline as well: a security module, or a thread that may not run everywhere.
    pub refused: AtomicU64,
    /// Processor time of this thread, in nanoseconds.
    pub helper_ns: AtomicU64,
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// One that is under way.
struct Boost {
    slot: u32,
    entry: Entry,
    place: usize,
    until: Instant,
    waits: u32,
}

/// The running thread.
pub struct Helper {
    stop: Arc<AtomicBool>,
    pub counts: Arc<Counts>,
    thread: Option<JoinHandle<()>>,
}

impl Helper {
    /// `slice`: of a boost, by these means; at most `boosts_max` at a time.
    ///
    /// # Errors
    /// No thread, or it may not be real-time.
    pub fn start(
        events: impl Requests,
        ledger: Arc<Ledger>,
        slice: Duration,
        boosts_max: usize,
        means: Means,
    ) -> Result<Self, HostError> {
        let (stop, counts) = (Arc::new(AtomicBool::new(false)), Arc::new(Counts::default()));
        let mut work = Work {
            events,
            ledger,
            counts: Arc::clone(&counts),
            slice,
            boosts_max,
            means,
            boosts: Vec::with_capacity(boosts_max),
            later: VecDeque::new(),
            goes_before_deadlines: false,
        };
        let asked_to_stop = Arc::clone(&stop);
        let (tell, told) = std::sync::mpsc::channel();
        let run = move || {
            let is_real_time = threads::make_real_time(0, HELPER_PRIORITY);
            let goes_on = is_real_time.is_ok();
            // The daemon waits for this.
            let _ = tell.send(is_real_time);
            if goes_on {
                work.serve(&asked_to_stop);
            }
        };
        let thread = std::thread::Builder::new().name("boost-helper".into()).spawn(run);
        let thread = thread.map_err(|cause| HostError::broken(format!("no thread that boosts: {cause}")))?;
        match told.recv() {
            Ok(Ok(())) => Ok(Self { stop, counts, thread: Some(thread) }),
            Ok(Err(cause)) => Err(refuse_real_time(&cause)),
            Err(_) => Err(HostError::broken("the thread that boosts ended at once")),
        }
    }

    /// It never ends by itself, unless it fails.
    pub fn has_failed(&self) -> bool {
        self.thread.as_ref().is_some_and(JoinHandle::is_finished)
    }

    /// Takes all back, and ends.
    pub fn stop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // One that failed has left its boosts in the ledger: the daemon settles that.
            let _ = thread.join();
        }
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Nothing that was loaded could help then.
///
/// # Errors
/// This process may not make a thread real-time.
pub fn check_real_time() -> Result<(), HostError> {
    let thread = std::thread::Builder::new().spawn(|| threads::make_real_time(0, BOOST_PRIORITY));
    let tried = thread.map_err(|cause| HostError::refused(format!("no thread can be made: {cause}")))?.join();
    match tried {
        Ok(result) => result.map_err(|cause| refuse_real_time(&cause)),
        Err(_) => Err(HostError::broken("no thread to try real-time scheduling with")),
    }
}

fn refuse_real_time(cause: &std::io::Error) -> HostError {
    HostError::refused(format!(
        "no thread can be made real-time here ({cause}): its control group may have no real-time budget \
         (CONFIG_RT_GROUP_SCHED: cpu.rt_runtime_us), or a sandbox forbids it (systemd: RestrictRealtime=)"
    ))
}

struct Work<R> {
    events: R,
    ledger: Arc<Ledger>,
    counts: Arc<Counts>,
    slice: Duration,
    boosts_max: usize,
    means: Means,
    boosts: Vec<Boost>,
    /// Those that bounds ask for while as many are boosted as may be, the longest wait first.
    later: VecDeque<Told>,
    /// The helper goes before threads with deadlines: since the first boost by one.
    goes_before_deadlines: bool,
}

impl<R: Requests> Work<R> {
    fn serve(&mut self, stop: &AtomicBool) {
        let mut look_at = Some(Instant::now());
        let mut counted_at = Instant::now();
        while !stop.load(Ordering::Relaxed) {
            let now = Instant::now();
            if look_at.is_some_and(|at| at <= now) {
                look_at = self.events.look_at_waits().map(|patience| now + patience);
            }
            let next = self.boosts.iter().map(|boost| boost.until).chain(look_at).min();
            let patience = next.map_or(LOOK, |until| until.saturating_duration_since(now)).min(LOOK);
            self.events.wait(patience);
            while let Some(told) = self.events.next() {
                self.hear(told);
            }
            self.end_slices(Instant::now());
            while self.boosts.len() < self.boosts_max
                && let Some(told) = self.later.pop_front()
            {
                self.boost(told);
            }
            // A system call: not at each boost.
            if counted_at.elapsed() >= LOOK {
                counted_at = Instant::now();
                self.counts.helper_ns.store(thread_ns(), Ordering::Relaxed);
            }
        }
        while !self.boosts.is_empty() {
            self.take_back(0);
        }
        self.counts.helper_ns.store(thread_ns(), Ordering::Relaxed);
    }

    fn hear(&mut self, told: Told) {
        match told.kind {
            BoostEventKind::Asked => self.boost(told),
            BoostEventKind::Served => {
                let is_this = |boost: &Boost| boost.slot == told.slot && boost.entry.tid == told.tid;
                if let Some(at) = self.boosts.iter().position(is_this) {
                    self.take_back(at);
                }
            }
        }
    }

    fn boost(&mut self, told: Told) {
        if !self.events.waits(told.slot, told.tid) {
            return count(&self.counts.late);
        }
        if self.boosts.iter().any(|boost| boost.entry.tid == told.tid) {
            return;
        }
        if self.boosts.len() >= self.boosts_max {
            // A hint's need is over by then; a bound's isn't. There are no more of these than vCPUs.
            if told.for_bound {
                return self.later.push_back(told);
            }
            return count(&self.counts.crowded);
        }
        let former = match threads::look_at(told.tid) {
            Ok(Now::Ordinary(former)) => former,
            Ok(_) => return count(&self.counts.not_ours),
            Err(_) => return count(&self.counts.late),
        };
        if let Some(pcpu) = told.places.and_then(|places| places.better_than(threads::own_pcpu())) {
            // With a deadline it may not: then it boosts from where it is.
            let _ = threads::move_to(pcpu);
        }
        let entry = Entry { tid: told.tid, start_ns: told.start_ns, former };
        let Some(place) = self.ledger.enter(entry) else { return count(&self.counts.crowded) };
        let goes_before = &mut self.goes_before_deadlines;
        match threads::boost(told.tid, self.means, self.slice, || go_before_deadlines(goes_before)) {
            Ok(by_deadline) => {
                count(&self.counts.boosts);
                if by_deadline {
                    count(&self.counts.by_deadline);
                }
                let until = Instant::now() + self.slice;
                self.boosts.push(Boost { slot: told.slot, entry, place, until, waits: 0 });
            }
            Err(cause) => {
                self.ledger.strike(place);
                let is_gone = cause.raw_os_error() == Some(libc::ESRCH);
                count(if is_gone { &self.counts.late } else { &self.counts.refused });
            }
        }
    }

    fn end_slices(&mut self, now: Instant) {
        let mut at = 0;
        while let Some(boost) = self.boosts.get_mut(at) {
            if boost.until > now {
                at += 1;
                continue;
            }
            let still_waits = self.events.state(boost.slot, boost.entry.tid) == Some(VcpuState::Pending);
            if still_waits && boost.waits < WAITS_MAX {
                boost.waits += 1;
                boost.until = now + self.slice;
                at += 1;
            } else {
                self.take_back(at);
            }
        }
    }

    fn take_back(&mut self, at: usize) {
        let boost = self.boosts.swap_remove(at);
        // Before it is taken back: what it runs from now on isn't real-time's.
        self.events.note_taken_back(boost.slot);
        // One that the operator has made something else keeps that; one that is gone needs nothing.
        let result = match threads::look_at(boost.entry.tid) {
            Ok(Now::Boosted) => threads::make_ordinary(boost.entry.tid, boost.entry.former),
            _ => Ok(()),
        };
        if result.is_err_and(|cause| cause.raw_os_error() != Some(libc::ESRCH)) {
            // It stays in the ledger, for another that may: it is no return.
            return;
        }
        self.events.settle(boost.slot);
        self.ledger.strike(boost.place);
        count(&self.counts.returns);
    }
}

/// While the kernel refuses this, boosts by deadline would last until its next tick: there are none.
fn go_before_deadlines(is_done: &mut bool) -> std::io::Result<()> {
    if !*is_done {
        threads::go_before_deadlines()?;
        *is_done = true;
    }
    Ok(())
}

fn thread_ns() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel writes one timespec to a live one.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    /// One request, for a thread that waits until it is boosted. Counts the helper's waits.
    struct OneRequest {
        tid: u32,
        is_told: Cell<bool>,
        waits: Arc<AtomicU64>,
        stop: Arc<AtomicBool>,
    }

    impl Requests for OneRequest {
        fn wait(&self, patience: Duration) {
            self.waits.fetch_add(u64::from(!patience.is_zero()), Ordering::Relaxed);
            std::thread::sleep(patience.min(Duration::from_millis(1)));
        }

        fn next(&self) -> Option<Told> {
            let kind = BoostEventKind::Asked;
            let told = Told { kind, slot: 0, tid: self.tid, start_ns: 0, for_bound: false, places: None };
            (!self.is_told.replace(true)).then_some(told)
        }

        fn state(&self, _: u32, _: u32) -> Option<VcpuState> {
            let is_boosted = matches!(threads::look_at(self.tid), Ok(Now::Boosted));
            // Not one of the helper's calls.
            threads::tests::CALLS.with(|calls| calls.set(calls.get() - 1));
            Some(if is_boosted { VcpuState::Micro } else { VcpuState::Pending })
        }

        fn note_taken_back(&self, _: u32) {
            self.stop.store(true, Ordering::Relaxed);
        }
    }

    #[test]
    fn a_boost_takes_four_system_calls_and_two_waits() {
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let (tell, told) = std::sync::mpsc::channel();
        let target = std::thread::spawn(move || {
            // SAFETY: a plain system call without arguments.
            let _ = tell.send(unsafe { libc::gettid() } as u32);
            let _ = ended.recv();
        });
        let (waits, stop) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let tid = told.recv().unwrap();
        let (is_told, counted) = (Cell::new(false), Arc::clone(&waits));
        let mut work = Work {
            events: OneRequest { tid, is_told, waits: counted, stop: Arc::clone(&stop) },
            ledger: Arc::new(Ledger::of_our_own().unwrap()),
            counts: Arc::new(Counts::default()),
            slice: Duration::from_micros(100),
            boosts_max: 1,
            means: Means::RealTime,
            boosts: Vec::new(),
            later: VecDeque::new(),
            goes_before_deadlines: false,
        };
        if check_real_time().is_ok() {
            let before = threads::tests::CALLS.with(Cell::get);
            work.serve(&stop);
            assert_eq!(work.counts.returns.load(Ordering::Relaxed), 1);
            assert_eq!(threads::tests::CALLS.with(Cell::get) - before, 4);
            // On a busy machine the slice may be over before the second one.
            assert!(waits.load(Ordering::Relaxed) <= 2);
        }
        drop(end);
        target.join().unwrap();
    }

    #[test]
    fn a_boosted_thread_is_pushed_off_its_callers_pcpu_only() {
        let better = |asked_on: u32, waits_on: u32, own: u32| Places { asked_on, waits_on }.better_than(own);
        assert_eq!(better(1, 0, 0), Some(1), "it would be pushed, perhaps onto its caller");
        assert_eq!(better(1, 0, 1), None);
        assert_eq!(better(1, 0, 2), None, "nobody is in its way");
        assert_eq!(better(1, 1, 0), Some(1), "it would take its caller's pCPU");
        assert_eq!(better(1, 1, 1), None);
        assert_eq!(better(ASKED_BY_ITSELF, 0, 0), None, "nobody waits elsewhere");
    }
}
