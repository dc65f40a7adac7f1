//! What holds for every row and every setting.

use std::sync::Arc;

use proptest::prelude::*;

use super::*;

const VOCAB: usize = 300;
const EOS: u32 = 7;

fn rows() -> impl Strategy<Value = Vec<f32>> {
    prop::collection::vec((-400i16..400).prop_map(|x| f32::from(x) / 20.0), VOCAB)
}

fn settings() -> impl Strategy<Value = SamplingParams> {
    let filters = (0.05f32..3.0, 0.05f32..=1.0, 0u32..40, 0.0f32..0.5);
    let penalties = (0.8f32..1.5, -1.0f32..1.0, -1.0f32..1.0, any::<u64>());
    (filters, penalties).prop_map(
        |((temperature, top_p, top_k, min_p), (rep, pres, freq, seed))| SamplingParams {
            temperature,
            top_p,
            top_k,
            min_p,
            repetition_penalty: rep,
            presence_penalty: pres,
            frequency_penalty: freq,
            seed,
            ..SamplingParams::default()
        },
    )
}

fn sampler(params: SamplingParams, choice: u32) -> Sampler {
    Sampler::new(Arc::new(params), Arc::from([EOS]), &[1, 2, 3, 3], choice)
}

/// `count` tokens, all from the same row.
fn tokens(params: SamplingParams, choice: u32, row: &[f32], count: usize) -> Vec<u32> {
    let (mut sampler, mut scratch) = (sampler(params, choice), Scratch::default());
    let mut next = || sampler.sample(&mut row.to_vec(), &mut scratch).expect("finite").token;
    (0..count).map(|_| next()).collect()
}

fn neutral(seed: u64) -> SamplingParams {
    SamplingParams { seed, ..SamplingParams::default() }
}

proptest! {
    #[test]
    fn narrow_filters_are_greedy(row in rows(), seed: u64) {
        let best = tokens(SamplingParams { temperature: 0.0, ..neutral(seed) }, 0, &row, 1);
        let value = row[best[0] as usize];
        prop_assert!(row[..best[0] as usize].iter().all(|&x| x < value), "the lowest id wins ties");
        prop_assert!(row.iter().all(|&x| x <= value));
        let one_candidate = SamplingParams { top_k: 1, ..neutral(seed) };
        prop_assert_eq!(&tokens(one_candidate, 0, &row, 1), &best);
        let tiny_nucleus = SamplingParams { top_p: 1e-6, ..neutral(seed) };
        prop_assert_eq!(&tokens(tiny_nucleus, 0, &row, 1), &best);
        let only_best = tokens(SamplingParams { min_p: 1.0, ..neutral(seed) }, 0, &row, 3);
        prop_assert!(only_best.iter().all(|&token| row[token as usize] == value));
    }

    #[test]
    fn a_token_is_always_within_its_filters(row in rows(), params in settings()) {
        let plain = SamplingParams {
            repetition_penalty: 1.0, presence_penalty: 0.0, frequency_penalty: 0.0, ..params
        };
        let weight = |x: f32| f64::from(x / plain.temperature).exp();
        let mut sorted = row.clone();
        sorted.sort_by(|a, b| b.total_cmp(a));
        let floor = weight(sorted[0]) * f64::from(plain.min_p) * (1.0 - 1e-4);
        let k = if plain.top_k == 0 { VOCAB } else { plain.top_k as usize };
        let likely = |x: &f32| weight(*x) >= floor;
        let allowed: Vec<f32> = sorted.into_iter().take(k).filter(likely).collect();
        let total: f64 = allowed.iter().map(|&x| weight(x)).sum();
        for token in tokens(plain.clone(), 0, &row, 8) {
            let logit = row[token as usize];
            prop_assert!(logit >= allowed[allowed.len() - 1]);
            let better: f64 = allowed.iter().filter(|&&x| x > logit).map(|&x| weight(x)).sum();
            prop_assert!(better < f64::from(plain.top_p) * total * (1.0 + 1e-4));
        }
    }

    #[test]
    fn tokens_depend_on_the_seed_and_not_on_the_company(row in rows(), params in settings()) {
        let alone = tokens(params.clone(), 0, &row, 12);
        let mut scratch = Scratch::default();
        let mut company: Vec<Sampler> =
            (0..5).map(|choice| sampler(params.clone(), choice)).collect();
        let mut together = Vec::new();
        for _ in 0..12 {
            for sampler in company.iter_mut().rev() {
                let sampled = sampler.sample(&mut row.clone(), &mut scratch).expect("finite");
                together.push(sampled.token);
            }
        }
        let first: Vec<u32> = together.chunks(5).map(|step| step[4]).collect();
        prop_assert_eq!(first, alone);
    }

    #[test]
    fn logprobs_are_the_models_own(row in rows(), params in settings(), top in 0u32..20) {
        let params = SamplingParams { logprobs: Some(top), ..params };
        let sampled = sampler(params, 0).sample(&mut row.clone(), &mut Scratch::default());
        let sampled = sampled.expect("finite");
        let report = sampled.logprobs.expect("asked for");
        let sum = row.iter().map(|&x| f64::from(x).exp()).sum::<f64>().ln();
        let close = |token: u32, logprob: f32| {
            (f64::from(row[token as usize]) - sum - f64::from(logprob)).abs() < 1e-4
        };
        prop_assert!(close(sampled.token, report.chosen));
        prop_assert_eq!(report.top.len(), top as usize);
        prop_assert!(report.top.iter().all(|&(token, logprob)| close(token, logprob)));
        prop_assert!(report.top.is_sorted_by(|a, b| a.1 >= b.1));
        let worst = report.top.last().map_or(f32::MAX, |last| last.1);
        let best = |token: u32| report.top.iter().any(|&(t, _)| t == token);
        prop_assert!((0u32..).zip(&row).all(|(t, &x)| best(t) || x <= worst + sum as f32 + 1e-3));
    }
}

#[test]
fn frequencies_follow_the_softmax() {
    let mut row = vec![-1e9f32; VOCAB];
    for (token, probability) in [(5, 0.5f32), (100, 0.3), (299, 0.2)] {
        row[token] = probability.ln();
    }
    let wide = SamplingParams { top_k: 200, ..neutral(1) };
    let nucleus = SamplingParams { top_p: 0.9999, ..neutral(1) };
    for params in [neutral(1), wide, nucleus] {
        let drawn = tokens(params, 0, &row, 20_000);
        let share = |token: u32| drawn.iter().filter(|&&t| t == token).count() as f64 / 20_000.0;
        for (token, expected) in [(5, 0.5), (100, 0.3), (299, 0.2)] {
            assert!((share(token) - expected).abs() < 0.015, "{token}: {}", share(token));
        }
    }
}

#[test]
fn ends_are_masked_until_min_tokens() {
    let mut row = vec![0.0; VOCAB];
    row[EOS as usize] = 50.0;
    row[9] = 40.0;
    row[10] = 30.0;
    let params = SamplingParams { min_tokens: 3, stop_token_ids: vec![9], ..neutral(0) };
    assert_eq!(tokens(params.clone(), 0, &row, 5), [10, 10, 10, EOS, EOS]);
    let ignoring = SamplingParams { ignore_eos: true, ..params };
    assert_eq!(tokens(ignoring, 0, &row, 2), [EOS, EOS], "an end that does not end is not masked");
}

#[test]
fn penalties_and_bias_move_the_choice() {
    let mut row = vec![0.0; VOCAB];
    (row[3], row[20], row[21]) = (6.0, 5.0, 4.5);
    let greedy = SamplingParams { temperature: 0.0, ..neutral(0) };
    assert_eq!(tokens(greedy.clone(), 0, &row, 2), [3, 3]);
    let repetition = SamplingParams { repetition_penalty: 2.0, ..greedy.clone() };
    assert_eq!(tokens(repetition, 0, &row, 3), [20, 21, 3], "3 is in the prompt");
    let presence = SamplingParams { presence_penalty: 1.2, ..greedy.clone() };
    assert_eq!(tokens(presence, 0, &row, 4), [3, 20, 3, 3], "once, and only for the output");
    let frequency = SamplingParams { frequency_penalty: 1.2, ..greedy.clone() };
    assert_eq!(tokens(frequency, 0, &row, 4), [3, 20, 3, 21], "for each occurrence");
    let bias = SamplingParams { logit_bias: vec![(40, 100.0), (100_000, 1.0)], ..greedy };
    assert_eq!(tokens(bias, 0, &row, 1), [40]);
}

#[test]
fn a_row_that_is_not_finite_gives_no_token() {
    for bad in [f32::NAN, f32::INFINITY] {
        let mut row = vec![0.0; VOCAB];
        row[200] = bad;
        assert_eq!(sampler(neutral(0), 0).sample(&mut row, &mut Scratch::default()), None);
    }
}
