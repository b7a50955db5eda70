//! One file per subcommand.

pub mod boost_latency;
pub mod campaign;
pub mod check;
pub mod compare;
pub mod completions;
pub mod demo;
pub mod manual;
pub mod observe;
pub mod peers;
pub mod regret;
pub mod replay;
pub mod reproduce;
pub mod run;
pub mod side_by_side;
pub mod simulate;
pub mod sweep;
pub mod symbols;
pub mod testbed;
pub mod top;
mod trace_args;
pub mod trial;
pub mod what_if;
