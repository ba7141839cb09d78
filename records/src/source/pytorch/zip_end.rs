//! Works round an error of the zip crate (9.8.2), by which `pytorch-reader` reads archives.
//!
//! `torch.save` ends an archive with both kinds of end records: the directory of entries, the 76 bytes of the 64-bit
//! records, the 22 of the 32-bit one. The crate believes that the directory ends where the 32-bit record starts, and looks
//! for its start that much too late. Where an entry happens to begin there it starts with that one, the second, and ends
//! in an error: so with every file whose archive is called by 21 characters, since its first entry then takes 76 bytes.
//! With the fields of the 32-bit record set to "see the 64-bit one", as the format has it, the crate does.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// The 32-bit record without a comment, which PyTorch never writes: from its signature on, the counts of entries at 8 and
/// 10, the directory's size at 12 and its start at 16.
const END_BYTES: usize = 22;
const END: &[u8] = b"PK\x05\x06";
/// The 64-bit record and the one that locates it, before that.
const END_64_BYTES: usize = 56 + 20;
const END_64: &[u8] = b"PK\x06\x06";
const ENTRY: &[u8] = b"PK\x01\x02";

/// Whether the crate would take the second entry of an archive for the first.
pub(super) fn is_misread(file: &File) -> io::Result<bool> {
    Ok(misread_end(file)?.is_some())
}

/// Refers the reader to the 64-bit record, in an archive that would be misread; any other file stays as it is.
pub(super) fn repair(file: &File) -> io::Result<()> {
    match misread_end(file)? {
        Some(end) => file.write_all_at(&[0xff; 12], end + 8),
        None => Ok(()),
    }
}

/// Where the 32-bit record starts, if the archive would be misread.
fn misread_end(file: &File) -> io::Result<Option<u64>> {
    let length = file.metadata()?.len();
    let Some(tail_start) = length.checked_sub((END_64_BYTES + END_BYTES) as u64) else { return Ok(None) };
    let mut tail = [0; END_64_BYTES + END_BYTES];
    file.read_exact_at(&mut tail, tail_start)?;
    let (end_64, end) = tail.split_at(END_64_BYTES);
    if !end_64.starts_with(END_64) || !end.starts_with(END) {
        return Ok(None);
    }
    let start = u32::from_le_bytes([end[16], end[17], end[18], end[19]]) as u64;
    let mut taken_for_first = [0; 4];
    let late = start + END_64_BYTES as u64;
    if late + 4 > length {
        return Ok(None);
    }
    file.read_exact_at(&mut taken_for_first, late)?;
    Ok((taken_for_first == ENTRY).then_some(tail_start + END_64_BYTES as u64))
}
