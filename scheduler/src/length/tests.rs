//! Predictions against samples, and their bounds.

use alloc::vec::Vec;

use proptest::prelude::*;

use super::histogram::{BUCKETS, bucket, lower_edge};
use super::*;
use crate::request::{Deadline, Request, RequestId, SequenceSpec};
use crate::tenants::TenantId;
use crate::time::Micros;

fn output(min: u32, max: u32) -> OutputLength {
    OutputLength { min, max, predicted: 0, hint: None, exact: false }
}

fn learnt(class: Class, prompt: u32, max: u32, samples: &[u32]) -> Lengths {
    let mut lengths = Lengths::default();
    for tokens in samples {
        lengths.learn(class, Lesson::new(prompt, &output(0, max)), *tokens);
    }
    lengths
}

/// Between what the median of the samples beyond `generated` lies. How much of the bucket that
/// `generated` is in counts, a histogram can only guess: all of it, or none.
fn brute_force(samples: &[u32], generated: u32) -> Option<(u32, u32)> {
    let beside = samples.iter().filter(|&&n| bucket(n) == bucket(generated + 1)).count();
    let mut above: Vec<u32> =
        samples.iter().copied().filter(|&n| bucket(n) > bucket(generated + 1)).collect();
    above.sort_unstable();
    // With few of them the decay decides between neighbours: the middle tenth is accepted.
    let (n, all) = (above.len(), above.len() + beside);
    let (slack, all_slack) = (n / 20 + 1, all / 20 + 1);
    let low = (all / 2).saturating_sub(all_slack).checked_sub(beside);
    let low = low.map_or(generated + 1, |i| above[i]);
    (n >= 4).then(|| (low, above[(n / 2 + slack).min(n - 1)]))
}

proptest! {
    #[test]
    fn a_length_lies_in_its_bucket(tokens in 1..1u32 << 20) {
        let i = bucket(tokens);
        prop_assert!(lower_edge(i) <= tokens);
        prop_assert!(tokens < lower_edge(i + 1) || i == BUCKETS - 1);
    }

    #[test]
    fn predictions_stay_within_their_bounds_and_grow_with_what_is_generated(
        samples in prop::collection::vec((1..5_000u32, 1..5_000u32), 0..80),
        prompt in 1..5_000u32,
        max in 1..5_000u32,
        min in 0..50u32,
        hint in prop::option::of(1..6_000u32),
    ) {
        let mut lengths = Lengths::default();
        for (prompt, tokens) in samples {
            lengths.learn(Class::Latency, Lesson::new(prompt, &output(0, max)), tokens);
        }
        let hinted = hint.and_then(NonZeroU32::new);
        let output = OutputLength { hint: hinted, ..output(min.min(max), max) };
        let predict = |g| lengths.predict(Class::Latency, prompt, &output, g);
        let mut before = 0;
        for generated in (0..max).step_by(1 + max as usize / 300) {
            let predicted = predict(generated);
            prop_assert!((output.min.max(generated + 1)..=max).contains(&predicted));
            prop_assert!(predicted >= before, "{generated}: {predicted} after {before}");
            before = predicted;
        }
        if let Some(hint) = hint {
            prop_assert_eq!(predict(0), hint.clamp(output.min.max(1), max));
        }
    }

    /// What the histogram says is what sorting the samples says, to a bucket's width.
    #[test]
    fn the_median_beyond_is_that_of_the_samples(
        samples in prop::collection::vec(1..3_000u32, 16..200),
        generated in 0..2_000u32,
    ) {
        let lengths = learnt(Class::Latency, 100, 4_000, &samples);
        let predicted = lengths.predict(Class::Latency, 100, &output(0, 4_000), generated);
        if let Some((from, to)) = brute_force(&samples, generated) {
            let (from, to) = (lower_edge(bucket(from)), lower_edge(bucket(to) + 1));
            prop_assert!((from..=to).contains(&predicted), "{predicted} not in {from}..={to}");
        }
    }

    #[test]
    fn what_is_known_is_not_predicted(max in 1..5_000u32, min in 0..5_000u32, g in 0..100u32) {
        let lengths = learnt(Class::Latency, 10, max, &[7; 40]);
        let exact = OutputLength { exact: true, ..output(0, max) };
        prop_assert_eq!(lengths.predict(Class::Latency, 10, &exact, g), max);
        if min >= max {
            prop_assert_eq!(lengths.predict(Class::Latency, 10, &output(min, max), g), max);
        }
    }
}

#[test]
fn it_finds_the_median_and_follows_a_change() {
    let mut lengths = Lengths::default();
    let learn = |lengths: &mut Lengths, from: u32| {
        for i in 0..1_000 {
            lengths.learn(Class::Latency, Lesson::new(50, &output(0, 2_000)), from + i * 7 % 100);
        }
        lengths.predict(Class::Latency, 60, &output(0, 2_000), 0)
    };
    let short = learn(&mut lengths, 300);
    assert!((320..=380).contains(&short), "{short}");
    let long = learn(&mut lengths, 1_000);
    assert!((960..=1_150).contains(&long), "{long}");
}

#[test]
fn cold_it_expects_some_and_learns_within_fifty() {
    let cold = Lengths::default();
    let predict = |lengths: &Lengths, max| lengths.predict(Class::Latency, 500, &output(0, max), 0);
    // Neither nothing nor everything that may come.
    assert_eq!([16, 512, 4_096, 32_768].map(|max| predict(&cold, max)), [8, 256, 256, 256]);
    let beyond = cold.predict(Class::Latency, 500, &output(0, 4_096), 300);
    assert!((500..=620).contains(&beyond), "{beyond}");
    for truth in [20u32, 1_500] {
        let samples: Vec<u32> = (0..50).map(|i| truth * (80 + i * 17 % 41) / 100).collect();
        let predicted = predict(&learnt(Class::Latency, 500, 4_096, &samples), 4_096);
        assert!(predicted.abs_diff(truth) * 5 <= truth, "{predicted} for {truth}");
    }
}

#[test]
fn answers_that_were_cut_tell_of_longer_ones() {
    let lengths = learnt(Class::Latency, 50, 600, &[600; 30]);
    assert_eq!(lengths.predict(Class::Latency, 50, &output(0, 600), 0), 600);
    assert!(lengths.predict(Class::Latency, 50, &output(0, 1_000), 0) > 800);
}

#[test]
fn a_running_sequence_is_predicted_anew_before_it_outlives_its_prediction() {
    // Short answers, and every third one ten times as long.
    let samples: Vec<u32> = (0..90).map(|i| if i % 3 == 0 { 1_000 } else { 100 + i % 9 }).collect();
    let lengths = learnt(Class::Latency, 50, 4_000, &samples);
    let mut output = output(0, 4_000);
    output.predicted = lengths.predict(Class::Latency, 50, &output, 0);
    assert!((96..112).contains(&output.predicted), "{}", output.predicted);
    let request = Request {
        id: RequestId(0),
        class: Class::Latency,
        tenant: TenantId::DEFAULT,
        borrows: false,
        arrival: Micros(0),
        deadline: Deadline::default(),
        retry: 0,
        origin: 0,
        prefixes: Vec::new(),
        sequences: alloc::vec![SequenceSpec { prompt: 0, prompt_tokens: 50, output }],
    };
    let mut seq = Sequence::new(&request, 0);
    while seq.generated < 1_200 {
        seq.generated += 1;
        lengths.revise(&mut seq);
        assert!(seq.output.predicted > seq.generated + 1);
        if (112..800).contains(&seq.generated) {
            assert!((896..1_024).contains(&seq.output.predicted), "{}", seq.output.predicted);
        }
    }
}

#[test]
fn memory_is_bounded() {
    let mut lengths = Lengths::default();
    for class in Class::ALL {
        for (max, prompt) in (0..32).flat_map(|i| (0..32).map(move |j| (1 << i, 1 << j))) {
            lengths.learn(class, Lesson::new(prompt, &output(0, max)), 1);
        }
    }
    assert_eq!(lengths.histograms.len(), 2 * 20 * 21);
    assert!(size_of::<[u32; BUCKETS]>() + size_of::<(Kind, Histogram)>() <= 360);
}
