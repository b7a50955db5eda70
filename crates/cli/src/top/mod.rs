//! What `microslice top` shows: counters become rates ([`rates`]), keys change what is looked at ([`app`]),
//! and that is drawn ([`draw`]). None of it knows a terminal or a socket: commands/top.rs has both.

pub mod app;
pub mod draw;
pub mod rates;

pub use app::{App, Flow};
