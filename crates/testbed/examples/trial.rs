//! The demo's trial on this machine's own KVM, as long as one likes: pairs of blocks, a seed, and flags of
//! `microslice run --scheduler beside`. It prints the trial's JSON.
//!
//! ```sh
//! make build && cargo run --release -p microslice-testbed --example trial -- 40 7 --boost-percent 5
//! ```

use microslice_testbed::lab::Lab;
use microslice_testbed::trial::{self, Plan};
use microslice_testbed::{built_binary, exit_code, say};
use std::process::ExitCode;

fn main() -> ExitCode {
    exit_code(measure())
}

fn measure() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let mut number = |default: u64| arguments.next().map_or(Ok(default), |text| text.parse());
    let (pairs, seed) = (number(8)? as usize, number(1)?);
    if let Some(why) = Lab::missing() {
        return Err(why.into());
    }
    let plan = Plan { pairs, seed, flags: arguments.collect(), ..Plan::of_a_minute(built_binary()?) };
    let measured = trial::run(&Lab::open()?, &plan, &|what| say(what))?;
    println!("{:#}", trial::to_json(&plan, &measured));
    Ok(())
}
