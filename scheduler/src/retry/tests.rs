//! A crowd on a few servers, with one hint and another.

extern crate std;

use alloc::collections::BinaryHeap;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::cmp::Reverse;
use std::println;

use super::*;
use crate::class::Class;
use crate::request::{Deadline, RequestId};
use crate::tenants::TenantId;

const SERVICE: Micros = Micros(2_000_000);
const SERVERS: usize = 64;
const CROWD: u64 = 600;

/// What one request takes of all servers together.
const EXACT: Micros = Micros(SERVICE.0 / SERVERS as u64);

/// By how much the rate is misjudged: half, two thirds, right, one and a half times, twice.
const SCALES: [u32; 5] = [2_000, 1_500, 1_000, 667, 500];

/// When refused clients come back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Hint {
    /// By the SDK's own backoff.
    None,
    Constant(Micros),
    Slots,
}

/// A burst of [`CROWD`] within a second, each of which retries twice.
#[derive(Clone, Copy, Debug)]
struct Crowd {
    hint: Hint,
    scale_permille: u32,
    /// First attempts of others a second, beside the burst.
    besides: u64,
    /// Of four clients, so many come back by their own backoff whatever they are told.
    deaf: u64,
    /// The seconds of the hint are rounded up.
    whole: bool,
    /// All send the same, so that nobody can be told from the others.
    alike: bool,
}

const ALONE: Crowd = Crowd {
    hint: Hint::Slots,
    scale_permille: 1_000,
    besides: 0,
    deaf: 0,
    whole: false,
    alike: false,
};

fn request(id: u64, retry: u32, origin: u64) -> Request {
    Request {
        id: RequestId(id),
        class: Class::Latency,
        tenant: TenantId::DEFAULT,
        borrows: false,
        arrival: Micros(0),
        deadline: Deadline::default(),
        retry,
        origin,
        prefixes: Vec::new(),
        sequences: Vec::new(),
    }
}

/// Half a second, doubled at each retry, less up to a quarter.
fn backoff(retry: u32, seed: u64) -> Micros {
    let base = 500_000u64 << retry;
    Micros(base - base / 4 * (mix(seed) % 1_000) / 1_000)
}

/// How many of the crowd give up: of those that listen, and of those that do not.
fn give_up(crowd: Crowd, seed: u64) -> [u64; 2] {
    let config = RetryConfig { scale_permille: crowd.scale_permille, ..RetryConfig::default() };
    let mut slots = RetrySlots::new(config);
    let mut busy: Vec<Micros> = alloc::vec![Micros(0); SERVERS];
    let mut attempts = BinaryHeap::new();
    for id in 0..CROWD {
        attempts.push(Reverse((mix(seed ^ mix(id)) % 1_000_000, id, 0)));
    }
    for i in 0..crowd.besides * 60 {
        let at = mix(seed ^ mix(!i)) % 60_000_000;
        attempts.push(Reverse((at, CROWD + i, 0)));
    }
    let mut gave_up = [0; 2];
    while let Some(Reverse((at, id, retry))) = attempts.pop() {
        let now = Micros(at);
        let request = request(id << 2 | u64::from(retry), retry, if crowd.alike { 0 } else { id });
        let kept = (slots.kept(now, &request).0 / EXACT.0) as usize;
        let free = busy.iter().filter(|until| **until <= now).count();
        let admitted = free > kept;
        let held = slots.came(now, &request, admitted, EXACT);
        let is_deaf = mix(!id) % 4 < crowd.deaf;
        if admitted {
            let until = busy.iter_mut().find(|until| **until <= now).expect("one is free");
            *until = now.plus(Micros(SERVICE.0 * (900 + mix(seed ^ id) % 200) / 1_000));
        } else if retry == 2 {
            gave_up[usize::from(is_deaf)] += u64::from(id < CROWD);
        } else {
            let wait = match crowd.hint {
                _ if is_deaf => backoff(retry, seed ^ id),
                Hint::None => backoff(retry, seed ^ id),
                Hint::Constant(wait) => wait,
                Hint::Slots => match held {
                    Some(due) => due.minus(now),
                    None => slots.promise(now, now, EXACT, &request, &ClusterView::default()),
                },
            };
            let wait = if crowd.whole { wait.0.next_multiple_of(1_000_000) } else { wait.0 };
            attempts.push(Reverse((at + wait + 5_000, id, retry + 1)));
        }
    }
    gave_up
}

/// The share that gives up, per mille, over ten seeds: of those that listen.
fn permille(crowd: Crowd) -> u64 {
    let listening = (0..CROWD).filter(|id| mix(!id) % 4 >= crowd.deaf).count() as u64;
    let lost: u64 = (0..10).map(|seed| give_up(crowd, mix(seed))[0]).sum();
    lost * 100 / listening.max(1)
}

/// Prints the table of the user guide (with `--nocapture`), and holds its figures to bounds.
#[test]
fn corrected_slots_bring_a_crowd_back_spread_even_if_the_rate_is_misjudged() {
    let constant = |seconds: u64| Hint::Constant(Micros::from_millis(seconds * 1_000));
    for hint in [Hint::None, constant(2), constant(10)] {
        let lost = permille(Crowd { hint, ..ALONE });
        println!("| {hint:?} | {} |", shown(lost));
        assert!(lost >= 500, "only {lost} per mille gave up by {hint:?}");
    }
    let crowds = [
        ("alone", 10, ALONE),
        ("all ask the same", 10, Crowd { alike: true, ..ALONE }),
        ("whole seconds only", 10, Crowd { whole: true, ..ALONE }),
        ("16/s first attempts besides", 10, Crowd { besides: 16, ..ALONE }),
        ("half ignore the hint", 35, Crowd { deaf: 2, ..ALONE }),
    ];
    for (name, most, crowd) in crowds {
        let lost = SCALES.map(|scale_permille| permille(Crowd { scale_permille, ..crowd }));
        println!("| {name} | {} |", lost.map(shown).join(" | "));
        assert!(lost.iter().all(|lost| *lost <= most), "{lost:?} per mille gave up {name}");
    }
}

fn shown(permille: u64) -> String {
    format!("{}.{} %", permille / 10, permille % 10)
}

#[test]
fn who_comes_too_early_keeps_its_slot_and_takes_no_second_one() {
    let mut slots = RetrySlots::new(RetryConfig::default());
    let work = Micros(1_000_000);
    for id in 0..5 {
        slots.promise(Micros(0), Micros(0), work, &request(id, 0, id), &ClusterView::default());
    }
    let (last, due) = (slots.last, slots.promised[3].due);
    for retry in [1, 2, 3] {
        let now = Micros(u64::from(retry) * 1_000);
        assert_eq!(slots.came(now, &request(9, retry, 3), false, work), Some(due));
    }
    assert_eq!(slots.came(Micros(5_000), &request(9, 3, 3), false, work), None, "the third again");
    assert_eq!((slots.promised.len(), slots.last), (5, last));
    assert_eq!(slots.came(due, &request(9, 4, 3), true, work), None, "it has come");
    assert_eq!(slots.promised.len(), 2, "the first two have lapsed");
}

#[test]
fn bulk_work_yields_to_retries_beside_latency_work_only() {
    let mut slots = RetrySlots::new(RetryConfig::default());
    let of = |class, retry| Request { class, ..request(0, retry, 0) };
    let come = |slots: &mut RetrySlots, class, retry, times: u64| {
        for _ in 0..times {
            slots.came(Micros(0), &of(class, retry), false, Micros(1));
        }
    };
    let bulk = of(Class::Throughput, 0);
    come(&mut slots, Class::Throughput, 0, 200);
    assert!(slots.is_invited(Micros(0), &bulk), "a burst from which nobody has come back yet");
    come(&mut slots, Class::Throughput, 1, 25);
    assert!(slots.is_invited(Micros(0), &bulk), "in nobody's way");
    come(&mut slots, Class::Latency, 0, 1);
    assert!(!slots.is_invited(Micros(0), &bulk));
    assert!(slots.is_invited(Micros(0), &of(Class::Latency, 1)), "only the lowest class yields");
    come(&mut slots, Class::Latency, 0, 60);
    assert!(slots.is_invited(Micros(0), &bulk), "25 retries for 261 first attempts");
    come(&mut slots, Class::Latency, 1, 10);
    assert!(!slots.is_invited(Micros(0), &bulk));
    assert!(slots.is_invited(Micros(61_000_000), &bulk), "a minute forgets");
}

#[test]
fn waits_and_memory_are_bounded() {
    let mut slots = RetrySlots::new(RetryConfig::default());
    for id in 0..10_000 {
        let work = Micros(if id < 5_000 { 10_000 } else { u64::MAX });
        let wait = slots.promise(
            Micros(id),
            Micros(0),
            work,
            &request(id, 0, id),
            &ClusterView::default(),
        );
        assert!((SHORTEST..=LONGEST).contains(&wait));
    }
    assert_eq!(slots.promised.len(), MAX_PROMISES);
    let first = slots.promised[0].due;
    let stranger = request(0, 0, u64::MAX);
    assert_eq!(slots.kept(first, &stranger), Micros(0), "nobody has ever come back");
    slots.came(first, &request(0, 1, 0), true, Micros(1));
    assert!(slots.kept(first, &stranger) > Micros(0));
    slots.came(Micros(u64::MAX / 2), &stranger, true, Micros(1));
    assert!(slots.promised.is_empty(), "lapsed promises are forgotten");
}
