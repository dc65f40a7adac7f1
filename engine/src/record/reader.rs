//! Reading a segment back. Nothing in the file is believed before it has been checked: a length
//! that the file does not have, a checksum that is wrong and bytes that mean nothing all end the
//! reading with a message that names the place.

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::Path;

use super::event::{Event, FORMAT, Opening};
use super::segments::{MAGIC, MAX_FRAME};

/// Why reading ended before the end.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The file cannot be read.
    #[error("cannot read it: {0}")]
    Io(#[from] io::Error),
    /// Something else than a record.
    #[error("this is no record of sluice: it does not begin with its mark")]
    NotARecord,
    /// Another version wrote it.
    #[error("the record has format {0}, and this version reads format {FORMAT}")]
    Format(u16),
    /// It ends in the middle of a frame: the recorder was killed, or the disk was full.
    #[error("the record is cut off at byte {0}")]
    CutOff(u64),
    /// It has been damaged.
    #[error("the record is damaged at byte {at}: {why}")]
    Damaged {
        /// Where the damaged frame begins.
        at: u64,
        /// What is wrong with it.
        why: &'static str,
    },
}

/// Reads the events of a segment.
#[derive(Debug)]
pub struct Reader<R> {
    input: R,
    /// Bytes read, and where the current frame begins.
    bytes: u64,
    frame_at: u64,
    frame: Vec<u8>,
    /// How much of the frame has been used.
    used: usize,
    ended: bool,
}

impl Reader<BufReader<File>> {
    /// Opens a segment.
    ///
    /// # Errors
    /// See [`ReadError`].
    pub fn open(path: &Path) -> Result<(Opening, Self), ReadError> {
        Self::new(BufReader::new(File::open(path)?))
    }
}

impl<R: Read> Reader<R> {
    /// Reads the opening.
    ///
    /// # Errors
    /// See [`ReadError`].
    pub fn new(input: R) -> Result<(Opening, Self), ReadError> {
        let (frame, ended) = (Vec::new(), false);
        let mut reader = Reader { input, bytes: 0, frame_at: 0, frame, used: 0, ended };
        let mut mark = [0; MAGIC.len()];
        if reader.fill(&mut mark)? < mark.len() || mark != MAGIC {
            return Err(ReadError::NotARecord);
        }
        let mut format = [0; 2];
        if reader.fill(&mut format)? < format.len() {
            return Err(ReadError::CutOff(reader.bytes));
        }
        let format = u16::from_le_bytes(format);
        if format != FORMAT {
            return Err(ReadError::Format(format));
        }
        if !reader.next_frame()? {
            return Err(ReadError::CutOff(reader.bytes));
        }
        let opening = postcard::from_bytes(&reader.frame)
            .map_err(|_| reader.damaged("its opening cannot be read"))?;
        reader.used = reader.frame.len();
        Ok((opening, reader))
    }

    /// Bytes read so far.
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The next event; `None` at the end.
    fn read(&mut self) -> Result<Option<Event<'static>>, ReadError> {
        while self.used == self.frame.len() {
            if !self.next_frame()? {
                return Ok(None);
            }
        }
        let (event, rest) = postcard::take_from_bytes(&self.frame[self.used..])
            .map_err(|_| self.damaged("an event in it cannot be read"))?;
        self.used = self.frame.len() - rest.len();
        Ok(Some(event))
    }

    /// Reads the next frame; `false` at the end.
    fn next_frame(&mut self) -> Result<bool, ReadError> {
        self.frame_at = self.bytes;
        let mut head = [0; 8];
        match self.fill(&mut head)? {
            0 => return Ok(false),
            8 => {}
            _ => return Err(ReadError::CutOff(self.frame_at)),
        }
        let [a, b, c, d, sum @ ..] = head;
        let length = u32::from_le_bytes([a, b, c, d]);
        if length > MAX_FRAME {
            return Err(self.damaged("its length is impossible"));
        }
        self.frame.clear();
        self.used = 0;
        // Memory grows with what is there, not with what the length says.
        let came = (&mut self.input).take(length.into()).read_to_end(&mut self.frame)?;
        self.bytes += came as u64;
        if came < length as usize {
            return Err(ReadError::CutOff(self.frame_at));
        }
        if crc32fast::hash(&self.frame) != u32::from_le_bytes(sum) {
            return Err(self.damaged("its checksum is wrong"));
        }
        Ok(true)
    }

    /// Reads until `buffer` is full or the file ends; returns how much came.
    fn fill(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut came = 0;
        while came < buffer.len() {
            match self.input.read(&mut buffer[came..]) {
                Ok(0) => break,
                Ok(more) => came += more,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        self.bytes += came as u64;
        Ok(came)
    }

    const fn damaged(&self, why: &'static str) -> ReadError {
        ReadError::Damaged { at: self.frame_at, why }
    }
}

/// Ends after the first error.
impl<R: Read> Iterator for Reader<R> {
    type Item = Result<Event<'static>, ReadError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ended {
            return None;
        }
        let event = self.read().transpose();
        self.ended = !matches!(event, Some(Ok(_)));
        event
    }
}
