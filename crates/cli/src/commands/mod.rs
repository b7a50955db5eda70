//! One file per subcommand.

pub mod compare;
pub mod simulate;
pub mod symbols;
pub mod testbed;
