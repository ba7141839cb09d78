//! TensorBoard event files with scalars, written by hand.
//!
//! A file is a sequence of TFRecords: length as little-endian u64, masked CRC-32C of those 8 bytes, payload, masked
//! CRC-32C of the payload. Each payload is a protocol-buffer message `Event`.
//!
//! Source: `tensorflow/core/lib/io/record_writer.h`, `tensorflow/core/util/event.proto`,
//! `tensorflow/core/framework/summary.proto`.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::error::{RecipeError, Result};

const MASK_DELTA: u32 = 0xa282_ead8;
const FILE_VERSION: &str = "brain.Event:2";

/// Writes scalars to an event file.
#[derive(Debug)]
pub struct EventFile {
    path: PathBuf,
    file: File,
}

impl EventFile {
    /// Creates an event file in `folder`; TensorBoard finds it by the `tfevents` in its name.
    ///
    /// # Errors
    /// Where it cannot be created or written.
    pub fn create(folder: &Path) -> Result<Self> {
        let time = wall_time();
        let path = folder.join(format!("events.out.tfevents.{:.0}.{}", time.trunc(), std::process::id()));
        let file = File::create(&path).map_err(|error| RecipeError::file("create", &path, error))?;
        let mut events = Self { path, file };
        let mut version = Vec::new();
        put_double(&mut version, 1, time);
        put_bytes(&mut version, 3, FILE_VERSION.as_bytes());
        events.write(&version)?;
        Ok(events)
    }

    /// Says that the run begins again after `step`: TensorBoard drops what older files of the folder have from later
    /// steps.
    ///
    /// # Errors
    /// Where it cannot be written.
    pub fn restart(&mut self, step: usize) -> Result<()> {
        self.write(&restart_event(wall_time(), step + 1))
    }

    /// Adds the values of one step.
    ///
    /// # Errors
    /// Where they cannot be written.
    pub fn scalars(&mut self, step: usize, values: &[(&str, f64)]) -> Result<()> {
        self.write(&scalar_event(wall_time(), step, values))
    }

    fn write(&mut self, payload: &[u8]) -> Result<()> {
        self.file.write_all(&record(payload)).map_err(|error| RecipeError::file("write", &self.path, error))
    }
}

fn wall_time() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |elapsed| elapsed.as_secs_f64())
}

/// `Event { wall_time = 1, step = 2, summary = 5 }` with `Summary { repeated value = 1 }` of
/// `Value { tag = 1, simple_value = 2 }`.
fn scalar_event(wall_time: f64, step: usize, values: &[(&str, f64)]) -> Vec<u8> {
    let mut summary = Vec::new();
    for (tag, value) in values {
        let mut message = Vec::new();
        put_bytes(&mut message, 1, tag.as_bytes());
        put_float(&mut message, 2, *value as f32);
        put_bytes(&mut summary, 1, &message);
    }
    let mut event = Vec::new();
    put_double(&mut event, 1, wall_time);
    put_varint(&mut event, 2 << 3);
    put_varint(&mut event, step as u64);
    put_bytes(&mut event, 5, &summary);
    event
}

/// `Event { wall_time = 1, step = 2, session_log = 7 }` with `SessionLog { status = 1 }`, where `START` is 1.
fn restart_event(wall_time: f64, step: usize) -> Vec<u8> {
    let mut event = Vec::new();
    put_double(&mut event, 1, wall_time);
    put_varint(&mut event, 2 << 3);
    put_varint(&mut event, step as u64);
    put_bytes(&mut event, 7, &[1 << 3, 1]);
    event
}

/// A payload with its length and checksums.
fn record(payload: &[u8]) -> Vec<u8> {
    let length = (payload.len() as u64).to_le_bytes();
    let mut record = Vec::with_capacity(payload.len() + 16);
    record.extend(length);
    record.extend(masked_crc(&length).to_le_bytes());
    record.extend(payload);
    record.extend(masked_crc(payload).to_le_bytes());
    record
}

/// A CRC of bytes that hold CRCs themselves is weak, so stored ones are rotated and shifted.
fn masked_crc(bytes: &[u8]) -> u32 {
    crc32c::crc32c(bytes).rotate_right(15).wrapping_add(MASK_DELTA)
}

// Protocol-buffer wire types: 0 varint, 1 fixed 64 bits, 2 length-delimited, 5 fixed 32 bits.

fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

fn put_double(out: &mut Vec<u8>, field: u64, value: f64) {
    put_varint(out, field << 3 | 1);
    out.extend(value.to_le_bytes());
}

fn put_float(out: &mut Vec<u8>, field: u64, value: f32) {
    put_varint(out, field << 3 | 5);
    out.extend(value.to_le_bytes());
}

fn put_bytes(out: &mut Vec<u8>, field: u64, bytes: &[u8]) {
    put_varint(out, field << 3 | 2);
    put_varint(out, bytes.len() as u64);
    out.extend(bytes);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksums_are_the_published_ones_masked() {
        // RFC 3720, B.4: CRC-32C of 32 zero bytes is aa36918a (as little-endian bytes).
        assert_eq!(crc32c::crc32c(&[0; 32]), 0x8a91_36aa);
        // The check value of CRC-32C is e3069283; rotated right by 15 bits that is 2507c60d.
        assert_eq!(masked_crc(b"123456789"), 0x2507_c60d_u32.wrapping_add(0xa282_ead8));
    }

    #[test]
    fn a_file_starts_with_the_bytes_that_tensorflow_writes() {
        let folder = tempfile::tempdir().unwrap();
        let events = EventFile::create(folder.path()).unwrap();
        let bytes = std::fs::read(&events.path).unwrap();
        // Every event file of TensorFlow starts so: a payload of 24 bytes, its length's checksum, field 1.
        assert_eq!(bytes[..13], *b"\x18\0\0\0\0\0\0\0\xa3\x7fK\"\x09");
        assert_eq!(bytes[21..36], *b"\x1a\x0dbrain.Event:2");
        assert_eq!(bytes.len(), 8 + 4 + 24 + 4);
    }

    #[test]
    fn a_scalar_event_is_the_protocol_buffer_message() {
        let event = scalar_event(1.0, 300, &[("loss", 0.5)]);
        let expected: &[u8] = &[
            0x09, 0, 0, 0, 0, 0, 0, 0xf0, 0x3f, // wall_time = 1.0
            0x10, 0xac, 0x02, // step = 300
            0x2a, 13, // summary, 13 bytes
            0x0a, 11, // value, 11 bytes
            0x0a, 4, b'l', b'o', b's', b's', // tag
            0x15, 0, 0, 0, 0x3f, // simple_value = 0.5
        ];
        assert_eq!(event, expected);
    }

    #[test]
    fn a_restart_is_the_session_log_that_makes_tensorboard_drop_later_steps() {
        let expected: &[u8] = &[0x09, 0, 0, 0, 0, 0, 0, 0xf0, 0x3f, 0x10, 5, 0x3a, 2, 0x08, 1];
        assert_eq!(restart_event(1.0, 5), expected);
    }
}
