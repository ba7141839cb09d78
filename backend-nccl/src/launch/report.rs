use serde::{Deserialize, Serialize};
use std::{
    ffi::OsString,
    fs::{self, File},
    io::Read,
    path::{Path, PathBuf},
    sync::Once,
    time::{SystemTime, UNIX_EPOCH},
};

/// Names the file of a rank's [`ErrorReport`]; the launcher sets it for each rank.
pub const ERROR_FILE_VARIABLE: &str = "BURN_NCCL_ERROR_FILE";

/// The same under `torchrun`, which reads `message` and `timestamp` of it.
const TORCH_ERROR_FILE_VARIABLE: &str = "TORCHELASTIC_ERROR_FILE";

/// The launcher reads no more of a report than this, and passes on no more of its message than this.
const MAX_REPORT_BYTES: u64 = 16 << 20;
pub(super) const MAX_TEXT_BYTES: usize = 64 << 10;

/// What a rank says about its own failure, as JSON in the file that `BURN_NCCL_ERROR_FILE` names.
///
/// The launcher calls the failure with the smallest timestamp the first cause, as `torchrun` does.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ErrorReport {
    /// What failed.
    pub message: String,
    /// When it failed, in seconds since 1970-01-01 UTC.
    pub timestamp: f64,
    /// Whether the rank failed only because another rank did; such a report is the first cause only when there is
    /// no other.
    #[serde(default)]
    pub consequence: bool,
}

/// Tells the launcher why this rank fails. The first report of a process stands, later ones change nothing.
///
/// Call it before the process group is dropped, because that is when the other ranks start to fail as well.
/// It does nothing in a process that no launcher started, and a report which cannot be written is left out: it must
/// never hide the error it is about.
pub fn report_error(message: &str) {
    write_to_error_file(message, false);
}

/// As [`report_error`], for a failure whose cause is another rank, such as a lost peer.
///
/// Without the difference a rank that sees its peer die, and says so, would look like the first cause: a peer that
/// was killed has said nothing.
pub fn report_consequence(message: &str) {
    write_to_error_file(message, true);
}

/// Makes every panic of this process, on any thread, a report to the launcher before it is printed as usual.
///
/// A second call does nothing. A panic that the program catches leaves its report behind, which the launcher reads
/// only if the rank then fails.
pub fn install_panic_hook() {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        let previous = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            let message = info.payload_as_str().unwrap_or("panic without a message");
            match info.location() {
                Some(place) => report_error(&format!("panicked at {place}: {message}")),
                None => report_error(&format!("panicked: {message}")),
            }
            previous(info);
        }));
    });
}

fn write_to_error_file(message: &str, consequence: bool) {
    let variable = [ERROR_FILE_VARIABLE, TORCH_ERROR_FILE_VARIABLE].into_iter().find_map(std::env::var_os);
    let Some(path) = variable.map(PathBuf::from) else { return };
    let report = ErrorReport { message: message.to_owned(), timestamp: seconds_since_epoch(), consequence };
    // A report that cannot be written costs the launcher a message; the exit code still tells of the failure.
    let _ = write_report(&path, &report);
}

/// Published under its name in one step, so that the launcher never reads half a report of a rank it has killed.
fn write_report(path: &Path, report: &ErrorReport) -> std::io::Result<()> {
    if path.exists() {
        return Ok(());
    }
    let mut unfinished = OsString::from(path);
    unfinished.push(format!(".{}", std::process::id()));
    fs::write(&unfinished, serde_json::to_vec(report)?)?;
    fs::rename(&unfinished, path)
}

/// The report at `path`; `None` where there is none or it is not one.
pub(super) fn read_report(path: &Path) -> Option<ErrorReport> {
    let mut text = Vec::new();
    File::open(path).ok()?.take(MAX_REPORT_BYTES).read_to_end(&mut text).ok()?;
    let mut report: ErrorReport = serde_json::from_slice(&text).ok()?;
    shorten(&mut report.message, MAX_TEXT_BYTES);
    Some(report)
}

/// Cuts `text` to `most` bytes, or a few less, and says so at its end where there is room.
pub(super) fn shorten(text: &mut String, most: usize) {
    const MARK: &str = " [..]";
    if text.len() > most {
        text.truncate(text.floor_char_boundary(most.saturating_sub(MARK.len())));
        if most >= MARK.len() {
            text.push_str(MARK);
        }
    }
}

pub(super) fn seconds_since_epoch() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |elapsed| elapsed.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_report_stands() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("error.json");
        let report =
            |message: &str| ErrorReport { message: message.into(), timestamp: 2.5, consequence: true };
        write_report(&path, &report("first")).expect("written");
        write_report(&path, &report("second")).expect("left alone");
        assert_eq!(read_report(&path), Some(report("first")));
        assert_eq!(fs::read_dir(folder.path()).expect("listed").count(), 1);
    }

    #[test]
    fn a_long_message_is_cut_and_not_lost() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("error.json");
        let message = "é".repeat(1 << 20);
        write_report(&path, &ErrorReport { message, timestamp: 2.5, consequence: false }).expect("written");
        let report = read_report(&path).expect("a report");
        assert!((MAX_TEXT_BYTES - 1..=MAX_TEXT_BYTES).contains(&report.message.len()));
        assert!(report.message.starts_with("éé") && report.message.ends_with("é [..]"));
    }

    #[test]
    fn a_report_of_another_program_needs_message_and_timestamp_only() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("error.json");
        fs::write(&path, r#"{"message": "loss is NaN", "timestamp": 17, "extra": []}"#).expect("written");
        let expected = ErrorReport { message: "loss is NaN".into(), timestamp: 17.0, consequence: false };
        assert_eq!(read_report(&path), Some(expected));
        fs::write(&path, "not JSON").expect("written");
        assert_eq!(read_report(&path), None);
        assert_eq!(read_report(&folder.path().join("missing")), None);
    }
}
