//! The `microslice` program as its users meet it, and what is written about it.

mod check;
mod common;
mod docs;
mod figures;
mod outputs;
mod package;
mod page_in_browser;
mod perfetto;
mod prometheus;
mod readme;
mod regret;
mod reports;
mod simulate;
mod slurm;
mod specification;
mod streams;
mod sweep;
mod symbols;
mod testbed;
mod threads;
mod top;
mod what_if;
