//! Writes a flight record, whole or not at all, and never for long.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::mpsc::channel,
    time::Duration,
};

use super::record::FlightRecord;

/// A failed rank must leave soon, whatever the file system does.
const LIMIT: Duration = Duration::from_secs(2);

/// Writes `record` to `folder`, which is made if it is missing. Errors go to the log: the failure that is being recorded
/// matters more.
pub(super) fn write(folder: PathBuf, record: FlightRecord) {
    let (done, end) = channel();
    let write = move || {
        let _ = done.send(publish(&folder, &record).map_err(|error| (folder, error)));
    };
    let started = std::thread::Builder::new().name("burn-nccl-record".into()).spawn(write);
    match started.map(|_| end.recv_timeout(LIMIT)) {
        Ok(Ok(Ok(path))) => log::error!("the flight record of this rank is {}", path.display()),
        Ok(Ok(Err((folder, error)))) => {
            log::error!("no flight record could be written to {}: {error}", folder.display());
        }
        Ok(Err(_)) => log::error!("the flight record was not written within {LIMIT:?}"),
        Err(error) => log::error!("no thread could be started to write the flight record: {error}"),
    }
}

/// Writes under another name first, so that whoever sees the file sees all of it.
fn publish(folder: &Path, record: &FlightRecord) -> std::io::Result<PathBuf> {
    fs::create_dir_all(folder)?;
    let name = record.file_name();
    let (path, scratch) = (folder.join(&name), folder.join(format!(".{name}.{}", std::process::id())));
    let written = fs::write(&scratch, record.to_json()).and_then(|()| fs::rename(&scratch, &path));
    if written.is_err() {
        let _ = fs::remove_file(&scratch);
    }
    written.map(|()| path)
}
