//! One file per subcommand.

pub mod testbed;
