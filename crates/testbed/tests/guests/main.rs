//! What needs no emulated host: the guest's C and modules, and the promise table's names.

mod guest_code;
mod guest_modules;
mod promises;
