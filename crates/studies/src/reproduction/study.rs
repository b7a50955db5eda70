//! What a study of a paper is: its published numbers, the runs behind them, and its plots.

use super::Reproduction;
use super::runs::{Experiment, RunTable};
use microslice_metrics::html::Page;
use std::fmt::Debug;

/// The evaluation of a paper, which can be run again.
pub trait Study: Debug + Sync {
    /// What the command line calls it.
    fn name(&self) -> &'static str;

    /// What people call it.
    fn title(&self) -> &'static str;

    /// Authors and title of the paper.
    fn paper(&self) -> &'static str;

    /// The file of `scenarios/` that holds the published numbers.
    fn numbers(&self) -> &'static str;

    /// Explains which numbers are calibrated and which are predicted.
    fn kinds(&self) -> &'static str;

    /// Groups of figures that are plots without numbers in the text.
    fn groups_without_numbers(&self) -> &'static [&'static str] {
        &[]
    }

    /// Returns the unit of a published number, for people and for JSON.
    fn unit(&self, id: &str) -> &'static str;

    /// Returns whether a published number went into the model. Every other one is predicted by it.
    fn is_calibrated(&self, id: &str) -> bool;

    /// Returns the experiments behind a group of figures (`table4b`, `figure4`, …).
    fn experiments_of(&self, group: &str) -> Vec<Experiment>;

    /// Returns one value per seed, in the unit of the published number. It is empty if the runs that the
    /// number needs weren't made.
    fn measure(&self, id: &str, runs: &RunTable) -> Vec<f64>;

    /// Returns all claims about the shapes of the paper's plots. If a run that a claim is about made no
    /// progress, its numbers are infinite, and the claim doesn't hold.
    fn shapes(&self, runs: &RunTable) -> Vec<Shape>;

    /// Draws the paper's plots from our runs, with the published values as diamonds.
    fn draw(&self, page: &mut Page, reproduction: &Reproduction);

    /// Returns whether `microslice reproduce --sensitivity` varies the parameters behind its figures.
    fn has_sensitivity(&self) -> bool {
        false
    }
}

/// A claim about a shape, and whether the simulation agrees.
#[derive(Debug, Clone, PartialEq)]
pub struct Shape {
    pub claim: String,
    /// `None`: the runs it needs weren't made (`--only`).
    pub holds: Option<bool>,
    /// The numbers behind the verdict.
    pub seen: String,
}
