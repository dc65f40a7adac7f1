//! Tokenizers rebuilt from vocabularies: SentencePiece, and the named ways to split text.

use std::sync::LazyLock;

use proptest::prelude::*;
use serde_json::json;
use sluice_models::testing::Gguf;
use sluice_models::{Architecture, TensorType, Tokenizer};

use super::{Scratch, tiny};

fn open(spoil: impl FnOnce(&mut Gguf)) -> Result<Tokenizer, String> {
    let scratch = Scratch::new();
    let mut gguf = tiny(Architecture::Llama, TensorType::F32).gguf();
    spoil(&mut gguf);
    scratch.write("m.gguf", &gguf.bytes());
    let checkpoint = sluice_models::Checkpoint::open_gguf(&scratch.path().join("m.gguf")).unwrap();
    Tokenizer::from_gguf(&checkpoint).map_err(|error| error.to_string())
}

/// `<unk>`, `<s>`, `</s>`, the 256 bytes, then pieces with falling scores.
fn sentence_piece(gguf: &mut Gguf, pieces: &[&str]) {
    let mut tokens: Vec<String> = ["<unk>", "<s>", "</s>"].map(str::to_owned).to_vec();
    tokens.extend((0..256).map(|byte| format!("<0x{byte:02X}>")));
    tokens.extend(pieces.iter().map(|piece| (*piece).to_owned()));
    let mut types = vec![1; tokens.len()];
    types[0] = 2;
    types[1..3].fill(3);
    types[3..259].fill(6);
    let scores: Vec<f32> = (0..tokens.len()).map(|id| -(id as f32)).collect();
    gguf.text("tokenizer.ggml.model", "llama")
        .texts("tokenizer.ggml.tokens", &tokens)
        .ints("tokenizer.ggml.token_type", &types)
        .floats("tokenizer.ggml.scores", &scores)
        .uint("tokenizer.ggml.unknown_token_id", 0)
        .uint("tokenizer.ggml.bos_token_id", 1)
        .uint("tokenizer.ggml.eos_token_id", 2);
}

/// Letters last: their scores never matter.
const PIECES: [&str; 14] = [
    "\u{2581}t",
    "he",
    "\u{2581}the",
    "re",
    "the",
    "\u{2581}there",
    "\u{2581}",
    "t",
    "h",
    "e",
    "r",
    "ab",
    "a",
    "b",
];

fn texts(tokenizer: &Tokenizer, text: &str) -> Vec<String> {
    let name = |id: &u32| String::from_utf8_lossy(tokenizer.token_bytes(*id).unwrap()).into_owned();
    tokenizer.encode(text, false).iter().map(name).collect()
}

#[test]
fn sentence_piece_merges_the_best_score_first() {
    let tokenizer = open(|gguf| sentence_piece(gguf, &PIECES)).unwrap();
    assert_eq!(texts(&tokenizer, "there"), [" there"]);
    // " t" + "he" joins before "he" + "re" could have a chance; "re" is worse than both.
    assert_eq!(texts(&tokenizer, "the re"), [" the", " ", "re"]);
    assert_eq!(texts(&tokenizer, "xthe ab"), [" ", "x", "the", " ", "ab"]);
    assert_eq!(tokenizer.encode("the", true), [1, 261], "BOS is added by default");
    // After a special token the text gets its space again, as in llama.cpp.
    assert_eq!(tokenizer.encode("<s>the</s>", false), [1, 261, 2]);
}

#[test]
fn sentence_piece_obeys_the_settings_of_the_file() {
    let tokenizer = open(|gguf| sentence_piece(gguf, &PIECES)).unwrap();
    assert_eq!(tokenizer.decode(&[1, 3 + 0xE2, 2], true), "\u{FFFD}");
    assert!(tokenizer.is_special(0) && tokenizer.is_special(2) && !tokenizer.is_special(3));
    let plain = open(|gguf| {
        sentence_piece(gguf, &PIECES);
        gguf.boolean("tokenizer.ggml.add_space_prefix", false);
        gguf.boolean("tokenizer.ggml.add_bos_token", false);
        gguf.boolean("tokenizer.ggml.add_eos_token", true);
    });
    let plain = plain.unwrap();
    assert_eq!(plain.encode("the", true), [263, 2]);
    assert_eq!(plain.decode(&plain.encode(" the", false), false), " the");
}

#[test]
fn runs_of_equal_scores_merge_from_the_left() {
    let space = "\u{2581}";
    let runs: Vec<String> = (1..=4).map(|n| space.repeat(n)).collect();
    let tokenizer = open(|gguf| {
        let pieces: Vec<&str> = runs.iter().map(String::as_str).chain(["a", " a"]).collect();
        sentence_piece(gguf, &pieces);
        gguf.floats("tokenizer.ggml.scores", &[-1e9; 259 + 6]);
    });
    let tokenizer = tokenizer.unwrap();
    assert_eq!(texts(&tokenizer, "   a"), ["    ", "a"]);
    assert_eq!(texts(&tokenizer, "      a"), ["    ", "   ", "a"]);
}

#[test]
fn sentence_piece_scores_must_fit() {
    let error = |scores: &[f32]| {
        open(|gguf| {
            sentence_piece(gguf, &PIECES);
            gguf.floats("tokenizer.ggml.scores", scores);
        })
        .unwrap_err()
    };
    assert!(error(&[0.0; 9]).contains("scores: has 9 entries for 273 tokens"));
    assert!(error(&[f32::NAN; 273]).contains("an entry that is not a number"));
}

#[test]
fn each_model_splits_numbers_in_its_own_way() {
    // With merges of digits in the vocabulary, what is not split apart is merged.
    let split = |pre: &str, text: &str| {
        let tokenizer = open(|gguf| {
            let mut tokens: Vec<String> =
                ('\0'..='~').filter(char::is_ascii_graphic).map(String::from).collect();
            tokens.extend(
                ["\u{120}", "\u{10A}", "12", "123", "1234", "\u{120}a", "!!"].map(String::from),
            );
            gguf.text("tokenizer.ggml.pre", pre)
                .ints("tokenizer.ggml.token_type", &vec![1; tokens.len()])
                .texts("tokenizer.ggml.tokens", &tokens)
                .texts("tokenizer.ggml.merges", &["1 2", "12 3", "123 4", "\u{120} a", "! !"])
                .uint("tokenizer.ggml.bos_token_id", 0);
        });
        texts(&tokenizer.unwrap(), text).join("|")
    };
    assert_eq!(split("gpt-2", "1234 a"), "1234| a");
    assert_eq!(split("smollm", "1234 a"), "1|2|3|4| a");
    assert_eq!(split("qwen2", "1234 a"), "1|2|3|4| a");
    assert_eq!(split("llama-bpe", "1234 a"), "123|4| a");
    assert_eq!(split("tekken", "1234 a"), "1|2|3|4| a");
    assert_eq!(split("gpt-2", "!!\n"), "!!|\n");
    assert_eq!(split("qwen2", "!!\na"), "!!|\n|a");
}

#[test]
fn bos_follows_the_file_and_then_the_family() {
    let bos = |pre: &str, add: Option<bool>| {
        let tokenizer = open(|gguf| {
            gguf.text("tokenizer.ggml.pre", pre);
            if let Some(add) = add {
                gguf.boolean("tokenizer.ggml.add_bos_token", add);
            }
        });
        tokenizer.unwrap().encode("a", true).len() == 2
    };
    assert!(bos("llama-bpe", None) && bos("gpt-2", Some(true)));
    assert!(!bos("gpt-2", None) && !bos("llama-bpe", Some(false)));
    let error = open(|gguf| {
        gguf.boolean("tokenizer.ggml.add_bos_token", true).remove("tokenizer.ggml.bos_token_id");
    });
    assert!(error.unwrap_err().contains("tokenizer.ggml.bos_token_id: is missing"));
}

#[test]
fn sentence_piece_from_tokenizer_json() {
    let scratch = Scratch::new();
    let file = json!({
        "version": "1.0", "truncation": null, "padding": null, "pre_tokenizer": null,
        "added_tokens": [{"id": 0, "content": "<s>", "special": true, "normalized": false,
                          "single_word": false, "lstrip": false, "rstrip": false}],
        "normalizer": {"type": "Sequence", "normalizers": [
            {"type": "Prepend", "prepend": "\u{2581}"},
            {"type": "Replace", "pattern": {"String": " "}, "content": "\u{2581}"}]},
        "post_processor": {"type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}},
                       {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [], "special_tokens": {"<s>": {"id": "<s>", "ids": [0], "tokens": ["<s>"]}}},
        "decoder": {"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "\u{2581}"}, "content": " "},
            {"type": "ByteFallback"}, {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
        "model": {"type": "BPE", "unk_token": null, "byte_fallback": true, "fuse_unk": true,
                  "vocab": {"<s>": 0, "\u{2581}": 1, "a": 2, "\u{2581}a": 3, "<0xC3>": 4,
                            "<0xA9>": 5},
                  "merges": ["\u{2581} a"]},
    });
    let path = scratch.write("tokenizer.json", file.to_string().as_bytes());
    let tokenizer = Tokenizer::from_file(&path, 64).unwrap();
    assert_eq!(tokenizer.encode("a \u{e9}", true), [0, 3, 1, 4, 5]);
    assert_eq!(tokenizer.decode(&[0, 3, 1, 4, 5], true), "a \u{e9}");
    assert_eq!(tokenizer.vocab_size(), 6);
    assert_eq!(tokenizer.special_token("<s>"), Some(0));
}

#[test]
fn bytes_are_tokens_without_a_model() {
    let tokenizer = Tokenizer::bytes();
    assert_eq!(tokenizer.vocab_size(), 257);
    let text = "h\u{e9}";
    assert_eq!(tokenizer.encode(text, true), [104, 0xC3, 0xA9]);
    assert_eq!(tokenizer.decode(&[104, 0xC3, 0xA9, 256], true), text);
    assert_eq!(tokenizer.decode(&[104, 0xC3], true), "h\u{FFFD}");
    assert!(tokenizer.is_special(256) && tokenizer.token_bytes(257).is_none());
}

static SENTENCE_PIECE: LazyLock<Tokenizer> =
    LazyLock::new(|| open(|gguf| sentence_piece(gguf, &PIECES)).unwrap());
static BYTE_LEVEL: LazyLock<[Tokenizer; 3]> = LazyLock::new(|| {
    ["gpt-2", "smollm", "tekken"].map(|pre| {
        let tokenizer = open(|gguf| {
            gguf.text("tokenizer.ggml.pre", pre);
        });
        tokenizer.unwrap()
    })
});

proptest! {
    #[test]
    fn any_text_survives(text in "[\u{0}-\u{2580}\u{2582}-\u{10FFFF}]{0,40}|[a-h \n]{0,60}") {
        for tokenizer in BYTE_LEVEL.iter().chain([&*SENTENCE_PIECE]) {
            let ids = tokenizer.encode(&text, false);
            prop_assert_eq!(&tokenizer.decode(&ids, false), &text);
            // Token by token it is the same bytes, but for SentencePiece's first space.
            let bytes = ids.iter().filter_map(|id| tokenizer.token_bytes(*id)).flatten();
            let joined = String::from_utf8(bytes.copied().collect()).unwrap();
            prop_assert!(joined.ends_with(&text) && joined.len() <= text.len() + 1);
        }
    }
}
