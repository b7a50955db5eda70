//! Guests' counts: each VM is looked at for where its CPUs count. Its kernel side and the operator hear of
//! it.

use crate::HostError;
use crate::guests::counting::RunningKernel;
use crate::guests::kernel_reader::KernelReader;
use crate::guests::vms::{GuestKnowledge, Vm};
use crate::interface::{CountPlace, Vcpu};
use std::collections::BTreeMap;
use std::time::Instant;

/// Programs that read vCPUs' counts where they are told that these are.
pub(crate) trait CountReader {
    /// The vCPUs of the VM in `slot`, each with the slot of its own.
    fn vcpus(&self, slot: u32) -> Vec<(u32, Vcpu)>;
    /// Tells where the vCPU in `slot` counts.
    fn set_count_place(&mut self, slot: u32, place: CountPlace) -> Result<(), HostError>;
}

/// Takes answers to looks, asks for those that are due, and tells what has changed.
pub(crate) fn look(
    vms: &mut BTreeMap<u32, Vm>,
    kernels: &KernelReader,
    programs: &mut (impl CountReader + ?Sized),
    say: &mut dyn FnMut(&str),
) -> Result<(), HostError> {
    let now = Instant::now();
    while let Some(answer) = kernels.next_count_answer() {
        let Some(vm) = vms.values_mut().find(|vm| vm.key() == answer.vm) else { continue };
        if let Some(line) = vm.counting.hear(answer.kernel, answer.found, now) {
            say(&format!("{}: {line}", vm.name));
        }
    }
    for vm in vms.values_mut() {
        let (epoch, belief) = vm.kernel_side.belief;
        let belief = belief.get().and_then(|belief| vm.counting.hear_belief(epoch, belief));
        let lines = [ask_if_due(vm, kernels, now), belief];
        lines.into_iter().flatten().for_each(|line| say(&format!("{}: {line}", vm.name)));
        let vcpus = programs.vcpus(vm.kernel_side.slot);
        for (slot, place) in vm.counting.news(vm.kernel_side.generation, &vcpus) {
            programs.set_count_place(slot, place)?;
        }
    }
    Ok(())
}

/// Returns a line for the operator, if there is no way to find where its CPUs count.
fn ask_if_due(vm: &mut Vm, kernels: &KernelReader, now: Instant) -> Option<String> {
    let running = match (&vm.guest, vm.slide_told) {
        (GuestKnowledge::Kernel { kernel, .. }, Some(slide)) if vm.policy.accelerates() => {
            Some((RunningKernel { code: kernel.code_slot, slide }, kernel.counter_symbols))
        }
        _ => None,
    };
    if !vm.counting.take_due(running.map(|(kernel, _)| kernel), now) {
        return None;
    }
    let (kernel, symbols) = running?;
    match symbols {
        Ok(symbols) => {
            kernels.ask_for_counts(vm.key(), kernel, symbols, vm.counting.words());
            None
        }
        Err(name) => vm.counting.hear(kernel, Err(format!("its kernel names no {name}")), now),
    }
}
