//! What holds of the number of replicas whatever the load does.

use alloc::vec::Vec;

use proptest::prelude::*;

use super::*;

const SECOND: u64 = 1_000_000;

/// Looks once in `gap` seconds at a fleet that is always as large as it should be.
fn follow(config: &ScalingConfig, loads: &[u64], gap: u64) -> Vec<u32> {
    let fleet = |offered_permille, ready| Fleet { offered_permille, ready, ..Fleet::default() };
    let mut scaling = Scaling::begin(config, Micros(0), &fleet(0, config.min));
    let mut desired = Vec::new();
    for (i, offered) in loads.iter().enumerate() {
        let now = Micros((1 + i as u64) * gap * SECOND);
        scaling = scaling.observe(config, now, &fleet(*offered, scaling.desired()));
        desired.push(scaling.desired());
    }
    desired
}

fn config() -> impl Strategy<Value = ScalingConfig> {
    (500_u32..950, 1_u32..5, 0_u32..40, 0_u64..1_000).prop_map(
        |(target_permille, min, more, cold)| ScalingConfig {
            target_permille,
            min,
            max: min + more,
            cold_start: Micros(cold * SECOND),
        },
    )
}

proptest! {
    /// Within its bounds, and enough for the load at once: a replica carries at most a twentieth
    /// more than its target, unless there may be no more replicas.
    #[test]
    fn enough_at_once_and_within_bounds(
        config in config(),
        loads in prop::collection::vec(0_u64..40_000, 1..200),
        gap in 1_u64..60,
    ) {
        let most = u64::from(config.target_permille) * TOLERANCE;
        for (offered, desired) in loads.iter().zip(follow(&config, &loads, gap)) {
            prop_assert!((config.min..=config.max).contains(&desired));
            prop_assert!(*offered * 1_000 <= u64::from(desired) * most || desired == config.max);
        }
    }

    /// More load never asks for fewer replicas, at any moment of any history.
    #[test]
    fn more_load_asks_for_no_fewer(
        config in config(),
        pairs in prop::collection::vec((0_u64..40_000, 0_u64..10_000), 1..200),
        gap in 1_u64..60,
    ) {
        let less: Vec<u64> = pairs.iter().map(|(load, _)| *load).collect();
        let more: Vec<u64> = pairs.iter().map(|(load, extra)| load + extra).collect();
        let last = |loads: &[u64]| follow(&config, loads, gap).pop().unwrap_or(0);
        // The number itself may be lower a while later: the one that went up first may come down
        // first. What is asked for by a load that was never lower is not.
        let highest = |loads: &[u64]| follow(&config, loads, gap).into_iter().max();
        prop_assert!(highest(&more) >= highest(&less));
        let steady: Vec<u64> = more.iter().map(|_| *more.iter().max().unwrap_or(&0)).collect();
        prop_assert!(last(&steady) >= last(&less));
    }

    /// A load that stays within 8 % of itself never moves it down and up again, for three hours.
    #[test]
    fn a_steady_load_does_not_flap(
        config in config(),
        load in 100_u64..30_000,
        noise in prop::collection::vec(960_u64..1_040, 720),
        before in 0_u64..40_000,
    ) {
        let mut loads = Vec::from([before]);
        loads.extend(noise.iter().map(|noise| load * noise / 1_000));
        let desired = follow(&config, &loads, 15);
        let steps = desired[1..].windows(2).map(|pair| pair[1].cmp(&pair[0]));
        let moves: Vec<_> = steps.filter(|step| step.is_ne()).collect();
        let turns = moves.windows(2).filter(|pair| pair[0].is_lt() && pair[1].is_gt()).count();
        prop_assert_eq!(turns, 0, "{:?}", desired);
    }
}

/// Twelve replicas at 0.7; then a load that needs sixteen.
#[test]
fn a_spike_is_answered_once_and_its_end_slowly() {
    let config = ScalingConfig { min: 2, max: 40, ..ScalingConfig::default() };
    let mut loads = Vec::from([8_400; 40]);
    loads.extend([12_800; 120]);
    loads.extend([8_400; 240]);
    let desired = follow(&config, &loads, 15);
    assert_eq!((desired[0], desired[39]), (11, 11));
    // The end of the spike is at 160: ten minutes later it begins to go down.
    assert!(desired[40..195].iter().all(|n| *n == 16), "{desired:?}");
    assert!(desired[195..].is_sorted_by(|a, b| a >= b), "{desired:?}");
    assert_eq!(desired[399], 12, "8.4 replicas' work on 12 is 0.7 each");
}

#[test]
fn nothing_is_taken_away_while_replicas_start_or_drain() {
    let config = ScalingConfig { min: 1, max: 40, ..ScalingConfig::default() };
    let fleet = Fleet { offered_permille: 100, ready: 8, starting: 2, draining: 0 };
    let mut scaling = Scaling::begin(&config, Micros(0), &fleet);
    assert_eq!(scaling.desired(), 10);
    let hour = 3_600 * SECOND;
    for (starting, draining) in [(1, 0), (0, 1), (3, 3)] {
        let fleet = Fleet { starting, draining, ..fleet };
        scaling = scaling.observe(&config, Micros(hour), &fleet);
        assert_eq!(scaling.desired(), 10);
    }
    let fleet = Fleet { starting: 0, ..fleet };
    assert_eq!(scaling.observe(&config, Micros(hour), &fleet).desired(), 8);
}
