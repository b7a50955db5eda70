//! Behaviours run in two lanes, `default_host` and `other_hosts`: two processes, each with an emulated host
//! (scripts/test.sh). Few can't bear the other lane, and take this machine alone.

use microslice_testbed::cache::{Cache, Lock};
use std::cell::Cell;
use std::time::Duration;

/// Until the other lane's behaviour has ended.
const PATIENCE: Duration = Duration::from_secs(3600);

thread_local! {
    /// Libtest runs each behaviour in a thread of its own.
    static IS_ALONE: Cell<bool> = const { Cell::new(false) };
}

/// A behaviour's turn on this machine.
pub struct Turn {
    _lock: Option<Lock>,
}

/// Keeps the other lane away.
pub fn alone() -> Turn {
    let turn = take(Cache::lock);
    IS_ALONE.set(true);
    turn
}

/// A turn beside the other lane, or none of its own where this lane has the machine alone.
pub fn beside_the_other_lane() -> Turn {
    if IS_ALONE.get() { Turn { _lock: None } } else { take(Cache::share) }
}

/// Who waits for a turn alone holds the turnstile, so that the other lane can't go on and on before it.
fn take(lock: impl Fn(&Cache, &str, Duration) -> microslice_testbed::Result<Lock>) -> Turn {
    let turn = || {
        let cache = Cache::locate()?;
        let _turnstile = cache.lock("behaviours-turnstile", PATIENCE)?;
        lock(&cache, "behaviours", PATIENCE)
    };
    Turn { _lock: Some(turn().unwrap_or_else(|error| panic!("{error}"))) }
}
