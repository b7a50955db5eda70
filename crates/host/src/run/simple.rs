//! Schedules as the kernel's `scx_simple` does: only to compare costs with.

use crate::HostError;
use crate::bpf::program_costs::{self, Measuring};
use crate::machine::preflight;
use crate::machine::real_time::while_real_time;
use crate::simple_skeleton::SimpleSkelBuilder;
use libbpf_rs::skel::{OpenSkel, Skel, SkelBuilder};
use serde_json::{Value, json};
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const POLL: Duration = Duration::from_millis(50);

/// Runs until `stop` is set; returns `{"programs": [...]}`.
///
/// # Errors
/// As for our own scheduler.
pub fn run(stop: &AtomicBool) -> Result<Value, HostError> {
    preflight::check()?;
    let measuring = Measuring::start()?;
    let mut storage = MaybeUninit::uninit();
    let skeleton = SimpleSkelBuilder::default().open(&mut storage).and_then(OpenSkel::load);
    let mut skeleton = skeleton.map_err(|error| HostError::Load(error.to_string()))?;
    let link = while_real_time(|| skeleton.maps.simple_ops.attach_struct_ops());
    let link = link.map_err(|error| HostError::Load(error.to_string()))?;
    while !stop.load(Ordering::Relaxed) {
        std::thread::sleep(POLL);
    }
    let programs = program_costs::of_object(skeleton.object());
    while_real_time(|| drop(link));
    drop(measuring);
    Ok(json!({ "programs": programs }))
}
