//! Burn's terminal dashboard, driven by our loop instead of Burn's learner.

use std::path::Path;
use std::sync::Arc;

use burn::train::Interrupter;
use burn::train::logger::TrainingProgressLogger;
use burn::train::metric::{
    MetricAttributes, MetricDefinition, MetricEntry, MetricId, NumericAttributes, NumericEntry,
    SerializedEntry,
};
use burn::train::renderer::tui::TuiMetricsRendererWrapper;
use burn::train::renderer::{MetricState, MetricsRenderer, MetricsRendererTraining};

use super::{Plan, Progress, closing_line};
use crate::metrics::{Evaluation, StepRecord, Summary};

/// Name, unit, and whether more is better.
const METRICS: [(&str, Option<&str>, bool); 4] = [
    ("Loss", None, false),
    ("Accuracy", Some("%"), true),
    ("Learning rate", None, false),
    ("Images per second", None, true),
];

/// The full-screen dashboard. Its own dialogue can ask the run to stop.
#[derive(Default)]
pub(super) struct Dashboard {
    interrupter: Interrupter,
    renderer: Option<TuiMetricsRendererWrapper>,
    steps_per_epoch: usize,
}

impl Progress for Dashboard {
    fn start(&mut self, plan: &Plan) {
        let mut renderer = TuiMetricsRendererWrapper::new(self.interrupter.clone(), None);
        for (name, unit, higher_is_better) in METRICS {
            renderer.register_metric(MetricDefinition {
                metric_id: id(name),
                name: Arc::new(name.into()),
                description: None,
                attributes: MetricAttributes::Numeric(NumericAttributes {
                    unit: unit.map(Into::into),
                    higher_is_better,
                }),
            });
        }
        renderer.start(plan.epochs, 1, Some(plan.steps_per_epoch), Some(&plan.title));
        renderer.start_split("train", plan.steps_per_epoch);
        self.steps_per_epoch = plan.steps_per_epoch;
        self.renderer = Some(renderer);
    }

    fn step(&mut self, record: &StepRecord) {
        let Some(renderer) = &mut self.renderer else { return };
        for (name, value) in [
            ("Loss", record.loss),
            ("Learning rate", record.lr),
            ("Images per second", record.images_per_second),
        ] {
            renderer.update_train(state(name, value));
        }
        renderer.update_split(record.step - (record.epoch - 1) * self.steps_per_epoch);
    }

    fn evaluation(&mut self, epoch: usize, evaluation: &Evaluation) {
        let Some(renderer) = &mut self.renderer else { return };
        renderer.end_split();
        renderer.update_valid(state("Accuracy", evaluation.accuracy() * 100.0));
        renderer.update_valid(state("Loss", evaluation.loss));
        renderer.update_epoch(epoch);
        renderer.start_split("train", self.steps_per_epoch);
    }

    fn finish(&mut self, summary: &Summary, folder: &Path) {
        // Gives the terminal back.
        self.renderer = None;
        println!("{}", closing_line(summary, folder));
    }

    fn stop_requested(&self) -> bool {
        self.interrupter.should_stop()
    }
}

fn id(name: &str) -> MetricId {
    MetricId::new(Arc::new(name.into()))
}

fn state(name: &str, value: f64) -> MetricState {
    let entry = SerializedEntry { formatted: format!("{value:.4}"), serialized: value.to_string() };
    MetricState::Numeric(MetricEntry::new(id(name), entry), Some(NumericEntry::Value(value)))
}
