//! The demo model. Without it these tests fail, unless `SLUICE_SKIP_MODEL_TESTS` is set.

use std::path::Path;

use super::*;

/// The demo model, or nothing where its tests are to be skipped.
fn demo() -> Option<LoadedModel> {
    if std::env::var_os("SLUICE_SKIP_MODEL_TESTS").is_some() {
        return None;
    }
    let home = std::env::var("HOME").expect("HOME is set");
    let path = Path::new(&home).join(".cache/sluice/models/SmolLM2-135M-Instruct.Q4_1.gguf");
    let path = path.to_str().expect("the home directory's name is valid text");
    let model = sluice_models::open(path);
    Some(model.unwrap_or_else(|error| {
        panic!("{error}\nfetch it with `make model`, or set SLUICE_SKIP_MODEL_TESTS=1")
    }))
}

/// What is the capital of France? In the chat template's tokens, after the system message.
const QUESTION: [u32; 16] =
    [1, 4093, 198, 2683, 314, 260, 3575, 282, 4649, 47, 2, 198, 1, 520, 9531, 198];

fn greedy(runner: &mut CpuRunner, prompt: &[u32], end: u32) -> Vec<u32> {
    let (mut tokens, mut logits, blocks) = (prompt.to_vec(), Vec::new(), table(0));
    let mut start = 0;
    while tokens.len() < prompt.len() + 20 {
        let step = [chunk(&tokens[start..], start, &blocks, Logits::Last)];
        runner.run(&step, &mut logits).unwrap();
        start = tokens.len();
        let best = (0..logits.len()).max_by(|&a, &b| logits[a].total_cmp(&logits[b]));
        match best.expect("a vocabulary has tokens") as u32 {
            token if token == end => break,
            token => tokens.push(token),
        }
    }
    tokens.split_off(prompt.len())
}

#[test]
fn the_demo_model_knows_the_capital_of_france() {
    let Some(model) = demo() else { return };
    for weights in [WeightType::Auto, WeightType::Q8_0, WeightType::F32] {
        let mut runner = load(&model, options(2, weights));
        let answer = greedy(&mut runner, &QUESTION, model.eos[0]);
        let answer = model.tokenizer.decode(&answer, true);
        assert_eq!(answer, "The capital of France is Paris.", "{weights:?}");
    }
}

#[test]
fn ragged_equals_alone_on_the_demo_model() {
    let Some(model) = demo() else { return };
    ragged_equals_alone(&model, WeightType::Auto, 60, 1);
}
