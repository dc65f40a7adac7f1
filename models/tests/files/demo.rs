//! The demo model itself, where it is in the cache.

use std::path::{Path, PathBuf};

use serde_json::json;
use sluice_models::{LoadedModel, TensorType};

/// Nothing where the demo model has not been fetched.
fn demo() -> Option<LoadedModel> {
    let home = std::env::var_os("HOME")?;
    let path: PathBuf =
        Path::new(&home).join(".cache/sluice/models/SmolLM2-135M-Instruct.Q4_1.gguf");
    path.exists().then(|| sluice_models::open(path.to_str().unwrap()).unwrap())
}

#[test]
fn the_demo_model_opens() {
    let Some(model) = demo() else { return };
    let config = &model.config;
    assert_eq!((config.hidden_size, config.num_layers, config.vocab_size), (576, 30, 49_152));
    assert!(config.rope.interleaved && config.tied_head && !config.qkv_bias);
    assert_eq!(model.name, "SmolLM2-135M-Instruct.Q4_1");
    assert_eq!(model.eos, [2, 0]);
    let down = model.checkpoint.tensor("model.layers.29.mlp.down_proj.weight", 576, 1536).unwrap();
    assert_eq!(down.dtype, TensorType::Q4_1);
    let wrong = model.checkpoint.tensor("model.norm.weight", 1, 577).unwrap_err().to_string();
    assert!(
        wrong
            .ends_with("output_norm.weight: has the shape [576], the configuration asks for [577]"),
        "{wrong}"
    );
}

#[test]
fn its_tokenizer_puts_no_space_after_special_tokens() {
    let Some(LoadedModel { tokenizer, .. }) = demo() else { return };
    assert_eq!(tokenizer.encode("Hello", true), [19_556]);
    assert_eq!(tokenizer.encode("<|im_start|>user\n", false), [1, 4093, 198]);
    assert_eq!(tokenizer.encode(" user", false), [2914]);
    let ids = [1, 4093, 198, 1780, 314, 260, 3575, 282, 4649, 47, 2, 198, 1, 520, 9531, 198];
    let text = tokenizer.decode(&ids, false);
    assert_eq!(
        text,
        "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
    );
    assert_eq!(tokenizer.encode(&text, false), ids);
    assert_eq!(tokenizer.decode(&ids, true), "user\nWhat is the capital of France?\nassistant\n");
}

#[test]
fn its_template_adds_the_system_message() {
    let Some(LoadedModel { template, tokenizer, .. }) = demo() else { return };
    let messages = [json!({"role": "user", "content": "What is the capital of France?"})];
    let text = template.unwrap().render(&messages, None, true, &serde_json::Map::new()).unwrap();
    assert_eq!(
        text,
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging \
         Face<|im_end|>\n<|im_start|>user\nWhat is the capital of France?<|im_end|>\n\
         <|im_start|>assistant\n"
    );
    let ids = tokenizer.encode(&text, false);
    assert!(ids.ends_with(&[
        1, 4093, 198, 1780, 314, 260, 3575, 282, 4649, 47, 2, 198, 1, 520, 9531, 198
    ]));
}
