//! One file per subcommand.

#[cfg(not(feature = "host"))]
mod absent;
#[cfg(feature = "host")]
pub mod boost_latency;
#[cfg(feature = "host")]
pub mod campaign;
#[cfg(feature = "host")]
pub mod check;
pub mod compare;
pub mod completions;
#[cfg(feature = "host")]
pub mod demo;
pub mod manual;
#[cfg(feature = "host")]
pub mod observe;
#[cfg(feature = "host")]
pub mod peers;
pub mod regret;
pub mod replay;
pub mod reproduce;
#[cfg(feature = "host")]
pub mod run;
#[cfg(feature = "host")]
pub mod side_by_side;
pub mod simulate;
pub mod sweep;
pub mod symbols;
#[cfg(feature = "host")]
pub mod testbed;
#[cfg(feature = "host")]
pub mod top;
#[cfg(feature = "host")]
mod trace_args;
#[cfg(feature = "host")]
pub mod trial;
pub mod what_if;

#[cfg(not(feature = "host"))]
pub use absent::{boost_latency, check, demo, observe, run, testbed, top, trial};
