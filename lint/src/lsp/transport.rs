//! Frames of the protocol: headers, length, JSON. Finds its way back after broken ones.

use std::io::{self, BufRead, Read as _, Write};

use lsp_server::Message;
use serde_json::Value;

/// Longer messages are not read: no editor sends such.
const MESSAGE_BYTES_MAX: u64 = 256 << 20;
/// Longer header lines are noise.
const LINE_BYTES_MAX: u64 = 64 << 10;

const LENGTH: &str = "content-length:";

/// What came in.
#[derive(Debug)]
pub(super) enum Incoming {
    Message(Box<Message>),
    /// Bytes that are no JSON.
    NoJson(String),
    /// JSON that is no message; the request's id, where it has one.
    NoMessage(Value),
}

/// The next frame; `None` at the end of the input.
pub(super) fn read(input: &mut impl BufRead) -> io::Result<Option<Incoming>> {
    let Some(length) = length(input)? else { return Ok(None) };
    let mut body = Vec::new();
    // Grows as bytes come: a claimed length costs nothing.
    if input.by_ref().take(length).read_to_end(&mut body)? < length as usize {
        return Ok(None);
    }
    let value: Value = match serde_json::from_slice(&body) {
        Ok(value) => value,
        Err(error) => return Ok(Some(Incoming::NoJson(error.to_string()))),
    };
    let has_id = value.get("id").is_some();
    let id = value.get("id").filter(|id| id.is_string() || id.is_i64()).cloned();
    let is_request = value.get("method").is_some();
    Ok(Some(match serde_json::from_value(value) {
        // A request whose id is none would be taken for one, and never be answered.
        Ok(Message::Notification(_)) if has_id => Incoming::NoMessage(id.unwrap_or_default()),
        Ok(message) => Incoming::Message(Box::new(message)),
        Err(_) if is_request => Incoming::NoMessage(id.unwrap_or_default()),
        Err(_) => Incoming::NoMessage(Value::Null),
    }))
}

/// Reads headers up to the empty line. Whatever is no header is skipped.
fn length(input: &mut impl BufRead) -> io::Result<Option<u64>> {
    let mut length = None;
    loop {
        let mut line = Vec::new();
        if input.by_ref().take(LINE_BYTES_MAX).read_until(b'\n', &mut line)? == 0 {
            return Ok(None);
        }
        let line = String::from_utf8_lossy(&line).to_ascii_lowercase();
        // A broken message may stand before the header on its line.
        if let Some(at) = line.rfind(LENGTH) {
            let number = line[at + LENGTH.len()..].trim().parse();
            length = number.ok().filter(|length| *length <= MESSAGE_BYTES_MAX);
        } else if line.trim_end().is_empty()
            && let Some(length) = length
        {
            return Ok(Some(length));
        }
    }
}

pub(super) fn write(output: &mut impl Write, message: &Value) -> io::Result<()> {
    let body = message.to_string();
    write!(output, "Content-Length: {}\r\n\r\n{body}", body.len())?;
    output.flush()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn framed(body: &str) -> String {
        format!("Content-Length: {}\r\n\r\n{body}", body.len())
    }

    fn kinds(input: &str) -> String {
        let mut input = input.as_bytes();
        let mut kinds = String::new();
        while let Some(incoming) = read(&mut input).unwrap() {
            kinds.push(match incoming {
                Incoming::Message(_) => 'm',
                Incoming::NoJson(_) => 'j',
                Incoming::NoMessage(_) => 'n',
            });
        }
        kinds
    }

    #[test]
    fn broken_frames_do_not_hide_what_follows() {
        let good = framed(r#"{"jsonrpc":"2.0","method":"initialized","params":{}}"#);
        assert_eq!(kinds(&good.repeat(2)), "mm");
        assert_eq!(kinds(&format!("{}{good}", framed("{\"truncated"))), "jm");
        assert_eq!(kinds(&format!("{}{good}", framed("[1, 2]"))), "nm");
        assert_eq!(kinds(&format!("noise\r\nmore: noise\r\n\r\n{good}")), "m");
        assert_eq!(kinds(&format!("{{\"no\":\"header\"}}{good}")), "m");
        assert_eq!(kinds(&format!("Content-Length: -5\r\n\r\n{{}}{good}")), "m");
        assert_eq!(kinds(&format!("Content-Length: 99999999999999\r\n\r\n{good}")), "m");
        assert_eq!(kinds(&format!("content-length:2\r\nX: y\r\n\r\n{{}}{good}")), "nm");
        assert_eq!(kinds("Content-Length: 50\r\n\r\n{}"), "");
    }

    #[test]
    fn a_broken_request_keeps_its_id() {
        let mut input = framed(r#"{"id":7,"method":5}"#);
        input.push_str(&framed(r#"{"id":{},"method":"x"}"#));
        let mut input = input.as_bytes();
        let mut next = || match read(&mut input).unwrap() {
            Some(Incoming::NoMessage(id)) => id,
            other => panic!("{other:?}"),
        };
        assert_eq!(next(), 7);
        assert_eq!(next(), Value::Null);
    }
}
