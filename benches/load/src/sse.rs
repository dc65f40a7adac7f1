//! Incremental parser for server-sent events, and the two questions asked about each event.
//!
//! Bytes arrive cut anywhere. The parser keeps one partial line and one partial event, both
//! bounded, and hands out each event's data once its blank line has come.

use anyhow::{Result, ensure};

/// No event of a completion stream comes near this; a server that sends more is broken.
const MAX_EVENT_BYTES: usize = 1 << 20;

/// State between two reads from the socket.
#[derive(Debug, Default)]
pub struct SseParser {
    line: Vec<u8>,
    data: Vec<u8>,
    has_data: bool,
    after_cr: bool,
}

impl SseParser {
    /// Takes the next bytes of the body and calls `on_event` with the data of each complete event.
    /// Comments, `event:`, `id:` and `retry:` lines are skipped.
    ///
    /// # Errors
    /// If one event exceeds 1 MiB.
    pub fn push(&mut self, bytes: &[u8], mut on_event: impl FnMut(&[u8])) -> Result<()> {
        for &byte in bytes {
            let ends_crlf = byte == b'\n' && self.after_cr;
            self.after_cr = byte == b'\r';
            match byte {
                _ if ends_crlf => {}
                b'\n' | b'\r' => self.end_line(&mut on_event),
                _ => self.line.push(byte),
            }
            ensure!(
                self.line.len() + self.data.len() <= MAX_EVENT_BYTES,
                "an event exceeds {MAX_EVENT_BYTES} bytes"
            );
        }
        Ok(())
    }

    fn end_line(&mut self, on_event: &mut impl FnMut(&[u8])) {
        if self.line.is_empty() {
            if std::mem::take(&mut self.has_data) {
                on_event(&self.data);
                self.data.clear();
            }
            return;
        }
        if let Some(value) = self.line.strip_prefix(b"data:") {
            if self.has_data {
                self.data.push(b'\n');
            }
            self.data.extend_from_slice(value.strip_prefix(b" ").unwrap_or(value));
            self.has_data = true;
        }
        self.line.clear();
    }
}

/// True if the JSON object has a member `key` (at any depth) whose value is a non-empty string.
///
/// Cheaper than parsing, and exact: inside a JSON string a quote is always written `\"`, so the
/// bytes `"key"` followed by a colon cannot be part of anybody's text.
#[must_use]
pub fn has_text(json: &[u8], key: &str) -> bool {
    values(json, key).any(|value| value.len() > 1 && value[0] == b'"' && value[1] != b'"')
}

/// True if the JSON object has a member `key` (at any depth) whose value is an object.
#[must_use]
pub fn has_object(json: &[u8], key: &str) -> bool {
    values(json, key).any(|value| value.first() == Some(&b'{'))
}

/// The bytes after `"key":` and white space, for each place where that key stands.
fn values<'a>(json: &'a [u8], key: &'a str) -> impl Iterator<Item = &'a [u8]> {
    let quoted = key.len() + 2;
    json.windows(quoted).enumerate().filter_map(move |(at, window)| {
        let is_key = window[0] == b'"'
            && window[quoted - 1] == b'"'
            && &window[1..quoted - 1] == key.as_bytes();
        if !is_key {
            return None;
        }
        let rest = json[at + quoted..].trim_ascii_start().strip_prefix(b":")?;
        Some(rest.trim_ascii_start())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const STREAM: &[u8] =
        b": keep-alive\n\ndata: {\"text\":\"\xc3\xa9\"}\n\nevent: x\r\ndata:one\r\n\
        data: two\r\n\r\nid: 7\n\ndata:\n\ndata: [DONE]\n\n";

    fn events(parts: &[&[u8]]) -> Vec<Vec<u8>> {
        let mut parser = SseParser::default();
        let mut out = Vec::new();
        for part in parts {
            parser.push(part, |event| out.push(event.to_vec())).unwrap();
        }
        out
    }

    #[test]
    fn the_same_events_come_out_wherever_the_stream_is_cut() {
        let whole = events(&[STREAM]);
        let expected: [&[u8]; 4] = [b"{\"text\":\"\xc3\xa9\"}", b"one\ntwo", b"", b"[DONE]"];
        assert_eq!(whole, expected);
        for cut in 0..=STREAM.len() {
            let (head, tail) = STREAM.split_at(cut);
            assert_eq!(events(&[head, tail]), whole, "cut at {cut}");
        }
        let bytes: Vec<&[u8]> = STREAM.chunks(1).collect();
        assert_eq!(events(&bytes), whole);
    }

    #[test]
    fn an_event_without_its_blank_line_is_not_an_event() {
        assert!(events(&[b"data: half\n"]).is_empty());
    }

    #[test]
    fn an_endless_event_is_refused() {
        let mut parser = SseParser::default();
        let line = vec![b'x'; MAX_EVENT_BYTES + 1];
        assert!(parser.push(&line, |_| {}).is_err());
    }

    #[test]
    fn text_is_found_only_where_there_is_text() {
        let yes = [r#"{"choices":[{"text":"a"}]}"#, r#"{"text" : "\n"}"#];
        let no = [
            r#"{"choices":[{"text":""}]}"#,
            r#"{"text":null}"#,
            r#"{"content":"say \"text\":\"x\""}"#,
            r#"{"kind":"text","n":1}"#,
            r#"{"te"#,
            r#"{"text"#,
            r#"{"text":"#,
        ];
        assert!(yes.iter().all(|json| has_text(json.as_bytes(), "text")));
        for json in no {
            assert!(!has_text(json.as_bytes(), "text"), "{json}");
        }
        assert!(has_object(br#"{"usage": {"completion_tokens":3}}"#, "usage"));
        assert!(!has_object(br#"{"usage":null}"#, "usage"));
    }
}
