//! Model files, good and broken, through the public interface.

#![allow(clippy::unwrap_used, clippy::panic)]

mod broken_gguf;
mod broken_hf;
mod containers;
mod demo;
mod templates;
mod tokenizers;

use std::fs;
use std::path::{Path, PathBuf};

use sluice_models::testing::Tiny;
use sluice_models::{Architecture, LoadedModel, TensorType};

/// A directory that goes away with the test.
struct Scratch(tempfile::TempDir);

impl Scratch {
    fn new() -> Scratch {
        Scratch(tempfile::tempdir().unwrap())
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn write(&self, file: &str, bytes: &[u8]) -> PathBuf {
        let path = self.path().join(file);
        fs::write(&path, bytes).unwrap();
        path
    }

    /// Opens `file`, a path inside; the error without the path, checked to be one line.
    fn open(&self, file: &str) -> Result<LoadedModel, String> {
        let path = self.path().join(file);
        sluice_models::open(path.to_str().unwrap()).map_err(|error| {
            let text = error.to_string();
            assert!(!text.contains('\n') && text.len() < 700, "not one short line: {text}");
            assert!(text.starts_with(self.path().to_str().unwrap()), "no path: {text}");
            text[self.path().to_str().unwrap().len() + 1..].to_owned()
        })
    }
}

fn tiny(architecture: Architecture, dtype: TensorType) -> Tiny {
    Tiny { architecture, dtype, tied_head: true, seed: 7 }
}

/// Asks for every tensor that a forward pass would ask for.
fn touch_weights(model: &LoadedModel) -> Result<(), String> {
    let c = &model.config;
    let get = |name: &str, rows: usize, cols: usize| {
        let tensor = model.checkpoint.tensor(name, rows, cols);
        tensor.map(|tensor| drop(tensor.to_f32())).map_err(|error| error.to_string())
    };
    let (q, kv) = (c.num_heads * c.head_dim, c.num_kv_heads * c.head_dim);
    get("model.embed_tokens.weight", c.vocab_size, c.hidden_size)?;
    get("model.norm.weight", 1, c.hidden_size)?;
    for layer in 0..c.num_layers {
        let get = |name: &str, rows, cols| get(&format!("model.layers.{layer}.{name}"), rows, cols);
        get("input_layernorm.weight", 1, c.hidden_size)?;
        get("self_attn.q_proj.weight", q, c.hidden_size)?;
        get("self_attn.k_proj.weight", kv, c.hidden_size)?;
        get("self_attn.v_proj.weight", kv, c.hidden_size)?;
        get("self_attn.o_proj.weight", c.hidden_size, q)?;
        get("post_attention_layernorm.weight", 1, c.hidden_size)?;
        get("mlp.gate_proj.weight", c.intermediate_size, c.hidden_size)?;
        get("mlp.up_proj.weight", c.intermediate_size, c.hidden_size)?;
        get("mlp.down_proj.weight", c.hidden_size, c.intermediate_size)?;
    }
    Ok(())
}

/// Runs `test` and checks that it never asked for much memory at once, by the peak of this
/// process's address space. Does nothing more where the system does not tell.
fn without_huge_allocations(test: impl FnOnce()) {
    let peak = || {
        let status = fs::read_to_string("/proc/self/status").ok()?;
        let line = status.lines().find(|line| line.starts_with("VmPeak:"))?;
        line.split_whitespace().nth(1)?.parse::<u64>().ok()
    };
    let before = peak();
    test();
    if let (Some(before), Some(after)) = (before, peak()) {
        assert!(after - before < 1 << 20, "the address space grew by {} KB", after - before);
    }
}
