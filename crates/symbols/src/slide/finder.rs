//! The slide from witnesses, one at a time.
//!
//! States and what moves between them:
//!
//! ```text
//! Unknown --witness--> Candidate --second witness agrees--> Accepted
//!    Candidate, Accepted --witness disagrees--> Contradicted --witness--> Candidate ...
//! ```
//!
//! A witness that disagrees drops the slide at once: the guest has rebooted, perhaps into another kernel, and
//! a wrong slide would class its code wrongly. That witness is the first one for the next slide. Addresses
//! outside the kernel image say nothing: the first HLT of a guest comes from its firmware.

use super::landmarks::{Landmarks, is_in_kernel_image};
use std::fmt;

/// Agreeing halts that are enough without another kind of witness. One alone may be an accident: a guest that
/// runs another kernel than assumed halts at the right low 21 bits with a chance of about 1 in 100,000.
const HALTS_TO_ACCEPT: u32 = 2;

/// Finds the slide of one guest, whose kernel is known. Costs nothing between observations; a few comparisons
/// for each.
#[derive(Debug, Clone)]
pub struct SlideFinder {
    landmarks: Landmarks,
    /// Slides that every witness so far allows. Empty before the first one.
    slides: Vec<u64>,
    witnesses: Witnesses,
    state: SlideState,
}

/// What is known of the slide.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SlideState {
    /// No witness yet.
    Unknown,
    /// Some witness, not yet enough. `slide` is `None` while more than one would fit.
    Candidate { slide: Option<u64> },
    /// Witnesses agree.
    Accepted { slide: u64 },
    /// A witness disagreed with the slide that was a candidate or accepted: it is dropped.
    Contradicted(Contradiction),
}

/// Why a slide was dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Contradiction {
    /// A halt in the kernel image where this kernel has no `hlt`, whatever the slide.
    NoHaltThere { address: u64 },
    /// A halt that fits only another slide.
    HaltElsewhere { address: u64, slide: Option<u64> },
    /// MSR_LSTAR in the kernel image, and under no slide at `entry_SYSCALL_64`.
    NoSyscallEntryThere { address: u64 },
    /// MSR_LSTAR fits only another slide.
    LstarElsewhere { address: u64, slide: u64 },
    /// VMCOREINFO names a slide that KASLR can't choose for this kernel.
    ImpossibleOffset { offset: u64 },
    /// VMCOREINFO names another slide.
    OffsetElsewhere { offset: u64 },
}

impl fmt::Display for Contradiction {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::NoHaltThere { address } => {
                write!(
                    out,
                    "the halt at {address:#x} is at no hlt of this kernel: the guest runs another one"
                )
            }
            Self::HaltElsewhere { address, slide: Some(slide) } => {
                write!(
                    out,
                    "the halt at {address:#x} fits only slide {slide:#x}, earlier witnesses another: a reboot?"
                )
            }
            Self::HaltElsewhere { address, slide: None } => {
                write!(
                    out,
                    "the halt at {address:#x} fits only other slides than earlier witnesses: a reboot?"
                )
            }
            Self::NoSyscallEntryThere { address } => write!(
                out,
                "MSR_LSTAR {address:#x} isn't entry_SYSCALL_64 of this kernel under any slide: the guest runs another one"
            ),
            Self::LstarElsewhere { address, slide } => {
                write!(
                    out,
                    "MSR_LSTAR {address:#x} fits only slide {slide:#x}, earlier witnesses another: a reboot?"
                )
            }
            Self::ImpossibleOffset { offset } => {
                write!(out, "VMCOREINFO says {offset:#x}, which KASLR can't choose for this kernel")
            }
            Self::OffsetElsewhere { offset } => {
                write!(
                    out,
                    "VMCOREINFO says {offset:#x}: the guest has rebooted, or its memory is out of date"
                )
            }
        }
    }
}

/// What one observation meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Observation {
    /// It allows at least one slide that the others allow too.
    Agrees,
    /// It disagrees with the others, or with every slide.
    Disagrees,
    /// Not in the kernel image: firmware, user code, a module. It says nothing.
    Outside,
    /// This kernel has no landmark to compare it with. It says nothing.
    NoLandmark,
    /// In a function that halts, where boot-time patching may have put a `hlt`: neither a witness nor a
    /// contradiction.
    Compatible,
}

/// What testified for the slide.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Witnesses {
    pub halt_count: u32,
    pub lstar: bool,
    pub kernel_offset: bool,
}

impl Witnesses {
    fn add(&mut self, kind: Kind) {
        match kind {
            Kind::Halt => self.halt_count = self.halt_count.saturating_add(1),
            Kind::Lstar => self.lstar = true,
            Kind::KernelOffset => self.kernel_offset = true,
        }
    }

    /// Two kinds, or enough halts.
    fn suffice(self) -> bool {
        let kinds = u32::from(self.halt_count > 0) + u32::from(self.lstar) + u32::from(self.kernel_offset);
        kinds >= 2 || self.halt_count >= HALTS_TO_ACCEPT
    }
}

#[derive(Debug, Clone, Copy)]
enum Kind {
    Halt,
    Lstar,
    KernelOffset,
}

impl SlideFinder {
    pub fn new(landmarks: Landmarks) -> Self {
        Self { landmarks, slides: Vec::new(), witnesses: Witnesses::default(), state: SlideState::Unknown }
    }

    /// What is known now.
    pub fn state(&self) -> SlideState {
        self.state
    }

    /// The slide, once witnesses agree and until one disagrees.
    pub fn accepted(&self) -> Option<u64> {
        match self.state {
            SlideState::Accepted { slide } => Some(slide),
            _ => None,
        }
    }

    /// What testified since the last contradiction.
    pub fn witnesses(&self) -> Witnesses {
        self.witnesses
    }

    pub fn landmarks(&self) -> &Landmarks {
        &self.landmarks
    }

    /// The guest halted at run-time address `address`.
    pub fn observe_halt(&mut self, address: u64) -> Observation {
        if !is_in_kernel_image(address) {
            return Observation::Outside;
        }
        if !self.landmarks.can_place_halts() {
            return Observation::NoLandmark;
        }
        let slides = self.landmarks.slides_of_halt(address);
        if let (true, &[slide]) = (slides.is_empty(), self.slides.as_slice())
            && self.landmarks.halts_under(address, slide)
        {
            return Observation::Compatible;
        }
        let contradiction = match *slides.as_slice() {
            [] => Contradiction::NoHaltThere { address },
            [slide] => Contradiction::HaltElsewhere { address, slide: Some(slide) },
            _ => Contradiction::HaltElsewhere { address, slide: None },
        };
        self.testify(Kind::Halt, slides, contradiction)
    }

    /// MSR_LSTAR of one of the guest's vCPUs. 0 (before the kernel has set it, or with FRED) and trampolines
    /// outside the image (page-table isolation, 4.15 to 4.19) say nothing.
    pub fn observe_lstar(&mut self, address: u64) -> Observation {
        if !is_in_kernel_image(address) {
            return Observation::Outside;
        }
        if !self.landmarks.can_place_lstar() {
            return Observation::NoLandmark;
        }
        match self.landmarks.slide_of_lstar(address) {
            Some(slide) => {
                let contradiction = Contradiction::LstarElsewhere { address, slide };
                self.testify(Kind::Lstar, vec![slide], contradiction)
            }
            None => self.testify(Kind::Lstar, Vec::new(), Contradiction::NoSyscallEntryThere { address }),
        }
    }

    /// `KERNELOFFSET` of the VMCOREINFO in the guest's memory.
    pub fn observe_kernel_offset(&mut self, offset: u64) -> Observation {
        if self.landmarks.is_plausible(offset) {
            self.testify(Kind::KernelOffset, vec![offset], Contradiction::OffsetElsewhere { offset })
        } else {
            self.testify(Kind::KernelOffset, Vec::new(), Contradiction::ImpossibleOffset { offset })
        }
    }

    /// `slides`: every slide that the witness allows.
    fn testify(&mut self, kind: Kind, slides: Vec<u64>, contradiction: Contradiction) -> Observation {
        let first = self.slides.is_empty();
        let common: Vec<u64> =
            slides.iter().copied().filter(|slide| first || self.slides.contains(slide)).collect();
        if common.is_empty() {
            self.witnesses = Witnesses::default();
            if !slides.is_empty() {
                self.witnesses.add(kind);
            }
            self.slides = slides;
            self.state = SlideState::Contradicted(contradiction);
            return Observation::Disagrees;
        }
        self.slides = common;
        self.witnesses.add(kind);
        self.state = match *self.slides.as_slice() {
            [slide] if self.witnesses.suffice() => SlideState::Accepted { slide },
            [slide] => SlideState::Candidate { slide: Some(slide) },
            _ => SlideState::Candidate { slide: None },
        };
        Observation::Agrees
    }
}

#[cfg(test)]
mod tests;
