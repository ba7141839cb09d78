use super::{error::LaunchError, outcome::Outcome};
use serde::Serialize;
use std::{ffi::OsString, fs, path::Path};

/// The end of a job for programs.
#[derive(Serialize)]
struct Report<'a> {
    exit_code: i32,
    #[serde(flatten)]
    outcome: &'a Outcome,
}

/// Writes how the job ended as JSON; the file appears whole or not at all.
pub(super) fn write(path: &Path, outcome: &Outcome) -> Result<(), LaunchError> {
    let refused = |source| LaunchError::File { path: path.to_owned(), source };
    let report = Report { exit_code: outcome.exit_code(), outcome };
    let mut text = serde_json::to_vec_pretty(&report).map_err(|error| refused(error.into()))?;
    text.push(b'\n');
    let mut unfinished = OsString::from(path);
    unfinished.push(format!(".{}", std::process::id()));
    fs::write(&unfinished, text).and_then(|()| fs::rename(&unfinished, path)).map_err(refused)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_has_the_exit_code_and_what_the_outcome_says() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("report.json");
        write(&path, &Outcome::Interrupted { signal: 15, killed: vec![1] }).expect("written");
        let text = fs::read_to_string(&path).expect("a report");
        let value: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        let expected =
            serde_json::json!({ "exit_code": 143, "outcome": "interrupted", "signal": 15, "killed": [1] });
        assert_eq!(value, expected);
        assert_eq!(fs::read_dir(folder.path()).expect("listed").count(), 1);
    }
}
