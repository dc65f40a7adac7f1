//! Broken GGUF files end in one line that names file and field.

use proptest::prelude::*;
use sluice_models::testing::Gguf;
use sluice_models::{Architecture, TensorType};

use super::{Scratch, tiny, touch_weights, without_huge_allocations};

fn good() -> Gguf {
    tiny(Architecture::Llama, TensorType::Q4_1).gguf()
}

/// What opening the file, and then reading every tensor, says.
fn error_of(bytes: &[u8]) -> Option<String> {
    let scratch = Scratch::new();
    scratch.write("m.gguf", bytes);
    match scratch.open("m.gguf") {
        Err(error) => Some(error),
        Ok(model) => touch_weights(&model)
            .err()
            .map(|error| error[scratch.path().to_str().unwrap().len() + 1..].to_owned()),
    }
}

fn check(spoil: impl FnOnce(&mut Gguf) -> &mut Gguf, expected: &str) {
    let mut gguf = good();
    spoil(&mut gguf);
    let error = error_of(&gguf.bytes()).expect(expected);
    assert!(error.contains(expected), "expected {expected:?} in: {error}");
    assert!(error.starts_with("m.gguf: "), "{error}");
}

/// Replaces the first `from` in the file.
fn patched(from: &[u8], to: &[u8]) -> Vec<u8> {
    let mut bytes = good().bytes();
    let at = bytes.windows(from.len()).position(|window| window == from).unwrap();
    bytes[at..at + to.len()].copy_from_slice(to);
    bytes
}

#[test]
fn the_good_file_is_good() {
    assert_eq!(error_of(&good().bytes()), None);
}

#[test]
fn wrong_metadata_is_named() {
    let cases: &[(&str, &str)] = &[
        ("llama.embedding_length", "llama.embedding_length: is missing"),
        ("llama.feed_forward_length", "llama.feed_forward_length: is missing"),
        ("llama.block_count", "llama.block_count: is missing"),
        ("llama.attention.head_count", "llama.attention.head_count: is missing"),
        ("llama.context_length", "llama.context_length: is missing"),
        ("llama.attention.layer_norm_rms_epsilon", "rms_epsilon: is missing"),
        ("general.architecture", "general.architecture: is missing"),
        ("tokenizer.ggml.tokens", "tokenizer.ggml.tokens: is missing"),
        ("tokenizer.ggml.token_type", "tokenizer.ggml.token_type: is missing"),
        ("tokenizer.ggml.merges", "tokenizer.ggml.merges: is missing"),
        ("tokenizer.ggml.model", "tokenizer.ggml.model: is missing"),
        ("tokenizer.ggml.pre", "tokenizer.ggml.pre: is missing"),
    ];
    for (key, expected) in cases {
        check(|gguf| gguf.remove(key), expected);
        check(|gguf| gguf.boolean(key, true), key);
    }
}

#[test]
fn impossible_sizes_are_named() {
    let cases: &[(&str, u32, &str)] = &[
        ("llama.embedding_length", 0, "hidden_size: is 0"),
        ("llama.embedding_length", u32::MAX, "hidden_size: is 4294967295"),
        ("llama.embedding_length", 32, "has the shape [264, 64]"),
        ("llama.feed_forward_length", 128, "has the shape [96, 64]"),
        ("llama.block_count", 3, "tensor blk.2.attn_norm.weight: is missing"),
        ("llama.block_count", 1 << 30, "num_hidden_layers: is 1073741824"),
        ("llama.attention.head_count", 0, "num_attention_heads: is 0"),
        ("llama.attention.head_count_kv", 3, "num_key_value_heads: 3 does not divide 4"),
        ("llama.attention.key_length", 15, "rope.dimension_count: 16 with heads of 15"),
        ("llama.rope.dimension_count", 8, "8 with heads of 16 is not supported"),
        ("llama.context_length", 0, "max_position_embeddings: is 0"),
        ("llama.vocab_size", 300, "llama.vocab_size: is 300"),
        ("llama.expert_count", 8, "mixtures of experts are not supported"),
        ("llama.attention.sliding_window", 128, "a sliding window of 128 in 256"),
        ("split.count", 2, "join them with llama-gguf-split --merge"),
        ("general.alignment", 0, "general.alignment: is not a power of two"),
        ("general.alignment", 48, "general.alignment: is not a power of two"),
        ("tokenizer.ggml.eos_token_id", 264, "eos_token_id: is 264, the vocabulary has 264"),
        ("tokenizer.ggml.bos_token_id", 9999, "bos_token_id: is 9999"),
    ];
    without_huge_allocations(|| {
        for (key, value, expected) in cases {
            check(|gguf| gguf.uint(key, *value), expected);
        }
        check(|gguf| gguf.raw("llama.block_count", 10, &[255; 8]), "is 18446744073709551615");
        check(|gguf| gguf.raw("llama.block_count", 5, &[255; 4]), "a non-negative integer");
    });
}

#[test]
fn numbers_that_are_none_are_named() {
    for value in [f32::NAN, f32::INFINITY, 0.0, -1.0] {
        let key = "llama.attention.layer_norm_rms_epsilon";
        check(|gguf| gguf.float(key, value), "rms_norm_eps: is ");
        check(|gguf| gguf.float("llama.rope.freq_base", value), "rope_theta: is ");
        let factors: Vec<u8> = [value; 8].iter().flat_map(|f| f.to_le_bytes()).collect();
        check(|gguf| gguf.raw_tensor("rope_freqs.weight", &[8], 0, factors), "rope_freqs");
    }
    check(|gguf| gguf.text("llama.rope.scaling.type", "linear"), "factor: is missing");
    check(|gguf| gguf.text("llama.rope.scaling.type", "yarn"), "\"yarn\" is not supported");
}

#[test]
fn wrong_tensors_are_named() {
    let name = "blk.1.ffn_up.weight";
    check(|gguf| gguf.remove_tensor(name), "tensor blk.1.ffn_up.weight: is missing");
    check(|gguf| gguf.raw_tensor(name, &[96, 64], 3, vec![0; 4000]), "has the shape [64, 96]");
    check(|gguf| gguf.raw_tensor(name, &[64, 96, 1], 3, vec![0; 4000]), "has the shape [1,");
    check(|gguf| gguf.raw_tensor(name, &[64, 96], 23, vec![0; 4000]), "stored as IQ4_XS");
    check(|gguf| gguf.raw_tensor(name, &[64, 96], 99, vec![]), "the unknown type 99");
    check(|gguf| gguf.raw_tensor(name, &[0, 96], 3, vec![]), "has the sizes [0, 96]");
    check(|gguf| gguf.raw_tensor(name, &[65, 96], 3, vec![]), "which Q4_1 cannot have");
    check(|gguf| gguf.raw_tensor(name, &[u64::MAX, 2], 0, vec![]), "cannot have");
    check(|gguf| gguf.raw_tensor(name, &[32, u64::MAX], 3, vec![]), "cannot have");
    check(|gguf| gguf.raw_tensor(name, &[32, 1 << 50], 3, vec![]), "past the end");
    check(|gguf| gguf.raw_tensor(name, &[], 3, vec![]), "has 0 dimensions");
    check(|gguf| gguf.raw_tensor(name, &[32; 5], 3, vec![]), "has 5 dimensions");
    check(|gguf| gguf.raw_tensor("", &[32], 3, vec![]), "has a name of 0 bytes");
}

#[test]
fn vocabularies_that_do_not_fit_are_named() {
    let tokens = |n: usize| -> Vec<String> { (0..n).map(|i| format!("t{i}")).collect() };
    check(
        |gguf| gguf.texts("tokenizer.ggml.tokens", &tokens(10)),
        "token_type: has 264 entries, tokenizer.ggml.tokens has 10",
    );
    check(
        |gguf| {
            gguf.texts("tokenizer.ggml.tokens", &tokens(9))
                .ints("tokenizer.ggml.token_type", &[1; 9]);
            gguf.texts::<&str>("tokenizer.ggml.merges", &[])
        },
        "_token_id: is 263, the vocabulary has 9",
    );
    for merges in [&["th"][..], &["t q q"], &["zz z"], &[""], &[" "]] {
        check(|gguf| gguf.texts("tokenizer.ggml.merges", merges), "tokenizer.ggml.merges: ");
    }
    check(|gguf| gguf.text("tokenizer.ggml.pre", "chameleon"), "\"chameleon\" is not supported");
    check(|gguf| gguf.text("tokenizer.ggml.model", "bert"), "\"bert\" is not supported");
    check(|gguf| gguf.text("tokenizer.chat_template", "a\n{% if %}"), "line 2");
}

#[test]
fn claims_beyond_the_file_cost_nothing() {
    let max = u64::MAX.to_le_bytes();
    let key = "tokenizer.ggml.token_type";
    let at = |bytes: &[u8]| bytes.windows(key.len()).position(|w| w == key.as_bytes()).unwrap();
    without_huge_allocations(|| {
        for (offset, field) in [(8, "claims 18446744073709551615 tensors"), (16, "metadata pairs")]
        {
            let mut bytes = good().bytes();
            bytes[offset..offset + 8].copy_from_slice(&max);
            assert!(error_of(&bytes).unwrap().contains(field));
        }
        for count in [u64::MAX, 1 << 40, 1 << 20] {
            let mut bytes = good().bytes();
            let count_at = at(&bytes) + key.len() + 8;
            bytes[count_at..count_at + 8].copy_from_slice(&count.to_le_bytes());
            let error = error_of(&bytes).unwrap();
            assert!(error.contains("metadata tokenizer.ggml.token_type: needs "), "{error}");
            // The same claim about strings, and a key that long.
            bytes[count_at - 4..count_at].copy_from_slice(&8_u32.to_le_bytes());
            let error = error_of(&bytes).unwrap();
            assert!(error.contains("token_type: "), "{error}");
            let mut bytes = good().bytes();
            let length_at = at(&bytes) - 8;
            bytes[length_at..length_at + 8].copy_from_slice(&count.to_le_bytes());
            assert!(error_of(&bytes).unwrap().contains("metadata pair "));
        }
    });
}

#[test]
fn other_files_are_recognised() {
    let cases: &[(&[u8], &str)] = &[
        (b"", ""),
        (b"GGUF", "header: needs 4 bytes at offset 4, the file has 0 left"),
        (b"PK\x03\x04 some zip file", "header: is not that of a GGUF file"),
        (b"GGUF\x01\0\0\0 old", "GGUF version 1 is not supported"),
        (b"GGUF\0\0\0\x03 big", "big-endian files are not supported"),
    ];
    for (bytes, expected) in cases {
        assert!(error_of(bytes).unwrap().contains(expected), "{expected}");
    }
    let twice = patched(b"llama.block_count", b"llama.vocab_count");
    assert!(error_of(&twice).unwrap().contains("llama.block_count: is missing"));
    let again = patched(b"tokenizer.ggml.model", b"general.architecture");
    assert!(error_of(&again).unwrap().contains("general.architecture: appears twice"));
    let tensor_again = patched(b"blk.0.attn_q.weight", b"blk.0.attn_k.weight");
    assert!(error_of(&tensor_again).unwrap().contains("blk.0.attn_k.weight: appears twice"));
    let not_text = patched(b"blk.0.attn_q.weight", b"blk.0.\xFF");
    assert!(error_of(&not_text).unwrap().contains("a name that is not UTF-8"));
    let not_text = patched(b"tokenizer.ggml.pre", b"tokenizer.ggml.pr\xFF");
    assert!(error_of(&not_text).unwrap().contains("a name that is not UTF-8"));
}

#[test]
fn a_file_cut_anywhere_is_an_error() {
    let bytes = good().bytes();
    let scratch = Scratch::new();
    // Every byte of the first pairs, then a sample; the last tensor ends with the file.
    for cut in
        (0..1_000).chain((1_000..12_000).step_by(7)).chain((12_000..bytes.len()).step_by(977))
    {
        let path = scratch.write("m.gguf", &bytes[..cut]);
        let error = sluice_models::Checkpoint::open_gguf(&path).unwrap_err().to_string();
        assert!(!error.contains('\n'), "{error}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]
    #[test]
    fn bytes_changed_in_the_header_never_panic(
        changes in prop::collection::vec((0_usize..12_000, any::<u8>()), 1..4),
    ) {
        let mut bytes = good().bytes();
        for (at, value) in changes {
            bytes[at] = value;
        }
        // It may still be a valid file; it must only never panic, and errors are one line.
        drop(error_of(&bytes));
    }
}
