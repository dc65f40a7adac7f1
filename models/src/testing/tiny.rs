//! A tiny model with seeded random weights.

use std::path::Path;

use safetensors::tensor::{Dtype, TensorView};
use serde_json::{Value, json};

use super::{Gguf, Random};
use crate::checkpoint::TensorType;
use crate::config::{Architecture, ModelConfig, Rope, RopeScaling};
use crate::quant;

/// Merges of the tokenizer, after the 256 bytes; then come two special tokens.
const MERGES: [&str; 6] = ["t h", "\u{120} th", "\u{120}th e", "i n", "e r", "a n"];
/// The special tokens: BOS and EOS.
const SPECIAL: [&str; 2] = ["<|begin|>", "<|end|>"];
const TEMPLATE: &str = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}{{ eos_token }}\
                        {% endfor %}{% if add_generation_prompt %}assistant: {% endif %}";

/// What kind of tiny model. All kinds have 2 layers, 4 query and 2 key heads, and 264 tokens; the
/// GGUF file and the directory of one `Tiny` hold exactly the same values.
#[derive(Clone, Copy, Debug)]
pub struct Tiny {
    /// Family.
    pub architecture: Architecture,
    /// Type of the matrices in the GGUF file; norms and biases are f32.
    pub dtype: TensorType,
    /// The head is the embedding.
    pub tied_head: bool,
    /// Seed of the weights.
    pub seed: u64,
}

/// One tensor by canonical name.
struct Weight {
    name: String,
    rows: usize,
    cols: usize,
    dtype: TensorType,
    data: Vec<u8>,
}

impl Weight {
    fn values(&self) -> Vec<f32> {
        let mut values = vec![0.0; self.rows * self.cols];
        quant::decode(self.dtype, &self.data, &mut values);
        values
    }
}

impl Tiny {
    /// The configuration as the directory has it (the GGUF file of a Llama is interleaved).
    #[must_use]
    pub fn config(&self) -> ModelConfig {
        let wide = matches!(self.dtype, TensorType::Q4_K | TensorType::Q6_K);
        ModelConfig {
            architecture: self.architecture,
            hidden_size: if wide { 256 } else { 64 },
            intermediate_size: if wide { 512 } else { 96 },
            num_layers: 2,
            num_heads: 4,
            num_kv_heads: 2,
            head_dim: if wide { 64 } else { 16 },
            vocab_size: 256 + MERGES.len() + SPECIAL.len(),
            max_position: 256,
            norm_eps: 1e-5,
            rope: Rope {
                theta: 10_000.0,
                scaling: RopeScaling::None,
                factors: None,
                interleaved: false,
            },
            qkv_bias: self.architecture == Architecture::Qwen2,
            qk_norm: self.architecture == Architecture::Qwen3,
            tied_head: self.tied_head,
        }
    }

    fn weights(&self) -> Vec<Weight> {
        let c = self.config();
        let (q, kv) = (c.num_heads * c.head_dim, c.num_kv_heads * c.head_dim);
        let mut shapes =
            vec![("model.embed_tokens.weight".to_owned(), c.vocab_size, c.hidden_size)];
        for layer in 0..c.num_layers {
            let mut add = |name: &str, rows, cols| {
                shapes.push((format!("model.layers.{layer}.{name}"), rows, cols));
            };
            add("input_layernorm.weight", 1, c.hidden_size);
            for (part, rows) in [("q", q), ("k", kv), ("v", kv)] {
                add(&format!("self_attn.{part}_proj.weight"), rows, c.hidden_size);
                if c.qkv_bias {
                    add(&format!("self_attn.{part}_proj.bias"), 1, rows);
                }
                if c.qk_norm && part != "v" {
                    add(&format!("self_attn.{part}_norm.weight"), 1, c.head_dim);
                }
            }
            add("self_attn.o_proj.weight", c.hidden_size, q);
            add("post_attention_layernorm.weight", 1, c.hidden_size);
            add("mlp.gate_proj.weight", c.intermediate_size, c.hidden_size);
            add("mlp.up_proj.weight", c.intermediate_size, c.hidden_size);
            add("mlp.down_proj.weight", c.hidden_size, c.intermediate_size);
        }
        shapes.push(("model.norm.weight".to_owned(), 1, c.hidden_size));
        if !c.tied_head {
            shapes.push(("lm_head.weight".to_owned(), c.vocab_size, c.hidden_size));
        }
        let mut random = Random(self.seed);
        let fill = |(name, rows, cols): (String, usize, usize)| {
            let dtype = if rows == 1 { TensorType::F32 } else { self.dtype };
            let scale = if rows == 1 { 1.0 } else { 2.0 / (cols as f32).sqrt() };
            Weight { dtype, data: random.weights(dtype, rows, cols, scale), name, rows, cols }
        };
        shapes.into_iter().map(fill).collect()
    }

    /// The GGUF file, still open for changes.
    #[must_use]
    pub fn gguf(&self) -> Gguf {
        let c = self.config();
        let arch = match self.architecture {
            Architecture::Llama => "llama",
            Architecture::Qwen2 => "qwen2",
            Architecture::Qwen3 => "qwen3",
        };
        let mut gguf = Gguf::default();
        gguf.text("general.architecture", arch);
        for (key, value) in [
            ("embedding_length", c.hidden_size),
            ("feed_forward_length", c.intermediate_size),
            ("block_count", c.num_layers),
            ("attention.head_count", c.num_heads),
            ("attention.head_count_kv", c.num_kv_heads),
            ("attention.key_length", c.head_dim),
            ("context_length", c.max_position),
            ("rope.dimension_count", c.head_dim),
        ] {
            gguf.uint(&format!("{arch}.{key}"), value as u32);
        }
        gguf.float(&format!("{arch}.attention.layer_norm_rms_epsilon"), c.norm_eps);
        gguf.float(&format!("{arch}.rope.freq_base"), c.rope.theta);
        add_vocabulary(&mut gguf);
        for weight in self.weights() {
            let name = crate::checkpoint::gguf_name(&weight.name);
            let data = self.permuted(&weight);
            gguf.tensor(&name, weight.rows, weight.cols, weight.dtype, data);
        }
        gguf
    }

    /// Llama's q and k rows are stored with rotated pairs together: row `2i + s` of a head is its
    /// row `s * head_dim / 2 + i`.
    fn permuted(&self, weight: &Weight) -> Vec<u8> {
        let rotated = weight.name.contains("q_proj") || weight.name.contains("k_proj");
        if self.architecture != Architecture::Llama || !rotated {
            return weight.data.clone();
        }
        let head_dim = self.config().head_dim;
        let row_bytes = weight.data.len() / weight.rows;
        let source = |row: usize| {
            let (head, at) = (row / head_dim, row % head_dim);
            head * head_dim + (at % 2) * head_dim / 2 + at / 2
        };
        let rows = (0..weight.rows).map(|row| &weight.data[source(row) * row_bytes..][..row_bytes]);
        rows.flatten().copied().collect()
    }

    /// Writes config.json, generation_config.json, tokenizer.json, tokenizer_config.json and
    /// model.safetensors (f32) into `dir`.
    pub fn write_dir(&self, dir: &Path) {
        let write = |file: &str, value: Value| {
            std::fs::write(dir.join(file), value.to_string()).unwrap();
        };
        write("config.json", self.config_json());
        write("generation_config.json", json!({"eos_token_id": [263]}));
        write("tokenizer.json", tokenizer_json());
        let [bos, eos] = SPECIAL;
        let names = json!({"bos_token": bos, "eos_token": eos, "chat_template": TEMPLATE});
        write("tokenizer_config.json", names);
        std::fs::write(dir.join("model.safetensors"), self.safetensors()).unwrap();
    }

    /// The contents of config.json.
    #[must_use]
    pub fn config_json(&self) -> Value {
        let c = self.config();
        let model_type = match self.architecture {
            Architecture::Llama => "llama",
            Architecture::Qwen2 => "qwen2",
            Architecture::Qwen3 => "qwen3",
        };
        json!({
            "model_type": model_type, "hidden_act": "silu", "hidden_size": c.hidden_size,
            "intermediate_size": c.intermediate_size, "num_hidden_layers": c.num_layers,
            "num_attention_heads": c.num_heads, "num_key_value_heads": c.num_kv_heads,
            "head_dim": c.head_dim, "vocab_size": c.vocab_size, "rms_norm_eps": 1e-5,
            "max_position_embeddings": c.max_position, "rope_theta": c.rope.theta,
            "tie_word_embeddings": c.tied_head, "eos_token_id": 263,
        })
    }

    /// The contents of model.safetensors.
    #[must_use]
    pub fn safetensors(&self) -> Vec<u8> {
        let weights = self.weights();
        let raw = |weight: &Weight| weight.values().iter().flat_map(|v| v.to_le_bytes()).collect();
        let data: Vec<Vec<u8>> = weights.iter().map(raw).collect();
        let views = weights.iter().zip(&data).map(|(weight, data)| {
            let shape =
                if weight.rows == 1 { vec![weight.cols] } else { vec![weight.rows, weight.cols] };
            (&weight.name, TensorView::new(Dtype::F32, shape, data).unwrap())
        });
        safetensors::serialize(views, None).unwrap()
    }
}

/// The 256 bytes in GPT-2's alphabet, by byte.
fn alphabet() -> Vec<String> {
    let mut shifted = 0x100..;
    let printable = |byte: &u32| matches!(byte, 0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF);
    let mut letter = |byte: u32| {
        let code = if printable(&byte) { Some(byte) } else { shifted.next() };
        code.and_then(char::from_u32).unwrap().to_string()
    };
    (0..256).map(&mut letter).collect()
}

fn tokens() -> Vec<String> {
    let merged = MERGES.iter().map(|merge| merge.replace(' ', ""));
    let special = SPECIAL.iter().map(|token| (*token).to_owned());
    alphabet().into_iter().chain(merged).chain(special).collect()
}

fn add_vocabulary(gguf: &mut Gguf) {
    let tokens = tokens();
    let mut types = vec![1; tokens.len()];
    types[tokens.len() - 2..].fill(3);
    gguf.text("tokenizer.ggml.model", "gpt2")
        .text("tokenizer.ggml.pre", "gpt-2")
        .texts("tokenizer.ggml.tokens", &tokens)
        .ints("tokenizer.ggml.token_type", &types)
        .texts("tokenizer.ggml.merges", &MERGES)
        .uint("tokenizer.ggml.bos_token_id", 262)
        .uint("tokenizer.ggml.eos_token_id", 263)
        .text("tokenizer.chat_template", TEMPLATE);
}

fn tokenizer_json() -> Value {
    let tokens = tokens();
    let plain = &tokens[..tokens.len() - 2];
    let vocab: serde_json::Map<String, Value> =
        plain.iter().enumerate().map(|(id, token)| (token.clone(), id.into())).collect();
    let added = |(index, token): (usize, &&str)| {
        json!({"id": plain.len() + index, "content": token, "special": true, "normalized": false,
               "single_word": false, "lstrip": false, "rstrip": false})
    };
    let byte_level = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true,
                            "use_regex": true});
    json!({
        "version": "1.0", "truncation": null, "padding": null, "normalizer": null,
        "added_tokens": SPECIAL.iter().enumerate().map(added).collect::<Vec<_>>(),
        "pre_tokenizer": byte_level, "post_processor": null, "decoder": byte_level,
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "fuse_unk": false,
                  "continuing_subword_prefix": null, "end_of_word_suffix": null,
                  "byte_fallback": false, "vocab": vocab, "merges": MERGES},
    })
}
