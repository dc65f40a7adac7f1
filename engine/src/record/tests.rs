//! A record of the whole engine under every kind of trouble replays bit for bit, and whatever is
//! changed in it is found.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

use models::RunnerLimits;
use proptest::prelude::*;
use scheduler::cluster::{ClusterView, Room};
use scheduler::{Admission, AdmissionMode, Class, Deadline, Micros, TenantId, policy};
use tempfile::TempDir;

use super::replay::Applied;
use super::*;
use crate::tests::rig::{Fault, LIMITS, Rig, Script, submission};
use crate::{Outline, Submission};

/// Few blocks, so that sequences are preempted.
const TIGHT: RunnerLimits = RunnerLimits { num_blocks: 20, ..LIMITS };

/// Every 23rd step fails in one way or another.
fn faults() -> Script {
    let mut steps = 0;
    Box::new(move |_| {
        steps += 1;
        match (steps % 23, steps / 23 % 3) {
            (0, 0) => Fault::Error,
            (0, 1) => Fault::NotFinite,
            (0, _) => Fault::Panic,
            _ => Fault::None,
        }
    })
}

/// A submission out of a few numbers: choices, lengths, class, retries, deadlines.
fn mixed(rig: &Rig, i: u32) -> Submission {
    let now = rig.handle.clock().now();
    let after = |ms: u32| Some(now.plus(Micros::from_millis(ms.into())));
    let deadline = match i % 5 {
        0 => Deadline { first_token: after(i * 7 % 40), ..Deadline::default() },
        1 => Deadline { last_token: after(5 + i * 3 % 90), ..Deadline::default() },
        2 => Deadline { tpot: Some(Micros(1 + u64::from(i) * 97 % 3_000)), ..Deadline::default() },
        _ => Deadline::default(),
    };
    let prompts: &[usize] =
        if i.is_multiple_of(6) { &[9, 40] } else { &[1 + i as usize * 13 % 100] };
    Submission {
        class: if i.is_multiple_of(3) { Class::Throughput } else { Class::Latency },
        tenant: TenantId::DEFAULT,
        arrival: now,
        deadline,
        retry: u32::from(i.is_multiple_of(7)),
        ..submission(prompts, 1 + i % 4 / 2, 1 + i * 11 % 60)
    }
}

/// Records a run with `count` requests, of which some are left and some are stopped.
fn record(folder: &TempDir, count: u32) -> PathBuf {
    record_within(folder, count, 64 << 20)
}

/// In segments that take up to `max_bytes` together.
fn record_within(folder: &TempDir, count: u32, max_bytes: u64) -> PathBuf {
    record_with(folder, count, max_bytes, "deadline", AdmissionMode::Deadline)
}

fn record_with(
    folder: &TempDir,
    count: u32,
    max_bytes: u64,
    policy: &str,
    admission: AdmissionMode,
) -> PathBuf {
    let path = folder.path().join("record");
    let options = Options { path: path.clone(), max_bytes, model: "test".into() };
    let rig = Rig::with_policy(policy, Some(options), admission, 6, TIGHT, faults());
    let rig = rig.run_freely();
    let mut streams = Vec::new();
    for i in 0..count {
        if let Ok(mut stream) = rig.handle.submit(mixed(&rig, i)) {
            match i % 8 {
                3 => drop(stream),
                5 => {
                    stream.stop(0);
                    streams.push(stream);
                }
                _ => streams.push(stream),
            }
        }
        let _refused = rig.handle.refuse_early(&more_than_may_wait(&rig));
        rig.handle.set_cluster(neighbours(i));
        if i % 10 == 9 {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    for stream in streams {
        rig.read(stream);
    }
    rig.handle.drain();
    assert!(rig.handle.submit(mixed(&rig, 3)).is_err());
    let lost = rig.handle.snapshot().record.map(|record| record.lost);
    assert!(lost == Some(0) || max_bytes < 1 << 20, "{lost:?} events were lost");
    rig.handle.shutdown();
    path
}

/// What is heard of others: now and then they have room, now and then one dies.
fn neighbours(i: u32) -> ClusterView {
    let room = Room { peers: i % 3, spare_permille: i * 7 % 1_500 };
    ClusterView {
        room: [room; 2],
        refused_permille: [i * 13 % 1_000, i * 29 % 1_000],
        next_slot: Some(Micros(u64::from(i) * 1_009 % 100_000)),
        others_permille: 2_000,
        surge: Micros(if i.is_multiple_of(17) { 20_000 } else { 0 }),
        ..ClusterView::default()
    }
}

fn more_than_may_wait(rig: &Rig) -> Outline<'static> {
    let arrival = rig.handle.clock().now();
    let deadline = Deadline::default();
    let class = Class::Latency;
    Outline {
        class,
        tenant: TenantId::DEFAULT,
        arrival,
        deadline,
        retry: 0,
        origin: 0,
        prompts: &[5],
        n: 10_000,
    }
}

fn events(path: &Path) -> (Opening, Vec<Event<'static>>) {
    let (opening, reader) = Reader::open(path).expect("a record");
    (opening, reader.map(|event| event.expect("whole")).collect())
}

/// Decisions that are the same, and the first difference.
fn replay(opening: &Opening, events: &[Event<'_>]) -> (usize, Option<Difference>) {
    let mut replay = Replay::new(opening).expect("sound settings");
    let mut same = 0;
    for event in events {
        match replay.apply(event).expect("fits") {
            Applied::Input => {}
            Applied::Same => same += 1,
            Applied::Different(difference) => return (same, Some(*difference)),
        }
    }
    (same, None)
}

#[test]
fn a_run_with_every_kind_of_trouble_replays_bit_for_bit() {
    let folder = tempfile::tempdir().expect("a folder");
    let (opening, events) = events(&record(&folder, 400));
    let (same, difference) = replay(&opening, &events);
    assert_eq!(difference, None);
    assert!(same > 800, "only {same} decisions");
    assert_eq!(events.last(), Some(&Event::End));
    let has = |what: fn(&Event<'_>) -> bool| events.iter().any(what);
    assert!(has(|event| matches!(event, Event::Cancel { live: true, .. })));
    assert!(has(|event| matches!(event, Event::Stop(_))));
    assert!(has(|event| matches!(event, Event::Fail)));
    assert!(has(|event| matches!(event, Event::Cost(_))));
    assert!(has(|event| matches!(event, Event::Drain)));
    assert!(has(|event| matches!(event, Event::Cluster { .. })));
    assert!(has(|event| matches!(event, Event::RefuseEarly { .. })));
    assert!(has(|event| matches!(event, Event::Plan { note, .. } if !note.preempted.is_empty())));
}

#[test]
fn every_segment_replays_by_itself_and_ends_in_the_state_in_which_the_next_begins() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = record_within(&folder, 900, 1 << 18);
    let numbers = segments_of(&path);
    assert!(numbers.len() >= 2 && numbers[0] >= 2, "segments {numbers:?}");
}

/// Policies that keep count have their counts in the state with which a segment begins.
#[test]
fn every_policy_replays_bit_for_bit_from_each_segment() {
    let modes =
        ["deadline", "queue-cap=30", "token-bucket=9000:3000", "saturation=9:0.9", "article"];
    let modes = modes.map(|mode| mode.parse().expect("an admission policy"));
    for (policy, admission) in policy::NAMES.into_iter().zip(modes.into_iter().cycle()) {
        let folder = tempfile::tempdir().expect("a folder");
        let path = record_with(&folder, 500, 1 << 18, policy, admission);
        let numbers = segments_of(&path);
        assert!(numbers[0] >= 1, "{policy} {admission}: segments {numbers:?}");
    }
}

/// Replays each segment of the record; returns their numbers, newest first.
fn segments_of(path: &Path) -> Vec<u64> {
    let mut numbers: Vec<u64> = Vec::new();
    for age in 0.. {
        let name = if age == 0 { path.into() } else { path.with_extension(age.to_string()) };
        if !name.exists() {
            break;
        }
        let (opening, events) = events(&name);
        let (same, difference) = replay(&opening, &events);
        assert_eq!(difference, None, "segment {}", opening.number);
        // Such short segments may be cut off before the engine comes to seal them.
        let ends = |event: &&Event<'_>| matches!(event, Event::Seal(_) | Event::Gap(_));
        assert_eq!(events.iter().filter(ends).count(), 1, "segment {}", opening.number);
        assert!(same > 1);
        assert!(numbers.last().is_none_or(|newer| opening.number + 1 == *newer));
        numbers.push(opening.number);
    }
    numbers
}

/// Changes the event if it holds a decision or an input on which one depends.
fn change(event: &mut Event<'_>) -> bool {
    match event {
        Event::Admit { request, .. } => request.to_mut().sequences[0].output.predicted += 1,
        Event::Finish { settled: Some(settled), .. } => settled.carried_last.0 ^= 1,
        Event::Cancel { live, .. } => *live = !*live,
        Event::Seal(sums) => sums[1] ^= 1,
        Event::Plan { note, .. } if note.chunks > 0 => note.digest ^= 1,
        _ => return false,
    }
    true
}

#[test]
fn every_changed_decision_is_found_where_it_is() {
    let folder = tempfile::tempdir().expect("a folder");
    let (opening, events) = events(&record(&folder, 60));
    for i in 0..events.len() {
        let mut changed = events.clone();
        if change(&mut changed[i]) {
            let before = replay(&opening, &events[..i]);
            assert_eq!(before.1, None);
            let (same, difference) = replay(&opening, &changed[..=i]);
            assert!(difference.is_some() && same == before.0, "{:?}", changed[i]);
        }
    }
}

#[test]
fn a_changed_input_leads_to_other_decisions() {
    let folder = tempfile::tempdir().expect("a folder");
    let (opening, mut events) = events(&record(&folder, 100));
    let first = events.iter_mut().find_map(|event| match event {
        Event::Admit { request, decision: Admission::Admit(_), .. } => Some(request.to_mut()),
        _ => None,
    });
    first.expect("somebody was let in").sequences[0].prompt_tokens += 30;
    assert!(replay(&opening, &events).1.is_some());
    let other = Opening { policy: "fcfs".into(), ..opening };
    assert!(replay(&other, &events).1.is_some(), "another policy decides otherwise");
}

#[test]
fn a_record_that_is_cut_off_is_read_up_to_there() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = record(&folder, 60);
    let bytes = fs::read(&path).expect("a record");
    let (_, whole) = events(&path);
    for end in (0..bytes.len()).step_by(7) {
        let (came, problem) = match Reader::new(&bytes[..end]) {
            Ok((_, reader)) => {
                let (came, bad): (Vec<_>, Vec<_>) = reader.partition(Result::is_ok);
                (came.len(), bad.into_iter().find_map(Result::err))
            }
            Err(problem) => (0, Some(problem)),
        };
        assert!(came < whole.len());
        let kind = |problem| matches!(problem, ReadError::CutOff(_) | ReadError::NotARecord);
        assert!(problem.is_none_or(kind), "cut at {end}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_bytes_are_trusted(
        noise in prop::collection::vec(any::<u8>(), 0..400),
        keep in 0..60usize,
    ) {
        let folder = tempfile::tempdir().expect("a folder");
        let mut segments = segments::Segments::new(folder.path().join("x"), 1 << 20);
        segments.begin(&noise[..noise.len().min(keep)]).expect("written");
        segments.append(&noise).expect("written");
        let bytes = fs::read(folder.path().join("x")).expect("readable");
        for bytes in [&bytes, &noise] {
            if let Ok((opening, reader)) = Reader::new(bytes.as_slice()) {
                let mut replay = Replay::new(&opening);
                for event in reader.map_while(Result::ok) {
                    let Ok(replay) = &mut replay else { break };
                    let Ok(_) = replay.apply(&event) else { break };
                }
            }
        }
    }

    #[test]
    fn a_flipped_bit_is_noticed(place in any::<prop::sample::Index>(), bit in 0..8u8) {
        static RECORD: OnceLock<Vec<u8>> = OnceLock::new();
        let record = RECORD.get_or_init(|| {
            let folder = tempfile::tempdir().expect("a folder");
            fs::read(record(&folder, 20)).expect("a record")
        });
        let mut bytes = record.clone();
        bytes[place.index(record.len())] ^= 1 << bit;
        let read = Reader::new(bytes.as_slice());
        prop_assert!(read.map_or(true, |(_, mut events)| events.any(|event| event.is_err())));
    }
}
