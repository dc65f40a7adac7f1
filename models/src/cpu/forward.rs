//! The forward pass: a few parallel regions a layer over buffers that are made once.

use kernels::attention::Attention;
use kernels::batch::{Batch, Heads};
use kernels::elementwise::rms_norm;
use kernels::heads::{HeadNorms, HeadOps, Projected, Rotary, prepare_heads};
use kernels::matrix::{Matrix, Product};
use kernels::{Activations, PagedKv, Pool};

use super::weights::{Layer, Weights};
use crate::config::ModelConfig;
use crate::rope::RopeTable;
use crate::runner::{Chunk, Logits};

/// Everything about a model that does not change from step to step.
pub(super) struct Model {
    pub(super) weights: Weights,
    pub(super) rope: RopeTable,
    pub(super) interleaved: bool,
    pub(super) norm_eps: f32,
}

/// The buffers of a step, for a stated number of rows.
pub(super) struct Workspace {
    batch: Batch,
    attention: Attention,
    tokens: Vec<u32>,
    /// Rows whose logits are wanted.
    wanted: Vec<usize>,
    /// The residual stream.
    hidden: Vec<f32>,
    normed: Activations,
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
    attended: Vec<f32>,
    attended_rows: Activations,
    gated: Vec<f32>,
    gated_rows: Activations,
}

impl Workspace {
    pub(super) fn new(
        config: &ModelConfig,
        num_blocks: u32,
        rows: usize,
        threads: usize,
    ) -> Workspace {
        let heads =
            Heads { query: config.num_heads, kv: config.num_kv_heads, dim: config.head_dim };
        let (q, kv) = (heads.query * heads.dim, heads.kv * heads.dim);
        let (hidden, intermediate) = (config.hidden_size, config.intermediate_size);
        Workspace {
            batch: Batch::new(heads, num_blocks, rows),
            attention: Attention::new(heads, threads),
            tokens: Vec::with_capacity(rows),
            wanted: Vec::with_capacity(rows),
            hidden: vec![0.0; rows * hidden],
            normed: Activations::new(rows, hidden),
            q: vec![0.0; rows * q],
            k: vec![0.0; rows * kv],
            v: vec![0.0; rows * kv],
            attended: vec![0.0; rows * q],
            attended_rows: Activations::new(rows, q),
            gated: vec![0.0; rows * intermediate],
            gated_rows: Activations::new(rows, intermediate),
        }
    }

    /// Takes in the rows of a step. The chunks have been validated.
    fn start(&mut self, chunks: &[Chunk<'_>]) {
        self.batch.clear();
        self.tokens.clear();
        self.wanted.clear();
        for chunk in chunks {
            self.batch.push(chunk.start, chunk.tokens.len(), chunk.blocks);
            self.tokens.extend_from_slice(chunk.tokens);
            let end = self.tokens.len();
            match chunk.logits {
                Logits::None => {}
                Logits::Last => self.wanted.push(end - 1),
                Logits::All => self.wanted.extend(end - chunk.tokens.len()..end),
            }
        }
        self.batch.seal();
    }
}

impl Model {
    /// Runs validated chunks: writes keys and values to `kv` and the wanted rows to `logits`.
    pub(super) fn forward(
        &self,
        pool: &Pool,
        kv: &mut PagedKv,
        ws: &mut Workspace,
        chunks: &[Chunk<'_>],
        logits: &mut Vec<f32>,
    ) {
        ws.start(chunks);
        let width = ws.normed.cols();
        let tokens = &ws.tokens;
        pool.for_rows(&mut ws.hidden[..tokens.len() * width], width, |row, out| {
            self.weights.embed(tokens[row], out);
        });
        for (index, layer) in self.weights.layers.iter().enumerate() {
            self.attend(pool, kv, ws, index, layer);
            self.feed_forward(pool, ws, layer);
        }
        self.head(pool, ws, logits);
    }

    /// The attention half of a layer, added to the residual stream.
    fn attend(
        &self,
        pool: &Pool,
        kv: &mut PagedKv,
        ws: &mut Workspace,
        index: usize,
        layer: &Layer,
    ) {
        let rows = ws.tokens.len();
        let (hidden, width) = (&ws.hidden, ws.normed.cols());
        ws.normed.fill(pool, rows, layer.qkv_form(), |row, out| {
            rms_norm(&hidden[row * width..][..width], &layer.attention_norm, self.norm_eps, out);
        });
        let [q_bias, k_bias, v_bias] = match &layer.biases {
            Some(biases) => biases.each_ref().map(|bias| Some(bias.as_slice())),
            None => [None; 3],
        };
        Matrix::multiply_many(
            pool,
            &ws.normed,
            rows,
            &mut [
                Product { matrix: &layer.q, bias: q_bias, out: &mut ws.q },
                Product { matrix: &layer.k, bias: k_bias, out: &mut ws.k },
                Product { matrix: &layer.v, bias: v_bias, out: &mut ws.v },
            ],
        );
        let projected = &mut Projected { q: &mut ws.q, k: &mut ws.k, v: &ws.v };
        prepare_heads(pool, kv, index, &ws.batch, self.head_ops(layer), projected);
        ws.attention.run(pool, kv, index, &ws.batch, &ws.q, &mut ws.attended);
        let (attended, width) = (&ws.attended, ws.attended_rows.cols());
        ws.attended_rows.fill(pool, rows, layer.o.form(), |row, out| {
            out.copy_from_slice(&attended[row * width..][..width]);
        });
        layer.o.multiply_add(pool, &ws.attended_rows, rows, &mut ws.hidden);
    }

    fn head_ops<'a>(&'a self, layer: &'a Layer) -> HeadOps<'a> {
        let RopeTable { cos, sin, .. } = &self.rope;
        let norms = layer.head_norms.as_ref();
        HeadOps {
            norms: norms.map(|[query, key]| HeadNorms { query, key, eps: self.norm_eps }),
            rotary: Rotary { cos, sin, interleaved: self.interleaved },
        }
    }

    /// The gated feed-forward half of a layer, added to the residual stream.
    fn feed_forward(&self, pool: &Pool, ws: &mut Workspace, layer: &Layer) {
        let rows = ws.tokens.len();
        let (hidden, width) = (&ws.hidden, ws.normed.cols());
        ws.normed.fill(pool, rows, layer.mlp_form(), |row, out| {
            rms_norm(&hidden[row * width..][..width], &layer.mlp_norm, self.norm_eps, out);
        });
        Matrix::multiply_silu(&layer.gate, &layer.up, pool, &ws.normed, rows, &mut ws.gated);
        let (gated, width) = (&ws.gated, ws.gated_rows.cols());
        ws.gated_rows.fill(pool, rows, layer.down.form(), |row, out| {
            out.copy_from_slice(&gated[row * width..][..width]);
        });
        layer.down.multiply_add(pool, &ws.gated_rows, rows, &mut ws.hidden);
    }

    /// The final norm and the output head, for the wanted rows only.
    fn head(&self, pool: &Pool, ws: &mut Workspace, logits: &mut Vec<f32>) {
        let head = &self.weights.head;
        let (hidden, wanted, width) = (&ws.hidden, &ws.wanted, ws.normed.cols());
        // Every value is written below, so what is there already need not be cleared.
        logits.resize(wanted.len() * head.n(), 0.0);
        ws.normed.fill(pool, wanted.len(), head.form(), |row, out| {
            let hidden = &hidden[wanted[row] * width..][..width];
            rms_norm(hidden, &self.weights.norm, self.norm_eps, out);
        });
        head.multiply(pool, &ws.normed, wanted.len(), logits);
    }
}
