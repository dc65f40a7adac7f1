//! One model in two containers is one model.

use sluice_models::{Architecture, LoadedModel, Tensor, TensorType};

use super::{Scratch, tiny, touch_weights};

const ARCHITECTURES: [Architecture; 3] =
    [Architecture::Llama, Architecture::Qwen2, Architecture::Qwen3];

fn both(architecture: Architecture, dtype: TensorType) -> (LoadedModel, LoadedModel) {
    let scratch = Scratch::new();
    let spec = tiny(architecture, dtype);
    spec.write_dir(scratch.path());
    scratch.write("model.gguf", &spec.gguf().bytes());
    (scratch.open("model.gguf").unwrap(), scratch.open("").unwrap())
}

/// Undoes the order of rows that "llama" GGUF files have in q and k.
fn halves(tensor: &Tensor<'_>, head_dim: usize) -> Vec<f32> {
    let values = tensor.to_f32();
    let row = |head: usize, at: usize| {
        let pair = if at < head_dim / 2 { 2 * at } else { 2 * (at - head_dim / 2) + 1 };
        &values[(head * head_dim + pair) * tensor.cols..][..tensor.cols]
    };
    let heads = tensor.rows / head_dim;
    (0..heads).flat_map(|head| (0..head_dim).flat_map(move |at| row(head, at).to_vec())).collect()
}

#[test]
fn configurations_agree_but_for_the_pairing_of_rotated_values() {
    for architecture in ARCHITECTURES {
        let (gguf, dir) = both(architecture, TensorType::Q8_0);
        let mut config = gguf.config.clone();
        assert_eq!(config.rope.interleaved, architecture == Architecture::Llama);
        config.rope.interleaved = false;
        assert_eq!(config, dir.config);
        assert_eq!(config, tiny(architecture, TensorType::Q8_0).config());
        assert_eq!((gguf.eos, dir.eos), (vec![263], vec![263]));
    }
}

#[test]
fn weights_agree_bit_for_bit() {
    for architecture in ARCHITECTURES {
        for dtype in [TensorType::F16, TensorType::Q4_1, TensorType::Q4_K, TensorType::Q6_K] {
            let (gguf, dir) = both(architecture, dtype);
            touch_weights(&gguf).unwrap();
            touch_weights(&dir).unwrap();
            let c = &dir.config;
            let q = "model.layers.1.self_attn.q_proj.weight";
            let rows = c.num_heads * c.head_dim;
            let stored = gguf.checkpoint.tensor(q, rows, c.hidden_size).unwrap();
            assert_eq!(stored.dtype, dtype);
            let interleaved = gguf.config.rope.interleaved;
            let values = if interleaved { halves(&stored, c.head_dim) } else { stored.to_f32() };
            assert_eq!(values, dir.checkpoint.tensor(q, rows, c.hidden_size).unwrap().to_f32());
            let up = "model.layers.0.mlp.up_proj.weight";
            let up = |m: &LoadedModel| {
                m.checkpoint.tensor(up, c.intermediate_size, c.hidden_size).unwrap().to_f32()
            };
            assert_eq!(up(&gguf), up(&dir));
        }
    }
}

#[test]
fn rows_decode_as_the_whole_does() {
    let (gguf, _) = both(Architecture::Qwen3, TensorType::Q4_1);
    let c = &gguf.config;
    let name = "model.embed_tokens.weight";
    let tensor = gguf.checkpoint.tensor(name, c.vocab_size, c.hidden_size).unwrap();
    let mut some = vec![0.0; 3 * c.hidden_size];
    tensor.decode_rows(101, &mut some);
    assert_eq!(some, tensor.to_f32()[101 * c.hidden_size..104 * c.hidden_size]);
}

#[test]
fn tokenizers_agree() {
    let (gguf, dir) = both(Architecture::Llama, TensorType::Q8_0);
    for text in ["", "the thin\n\n  <|end|>an\u{e9}\u{1F600}", " <|begin|>\t<|end|> 12 345"] {
        let ids = gguf.tokenizer.encode(text, false);
        assert_eq!(ids, dir.tokenizer.encode(text, false));
        assert_eq!(gguf.tokenizer.decode(&ids, false), text);
        assert_eq!(dir.tokenizer.decode(&ids, false), text);
    }
    for id in 0..265 {
        assert_eq!(gguf.tokenizer.token_bytes(id), dir.tokenizer.token_bytes(id), "{id}");
        assert_eq!(gguf.tokenizer.is_special(id), dir.tokenizer.is_special(id), "{id}");
    }
}

#[test]
fn shards_are_one_model() {
    let scratch = Scratch::new();
    tiny(Architecture::Qwen2, TensorType::F32).write_dir(scratch.path());
    let whole = scratch.open("").unwrap();
    split(&scratch);
    let sharded = scratch.open("").unwrap();
    touch_weights(&sharded).unwrap();
    let name = "model.layers.1.mlp.down_proj.weight";
    let down = |model: &LoadedModel| model.checkpoint.tensor(name, 64, 96).unwrap().to_f32();
    assert_eq!(down(&whole), down(&sharded));
    let size = |file| std::fs::metadata(scratch.path().join(file)).unwrap().len();
    assert_eq!(sharded.checkpoint.bytes(), size("a.safetensors") + size("b.safetensors"));

    std::fs::remove_file(scratch.path().join("b.safetensors")).unwrap();
    let error = scratch.open("").unwrap_err();
    let missing = "model.safetensors.index.json: weight_map: b.safetensors is not there";
    assert!(error.starts_with(missing), "{error}");
    for outside in ["../b.safetensors", "/etc/passwd", "sub/b.safetensors", "..", ""] {
        let index = serde_json::json!({"weight_map": {"x": outside}}).to_string();
        scratch.write("model.safetensors.index.json", index.as_bytes());
        let error = scratch.open("").unwrap_err();
        assert!(error.contains("is not the name of a file in this directory"), "{error}");
    }
}

/// Replaces model.safetensors by a.safetensors and b.safetensors with an index.
fn split(scratch: &Scratch) {
    let path = scratch.path().join("model.safetensors");
    let bytes = std::fs::read(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    let all = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let mut map = serde_json::Map::new();
    for file in ["a.safetensors", "b.safetensors"] {
        let of = |name: &str| if name.contains("mlp") { "b.safetensors" } else { "a.safetensors" };
        let mine: Vec<_> = all.tensors().into_iter().filter(|(name, _)| of(name) == file).collect();
        map.extend(mine.iter().map(|(name, _)| (name.clone(), file.into())));
        scratch.write(file, &safetensors::serialize(mine, None).unwrap());
    }
    let index = serde_json::json!({"metadata": {"total_size": 1}, "weight_map": map}).to_string();
    scratch.write("model.safetensors.index.json", index.as_bytes());
}
