//! The folder that a run leaves behind.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use burn_nccl_records::write_file;
use serde::Serialize;
use serde_json::Value;

use crate::error::{RecipeError, Result};

/// What may be in the folder before the run: what the ranks print.
pub const LOG_FOLDER: &str = "logs";

/// The first file of a run that a launcher started, which says whose run it is.
pub(crate) const JOB: &str = "job.json";

/// The last file that a run writes.
pub const SUMMARY: &str = "summary.json";

/// A run's folder. Files appear in it complete or not at all.
#[derive(Clone, Debug)]
pub struct RunFolder {
    path: PathBuf,
}

impl RunFolder {
    /// Creates the folder of a run that names none: `runs/<recipe>-<UTC time>`, with `-2` and so on behind it where
    /// another run began in the same second.
    ///
    /// # Errors
    /// Where it cannot be created.
    pub fn claim(recipe: &str) -> Result<PathBuf> {
        let runs = Path::new("runs");
        let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |elapsed| elapsed.as_secs());
        let name = format!("{recipe}-{}", utc(seconds));
        fs::create_dir_all(runs).map_err(|error| RecipeError::file("create", runs, error))?;
        let mut path = runs.join(&name);
        for number in 2.. {
            match fs::create_dir(&path) {
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                    path = runs.join(format!("{name}-{number}"));
                }
                Err(error) => return Err(RecipeError::file("create the run folder", &path, error)),
                Ok(()) => break,
            }
        }
        Ok(path)
    }

    /// Makes sure that `path` holds no other run, without creating it.
    ///
    /// # Errors
    /// A usage error where the folder holds anything but logs: results are never overwritten.
    pub fn check_unused(path: &Path) -> Result<()> {
        let entries = match fs::read_dir(path) {
            Ok(entries) => entries,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(RecipeError::file("use the run folder", path, error)),
        };
        // What a crash leaves of a file that was being written is no run.
        let is_unfinished = |name: &str| name.starts_with('.') && name.ends_with(".tmp");
        let is_run = |name: &std::ffi::OsString| {
            name != LOG_FOLDER && name != JOB && !is_unfinished(&name.to_string_lossy())
        };
        let found = entries.flatten().map(|entry| entry.file_name()).find(is_run);
        found.map_or(Ok(()), |found| {
            Err(RecipeError::usage(
                format!("cannot write the run to {}", path.display()),
                format!("it is not empty: it holds {}", found.display()),
                "choose another --out, or move the old run away",
            ))
        })
    }

    /// Creates the folder.
    ///
    /// # Errors
    /// As [`check_unused`](Self::check_unused), and where the folder cannot be created.
    pub fn create(path: &Path) -> Result<Self> {
        Self::check_unused(path)?;
        fs::create_dir_all(path).map_err(|error| RecipeError::file("create the run folder", path, error))?;
        Ok(Self { path: path.into() })
    }

    /// The folder of a run that goes on, as it is.
    pub fn existing(path: &Path) -> Self {
        Self { path: path.into() }
    }

    /// The folder itself.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The path of a file in the folder.
    pub fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Whether the run in it has come to its end: the summary is written last, and does not say that a signal stopped the
    /// run.
    pub fn has_ended(&self) -> bool {
        let summary = self.file(SUMMARY);
        let was_interrupted = || {
            let summary: Value = serde_json::from_slice(&fs::read(&summary).ok()?).ok()?;
            summary.get("interrupted")?.as_bool()
        };
        summary.exists() && was_interrupted() != Some(true)
    }

    /// Removes a file, where there is one.
    ///
    /// # Errors
    /// Where it cannot be removed.
    pub fn remove(&self, name: &str) -> Result<()> {
        match fs::remove_file(self.file(name)) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                Err(RecipeError::file("remove", &self.file(name), error))
            }
            _ => Ok(()),
        }
    }

    /// Writes a value as indented JSON.
    ///
    /// # Errors
    /// Where the file cannot be written.
    pub fn write_json(&self, name: &str, value: &impl Serialize) -> Result<()> {
        let text = serde_json::to_string_pretty(value)
            .map_err(|error| RecipeError::file("write", &self.file(name), error))?;
        self.write(name, format!("{text}\n").as_bytes())
    }

    /// Writes a file, which appears whole or not at all.
    ///
    /// # Errors
    /// Where the file cannot be written.
    pub fn write(&self, name: &str, bytes: &[u8]) -> Result<()> {
        let path = self.file(name);
        let what = || format!("cannot write {}", path.display());
        write_file(&path, bytes, true, true).map_err(|error| RecipeError::records(what(), error))
    }
}

/// `YYYYMMDD-HHMMSS` of a time in seconds since 1970-01-01 UTC.
fn utc(seconds: u64) -> String {
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day) = civil_date(days);
    format!("{year:04}{month:02}{day:02}-{:02}{:02}{:02}", rest / 3600, rest / 60 % 60, rest % 60)
}

/// Year, month and day of a day number since 1970-01-01, in the Gregorian calendar.
fn civil_date(days: u64) -> (u64, u64, u64) {
    let is_leap = |year: u64| year.is_multiple_of(4) && !year.is_multiple_of(100) || year.is_multiple_of(400);
    let (mut year, mut day) = (1970, days);
    loop {
        let length = if is_leap(year) { 366 } else { 365 };
        if day < length {
            break;
        }
        day -= length;
        year += 1;
    }
    let february = if is_leap(year) { 29 } else { 28 };
    let mut month = 1;
    for length in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31] {
        if day < length {
            break;
        }
        day -= length;
        month += 1;
    }
    (year, month, day + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_as_utc() {
        // `date -u -d @SECONDS +%Y%m%d-%H%M%S`
        assert_eq!(utc(0), "19700101-000000");
        assert_eq!(utc(951_827_696), "20000229-123456");
        assert_eq!(utc(1_767_225_599), "20251231-235959");
    }

    #[test]
    fn a_folder_with_another_run_is_refused_and_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let run = folder.path().join("run");
        RunFolder::create(&run).unwrap().write("config.json", b"{}").unwrap();
        let error = RunFolder::create(&run).unwrap_err();
        assert_eq!((error.cause.as_str(), error.exit_code()), ("it is not empty: it holds config.json", 2));
        assert_eq!(fs::read(run.join("config.json")).unwrap(), b"{}");
    }

    #[test]
    fn a_run_that_a_signal_stopped_has_not_ended() {
        let folder = tempfile::tempdir().unwrap();
        let run = RunFolder::existing(folder.path());
        assert!(!run.has_ended());
        for (summary, expected) in [("{}", true), (r#"{"interrupted": true}"#, false), ("no JSON", true)] {
            run.write(SUMMARY, summary.as_bytes()).unwrap();
            assert_eq!(run.has_ended(), expected, "{summary}");
        }
    }

    #[test]
    fn a_new_an_empty_and_a_folder_of_logs_are_unused() {
        let folder = tempfile::tempdir().unwrap();
        assert!(RunFolder::check_unused(folder.path()).is_ok());
        assert!(RunFolder::check_unused(&folder.path().join("new")).is_ok());
        fs::create_dir(folder.path().join(LOG_FOLDER)).unwrap();
        assert!(RunFolder::check_unused(folder.path()).is_ok());
        let file = folder.path().join("file");
        fs::write(&file, "").unwrap();
        assert_eq!(RunFolder::check_unused(&file).unwrap_err().exit_code(), 1);
    }
}
