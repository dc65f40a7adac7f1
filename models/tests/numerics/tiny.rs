//! Tiny seeded models: the logits of every position.

use proptest::prelude::*;
use serde::Deserialize;
use sluice_models::{Chunk, LoadedModel, Logits, ModelConfig, ModelRunner, RopeScaling, open};

use crate::{Capacity, Load, RUNNERS, candle, golden, golden_json, step};

/// Largest relative error of a row of logits: its largest absolute difference from the reference,
/// divided by the largest absolute logit of the reference's row.
const TOLERANCE: f32 = 1e-4;

const CAPACITY: Capacity = Capacity { num_blocks: 8, max_model_len: 64 };

/// What make_goldens.py wrote of the tiny models.
#[derive(Deserialize)]
struct Goldens {
    tokens: Vec<u32>,
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    /// File of `[tokens, vocab]` logits, f32, little-endian.
    logits: String,
    /// Models that should give them, directories and GGUF files.
    models: Vec<String>,
}

impl Case {
    fn reference(&self) -> Vec<f32> {
        let bytes = std::fs::read(golden(&self.logits)).unwrap();
        let (values, rest) = bytes.as_chunks();
        assert!(rest.is_empty());
        values.iter().map(|&value| f32::from_le_bytes(value)).collect()
    }
}

fn open_golden(name: &str) -> LoadedModel {
    open(golden(name).to_str().unwrap()).unwrap()
}

/// The largest relative error over all rows; infinite if any logit is not a number.
fn error(logits: &[f32], reference: &[f32], vocab: usize) -> f32 {
    assert_eq!(logits.len(), reference.len());
    let rows = logits.chunks(vocab).zip(reference.chunks(vocab));
    rows.map(|(row, expected)| {
        let difference = row.iter().zip(expected).map(|(a, b)| (a - b).abs());
        let relative = largest(difference) / largest(expected.iter().map(|value| value.abs()));
        if row.iter().all(|value| value.is_finite()) { relative } else { f32::INFINITY }
    })
    .fold(0.0, f32::max)
}

fn largest(values: impl Iterator<Item = f32>) -> f32 {
    values.fold(0.0, f32::max)
}

/// The logits of all tokens in one chunk.
fn whole(load: Load, model: &LoadedModel, config: &ModelConfig, tokens: &[u32]) -> Vec<f32> {
    let mut runner = load(model, config, CAPACITY);
    step(&mut *runner, &[Chunk { tokens, start: 0, blocks: &[3, 1], logits: Logits::All }])
}

#[test]
fn logits_match_transformers_for_every_model_format_and_runner() {
    let goldens: Goldens = golden_json("tiny.json");
    let mut failed = false;
    for case in &goldens.cases {
        let reference = case.reference();
        for name in &case.models {
            let model = open_golden(name);
            for (runner, load) in RUNNERS {
                let logits = whole(load, &model, &model.config, &goldens.tokens);
                let error = error(&logits, &reference, model.config.vocab_size);
                println!("{name}, {runner}: relative error {error:.1e}");
                failed |= error >= TOLERANCE;
            }
        }
    }
    assert!(!failed, "an error above is not below {TOLERANCE:e}");
}

type Mistake = fn(&mut ModelConfig);

/// The proof above is worth what the goldens notice: each of these mistakes is far outside.
#[test]
fn goldens_notice_a_wrong_configuration() {
    let goldens: Goldens = golden_json("tiny.json");
    let mistakes: [(&str, Mistake); 6] = [
        ("llama", |config| config.rope.interleaved = true),
        ("llama.gguf", |config| config.rope.interleaved = false),
        ("llama3", |config| config.rope.scaling = RopeScaling::None),
        ("llama3.gguf", |config| config.rope.factors = None),
        ("qwen2", |config| config.qkv_bias = false),
        ("qwen3", |config| config.qk_norm = false),
    ];
    for (name, make_wrong) in mistakes {
        let is_mine = |case: &&Case| case.models.iter().any(|model| model == name);
        let reference = goldens.cases.iter().find(is_mine).unwrap().reference();
        let model = open_golden(name);
        let mut config = model.config.clone();
        make_wrong(&mut config);
        assert_ne!(config, model.config, "{name}");
        let logits = whole(candle, &model, &config, &goldens.tokens);
        let error = error(&logits, &reference, config.vocab_size);
        assert!(error > 100.0 * TOLERANCE, "{name}: only {error}");
    }
}

/// Prefixes of the golden sequence that run side by side, each in its own scattered blocks.
const SEQUENCES: [(usize, [u32; 2]); 3] = [(40, [6, 1]), (33, [0, 7]), (9, [4, 2])];

/// Runs the sequences together, cut by `cuts`: in each step every unfinished sequence takes the
/// next length, none for 0. Returns each sequence's logits.
fn ragged(runner: &mut dyn ModelRunner, tokens: &[u32], cuts: &[usize]) -> Vec<Vec<f32>> {
    let vocab = runner.limits().vocab_size as usize;
    let mut done = [0; SEQUENCES.len()];
    let mut logits = vec![Vec::new(); SEQUENCES.len()];
    let mut cuts = cuts.iter().cycle();
    while (0..SEQUENCES.len()).any(|index| done[index] < SEQUENCES[index].0) {
        let mut chunks = Vec::new();
        let mut owners = Vec::new();
        for (index, (len, blocks)) in SEQUENCES.iter().enumerate() {
            let start = done[index];
            done[index] = (start + cuts.next().unwrap()).min(*len);
            if start < done[index] {
                let tokens = &tokens[start..done[index]];
                chunks.push(Chunk { tokens, start: start as u32, blocks, logits: Logits::All });
                owners.push((index, tokens.len() * vocab));
            }
        }
        let step = step(runner, &chunks);
        let mut rest = &step[..];
        for (index, len) in owners {
            let (mine, others) = rest.split_at(len);
            logits[index].extend_from_slice(mine);
            rest = others;
        }
        assert!(rest.is_empty());
    }
    logits
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]

    #[test]
    fn any_cut_of_prefill_and_any_company_give_the_logits_of_the_whole(
        cuts in proptest::collection::vec(0_usize..20, 1..12),
        name in prop::sample::select(vec!["llama.gguf", "llama3", "qwen3"]),
    ) {
        // So that every sequence advances, even if the cycle hands it nothing but zeros.
        let cuts: Vec<usize> = cuts.iter().copied().chain([1; SEQUENCES.len()]).collect();
        let goldens: Goldens = golden_json("tiny.json");
        let reference = format!("{}.logits", name.trim_end_matches(".gguf"));
        let reference = Case { logits: reference, models: Vec::new() }.reference();
        let model = open_golden(name);
        let vocab = model.config.vocab_size;
        for (runner, load) in RUNNERS {
            let mut loaded = load(&model, &model.config, CAPACITY);
            let logits = ragged(&mut *loaded, &goldens.tokens, &cuts);
            for ((len, _), logits) in SEQUENCES.iter().zip(&logits) {
                let error = error(logits, &reference[..len * vocab], vocab);
                prop_assert!(error < TOLERANCE, "{runner}, {len} tokens: relative error {error}");
            }
        }
    }
}
