//! `--metrics-listen`: what `run` and `observe` know, for Prometheus.
//!
//! Problem.   A client may ask often, read slowly or not at all, and the scheduler must not notice.
//! Mechanism. The daemon puts a report on a [`Board`] once a second, which takes a pointer's time. A thread
//!            with its own sockets ([`server`]) turns the latest one into text when a client asks, once for
//!            each report.
//! Limits.    [`server::Limits`] bounds how many connections there are at once, and how long each lasts.

mod client;
pub(crate) mod labels;
mod server;
pub(crate) mod view;
pub(crate) mod vm_figures;

pub use client::read_thread_times;
pub use server::{Limits, Listener, Server};
pub use view::{ByWord, LongWaitView, PoolView, VcpuTimes, VcpuView, View, VmView, Waits};

use crate::HostError;
use crate::settings::Settings;
use crate::settings::listen::Listen;
use microslice_metrics::Snapshot;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How often the daemon puts a report on the board.
const PUBLISH: Duration = Duration::from_secs(1);

/// All that a mode has counted since its start, up to one moment.
pub trait Reading: Send + Sync {
    /// Returns the figures that real and simulated runs share.
    fn snapshot(&self) -> Snapshot;

    /// Returns what `microslice top` shows.
    fn view(&self) -> View;
}

/// Nothing is known yet.
impl Reading for () {
    fn snapshot(&self) -> Snapshot {
        Snapshot::new()
    }

    fn view(&self) -> View {
        View::default()
    }
}

/// Holds the latest reading. Its lock is held only for as long as copying a pointer takes.
pub struct Board(Mutex<Arc<dyn Reading>>);

impl Default for Board {
    fn default() -> Self {
        Self(Mutex::new(Arc::new(())))
    }
}

impl Board {
    pub fn put(&self, reading: Arc<dyn Reading>) {
        let before = std::mem::replace(&mut *self.lock(), reading);
        // Outside of the lock, if nobody reads it any more.
        drop(before);
    }

    pub fn latest(&self) -> Arc<dyn Reading> {
        Arc::clone(&self.lock())
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Arc<dyn Reading>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The daemon's side: when it is time for another reading, and where to put it.
pub struct Publisher {
    board: Arc<Board>,
    published: Option<Instant>,
    _server: Server,
}

impl Publisher {
    /// Starts to serve what is published. The listener was made before anything was loaded.
    ///
    /// # Errors
    /// There is no thread for it.
    pub fn start(listener: Listener) -> Result<Self, HostError> {
        let board = Arc::new(Board::default());
        let server = listener
            .serve(Arc::clone(&board), Limits::DEFAULT)
            .map_err(|cause| HostError::broken(format!("no thread to serve metrics: {cause}")))?;
        Ok(Self { board, published: None, _server: server })
    }

    /// Whether another reading is due.
    pub fn is_due(&self) -> bool {
        self.published.is_none_or(|at| at.elapsed() >= PUBLISH)
    }

    pub fn publish(&mut self, reading: impl Reading + 'static) {
        self.published = Some(Instant::now());
        self.board.put(Arc::new(reading));
    }
}

impl Settings {
    /// Binds the address that figures are to be served at, if there is one.
    pub(crate) fn metrics_listener(&self) -> Result<Option<Listener>, HostError> {
        let address = self.metrics_listen.as_ref().and_then(Listen::address);
        let listener = address.map(|address| {
            Listener::bind(address).map_err(|cause| {
                HostError::refused(format!("{} {address}: {cause}", self.called("metrics-listen")))
            })
        });
        listener.transpose()
    }
}
