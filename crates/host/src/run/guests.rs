//! VMs that come and go, and what becomes known of their kernels.

use crate::HostError;
use crate::bpf::counters::sum;
use crate::bpf::kernel_vm::KernelVm;
use crate::guests::guest_kernels::GuestKernel;
use crate::guests::kernel_reader::Answer;
use crate::guests::lines::{introduce, say_namesakes};
use crate::guests::pinned::pinned_of;
use crate::guests::vms::{GuestKnowledge, Vm, VmmProcess};
use crate::interface::VmFeed;
use crate::machine::cpu_list::cpu_list;
use crate::run::scheduler::Scheduler;
use crate::run::{Daemon, Output, policies};
use crate::settings::SchedulerChoice;
use crate::settings::max_wait::MaxWait;
use std::sync::Arc;
use std::time::Instant;

impl Daemon<'_> {
    /// Gives a kernel's ranges to the BPF side, and to the recording, unless they have them.
    pub(super) fn share_code(
        &mut self,
        kernel: &Arc<GuestKernel>,
        output: &mut Output<'_>,
    ) -> Result<(), HostError> {
        let (slot, shared) = (kernel.code_slot, Arc::downgrade(kernel));
        let before = self.shared_codes.insert(slot, shared.clone());
        if before.as_ref().is_some_and(|before| before.ptr_eq(&shared)) {
            return Ok(());
        }
        if before.is_some() {
            // Decisions with the kernel that had this slot come before the new kernel in the recording.
            self.drain(output)?;
        }
        self.scheduler_mut().set_guest_code(slot, &kernel.code)?;
        if let Some(recorder) = &mut self.recorder {
            recorder.code(slot, &kernel.code)?;
        }
        Ok(())
    }

    pub(super) fn look_for_vms(&mut self, output: &mut Output<'_>) -> Result<(), HostError> {
        let seen = self.scheduler().vms();
        let is_same = |vm: &Vm, seen: &KernelVm| vm.kernel_side.generation == seen.generation;
        let gone: Vec<u32> = self
            .vms
            .iter()
            .filter(|(slot, vm)| !seen.iter().any(|seen| seen.slot == **slot && is_same(vm, seen)))
            .map(|(slot, _)| *slot)
            .collect();
        for slot in gone {
            if let Some(vm) = self.vms.remove(&slot) {
                (output.say)(&format!("{}: gone", vm.name));
                self.gone_before = sum(&self.gone_before, &vm.stats_before);
            }
        }
        self.forget_ended(output);
        let mut has_changed = false;
        for kernel_side in seen {
            match self.vms.get_mut(&kernel_side.slot) {
                Some(vm) => {
                    let before = std::mem::replace(&mut vm.kernel_side, kernel_side);
                    // One that came later may lie in another cgroup.
                    has_changed |= before.vcpu_count != kernel_side.vcpu_count;
                    if vm.hides_since(before.registers) && !matches!(vm.guest, GuestKnowledge::Reading) {
                        introduce(vm, output.say);
                    }
                }
                None => {
                    self.welcome(kernel_side, output)?;
                    has_changed = true;
                }
            }
        }
        if has_changed {
            let vcpus = self.vms.values().map(|vm| vm.kernel_side.vcpu_count).sum();
            let pcpus = self.host.topology.pcpu_count;
            let line = self.least_bound.line(self.bounds(), self.settings.micro_slice_us, vcpus, pcpus);
            line.into_iter().for_each(|line| (output.say)(&line));
            self.read_limits(output);
            self.weigh()?;
        }
        Ok(())
    }

    /// The host's bound on waits, and those of single VMs.
    fn bounds(&self) -> impl Iterator<Item = MaxWait> + use<> {
        let own: Vec<MaxWait> = self.vms.values().filter_map(|vm| vm.policy.max_wait).collect();
        own.into_iter().chain([self.settings.max_wait()])
    }

    /// A VM that came later may be pinned to pCPUs of the micro pool. These are chosen at the start.
    fn say_pinned(&self, vm: &Vm, output: &mut Output<'_>) {
        let topology = &self.host.topology;
        let limit = self.settings.within(topology.micro_order.len()).pool_limit(topology.micro_order.len());
        let micro = &topology.micro_order[..limit.unwrap_or(0) as usize];
        let cpus: Vec<u32> =
            pinned_of(vm.kernel_side.pid).into_iter().filter(|cpu| micro.contains(cpu)).collect();
        if !cpus.is_empty() && self.choice == SchedulerChoice::Microslice {
            let cpus = cpu_list(&cpus);
            (output.say)(&format!(
                "{}: it is pinned to CPUs {cpus}, which may be micro-sliced; --normal-cpus {cpus} keeps them for it",
                vm.name
            ));
        }
    }

    /// A new VM: scheduled by its weight from now on, accelerated once its kernel has been read.
    pub(super) fn welcome(
        &mut self,
        kernel_side: KernelVm,
        output: &mut Output<'_>,
    ) -> Result<(), HostError> {
        let pid = kernel_side.pid;
        if let Some(mut vm) = self.remembered.remove(&(pid, kernel_side.kvm)) {
            vm.kernel_side = kernel_side;
            vm.counting.forget_told();
            if let GuestKnowledge::Kernel { kernel, .. } = &vm.guest {
                let kernel = Arc::clone(kernel);
                self.share_code(&kernel, output)?;
            }
            tell(self.scheduler_mut(), &vm)?;
            self.vms.insert(kernel_side.slot, vm);
            return Ok(());
        }
        let is_taken = |name: &str| self.vms.values().any(|other| other.name == name);
        let (process, said) = VmmProcess::read(pid).told_apart(|name| self.settings.knows_vm(name), is_taken);
        said.into_iter().for_each(|line| (output.say)(&line));
        let image = self.settings.guests.get(&process.name).cloned();
        let without_symbols = self.choice.without_symbols();
        let (mut vm, source) =
            Vm::welcome(kernel_side, process, image, self.settings.guest_memory, without_symbols);
        policies::begin(&mut vm, self.settings, output);
        say_namesakes(&vm, self.vms.values(), self.settings, output.say);
        self.say_pinned(&vm, output);
        tell(self.scheduler_mut(), &vm)?;
        if let Some(source) = source {
            self.kernels.ask(vm.key(), source);
        } else if matches!(vm.guest, GuestKnowledge::NoImage) {
            introduce(&vm, output.say);
        }
        self.vms.insert(kernel_side.slot, vm);
        Ok(())
    }

    pub(super) fn look_into_memories(&mut self) {
        let now = Instant::now();
        for vm in self.vms.values_mut() {
            if let Some(source) = vm.due_look_into_memory(now) {
                self.kernels.ask(vm.key(), source);
            }
        }
    }

    pub(super) fn hear_of_kernel(
        &mut self,
        answer: Answer,
        output: &mut Output<'_>,
    ) -> Result<(), HostError> {
        if let Ok(found) = &answer.found {
            self.share_code(&found.kernel, output)?;
        }
        // The new scheduler may not have seen a sleeper yet, and given its place to another VM.
        let is_unseen = self.remembered.contains_key(&answer.vm);
        let mut known = self.vms.values_mut().chain(self.remembered.values_mut());
        let Some(vm) = known.find(|vm| vm.key() == answer.vm) else {
            return Ok(()); // it has gone meanwhile
        };
        if !vm.hear_of_kernel(&answer.source, answer.found, self.settings.guest_memory) {
            return Ok(());
        }
        introduce(vm, output.say);
        match &mut self.scheduler {
            Some(scheduler) if !is_unseen => tell(scheduler, vm),
            _ => Ok(()),
        }
    }
}

pub(super) fn tell(scheduler: &mut Scheduler, vm: &Vm) -> Result<(), HostError> {
    let (code, layout) = vm.code_and_layout();
    let feed = VmFeed {
        layout,
        generation: vm.kernel_side.generation,
        code,
        weight: vm.weight,
        urgent_schemes: vm.urgent_schemes,
        max_wait_ns: vm.policy.own_max_wait_ns(),
    };
    scheduler.set_vm_feed(vm.kernel_side.slot, &feed)
}
