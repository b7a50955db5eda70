//! Reading guest kernels beside the daemon's loop.
//!
//! Problem.   An image takes a fifth of a second to read, a large guest's memory some seconds; weights,
//!            slides and resizes can't wait for that.
//! Mechanism. One thread does the reading, one kernel after the other, of each VMM in turn: a tenant that
//!            starts many VMs waits behind itself. The daemon asks through a queue and looks for answers at
//!            each turn; an answer says which VM it is for. What a guest holds may be anything: reading that
//!            panics is an answer, too, and the next is read. It is niced, so that it waits among the vCPUs
//!            and never goes before them: a guest that is new shall be accelerated soon, one that was looked
//!            at again and again in vain has no claim to anything.
//! Limits.    The thread isn't waited for at the end: it writes nothing that could be left half-done.

use crate::guests::count_words::{self, CountWords};
use crate::guests::counting::RunningKernel;
use crate::guests::fair_queue::FairQueue;
use crate::guests::guest_kernels::{GuestKernel, GuestKernels};
use crate::guests::hint_page::{self, HintPage};
use crate::guests::{memory_slots, tenant_files};
use microslice_symbols::memory::process::ProcessMemory;
use microslice_symbols::memory::{KernelInMemory, ScanLimits, find_kernel_that};
use microslice_symbols::preempt_count::CounterSymbols;
use microslice_symbols::slide::{Landmarks, Observation, SlideFinder, halt_sites};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};

/// A VM: its process, and the address of its `struct kvm`. It keeps it through restarts of the scheduler.
pub type VmKey = (u32, u64);

/// Where a guest's kernel is to be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KernelSource {
    /// An image file that the operator named.
    Image { path: PathBuf },
    /// One that the VMM with this process ID was given, as it names it.
    TenantImage { pid: u32, path: PathBuf },
    /// The guest's memory, through the VMM with this process ID. `is_hopeful`: it hasn't been read in vain
    /// often. `witnesses`: what its vCPUs did of late, which the kernel must fit.
    Memory { pid: u32, is_hopeful: bool, witnesses: Vec<Witness> },
}

/// An act of a guest's vCPU by which its kernel is recognised. Addresses are run-time addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Witness {
    Halt(u64),
    Lstar(u64),
}

impl Witness {
    /// Tells `finder` of it, and returns what follows.
    pub fn testify_to(self, finder: &mut SlideFinder) -> Observation {
        match self {
            Self::Halt(address) => finder.observe_halt(address),
            Self::Lstar(address) => finder.observe_lstar(address),
        }
    }
}

/// The weight of a third of a VM (docs/explanation/scheduler.md, Queues).
pub(crate) const NICE: libc::c_int = 5;
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
    /// The slide by the guest's memory; images don't have it.
    pub slide: Option<u64>,
}

/// A question about a VM.
enum Question {
    Kernel(KernelSource),
    /// Where its hint page is; the one that it had.
    Hints(Option<HintPage>),
    /// Where its CPUs count.
    Counts {
        kernel: RunningKernel,
        symbols: CounterSymbols,
        known: Option<Arc<CountWords>>,
    },
}

/// Where a guest's CPUs count, or why that isn't known.
pub struct CountAnswer {
    pub vm: VmKey,
    pub kernel: RunningKernel,
    pub found: Result<Arc<CountWords>, String>,
}

/// Where a VM's hint page is now, or what is wrong with it.
pub struct HintAnswer {
    pub vm: VmKey,
    pub found: Result<Option<HintPage>, String>,
}

pub struct KernelReader {
    requests: Arc<FairQueue<(VmKey, Question)>>,
    answers: Receiver<Answer>,
    hint_answers: Receiver<HintAnswer>,
    count_answers: Receiver<CountAnswer>,
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
        let requests = Arc::<FairQueue<(VmKey, Question)>>::default();
        let asked = Arc::clone(&requests);
        let (answer, answers) = channel();
        let (hint_answer, hint_answers) = channel();
        let (count_answer, count_answers) = channel();
        std::thread::Builder::new().name("kernel-reader".into()).spawn(move || {
            while let Some((vm, question)) = asked.next() {
                let is_heard = match question {
                    Question::Kernel(source) => {
                        set_nice(source.nice());
                        let found = or_panic_as_answer(|| read(&mut kernels, &source));
                        return_freed_memory();
                        answer.send(Answer { vm, source, found }).is_ok()
                    }
                    Question::Hints(known) => {
                        set_nice(NICE);
                        let found = or_panic_as_answer(|| hint_page::look(vm.0, known));
                        hint_answer.send(HintAnswer { vm, found }).is_ok()
                    }
                    Question::Counts { kernel, symbols, known } => {
                        set_nice(NICE);
                        let look = || count_words::look(vm.0, &symbols, kernel.slide, known);
                        let found = or_panic_as_answer(look);
                        count_answer.send(CountAnswer { vm, kernel, found }).is_ok()
                    }
                };
                if !is_heard {
                    break;
                }
            }
        })?;
        Ok(Self { requests, answers, hint_answers, count_answers })
    }

    pub fn ask(&self, vm: VmKey, source: KernelSource) {
        self.requests.add(vm.0, (vm, Question::Kernel(source)));
    }

    pub fn ask_for_hints(&self, vm: VmKey, known: Option<HintPage>) {
        self.requests.add(vm.0, (vm, Question::Hints(known)));
    }

    /// Asks where the CPUs of a VM's guest count; `known`: what was found before.
    pub fn ask_for_counts(
        &self,
        vm: VmKey,
        kernel: RunningKernel,
        symbols: CounterSymbols,
        known: Option<Arc<CountWords>>,
    ) {
        self.requests.add(vm.0, (vm, Question::Counts { kernel, symbols, known }));
    }

    pub fn next_count_answer(&self) -> Option<CountAnswer> {
        self.count_answers.try_recv().ok()
    }

    pub fn next_hint_answer(&self) -> Option<HintAnswer> {
        self.hint_answers.try_recv().ok()
    }

    pub fn next_answer(&self) -> Option<Answer> {
        self.answers.try_recv().ok()
    }
}

impl Drop for KernelReader {
    fn drop(&mut self) {
        self.requests.close();
    }
}

/// Turns a panic into an answer: an unforeseen kernel or memory costs only its own guest its symbols.
fn or_panic_as_answer<T>(read: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    // Shared state is changed in steps that are each complete.
    catch_unwind(AssertUnwindSafe(read))
        .unwrap_or_else(|_| Err("reading it failed: a fault of ours".to_owned()))
}

fn read(kernels: &mut GuestKernels, source: &KernelSource) -> Result<FoundKernel, String> {
    match source {
        KernelSource::Image { path } => {
            let kernel = kernels.open(path, path).map_err(|error| error.to_string())?;
            Ok(FoundKernel { kernel, slide: None })
        }
        KernelSource::TenantImage { pid, path } => {
            let file =
                tenant_files::open(*pid, path).map_err(|cause| format!("{}: {cause}", path.display()))?;
            let opened = tenant_files::path_of(&file);
            let kernel = kernels.open(&opened, path).map_err(|error| error.to_string())?;
            Ok(FoundKernel { kernel, slide: None })
        }
        KernelSource::Memory { pid, witnesses, .. } => read_memory(kernels, *pid, witnesses),
    }
}

fn read_memory(kernels: &mut GuestKernels, pid: u32, witnesses: &[Witness]) -> Result<FoundKernel, String> {
    let slots = memory_slots::of_process(pid).map_err(|error| error.to_string())?;
    let memory = ProcessMemory::of_slots(pid, &slots).map_err(|error| error.to_string())?;
    let mut runs = |kernel: KernelInMemory<'_>| {
        let landmarks = Landmarks::new(kernel.symbols, &halt_sites(kernel.symbols, kernel.code));
        let slide = kernel.witnesses.first().map(|&(_, slide)| slide);
        fits(landmarks, slide, witnesses)
    };
    let running = find_kernel_that(&mut runs, &memory, &ScanLimits::default(), &mut |_| ())
        .map_err(|error| error.to_string())?;
    let kernel = kernels.adopt(&running.kernel, &format!("of process {pid}"))?;
    Ok(FoundKernel { kernel, slide: running.slide })
}

/// Does a kernel, moved by `slide` if that is known, explain all that the vCPUs did? Memory may hold one that
/// ran before.
fn fits(landmarks: Landmarks, slide: Option<u64>, witnesses: &[Witness]) -> bool {
    let mut finder = SlideFinder::new(landmarks);
    if let Some(slide) = slide {
        finder.observe_kernel_offset(slide);
    }
    witnesses.iter().all(|witness| witness.testify_to(&mut finder) != Observation::Disagrees)
}

/// Sets the nice value of the calling thread: on Linux, each thread has its own. Without the right to go back
/// up it stays down.
pub(crate) fn set_nice(nice: libc::c_int) {
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
    fn guests_read_in_vain_are_read_with_the_least_weight() {
        let image = KernelSource::Image { path: "/k".into() };
        let memory = |is_hopeful| KernelSource::Memory { pid: 1, is_hopeful, witnesses: Vec::new() };
        let sources = [&image, &memory(true), &memory(false)];
        assert_eq!(sources.map(KernelSource::nice), [NICE, NICE, NICE_IN_VAIN]);
    }

    #[test]
    fn a_panic_while_reading_is_an_answer() {
        assert!(
            or_panic_as_answer::<()>(|| panic!("a guest's doing")).unwrap_err().contains("a fault of ours")
        );
        assert_eq!(or_panic_as_answer(|| Ok(1)), Ok(1));
    }

    #[test]
    fn an_image_named_by_a_vmm_opens_as_a_tenants() {
        let folder = tempfile::tempdir().unwrap();
        let fifo = folder.path().join("fifo");
        let made = std::process::Command::new("mkfifo").arg(&fifo).status().unwrap();
        assert!(made.success());
        let reader = KernelReader::start(GuestKernels::default()).unwrap();
        reader.ask((1, 1), KernelSource::TenantImage { pid: std::process::id(), path: fifo });
        let answer = reader.answers.recv_timeout(std::time::Duration::from_secs(60)).expect("nothing blocks");
        assert!(answer.found.err().unwrap().ends_with("fifo: isn't a regular file"));
    }

    #[test]
    fn the_kernel_that_explains_all_witnesses_fits() {
        const TEXT: u64 = 0xffff_ffff_8100_0000;
        let with_halt_at = |offset: u64| {
            let lines = format!("{TEXT:x} T _text\n{:x} T _etext\n", TEXT + 0x10_0000);
            Landmarks::new(
                &microslice_symbols::text::read_symbol_text(lines.as_bytes()).unwrap(),
                &[TEXT + offset],
            )
        };
        let (slide, running, before) = (Some(0x20_0000), with_halt_at(0x1000), with_halt_at(0x2000));
        let halts = [Witness::Halt(TEXT + 0x20_1001), Witness::Halt(TEXT + 0x20_1001)];
        assert!(fits(running.clone(), slide, &halts) && fits(running.clone(), None, &halts));
        assert!(!fits(before.clone(), slide, &halts), "another kernel");
        assert!(!fits(running.clone(), Some(0x40_0000), &halts), "the same kernel, before it rebooted");
        assert!(fits(before, slide, &[]), "nobody has halted yet");
        assert!(fits(running, slide, &[Witness::Lstar(0), Witness::Halt(0x1234)]), "the firmware");
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
