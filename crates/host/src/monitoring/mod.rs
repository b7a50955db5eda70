//! `--metrics-listen`: what `run` and `observe` know, for Prometheus.
//!
//! Problem.   A client may ask often, read slowly or not at all, and the scheduler must not notice.
//! Mechanism. The daemon puts a report on a [`Board`] once a second, which takes a pointer's time. A thread
//!            with its own sockets ([`server`]) turns the latest one into text when a client asks, once for
//!            each report.
//! Limits.    [`server::Limits`]: so many connections at once, each for so long.

mod address;
mod beside_figures;
mod client;
mod labels;
mod observe_figures;
mod run_figures;
mod server;
mod shares;
pub(crate) mod view;

pub use address::{Address, Listen};
pub use client::read_thread_times;
pub use server::{Limits, Listener, Server};
use shares::Shares;
pub use view::{ByWord, PoolView, VcpuTimes, VcpuView, View, VmView, Waits};

use crate::{beside, observe, report};
use microslice_metrics::Snapshot;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How often the daemon puts a report on the board.
const PUBLISH: Duration = Duration::from_secs(1);

/// What was known at one moment, since the start.
#[derive(Debug, Default)]
pub enum Reading {
    /// Nothing yet.
    #[default]
    None,
    /// Of `run`.
    Run(Box<RunReading>),
    /// Of `run --beside`.
    Beside(Box<beside::report::Report>),
    /// Of `observe`.
    Observe(Box<observe::report::Report>),
}

/// What `run` knows.
#[derive(Debug)]
pub struct RunReading {
    pub report: report::Report,
    /// Of its VMs, received and due, lately.
    pub shares: Vec<(f64, f64)>,
    /// Of each of its VMs.
    pub vcpus: Vec<Vec<VcpuView>>,
}

impl Reading {
    /// As figures that real and simulated runs share.
    pub fn snapshot(&self) -> Snapshot {
        match self {
            Self::None => Snapshot::new(),
            Self::Run(run) => run_figures::of(&run.report, &run.shares),
            Self::Beside(report) => beside_figures::of(report),
            Self::Observe(report) => observe_figures::of(report),
        }
    }
}

/// Where the latest reading hangs. Nobody holds the lock for longer than a pointer takes.
#[derive(Debug, Default)]
pub struct Board(Mutex<Arc<Reading>>);

impl Board {
    pub fn put(&self, reading: Reading) {
        let before = std::mem::replace(&mut *self.lock(), Arc::new(reading));
        // Outside of the lock, if nobody reads it any more.
        drop(before);
    }

    pub fn latest(&self) -> Arc<Reading> {
        Arc::clone(&self.lock())
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Arc<Reading>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The daemon's side: when it is time for another reading, and where to put it.
pub struct Publisher {
    board: Arc<Board>,
    published: Option<Instant>,
    /// Of `run`: what each VM had of late.
    pub(crate) shares: Shares,
    _server: Server,
}

impl Publisher {
    /// Starts to serve what is published. The listener was made before anything was loaded.
    ///
    /// # Errors
    /// There is no thread for it.
    pub fn start(listener: Listener) -> Result<Self, crate::HostError> {
        let board = Arc::new(Board::default());
        let server = listener
            .serve(Arc::clone(&board), Limits::DEFAULT)
            .map_err(|cause| crate::HostError::broken(format!("no thread to serve metrics: {cause}")))?;
        Ok(Self { board, published: None, shares: Shares::default(), _server: server })
    }

    /// Whether another reading is due.
    pub fn is_due(&self) -> bool {
        self.published.is_none_or(|at| at.elapsed() >= PUBLISH)
    }

    pub fn publish(&mut self, reading: Reading) {
        self.published = Some(Instant::now());
        self.board.put(reading);
    }
}
