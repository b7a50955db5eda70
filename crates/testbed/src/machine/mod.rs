//! The machines that the testbed can emulate, a file each: how its emulator is called, and what only it
//! needs.

pub mod amd;
pub mod bochs;
mod boot_cd;
pub mod intel;

use crate::console::{Console, ending};
use crate::link::Link;
use std::process::Child;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Which processors the emulated host has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Machine {
    /// QEMU's TCG, with SVM: fast enough for guests with workloads.
    #[default]
    Amd,
    /// Bochs, with VMX: interprets each instruction, and has pause-loop exits with gap and window.
    Intel,
}

impl Machine {
    /// A boot that isn't done by then has stalled. Quiet machines need 8 s for the one, a minute for the
    /// other.
    pub fn boot_patience(self) -> Duration {
        Duration::from_secs(match self {
            Self::Amd => 150,
            Self::Intel => 1500,
        })
    }

    /// A host that doesn't run `true` within this doesn't answer any more; one that is merely busy needs a
    /// second.
    pub fn answer_patience(self) -> Duration {
        Duration::from_secs(match self {
            Self::Amd => 30,
            Self::Intel => 300,
        })
    }

    /// The modules of the host: what its agent talks through, KVM, and what guests' networks need.
    pub fn modules(self) -> &'static [&'static str] {
        match self {
            Self::Amd => &["virtio_pci", "virtio_console", "kvm-amd", "tun"],
            Self::Intel => &["ata_piix", "sd_mod", "kvm-intel", "tun"],
        }
    }
}

/// A machine whose agent has greeted us.
pub struct Running {
    pub link: Arc<Link>,
    pub process: Child,
    pub console: Arc<Console>,
    pub boot_time: Duration,
}

/// Waits for the agent's greeting, for the emulator's death or for the kernel's. `last_words` are the
/// emulator's own.
fn wait_up(
    link: &Link,
    console: &Console,
    patience: Duration,
    last_words: impl FnOnce() -> String,
) -> Result<(), String> {
    let deadline = Instant::now() + patience;
    while Instant::now() < deadline {
        match link.wait_ready(Duration::from_secs(1)) {
            Ok(true) => return Ok(()),
            Ok(false) => {}
            Err(why) => {
                let console = ending(&console.text());
                return Err(format!("the emulator ended: {why} {}; {console}", last_words().trim()));
            }
        }
        let text = console.text();
        if text.contains("Kernel panic") {
            return Err(ending(&text));
        }
    }
    Err(format!("not up after {} s; {}", patience.as_secs(), console.account()))
}

/// Kills and reaps. Its memory is all it had.
pub fn end(process: &mut Child) {
    let _ = process.kill();
    let _ = process.wait();
}
