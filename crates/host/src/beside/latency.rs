//! `microslice boost-latency`: what a boost takes on this host, without guests.
//!
//! Problem.   How soon a boosted thread runs is the kernel's and the machine's: no two hosts are alike.
//! Mechanism. One thread on each pCPU is always busy. Another one, the *target*, hardly ever has a turn
//!            beside them: its nice value is 19. A busy thread asks for it, as a sibling of a vCPU would. The
//!            helper of `run` (`helper.rs`) boosts it and takes that back: the same thread, the same ledger,
//!            the same calls. The target sees when it runs; the busy thread of that pCPU sees when it
//!            goes on.
//! Limits.    Requests come through an eventfd, not from a BPF program through its ring, and where the vCPU
//!            is isn't looked up in a BPF map. A pCPU that a hypervisor takes away meanwhile looks like a
//!            slow kernel.

use crate::HostError;
use crate::beside::helper::check_real_time;
use crate::beside::helper::{Helper, Requests, Told, wait_for};
use crate::beside::ledger::Ledger;
use crate::beside::threads::{self, Former, Now};
use crate::interface::BoostEventKind;
use crate::machine::clock::monotonic_ns;
use crate::machine::preflight;
use microslice_policy::VcpuState;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, FromRawFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

pub use crate::beside::threads::Means;

/// More would be busy threads on more than a part of very large hosts; `cpu_set_t` ends there.
const PCPUS_MAX: usize = 1024;
/// A busy thread that hasn't looked at the clock for so long doesn't run.
const STILL_NS: u64 = 20_000;
/// A boost that hasn't come by then doesn't come: the helper was late, or the kernel refused it.
const ANSWER_PATIENCE_NS: u64 = 100_000_000;
/// A task that isn't ours runs on the pCPU by then.
const BACK_PATIENCE_NS: u64 = 10_000_000;
/// The least of an ordinary thread.
const NICE: i32 = 19;

/// A measurement to make.
#[derive(Debug, Clone)]
pub struct Plan {
    pub duration: Duration,
    /// Boosts a second; each comes half a period too early or too late at most.
    pub rate: u32,
    /// The slice of a boost.
    pub slice: Duration,
    pub means: Means,
    /// The control group whose thread is boosted: a folder of its file system. None: this process's.
    pub group: Option<PathBuf>,
}

/// Times of one boost, in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Boosted {
    /// From the request until the helper had heard it.
    pub heard: u64,
    /// From the request until the target ran.
    pub ran: u64,
    /// From when the helper began to take it back until the interrupted thread went on. 0: it went on before.
    pub back: u64,
}

/// The results of a measurement.
#[derive(Debug, Clone, Default)]
pub struct Measured {
    pub boosted: Vec<Boosted>,
    /// The helper's own counts.
    pub boosts: u64,
    pub returns: u64,
    /// The number of boosts that were by a deadline.
    pub by_deadline: u64,
    /// The kernel ran the target by itself before the helper came, or the helper came in vain.
    pub missed: u64,
    /// The kernel refused.
    pub refused: u64,
    /// Processor time of the helper.
    pub helper_ns: u64,
    pub seconds: f64,
    pub pcpus: usize,
    /// The part of the pCPUs' time that other processes and a hypervisor had: 0 to 1.
    pub others: f64,
}

impl Measured {
    /// Processor time of the helper for one boost and its return, in nanoseconds.
    pub fn helper_ns_per_boost(&self) -> f64 {
        self.helper_ns as f64 / self.boosts.max(1) as f64
    }
}

/// Where a request stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
enum Stage {
    Idle = 0,
    /// A busy thread writes a request.
    Claimed = 1,
    Asked = 2,
    Runs = 3,
    TakenBack = 4,
    /// It ran before it was boosted.
    Missed = 5,
}

/// The state that all threads share.
struct Scene {
    stage: AtomicU32,
    asked_at: AtomicU64,
    heard_at: AtomicU64,
    ran_at: AtomicU64,
    taken_back_at: AtomicU64,
    next_at: AtomicU64,
    /// When and where the target ran last, and which thread it is.
    seen_at: AtomicU64,
    pcpu: AtomicU32,
    tid: AtomicU32,
    start_ns: AtomicU64,
    is_told: AtomicBool,
    missed: AtomicU64,
    stop: AtomicBool,
    doorbell: File,
}

impl Scene {
    fn new() -> Result<Self, HostError> {
        // SAFETY: a plain system call without pointers.
        let descriptor = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if descriptor < 0 {
            return Err(HostError::broken(format!("eventfd: {}", std::io::Error::last_os_error())));
        }
        // SAFETY: a descriptor that was just made, and that nobody else has.
        let doorbell = unsafe { File::from_raw_fd(descriptor) };
        let (number, time) = (|| AtomicU32::new(0), || AtomicU64::new(0));
        Ok(Self {
            stage: number(),
            asked_at: time(),
            heard_at: time(),
            ran_at: time(),
            taken_back_at: time(),
            next_at: time(),
            seen_at: time(),
            pcpu: number(),
            tid: number(),
            start_ns: time(),
            is_told: AtomicBool::new(true),
            missed: time(),
            stop: AtomicBool::new(false),
            doorbell,
        })
    }

    fn is_at(&self, stage: Stage) -> bool {
        self.stage.load(Ordering::Acquire) == stage as u32
    }

    fn moves(&self, from: Stage, to: Stage) -> bool {
        let (from, to) = (from as u32, to as u32);
        self.stage.compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    fn ends(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// One that is busy asks for the target, if it waits and it is time to.
    fn ask(&self, now: u64, period: u64, random: &mut u64) {
        let waits = || now.saturating_sub(self.seen_at.load(Ordering::Relaxed)) > STILL_NS;
        if now < self.next_at.load(Ordering::Relaxed) || !waits() || !self.moves(Stage::Idle, Stage::Claimed)
        {
            return;
        }
        // Out of step with the kernel's ticks.
        *random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.next_at.store(now + period / 2 + (*random >> 33) % period, Ordering::Relaxed);
        self.is_told.store(false, Ordering::Relaxed);
        self.asked_at.store(monotonic_ns(), Ordering::Relaxed);
        self.stage.store(Stage::Asked as u32, Ordering::Release);
        let _ = (&self.doorbell).write(&1u64.to_ne_bytes());
    }

    /// Nothing comes of a request.
    fn give_up(&self, stage: Stage) {
        if self.moves(stage, Stage::Idle) {
            self.missed.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The busy thread of `pcpu` looks, and hadn't looked since `before`: what one boost took, once it is
    /// over.
    fn look(&self, pcpu: u32, now: u64, before: u64) -> Option<Boosted> {
        let taken_back = || self.taken_back_at.load(Ordering::Relaxed);
        for stage in [Stage::Asked, Stage::Missed] {
            if self.is_at(stage)
                && now.saturating_sub(self.asked_at.load(Ordering::Relaxed)) > ANSWER_PATIENCE_NS
            {
                self.give_up(stage);
            }
        }
        if !self.is_at(Stage::TakenBack) {
            return None;
        }
        if now.saturating_sub(taken_back()) > BACK_PATIENCE_NS {
            self.give_up(Stage::TakenBack);
            return None;
        }
        if self.pcpu.load(Ordering::Relaxed) != pcpu {
            return None;
        }
        let (asked, ran) = (self.asked_at.load(Ordering::Relaxed), self.ran_at.load(Ordering::Relaxed));
        // A thread that has looked since then went on before: the kernel had ended the boost by itself, as it
        // ends that of a deadline. Else it may have been interrupted right behind its look at the clock.
        let went_on_before = before >= taken_back();
        let back = if went_on_before { 0 } else { monotonic_ns().saturating_sub(taken_back()) };
        let boosted = Boosted {
            heard: self.heard_at.load(Ordering::Relaxed).saturating_sub(asked),
            ran: ran.saturating_sub(asked),
            back,
        };
        self.moves(Stage::TakenBack, Stage::Idle).then_some(boosted)
    }
}

/// The helper's view of the scene, which has one vCPU: slot 0.
struct Doorbell(Arc<Scene>);

impl Requests for Doorbell {
    fn wait(&self, patience: Duration) {
        wait_for(self.0.doorbell.as_raw_fd(), patience);
        let _ = (&self.0.doorbell).read(&mut [0; 8]);
    }

    fn next(&self) -> Option<Told> {
        let scene = &self.0;
        if !scene.is_at(Stage::Asked) || scene.is_told.swap(true, Ordering::Relaxed) {
            return None;
        }
        scene.heard_at.store(monotonic_ns(), Ordering::Relaxed);
        let (tid, start_ns) = (scene.tid.load(Ordering::Relaxed), scene.start_ns.load(Ordering::Relaxed));
        Some(Told { kind: BoostEventKind::Asked, slot: 0, tid, start_ns, for_bound: false, places: None })
    }

    fn state(&self, _: u32, _: u32) -> Option<VcpuState> {
        let is_at = |stage| self.0.is_at(stage);
        Some(match () {
            () if is_at(Stage::Asked) => VcpuState::Pending,
            () if is_at(Stage::Runs) => VcpuState::Micro,
            () => VcpuState::Running,
        })
    }

    fn note_taken_back(&self, _: u32) {
        self.0.taken_back_at.store(monotonic_ns(), Ordering::Relaxed);
        if !self.0.moves(Stage::Runs, Stage::TakenBack) {
            self.0.give_up(Stage::Asked);
            self.0.give_up(Stage::Missed);
        }
    }
}

/// Measures until the time is over, or `stop` is set.
///
/// # Errors
/// This process may not make a thread real-time, has one pCPU only, or may not put a thread into the group.
pub fn measure(plan: &Plan, stop: &AtomicBool) -> Result<Measured, HostError> {
    preflight::check_may_make_real_time()?;
    check_real_time()?;
    let pcpus = pcpus_of_ours();
    if pcpus.len() < 2 {
        return Err(HostError::refused(
            "this process may run on one pCPU only: a thread that may run on one only is never boosted",
        ));
    }
    let scene = Arc::new(Scene::new()?);
    let ledger = Arc::new(Ledger::of_our_own()?);
    let target = start_target(&scene, plan.group.clone())?;
    // A thread that the kernel refuses to boost would be asked for in vain all the time.
    let tried = threads::boost(scene.tid.load(Ordering::Relaxed), plan.means, plan.slice, || Ok(()));
    let ended = || {
        scene.stop.store(true, Ordering::Relaxed);
    };
    if let Err(cause) = tried {
        ended();
        let _ = target.join();
        return Err(HostError::refused(format!("the kernel boosts no such thread here: {cause}")));
    }
    let ordinary =
        Former { policy: libc::SCHED_OTHER as u32, nice: NICE, resets_on_fork: false, slice_ns: 0 };
    let _ = threads::make_ordinary(scene.tid.load(Ordering::Relaxed), ordinary);
    let helper = Helper::start(Doorbell(Arc::clone(&scene)), ledger, plan.slice, 1, plan.means);
    let mut helper = helper.inspect_err(|_| ended())?;
    let (began, used_before) = (Instant::now(), used_ns());
    let period = 1_000_000_000 / u64::from(plan.rate.max(1));
    let busy: Vec<std::thread::JoinHandle<_>> = pcpus
        .iter()
        .map(|&pcpu| {
            let scene = Arc::clone(&scene);
            std::thread::Builder::new().spawn(move || stay_busy(&scene, pcpu, period))
        })
        .collect::<Result<_, _>>()
        .inspect_err(|_| ended())
        .map_err(no_thread)?;
    while began.elapsed() < plan.duration && !stop.load(Ordering::Relaxed) && !helper.has_failed() {
        std::thread::sleep(Duration::from_millis(20));
    }
    let (seconds, used) = (began.elapsed().as_secs_f64(), used_ns() - used_before);
    ended();
    let failed = |_| HostError::broken("a thread of the measurement failed");
    let boosted: Result<Vec<_>, _> = busy.into_iter().map(std::thread::JoinHandle::join).collect();
    let boosted = boosted.map_err(failed)?.into_iter().flatten().collect();
    helper.stop();
    target.join().map_err(failed)?;
    let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    Ok(Measured {
        boosted,
        boosts: count(&helper.counts.boosts),
        returns: count(&helper.counts.returns),
        by_deadline: count(&helper.counts.by_deadline),
        missed: count(&scene.missed),
        refused: count(&helper.counts.refused) + count(&helper.counts.not_ours),
        helper_ns: count(&helper.counts.helper_ns),
        seconds,
        pcpus: pcpus.len(),
        others: (1.0 - used as f64 / (seconds * 1e9 * pcpus.len() as f64)).clamp(0.0, 1.0),
    })
}

fn no_thread(cause: std::io::Error) -> HostError {
    HostError::refused(format!("no thread can be made: {cause}"))
}

/// The thread that is boosted. It is there, in its group, when this returns.
fn start_target(
    scene: &Arc<Scene>,
    group: Option<PathBuf>,
) -> Result<std::thread::JoinHandle<()>, HostError> {
    let (tell, told) = std::sync::mpsc::channel();
    let scene = Arc::clone(scene);
    let target = std::thread::Builder::new().spawn(move || {
        // SAFETY: a plain system call without arguments.
        let tid = unsafe { libc::gettid() } as u32;
        let ready = group.map_or(Ok(()), |group| enter(&group, tid));
        scene.tid.store(tid, Ordering::Relaxed);
        scene.start_ns.store(threads::started_at_ns(tid).unwrap_or(0), Ordering::Relaxed);
        let goes_on = ready.is_ok();
        let _ = tell.send(ready);
        if goes_on {
            be_boosted(&scene);
        }
    });
    let target = target.map_err(no_thread)?;
    match told.recv() {
        Ok(ready) => ready.map(|()| target),
        Err(_) => Err(HostError::broken("the thread to be boosted ended at once")),
    }
}

/// Puts a thread into a control group, of the first version or of the second.
fn enter(group: &Path, tid: u32) -> Result<(), HostError> {
    let files = [group.join("tasks"), group.join("cgroup.threads")];
    let Some(file) = files.iter().find(|file| file.exists()) else {
        return Err(HostError::refused(format!(
            "{}: no control group: it has neither `tasks` nor `cgroup.threads`",
            group.display()
        )));
    };
    std::fs::write(file, tid.to_string())
        .map_err(|cause| HostError::refused(format!("{}: {cause}", file.display())))
}

/// The life of the target: it looks at the clock whenever it runs.
fn be_boosted(scene: &Scene) {
    while !scene.ends() {
        let now = monotonic_ns();
        scene.seen_at.store(now, Ordering::Relaxed);
        // SAFETY: a plain call without arguments.
        scene.pcpu.store(unsafe { libc::sched_getcpu() } as u32, Ordering::Relaxed);
        if !scene.is_at(Stage::Asked) {
            continue;
        }
        // It may have been interrupted right behind its look at the clock.
        let ran_at = monotonic_ns();
        scene.ran_at.store(ran_at, Ordering::Relaxed);
        // One that ran by itself, and was stopped and boosted only then, ran before the helper had heard.
        let is_boosted = matches!(threads::look_at(0), Ok(Now::Boosted))
            && ran_at >= scene.heard_at.load(Ordering::Relaxed);
        scene.moves(Stage::Asked, if is_boosted { Stage::Runs } else { Stage::Missed });
    }
}

/// The life of a busy thread: all boosts whose end it saw.
fn stay_busy(scene: &Scene, pcpu: usize, period: u64) -> Vec<Boosted> {
    pin_to(pcpu);
    let mut boosted = Vec::new();
    let (mut random, mut before) = (pcpu as u64, monotonic_ns());
    while !scene.ends() {
        let now = monotonic_ns();
        boosted.extend(scene.look(pcpu as u32, now, before));
        scene.ask(now, period, &mut random);
        before = now;
    }
    boosted
}

fn pcpus_of_ours() -> Vec<usize> {
    // SAFETY: integers only, for which zero is a value.
    let mut allowed: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel writes at most `size_of_val(&allowed)` bytes to `allowed`, which lives until the
    // call returns.
    let result = unsafe { libc::sched_getaffinity(0, size_of_val(&allowed), &raw mut allowed) };
    // SAFETY: it reads the set, and nothing else; all numbers have a place in it.
    let has = |pcpu: &usize| result == 0 && unsafe { libc::CPU_ISSET(*pcpu, &allowed) };
    (0..PCPUS_MAX).filter(has).collect()
}

fn pin_to(pcpu: usize) {
    // SAFETY: integers only, for which zero is a value.
    let mut one: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: the calling thread's own set, which lives until the calls return; the number has a place in it.
    unsafe {
        libc::CPU_SET(pcpu, &mut one);
        libc::sched_setaffinity(0, size_of_val(&one), &raw const one);
    }
}

/// Processor time of this process, in nanoseconds.
fn used_ns() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel writes one timespec to a live one.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &raw mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(scene: &Scene, at: u64) {
        scene.asked_at.store(at, Ordering::Relaxed);
        scene.stage.store(Stage::Asked as u32, Ordering::Relaxed);
    }

    #[test]
    fn only_the_interrupted_thread_sees_a_boost() {
        let scene = Scene::new().unwrap();
        let ends = |taken_back: u64| {
            asked(&scene, taken_back - 130);
            scene.heard_at.store(taken_back - 120, Ordering::Relaxed);
            scene.ran_at.store(taken_back - 100, Ordering::Relaxed);
            scene.taken_back_at.store(taken_back, Ordering::Relaxed);
            scene.pcpu.store(3, Ordering::Relaxed);
            scene.stage.store(Stage::TakenBack as u32, Ordering::Relaxed);
        };
        let now = monotonic_ns();
        ends(now);
        assert_eq!(scene.look(2, now, now - 105), None, "another pCPU");
        let seen = scene.look(3, now, now - 105).expect("interrupted");
        assert_eq!((seen.heard, seen.ran), (10, 30));
        assert!(seen.back > 0 && seen.back < monotonic_ns() - now, "by the clock, though it looked before");
        assert_eq!(scene.look(3, now, now - 105), None, "once");
        ends(now);
        assert_eq!(scene.look(3, now + 9, now + 5), Some(Boosted { heard: 10, ran: 30, back: 0 }));
    }

    #[test]
    fn what_nobody_answers_is_given_up_and_counted() {
        let scene = Scene::new().unwrap();
        asked(&scene, 0);
        assert_eq!(scene.look(0, ANSWER_PATIENCE_NS, 0), None);
        assert!(scene.is_at(Stage::Asked));
        assert_eq!(scene.look(0, ANSWER_PATIENCE_NS + 1, 0), None);
        assert!(scene.is_at(Stage::Idle));
        assert_eq!(scene.missed.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn a_waiting_thread_is_asked_for_once_a_period() {
        let scene = Arc::new(Scene::new().unwrap());
        let mut random = 1;
        scene.seen_at.store(1_000_000, Ordering::Relaxed);
        scene.ask(1_000_000 + STILL_NS, 1000, &mut random);
        assert!(scene.is_at(Stage::Idle));
        let now = 1_000_001 + STILL_NS;
        scene.ask(now, 1000, &mut random);
        let doorbell = Doorbell(Arc::clone(&scene));
        assert!(doorbell.waits(0, 0));
        assert_eq!(doorbell.next().map(|told| told.kind), Some(BoostEventKind::Asked));
        assert_eq!(doorbell.next(), None, "told once");
        scene.stage.store(Stage::Idle as u32, Ordering::Relaxed);
        scene.ask(now + 400, 1000, &mut random);
        assert!(scene.is_at(Stage::Idle), "not yet");
        scene.ask(now + 1500, 1000, &mut random);
        assert!(scene.is_at(Stage::Asked));
    }

    #[test]
    fn the_target_is_boosted_and_taken_back_by_either_means() {
        for means in [Means::RealTime, Means::Deadline] {
            let plan = Plan {
                duration: Duration::from_millis(300),
                rate: 500,
                slice: Duration::from_micros(100),
                means,
                group: None,
            };
            // A machine that is busy otherwise may leave no moment for one.
            let once = || measure(&plan, &AtomicBool::new(false));
            let boosts = |result: &Result<Measured, _>| result.as_ref().map_or(1, |measured| measured.boosts);
            match (0..9).map(|_| once()).find(|result| boosts(result) > 0).unwrap_or_else(once) {
                // Without the right to, or with one pCPU, there is nothing to be seen.
                Err(refused) => assert!(refused.is_refusal(), "{refused}"),
                Ok(measured) => {
                    assert!(measured.boosts > 0, "{measured:?}");
                    assert_eq!(measured.boosts, measured.returns, "{measured:?}");
                    let by_deadline = if means == Means::Deadline { measured.boosts } else { 0 };
                    assert_eq!(measured.by_deadline, by_deadline);
                    assert!(measured.boosted.iter().all(|boost| boost.heard <= boost.ran));
                }
            }
        }
    }
}
