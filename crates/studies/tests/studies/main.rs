//! Tests of whole studies.

mod what_if;
mod worth_helping;
