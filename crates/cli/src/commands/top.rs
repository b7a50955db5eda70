//! `microslice top`: what a scheduler or an observer of this host sees, live.

use crate::failure::Failure;
use crate::interrupt;
use crate::output;
use crate::top::{App, Flow, draw};
use clap::Args;
use microslice_host::output::monitoring::{View, read_thread_times};
use microslice_host::settings::listen::Address;
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyEventKind};
use std::io::{self, ErrorKind, IsTerminal};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::Duration;

/// How long a key waits for its effect at most, when news come at the same time.
const LOOK: Duration = Duration::from_millis(100);

/// Watch the VMs of this host live, through the socket of `run` or `observe`: which wait, for how long, and
/// what is accelerated
#[derive(Args)]
#[command(after_help = "Examples:
  microslice top                                     the service, or any command with --metrics-listen
  microslice top --interval 1                        every second
  microslice top --connect 127.0.0.1:9477            one that listens over TCP
  microslice top --json                              what is known now, as one JSON object of counters

Keys: up and down, Enter (vCPUs), s and r (sort), / (filter), space (pause), h (help), q. It loads nothing, and needs no right but to open the
socket: `microslice observe --metrics-listen` makes one on hosts that run no scheduler of ours.
Longest waits, and who ran meanwhile, are `observe`'s. Beside `run` it needs a socket of its own:
observe --metrics-listen unix:/run/microslice/observe.sock, and top --connect with the same address.")]
pub struct Top {
    /// Where `run` or `observe` listens: unix:/PATH or IP:PORT
    #[arg(long, value_name = "ADDRESS", default_value = Address::DEFAULT)]
    connect: Address,
    /// Seconds between two looks
    #[arg(long, value_name = "SEC", default_value = "2", value_parser = seconds)]
    interval: Duration,
    /// Print what is known now as JSON, and end
    #[arg(long)]
    json: bool,
}

/// Figures are made anew once a second.
fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    let allowed = Duration::from_secs(1)..=Duration::from_secs(3600);
    seconds.filter(|time| allowed.contains(time)).ok_or_else(|| "must be 1 to 3600 seconds".to_owned())
}

pub fn run(args: Top) -> Result<(), Failure> {
    let first =
        look(&args.connect).map_err(|cause| Failure::bad_input(format_args!("{}: {cause}", args.connect)))?;
    if args.json {
        let value = serde_json::to_value(&first).map_err(Failure::broken)?;
        return output::print_json(&value);
    }
    if !io::stdout().is_terminal() || !io::stdin().is_terminal() {
        return Err(Failure::bad_input(
            "standard input or output is no terminal: only --json can be used there",
        ));
    }
    let stop = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&stop);
    // With its terminal gone it may never come back from asking for keys.
    interrupt::on_signal(Some(interrupt::GRACE), move || flag.store(true, Ordering::Relaxed))?;
    let mut app = App::new(args.connect.to_string());
    app.hear(Ok(first));
    let (views, _done) = looks(args.connect, args.interval)?;
    // Also after a panic: the hook is ratatui's.
    let mut terminal = ratatui::try_init().map_err(Failure::broken)?;
    let result = watch(&mut terminal, &mut app, &views, &stop);
    ratatui::restore();
    result.map_err(|error| Failure::broken(format_args!("the terminal: {error}")))
}

fn watch(terminal: &mut DefaultTerminal, app: &mut App, views: &Views, stop: &AtomicBool) -> io::Result<()> {
    while !stop.load(Ordering::Relaxed) {
        terminal.draw(|frame| draw::draw(frame, app))?;
        // Of several that wait the last one is drawn.
        let mut has_event = event::poll(LOOK)?;
        while has_event {
            if let Event::Key(key) = event::read()?
                && key.kind != KeyEventKind::Release
                && app.press(key) == Flow::Quit
            {
                return Ok(());
            }
            has_event = event::poll(Duration::ZERO)?;
        }
        views.try_iter().for_each(|view| app.hear(view));
    }
    Ok(())
}

/// What a daemon answered, look by look.
type Views = Receiver<Result<View, String>>;

/// Views as they come, from a thread that ends with the second value: a daemon that is slow to answer holds
/// up no key.
fn looks(address: Address, interval: Duration) -> Result<(Views, mpsc::Sender<()>), Failure> {
    let (send, views) = mpsc::channel();
    let (done, is_over) = mpsc::channel::<()>();
    let thread = std::thread::Builder::new().name("looks".into()).spawn(move || {
        while is_over.recv_timeout(interval) == Err(RecvTimeoutError::Timeout) {
            if send.send(look(&address)).is_err() {
                break;
            }
        }
    });
    thread.map_err(|error| interrupt::no_thread(&error))?;
    Ok((views, done))
}

/// A view, with what the kernel of this host says of threads that the daemon says nothing of.
fn look(address: &Address) -> Result<View, String> {
    let mut view = View::read(address).map_err(|error| match error.kind() {
        ErrorKind::NotFound | ErrorKind::ConnectionRefused => format!(
            "nobody listens there ({error}): start microslice, or microslice observe --metrics-listen"
        ),
        _ => error.to_string(),
    })?;
    if let Address::Unix(_) = address {
        read_thread_times(&mut view);
    }
    Ok(view)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interval_is_a_second_at_least() {
        assert_eq!(seconds("1.5"), Ok(Duration::from_millis(1500)));
        for wrong in ["0.5", "0", "-1", "NaN", "1e9", "2s", ""] {
            assert!(seconds(wrong).is_err(), "{wrong}");
        }
    }
}
