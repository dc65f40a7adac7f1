//! The demo model: its tokenizer, and the text that greedy decoding gives.

use std::path::PathBuf;

use serde::Deserialize;
use sluice_models::{Chunk, LoadedModel, Logits, ModelRunner, open};

use crate::{Capacity, RUNNERS, golden_json, step};

/// What make_goldens.py wrote of the demo model.
#[derive(Deserialize)]
struct Goldens {
    prompts: Vec<Golden>,
}

#[derive(Deserialize)]
struct Golden {
    text: String,
    prompt: Vec<u32>,
    output: Vec<u32>,
    output_text: String,
}

/// The demo model from the cache; none if its tests are switched off.
fn demo() -> Option<LoadedModel> {
    if std::env::var_os("SLUICE_SKIP_MODEL_TESTS").is_some_and(|value| value == "1") {
        return None;
    }
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from).unwrap_or_else(|| {
        PathBuf::from(std::env::var_os("HOME").expect("HOME is set")).join(".cache")
    });
    let path = cache.join("sluice/models/SmolLM2-135M-Instruct.Q4_1.gguf");
    assert!(
        path.exists(),
        "{} is missing: run `make model`, or set SLUICE_SKIP_MODEL_TESTS=1 to go without",
        path.display()
    );
    Some(open(path.to_str().unwrap()).unwrap())
}

#[test]
fn tokenizer_matches_transformers() {
    let Some(model) = demo() else { return };
    for golden in golden_json::<Goldens>("smollm2.json").prompts {
        assert_eq!(model.tokenizer.encode(&golden.text, false), golden.prompt, "{}", golden.text);
        assert_eq!(model.tokenizer.decode(&golden.output, false), golden.output_text);
    }
}

/// On the dequantised weights, in f32. The prompts are those whose every choice is clear enough for
/// another order of summation: the goldens record the smallest lead of a chosen token.
#[test]
fn greedy_text_matches_transformers() {
    let Some(model) = demo() else { return };
    let goldens: Goldens = golden_json("smollm2.json");
    assert_eq!(goldens.prompts.len(), 5);
    let prompts: Vec<&[u32]> = goldens.prompts.iter().map(|golden| &golden.prompt[..]).collect();
    let capacity = Capacity { num_blocks: 32, max_model_len: 192 };
    for (runner, load) in RUNNERS {
        let outputs = greedy(&mut *load(&model, &model.config, capacity), &prompts, 64);
        for (golden, output) in goldens.prompts.iter().zip(outputs) {
            assert_eq!(output, golden.output, "{runner}: {}", golden.text);
        }
    }
}

/// Continues all prompts together by `count` tokens each.
fn greedy(runner: &mut dyn ModelRunner, prompts: &[&[u32]], count: usize) -> Vec<Vec<u32>> {
    let vocab = runner.limits().vocab_size as usize;
    let table = runner.limits().num_blocks / prompts.len() as u32;
    let tables: Vec<Vec<u32>> = (0..prompts.len() as u32)
        .map(|index| (index * table..(index + 1) * table).collect())
        .collect();
    let mut sequences: Vec<Vec<u32>> = prompts.iter().map(|prompt| prompt.to_vec()).collect();
    let mut computed = vec![0; prompts.len()];
    for _ in 0..count {
        let parts = sequences.iter().zip(&computed).zip(&tables);
        let chunks = parts.map(|((sequence, &start), blocks)| Chunk {
            tokens: &sequence[start..],
            start: start as u32,
            blocks,
            logits: Logits::Last,
        });
        let logits = step(runner, &chunks.collect::<Vec<_>>());
        for ((sequence, start), row) in
            sequences.iter_mut().zip(&mut computed).zip(logits.chunks(vocab))
        {
            *start = sequence.len();
            sequence.push(argmax(row));
        }
    }
    let outputs = sequences.iter().zip(prompts);
    outputs.map(|(sequence, prompt)| sequence[prompt.len()..].to_vec()).collect()
}

fn argmax(row: &[f32]) -> u32 {
    let best = (0..row.len()).max_by(|&a, &b| row[a].total_cmp(&row[b]));
    best.expect("a vocabulary is not empty") as u32
}
