//! What each class may hold: properties of any limits, and of any order in which sequences come
//! and go.

use proptest::prelude::*;

use super::*;
use crate::class::{ClassConfig, ClassTable};
use crate::policy::by_name;

const SLOTS: u32 = 32;
const BLOCKS: u32 = 1_000;

/// Limits of a class that the configuration allows.
fn class() -> impl Strategy<Value = ClassConfig> {
    let most = prop::option::of(1..=SLOTS);
    let kept = prop::option::of(0..SLOTS);
    let share = prop::option::of(1_u32..=1_000);
    (most, kept, share).prop_map(|(max_num_seqs, slots_kept, kv_permille)| ClassConfig {
        max_num_seqs,
        slots_kept,
        kv_permille,
        ..ClassConfig::default()
    })
}

fn config(classes: [ClassConfig; 2]) -> SchedulerConfig {
    SchedulerConfig {
        num_blocks: BLOCKS,
        block_size: 32,
        max_num_seqs: SLOTS,
        max_num_batched_tokens: 512,
        max_model_len: 4_096,
        classes: ClassTable(classes),
    }
}

/// Sequences of `class` within reservations.
const fn line(class: Class) -> Line {
    Line { class, borrows: false }
}

fn room(config: &SchedulerConfig, policy: &str, wanted: Wanted) -> Room {
    Room::new(config, &*by_name(policy).expect("a policy"), wanted, 0)
}

/// Anything that can be: no more run than there are slots, and whoever runs is inside.
fn held() -> impl Strategy<Value = Held> {
    let running = (0..=SLOTS).prop_flat_map(|one| (Just(one), 0..=SLOTS - one));
    (running, [0_u32..50, 0..50], [0..=BLOCKS, 0..=BLOCKS]).prop_map(|(running, wait, blocks)| {
        let running = [running.0, running.1];
        let inside = [running[0] + wait[0], running[1] + wait[1]];
        Held { running, inside, blocks, ..Held::default() }
    })
}

/// What latency work used lately.
fn wanted() -> impl Strategy<Value = Wanted> {
    (0..=SLOTS, 0..=BLOCKS).prop_map(|(slots, blocks)| {
        let mut wanted = Wanted::default();
        let held = Held { inside: [slots, 0], blocks: [blocks, 0], ..Held::default() };
        wanted.follow(&held, SLOTS);
        wanted
    })
}

fn either() -> impl Strategy<Value = Class> {
    prop::sample::select(Class::ALL.to_vec())
}

fn policy() -> impl Strategy<Value = &'static str> {
    prop::sample::select(crate::policy::NAMES.to_vec())
}

/// Slots that `class` leaves free for the other one.
fn left_free(
    config: &SchedulerConfig,
    policy: &str,
    wanted: Wanted,
    held: &Held,
    class: Class,
) -> u32 {
    let other = class.other();
    let by_policy = by_name(policy).expect("a policy").keeps(config, other).slots;
    let kept = config.classes.get(other).slots_kept.unwrap_or(by_policy);
    match class {
        Class::Latency => kept,
        Class::Throughput => kept.max(wanted.slots().saturating_sub(held.running[other.index()])),
    }
}

proptest! {
    /// Free slots are there, and no more than the class's target batch allows.
    #[test]
    fn nobody_gets_a_slot_that_is_not_there(
        classes in [class(), class()], policy in policy(), wanted in wanted(), held in held(),
        class in either(),
    ) {
        let config = config(classes);
        let free = room(&config, policy, wanted).free_slots(line(class), &held);
        prop_assert!(held.running() + free <= SLOTS);
        let most = config.classes.get(class).max_num_seqs.unwrap_or(SLOTS);
        prop_assert!(free == 0 || held.running[class.index()] + free <= most);
    }

    /// A class has all that there is, up to its target batch, while the other one has no work, and
    /// while nobody of its own runs.
    #[test]
    fn limits_bind_only_beside_work_of_the_other_class(
        classes in [class(), class()], policy in policy(), wanted in wanted(), mut held in held(),
        class in either(), own in any::<bool>(), blocks in 0..=BLOCKS,
    ) {
        let config = config(classes);
        let empty = if own { class } else { class.other() };
        held.running[empty.index()] = 0;
        held.inside[empty.index()] = 0;
        let room = room(&config, policy, wanted);
        let most = config.classes.get(class).max_num_seqs.unwrap_or(SLOTS);
        let all = (SLOTS - held.running()).min(most.saturating_sub(held.running[class.index()]));
        prop_assert_eq!(room.free_slots(line(class), &held), all);
        prop_assert!(room.has_share(line(class), &held, blocks));
    }

    /// Beside work of the other class, what is kept for it stays free, and what is not is there to
    /// be taken.
    #[test]
    fn what_is_kept_for_the_other_class_stays_free(
        classes in [class(), class()], policy in policy(), wanted in wanted(), mut held in held(),
        class in either(),
    ) {
        let config = config(classes);
        let (own, other) = (class.index(), class.other().index());
        prop_assume!(held.running[own] > 0);
        held.inside[other] = held.inside[other].max(1);
        let free = room(&config, policy, wanted).free_slots(line(class), &held);
        let left = left_free(&config, policy, wanted, &held, class);
        let most = config.classes.get(class).max_num_seqs.unwrap_or(SLOTS);
        let expected = SLOTS.saturating_sub(held.running() + left);
        prop_assert_eq!(free, expected.min(most.saturating_sub(held.running[own])));
    }

    /// A share of the KV pool is an upper bound, the same for one large sequence as for many small
    /// ones, and bulk work's ends where the blocks begin that latency work used lately.
    #[test]
    fn a_share_of_the_pool_is_held_to(
        classes in [class(), class()], policy in policy(), wanted in wanted(), mut held in held(),
        class in either(), blocks in 0..=BLOCKS,
    ) {
        let config = config(classes);
        let (own, other) = (class.index(), class.other().index());
        prop_assume!(held.running[own] > 0);
        held.inside[other] = held.inside[other].max(1);
        let room = room(&config, policy, wanted);
        let by_policy = by_name(policy).expect("a policy").keeps(&config, class.other()).blocks;
        let share = config.classes.get(class).kv_permille;
        let mut most = share.map_or(BLOCKS - by_policy, |share| BLOCKS * share / 1_000);
        if class == Class::Throughput {
            most = most.min(BLOCKS.saturating_sub(wanted.blocks()));
        }
        let fits = held.blocks[own] + blocks <= most;
        prop_assert_eq!(room.has_share(line(class), &held, blocks), fits);
    }

    /// Sequences of both classes come, start where they may, and end, in any order. Whoever starts
    /// beside work of the other class leaves that its slots; and when all have gone, nothing is
    /// held.
    #[test]
    fn any_coming_and_going_keeps_the_books(
        classes in [class(), class()],
        events in prop::collection::vec((either(), 0_u8..3, 1_u32..100), 1..300),
    ) {
        let config = config(classes);
        let mut wanted = Wanted::default();
        let mut held = Held::default();
        let mut running: [alloc::vec::Vec<u32>; 2] = Default::default();
        for (class, event, blocks) in events {
            let own = class.index();
            wanted.follow(&held, SLOTS);
            let room = room(&config, "deadline", wanted);
            match event {
                0 => held.inside[own] += 1,
                1 if held.waits(class) && room.free_slots(line(class), &held) > 0
                    && room.has_share(line(class), &held, blocks) =>
                {
                    let alone = held.running[own] == 0 || held.inside[class.other().index()] == 0;
                    held.start(line(class), blocks);
                    running[own].push(blocks);
                    let left = left_free(&config, "deadline", wanted, &held, class);
                    prop_assert!(alone || held.running() + left <= SLOTS);
                }
                2 => {
                    let ended = running[own].pop();
                    ended.into_iter().for_each(|blocks| held.end(line(class), blocks));
                }
                _ => {}
            }
            prop_assert!(held.running() <= SLOTS);
            for (count, blocks) in held.running.iter().zip(&running) {
                prop_assert_eq!(*count as usize, blocks.len());
            }
        }
        for class in Class::ALL {
            for blocks in running[class.index()].drain(..) {
                held.end(line(class), blocks);
            }
        }
        prop_assert_eq!((held.running, held.blocks), ([0; 2], [0; 2]));
    }

    /// What latency work wants is a quarter more than it had at most lately: at once when it comes,
    /// and less and less after it has gone, but never less than what it has.
    #[test]
    fn what_is_wanted_rises_at_once_and_falls_slowly(
        used in prop::collection::vec(0..=SLOTS, 1..200), blocks in 0..=BLOCKS,
    ) {
        let mut wanted = Wanted::default();
        for slots in used {
            let before = wanted;
            let held = Held { inside: [slots, 7], blocks: [blocks, 7], ..Held::default() };
            wanted.follow(&held, SLOTS);
            prop_assert!(wanted.slots() >= slots + slots / 4);
            prop_assert!(wanted.slots() <= (slots + slots / 4).max(before.slots()));
            prop_assert!(wanted.blocks() >= blocks + blocks / 4);
        }
        let peak = wanted.slots();
        for step in 0..5_000_u32 {
            let before = wanted.slots();
            wanted.follow(&Held::default(), SLOTS);
            prop_assert!(wanted.slots() <= before);
            prop_assert!(step >= 512 || wanted.slots() >= peak / 2, "half of it for 512 steps");
        }
        prop_assert_eq!(wanted.slots(), 0);
        prop_assert!(wanted.blocks() < BLOCKS / 16, "it is forgotten");
    }
}

#[test]
fn only_the_default_policy_keeps_a_sixteenth_and_only_for_latency_work() {
    let config = config([ClassConfig::default(); 2]);
    let held = Held { running: [1, 1], inside: [2, 2], blocks: [1, 1], ..Held::default() };
    for name in crate::policy::NAMES {
        let room = room(&config, name, Wanted::default());
        let left = if name == "deadline" { SLOTS / 16 } else { 0 };
        assert_eq!(room.free_slots(line(Class::Latency), &held), SLOTS - 2, "{name}");
        assert_eq!(room.free_slots(line(Class::Throughput), &held), SLOTS - 2 - left, "{name}");
        let all_but = |blocks| BLOCKS - 1 - blocks;
        let kept = if name == "deadline" { BLOCKS / 16 } else { 0 };
        assert!(room.has_share(line(Class::Throughput), &held, all_but(kept)), "{name}");
        assert!(!room.has_share(line(Class::Throughput), &held, all_but(kept) + 1), "{name}");
        assert!(room.has_share(line(Class::Latency), &held, all_but(0)), "{name}");
    }
}
