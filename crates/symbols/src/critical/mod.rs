//! Critical classes: what an instruction pointer of a guest kernel means for scheduling.
//!
//! The paper's prototype knew about forty address ranges of one kernel build. Here Table 3 is data
//! (`critical/linux.toml`, docs/reference/critical-classes.md) that is matched against the symbols of any
//! kernel:
//!
//! ```text
//! Catalogue (TOML) + SymbolTable -> Check: rows explained, for people
//!                                -> ClassMap: sorted ranges, for the scheduler
//! ```

mod catalogue;
mod check;
mod class;
mod names;
mod ranges;
mod version;

pub use catalogue::{Absence, Catalogue, Condition, Entry, How, LeftOut, Successor};
pub use check::{Check, Coverage, EntryCheck, LeftOutCheck, MatchedSymbol, SYMBOLS_PER_FUNCTION_MAX};
pub use class::CodeClass;
pub use names::function_of;
pub use ranges::{ClassMap, ClassRange, RANGES_MAX};
pub use version::{KernelVersion, VersionRange};
