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

/// Refuses a file that could not be written when the job has ended, which may be days later.
pub(super) fn check(path: &Path) -> Result<(), LaunchError> {
    let refused = |source| LaunchError::File { path: path.to_owned(), source };
    if path.is_dir() {
        return Err(refused(std::io::ErrorKind::IsADirectory.into()));
    }
    let unfinished = unfinished(path);
    fs::File::create(&unfinished).and_then(|_| fs::remove_file(&unfinished)).map_err(refused)
}

/// Writes how the job ended as JSON; the file appears whole or not at all.
pub(super) fn write(path: &Path, outcome: &Outcome) -> Result<(), LaunchError> {
    let refused = |source| LaunchError::File { path: path.to_owned(), source };
    let report = Report { exit_code: outcome.exit_code(), outcome };
    let mut text = serde_json::to_vec_pretty(&report).map_err(|error| refused(error.into()))?;
    text.push(b'\n');
    let unfinished = unfinished(path);
    fs::write(&unfinished, text).and_then(|()| fs::rename(&unfinished, path)).map_err(refused)
}

/// Where the report is before it is whole.
fn unfinished(path: &Path) -> OsString {
    let mut unfinished = OsString::from(path);
    unfinished.push(format!(".{}", std::process::id()));
    unfinished
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_that_could_not_be_written_is_refused_and_the_check_leaves_nothing() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        check(&folder.path().join("report.json")).expect("can be written");
        assert_eq!(fs::read_dir(folder.path()).expect("listed").count(), 0);
        for wrong in [folder.path().to_owned(), folder.path().join("missing/report.json")] {
            assert!(matches!(check(&wrong), Err(LaunchError::File { path, .. }) if path == wrong));
        }
    }

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
