//! A progress bar for a terminal.

use std::path::Path;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

use super::{Plan, Progress, closing_line};
use crate::metrics::{Evaluation, StepRecord, Summary};

const TEMPLATE: &str = "{bar:32.cyan/blue} step {pos}/{len}  {msg}  [{elapsed} < {eta}]";

/// One line that moves, with a line above it for each evaluation. Drawn on stderr.
pub(super) struct Bar {
    bar: ProgressBar,
    epochs: usize,
}

impl Default for Bar {
    fn default() -> Self {
        Self { bar: ProgressBar::no_length(), epochs: 0 }
    }
}

impl Progress for Bar {
    fn start(&mut self, plan: &Plan) {
        self.epochs = plan.epochs;
        self.bar.set_length(plan.steps as u64);
        if let Ok(style) = ProgressStyle::with_template(TEMPLATE) {
            self.bar.set_style(style);
        }
        self.bar.println(&plan.title);
        self.bar.enable_steady_tick(Duration::from_millis(500));
    }

    fn step(&mut self, record: &StepRecord) {
        self.bar.set_message(format!(
            "epoch {}/{}  loss {:.3}  lr {:.4}  {:.0} images/s",
            record.epoch, self.epochs, record.loss, record.lr, record.images_per_second
        ));
        self.bar.set_position(record.step as u64);
    }

    fn evaluation(&mut self, epoch: usize, evaluation: &Evaluation) {
        self.bar.println(format!(
            "epoch {epoch}: test accuracy {:.2}%, test loss {:.3}",
            evaluation.accuracy() * 100.0,
            evaluation.loss
        ));
    }

    fn finish(&mut self, summary: &Summary, folder: &Path) {
        self.bar.finish();
        eprintln!();
        println!("{}", closing_line(summary, folder));
    }
}
