//! How a check ends.

use serde::Serialize;
use serde_json::Value;

/// The end of a check that did not fail.
#[derive(Debug)]
pub(crate) enum Ending {
    /// With what it measured.
    Passed(Value),
    /// It cannot run here, and why.
    Skipped(String),
}

impl Ending {
    /// A check that cannot run here.
    pub(crate) fn skipped(why: impl Into<String>) -> anyhow::Result<Self> {
        Ok(Self::Skipped(why.into()))
    }
}

/// One line of the program's output.
#[derive(Debug, Serialize)]
pub(crate) struct Line {
    pub(crate) check: &'static str,
    pub(crate) device: &'static str,
    pub(crate) result: &'static str,
    pub(crate) why: Option<String>,
    pub(crate) seconds: f64,
    pub(crate) figures: Value,
}

impl Line {
    /// What is printed of a check on a kind of device that took `seconds`.
    pub(crate) fn new(
        check: &'static str,
        device: &'static str,
        ending: anyhow::Result<Ending>,
        seconds: f64,
    ) -> Self {
        let (result, why, figures) = match ending {
            Ok(Ending::Passed(figures)) => ("passed", None, figures),
            Ok(Ending::Skipped(why)) => ("skipped", Some(why), Value::Null),
            Err(error) => ("failed", Some(format!("{error:#}")), Value::Null),
        };
        Self { check, device, result, why, seconds, figures }
    }

    /// Whether the check failed.
    pub(crate) fn has_failed(&self) -> bool {
        self.result == "failed"
    }
}
