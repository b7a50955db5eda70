//! An Intel machine: Bochs interprets VMX, one host thread for all its CPUs.
//!
//! It has no virtio devices. The kernel boots from a CD with as much of the root as reaches the disk; the
//! rest is an archive on that disk. The console is its first serial line, the agent's line the second, which
//! Bochs connects to a port of ours.

use super::bochs::Bochs;
use super::{Machine, Running, boot_cd, end, wait_up};
use crate::console::Console;
use crate::emulator::Emulator;
use crate::initramfs::Initramfs;
use crate::kernels::Kernel;
use crate::link::Link;
use crate::memory_file::MemoryFile;
use crate::testbed::{Testbed, bare_root};
use crate::{Error, Result, children, modules};
use std::io;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

const MEMORY_MIB: u32 = 2048;
/// The only model that announces all of VMX that we look at, and on which Debian's 6.18 boots.
const MODEL: &str = "corei7_skylake_x";
/// Instructions of one CPU that are a second of its clock.
const INSTRUCTIONS_PER_S: u32 = 100_000_000;
/// What one CPU executes before the next one has its turn.
const QUANTUM: u32 = 32;
/// The disk's size is a multiple of a cylinder's: 16 heads, 63 sectors of 512 bytes.
const CYLINDER_BYTES: usize = 16 * 63 * 512;
/// What the kernel needs to find the disk.
const DISK_MODULES: [&str; 2] = ["ata_piix", "sd_mod"];
/// How long Bochs may take to open its lines: it does so before it executes anything.
const LINE_PATIENCE: Duration = Duration::from_secs(120);
/// What is shown of Bochs's log if it ends.
const LOG_SHOWN: u64 = 2048;

/// The kernel must not calibrate its clock: each sleep would take many times the instructions.
fn kernel_arguments(testbed: &Testbed) -> String {
    let khz = INSTRUCTIONS_PER_S / 1000;
    let clock = format!("tsc=reliable tsc_early_khz={khz}");
    let ours = "microslice.serial-line";
    let console = "console=ttyS0,115200 loglevel=5 panic=-1";
    format!("{console} {clock} mitigations=off {ours} {}", testbed.kernel_arguments).trim_end().to_owned()
}

/// A root file system's archive as a disk.
pub fn disk(mut archive: Vec<u8>) -> Vec<u8> {
    archive.resize(archive.len().next_multiple_of(CYLINDER_BYTES), 0);
    archive
}

/// Boots `kernel`; the archive on `disk` is most of its root file system.
pub fn boot(
    testbed: &Testbed,
    bochs: &Bochs,
    emulator: &Emulator,
    kernel: &Kernel,
    disk: &MemoryFile,
) -> Result<Running> {
    let start = Instant::now();
    let console = Arc::new(Console::without_monitor()?);
    let initrd = initrd(emulator, kernel)?;
    let cd = boot_cd::make(bochs, &kernel.image, &initrd, &kernel_arguments(testbed))?;
    let log = MemoryFile::new(&[])?;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(line_error)?;
    let line = listener.local_addr().map_err(line_error)?.to_string();
    let configuration = configuration(testbed, &[disk, &cd, &log].map(MemoryFile::path), &console, &line);
    let configuration = MemoryFile::new(configuration.as_bytes())?;

    let mut command = bochs.command();
    command.args(["-q", "-f", &configuration.path()]);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let fds = [disk, &cd, &log, &configuration].map(MemoryFile::fd);
    let spawned = children::spawn(command, [&fds[..], &console.fds()[..]].concat());
    let mut process = spawned.map_err(|cause| Error::Program { program: "bochs".into(), cause })?;
    let up = accept(&listener, &mut process).and_then(|stream| {
        let writer = stream.try_clone().map_err(|cause| cause.to_string())?;
        let link = Link::over_uart(&kernel.release, stream, writer, Arc::clone(&console));
        wait_up(&link, &console, Machine::Intel.boot_patience(), || log.tail(LOG_SHOWN))?;
        Ok(link)
    });
    match up {
        Ok(link) => Ok(Running { link, process, console, boot_time: start.elapsed() }),
        Err(cause) => {
            end(&mut process);
            let cause = format!("{cause}; {}", log.tail(LOG_SHOWN).trim());
            Err(Error::Stage { machine: kernel.release.clone(), stage: "host up", cause })
        }
    }
}

/// What the kernel unpacks at boot: the agent, and what it needs to unpack the rest.
fn initrd(emulator: &Emulator, kernel: &Kernel) -> Result<Vec<u8>> {
    let mut root = bare_root(emulator)?;
    add_modules(&mut root, kernel, &DISK_MODULES)?;
    Ok(root.finish())
}

fn add_modules(root: &mut Initramfs, kernel: &Kernel, wanted: &[&str]) -> Result<()> {
    for (name, content) in modules::load_order(kernel, wanted)? {
        root.file(&format!("modules/{name}"), &content);
    }
    Ok(())
}

/// Bochs's own words for the machine. Its paths are those of descriptors that it inherits.
fn configuration(testbed: &Testbed, [disk, cd, log]: &[String; 3], console: &Console, line: &str) -> String {
    let Testbed { cpus, .. } = testbed;
    let console = console.path();
    format!(
        "config_interface: textconfig
display_library: term, options=\"hideIPS\"
plugin_ctrl: speaker=0, gameport=0, parallel=0
cpu: model={MODEL}, count=1:{cpus}:1, ips={INSTRUCTIONS_PER_S}, quantum={QUANTUM}
cpu: reset_on_triple_fault=0, ignore_bad_msrs=1
memory: guest={MEMORY_MIB}, host={MEMORY_MIB}, block_size=1024
romimage: file=$BXSHARE/BIOS-bochs-latest, options=fastboot
vgaromimage: file=$BXSHARE/VGABIOS-lgpl-latest
pci: enabled=1, chipset=i440fx
clock: sync=none, time0=utc
boot: cdrom
ata0: enabled=1, ioaddr1=0x1f0, ioaddr2=0x3f0, irq=14
ata1: enabled=1, ioaddr1=0x170, ioaddr2=0x370, irq=15
ata0-master: type=disk, mode=flat, path=\"{disk}\", cylinders=0
ata1-master: type=cdrom, path=\"{cd}\", status=inserted
com1: enabled=1, mode=file, dev={console}
com2: enabled=1, mode=socket-client, dev={line}
log: {log}
panic: action=fatal
error: action=ignore
info: action=ignore
debug: action=ignore
"
    )
}

/// Bochs's end of the agent's line.
fn accept(listener: &TcpListener, process: &mut Child) -> Result<TcpStream, String> {
    let said = |cause: io::Error| format!("the agent's line: {cause}");
    listener.set_nonblocking(true).map_err(said)?;
    let deadline = Instant::now() + LINE_PATIENCE;
    while Instant::now() < deadline {
        match listener.accept() {
            Ok((stream, _)) => {
                stream.set_nonblocking(false).map_err(said)?;
                return Ok(stream);
            }
            Err(cause) if cause.kind() == io::ErrorKind::WouldBlock => {}
            Err(cause) => return Err(said(cause)),
        }
        if let Ok(Some(status)) = process.try_wait() {
            return Err(format!("Bochs ended at once ({status})"));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Err(format!("Bochs didn't open the agent's line in {} s", LINE_PATIENCE.as_secs()))
}

fn line_error(cause: io::Error) -> Error {
    Error::file("the agent's line", cause)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_ends_with_a_cylinder_and_begins_with_the_archive() {
        let disk = disk(vec![7; CYLINDER_BYTES + 1]);
        assert_eq!(disk.len(), 2 * CYLINDER_BYTES);
        assert_eq!((disk[CYLINDER_BYTES], disk[CYLINDER_BYTES + 1]), (7, 0));
    }
}
