//! One file per subcommand.

pub mod compare;
pub mod demo;
pub mod regret;
pub mod replay;
pub mod reproduce;
pub mod run;
pub mod simulate;
pub mod symbols;
pub mod testbed;
