//! Lines for logs and pipes.

use std::path::Path;
use std::time::{Duration, Instant};

use super::{Plan, Progress, closing_line};
use crate::metrics::{Evaluation, StepRecord, Summary};

/// Time between two lines.
const INTERVAL: Duration = Duration::from_secs(10);

/// A line at the first step, then every ten seconds and after each evaluation.
#[derive(Default)]
pub(super) struct Plain {
    plan: Option<Plan>,
    last: Option<Instant>,
}

impl Progress for Plain {
    fn start(&mut self, plan: &Plan) {
        println!("{}", plan.title);
        self.plan = Some(plan.clone());
    }

    fn step(&mut self, record: &StepRecord) {
        if self.last.is_some_and(|last| last.elapsed() < INTERVAL) {
            return;
        }
        self.last = Some(Instant::now());
        let (epochs, steps) = self.plan.as_ref().map_or((0, 0), |plan| (plan.epochs, plan.steps));
        println!(
            "epoch {}/{epochs} step {}/{steps}: loss {:.3}, lr {:.4}, {:.0} images/s",
            record.epoch, record.step, record.loss, record.lr, record.images_per_second
        );
    }

    fn evaluation(&mut self, epoch: usize, evaluation: &Evaluation) {
        println!(
            "epoch {epoch}: test accuracy {:.2}%, test loss {:.3}",
            evaluation.accuracy() * 100.0,
            evaluation.loss
        );
    }

    fn finish(&mut self, summary: &Summary, folder: &Path) {
        println!("{}", closing_line(summary, folder));
    }
}
