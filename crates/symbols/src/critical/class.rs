//! What the code at a guest instruction pointer is doing.

use std::fmt;

/// Class that the catalogue gives to guest code (paper, Table 3 and section 4.2). Its codes are those of
/// `enum guest_class` in `policy/types.h`, which this crate doesn't depend on. They are written into BPF maps
/// and recordings, so they are appended to, never renumbered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
#[repr(u8)]
pub enum CodeClass {
    /// No symbols, no slide yet, or outside the kernel's text.
    Unknown = 0,
    /// User mode, which is the lower half of the address space on 64-bit Linux. Never critical (section 4.4).
    User = 1,
    /// Kernel text that the catalogue doesn't name.
    KernelOther = 2,
    /// Inside, or leaving, a critical section.
    LockHolder = 3,
    /// Waits for a lock.
    LockWaiter = 4,
    /// Sends, awaits or serves a cross-call or TLB flush.
    TlbShootdown = 5,
    /// Sends or serves a reschedule IPI, or wakes a thread.
    ReschedIpi = 6,
    /// In an interrupt handler or softirq.
    IrqHandler = 7,
    /// In the idle loop.
    Idle = 8,
}

impl CodeClass {
    /// Every class, in the order of its code.
    pub const ALL: [Self; 9] = [
        Self::Unknown,
        Self::User,
        Self::KernelOther,
        Self::LockHolder,
        Self::LockWaiter,
        Self::TlbShootdown,
        Self::ReschedIpi,
        Self::IrqHandler,
        Self::Idle,
    ];

    /// The code in BPF maps and recordings.
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// The class with this code.
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.get(usize::from(code)).copied()
    }

    /// The name that the command line, the catalogue and every report use.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Unknown => "unknown",
            Self::User => "user",
            Self::KernelOther => "kernel_other",
            Self::LockHolder => "lock_holder",
            Self::LockWaiter => "lock_waiter",
            Self::TlbShootdown => "tlb_shootdown",
            Self::ReschedIpi => "resched_ipi",
            Self::IrqHandler => "irq_handler",
            Self::Idle => "idle",
        }
    }

    /// May a catalogue give this class to a function? The others follow from the address alone.
    pub const fn is_named_by_catalogue(self) -> bool {
        !matches!(self, Self::Unknown | Self::User | Self::KernelOther)
    }
}

impl fmt::Display for CodeClass {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.pad(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_and_names_lead_back_to_their_class() {
        for (index, class) in CodeClass::ALL.into_iter().enumerate() {
            assert_eq!(usize::from(class.code()), index);
            assert_eq!(CodeClass::from_code(class.code()), Some(class));
            let name = serde_json::to_string(&class).unwrap();
            assert_eq!(name, format!("\"{}\"", class.name()), "serde and name() agree");
        }
        assert_eq!(CodeClass::from_code(9), None);
    }
}
