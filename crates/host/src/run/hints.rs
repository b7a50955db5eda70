//! Hint pages of guests, looked for while turns end where guests say so; and their counts, while lock holders
//! are known by them.

use crate::HostError;
use crate::guests::counts;
use crate::guests::kernel_reader::VmKey;
use crate::guests::vms::Vm;
use crate::run::{Daemon, Output};
use std::time::Instant;

impl Daemon<'_> {
    pub(super) fn look_for_hints(&mut self, output: &mut Output<'_>) -> Result<(), HostError> {
        if !self.settings.hears_hints() {
            return Ok(());
        }
        let vms: Vec<VmKey> = self.vms.values().map(Vm::key).collect();
        self.hint_pages.look(&vms, &self.kernels, Instant::now());
        while let Some(answer) = self.kernels.next_hint_answer() {
            let (told, line) = self.hint_pages.hear(answer.vm, answer.found, Instant::now());
            let Some(vm) = self.vms.values().find(|vm| vm.key() == answer.vm) else { continue };
            if let Some(line) = line {
                (output.say)(&format!("{}: {line}", vm.name));
            }
            if let (Some(page), Some(scheduler)) = (told, &mut self.scheduler) {
                scheduler.set_hint_page(vm.kernel_side, page)?;
            }
        }
        Ok(())
    }

    pub(super) fn look_for_counts(&mut self, output: &mut Output<'_>) -> Result<(), HostError> {
        match &mut self.scheduler {
            Some(scheduler) if self.settings.reads_counts() => {
                counts::look(&mut self.vms, &self.kernels, scheduler, output.say)
            }
            _ => Ok(()),
        }
    }
}
