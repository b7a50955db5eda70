//! What all loaded BPF programs have in common: maps, events, counters, costs, and why one can't be loaded.

pub(crate) mod counters;
pub(crate) mod events;
pub mod hooks;
pub(crate) mod kernel_vm;
pub(crate) mod mapped_array;
pub(crate) mod maps;
pub mod posted_interrupts;
pub(crate) mod program_costs;
pub mod recursion_misses;
pub(crate) mod warnings;

/// Attaches these programs of a skeleton, in this order: those that were loaded.
macro_rules! attach {
    ($skeleton:ident: $($program:ident),+) => {
        $(if $skeleton.progs.$program.autoload() {
            $skeleton.links.$program = Some($skeleton.progs.$program.attach()?);
        })+
    };
}
pub(crate) use attach;
