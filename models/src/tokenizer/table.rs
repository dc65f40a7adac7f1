//! The raw bytes of each token.

/// Bytes of all tokens in one buffer, by id.
#[derive(Debug, Default)]
pub(super) struct Table {
    bytes: Vec<u8>,
    /// Where each token ends; it begins where the one before ends.
    ends: Vec<usize>,
    /// Ids of special tokens, ascending.
    special: Vec<u32>,
}

impl Table {
    /// Adds the next token.
    pub(super) fn push(&mut self, bytes: &[u8], special: bool) {
        if special {
            self.special.push(self.len() as u32);
        }
        self.bytes.extend_from_slice(bytes);
        self.ends.push(self.bytes.len());
    }

    pub(super) fn len(&self) -> usize {
        self.ends.len()
    }

    pub(super) fn bytes(&self, token: u32) -> Option<&[u8]> {
        let index = token as usize;
        let end = *self.ends.get(index)?;
        let start = index.checked_sub(1).map_or(0, |before| self.ends[before]);
        Some(&self.bytes[start..end])
    }

    pub(super) fn is_special(&self, token: u32) -> bool {
        self.special.binary_search(&token).is_ok()
    }

    pub(super) fn special_token(&self, text: &str) -> Option<u32> {
        let is_it = |token: &&u32| self.bytes(**token) == Some(text.as_bytes());
        self.special.iter().find(is_it).copied()
    }
}

/// How a vocabulary writes bytes as text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Spelling {
    /// GPT-2's alphabet: one printable character for each byte.
    ByteLevel,
    /// SentencePiece: U+2581 for a space, `<0x0A>` for a byte.
    SentencePiece,
}

impl Spelling {
    /// Appends to `out` (cleared first) the bytes that `piece` stands for. A byte-level piece with
    /// a character outside the alphabet is taken as text, as the `tokenizers` crate does.
    pub(super) fn bytes(self, piece: &str, out: &mut Vec<u8>) {
        out.clear();
        match self {
            Spelling::ByteLevel => {
                for c in piece.chars() {
                    match byte_level(c) {
                        Some(byte) => out.push(byte),
                        None => {
                            out.clear();
                            return out.extend_from_slice(piece.as_bytes());
                        }
                    }
                }
            }
            Spelling::SentencePiece => match byte_piece(piece) {
                Some(byte) => out.push(byte),
                None => out.extend_from_slice(piece.replace('\u{2581}', " ").as_bytes()),
            },
        }
    }
}

/// The byte of `<0xNN>`.
fn byte_piece(piece: &str) -> Option<u8> {
    let digits = piece.strip_prefix("<0x")?.strip_suffix('>')?;
    let hex = digits.len() == 2 && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    if hex { u8::from_str_radix(digits, 16).ok() } else { None }
}

/// GPT-2's alphabet backwards: printable Latin-1 stands for itself, the 68 other bytes are U+0100
/// and up in ascending order.
fn byte_level(c: char) -> Option<u8> {
    let code = c as u32;
    match code {
        0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF => Some(code as u8),
        0x100..=0x120 => Some((code - 0x100) as u8),
        0x121..=0x142 => Some((code - 0x121 + 0x7F) as u8),
        0x143 => Some(0xAD),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(spelling: Spelling, piece: &str) -> Vec<u8> {
        let mut out = vec![1];
        spelling.bytes(piece, &mut out);
        out
    }

    #[test]
    fn the_alphabet_names_each_byte_once() {
        let alphabet = tokenizers::pre_tokenizers::byte_level::ByteLevel::alphabet();
        let mut seen: Vec<u8> = alphabet.into_iter().map(|c| byte_level(c).unwrap()).collect();
        seen.sort_unstable();
        assert_eq!(seen, (0..=255).collect::<Vec<u8>>());
        assert_eq!(bytes(Spelling::ByteLevel, "\u{120}a\u{10A}"), b" a\n");
        assert_eq!(bytes(Spelling::ByteLevel, "\u{120}\u{FF5C}"), "\u{120}\u{FF5C}".as_bytes());
    }

    #[test]
    fn sentence_pieces_are_text_or_one_byte() {
        assert_eq!(bytes(Spelling::SentencePiece, "\u{2581}a\u{2581}"), b" a ");
        assert_eq!(bytes(Spelling::SentencePiece, "<0xE2>"), [0xE2]);
        assert_eq!(bytes(Spelling::SentencePiece, "<0x+1>"), b"<0x+1>");
    }

    #[test]
    fn tokens_are_found_by_id_and_by_text() {
        let mut table = Table::default();
        table.push(b"ab", false);
        table.push(b"", false);
        table.push(b"<s>", true);
        assert_eq!(table.bytes(0), Some(&b"ab"[..]));
        assert_eq!(table.bytes(1), Some(&b""[..]));
        assert_eq!(table.bytes(3), None);
        assert_eq!(table.special_token("<s>"), Some(2));
        assert!(table.is_special(2) && !table.is_special(0));
        assert_eq!(table.special_token("ab"), None);
    }
}
