//! An AMD machine: QEMU's TCG emulates SVM.

use super::{Machine, Running, end, wait_up};
use crate::console::Console;
use crate::emulator::Emulator;
use crate::kernels::Kernel;
use crate::link::Link;
use crate::memory_file::MemoryFile;
use crate::testbed::Testbed;
use crate::{Error, Result, children};
use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Instant;

/// The emulated host's memory: QEMU and 256 MiB per guest, for up to eight guests.
const MEMORY_MIB: u32 = 3072;

/// Both the invariant TSC and the tolerance are needed, or guests' timers may never fire
/// (docs/explanation/testbed.md). A watchdog would distrust the clock whenever this machine is busy, and give
/// guests a coarse one.
const KERNEL_ARGUMENTS: &str =
    "console=ttyS0 loglevel=5 panic=-1 kvm.tsc_tolerance_ppm=500000 tsc=reliable mitigations=off";
/// Where the root is a disk: the agent mounts it, and systemd offers nobody a login.
const DISK_ARGUMENTS: &str = " microslice.root-disk systemd.getty_auto=0";

/// Boots `kernel` with the root file system `root`, and makes way for what is on `disk`, if there is one.
pub fn boot(
    testbed: &Testbed,
    emulator: &Emulator,
    kernel: &Kernel,
    root: &MemoryFile,
    disk: Option<&Path>,
) -> Result<Running> {
    let start = Instant::now();
    let console = Arc::new(Console::new()?);
    let mut qemu = emulator.command();
    say_what_it_is(&mut qemu, testbed);
    qemu.arg("-kernel").arg(&kernel.image).args(["-initrd", &root.path()]);
    let mut arguments = format!("{KERNEL_ARGUMENTS} {}", testbed.kernel_arguments);
    if let Some(disk) = disk {
        arguments += DISK_ARGUMENTS;
        qemu.args(["-drive", &format!("file={},format=raw,if=virtio,snapshot=on", disk.display())]);
    }
    qemu.args(["-append", arguments.trim_end()]);
    qemu.args(console.arguments());
    qemu.args(["-chardev", "stdio,id=control,signal=off", "-device", "virtio-serial-pci"]);
    qemu.args(["-device", "virtserialport,chardev=control,name=microslice.control"]);
    qemu.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let program = "qemu-system-x86_64".to_owned();
    let spawned = children::spawn(qemu, [&[root.fd()], &console.fds()[..]].concat());
    let mut process = spawned.map_err(|cause| Error::Program { program, cause })?;
    console.handed_over();
    let link = match (process.stdout.take(), process.stdin.take()) {
        (Some(reader), Some(writer)) => {
            Link::new(&kernel.release, reader, writer, Some(Arc::clone(&console)))
        }
        _ => return Err(Error::file("qemu", "has no pipes")),
    };
    let stderr = process.stderr.take();
    let last_words = || {
        let mut said = String::new();
        stderr.map(|stderr| stderr.take(4096).read_to_string(&mut said));
        said
    };
    match wait_up(&link, &console, Machine::Amd.boot_patience(), last_words) {
        Ok(()) => Ok(Running { link, process, console, boot_time: start.elapsed() }),
        Err(cause) => {
            end(&mut process);
            Err(Error::Stage { machine: kernel.release.clone(), stage: "host up", cause })
        }
    }
}

fn say_what_it_is(qemu: &mut Command, testbed: &Testbed) {
    let cpu = format!(
        "max,+svm,+invtsc,x-force-features=on{}",
        if testbed.pause_exits { ",+pause-filter,+pfthreshold" } else { "" }
    );
    if testbed.counts_instructions {
        qemu.args(["-accel", "tcg,thread=single", "-icount", "shift=0,sleep=off"]);
    } else {
        qemu.args(["-accel", "tcg,thread=multi"]);
    }
    qemu.args(["-M", "q35", "-cpu", &cpu]);
    let cpus = format!("{},sockets={}", testbed.cpus, testbed.sockets);
    qemu.args(["-smp", &cpus, "-m", &format!("{MEMORY_MIB}M")]);
    qemu.args(["-nodefaults", "-no-user-config", "-no-reboot", "-display", "none"]);
}
