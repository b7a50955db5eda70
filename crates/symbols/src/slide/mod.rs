//! The KASLR slide of a running guest, from outside.
//!
//! x86-64 Linux moves its text by a multiple of 2 MiB (`CONFIG_PHYSICAL_ALIGN`,
//! arch/x86/boot/compressed/kaslr.c), so that the low 21 bits of every address stay as linked. A kernel has
//! fewer than ten `hlt` instructions: where a vCPU halts tells the slide, without reading the guest's memory.
//!
//! ```text
//! symbols + code -> Landmarks;  Landmarks + halts, MSR_LSTAR, VMCOREINFO -> SlideFinder -> slide, or why not
//! ```

mod finder;
mod halt_sites;
mod landmarks;

pub use finder::{Contradiction, Observation, SlideFinder, SlideState, Witnesses};
pub use halt_sites::{HALT_SITES_MAX, halt_sites, halt_sites_of};
pub use landmarks::{KERNEL_IMAGE_BYTES, KERNEL_IMAGE_START, Landmarks, SLIDE_ALIGN};
