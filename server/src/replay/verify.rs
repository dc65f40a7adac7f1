//! Repeats a record and compares.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

use anyhow::Context;
use engine::record::replay::Applied;
use engine::record::{Difference, Event, Opening, Reader, Replay};
use scheduler::{Admission, Micros};

/// What came out.
#[derive(Debug)]
pub(super) struct Report {
    file: PathBuf,
    opening: Opening,
    bytes: u64,
    events: u64,
    decisions: u64,
    admitted: u64,
    refused: u64,
    steps: u64,
    first: Option<Micros>,
    last: Option<Micros>,
    /// Events that were lost while recording.
    lost: u64,
    /// The record was ended by its recorder.
    ended: bool,
    different: u64,
    /// The first of them.
    shown: Vec<Shown>,
    /// Why the replay stopped before the end.
    stopped: Option<String>,
}

/// A difference and its place.
#[derive(Debug)]
struct Shown {
    event: u64,
    at: Option<Micros>,
    difference: Difference,
}

/// Replays `file`, keeping the first `limit` differences.
///
/// # Errors
/// It is no record, or one of another version.
pub(super) fn verify(file: &Path, limit: usize) -> anyhow::Result<Report> {
    let name = || file.display().to_string();
    let (opening, mut reader) = Reader::open(file).with_context(name)?;
    let mut replay = Replay::new(&opening).with_context(name)?;
    let mut report = Report::new(file, opening);
    for event in &mut reader {
        let applied = match event {
            Err(error) => Err(error.to_string()),
            Ok(event) => {
                report.count(&event);
                replay.apply(&event).map_err(|error| error.to_string())
            }
        };
        match applied {
            Ok(applied) => report.book(applied, limit),
            Err(problem) => {
                report.stopped = Some(problem);
                break;
            }
        }
    }
    report.bytes = reader.bytes();
    Ok(report)
}

impl Report {
    fn new(file: &Path, opening: Opening) -> Report {
        Report {
            file: file.to_owned(),
            opening,
            bytes: 0,
            events: 0,
            decisions: 0,
            admitted: 0,
            refused: 0,
            steps: 0,
            first: None,
            last: None,
            lost: 0,
            ended: false,
            different: 0,
            shown: Vec::new(),
            stopped: None,
        }
    }

    /// All decisions are the same, and the record is whole.
    pub(super) const fn is_good(&self) -> bool {
        self.different == 0 && self.stopped.is_none()
    }

    fn count(&mut self, event: &Event<'_>) {
        self.events += 1;
        if let Some(now) = event.time() {
            self.first = Some(self.first.map_or(now, |first| first.min(now)));
            self.last = self.last.max(Some(now));
        }
        match event {
            Event::Admit { decision: Admission::Admit(_), .. } => self.admitted += 1,
            Event::Admit { .. } | Event::RefuseEarly { .. } => self.refused += 1,
            Event::Complete { .. } | Event::Fail => self.steps += 1,
            Event::Gap(lost) => self.lost += lost,
            Event::End => self.ended = true,
            _ => {}
        }
    }

    fn book(&mut self, applied: Applied, limit: usize) {
        let difference = match applied {
            Applied::Input => return,
            Applied::Same => {
                self.decisions += 1;
                return;
            }
            Applied::Different(difference) => *difference,
        };
        self.decisions += 1;
        self.different += 1;
        if self.shown.len() < limit {
            self.shown.push(Shown { event: self.events, at: self.last, difference });
        }
    }

    fn write_opening(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Opening { version, model, origin_unix_us, number, policy, gate, .. } = &self.opening;
        let first = Duration::from_micros(self.first.unwrap_or_default().0);
        // Nonsense is no reason to fail.
        let began = UNIX_EPOCH.checked_add(Duration::from_micros(*origin_unix_us) + first);
        let began = began.map_or_else(String::new, |at| {
            format!(", from {}", humantime::format_rfc3339_seconds(at))
        });
        let file = self.file.display();
        writeln!(f, "{file}: segment {number} of sluice {version} with {model}{began}")?;
        writeln!(f, "  admission {}, policy {policy}", gate.mode)?;
        let current = env!("CARGO_PKG_VERSION");
        if version != current {
            writeln!(f, "  this is sluice {current}: it may decide otherwise where {version} did")?;
        }
        Ok(())
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write_opening(f)?;
        let span = self.last.unwrap_or_default().minus(self.first.unwrap_or_default());
        let span = humantime::format_duration(Duration::from_millis(span.as_millis()));
        let Report { events, bytes, admitted, refused, steps, decisions, different, .. } = self;
        writeln!(f, "  {events} events in {bytes} bytes over {span}")?;
        let requests = admitted + refused;
        writeln!(
            f,
            "  {requests} requests ({admitted} admitted, {refused} refused), {steps} steps"
        )?;
        match different {
            0 => writeln!(f, "  {decisions} decisions compared: all the same")?,
            _ => writeln!(f, "  {decisions} decisions compared: {different} differ")?,
        }
        for Shown { event, at, difference } in &self.shown {
            let at = at.map_or_else(String::new, |at| {
                format!(" at {}.{:06} s", at.0 / 1_000_000, at.0 % 1_000_000)
            });
            writeln!(f, "event {event}{at}: {difference}")?;
        }
        let hidden = different - self.shown.len() as u64;
        if hidden > 0 && !self.shown.is_empty() {
            writeln!(f, "and {hidden} more differences")?;
        }
        match (&self.stopped, self.lost, self.ended) {
            (Some(problem), ..) => writeln!(f, "  stopped after event {events}: {problem}"),
            (None, lost @ 1.., _) => {
                writeln!(f, "  {lost} events were lost here, as the disk was too slow")
            }
            (None, 0, false) => {
                writeln!(f, "  the record just stops: it goes on, or its server was killed")
            }
            (None, 0, true) => Ok(()),
        }
    }
}
