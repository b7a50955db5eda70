//! Guest kernels without configuration: images, kallsyms, System.map and ELF become one [`SymbolTable`];
//! symbols become critical classes; halt addresses become KASLR slides. Depends on nothing else of ours.
//!
//! Everything here reads bytes that a tenant controls. Every length is checked, against what is there and
//! against a fixed limit, before memory is asked for. One of the two bounds every loop.

// They panic where nobody reads.
#![deny(clippy::print_stdout, clippy::print_stderr)]

pub mod critical;
pub mod error;
pub mod identity;
pub mod image;
pub mod kallsyms;
pub mod memory;
mod page_index;
pub mod preempt_count;
pub mod slide;
pub mod source;
pub mod store;
pub mod table;
pub mod text;

pub use critical::{Catalogue, ClassMap, ClassRange, CodeClass};
pub use error::{Cause, Error, Place};
pub use identity::Identity;
pub use image::{Code, Kernel};
pub use slide::{SlideFinder, SlideState};
pub use source::{Source, SourceKind};
pub use store::{Store, StoredKernel};
pub use table::{Hit, Symbol, SymbolTable, SymbolTableBuilder, TextBounds};

use std::fs::File;
use std::os::unix::fs::OpenOptionsExt;

/// Opens a file of which all is read: it never waits for more, as some of the kernel's (/proc/kmsg) do.
fn open_to_end(path: &std::path::Path) -> std::io::Result<File> {
    File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path)
}
