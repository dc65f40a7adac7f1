//! Segments on disk. `FILE` is the current one, `FILE.1` the one before, and so on; the oldest are
//! deleted so that all of them together stay within their bound.
//!
//! A segment is [`MAGIC`], the format as two bytes, then frames: length and CRC-32 of the content,
//! four bytes each (little endian), then the content. The first frame holds the opening, the others
//! as many whole events as there were to write.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use super::event::FORMAT;

/// How a segment can be told from other files.
pub(super) const MAGIC: [u8; 6] = *b"sluice";
/// Most bytes of one frame's content.
pub(super) const MAX_FRAME: u32 = 1 << 26;
/// A segment is followed by the next after this many sixteenths of the bound,
const LONG: u64 = 2;
/// and is cut off after these, if the engine does not come to begin the next.
const CUT_OFF: u64 = 3;
/// So many are reserved for the current segment: the last batch of events still goes into it.
const RESERVED: u64 = 4;

/// Checks that segments can be written at `path`, so that a mistake is known before a model has
/// been loaded. What lies there is kept.
///
/// # Errors
/// The path is a folder, or cannot be written to.
pub fn prepare(path: &Path) -> io::Result<()> {
    let existed = path.exists();
    OpenOptions::new().append(true).create(true).open(path)?;
    if !existed {
        fs::remove_file(path)?;
    }
    Ok(())
}

/// Writes one segment after the other.
#[derive(Debug)]
pub(super) struct Segments {
    path: PathBuf,
    max_bytes: u64,
    file: Option<File>,
    /// Bytes of the current segment without its opening, and of all segments so far.
    bytes: u64,
    bytes_in_all: u64,
}

impl Segments {
    pub(super) const fn new(path: PathBuf, max_bytes: u64) -> Segments {
        Segments { path, max_bytes, file: None, bytes: 0, bytes_in_all: 0 }
    }

    /// Ends the current segment and begins one with this opening.
    pub(super) fn begin(&mut self, opening: &[u8]) -> io::Result<()> {
        self.file = None;
        self.make_room(opening.len() as u64)?;
        let mut file = File::create(&self.path)?;
        let mut head = MAGIC.to_vec();
        head.extend(FORMAT.to_le_bytes());
        file.write_all(&head)?;
        self.file = Some(file);
        self.append(opening)?;
        self.bytes_in_all += head.len() as u64;
        self.bytes = 0;
        Ok(())
    }

    /// Appends a frame to the current segment.
    pub(super) fn append(&mut self, content: &[u8]) -> io::Result<()> {
        let Some(file) = self.file.as_mut().filter(|_| !content.is_empty()) else { return Ok(()) };
        let length = u32::try_from(content.len()).ok().filter(|length| *length <= MAX_FRAME);
        let length = length.ok_or_else(|| io::Error::other("too much for one frame"))?;
        let mut head = length.to_le_bytes().to_vec();
        head.extend(crc32fast::hash(content).to_le_bytes());
        file.write_all(&head)?;
        file.write_all(content)?;
        let written = (head.len() + content.len()) as u64;
        self.bytes += written;
        self.bytes_in_all += written;
        Ok(())
    }

    /// It is time for the next segment.
    pub(super) const fn is_long(&self) -> bool {
        self.bytes >= self.max_bytes / 16 * LONG
    }

    /// Nothing more may follow in this segment.
    pub(super) const fn is_cut_off(&self) -> bool {
        self.bytes >= self.max_bytes / 16 * CUT_OFF
    }

    /// Bytes written so far, in all segments.
    pub(super) const fn bytes_in_all(&self) -> u64 {
        self.bytes_in_all
    }

    /// Moves every segment one number up, and deletes those that leave no room for a new one with
    /// an opening of this size.
    fn make_room(&self, opening: u64) -> io::Result<()> {
        let reserved = self.max_bytes / 16 * RESERVED;
        let mut room = self.max_bytes.saturating_sub(reserved).saturating_sub(opening);
        let mut kept = 0;
        while let Ok(about) = fs::metadata(numbered(&self.path, kept)) {
            let Some(left) = room.checked_sub(about.len()) else { break };
            room = left;
            kept += 1;
        }
        for old in kept.. {
            if fs::remove_file(numbered(&self.path, old)).is_err() {
                break;
            }
        }
        for old in (0..kept).rev() {
            fs::rename(numbered(&self.path, old), numbered(&self.path, old + 1))?;
        }
        Ok(())
    }
}

/// The name of the segment that is `age` segments old.
fn numbered(path: &Path, age: u32) -> PathBuf {
    if age == 0 {
        return path.to_owned();
    }
    let mut name = OsString::from(path);
    name.push(format!(".{age}"));
    name.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_segments_go_so_that_all_stay_within_the_bound() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("log");
        let mut segments = Segments::new(path.clone(), 10_000);
        for i in 0..20u8 {
            segments.begin(&[i; 100]).expect("begins");
            assert!(!segments.is_long());
            while !segments.is_long() {
                segments.append(&[i; 300]).expect("appends");
            }
            assert!(!segments.is_cut_off());
            let files = fs::read_dir(folder.path()).expect("readable");
            let sizes = files.map(|file| file.expect("a file").metadata().expect("known").len());
            let all: u64 = sizes.sum();
            assert!(all <= 10_000 && (i < 8 || all > 6_500), "{all} bytes after {i} segments");
        }
        let head = |age| fs::read(numbered(&path, age)).expect("kept")[16];
        assert_eq!([0, 1, 2].map(head), [19, 18, 17], "the newest has no number");
    }

    #[test]
    fn a_bad_path_is_known_early_and_a_good_one_is_left_alone() {
        let folder = tempfile::tempdir().expect("a folder");
        assert!(prepare(folder.path()).is_err());
        assert!(prepare(&folder.path().join("none/log")).is_err());
        let path = folder.path().join("log");
        prepare(&path).expect("writable");
        assert!(!path.exists());
        fs::write(&path, "x").expect("written");
        prepare(&path).expect("writable");
        assert_eq!(fs::read(&path).expect("kept"), b"x");
    }
}
