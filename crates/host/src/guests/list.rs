//! The VMs that are seen, and what is known of their guests' code: told to the kernel side as it becomes
//! known.

use crate::HostError;
use crate::bpf::events::Event;
use crate::bpf::kernel_vm::KernelVm;
use crate::bpf::maps::update;
use crate::guests::counts::{self, CountReader};
use crate::guests::guest_kernels::{GuestKernel, GuestKernels};
use crate::guests::kernel_reader::{Answer, KernelReader, Witness};
use crate::guests::lines::{introduce, say_metadata, say_namesakes, say_slide};
use crate::guests::vms::{GuestKnowledge, Vm, VmmProcess};
use crate::interface::VmFeed;
use crate::settings::Settings;
use libbpf_rs::MapMut;
use microslice_policy::GuestCode;
use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};
use zerocopy::{FromZeros, IntoBytes};

const LOOK_AT_DOMAINS: Duration = Duration::from_secs(1);

/// Where lines for the operator go.
pub(crate) struct Lines<'o> {
    pub say: &'o mut dyn FnMut(&str),
}

/// Tells programs for which all VMs weigh the same what is known of one.
pub(crate) fn set_vm_feed(feeds: &MapMut<'_>, slot: u32, feed: &VmFeed) -> Result<(), HostError> {
    update(feeds, slot, feed.as_bytes())
}

/// Programs that see VMs, and are told what is known of their guests' code.
pub(crate) trait KernelSide: CountReader {
    /// The VMs that have a vCPU.
    fn vms(&self) -> Vec<KernelVm>;
    /// Makes a guest kernel's ranges known under `slot`.
    fn set_guest_code(&mut self, slot: u32, code: &GuestCode) -> Result<(), HostError>;
    /// Tells what is known of a VM.
    fn set_vm_feed(&mut self, slot: u32, feed: &VmFeed) -> Result<(), HostError>;
}

/// The purpose for which VMs are looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// All that is known of one is wanted, whatever policy it has.
    Observe,
    /// VMs that may be accelerated are boosted.
    Boost,
}

impl Purpose {
    /// Says what becomes of a VM while its symbols or its slide are unknown.
    fn without_symbols(self) -> &'static str {
        match self {
            Self::Observe => "without classes",
            Self::Boost => "boosted only when woken or late",
        }
    }
}

pub(crate) struct Guests<'s> {
    settings: &'s Settings,
    purpose: Purpose,
    looked_at_domains: Instant,
    kernels: KernelReader,
    /// The kernels whose ranges the kernel side has, by slot.
    shared_codes: BTreeMap<u32, Weak<GuestKernel>>,
    /// By slot.
    pub vms: BTreeMap<u32, Vm>,
}

impl<'s> Guests<'s> {
    pub fn new(settings: &'s Settings, kernels: GuestKernels, purpose: Purpose) -> Result<Self, HostError> {
        let kernels = KernelReader::start(kernels)
            .map_err(|cause| HostError::broken(format!("no thread to read kernels: {cause}")))?;
        Ok(Self {
            settings,
            purpose,
            looked_at_domains: Instant::now(),
            kernels,
            shared_codes: BTreeMap::new(),
            vms: BTreeMap::new(),
        })
    }

    /// The name of the VM in this slot, if it is this one.
    pub fn name_of(&self, slot: u32, generation: u32) -> Option<String> {
        self.vms.get(&slot).filter(|vm| vm.kernel_side.generation == generation).map(|vm| vm.name.clone())
    }

    /// VMs that have come or gone, guests' memories that are due to be looked into, kernels that were read.
    pub fn look(&mut self, programs: &mut dyn KernelSide, output: &mut Lines<'_>) -> Result<(), HostError> {
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
        if self.looked_at_domains.elapsed() >= LOOK_AT_DOMAINS {
            self.looked_at_domains = Instant::now();
            for vm in self.vms.values_mut() {
                if look_at_domain(vm, self.settings, self.purpose, output) {
                    tell(programs, vm)?;
                }
            }
        }
        self.look_into_memories();
        while let Some(answer) = self.kernels.next_answer() {
            self.hear_of_kernel(answer, programs, output)?;
        }
        self.vms.values_mut().for_each(|vm| say_slide(vm, output.say));
        let counts = self.purpose == Purpose::Observe || self.settings.reads_counts();
        if counts && self.settings.guest_memory {
            counts::look(&mut self.vms, &self.kernels, programs, output.say)?;
        }
        Ok(())
    }

    fn welcome(
        &mut self,
        kernel_side: KernelVm,
        programs: &mut dyn KernelSide,
        output: &mut Lines<'_>,
    ) -> Result<(), HostError> {
        let is_taken = |name: &str| self.vms.values().any(|other| other.name == name);
        let (process, said) =
            VmmProcess::read(kernel_side.pid).told_apart(|name| self.settings.knows_vm(name), is_taken);
        said.into_iter().for_each(|line| (output.say)(&line));
        let image = self.settings.guests.get(&process.name).cloned();
        let without_symbols = self.purpose.without_symbols();
        let (mut vm, source) =
            Vm::welcome(kernel_side, process, image, self.settings.guest_memory, without_symbols);
        adopt(&mut vm, self.settings, self.purpose);
        look_at_domain(&mut vm, self.settings, self.purpose, output);
        say_namesakes(&vm, self.vms.values(), self.settings, output.say);
        tell(programs, &vm)?;
        if let Some(source) = source {
            self.kernels.ask(vm.key(), source);
        } else if matches!(vm.guest, GuestKnowledge::NoImage) {
            introduce(&vm, output.say);
        }
        self.vms.insert(kernel_side.slot, vm);
        Ok(())
    }

    fn look_into_memories(&mut self) {
        let now = Instant::now();
        for vm in self.vms.values_mut() {
            if let Some(source) = vm.due_look_into_memory(now) {
                self.kernels.ask(vm.key(), source);
            }
        }
    }

    fn hear_of_kernel(
        &mut self,
        answer: Answer,
        programs: &mut dyn KernelSide,
        output: &mut Lines<'_>,
    ) -> Result<(), HostError> {
        if let Ok(found) = &answer.found {
            self.share_code(&found.kernel, programs)?;
        }
        let Some(vm) = self.vms.values_mut().find(|vm| vm.key() == answer.vm) else {
            return Ok(()); // it has gone meanwhile
        };
        if !vm.hear_of_kernel(&answer.source, answer.found, self.settings.guest_memory) {
            return Ok(());
        }
        introduce(vm, output.say);
        tell(programs, vm)
    }

    /// Gives a kernel's ranges to the BPF side, unless it has them.
    fn share_code(
        &mut self,
        kernel: &Arc<GuestKernel>,
        programs: &mut dyn KernelSide,
    ) -> Result<(), HostError> {
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
        programs: &mut dyn KernelSide,
        output: &mut Lines<'_>,
    ) -> Result<(), HostError> {
        let (slot, generation, witness) = match event {
            Event::Halt { slot, generation, rip } => (slot, generation, Witness::Halt(rip)),
            Event::Lstar { slot, generation, address } => (slot, generation, Witness::Lstar(address)),
            // There is no pool; and nobody goes before others.
            Event::Resize { .. } | Event::Refusal(_) => return Ok(()),
        };
        let Some(vm) = self.vms.get_mut(&slot).filter(|vm| vm.kernel_side.generation == generation) else {
            return Ok(());
        };
        if !vm.hear_witness(witness, self.settings.guest_memory) {
            return Ok(());
        }
        say_slide(vm, output.say);
        tell(programs, vm)
    }
}

/// Looks at libvirt's metadata of a VM. True if they have changed.
fn look_at_domain(vm: &mut Vm, settings: &Settings, purpose: Purpose, output: &mut Lines<'_>) -> bool {
    let Some(news) = vm.libvirt.look() else { return false };
    if purpose == Purpose::Boost {
        say_metadata(vm, news, settings, output.say);
    }
    adopt(vm, settings, purpose);
    true
}

/// Takes up what is said of it.
fn adopt(vm: &mut Vm, settings: &Settings, purpose: Purpose) {
    if purpose == Purpose::Boost {
        vm.policy = settings.policy_of(&vm.name, &vm.libvirt.policy());
    }
}

fn tell(programs: &mut dyn KernelSide, vm: &Vm) -> Result<(), HostError> {
    let (code, layout) = vm.code_and_layout();
    let feed = VmFeed {
        layout,
        generation: vm.kernel_side.generation,
        code,
        max_wait_ns: vm.policy.own_max_wait_ns(),
        ..VmFeed::new_zeroed()
    };
    programs.set_vm_feed(vm.kernel_side.slot, &feed)
}
