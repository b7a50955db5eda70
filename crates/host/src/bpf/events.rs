//! Events of the ring `events`: what BPF programs tell the daemon.

use crate::interface::{self, EventKind, RefusalEvent, ResizeEvent, WitnessEvent};
use zerocopy::FromBytes;

/// An event that a ring delivered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// A vCPU's instruction pointer at a HLT exit.
    Halt { slot: u32, generation: u32, rip: u64 },
    /// MSR_LSTAR of one of a VM's vCPUs.
    Lstar { slot: u32, generation: u32, address: u64 },
    /// The micro pool has a new size. `at_ns` is the host's monotonic clock.
    Resize { at_ns: u64, micro_pcpu_count: u32, reason: u32 },
    /// A vCPU has found no place.
    Refusal(Refusal),
}

/// A vCPU that found no place (`struct refusal_event` of `bpf/core/intf.h`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refusal {
    pub pid: u32,
    pub uid: u32,
    /// Whose VMs are counted together.
    pub owner: u32,
    pub is_owners_bound: bool,
}

/// Reads one event of the ring; `None` if it is of an unknown kind, or too short.
pub(crate) fn parse_event(bytes: &[u8]) -> Option<Event> {
    let (event, _) = interface::Event::read_from_prefix(bytes).ok()?;
    match event.kind.get()? {
        EventKind::Halt => {
            let WitnessEvent { vm, generation, address } = zerocopy::transmute!(event.payload);
            Some(Event::Halt { slot: vm, generation, rip: address })
        }
        EventKind::Lstar => {
            let WitnessEvent { vm, generation, address } = zerocopy::transmute!(event.payload);
            Some(Event::Lstar { slot: vm, generation, address })
        }
        EventKind::Resize => {
            let ResizeEvent { at_ns, micro_pcpu_count, reason } = zerocopy::transmute!(event.payload);
            Some(Event::Resize { at_ns, micro_pcpu_count, reason: reason.value() })
        }
        EventKind::Refusal => {
            let RefusalEvent { pid, uid, is_owners_bound, owner } = zerocopy::transmute!(event.payload);
            Some(Event::Refusal(Refusal { pid, uid, owner, is_owners_bound: is_owners_bound != 0 }))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_read_as_the_kernel_writes_them() {
        let mut bytes = [0u8; 24];
        bytes[8] = 7;
        bytes[12] = 2;
        bytes[16..24].copy_from_slice(&0xffff_ffff_8123_4567u64.to_le_bytes());
        assert_eq!(
            parse_event(&bytes),
            Some(Event::Halt { slot: 7, generation: 2, rip: 0xffff_ffff_8123_4567 })
        );
        assert_eq!(parse_event(&bytes[..20]), None);
        bytes[0] = 9;
        assert_eq!(parse_event(&bytes), None);
    }
}
