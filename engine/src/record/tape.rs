//! The tape: a bounded buffer of encoded events, and the thread that writes it to disk.
//!
//! A call encodes its event into the buffer under a lock that is held for some hundred nanoseconds;
//! the writer swaps the buffer for an empty one fifty times a second, so callers never wait for the
//! disk and never have to wake it. A full buffer tears the tape: what follows is counted and lost,
//! up to the next segment.

use std::io;
use std::mem;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use scheduler::CostModel;

use super::Options;
use super::event::{Event, Opening, State, encode};
use super::segments::Segments;

/// Most bytes that wait for the writer; events are 10 to 100 bytes.
const MAX_BUFFER: usize = 1 << 20;
/// How long the writer sleeps.
const PAUSE: Duration = Duration::from_millis(20);

/// How the record fares.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecordStatus {
    /// Bytes written since start.
    pub bytes: u64,
    /// Events that were lost in gaps.
    pub lost: u64,
    /// Nothing is written any more: the disk failed.
    pub failed: bool,
}

/// Where events go. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Tape(Arc<Reel>);

#[derive(Debug)]
struct Reel {
    /// How the first segment began.
    opening: Opening,
    segments: AtomicU64,
    buffer: Mutex<Buffer>,
    /// The current segment is long, or torn: the engine should begin the next.
    is_due: AtomicBool,
    bytes: AtomicU64,
    failed: AtomicBool,
    writer: Mutex<Option<JoinHandle<()>>>,
}

/// What the writer has not taken yet.
#[derive(Debug, Default)]
struct Buffer {
    events: Vec<u8>,
    next: Option<NextSegment>,
    /// Events are being lost.
    torn: bool,
    /// Lost since the tape tore, and in all.
    lost: u64,
    lost_in_all: u64,
    closed: bool,
}

/// A segment that the writer has not begun yet.
#[derive(Debug)]
struct NextSegment {
    opening: Box<Opening>,
    events: Vec<u8>,
}

impl Buffer {
    fn put(&mut self, event: &Event<'_>) {
        if self.closed {
            return;
        }
        let events = match &mut self.next {
            Some(next) => &mut next.events,
            None => &mut self.events,
        };
        self.torn |= events.len() >= MAX_BUFFER;
        if self.torn {
            self.lost += 1;
            self.lost_in_all += 1;
        } else {
            append(events, event);
        }
    }

    /// Mends the tape: says in the segment that ends how much it lacks.
    fn mend(&mut self) {
        let lost = mem::take(&mut self.lost);
        if mem::take(&mut self.torn) {
            append(&mut self.events, &Event::Gap(lost));
        }
    }
}

/// Encodes without an allocation of its own.
fn append(to: &mut Vec<u8>, event: &Event<'_>) {
    let encoded = postcard::to_extend(event, mem::take(to));
    *to = encoded.expect("plain data, into memory that grows");
}

impl Tape {
    /// Begins to record.
    ///
    /// # Errors
    /// The file cannot be written, or the thread cannot be started.
    pub(crate) fn start(options: &Options, opening: &Opening) -> io::Result<Tape> {
        let mut segments = Segments::new(options.path.clone(), options.max_bytes);
        segments.begin(&encode(opening))?;
        let reel = Arc::new(Reel {
            opening: opening.clone(),
            segments: AtomicU64::new(1),
            buffer: Mutex::default(),
            is_due: AtomicBool::new(false),
            bytes: AtomicU64::new(0),
            failed: AtomicBool::new(false),
            writer: Mutex::new(None),
        });
        let of_thread = Arc::clone(&reel);
        let thread = thread::Builder::new().name("recorder".into());
        let thread = thread.spawn(move || of_thread.write_all(segments))?;
        *reel.writer.lock().unwrap_or_else(PoisonError::into_inner) = Some(thread);
        Ok(Tape(reel))
    }

    /// Writes an event down, soon.
    pub(crate) fn put(&self, event: &Event<'_>) {
        self.0.buffer().put(event);
    }

    /// The next segment should begin.
    pub(crate) fn is_due(&self) -> bool {
        self.0.is_due.load(Ordering::Relaxed)
    }

    /// Begins the next segment with this state. Nothing may be put down meanwhile.
    pub(crate) fn begin(&self, cost: CostModel, state: State) {
        let seal = Event::Seal(state.sums());
        let opening = Opening {
            number: self.0.segments.fetch_add(1, Ordering::Relaxed),
            cost,
            state: Some(state),
            ..self.0.opening.clone()
        };
        let opening = Box::new(opening);
        let mut buffer = self.0.buffer();
        if !buffer.torn {
            buffer.put(&seal);
        }
        buffer.mend();
        buffer.next = Some(NextSegment { opening, events: Vec::new() });
        self.0.is_due.store(false, Ordering::Relaxed);
    }

    /// How the record fares.
    pub(crate) fn status(&self) -> RecordStatus {
        RecordStatus {
            bytes: self.0.bytes.load(Ordering::Relaxed),
            lost: self.0.buffer().lost_in_all,
            failed: self.0.failed.load(Ordering::Relaxed),
        }
    }

    /// Ends the record. Returns when all of it is on disk.
    pub(crate) fn close(&self) {
        let mut buffer = self.0.buffer();
        buffer.mend();
        buffer.put(&Event::End);
        buffer.closed = true;
        drop(buffer);
        let writer = self.0.writer.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(writer) = writer {
            writer.thread().unpark();
            // It has no reason to panic, and nobody could do anything about it.
            let _ = writer.join();
        }
    }
}

impl Reel {
    fn buffer(&self) -> MutexGuard<'_, Buffer> {
        self.buffer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The body of the writer.
    fn write_all(&self, mut segments: Segments) {
        let mut spare = Vec::new();
        loop {
            let (closed, result) = self.write(&mut segments, &mut spare);
            if let Err(error) = result {
                tracing::error!(%error, "the recorder cannot write; nothing is recorded any more");
                self.failed.store(true, Ordering::Relaxed);
                self.buffer().closed = true;
                return;
            }
            if closed {
                return;
            }
            thread::park_timeout(PAUSE);
        }
    }

    /// Writes what has come. Returns whether that was the last.
    fn write(&self, segments: &mut Segments, spare: &mut Vec<u8>) -> (bool, io::Result<()>) {
        let mut buffer = self.buffer();
        let mut events = mem::replace(&mut buffer.events, mem::take(spare));
        let (next, closed) = (buffer.next.take(), buffer.closed);
        drop(buffer);
        let result = write_batch(segments, &events, next);
        self.bytes.store(segments.bytes_in_all(), Ordering::Relaxed);
        events.clear();
        *spare = events;
        let mut buffer = self.buffer();
        if buffer.next.is_none() {
            buffer.torn |= segments.is_cut_off();
            self.is_due.store(buffer.torn || segments.is_long(), Ordering::Relaxed);
        }
        (closed, result)
    }
}

fn write_batch(
    segments: &mut Segments,
    events: &[u8],
    next: Option<NextSegment>,
) -> io::Result<()> {
    segments.append(events)?;
    if let Some(next) = next {
        segments.begin(&encode(&*next.opening))?;
        segments.append(&next.events)?;
    }
    Ok(())
}
