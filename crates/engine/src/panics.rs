//! Panics of a run: bugs of the simulator, which end that run only.

use crate::SimError;
use std::cell::{Cell, RefCell};
use std::panic::{self, AssertUnwindSafe};
use std::sync::Once;

thread_local! {
    static IS_CAUGHT: Cell<bool> = const { Cell::new(false) };
    static LAST: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Returns what `run` does. A panic within it is an error that names the place and isn't printed.
///
/// # Errors
/// Those of `run`, or [`SimError::Panic`].
pub fn caught<T>(run: impl FnOnce() -> Result<T, SimError>) -> Result<T, SimError> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let for_others = panic::take_hook();
        panic::set_hook(Box::new(move |panic| {
            if IS_CAUGHT.get() {
                LAST.set(panic.to_string().split_whitespace().collect::<Vec<_>>().join(" "));
            } else {
                for_others(panic);
            }
        }));
    });
    let before = IS_CAUGHT.replace(true);
    // What the run has left half done is dropped with it.
    let result = panic::catch_unwind(AssertUnwindSafe(run));
    IS_CAUGHT.set(before);
    result.unwrap_or_else(|_| Err(SimError::Panic { cause: LAST.take() }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_an_error_with_its_place() {
        let error = caught(|| -> Result<(), _> { panic!("no {}\nsuch thing", 3) }).expect_err("it panics");
        let said = error.to_string();
        assert!(
            said.starts_with("a bug of the simulator: panicked at ") && said.contains("panics.rs:"),
            "{said}"
        );
        assert!(said.ends_with(" no 3 such thing"), "{said}");
        assert_eq!(caught(|| Ok(7)).expect("no panic"), 7);
    }
}
