//! Programs that this one starts: an end by a deadline, and no more of their output than is wanted.

use std::fs::File;
use std::io::{self, BufRead, Read, Seek, SeekFrom};
use std::path::Path;
use std::process::{Child, ExitStatus};
use std::time::{Duration, Instant};

/// How often a running program is looked at.
const POLL: Duration = Duration::from_millis(20);

/// What of a program's messages is read, from their end.
const MAX_MESSAGES_BYTES: u64 = 64 << 10;

/// Waits for the program's end; none where it had to be killed at the deadline. Either way nothing of it is left.
pub(crate) fn wait(child: &mut Child, deadline: Duration) -> io::Result<Option<ExitStatus>> {
    let end = Instant::now() + deadline;
    loop {
        match child.try_wait()? {
            Some(status) => return Ok(Some(status)),
            None if Instant::now() < end => std::thread::sleep(POLL),
            None => {
                // Neither can fail for a child that is there; what matters is that its time is over.
                let _ = child.kill();
                let _ = child.wait();
                return Ok(None);
            }
        }
    }
}

/// The end of a file that a program has written; nothing where there is none.
pub(crate) fn tail(path: &Path) -> String {
    let mut bytes = Vec::new();
    let read = |mut file: File| {
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(MAX_MESSAGES_BYTES)))?;
        file.take(MAX_MESSAGES_BYTES).read_to_end(&mut bytes)
    };
    let _ = File::open(path).and_then(read);
    String::from_utf8_lossy(&bytes).into_owned()
}

/// The next line without its end; none after the last one.
///
/// # Errors
/// For a line of more than `max` bytes.
pub(crate) fn next_line(output: &mut impl BufRead, max: u64) -> io::Result<Option<String>> {
    let mut line = Vec::new();
    if output.by_ref().take(max.saturating_add(1)).read_until(b'\n', &mut line)? == 0 {
        return Ok(None);
    }
    let whole = line.pop_if(|byte| *byte == b'\n').is_some();
    if !whole && line.len() as u64 > max {
        return Err(io::Error::new(io::ErrorKind::InvalidData, format!("a line of more than {max} bytes")));
    }
    Ok(Some(String::from_utf8_lossy(&line).into_owned()))
}

/// Reads to the end and returns the last line that is not blank, at most `max` bytes of it.
pub(crate) fn last_line(output: &mut impl BufRead, max: u64) -> String {
    let mut last = Vec::new();
    let mut starts = true;
    loop {
        let mut part = Vec::new();
        match output.by_ref().take(max).read_until(b'\n', &mut part) {
            Ok(0) | Err(_) => return String::from_utf8_lossy(&last).trim().to_owned(),
            // Of a longer line the beginning is kept.
            Ok(_) if starts && !part.trim_ascii().is_empty() => last.clone_from(&part),
            Ok(_) => {}
        }
        starts = part.ends_with(b"\n");
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    fn shell(script: &str) -> Child {
        Command::new("sh").args(["-c", script]).spawn().unwrap()
    }

    #[test]
    fn a_program_that_does_not_end_is_killed_at_the_deadline() {
        let mut child = shell("exec sleep 100");
        let start = Instant::now();
        assert_eq!(wait(&mut child, Duration::from_millis(50)).unwrap(), None);
        assert!(start.elapsed() < Duration::from_secs(50));
        assert!(child.try_wait().unwrap().is_some(), "it is still there");
        let status = wait(&mut shell("exit 3"), Duration::from_secs(60)).unwrap();
        assert_eq!(status.and_then(|status| status.code()), Some(3));
    }

    #[test]
    fn a_line_is_read_up_to_its_limit() {
        let mut output = b"one\n\ntwo!\nthree".as_slice();
        let mut next = |max| next_line(&mut output, max);
        assert_eq!(next(3).unwrap().as_deref(), Some("one"));
        assert_eq!(next(3).unwrap().as_deref(), Some(""));
        assert!(next(3).is_err());
        let mut output = b"four".as_slice();
        assert_eq!(next_line(&mut output, 4).unwrap().as_deref(), Some("four"));
        assert_eq!(next_line(&mut output, 4).unwrap(), None);
    }

    #[test]
    fn the_last_line_that_is_not_blank_is_kept_and_not_more_of_it_than_is_wanted() {
        let last = |text: &str| last_line(&mut text.as_bytes(), 8);
        assert_eq!(last("Traceback:\n  x\nError: y\n\n  \n"), "Error: y");
        assert_eq!(last("first\nlonger than that"), "longer t");
        assert_eq!([last(""), last("\n"), last("é")], ["", "", "é"]);
    }

    #[test]
    fn the_end_of_a_file_is_read_and_of_none_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("messages");
        assert_eq!(tail(&path), "");
        std::fs::write(&path, "x".repeat(100_000) + "end").unwrap();
        assert_eq!((tail(&path).len(), tail(&path).ends_with("xend")), (64 << 10, true));
    }
}
