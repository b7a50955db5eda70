//! The line to the agent (`testbed/host/agent.c`): commands out, their output and exit codes back, many at
//! once.

use crate::console::Console;
use crate::{Error, Result};
use std::collections::HashMap;
use std::io::{Read, Write};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// What one command may print before it is thought to have run wild.
const OUTPUT_MAX: usize = 64 << 20;
const FRAME_MAX: u32 = 1 << 20;
/// Input is cut into frames of this size, well below what the agent accepts.
const INPUT_CHUNK: usize = 64 << 10;

/// What a UART keeps until its machine takes it; it drops what comes beyond that.
const UART_BYTES: usize = 16;
/// A machine that doesn't take so much within this won't.
const UART_PATIENCE: Duration = Duration::from_secs(300);

/// A line that an agent answers on.
pub struct Link {
    machine: String,
    outgoing: Mutex<Outgoing>,
    is_uart: bool,
    shared: Arc<Shared>,
    next_stream: AtomicU32,
    /// What errors show the end of, when a command doesn't end or the line closes; a real host has none here.
    console: Option<Arc<Console>>,
}

struct Outgoing {
    writer: Box<dyn Write + Send>,
    /// Bytes so far.
    sent: u64,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    ready: bool,
    /// So many bytes of ours the agent has taken, if it says so.
    taken: u64,
    /// Why nothing more will come.
    closed: Option<String>,
    streams: HashMap<u32, Stream>,
}

#[derive(Default)]
struct Stream {
    stdout: Vec<u8>,
    stderr: Vec<u8>,
    /// When the harness saw each line's end: `(offset behind it, time)`.
    line_ends: Vec<(usize, Instant)>,
    /// As `waitpid` gives it, once the command has ended.
    status: Option<i32>,
}

/// A line that a command printed, and when it arrived here.
#[derive(Debug, Clone)]
pub struct Line {
    pub at: Instant,
    pub text: String,
}

/// What a finished command left.
#[derive(Debug, Clone)]
pub struct Output {
    /// The exit code, or 128 + the signal that ended it, as a shell counts.
    pub code: i32,
    pub stdout: String,
    pub stderr: String,
}

/// A command that runs on the other end. Killed when dropped.
pub struct Process {
    link: Arc<Link>,
    stream: u32,
    command: String,
}

impl Link {
    /// Listens to `reader`; `machine` is the name that errors give, `console` what they show the end of.
    pub fn new(
        machine: &str,
        reader: impl Read + Send + 'static,
        writer: impl Write + Send + 'static,
        console: Option<Arc<Console>>,
    ) -> Arc<Self> {
        Self::open(machine, reader, writer, console, false)
    }

    /// Likewise, where a UART is on the way, and the agent says what it took.
    pub fn over_uart(
        machine: &str,
        reader: impl Read + Send + 'static,
        writer: impl Write + Send + 'static,
        console: Arc<Console>,
    ) -> Arc<Self> {
        Self::open(machine, reader, writer, Some(console), true)
    }

    fn open(
        machine: &str,
        reader: impl Read + Send + 'static,
        writer: impl Write + Send + 'static,
        console: Option<Arc<Console>>,
        is_uart: bool,
    ) -> Arc<Self> {
        let shared = Arc::new(Shared::default());
        let for_reader = Arc::clone(&shared);
        let listener = std::thread::Builder::new().spawn(move || {
            let why = listen(reader, &for_reader);
            for_reader.lock().closed = Some(why);
            for_reader.changed.notify_all();
        });
        if let Err(error) = listener {
            shared.lock().closed = Some(format!("no thread can listen to it: {error}"));
        }
        let outgoing = Mutex::new(Outgoing { writer: Box::new(writer), sent: 0 });
        let next_stream = AtomicU32::new(1);
        Arc::new(Self { machine: machine.into(), outgoing, is_uart, shared, next_stream, console })
    }

    /// Waits until the agent has said that it is there; `false` after `patience`, an error if the line
    /// closed.
    pub fn wait_ready(&self, patience: Duration) -> Result<bool, String> {
        let mut state = self.shared.lock();
        let deadline = Instant::now() + patience;
        loop {
            if state.ready {
                return Ok(true);
            }
            if let Some(why) = &state.closed {
                return Err(why.clone());
            }
            let Some(left) = deadline.checked_duration_since(Instant::now()) else { return Ok(false) };
            state = self.shared.wait(state, left);
        }
    }

    /// Starts a shell command.
    pub fn start(self: &Arc<Self>, command: &str) -> Result<Process> {
        let stream = self.next_stream.fetch_add(1, Ordering::Relaxed);
        self.shared.lock().streams.insert(stream, Stream::default());
        let process = Process { link: Arc::clone(self), stream, command: command.into() };
        self.send(stream, b'X', command.as_bytes()).map_err(|cause| process.error(cause))?;
        Ok(process)
    }

    /// Asks the agent to end everything that it started, and itself.
    pub fn quit(&self) {
        // An agent that doesn't hear this is gone already.
        let _ = self.send(0, b'Q', &[]);
    }

    fn send(&self, stream: u32, kind: u8, payload: &[u8]) -> Result<(), String> {
        let length = u32::try_from(payload.len()).ok().filter(|&n| n <= FRAME_MAX);
        let length = length.ok_or_else(|| format!("too long to send: {} bytes", payload.len()))?;
        let mut frame = Vec::with_capacity(12 + payload.len());
        for word in [length, stream, u32::from(kind)] {
            frame.extend_from_slice(&word.to_le_bytes());
        }
        frame.extend_from_slice(payload);
        let mut outgoing = self.outgoing.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let piece_bytes = if self.is_uart { UART_BYTES } else { frame.len() };
        for piece in frame.chunks(piece_bytes) {
            let writer = &mut outgoing.writer;
            let written = writer.write_all(piece).and_then(|()| writer.flush());
            written.map_err(|cause| format!("the line is broken: {cause}"))?;
            outgoing.sent += piece.len() as u64;
            if self.is_uart {
                self.shared.wait_until_taken(outgoing.sent)?;
            }
        }
        Ok(())
    }
}

impl Process {
    /// Waits for the end.
    pub fn wait(&self, patience: Duration) -> Result<Output> {
        let ended = self.wait_until(patience, |stream| stream.status.map(|status| (status, ())))?;
        let Some((status, ())) = ended else {
            return Err(self.unanswered(format!("still running after {} s", patience.as_secs())));
        };
        let state = self.link.shared.lock();
        let stream = &state.streams[&self.stream];
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Ok(Output { code: exit_code(status), stdout: text(&stream.stdout), stderr: text(&stream.stderr) })
    }

    /// Whether it has ended, or its machine has.
    pub fn has_ended(&self) -> bool {
        let state = self.link.shared.lock();
        state.closed.is_some() || state.streams.get(&self.stream).is_none_or(|stream| stream.status.is_some())
    }

    /// How it ended, as [`Output::code`] says it; nothing while it runs.
    pub fn exit_code(&self) -> Option<i32> {
        self.link.shared.lock().streams.get(&self.stream)?.status.map(exit_code)
    }

    /// All lines that it has printed to standard output so far, from number `from` on.
    pub fn lines(&self, from: usize) -> Vec<Line> {
        self.link.shared.lock().streams.get(&self.stream).map(|stream| stream.lines(from)).unwrap_or_default()
    }

    /// What it has printed to standard error so far.
    pub fn stderr(&self) -> String {
        let state = self.link.shared.lock();
        state
            .streams
            .get(&self.stream)
            .map(|s| String::from_utf8_lossy(&s.stderr).into_owned())
            .unwrap_or_default()
    }

    /// Waits for a line of standard output, from number `from` on, that contains `text`.
    pub fn wait_for(&self, text: &str, from: usize, patience: Duration) -> Result<Line> {
        let found = self.wait_until(patience, |stream| {
            let line = stream.lines(from).into_iter().find(|line| line.text.contains(text));
            line.map(Ok).or_else(|| stream.status.map(|_| Err(())))
        })?;
        match found {
            Some(Ok(line)) => Ok(line),
            Some(Err(())) => {
                Err(self.error(format!("ended without printing `{text}`; it said: {}", self.last_words())))
            }
            None => Err(self.unanswered(format!(
                "didn't print `{text}` in {} s; it said: {}",
                patience.as_secs(),
                self.last_words()
            ))),
        }
    }

    /// Feeds its standard input and, with `last`, closes it.
    pub fn input(&self, data: &[u8], last: bool) -> Result<()> {
        for chunk in data.chunks(INPUT_CHUNK) {
            self.link.send(self.stream, b'I', chunk).map_err(|cause| self.error(cause))?;
        }
        if last { self.link.send(self.stream, b'C', &[]).map_err(|cause| self.error(cause)) } else { Ok(()) }
    }

    /// Sends `signal` to the command and all that it started.
    pub fn signal(&self, signal: i32) -> Result<()> {
        self.link.send(self.stream, b'K', &signal.to_le_bytes()).map_err(|cause| self.error(cause))
    }

    /// What it said last, for error messages: the head of an internal error of KVM, else the end of both
    /// outputs.
    pub fn last_words(&self) -> String {
        let state = self.link.shared.lock();
        let Some(stream) = state.streams.get(&self.stream) else { return String::new() };
        let said = [&stream.stdout[..], &stream.stderr[..]].concat();
        let text = String::from_utf8_lossy(&said).into_owned();
        let telling = ["KVM internal error", "Kernel panic", "BUG:", "WARNING:"];
        let from = telling.iter().find_map(|what| text.find(what)).unwrap_or(text.len().saturating_sub(600));
        let lines = text.get(from..).unwrap_or(&text).lines().map(str::trim).filter(|line| !line.is_empty());
        lines.take(8).collect::<Vec<_>>().join("; ")
    }

    fn wait_until<T>(
        &self,
        patience: Duration,
        mut done: impl FnMut(&Stream) -> Option<T>,
    ) -> Result<Option<T>> {
        let deadline = Instant::now() + patience;
        let mut state = self.link.shared.lock();
        loop {
            if let Some(result) = state.streams.get(&self.stream).and_then(&mut done) {
                return Ok(Some(result));
            }
            if let Some(why) = state.closed.clone() {
                drop(state);
                return Err(self.unanswered(why));
            }
            let Some(left) = deadline.checked_duration_since(Instant::now()) else { return Ok(None) };
            state = self.link.shared.wait(state, left);
        }
    }

    /// An error that may be the machine's fault: its console may say more.
    fn unanswered(&self, cause: String) -> Error {
        match &self.link.console {
            Some(console) => self.error(format!("{cause}; {}", console.account())),
            None => self.error(cause),
        }
    }

    fn error(&self, cause: impl Into<String>) -> Error {
        let mut command = self.command.replace('\n', "; ");
        if command.len() > 160 {
            command = command.chars().take(160).chain("...".chars()).collect();
        }
        Error::Command { machine: self.link.machine.clone(), command, cause: cause.into() }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if !self.has_ended() {
            let _ = self.signal(libc::SIGKILL);
        }
        self.link.shared.lock().streams.remove(&self.stream);
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // A thread that panicked while it held the lock left plain bytes behind: still usable.
        self.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Until the agent has taken so many bytes.
    fn wait_until_taken(&self, bytes: u64) -> Result<(), String> {
        let deadline = Instant::now() + UART_PATIENCE;
        let mut state = self.lock();
        while state.taken < bytes {
            if let Some(why) = &state.closed {
                return Err(why.clone());
            }
            let left = deadline.checked_duration_since(Instant::now());
            let left = left.ok_or("the agent doesn't take what it is sent")?;
            state = self.wait(state, left);
        }
        Ok(())
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State>, at_most: Duration) -> MutexGuard<'a, State> {
        self.changed
            .wait_timeout(state, at_most)
            .map_or_else(|poisoned| poisoned.into_inner().0, |(state, _)| state)
    }
}

impl Stream {
    fn lines(&self, from: usize) -> Vec<Line> {
        let start = if from == 0 {
            0
        } else {
            self.line_ends.get(from - 1).map_or(self.stdout.len(), |(end, _)| *end)
        };
        let mut lines = Vec::new();
        let mut start = start;
        for &(end, at) in self.line_ends.iter().skip(from) {
            let text = String::from_utf8_lossy(&self.stdout[start..end]).trim_end().to_owned();
            lines.push(Line { at, text });
            start = end;
        }
        lines
    }

    fn take_in(&mut self, kind: u8, payload: &[u8]) {
        match kind {
            b'O' if self.stdout.len() + payload.len() <= OUTPUT_MAX => {
                let (base, now) = (self.stdout.len(), Instant::now());
                let ends = payload.iter().enumerate().filter(|(_, byte)| **byte == b'\n');
                self.line_ends.extend(ends.map(|(at, _)| (base + at + 1, now)));
                self.stdout.extend_from_slice(payload);
            }
            b'E' if self.stderr.len() + payload.len() <= OUTPUT_MAX => self.stderr.extend_from_slice(payload),
            b'S' => self.status = payload.try_into().ok().map(i32::from_le_bytes),
            _ => {}
        }
    }
}

/// Of what `waitpid` gives.
fn exit_code(status: i32) -> i32 {
    if status & 0x7f == 0 { (status >> 8) & 0xff } else { 128 + (status & 0x7f) }
}

/// Takes frames in until the line ends; returns why it did.
fn listen(mut reader: impl Read, shared: &Shared) -> String {
    let mut payload = Vec::new();
    loop {
        let mut header = [0; 12];
        if let Err(cause) = reader.read_exact(&mut header) {
            return format!("the line closed ({cause})");
        }
        let word =
            |at: usize| u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
        let (length, stream, kind) = (word(0), word(4), word(8) as u8);
        if length > FRAME_MAX {
            return format!("the agent sent a frame of {length} bytes");
        }
        payload.resize(length as usize, 0);
        if let Err(cause) = reader.read_exact(&mut payload) {
            return format!("the line closed inside a frame ({cause})");
        }
        let mut state = shared.lock();
        if kind == b'H' {
            state.ready = true;
        } else if kind == b'T' {
            let bytes = payload.as_slice().try_into().map_or(0, u32::from_le_bytes);
            state.taken += u64::from(bytes);
        } else if let Some(stream) = state.streams.get_mut(&stream) {
            stream.take_in(kind, &payload);
        }
        drop(state);
        shared.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;

    /// Takes what comes, piece by piece, and says so; how long the longest was.
    fn agent(mut line: UnixStream, bytes: usize) -> usize {
        let (mut left, mut longest) = (bytes, 0);
        while left > 0 {
            let taken = line.read(&mut [0; 1024]).expect("a piece");
            assert_ne!(taken, 0, "the line closed {left} bytes early");
            (left, longest) = (left - taken, longest.max(taken));
            for word in [4, 0, u32::from(b'T'), u32::try_from(taken).expect("small")] {
                line.write_all(&word.to_le_bytes()).expect("a frame");
            }
        }
        longest
    }

    #[test]
    fn no_more_is_on_the_way_through_a_uart_than_it_keeps() {
        let (ours, theirs) = UnixStream::pair().expect("a pair");
        let console = Arc::new(Console::without_monitor().expect("a console"));
        let link = Link::over_uart("a machine", ours.try_clone().expect("a writer"), ours, console);
        let command = "x".repeat(500);
        let agent = std::thread::spawn(move || agent(theirs, 12 + 500));
        let process = link.start(&command);
        assert_eq!(agent.join().expect("an agent"), UART_BYTES);
        process.expect("all of it was taken");
    }

    #[test]
    fn an_agent_that_goes_while_it_is_sent_something_is_said_to_be_gone() {
        let (ours, theirs) = UnixStream::pair().expect("a pair");
        let console = Arc::new(Console::without_monitor().expect("a console"));
        let link = Link::over_uart("a machine", ours.try_clone().expect("a writer"), ours, console);
        drop(theirs);
        let error = link.start("true").err().expect("nobody there").to_string();
        assert!(error.contains("the line"), "{error}");
    }
}
