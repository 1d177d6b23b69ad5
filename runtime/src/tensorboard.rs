//! TensorBoard event files, written by rank 0 only. The format is TensorFlow's record file (length,
//! checksum, data, checksum) of `Event` protocol buffers; only scalars are written.

use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::error::{Error, Result};
use crate::group::ProcessGroup;

/// Writes scalars for TensorBoard on rank 0 and does nothing elsewhere.
#[derive(Debug)]
pub struct EventWriter {
    file: Option<BufWriter<File>>,
}

impl EventWriter {
    /// Opens a new event file in `folder`, which is made if it is not there. No collective.
    ///
    /// # Errors
    /// Rank 0 cannot write there.
    pub fn new(folder: impl AsRef<Path>, group: &ProcessGroup) -> Result<Self> {
        if !group.is_main() {
            return Ok(Self { file: None });
        }
        let folder = folder.as_ref();
        let failed = |error: std::io::Error| {
            Error::Checkpoint(format!("cannot write events in `{}`: {error}", folder.display()))
        };
        fs::create_dir_all(folder).map_err(failed)?;
        let seconds = now() as u64;
        let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        let host = if host.trim().is_empty() { "localhost" } else { host.trim() };
        let process = std::process::id();
        let name = format!("events.out.tfevents.{seconds}.{host}.{process}");
        let file = File::create(folder.join(name)).map_err(failed)?;
        let mut writer = Self { file: Some(BufWriter::new(file)) };
        writer.record(&event(0, &field_bytes(3, b"brain.Event:2"))).map_err(failed)?;
        Ok(writer)
    }

    /// Adds a value to the curve `tag` at `step`.
    ///
    /// # Errors
    /// The disk is full or gone.
    pub fn scalar(&mut self, tag: &str, value: f64, step: u64) -> Result<()> {
        let mut point = field_bytes(1, tag.as_bytes());
        point.push((2 << 3) | 5); // simple_value, 32 bits
        point.extend((value as f32).to_le_bytes());
        let summary = field_bytes(5, &field_bytes(1, &point));
        self.record(&event(step, &summary))
            .map_err(|error| Error::Checkpoint(format!("cannot write the event `{tag}`: {error}")))
    }

    /// Hands everything to the system, so that TensorBoard can show it.
    ///
    /// # Errors
    /// The disk is full or gone.
    pub fn flush(&mut self) -> Result<()> {
        let flushed = self.file.as_mut().map_or(Ok(()), Write::flush);
        flushed.map_err(|error| Error::Checkpoint(format!("cannot write events: {error}")))
    }

    fn record(&mut self, data: &[u8]) -> std::io::Result<()> {
        let Some(file) = &mut self.file else { return Ok(()) };
        let length = (data.len() as u64).to_le_bytes();
        file.write_all(&length)?;
        file.write_all(&masked_crc(&length).to_le_bytes())?;
        file.write_all(data)?;
        file.write_all(&masked_crc(data).to_le_bytes())
    }
}

fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |time| time.as_secs_f64())
}

/// An `Event`: wall time (field 1), step (field 2), and what it tells.
fn event(step: u64, what: &[u8]) -> Vec<u8> {
    let mut event = vec![(1 << 3) | 1];
    event.extend(now().to_le_bytes());
    event.push(2 << 3);
    varint(step, &mut event);
    event.extend(what);
    event
}

/// A length-delimited field of a protocol buffer.
fn field_bytes(number: u8, bytes: &[u8]) -> Vec<u8> {
    let mut field = vec![(number << 3) | 2];
    varint(bytes.len() as u64, &mut field);
    field.extend(bytes);
    field
}

fn varint(mut value: u64, out: &mut Vec<u8>) {
    while value >= 0x80 {
        out.push((value as u8) | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// TensorFlow's masked CRC-32C.
fn masked_crc(bytes: &[u8]) -> u32 {
    crc32c(bytes).rotate_right(15).wrapping_add(0xa282_ead8)
}

/// CRC-32C (Castagnoli), bit by bit: event files are small.
fn crc32c(bytes: &[u8]) -> u32 {
    const POLYNOMIAL: u32 = 0x82f6_3b78;
    let mut crc = !0u32;
    for byte in bytes {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            crc = (crc >> 1) ^ (POLYNOMIAL & (crc & 1).wrapping_neg());
        }
    }
    !crc
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksums_are_those_of_the_standard() {
        // RFC 3720, B.4.
        assert_eq!(crc32c(&[0; 32]), 0x8a91_36aa);
        assert_eq!(crc32c(&[0xff; 32]), 0x62a8_ab43);
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
    }

    #[test]
    fn numbers_are_varints() {
        let mut out = Vec::new();
        varint(300, &mut out);
        assert_eq!(out, [0xac, 0x02]);
        assert_eq!(field_bytes(1, b"ab"), [0x0a, 2, b'a', b'b']);
    }
}
