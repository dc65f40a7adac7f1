//! The scans over columns against one entry at a time.

use alloc::vec::Vec;

use proptest::prelude::*;

use super::*;
use crate::columns::Row;
use crate::promise::{HORIZON, Limits, UNPROTECTED};

/// Times and steps of an entry, and what it has to spare; a third is promised nothing.
fn row() -> impl Strategy<Value = Row> {
    let slack = || prop_oneof![Just(None), (-100..4_000_000).prop_map(Some), Just(Some(i32::MAX))];
    let times = (0..2_000_000, 0..HORIZON / 2, 0..HORIZON / 4, 0..2_000, 0..2_000);
    (times, [slack(), slack(), slack()]).prop_map(
        |((start, first, span, first_step, steps), [of_first, of_last, of_gap])| {
            let limit = |time: i32, slack: Option<i32>| {
                slack.map_or(UNPROTECTED, |s| time.saturating_add(s))
            };
            let last = first + span;
            let limits = Limits {
                first: limit(first, of_first),
                last: limit(last, of_last),
                gap: limit(span, of_gap),
            };
            Row { start, first, last, first_step, last_step: first_step + steps, limits }
        },
    )
}

/// Delays by a candidate somewhere among the entries.
#[derive(Clone, Copy, Debug)]
struct Newcomer {
    index: prop::sample::Index,
    work: [i32; 3],
    steps: [i32; 3],
    step_ns: u64,
    queue: i32,
    takes_slot: bool,
    backlog_end: Option<i32>,
}

fn newcomer() -> impl Strategy<Value = Newcomer> {
    let work = prop::array::uniform3(0..200_000);
    let steps = prop::array::uniform3(0..500);
    let backlog_end = prop::option::of(0..4_000);
    let rest = (0..200_000_000_u64, 0..3_000_000, any::<bool>());
    (any::<prop::sample::Index>(), work, steps, rest, backlog_end).prop_map(
        |(index, work, steps, (step_ns, queue, takes_slot), backlog_end)| Newcomer {
            index,
            work,
            steps,
            step_ns,
            queue,
            takes_slot,
            backlog_end,
        },
    )
}

fn delays(newcomer: &Newcomer, entries: usize) -> Delays {
    let [filled, chunk, rest] = newcomer.work;
    let [start_step, prefill_steps, steps] = newcomer.steps;
    Delays {
        index: newcomer.index.index(entries + 1),
        start_step,
        first_step: start_step + prefill_steps,
        prefill_steps,
        filled,
        chunk,
        rest,
        work: filled + rest,
        backlog_end: newcomer.backlog_end,
        steps,
        step_cost: StepCost::new(newcomer.step_ns, steps as u32),
        queue: newcomer.queue,
        takes_slot: newcomer.takes_slot,
    }
}

proptest! {
    /// The scan finds harm exactly if an entry on its own would be broken, and accepting moves each
    /// entry by its own delay, however the entries fall into blocks.
    #[test]
    fn scans_agree_with_single_entries(
        rows in prop::collection::vec(row(), 0..300),
        newcomer in newcomer(),
        more in prop_oneof![Just(0_u64), 0..2_000_000_u64],
        lenient in any::<bool>(),
    ) {
        let mut columns = Columns::default();
        for (i, row) in rows.iter().enumerate() {
            // Often a single entry decides.
            let limits = if lenient && i % 97 != 0 { Limits::NONE } else { row.limits };
            columns.insert(i, Row { limits, ..*row });
        }
        let delays = delays(&newcomer, rows.len());
        let harmed = delays.broken(&columns, Micros(more)).next().is_some();
        prop_assert_eq!(delays.harm(&columns, Micros(more)), harmed);

        let single: Vec<Delay> = (0..rows.len()).map(|i| delays.of(&columns, i)).collect();
        let before = columns.clone();
        delays.accept(&mut columns);
        for (i, delay) in single.iter().enumerate() {
            prop_assert_eq!(columns.first[i], later(before.first[i], delay.first));
            prop_assert_eq!(columns.last[i], later(before.last[i], delay.last));
            prop_assert!(columns.start[i] >= before.start[i]);
        }
    }
}
