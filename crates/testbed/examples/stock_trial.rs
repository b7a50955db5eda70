//! A trial on stock guests: `microslice trial` on an emulated host, with the kernel's own scheduler, boosts
//! beside it, and ours. It prints the trial's own screen.
//!
//! ```sh
//! make build && cargo run --release -p microslice-testbed --example stock_trial -- 10   # minutes
//! ```

use microslice_testbed::{GuestSpec, Pv, Testbed, built_binary, exit_code};
use std::io::Write;
use std::process::ExitCode;
use std::time::Duration;

const GUEST: &str = "6.12-cloud";
/// An emulated host takes several times its blocks for changes.
const PATIENCE_PER_MINUTE: Duration = Duration::from_secs(300);

fn main() -> ExitCode {
    exit_code(measure())
}

fn measure() -> Result<(), Box<dyn std::error::Error>> {
    let minutes: u32 = std::env::args().nth(1).map_or(Ok(10), |word| word.parse())?;
    let host = Testbed::new("6.18")?.with_binary(built_binary()?).with_guest_kernels(&[GUEST])?.boot()?;
    let _echo = host.start_echo()?;
    let mix = GuestSpec::new("mix").workload("worker,mix,shootdown").network(1).pv(Pv::Off);
    let _guests = host.start_guests(vec![mix, GuestSpec::new("hog").workload("hog")])?;
    // To read a kernel from memory beside busy guests takes emulation minutes. Blocks are long: each change
    // patches the host kernel's text, which an emulator doesn't always survive.
    let image = &host.image(GUEST)?.kernel;
    let slice = "micro-slice-us=3000";
    let command = format!(
        "microslice trial --names --for {minutes}min --block 20s --settle 5s --guard-wait 10s --no-guest-memory \
         --guest mix={image} --guest hog={image} --arm kernel --arm 'beside {slice}' --arm 'microslice {slice}'"
    );
    let output = host.must_run(&command, PATIENCE_PER_MINUTE * minutes)?;
    Ok(std::io::stdout().write_all(output.as_bytes())?)
}
