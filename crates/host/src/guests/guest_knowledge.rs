//! How a guest becomes known: its kernel is looked for and read, and acts of its vCPUs bear witness of the
//! slide.
//!
//! The owners of a list of VMs ask here (`run`, and [`crate::guests::list`] for the other modes). They tell
//! their kernel side what follows.

use crate::bpf::kernel_vm::KernelVm;
use crate::guests::counting::Counting;
use crate::guests::guest_kernels::GuestKernel;
use crate::guests::kernel_reader::{FoundKernel, KernelSource, Witness};
use crate::guests::libvirt::{self, StateFile};
use crate::guests::vms::{GuestKnowledge, LatestWitnesses, MemoryLooks, SlideNews, Vm, VmmProcess};
use crate::interface::VmStats;
use crate::machine::cgroups::CpuLimits;
use crate::settings::vm_policy::VmPolicy;
use crate::shares::weights::Place;
use microslice_policy::{GuestLayout, WEIGHT_DEFAULT};
use microslice_symbols::slide::{Observation, SlideState};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a guest whose image is known may go without telling its slide before its memory is asked.
const SLIDE_PATIENCE: Duration = Duration::from_secs(10);

impl Vm {
    /// Seen for the first time, with the default weight. And where its kernel is read first; `None`: not yet,
    /// or nowhere, as its [`GuestKnowledge`] says. `image`: the one that the operator named. `guest_memory`:
    /// may its memory be read?
    pub fn welcome(
        kernel_side: KernelVm,
        process: VmmProcess,
        image: Option<PathBuf>,
        guest_memory: bool,
        without_symbols: &'static str,
    ) -> (Self, Option<KernelSource>) {
        let libvirt = StateFile::of(Path::new(libvirt::STATE_FOLDER), &process.name, kernel_side.pid);
        let mut vm = Self {
            kernel_side,
            libvirt,
            policy: VmPolicy::default(),
            name: process.name,
            weight: WEIGHT_DEFAULT,
            place: Place { cgroups: process.cgroups, given: None },
            urgent_schemes: 0,
            resched_co: None,
            without_symbols,
            wanted_ns: 0,
            is_active: true,
            cpu_limits: CpuLimits::default(),
            guest: GuestKnowledge::Reading,
            slide_told: None,
            contradictions: 0,
            latest_witnesses: LatestWitnesses::default(),
            is_named: image.is_some(),
            memory_looks: MemoryLooks::default(),
            slide_news: SlideNews::default(),
            counting: Counting::default(),
            stats_before: VmStats::default(),
        };
        let source = match (image, process.kernel_argument) {
            (Some(path), _) => Some(KernelSource::Image { path }),
            (None, Some(path)) => Some(KernelSource::TenantImage { pid: kernel_side.pid, path }),
            (None, None) if guest_memory => {
                vm.memory_looks.schedule(Instant::now(), false);
                None
            }
            (None, None) => {
                vm.guest = GuestKnowledge::NoImage;
                None
            }
        };
        (vm, source)
    }

    /// Returns the memory to look into, if a look is due: a guest whose kernel isn't named, or that runs
    /// another one now, has it in its memory. A guest that isn't to be accelerated is left alone; once it may
    /// be, a look that was due is due still.
    pub fn due_look_into_memory(&mut self, now: Instant) -> Option<KernelSource> {
        if !self.policy.accelerates() || !self.memory_looks.take_due(now) || self.slide_told.is_some() {
            return None;
        }
        Some(KernelSource::Memory {
            pid: self.kernel_side.pid,
            is_hopeful: self.memory_looks.are_hopeful(),
            witnesses: self.latest_witnesses.all(),
        })
    }

    /// Takes the result of reading `source`. True if the operator and the kernel side have to hear of it.
    pub fn hear_of_kernel(
        &mut self,
        source: &KernelSource,
        found: Result<FoundKernel, String>,
        guest_memory: bool,
    ) -> bool {
        let is_image = !matches!(source, KernelSource::Memory { .. });
        match found {
            Ok(found) => {
                let before = self.kernel_and_slide();
                self.learn(found);
                // A guest that never halts tells its slide only there.
                if is_image && guest_memory {
                    self.memory_looks.schedule_after(Instant::now(), SLIDE_PATIENCE);
                }
                // A look may have been under way when a halt told the slide.
                return self.kernel_and_slide() != before;
            }
            Err(cause) => {
                // A VMM's -kernel may be a firmware, or a file that we can't reach: the memory has what runs.
                let looks = guest_memory && !self.is_named;
                if looks {
                    self.memory_looks.schedule(Instant::now(), self.is_known());
                }
                if (looks && is_image) || !matches!(self.guest, GuestKnowledge::Reading) {
                    return false;
                }
                self.guest = GuestKnowledge::Unreadable(cause);
            }
        }
        true
    }

    /// Which kernel it is known to run, and the slide that the kernel side was told.
    fn kernel_and_slide(&self) -> (Option<*const GuestKernel>, Option<u64>) {
        let kernel = match &self.guest {
            GuestKnowledge::Kernel { kernel, .. } => Some(Arc::as_ptr(kernel)),
            _ => None,
        };
        (kernel, self.slide_told)
    }

    /// A witness of its slide. True if the slide has settled, or was dropped.
    pub fn hear_witness(&mut self, witness: Witness, guest_memory: bool) -> bool {
        self.latest_witnesses.hear(witness);
        let GuestKnowledge::Kernel { finder, .. } = &mut self.guest else { return false };
        let observation = witness.testify_to(finder);
        let slide = finder.accepted();
        if observation == Observation::Disagrees && matches!(finder.state(), SlideState::Contradicted(_)) {
            self.contradictions = self.contradictions.saturating_add(1);
            // A guest that booted another kernel: its memory knows which.
            if self.runs_another_kernel() && guest_memory && !self.is_named {
                self.memory_looks.schedule_once(Instant::now());
            }
        }
        if slide == self.slide_told {
            return false;
        }
        self.slide_told = slide;
        if slide.is_some() {
            self.contradictions = 0;
        }
        if self.policy.accelerates() {
            self.slide_news.add();
        }
        true
    }

    /// What the kernel side has to know of its code: the slot of its kernel's ranges (0: none), and where
    /// they lie. A guest that isn't to be accelerated is told of as one of which nothing is known: such
    /// guests never are.
    pub fn code_and_layout(&self) -> (u32, GuestLayout) {
        match &self.guest {
            GuestKnowledge::Kernel { kernel, finder } if self.policy.accelerates() => {
                (kernel.code_slot, finder.accepted().map_or(GuestLayout::UNKNOWN, GuestLayout::slid_by))
            }
            _ => (0, GuestLayout::UNKNOWN),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::guests::guest_kernels::kernel as kernel_of;

    fn welcome(
        image: Option<&str>,
        argument: Option<&str>,
        guest_memory: bool,
    ) -> (Vm, Option<KernelSource>) {
        let kernel_side =
            KernelVm { slot: 0, generation: 1, kvm: 2, pid: 3, vcpu_count: 1, ..KernelVm::default() };
        let process = VmmProcess { kernel_argument: argument.map(PathBuf::from), ..VmmProcess::default() };
        Vm::welcome(kernel_side, process, image.map(PathBuf::from), guest_memory, "scheduled normally")
    }

    #[test]
    fn operators_image_precedes_vmms_image_precedes_guest_memory() {
        let path = PathBuf::from("/k");
        assert_eq!(welcome(Some("/k"), Some("/v"), true).1, Some(KernelSource::Image { path: path.clone() }));
        assert_eq!(welcome(None, Some("/k"), true).1, Some(KernelSource::TenantImage { pid: 3, path }));
        let (mut vm, source) = welcome(None, None, true);
        assert_eq!(source, None);
        let later = Instant::now() + Duration::from_secs(3);
        assert!(matches!(vm.due_look_into_memory(later), Some(KernelSource::Memory { pid: 3, .. })));
        assert_eq!(vm.due_look_into_memory(later), None, "once");
        let (mut vm, source) = welcome(None, None, false);
        assert!(source.is_none() && matches!(vm.guest, GuestKnowledge::NoImage));
        assert_eq!(vm.due_look_into_memory(later), None);
    }

    #[test]
    fn an_unreadable_image_is_reported_once_memory_fails_too() {
        let (mut vm, source) = welcome(None, Some("/firmware"), true);
        let source = source.expect("the VMM's image");
        assert!(!vm.hear_of_kernel(&source, Err("no kernel".into()), true));
        assert!(matches!(vm.guest, GuestKnowledge::Reading));
        let memory = vm.due_look_into_memory(Instant::now() + Duration::from_secs(3)).expect("a look");
        assert!(vm.hear_of_kernel(&memory, Err("nothing there".into()), true));
        assert!(matches!(&vm.guest, GuestKnowledge::Unreadable(cause) if cause == "nothing there"));
        assert!(!vm.hear_of_kernel(&memory, Err("nothing there".into()), true), "said once");
    }

    #[test]
    fn a_look_that_brings_nothing_new_is_not_said_again() {
        let (mut vm, source) = welcome(None, Some("/k"), true);
        let (source, kernel) = (source.expect("the VMM's image"), Arc::new(kernel_of("6.12")));
        let found = || Ok(FoundKernel { kernel: Arc::clone(&kernel), slide: None });
        assert!(vm.hear_of_kernel(&source, found(), true));
        let look = vm.due_look_into_memory(Instant::now() + SLIDE_PATIENCE * 2).expect("it told no slide");
        assert!(!vm.hear_of_kernel(&look, found(), true));
        let another = FoundKernel { kernel: Arc::new(kernel_of("6.18")), slide: None };
        assert!(vm.hear_of_kernel(&look, Ok(another), true));
    }

    #[test]
    fn a_guest_not_to_be_accelerated_is_told_as_unknown() {
        let (mut vm, source) = welcome(None, Some("/k"), true);
        let mut kernel = kernel_of("6.12");
        kernel.code_slot = 3;
        let found = FoundKernel { kernel: Arc::new(kernel), slide: None };
        assert!(vm.hear_of_kernel(&source.expect("the VMM's image"), Ok(found), true));
        assert_eq!(vm.code_and_layout().0, 3);
        vm.policy.accelerate = Some(false);
        assert_eq!(vm.code_and_layout(), (0, GuestLayout::UNKNOWN));
        assert_eq!(vm.state(), "not to be accelerated");
        vm.policy.accelerate = None;
        assert_eq!(vm.code_and_layout().0, 3);

        let (mut unread, _) = welcome(None, None, true);
        let later = Instant::now() + Duration::from_secs(3);
        unread.policy.accelerate = Some(false);
        assert_eq!(unread.due_look_into_memory(later), None, "its memory is its own");
        unread.policy.accelerate = None;
        assert!(unread.due_look_into_memory(later).is_some(), "a look that was due is");
    }
}
