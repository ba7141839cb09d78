//! What a tool prints as its result.

use std::io::{ErrorKind, Write};

use crate::error::{RecipeError, Result};

/// Writes `text` to stdout. A reader that has closed its end, such as `head`, has seen enough.
///
/// # Errors
/// Where the output cannot be written for another reason, such as a full disk.
pub fn print(text: &str) -> Result<()> {
    let mut stdout = std::io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(RecipeError::failure(
            "cannot write to the standard output",
            error.to_string(),
            "check where the output goes and that the disk has space",
        )),
        _ => Ok(()),
    }
}
