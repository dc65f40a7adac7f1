//! What the benchmarks share: sample matrices, and the demo model on the `cpu` runner.

use std::path::PathBuf;

use kernels::heads::{HeadOps, Projected, Rotary, prepare_heads};
use kernels::{Batch, Heads, KvDtype, KvShape, Matrix, PagedKv, Pool};
use models::cpu::{CpuOptions, CpuRunner, WeightType};
use models::{Chunk, LoadedModel, Logits, ModelRunner};

/// Blocks that each sequence of [`DemoModel`] may use.
pub const BLOCKS_EACH: u32 = 16;
/// Tokens that each sequence of [`DemoModel`] has before it decodes.
pub const CONTEXT: u32 = 150;
/// Sequences of [`DemoModel`].
pub const SEQUENCES: u32 = 32;

/// Weights of the shape `n` x `k` whose values do not matter to the time, but are ordinary numbers.
#[must_use]
pub fn floats(n: usize, k: usize) -> Vec<f32> {
    (0..n * k).map(|i| (i * 7919 % 1000) as f32 / 500.0 - 1.0).collect()
}

/// A matrix of 4-bit blocks (Q4_1); `k` is a multiple of 32.
#[must_use]
pub fn q4(n: usize, k: usize) -> Matrix {
    let block = |i: usize| {
        let mut block = [(i * 31 % 251) as u8; 20];
        // Scale 1/128, minimum -1/16 as f16.
        block[..4].copy_from_slice(&[0, 0x20, 0, 0xac]);
        block
    };
    Matrix::from_q4_1(n, k, &(0..n * k / 32).flat_map(block).collect::<Vec<_>>())
}

/// The demo model's heads.
pub const HEADS: Heads = Heads { query: 9, kv: 3, dim: 64 };

/// A pool of one layer with `sequences` sequences of `context` tokens, and their block tables.
/// Written throughout: blocks that nobody has written would take no memory to read.
///
/// # Panics
/// If the pool cannot be mapped.
#[must_use]
pub fn written_kv(sequences: usize, context: usize) -> (PagedKv, Vec<Vec<u32>>) {
    let blocks = context.div_ceil(PagedKv::BLOCK) as u32;
    let num_blocks = sequences as u32 * blocks;
    let shape = KvShape { layers: 1, kv_heads: HEADS.kv, head_dim: HEADS.dim };
    let mut kv = PagedKv::new(shape, KvDtype::F16, num_blocks).expect("a small pool can be mapped");
    let tables: Vec<Vec<u32>> =
        (0..sequences as u32).map(|i| (i * blocks..(i + 1) * blocks).collect()).collect();
    let half = context * HEADS.dim / 2;
    let (cos, sin) = (vec![1.0; half], vec![0.0; half]);
    let rotary = Rotary { cos: &cos, sin: &sin, interleaved: true };
    let mut q = vec![0.5; context * HEADS.query * HEADS.dim];
    let mut k = floats(context, HEADS.kv * HEADS.dim);
    let v = k.clone();
    let mut batch = Batch::new(HEADS, num_blocks, context);
    for table in &tables {
        batch.clear();
        batch.push(0, context, table);
        batch.seal();
        let mut projected = Projected { q: &mut q, k: &mut k, v: &v };
        let ops = HeadOps { norms: None, rotary };
        prepare_heads(&Pool::new(1), &mut kv, 0, &batch, ops, &mut projected);
    }
    (kv, tables)
}

/// The demo model with 32 sequences of 150 tokens in its KV cache.
#[allow(missing_debug_implementations)]
pub struct DemoModel {
    runner: CpuRunner,
    tokens: Vec<u32>,
    tables: Vec<Vec<u32>>,
    logits: Vec<f32>,
}

impl DemoModel {
    /// The demo model's files.
    ///
    /// # Panics
    /// If they are not in the cache (`make model` fetches them).
    #[must_use]
    pub fn open() -> LoadedModel {
        let home = || PathBuf::from(std::env::var_os("HOME").unwrap_or_default()).join(".cache");
        let cache = std::env::var_os("XDG_CACHE_HOME").map_or_else(home, PathBuf::from);
        let path = cache.join("sluice/models/SmolLM2-135M-Instruct.Q4_1.gguf");
        models::open(&path.to_string_lossy())
            .expect("the demo model is in the cache (fetch it with `make model`)")
    }

    /// Loads it for `threads` threads and fills the contexts: keys and values that nobody has
    /// written would take no memory to read.
    #[must_use]
    pub fn load(model: &LoadedModel, threads: usize) -> DemoModel {
        let options = CpuOptions {
            threads,
            weights: WeightType::Auto,
            kv_dtype: KvDtype::F16,
            num_blocks: SEQUENCES * BLOCKS_EACH,
            max_model_len: BLOCKS_EACH * 32,
            max_batched_tokens: 512,
            max_chunks: SEQUENCES,
        };
        let runner = CpuRunner::load(&model.config, &model.checkpoint, options, &mut |_, _| {})
            .expect("the demo model can be loaded");
        let table = |i: u32| (i * BLOCKS_EACH..(i + 1) * BLOCKS_EACH).collect();
        let mut demo = DemoModel {
            runner,
            tokens: (0..512).map(|i| 100 + i * 7919 % 20_000).collect(),
            tables: (0..SEQUENCES).map(table).collect(),
            logits: Vec::new(),
        };
        for blocks in &demo.tables {
            let tokens = &demo.tokens[..CONTEXT as usize];
            let chunk = Chunk { tokens, start: 0, blocks, logits: Logits::None };
            demo.runner.run(&[chunk], &mut demo.logits).expect("the step is valid");
        }
        demo
    }

    /// One decode step of `batch` sequences, at most [`SEQUENCES`].
    pub fn decode(&mut self, batch: usize) {
        let chunk = |i: usize| Chunk {
            tokens: &self.tokens[i..=i],
            start: CONTEXT,
            blocks: &self.tables[i],
            logits: Logits::Last,
        };
        let chunks: Vec<_> = (0..batch).map(chunk).collect();
        self.runner.run(&chunks, &mut self.logits).expect("the step is valid");
    }

    /// One prefill step of a prompt of 512 tokens.
    pub fn prefill(&mut self) {
        let blocks = &self.tables[0];
        let chunk = Chunk { tokens: &self.tokens, start: 0, blocks, logits: Logits::Last };
        self.runner.run(&[chunk], &mut self.logits).expect("the step is valid");
    }
}
