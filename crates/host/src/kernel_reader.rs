//! Reading guest kernels beside the daemon's loop.
//!
//! Problem.   An image takes a fifth of a second to read, a large guest's memory some seconds; weights, slides and resizes
//!            can't wait for that.
//! Mechanism. One thread does the reading, one kernel after the other. The daemon asks through a channel and looks for
//!            answers at each turn; an answer says which VM it is for, and whose turn that slot was.
//!            It is niced, so that it waits among the vCPUs and never goes before them: a guest that is new shall be
//!            accelerated soon, one that was looked at again and again in vain has no claim to anything.
//! Limits.    The thread isn't waited for at the end: it writes nothing that could be left half-done.

use crate::guest_kernels::{GuestKernel, GuestKernels};
use crate::memory_slots;
use microslice_symbols::memory::process::ProcessMemory;
use microslice_symbols::memory::{ScanLimits, find_kernel};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

/// A VM: its process, and the address of its `struct kvm`. It keeps it through restarts of the scheduler.
pub type VmKey = (u32, u64);

/// Where a guest's kernel is to be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KernelSource {
    /// An image file: the path to open, and the one that messages show.
    Image { path: PathBuf, display: PathBuf },
    /// The guest's memory, through the VMM with this process ID. `is_hopeful`: it hasn't been read in vain often.
    Memory { pid: u32, is_hopeful: bool },
}

/// The weight of a third of a VM (docs/scheduler.md, Queues).
const NICE: libc::c_int = 5;
/// The least there is.
const NICE_IN_VAIN: libc::c_int = 19;

/// A kernel that was asked for.
pub struct Answer {
    pub vm: VmKey,
    pub source: KernelSource,
    pub found: Result<FoundKernel, String>,
}

pub struct FoundKernel {
    pub kernel: Arc<GuestKernel>,
    /// What the guest's memory says of its slide; images say nothing.
    pub slide: Option<u64>,
}

pub struct KernelReader {
    requests: Sender<(VmKey, KernelSource)>,
    answers: Receiver<Answer>,
}

impl KernelSource {
    fn nice(&self) -> libc::c_int {
        match self {
            Self::Memory { is_hopeful: false, .. } => NICE_IN_VAIN,
            _ => NICE,
        }
    }
}

impl KernelReader {
    /// # Errors
    /// The system has no thread for it.
    pub fn start(mut kernels: GuestKernels) -> std::io::Result<Self> {
        let (requests, asked) = channel::<(VmKey, KernelSource)>();
        let (answer, answers) = channel();
        std::thread::Builder::new().name("kernel-reader".into()).spawn(move || {
            while let Ok((vm, source)) = asked.recv() {
                set_nice(source.nice());
                let found = read(&mut kernels, &source);
                return_freed_memory();
                if answer.send(Answer { vm, source, found }).is_err() {
                    break;
                }
            }
        })?;
        Ok(Self { requests, answers })
    }

    pub fn ask(&self, vm: VmKey, source: KernelSource) {
        // The thread ends only after us, or by a panic: the VM then stays without symbols.
        let _ = self.requests.send((vm, source));
    }

    pub fn next_answer(&self) -> Option<Answer> {
        self.answers.try_recv().ok()
    }
}

fn read(kernels: &mut GuestKernels, source: &KernelSource) -> Result<FoundKernel, String> {
    match source {
        KernelSource::Image { path, display } => {
            let kernel = kernels.open(path, display).map_err(|error| error.to_string())?;
            Ok(FoundKernel { kernel, slide: None })
        }
        KernelSource::Memory { pid, .. } => read_memory(kernels, *pid),
    }
}

fn read_memory(kernels: &mut GuestKernels, pid: u32) -> Result<FoundKernel, String> {
    let slots = memory_slots::of_process(pid).map_err(|error| error.to_string())?;
    let memory = ProcessMemory::of_slots(pid, &slots).map_err(|error| error.to_string())?;
    let running =
        find_kernel(&memory, &ScanLimits::default(), &mut |_| ()).map_err(|error| error.to_string())?;
    let kernel = kernels.adopt(&running.kernel, &format!("of process {pid}"))?;
    Ok(FoundKernel { kernel, slide: running.slide })
}

/// Of the calling thread: to Linux, each thread has a nice value of its own. Without the right to go back up it stays down.
fn set_nice(nice: libc::c_int) {
    const THIS_THREAD: libc::id_t = 0;
    // SAFETY: only numbers are passed.
    unsafe { libc::setpriority(libc::PRIO_PROCESS, THIS_THREAD, nice) };
}

/// A kernel takes some 130 MiB while it is read. Those that run for months don't keep that.
fn return_freed_memory() {
    #[cfg(target_env = "gnu")]
    // SAFETY: malloc_trim only gives unused pages of the heap back to the system.
    unsafe {
        libc::malloc_trim(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nice() -> libc::c_int {
        // SAFETY: only numbers are passed.
        unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) }
    }

    #[test]
    fn a_guest_that_was_looked_at_in_vain_is_read_with_the_least_weight_and_none_with_the_daemons() {
        let image = KernelSource::Image { path: "/k".into(), display: "/k".into() };
        let memory = |is_hopeful| KernelSource::Memory { pid: 1, is_hopeful };
        let sources = [&image, &memory(true), &memory(false)];
        assert_eq!(sources.map(KernelSource::nice), [NICE, NICE, NICE_IN_VAIN]);
    }

    #[test]
    fn the_reader_alone_is_niced() {
        let before = nice();
        let niced = std::thread::spawn(|| {
            set_nice(NICE_IN_VAIN);
            nice()
        });
        assert_eq!((niced.join().unwrap(), nice()), (NICE_IN_VAIN, before));
    }
}
