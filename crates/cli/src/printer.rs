//! Printing beside the work: a reader that doesn't read can't stop it.
//!
//! Mechanism. A thread prints what lies in a queue. A caller puts its text there and goes on. What finds no
//!            room is left out and counted, and the next text that is printed comes with that number.

use crate::failure::Failure;
use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Hours of one-line messages, or minutes of statistics.
const BYTES_MAX: usize = 4 << 20;

pub struct Printer {
    queue: Arc<Queue>,
    name: &'static str,
}

struct Queue {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<String>,
    bytes: usize,
    left_out: u64,
    is_printing: bool,
    failure: Option<Failure>,
}

impl Printer {
    /// `print` has each text, and how many were left out before it. Its first failure is kept, and it is
    /// asked on: a device may have room again.
    pub fn start(
        name: &'static str,
        mut print: impl FnMut(&str, u64) -> Result<(), Failure> + Send + 'static,
    ) -> io::Result<Self> {
        let queue = Arc::new(Queue { state: Mutex::default(), changed: Condvar::new() });
        let shared = Arc::clone(&queue);
        std::thread::Builder::new().name("printer".into()).spawn(move || {
            loop {
                let (text, left_out) = shared.next();
                let printed = print(&text, left_out);
                shared.note(printed);
            }
        })?;
        Ok(Self { queue, name })
    }

    /// Left out if there is no room.
    pub fn print(&self, text: String) {
        let mut state = self.queue.lock();
        if state.waiting.is_empty() || state.bytes + text.len() <= BYTES_MAX {
            self.put(state, text);
        } else {
            state.left_out += 1;
        }
    }

    /// Never left out: for the last text.
    pub fn print_last(&self, text: String) {
        self.put(self.queue.lock(), text);
    }

    fn put(&self, mut state: MutexGuard<'_, State>, text: String) {
        state.bytes += text.len();
        state.waiting.push_back(text);
        self.queue.changed.notify_all();
    }

    /// Waits until all is printed, unless nothing was taken for as long as `patience`.
    pub fn finish(self, patience: Duration) -> Result<(), Failure> {
        let mut state = self.queue.lock();
        while state.is_printing || !state.waiting.is_empty() {
            let (after, waited) =
                self.queue.changed.wait_timeout(state, patience).unwrap_or_else(PoisonError::into_inner);
            state = after;
            if waited.timed_out() {
                return Err(Failure::broken(format_args!("{}: nobody reads what it is full of", self.name)));
            }
        }
        state.failure.take().map_or(Ok(()), Err)
    }
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn next(&self) -> (String, u64) {
        let mut state = self.lock();
        loop {
            if let Some(text) = state.waiting.pop_front() {
                state.bytes -= text.len();
                state.is_printing = true;
                return (text, std::mem::take(&mut state.left_out));
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn note(&self, printed: Result<(), Failure>) {
        let mut state = self.lock();
        state.is_printing = false;
        if let (Err(failure), None) = (printed, &state.failure) {
            state.failure = Some(failure);
        }
        self.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    const PATIENCE: Duration = Duration::from_secs(60);

    #[test]
    fn a_reader_that_does_not_read_stops_nobody_and_hears_how_much_it_missed() {
        let (read, gate) = channel::<()>();
        let printed = Arc::new(Mutex::new((0, 0, String::new())));
        let seen = Arc::clone(&printed);
        let printer = Printer::start("a pipe", move |text, left_out| {
            let _ = gate.recv(); // fails, and no longer waits, once there is a reader
            let mut seen = seen.lock().unwrap();
            *seen = (seen.0 + 1, seen.1 + left_out, text.to_owned());
            Ok(())
        });
        let printer = printer.unwrap();
        for _ in 0..20 {
            printer.print("x".repeat(BYTES_MAX / 8));
        }
        printer.print_last("the end".to_owned());
        drop(read);
        printer.finish(PATIENCE).unwrap();
        let (texts, left_out, last) = printed.lock().unwrap().clone();
        assert_eq!((texts + left_out, last.as_str()), (21, "the end"));
        assert!((11..=12).contains(&left_out), "8 wait, and one may be at the reader's: {left_out}");
    }

    #[test]
    fn the_end_does_not_wait_for_ever_for_a_reader_that_does_not_read() {
        let (_read, gate) = channel::<()>();
        let printer = Printer::start("standard output", move |_, _| {
            let _ = gate.recv();
            Ok(())
        });
        let printer = printer.unwrap();
        printer.print_last("the end".to_owned());
        let failure = printer.finish(Duration::from_millis(50)).unwrap_err().to_string();
        assert_eq!(failure, "standard output: nobody reads what it is full of");
    }

    #[test]
    fn the_first_failure_is_kept_and_what_follows_is_printed_all_the_same() {
        let (seen, texts) = channel();
        let printer = Printer::start("a device", move |text, _| {
            let _ = seen.send(text.to_owned());
            Err(Failure::broken(text))
        });
        let printer = printer.unwrap();
        printer.print("one".to_owned());
        printer.print("two".to_owned());
        assert_eq!(printer.finish(PATIENCE).unwrap_err().to_string(), "one");
        assert_eq!(texts.try_iter().collect::<Vec<_>>(), ["one", "two"]);
    }
}
