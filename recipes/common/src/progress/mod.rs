//! What rank 0 shows while it trains.

mod bar;
mod plain;
mod tui;

use std::io::IsTerminal;
use std::path::Path;

use crate::error::{RecipeError, Result};
use crate::metrics::{Evaluation, StepRecord, Summary};
use crate::options::ProgressChoice;

/// What a display needs to know before the first step.
#[derive(Clone, Debug)]
pub struct Plan {
    /// One line that says what runs where.
    pub title: String,
    /// Epochs of the run.
    pub epochs: usize,
    /// Steps per epoch.
    pub steps_per_epoch: usize,
    /// Steps of the run.
    pub steps: usize,
}

/// A display of a run. Nothing it meets may end the training.
pub trait Progress {
    /// The run begins.
    fn start(&mut self, plan: &Plan);
    /// A step has ended.
    fn step(&mut self, record: &StepRecord);
    /// The test images have been classified after an epoch, counted from 1.
    fn evaluation(&mut self, epoch: usize, evaluation: &Evaluation);
    /// The run has ended and its results are in `folder`.
    fn finish(&mut self, summary: &Summary, folder: &Path);
    /// Whether the user has asked the display to end the run after this step.
    fn stop_requested(&self) -> bool {
        false
    }
}

/// Finds out whether the display can be shown.
///
/// # Errors
/// A usage error where the dashboard has no terminal.
pub fn check(choice: ProgressChoice) -> Result<()> {
    if choice == ProgressChoice::Tui && !std::io::stdout().is_terminal() {
        return Err(RecipeError::usage(
            "cannot show the dashboard",
            "--progress tui needs a terminal, and the output is not one",
            "use --progress plain",
        ));
    }
    Ok(())
}

/// The display that was asked for, on rank 0; nothing on the other ranks.
pub fn display(choice: ProgressChoice, rank: usize) -> Box<dyn Progress> {
    if rank != 0 {
        return Box::new(Silent);
    }
    match choice {
        ProgressChoice::None => Box::new(Silent),
        ProgressChoice::Tui => Box::new(tui::Dashboard::default()),
        ProgressChoice::Bar => Box::new(bar::Bar::default()),
        ProgressChoice::Plain => Box::new(plain::Plain::default()),
        ProgressChoice::Auto if std::io::stderr().is_terminal() => Box::new(bar::Bar::default()),
        ProgressChoice::Auto => Box::new(plain::Plain::default()),
    }
}

/// Shows nothing.
struct Silent;

impl Progress for Silent {
    fn start(&mut self, _: &Plan) {}
    fn step(&mut self, _: &StepRecord) {}
    fn evaluation(&mut self, _: usize, _: &Evaluation) {}
    fn finish(&mut self, _: &Summary, _: &Path) {}
}

/// The line that ends a run.
fn closing_line(summary: &Summary, folder: &Path) -> String {
    let tested = match summary.test_accuracy {
        Some(accuracy) => {
            format!("test accuracy {:.2}% on {} images", accuracy * 100.0, summary.test_examples)
        }
        None => format!("stopped after step {}", summary.steps),
    };
    format!(
        "{tested}, {:.0} images/s, {:.0} s; results in {}",
        summary.images_per_second,
        summary.seconds_total,
        folder.display()
    )
}
