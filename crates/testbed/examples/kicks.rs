//! How long two guests live while the emulated host's CPUs stop between two instructions and go on, again and
//! again. They have KVM and the kernel's own scheduler alone. On a machine they would live for ever.
//!
//! ```sh
//! cargo run --release -p microslice-testbed --example kicks -- 6.18 10 90
//! ```
//!
//! Arguments: the host kernel's series, milliseconds between two such stops (0: none), seconds. No scheduler
//! of ours is loaded, so what ends a guest here is the emulator (docs/explanation/testbed.md, What goes
//! wrong).

use microslice_testbed::{GuestSpec, Testbed, exit_code};
use std::process::ExitCode;
use std::time::{Duration, Instant};

fn main() -> ExitCode {
    exit_code(measure())
}

fn measure() -> Result<(), Box<dyn std::error::Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [series, period, seconds] = &words[..] else { return Err("usage: SERIES PERIOD_MS SECONDS".into()) };
    let (period, seconds) = (Duration::from_millis(period.parse()?), Duration::from_secs(seconds.parse()?));
    let host = Testbed::new(series)?.boot()?;
    let guests = host.start_guests(vec![
        GuestSpec::new("a").workload("shootdown,heartbeat"),
        GuestSpec::new("b").workload("hog,heartbeat"),
    ])?;
    let start = Instant::now();
    let mut stops = 0;
    while start.elapsed() < seconds {
        if !period.is_zero() {
            host.stop_and_go_on()?;
            stops += 1;
        }
        std::thread::sleep(period.max(Duration::from_millis(1)));
        if let Some(guest) = guests.iter().find(|guest| guest.has_ended()) {
            let complaint = guest.complaint().unwrap_or_else(|| "it said nothing".into());
            let after_s = start.elapsed().as_secs_f64();
            println!("guest {} ended after {after_s:.1} s and {stops} stops: {complaint}", guest.name());
            return Ok(());
        }
    }
    println!("both live after {stops} stops");
    Ok(())
}
