//! The VMs that are seen, and what is known of their guests' code: told to the kernel side as it becomes known.

use super::Lines;
use super::programs::Programs;
use crate::HostError;
use crate::cgroups::CpuLimits;
use crate::config::Settings;
use crate::daemon::{introduce, say_slide};
use crate::guest_kernels::{GuestKernel, GuestKernels};
use crate::kernel_reader::{Answer, KernelReader, KernelSource, Witness};
use crate::scheduler::{Event, KernelVm, VmStats};
use crate::vms::{GuestKnowledge, LatestWitnesses, MemoryLooks, SlideNews, Vm, VmmProcess};
use crate::weights::Place;
use microslice_policy::{GuestLayout, WEIGHT_DEFAULT};
use microslice_symbols::slide::{Observation, SlideState};
use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// How long a guest whose image is known may go without telling its slide before its memory is asked.
const SLIDE_PATIENCE: Duration = Duration::from_secs(10);

pub struct Guests<'s> {
    settings: &'s Settings,
    kernels: KernelReader,
    /// The kernels whose ranges the kernel side has, by slot.
    shared_codes: BTreeMap<u32, Weak<GuestKernel>>,
    /// By slot.
    pub vms: BTreeMap<u32, Vm>,
}

impl<'s> Guests<'s> {
    pub fn new(settings: &'s Settings, kernels: GuestKernels) -> Result<Self, HostError> {
        let kernels = KernelReader::start(kernels)
            .map_err(|cause| HostError::broken(format!("no thread to read kernels: {cause}")))?;
        Ok(Self { settings, kernels, shared_codes: BTreeMap::new(), vms: BTreeMap::new() })
    }

    /// VMs that have come or gone, guests' memories that are due to be looked into, kernels that were read.
    pub fn look(&mut self, programs: &mut Programs, output: &mut Lines<'_>) -> Result<(), HostError> {
        let seen = programs.vms();
        let is_there = |vm: &Vm| {
            let is_same = |seen: &KernelVm| {
                seen.slot == vm.kernel_side.slot && seen.generation == vm.kernel_side.generation
            };
            seen.iter().any(is_same)
        };
        self.vms.retain(|_, vm| {
            let stays = is_there(vm);
            if !stays {
                (output.say)(&format!("{}: gone", vm.name));
            }
            stays
        });
        for kernel_side in seen {
            match self.vms.get_mut(&kernel_side.slot) {
                Some(vm) => {
                    let before = std::mem::replace(&mut vm.kernel_side, kernel_side);
                    if vm.hides_since(before.registers) && !matches!(vm.guest, GuestKnowledge::Reading) {
                        introduce(vm, output.say);
                    }
                }
                None => self.welcome(kernel_side, programs, output)?,
            }
        }
        self.look_into_memories();
        while let Some(answer) = self.kernels.next_answer() {
            self.hear_of_kernel(answer, programs, output)?;
        }
        self.vms.values_mut().for_each(|vm| say_slide(vm, output.say));
        Ok(())
    }

    fn welcome(
        &mut self,
        kernel_side: KernelVm,
        programs: &mut Programs,
        output: &mut Lines<'_>,
    ) -> Result<(), HostError> {
        let pid = kernel_side.pid;
        let process = VmmProcess::read(pid);
        let named = self.settings.guests.get(&process.name);
        let mut vm = Vm {
            kernel_side,
            weight: WEIGHT_DEFAULT,
            urgent_schemes: 0,
            place: Place { cgroups: process.cgroups, given: None },
            wanted_ns: 0,
            is_active: true,
            guest: GuestKnowledge::Reading,
            slide_told: None,
            contradictions: 0,
            latest_witnesses: LatestWitnesses::default(),
            is_named: named.is_some(),
            memory_looks: MemoryLooks::default(),
            slide_news: SlideNews::default(),
            name: process.name,
            cpu_limits: CpuLimits::default(),
            stats_before: VmStats::default(),
            without_symbols: "never boosted",
        };
        tell(programs, &vm)?;
        if let Some(path) = named {
            self.kernels.ask(vm.key(), KernelSource::Image { path: path.clone() });
        } else if let Some(path) = process.kernel_argument {
            self.kernels.ask(vm.key(), KernelSource::TenantImage { pid, path });
        } else if self.settings.guest_memory {
            vm.memory_looks.schedule(Instant::now(), false);
        } else {
            vm.guest = GuestKnowledge::NoImage;
            introduce(&vm, output.say);
        }
        self.vms.insert(kernel_side.slot, vm);
        Ok(())
    }

    /// Guests whose kernel nobody named, or that run another one now, have it in their memory.
    fn look_into_memories(&mut self) {
        let now = Instant::now();
        for vm in self.vms.values_mut() {
            if vm.memory_looks.take_due(now) && vm.slide_told.is_none() {
                let (pid, is_hopeful) = (vm.kernel_side.pid, vm.memory_looks.are_hopeful());
                let witnesses = vm.latest_witnesses.all();
                self.kernels.ask(vm.key(), KernelSource::Memory { pid, is_hopeful, witnesses });
            }
        }
    }

    fn hear_of_kernel(
        &mut self,
        answer: Answer,
        programs: &mut Programs,
        output: &mut Lines<'_>,
    ) -> Result<(), HostError> {
        if let Ok(found) = &answer.found {
            self.share_code(&found.kernel, programs)?;
        }
        let Some(vm) = self.vms.values_mut().find(|vm| vm.key() == answer.vm) else {
            return Ok(()); // it has gone meanwhile
        };
        let is_image = !matches!(answer.source, KernelSource::Memory { .. });
        match answer.found {
            Ok(found) => {
                vm.learn(found);
                // A guest that never halts tells its slide only there.
                if is_image && self.settings.guest_memory {
                    vm.memory_looks.schedule_after(Instant::now(), SLIDE_PATIENCE);
                }
            }
            Err(cause) => {
                // A VMM's -kernel may be a firmware, or a file that we can't reach: the memory has what runs.
                let looks = self.settings.guest_memory && !vm.is_named;
                if looks {
                    vm.memory_looks.schedule(Instant::now(), vm.is_known());
                }
                if (looks && is_image) || !matches!(vm.guest, GuestKnowledge::Reading) {
                    return Ok(());
                }
                vm.guest = GuestKnowledge::Unreadable(cause);
            }
        }
        introduce(vm, output.say);
        tell(programs, vm)
    }

    /// Gives a kernel's ranges to the BPF side, unless it has them.
    fn share_code(&mut self, kernel: &Arc<GuestKernel>, programs: &mut Programs) -> Result<(), HostError> {
        let (slot, shared) = (kernel.code_slot, Arc::downgrade(kernel));
        let before = self.shared_codes.insert(slot, shared.clone());
        if before.is_some_and(|before| before.ptr_eq(&shared)) {
            return Ok(());
        }
        programs.set_guest_code(slot, &kernel.code)
    }

    /// A witness of a guest's slide: the kernel side is told when it settles, or is dropped.
    pub fn hear(
        &mut self,
        event: Event,
        programs: &mut Programs,
        output: &mut Lines<'_>,
    ) -> Result<(), HostError> {
        let (slot, generation, witness) = match event {
            Event::Halt { slot, generation, rip } => (slot, generation, Witness::Halt(rip)),
            Event::Lstar { slot, generation, address } => (slot, generation, Witness::Lstar(address)),
            Event::Resize { .. } => return Ok(()), // there is no pool
        };
        let Some(vm) = self.vms.get_mut(&slot).filter(|vm| vm.kernel_side.generation == generation) else {
            return Ok(());
        };
        vm.latest_witnesses.hear(witness);
        let GuestKnowledge::Kernel { finder, .. } = &mut vm.guest else { return Ok(()) };
        let observation = witness.testify_to(finder);
        let slide = finder.accepted();
        if observation == Observation::Disagrees && matches!(finder.state(), SlideState::Contradicted(_)) {
            vm.contradictions = vm.contradictions.saturating_add(1);
            // A guest that booted another kernel: its memory knows which.
            if vm.runs_another_kernel() && self.settings.guest_memory && !vm.is_named {
                vm.memory_looks.schedule_once(Instant::now());
            }
        }
        if slide == vm.slide_told {
            return Ok(());
        }
        vm.slide_told = slide;
        if slide.is_some() {
            vm.contradictions = 0;
        }
        vm.slide_news.add();
        say_slide(vm, output.say);
        tell(programs, vm)
    }
}

fn tell(programs: &mut Programs, vm: &Vm) -> Result<(), HostError> {
    let (code, layout) = match &vm.guest {
        GuestKnowledge::Kernel { kernel, finder } => {
            (kernel.code_slot, finder.accepted().map_or(GuestLayout::UNKNOWN, GuestLayout::slid_by))
        }
        _ => (0, GuestLayout::UNKNOWN),
    };
    programs.set_vm_feed(vm.kernel_side, code, layout)
}
