//! Broken directories end in one line that names file and field.

use proptest::prelude::*;
use serde_json::{Value, json};
use sluice_models::{Architecture, TensorType};

use super::{Scratch, tiny, touch_weights, without_huge_allocations};

fn good(architecture: Architecture) -> Scratch {
    let scratch = Scratch::new();
    tiny(architecture, TensorType::F32).write_dir(scratch.path());
    scratch
}

fn error_of(scratch: &Scratch) -> Option<String> {
    match scratch.open("") {
        Err(error) => Some(error),
        Ok(model) => touch_weights(&model).err(),
    }
}

/// Changes `pointer` in the JSON file (null removes it) and expects this in the error.
fn check(architecture: Architecture, file: &str, pointer: &str, value: Value, expected: &str) {
    let scratch = good(architecture);
    let path = scratch.path().join(file);
    let mut json: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    let (parent, key) = pointer.rsplit_once('/').unwrap();
    let parent = json.pointer_mut(parent).unwrap().as_object_mut().unwrap();
    if value.is_null() {
        parent.remove(key)
    } else {
        parent.insert(key.to_owned(), value)
    };
    scratch.write(file, json.to_string().as_bytes());
    let error = error_of(&scratch).unwrap_or_else(|| panic!("{pointer}: no error: {expected}"));
    assert!(error.contains(expected), "expected {expected:?} in: {error}");
    assert!(error.contains(file) || error.contains("tensor "), "{error}");
}

fn config(pointer: &str, value: Value, expected: &str) {
    check(Architecture::Llama, "config.json", pointer, value, expected);
}

#[test]
fn wrong_sizes_are_named() {
    without_huge_allocations(|| {
        for field in [
            "hidden_size",
            "intermediate_size",
            "num_hidden_layers",
            "num_attention_heads",
            "vocab_size",
            "max_position_embeddings",
        ] {
            let pointer = format!("/{field}");
            config(&pointer, Value::Null, &format!("{field}: is missing"));
            config(&pointer, json!(0), &format!("{field}: is 0, not between 1 and"));
            config(&pointer, json!(u64::MAX), &format!("{field}: is 18446744073709551615"));
            config(&pointer, json!(-1), "line 1 column ");
            config(&pointer, json!("64"), "line 1 column ");
            config(&pointer, json!(1.5), "line 1 column ");
        }
    });
    config("/num_key_value_heads", json!(3), "num_key_value_heads: 3 does not divide 4 heads");
    config("/head_dim", json!(15), "head_dim: is 15, an odd number");
    config("/head_dim", json!(32), "has the shape [64, 64], the configuration asks for [128, 64]");
    config("/vocab_size", json!(300), "has the shape [264, 64]");
    config("/rms_norm_eps", json!(0), "rms_norm_eps: is 0");
    config("/rms_norm_eps", json!(1e300), "rms_norm_eps: is inf");
    config("/rope_theta", json!(-1.0), "rope_theta: is -1");
    config("/eos_token_id", json!(264), "eos_token_id: is 264, the vocabulary has 264");
    check(Architecture::Qwen2, "config.json", "/num_key_value_heads", Value::Null, "is missing");
}

#[test]
fn what_we_cannot_compute_is_refused() {
    config("/model_type", json!("gpt_neox"), "model_type: \"gpt_neox\" is not supported");
    config("/hidden_act", json!("gelu"), "hidden_act: \"gelu\" is not supported");
    config("/mlp_bias", json!(true), "mlp_bias: biases in the MLP");
    config("/attention_bias", json!(true), "attention_bias: a bias on the output projection");
    config("/partial_rotary_factor", json!(0.5), "partial_rotary_factor");
    config("/quantization_config", json!({"quant_method": "gptq"}), "gptq is not supported");
    for kind in ["yarn", "dynamic", "longrope"] {
        let expected = format!("rope_type: {kind:?} is not supported");
        config("/rope_scaling", json!({"rope_type": kind, "factor": 4.0}), &expected);
        config("/rope_parameters", json!({"rope_type": kind, "rope_theta": 1e4}), &expected);
    }
    config("/rope_scaling", json!({"type": "linear"}), "rope_scaling.factor: is missing");
    let llama3 = json!({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 4.0,
                        "high_freq_factor": 1.0, "original_max_position_embeddings": 64});
    config("/rope_scaling", llama3, "high_freq_factor - low_freq_factor: is -3");
    let check = |pointer, value, expected| {
        check(Architecture::Qwen3, "config.json", pointer, value, expected);
    };
    check("/attention_bias", json!(true), "attention_bias");
    check("/layer_types", json!(["full_attention", "sliding_attention"]), "layer_types");
}

#[test]
fn a_window_as_long_as_the_context_is_none() {
    let scratch = good(Architecture::Llama);
    let path = scratch.path().join("config.json");
    let mut json: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    json["model_type"] = "mistral".into();
    json["max_position_embeddings"] = 8192.into();
    let mut open = |changes: &[(&str, Value)]| {
        for (field, value) in changes {
            json[*field] = value.clone();
        }
        scratch.write("config.json", json.to_string().as_bytes());
        scratch.open("").map(|model| model.config.max_position)
    };
    let refused = "config.json: sliding_window: a window of 4096 in a context of 8192";
    // Absent means 4096 for Mistral.
    assert!(open(&[]).unwrap_err().starts_with(refused));
    assert!(open(&[("sliding_window", json!(4096))]).unwrap_err().starts_with(refused));
    assert_eq!(open(&[("sliding_window", json!(null))]), Ok(8192));
    assert_eq!(open(&[("sliding_window", json!(8192))]), Ok(8192));
    let qwen = [("model_type", json!("qwen2")), ("sliding_window", json!(4096))];
    assert!(!open(&qwen).is_err_and(|error| error.starts_with(refused)));
    assert!(open(&[("use_sliding_window", json!(true))]).unwrap_err().starts_with(refused));
}

#[test]
fn wrong_tokenizers_are_named() {
    let check = |pointer: &str, value: Value, expected: &str| {
        check(Architecture::Llama, "tokenizer.json", pointer, value, expected);
    };
    check("/model/type", json!("Unigram"), "model.type: \"Unigram\" is not supported");
    check("/model/dropout", json!(0.1), "model.dropout");
    check("/model/unk_token", json!("<unk>"), "model.unk_token: \"<unk>\" is not in the vocab");
    check("/model/continuing_subword_prefix", json!("##"), "model.continuing_subword_prefix");
    check("/model/merges", json!([["t", "toolongforanytoken"]]), "longer than any token");
    check("/model/merges", json!(["t z"]), "tokenizer: ");
    check("/model/merges", json!(17), "line 1 column ");
    check("/model", Value::Null, "missing field `model`");
    check("/model/vocab/a", json!(264), "\"a\" has the id 264, the model has 264 rows");
    check("/model/vocab/a", json!(u32::MAX), "has the id 4294967295");
    check("/added_tokens/0/id", json!(300), "\"<|begin|>\" has the id 300, but is token 262");
    let roberta = json!({"type": "RobertaProcessing", "sep": ["a", 64], "cls": ["b", 65],
                         "trim_offsets": true, "add_prefix_space": true});
    check("/post_processor", roberta, "post_processor: RobertaProcessing is not supported");
    let template = |id: u32| {
        json!({"type": "TemplateProcessing", "pair": [],
               "single": [{"SpecialToken": {"id": "<|begin|>", "type_id": 0}},
                          {"Sequence": {"id": "A", "type_id": 0}}],
               "special_tokens": {"<|begin|>": {"id": "<|begin|>", "ids": [id],
                                                "tokens": ["<|begin|>"]}}})
    };
    check("/post_processor", template(999), "adds the token 999");
    let scratch = good(Architecture::Llama);
    let path = scratch.path().join("tokenizer.json");
    let mut json: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    json["post_processor"] = template(262);
    json["truncation"] = json!({"direction": "Right", "max_length": 2, "stride": 0,
                                "strategy": "LongestFirst"});
    scratch.write("tokenizer.json", json.to_string().as_bytes());
    let tokenizer = scratch.open("").unwrap().tokenizer;
    assert_eq!(tokenizer.encode("th", true), [262, 256]);
    assert_eq!(tokenizer.encode("abcd", false).len(), 4, "nothing is cut off");
}

#[test]
fn missing_files_are_named() {
    for (file, expected) in [
        ("model.safetensors", "no weights: neither model.safetensors nor"),
        ("tokenizer.json", "tokenizer.json: not there"),
        ("config.json", "neither a config.json nor a .gguf file"),
    ] {
        let scratch = good(Architecture::Llama);
        std::fs::remove_file(scratch.path().join(file)).unwrap();
        let error = sluice_models::open(scratch.path().to_str().unwrap()).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
    for file in ["config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json"]
    {
        for text in [&b""[..], b"{", b"17", b"{\"a\": NaN}", b"\xFF\xFE", b"{}}"] {
            let scratch = good(Architecture::Llama);
            scratch.write(file, text);
            assert!(error_of(&scratch).unwrap().starts_with(file));
        }
    }
}

#[test]
fn broken_weights_are_named() {
    let scratch = good(Architecture::Llama);
    let bytes = std::fs::read(scratch.path().join("model.safetensors")).unwrap();
    let check = |bytes: &[u8], expected: &str| {
        scratch.write("model.safetensors", bytes);
        let error = error_of(&scratch).unwrap();
        assert!(error.contains(expected), "expected {expected:?} in {error}");
    };
    without_huge_allocations(|| {
        for len in [u64::MAX, 1 << 40, 99_999_999, 3] {
            check(&[&len.to_le_bytes(), &bytes[8..]].concat(), "model.safetensors: header: ");
        }
        let text = String::from_utf8_lossy(&bytes).into_owned();
        assert!(text.contains("[264,64]"));
        let replaced = |from: &str, to: &str| {
            let at = bytes.windows(from.len()).position(|w| w == from.as_bytes()).unwrap();
            [&bytes[..at], to.as_bytes(), &bytes[at + from.len()..]].concat()
        };
        check(&replaced("[264,64]", "[64,264]"), "has the shape [64, 264]");
        check(&replaced("[264,64]", "[9e9,64]"), "header: ");
        check(&replaced("\"dtype\":\"F32\"", "\"dtype\":\"I32\""), "is stored as I32");
        check(&replaced("mlp.up_proj", "mlp.xp_proj"), "mlp.up_proj.weight: is missing");
    });
    for cut in (0..9_000).step_by(31).chain((9_000..bytes.len()).step_by(4_999)) {
        check(&bytes[..cut], "model.safetensors: ");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    #[test]
    fn bytes_changed_in_any_file_never_panic(
        file in prop::sample::select(vec!["config.json", "tokenizer.json", "model.safetensors"]),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
    ) {
        let scratch = good(Architecture::Qwen2);
        let mut bytes = std::fs::read(scratch.path().join(file)).unwrap();
        let header = bytes.len().min(8_000);
        for (at, value) in changes {
            bytes[at.index(header)] = value;
        }
        scratch.write(file, &bytes);
        // It may still be a valid model; it must only never panic, and errors are one line.
        drop(error_of(&scratch));
    }
}
