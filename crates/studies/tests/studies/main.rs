//! Tests of whole studies.

mod grace;
mod what_if;
