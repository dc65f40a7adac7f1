//! What becomes of a view as it ages, and of who is missing from it.

use alloc::format;
use alloc::vec;

use proptest::prelude::*;

use super::*;
use crate::cluster::report::Load;

const fn ms(ms: u64) -> Micros {
    Micros(ms * 1_000)
}

fn report(work_ms: u64) -> Report {
    let since_refused = [Micros::MAX; 2];
    let load = Load { outstanding: [ms(work_ms), Micros(0)], since_refused, ..Load::default() };
    Report { stage: Stage::Ready, load, ..Report::default() }
}

fn entry(name: &str, work_ms: u64) -> Entry {
    Entry { member: name.into(), age: Micros(0), report: report(work_ms) }
}

fn entries(names: &[&str]) -> Vec<Entry> {
    names.iter().map(|name| entry(name, 500)).collect()
}

#[test]
fn a_view_ages_from_use_to_doubt_to_nothing_and_is_never_cleared() {
    let mut roster = Roster::new("a");
    assert_eq!(roster.view(ms(1), &report(900)).standing, Standing::Alone);
    roster.apply(ms(1_000), entries(&["b", "c"]));
    let mut view = |at| roster.view(ms(at), &report(900));
    let fresh = view(1_200);
    assert_eq!(fresh.standing, Standing::Fresh);
    assert_eq!(fresh.outstanding[0], ms(900 + 2 * 300), "each of them worked for 200 ms");
    assert_eq!((fresh.room[0].peers, fresh.capacity_permille), (2, 3_000));
    let doubtful = view(1_500);
    assert_eq!(doubtful.standing, Standing::Doubtful);
    assert_eq!(doubtful.outstanding[0], ms(900 + 2 * 500), "all of their work");
    assert_eq!((doubtful.room[0].peers, doubtful.capacity_permille), (0, 1_000));
    assert_eq!(doubtful.replicas.ready, 3);
    let lost = view(2_500);
    assert_eq!((lost.standing, lost.replicas.missing), (Standing::Lost, 2));
    assert_eq!((lost.outstanding[0], lost.next_slot), (ms(900), None));
    assert_eq!(roster.known(), 3, "a cap is divided among those known last");
}

#[test]
fn one_that_dies_leaves_and_its_clients_are_expected_once() {
    let mut roster = Roster::new("a");
    roster.apply(ms(0), entries(&["b", "c", "d"]));
    let mut surge = Micros(0);
    for tick in 1..6 {
        roster.apply(ms(tick * 100), entries(&["b", "d"]));
        surge = surge.plus(roster.view(ms(tick * 100), &report(0)).surge);
    }
    assert_eq!(roster.known(), 3);
    assert_eq!(surge, Micros(500_000 / 3), "a third of what it had");
}

#[test]
fn half_that_vanish_at_once_are_held_and_no_room_is_seen() {
    let mut roster = Roster::new("a");
    roster.apply(ms(0), entries(&["b", "c", "d", "e"]));
    // They go within a tick or two of each other.
    roster.apply(ms(100), entries(&["b", "d", "e"]));
    for tick in 2..90 {
        roster.apply(ms(tick * 100), entries(&["b", "d"]));
        let view = roster.view(ms(tick * 100), &report(900));
        assert_eq!((view.standing, view.replicas.missing), (Standing::Doubtful, 2));
        assert_eq!(view.surge, Micros(0));
    }
    roster.apply(ms(9_000), entries(&["b", "c", "d", "e"]));
    assert_eq!(roster.view(ms(9_000), &report(900)).standing, Standing::Fresh);
    for tick in 91..220 {
        roster.apply(ms(tick * 100), entries(&["b", "d"]));
    }
    assert_eq!(roster.known(), 3, "not for ever");
}

#[test]
fn a_report_that_came_late_is_as_old_as_it_is() {
    let mut roster = Roster::new("a");
    let late = Entry { age: ms(400), ..entry("b", 1_000) };
    roster.apply(ms(1_000), vec![late]);
    assert_eq!(roster.view(ms(1_100), &report(0)).outstanding[0], ms(500));
}

#[test]
fn who_refuses_drains_or_hangs_has_no_room() {
    let full = |change: fn(&mut Report)| {
        let mut roster = Roster::new("a");
        let mut entry = entry("b", 100);
        change(&mut entry.report);
        roster.apply(ms(0), vec![entry]);
        roster.view(ms(0), &report(900)).room[0].peers == 0
    };
    assert!(!full(|_| {}));
    assert!(full(|report| report.stage = Stage::Draining));
    assert!(full(|report| report.stage = Stage::Pending));
    assert!(full(|report| report.step_age = ms(10_000)));
    assert!(full(|report| report.load.since_refused[0] = ms(500)));
    assert!(full(|report| report.load.outstanding[1] = ms(900)));
}

#[test]
fn the_tick_is_slower_where_there_are_hundreds() {
    assert_eq!([1, 16, 64].map(tick), [TICK; 3]);
    assert!((ms(500)..ms(700)).contains(&tick(256)), "{:?}", tick(256));
}

proptest! {
    /// Whatever is heard, sums are those of somebody, ranks are a permutation, and nothing
    /// underflows.
    #[test]
    fn any_views_in_any_order(
        views in prop::collection::vec(
            (0u64..3_000, prop::collection::vec((0u8..6, 0u64..5_000, 0u64..2_000), 0..6)), 1..20),
        now in 0u64..100_000,
    ) {
        let mut roster = Roster::new("m2");
        let mut at = 0;
        for (step, members) in views {
            at += step;
            let heard = members.into_iter().filter(|(name, ..)| *name != 2);
            let heard = heard.map(|(name, age, work)| Entry {
                age: ms(age),
                ..entry(&format!("m{name}"), work)
            });
            roster.apply(ms(at), heard.collect());
            let view = roster.view(ms(at), &report(1));
            prop_assert!(view.capacity_permille >= 1_000);
            prop_assert!(view.replicas.missing < roster.known());
            prop_assert!(roster.rank(at) < roster.known());
            prop_assert!(roster.peers.is_sorted_by(|a, b| a.member < b.member));
        }
        let later = roster.view(ms(at + now), &report(1));
        prop_assert!(later.slot(ms(70)) <= ms(70));
    }
}
