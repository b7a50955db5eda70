//! An observer in a thread of its own, which tells what it has seen when it is asked.

use super::report::Report;
use super::{Output, Span, run_answering};
use crate::HostError;
use crate::settings::Settings;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, SyncSender};
use std::thread::JoinHandle;
use std::time::Duration;

/// Programs are loaded and attached in seconds, and on an emulated host in minutes.
const START_PATIENCE: Duration = Duration::from_secs(600);
/// It answers within some tens of milliseconds, unless the host hardly lets it run.
const ANSWER_PATIENCE: Duration = Duration::from_secs(60);

/// Observes until it is dropped. Its thread has given up the rights that observing doesn't need; the caller
/// keeps its own.
pub struct Sampler {
    stop: Arc<AtomicBool>,
    questions: SyncSender<SyncSender<Report>>,
    thread: Option<JoinHandle<Result<(), HostError>>>,
}

impl Sampler {
    /// Returns once everything is attached. `say` takes a line for the operator.
    ///
    /// # Errors
    /// As [`super::run`].
    pub fn start(settings: Settings, say: impl Fn(&str) + Send + 'static) -> Result<Self, HostError> {
        let stop = Arc::new(AtomicBool::new(false));
        let (questions, asked) = mpsc::sync_channel(1);
        let (begun, has_begun) = mpsc::sync_channel(1);
        let stops = Arc::clone(&stop);
        let observe = move || {
            let mut begin = || {
                // Whoever waited may have lost patience.
                let _ = begun.try_send(());
            };
            let mut output = Output { report: &mut |_| (), say: &mut |line| say(line), begin: &mut begin };
            let span = Span { settle: Duration::ZERO, length: None, interval: None };
            run_answering(&settings, span, &stops, &mut output, Some(asked))
        };
        let thread = std::thread::Builder::new().name("observer".into()).spawn(observe);
        let thread = thread.map_err(|cause| HostError::broken(format!("no thread can be made: {cause}")))?;
        let mut sampler = Self { stop, questions, thread: Some(thread) };
        match has_begun.recv_timeout(START_PATIENCE) {
            Ok(()) => Ok(sampler),
            Err(_) => Err(sampler.why_it_ended()),
        }
    }

    /// Returns what has been seen since the start.
    ///
    /// # Errors
    /// It has ended.
    pub fn sample(&mut self) -> Result<Report, HostError> {
        let (reply, answer) = mpsc::sync_channel(1);
        let asked = self.questions.send(reply).map_err(drop);
        asked
            .and_then(|()| answer.recv_timeout(ANSWER_PATIENCE).map_err(drop))
            .map_err(|()| self.why_it_ended())
    }

    fn why_it_ended(&mut self) -> HostError {
        self.stop.store(true, Ordering::Relaxed);
        match self.thread.take().map(JoinHandle::join) {
            Some(Ok(Err(error))) => error,
            _ => HostError::broken("the observer didn't answer"),
        }
    }
}

impl Drop for Sampler {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
