//! The one emulated host of the moment, and the guests on it: kept for the next test, as long as that wants
//! the same.

use super::{PATIENCE, lanes};
use microslice_testbed::kernels::DEFAULT_GUEST;
use microslice_testbed::{Guest, GuestSpec, Host, Standstill, Testbed, built_binary};
use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

/// A kernel that no guest of these tests runs, though the default host has its image.
pub const OTHER_KERNEL: &str = "6.1-cloud";

/// How often a test is run at most, where emulation ended a machine.
const TRIES: u32 = 3;

/// What is kept.
struct Stage {
    machine: String,
    /// What `guests` were asked to be.
    specs: Vec<GuestSpec>,
    /// They go before their host does: otherwise they would seem to have ended by themselves.
    guests: Vec<Guest>,
    host: Host,
}

static STAGE: Mutex<Option<Stage>> = Mutex::new(None);

/// Runs `test` on the default host, without guests.
pub fn on_host(test: impl Fn(&Host)) {
    with_guests(&[], |host, _| test(host));
}

/// Runs `test` on the default host, with these guests. They may have served other tests before: see
/// [`Stage`].
pub fn with_guests(specs: &[GuestSpec], test: impl Fn(&Host, &[Guest])) {
    let testbed = || {
        let testbed = Testbed::new("6.18").expect("a series");
        testbed
            .with_guest_kernels(&[DEFAULT_GUEST, OTHER_KERNEL])
            .expect("guest kernels")
            .with_guest_modules()
    };
    on_machine("the default host", testbed, specs, test);
}

/// Likewise, on the host called `machine`, which `testbed` makes.
pub fn on_machine(
    machine: &str,
    testbed: impl Fn() -> Testbed,
    specs: &[GuestSpec],
    test: impl Fn(&Host, &[Guest]),
) {
    assert_time_is_left();
    // A test that failed left a usable stage, or a host that is looked at below.
    let mut stage = STAGE.lock().unwrap_or_else(PoisonError::into_inner);
    let _turn = {
        let _still = left_guests_stand_still(stage.as_ref());
        lanes::beside_the_other_lane()
    };
    if stage.as_ref().is_none_or(|stage| stage.machine != machine || !stage.host.answers()) {
        // One testbed at a time: the former host goes first.
        *stage = None;
        let host = boot(testbed());
        *stage = Some(Stage { machine: machine.to_owned(), host, specs: Vec::new(), guests: Vec::new() });
    }
    unless_a_machine_is_lost(&mut stage, specs, test);
}

/// Ends a behaviour that would begin after the moment that `MICROSLICE_TESTS_UNTIL` names, in seconds since
/// 1970. scripts/test.sh takes the words for no failure, and names who was left out.
fn assert_time_is_left() {
    let until = std::env::var("MICROSLICE_TESTS_UNTIL").ok().and_then(|until| until.parse().ok());
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock that is set").as_secs();
    if until.is_some_and(|until: u64| now >= until) {
        print("LEFT OUT: the time for tests is over");
        panic!("left out");
    }
}

/// Runs `test`, and again on a fresh host if it failed while a machine was lost: emulation loses one now and
/// then (docs/explanation/testbed.md). That is when a guest ended by itself, or when a CPU of the host stood
/// still. It is also when the host met a breakpoint that nobody set, or stopped answering. All is printed. A
/// failure among living machines is a failure, and so is one whose host complained of anything else.
fn unless_a_machine_is_lost(
    stage: &mut MutexGuard<'_, Option<Stage>>,
    specs: &[GuestSpec],
    test: impl Fn(&Host, &[Guest]),
) {
    let stage = stage.as_mut().expect("a host");
    for tries in 1.. {
        let guests_before = stage.host.lost_guests();
        let Err(failure) = catch_unwind(AssertUnwindSafe(|| {
            stage.ask_for(specs);
            test(&stage.host, &stage.guests);
        })) else {
            return;
        };
        // One that ended by itself is counted now.
        stage.send_guests_away();
        let loss = stage.host.loss(guests_before);
        print(&format!(
            "{}; {}",
            loss.unwrap_or("the test failed, and not because of emulation"),
            stage.host.account()
        ));
        let Some(loss) = loss.filter(|_| tries < TRIES) else { resume_unwind(failure) };
        print(&format!("{loss}: the test runs again on a fresh host ({tries} of {TRIES} tries used)"));
        stage.host.boot_again().unwrap_or_else(|error| panic!("{error}"));
    }
}

impl Stage {
    /// Boots these guests, unless they are there.
    fn ask_for(&mut self, specs: &[GuestSpec]) {
        if self.specs == specs && self.guests.iter().all(|guest| !guest.has_ended() && !guest.is_silent()) {
            return;
        }
        self.send_guests_away();
        let guests = self.host.start_guests(specs.to_vec());
        self.guests = guests.unwrap_or_else(|error| panic!("{error}"));
        self.specs = specs.to_vec();
    }

    fn send_guests_away(&mut self) {
        self.specs.clear();
        for guest in self.guests.drain(..) {
            if guest.has_ended() {
                drop(guest); // which counts it as lost
            } else {
                // Whether or not it says that it has gone: the next one doesn't need it.
                let _ = guest.stop();
            }
        }
    }
}

/// Keeps the other lane away until the value is dropped. For what measures waits or lengths of time; called
/// before all else.
pub fn take_the_machine() -> lanes::Turn {
    let stage = STAGE.lock().unwrap_or_else(PoisonError::into_inner);
    let _still = left_guests_stand_still(stage.as_ref());
    lanes::alone()
}

/// Until a behaviour has its turn, guests that the last one left would disturb what the other lane measures.
fn left_guests_stand_still(stage: Option<&Stage>) -> Option<Standstill<'_>> {
    let stage = stage.filter(|stage| !stage.guests.is_empty())?;
    Standstill::of_guests(&stage.host).ok()
}

/// Not by eprintln!, which a test that then passes doesn't show.
pub fn print(what: &str) {
    writeln!(std::io::stderr(), "{what}").expect("stderr");
}

fn boot(testbed: Testbed) -> Host {
    let binary = built_binary().expect("the program under test");
    testbed.with_binary(binary).shares_this_machine().boot().unwrap_or_else(|error| panic!("{error}"))
}

/// Runs `measure` on the default host with these guests, and hands back what it found: for several tests to
/// look at, by a `OnceLock`. The first that needs it makes it; if that fails the next one tries again.
pub fn observed<T>(specs: &[GuestSpec], measure: impl Fn(&Host, &[Guest]) -> T) -> T {
    let found = std::cell::RefCell::new(None);
    with_guests(specs, |host, guests| {
        found.replace(Some(measure(host, guests)));
    });
    found.into_inner().expect("a test that didn't fail has found something")
}

/// The default host's command `command`, which must succeed.
pub fn run(host: &Host, command: &str) -> String {
    host.must_run(command, PATIENCE).unwrap_or_else(|error| panic!("{error}"))
}
