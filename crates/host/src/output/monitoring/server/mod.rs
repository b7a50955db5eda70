//! HTTP for monitoring: a thread of its own, with sockets of its own, that shares a [`Board`] with the daemon
//! and nothing else.
//!
//! Problem.   Clients that never read, never write, or come by the thousand.
//! Mechanism. One thread takes turns among its connections (tokio, hyper). [`Limits`] bounds how many there
//!            are, and how long each lasts; further ones wait in the kernel's own queue, which is bounded,
//!            too. A page is made once for each reading. The thread has no capabilities, and is niced: it
//!            never goes before the vCPUs.
//! Limits.    While as many clients as there are places do nothing, others wait until the first of them has
//!            had its time.

use crate::guests::kernel_reader::{NICE, set_nice};
use crate::machine::privileges;
use crate::output::monitoring::{Board, Reading};
use crate::settings::listen::Address;
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{ACCEPT, ALLOW, CONTENT_TYPE};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use microslice_metrics::openmetrics::{self, Format};
use std::collections::BTreeMap;
use std::io;
use std::net::TcpListener;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::{Semaphore, oneshot};

/// How much clients may have.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// At once.
    pub connections: usize,
    /// Each, from its first moment to its last.
    pub patience: Duration,
}

impl Limits {
    /// Prometheus gives up after ten seconds (`scrape_timeout`): a client behind those that do nothing has
    /// its turn before.
    pub const DEFAULT: Self = Self { connections: 32, patience: Duration::from_secs(4) };
}

/// The most bytes of a request line and its headers: the least bound that hyper takes.
const REQUEST_BYTES_MAX: usize = 8192;
/// After a connection that couldn't be accepted: no descriptors are left, perhaps.
const REST: Duration = Duration::from_millis(100);

/// A server that will listen: the address is taken, no client is served yet.
#[derive(Debug)]
pub struct Listener {
    socket: Socket,
    address: Address,
}

#[derive(Debug)]
enum Socket {
    Unix(UnixListener, SocketFile),
    Tcp(TcpListener),
}

/// The name of a socket in the file system: taken back with it.
#[derive(Debug)]
struct SocketFile {
    path: PathBuf,
    identity: Option<(u64, u64)>,
}

impl SocketFile {
    fn of(path: &Path) -> Self {
        Self { path: path.to_owned(), identity: identity(path) }
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if self.identity.is_some() && identity(&self.path) == self.identity {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

fn identity(path: &Path) -> Option<(u64, u64)> {
    std::fs::symlink_metadata(path).ok().map(|file| (file.dev(), file.ino()))
}

impl Listener {
    /// Takes the address. What a daemon left behind that was killed is replaced; a folder that is missing is
    /// made for root alone.
    ///
    /// # Errors
    /// It is in use, no address of this host, or not allowed.
    pub fn bind(address: &Address) -> io::Result<Self> {
        let socket = match address {
            Address::Unix(path) => Socket::Unix(bind_unix(path)?, SocketFile::of(path)),
            Address::Tcp(address) => Socket::Tcp(TcpListener::bind(address)?),
        };
        let address = match &socket {
            Socket::Tcp(listener) => Address::Tcp(listener.local_addr()?),
            Socket::Unix(..) => address.clone(),
        };
        Ok(Self { socket, address })
    }

    /// Where it listens: with the port that it was given, if it asked for any.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// Starts the thread that serves what hangs on the board.
    ///
    /// # Errors
    /// There is none to be had.
    pub fn serve(self, board: Arc<Board>, limits: Limits) -> io::Result<Server> {
        let (stop, stopped) = oneshot::channel();
        let (acceptor, file) = match self.socket {
            Socket::Unix(listener, file) => (Acceptor::Unix(listener), Some(file)),
            Socket::Tcp(listener) => (Acceptor::Tcp(listener), None),
        };
        let runtime = runtime()?;
        let thread = std::thread::Builder::new().name("metrics".into()).spawn(move || {
            // An attacker that breaks it has no rights, and a client that keeps it busy waits among the
            // vCPUs.
            privileges::drop_all();
            set_nice(NICE);
            let pages = Arc::new(Pages { board, made: Mutex::new((Arc::new(()), BTreeMap::new())) });
            runtime.block_on(async {
                tokio::select! {
                    _ = stopped => {}
                    _ = accept(acceptor, pages, limits) => {}
                }
            });
        })?;
        Ok(Server { stop: Some(stop), thread: Some(thread), _file: file })
    }
}

/// Serves until it is dropped.
#[derive(Debug)]
pub struct Server {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
    _file: Option<SocketFile>,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.take().map(|stop| stop.send(()));
        // It never waits for a client: it makes a page at most.
        self.thread.take().map(std::thread::JoinHandle::join);
    }
}

fn runtime() -> io::Result<Runtime> {
    Builder::new_current_thread().enable_io().enable_time().build()
}

fn bind_unix(path: &Path) -> io::Result<UnixListener> {
    if let Some(folder) = path.parent().filter(|folder| !folder.exists()) {
        std::fs::DirBuilder::new().mode(0o700).create(folder)?;
    }
    let in_use = match UnixListener::bind(path) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => error,
        other => return other,
    };
    if !std::fs::symlink_metadata(path)?.file_type().is_socket() {
        return Err(io::Error::new(in_use.kind(), "a file that is no socket is there"));
    }
    // Never waits: a queue that is full says so.
    match runtime()?.block_on(tokio::net::UnixStream::connect(path)) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            std::fs::remove_file(path)?;
            UnixListener::bind(path)
        }
        _ => Err(io::Error::new(in_use.kind(), "another process listens there already")),
    }
}

enum Acceptor {
    Unix(UnixListener),
    Tcp(TcpListener),
}

/// A connection of either kind.
trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

async fn accept(acceptor: Acceptor, pages: Arc<Pages>, limits: Limits) -> io::Result<()> {
    match acceptor {
        Acceptor::Unix(listener) => {
            listener.set_nonblocking(true)?;
            let listener = tokio::net::UnixListener::from_std(listener)?;
            let next =
                async || listener.accept().await.map(|(stream, _)| Box::new(stream) as Box<dyn Stream>);
            accept_from(next, pages, limits).await
        }
        Acceptor::Tcp(listener) => {
            listener.set_nonblocking(true)?;
            let listener = tokio::net::TcpListener::from_std(listener)?;
            let next =
                async || listener.accept().await.map(|(stream, _)| Box::new(stream) as Box<dyn Stream>);
            accept_from(next, pages, limits).await
        }
    }
}

async fn accept_from(
    next: impl AsyncFn() -> io::Result<Box<dyn Stream>>,
    pages: Arc<Pages>,
    limits: Limits,
) -> io::Result<()> {
    let places = Arc::new(Semaphore::new(limits.connections));
    loop {
        let Ok(place) = Arc::clone(&places).acquire_owned().await else { return Ok(()) };
        let Ok(stream) = next().await else {
            tokio::time::sleep(REST).await;
            continue;
        };
        let pages = Arc::clone(&pages);
        tokio::spawn(async move {
            let answer = service_fn(|request| {
                let response = pages.answer(&request);
                async { Ok::<_, std::convert::Infallible>(response) }
            });
            let connection = hyper::server::conn::http1::Builder::new()
                .keep_alive(false)
                .max_buf_size(REQUEST_BYTES_MAX)
                .serve_connection(TokioIo::new(stream), answer);
            // Whatever goes wrong is the client's business.
            let _ = tokio::time::timeout(limits.patience, connection).await;
            drop(place);
        });
    }
}

/// A page that clients can ask for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Page {
    Metrics(Format),
    /// For `microslice top`.
    View,
}

impl Page {
    fn content_type(self) -> &'static str {
        match self {
            Self::Metrics(format) => format.content_type(),
            Self::View => "application/json",
        }
    }

    fn of(self, reading: &dyn Reading) -> Bytes {
        match self {
            Self::Metrics(format) => openmetrics::in_format(&reading.snapshot(), format).into(),
            Self::View => serde_json::to_vec(&reading.view()).unwrap_or_default().into(),
        }
    }
}

/// The pages of the latest reading, as far as clients have asked for them.
struct Pages {
    board: Arc<Board>,
    made: Mutex<(Arc<dyn Reading>, BTreeMap<Page, Bytes>)>,
}

impl Pages {
    fn answer(&self, request: &Request<Incoming>) -> Response<Full<Bytes>> {
        if ![Method::GET, Method::HEAD].contains(request.method()) {
            let mut refusal = plain(StatusCode::METHOD_NOT_ALLOWED, "only GET and HEAD\n");
            refusal.headers_mut().insert(ALLOW, hyper::header::HeaderValue::from_static("GET, HEAD"));
            return refusal;
        }
        let accept = request.headers().get(ACCEPT).and_then(|accept| accept.to_str().ok()).unwrap_or("");
        let page = match request.uri().path() {
            "/metrics" => Page::Metrics(Format::accepted_by(accept)),
            "/view" => Page::View,
            _ => return plain(StatusCode::NOT_FOUND, "there are /metrics and /view\n"),
        };
        respond(StatusCode::OK, page.content_type(), self.page(page))
    }

    fn page(&self, page: Page) -> Bytes {
        let latest = self.board.latest();
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        if !Arc::ptr_eq(&made.0, &latest) {
            *made = (Arc::clone(&latest), BTreeMap::new());
        }
        made.1.entry(page).or_insert_with(|| page.of(&*latest)).clone()
    }
}

fn plain(status: StatusCode, text: &'static str) -> Response<Full<Bytes>> {
    respond(status, "text/plain; charset=utf-8", Bytes::from_static(text.as_bytes()))
}

fn respond(status: StatusCode, content_type: &'static str, body: Bytes) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, hyper::header::HeaderValue::from_static(content_type));
    response
}

#[cfg(test)]
mod tests;
