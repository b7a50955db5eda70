//! Where a guest's CPUs count what they hold (`preempt_count`), in its VMM's process.
//!
//! Problem.   The words lie where the guest's kernel has put them, and may lie elsewhere after a reset, a
//!            kexec, or once a vCPU has come.
//! Mechanism. With a kernel and its slide known, its memory leads to the words
//!            ([`microslice_symbols::preempt_count`]), and KVM's memory slots to the VMM's addresses. They
//!            are looked for again and again: where they were found, they have to prove themselves anew.
//!            Words at other places are told as of another search, and the kernel side then believes them
//!            anew.
//! Limits.    Between a reset and the next look, words may be read that are none any more. Belief bounds it.

use crate::guests::memory_slots;
use microslice_symbols::memory::process::{MemorySlot, ProcessMemory};
use microslice_symbols::preempt_count::CounterSymbols;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The words of a guest's CPUs.
#[derive(Debug, PartialEq, Eq)]
pub struct CountWords {
    /// In the VMM's process, by the number that KVM has for the vCPU: its APIC ID.
    by_vcpu: BTreeMap<u32, u64>,
    slots: Vec<MemorySlot>,
}

impl CountWords {
    /// Returns the address of the word of the vCPU that KVM has this number for.
    pub fn of_vcpu(&self, vcpu_id: u32) -> Option<u64> {
        self.by_vcpu.get(&vcpu_id).copied()
    }

    /// Returns the number of CPUs that have one.
    pub fn len(&self) -> usize {
        self.by_vcpu.len()
    }

    fn find(pid: u32, slots: Vec<MemorySlot>, symbols: &CounterSymbols, slide: u64) -> Result<Self, String> {
        let memory = ProcessMemory::of_slots(pid, &slots).map_err(|error| error.to_string())?;
        let found = symbols.find(&memory, Some(slide))?;
        let place = |counter: &microslice_symbols::preempt_count::Counter| {
            Some((u32::from(counter.apic_id), memory.address_in_process(counter.word, 4)?))
        };
        let by_vcpu: BTreeMap<u32, u64> = found.counters.iter().filter_map(place).collect();
        if by_vcpu.is_empty() {
            return Err("its counters lie outside of its memory slots".to_owned());
        }
        Ok(Self { by_vcpu, slots })
    }
}

/// Looks for the words of the guest of process `pid`. Those that were `known` prove themselves first.
///
/// # Errors
/// One line: its memory can't be read, or they aren't there.
pub fn look(
    pid: u32,
    symbols: &CounterSymbols,
    slide: u64,
    known: Option<Arc<CountWords>>,
) -> Result<Arc<CountWords>, String> {
    if let Some(known) = &known
        && let Ok(found) = CountWords::find(pid, known.slots.clone(), symbols, slide)
    {
        return Ok(if found == **known { Arc::clone(known) } else { Arc::new(found) });
    }
    let slots = memory_slots::of_process(pid).map_err(|error| error.to_string())?;
    CountWords::find(pid, slots, symbols, slide).map(Arc::new)
}

#[cfg(test)]
impl CountWords {
    pub(crate) fn at(by_vcpu: &[(u32, u64)]) -> Self {
        Self { by_vcpu: by_vcpu.iter().copied().collect(), slots: Vec::new() }
    }
}
