//! What the BPF programs say through their rings: events, and decisions to record.

use crate::HostError;
use crate::bpf::events::Event;
use crate::guests::kernel_reader::Witness;
use crate::guests::lines::say_slide;
use crate::run::guests::tell;
use crate::run::{Daemon, Output};
use microslice_policy::{Coded, PoolSizeReason};
use std::time::Instant;

impl Daemon<'_> {
    // ---- Rings ----

    pub(super) fn drain(&mut self, output: &mut Output<'_>) -> Result<(), HostError> {
        if self.scheduler.is_none() {
            return Ok(());
        }
        self.scheduler_mut().poll_rings()?;
        while let Some(event) = self.scheduler_mut().next_event() {
            match event {
                Event::Halt { slot, generation, rip } => {
                    self.hear_witness(slot, generation, Witness::Halt(rip), output)?;
                }
                Event::Lstar { slot, generation, address } => {
                    self.hear_witness(slot, generation, Witness::Lstar(address), output)?;
                }
                Event::Resize { at_ns, micro_pcpu_count, reason } => {
                    self.remember_resize(at_ns, micro_pcpu_count, reason);
                }
                Event::Refusal(refusal) => {
                    if let Some(line) = self.refusals.hear(refusal, Instant::now()) {
                        (output.say)(&line);
                    }
                }
            }
        }
        while let Some(record) = self.scheduler_mut().next_record() {
            if let Some(recorder) = &mut self.recorder {
                recorder.record(&record)?;
            }
        }
        Ok(())
    }

    /// A witness of a guest's slide: the kernel side is told when it settles, or is dropped.
    pub(super) fn hear_witness(
        &mut self,
        slot: u32,
        generation: u32,
        witness: Witness,
        output: &mut Output<'_>,
    ) -> Result<(), HostError> {
        let Some(vm) = self.vms.get_mut(&slot).filter(|vm| vm.kernel_side.generation == generation) else {
            return Ok(());
        };
        if !vm.hear_witness(witness, self.settings.guest_memory) {
            return Ok(());
        }
        say_slide(vm, output.say);
        self.scheduler.as_mut().map_or(Ok(()), |scheduler| tell(scheduler, vm))
    }

    pub(super) fn remember_resize(&mut self, at_ns: u64, micro_pcpu_count: u32, reason: u32) {
        let reason = match self.settings.micro_cpus {
            crate::settings::PoolChoice::Static(_) => "static",
            crate::settings::PoolChoice::Auto => {
                PoolSizeReason::ALL.get(reason as usize).map_or("unknown", |reason| reason.name())
            }
        };
        self.pool_history.change(at_ns, micro_pcpu_count, reason);
        self.tracer.iter_mut().for_each(|tracer| tracer.pool_resized(at_ns, micro_pcpu_count));
    }
}
