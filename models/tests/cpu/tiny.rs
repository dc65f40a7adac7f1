//! Tiny seeded models: each family, each weight type.

use sluice_models::testing::Tiny;
use sluice_models::{Architecture, RunnerError, TensorType};

use super::*;

const FAMILIES: [Architecture; 3] = [Architecture::Llama, Architecture::Qwen2, Architecture::Qwen3];

fn open_gguf(tiny: Tiny) -> LoadedModel {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("tiny.gguf");
    std::fs::write(&path, tiny.gguf().bytes()).unwrap();
    sluice_models::open(path.to_str().unwrap()).unwrap()
}

fn open_dir(tiny: Tiny) -> LoadedModel {
    let dir = tempfile::tempdir().unwrap();
    tiny.write_dir(dir.path());
    sluice_models::open(dir.path().to_str().unwrap()).unwrap()
}

fn logits(model: &LoadedModel, options: CpuOptions, tokens: &[u32]) -> Vec<f32> {
    let (mut logits, blocks) = (Vec::new(), table(0));
    let step = [chunk(tokens, 0, &blocks, Logits::All)];
    load(model, options).run(&step, &mut logits).unwrap();
    logits
}

/// The largest difference, relative to the largest logit.
fn difference(a: &[f32], b: &[f32]) -> f32 {
    let largest = |values: &mut dyn Iterator<Item = f32>| values.fold(0.0, f32::max);
    assert_eq!(a.len(), b.len());
    let scale = largest(&mut a.iter().map(|x| x.abs()));
    largest(&mut a.iter().zip(b).map(|(a, b)| (a - b).abs())) / scale
}

#[test]
fn ragged_equals_alone_in_each_family_and_weight_type() {
    for (seed, (architecture, dtype, weights)) in [
        (Architecture::Llama, TensorType::Q4_1, WeightType::Auto),
        (Architecture::Llama, TensorType::F32, WeightType::Auto),
        (Architecture::Llama, TensorType::Q6_K, WeightType::Auto),
        (Architecture::Qwen2, TensorType::Q4_0, WeightType::Auto),
        (Architecture::Qwen2, TensorType::BF16, WeightType::Q8_0),
        (Architecture::Qwen3, TensorType::Q8_0, WeightType::Auto),
        (Architecture::Qwen3, TensorType::Q4_K, WeightType::F32),
    ]
    .into_iter()
    .enumerate()
    {
        let seed = seed as u64;
        let tiny = Tiny { architecture, dtype, tied_head: seed.is_multiple_of(2), seed };
        ragged_equals_alone(&open_gguf(tiny), weights, 100, seed);
    }
}

#[test]
fn a_gguf_file_and_a_directory_with_the_same_values_give_the_same_logits() {
    let options = CpuOptions { kv_dtype: KvDtype::F32, ..options(1, WeightType::F32) };
    let tokens: Vec<u32> = (0..70).map(|i| i * 37 % 264).collect();
    for architecture in FAMILIES {
        for tied_head in [false, true] {
            let tiny = Tiny { architecture, dtype: TensorType::Q8_0, tied_head, seed: 3 };
            let gguf = logits(&open_gguf(tiny), options, &tokens);
            let dir = logits(&open_dir(tiny), options, &tokens);
            let difference = difference(&gguf, &dir);
            assert!(difference < 1e-5, "{architecture:?}, tied {tied_head}: {difference}");
        }
    }
}

#[test]
fn int8_kernels_stay_close_to_single_precision() {
    let tokens: Vec<u32> = (0..40).map(|i| i * 37 % 264).collect();
    for dtype in [TensorType::Q4_0, TensorType::Q4_1, TensorType::Q8_0, TensorType::Q6_K] {
        let tiny = Tiny { architecture: Architecture::Llama, dtype, tied_head: false, seed: 5 };
        let model = open_gguf(tiny);
        let exact = logits(&model, options(1, WeightType::F32), &tokens);
        for weights in [WeightType::Auto, WeightType::Q8_0] {
            let difference = difference(&exact, &logits(&model, options(1, weights), &tokens));
            assert!(difference < 0.05, "{dtype:?} as {weights:?}: {difference}");
        }
    }
}

#[test]
fn a_refused_step_leaves_the_runner_as_it_was() {
    let tiny = Tiny {
        architecture: Architecture::Llama,
        dtype: TensorType::F32,
        tied_head: true,
        seed: 9,
    };
    let mut runner = load(&open_gguf(tiny), options(2, WeightType::Auto));
    let (tokens, blocks) = ([5, 6, 7], table(0));
    let good = [chunk(&tokens, 0, &blocks, Logits::All)];
    let (mut before, mut after) = (Vec::new(), Vec::new());
    runner.run(&good, &mut before).unwrap();
    for bad in [
        chunk(&[264], 0, &blocks, Logits::Last),
        chunk(&[1], 128, &blocks, Logits::Last),
        chunk(&[1], 32, &blocks[..1], Logits::Last),
        chunk(&[1], 0, &[80], Logits::Last),
        chunk(&[], 0, &blocks, Logits::Last),
    ] {
        after.push(1.0);
        let error = runner.run(&[good[0], bad], &mut after).unwrap_err();
        assert!(matches!(error, RunnerError::Step(_)), "{error}");
        assert!(after.is_empty(), "no logits of a step that did not run");
    }
    runner.run(&good, &mut after).unwrap();
    assert_eq!(before, after);
    runner.run(&[], &mut after).unwrap();
    assert!(after.is_empty());
}
