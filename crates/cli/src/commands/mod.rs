//! One file per subcommand.

pub mod symbols;
pub mod testbed;
