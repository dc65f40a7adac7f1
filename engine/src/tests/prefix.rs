//! What is found in the prefix cache is what would have been computed: the same answers, bit for
//! bit, with and without it.

use std::collections::BTreeSet;
use std::sync::Arc;

use kernels::KvDtype;
use models::cpu::{CpuOptions, CpuRunner, WeightType};
use models::testing::Tiny;
use models::{Architecture, TensorType};
use scheduler::{
    AdmissionMode, ClassConfig, ClassTable, CostModel, IsolationConfig, KindConfig, TenantTable,
};
use scheduler::{Micros, RetryConfig};

use super::rig::{Log, Rig, submission};
use crate::*;

const BLOCK: usize = 32;

/// Turns of each conversation; the longest one just fits the context.
const TURNS: u32 = 4;

/// So few that blocks are given up and sequences preempted.
const NUM_BLOCKS: u32 = 20;

/// A tiny model on the CPU runner.
fn engine(prefix_caching: bool) -> Handle {
    let tiny = Tiny {
        architecture: Architecture::Llama,
        dtype: TensorType::F32,
        tied_head: false,
        seed: 5,
    };
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("tiny.gguf");
    std::fs::write(&path, tiny.gguf().bytes()).expect("written");
    let model = models::open(&path.to_string_lossy()).expect("a model");
    let options = CpuOptions {
        threads: 1,
        weights: WeightType::Auto,
        kv_dtype: KvDtype::F16,
        num_blocks: NUM_BLOCKS,
        max_model_len: 256,
        max_batched_tokens: 64,
        max_chunks: 8,
    };
    let runner = CpuRunner::load(&model.config, &model.checkpoint, options, &mut |_, _| {});
    let class = ClassConfig { max_waiting: 100, ..ClassConfig::default() };
    let cost = CostModel {
        fixed_ns: 100_000,
        per_seq_ns: 10_000,
        per_context_token_ps: 0,
        per_prefill_token_ns: 10_000,
        per_prefill_span_ps: 0,
    };
    let config = Config {
        max_num_seqs: 6,
        max_num_batched_tokens: 48,
        classes: ClassTable([class; 2]),
        admission: AdmissionMode::None,
        tenants: TenantTable::default(),
        kinds: KindConfig::default(),
        isolation: IsolationConfig::default(),
        retries: RetryConfig::default(),
        policy: "deadline".into(),
        eos: vec![],
        prefix_caching,
        record: None,
        cost: Some(cost),
    };
    let observer: Arc<dyn Observer> = Arc::new(Log::default());
    start(Box::new(runner.expect("loads")), config, observer, &mut |_| {}).expect("starts")
}

/// Tokens and their log-probabilities, by choice.
type Said = Vec<Vec<(u32, u32, Vec<(u32, u32)>)>>;

/// Reads one answer; also how many tokens were found in the cache.
async fn read(mut stream: TokenStream, n: usize) -> (Said, u32) {
    let mut said = vec![Vec::new(); n];
    while let Some(update) = stream.recv().await {
        match update {
            Update::Token { choice, token, logprobs } => {
                let logprobs = logprobs.expect("asked for");
                let top = logprobs.top.iter().map(|(token, x)| (*token, x.to_bits())).collect();
                said[choice as usize].push((token, logprobs.chosen.to_bits(), top));
            }
            Update::Finished { .. } => {}
            Update::Cached(_) | Update::Expired | Update::Failed(_) => panic!("{update:?}"),
        }
    }
    (said, stream.cached_tokens())
}

/// What somebody says in turn `turn` of conversation `who`.
fn words(who: u32, turn: u32) -> impl Iterator<Item = u32> {
    (0..11 + who * 6 + turn).map(move |i| (i * 31 + who * 17 + turn * 5) % 250)
}

/// Five conversations of four turns, all at once turn by turn. They begin alike, and each turn
/// repeats what was said before, the answer included; some turns are answered twice.
fn converse(engine: &Handle) -> (Vec<Said>, Vec<Vec<u32>>, u32) {
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    let system: Vec<u32> = (0..40).map(|i| i * 13 % 250).collect();
    let mut texts = vec![system; 5];
    let (mut all, mut prompts, mut cached) = (Vec::new(), Vec::new(), 0);
    for turn in 0..TURNS {
        let mut streams = Vec::new();
        for (who, text) in (0..).zip(&mut texts) {
            text.extend(words(who, turn));
            let n = 1 + (who + turn) % 2;
            let sampling = SamplingParams {
                temperature: if who % 2 == 0 { 0.9 } else { 0.0 },
                max_tokens: 9 + 2 * who,
                seed: u64::from(who * 10 + turn),
                logprobs: Some(2),
                ..SamplingParams::default()
            };
            prompts.push(text.clone());
            let prompt = Prompt { tokens: text.clone().into(), n };
            let submission =
                Submission { prompts: vec![prompt], sampling, ..submission(&[1], 1, 1) };
            streams.push((n, engine.submit(submission).expect("admitted")));
        }
        for ((n, stream), text) in streams.into_iter().zip(&mut texts) {
            let (said, found) = runtime.block_on(read(stream, n as usize));
            text.extend(said[0].iter().map(|(token, ..)| *token));
            all.push(said);
            cached += found;
        }
    }
    (all, prompts, cached)
}

#[test]
fn answers_are_the_same_with_and_without_the_cache() {
    let (with, without) = (engine(true), engine(false));
    let (said, prompts, cached) = converse(&with);
    let (plain, _, none) = converse(&without);
    assert!(said == plain, "an answer differs");
    assert_eq!(none, 0);
    assert!(cached > 500, "{cached} tokens found");
    let blocks = |prompt: &Vec<u32>| {
        let ends = (1..=prompt.len() / BLOCK).map(|blocks| blocks * BLOCK);
        ends.map(|end| prompt[..end].to_vec()).collect::<Vec<_>>()
    };
    let distinct: BTreeSet<Vec<u32>> = prompts.iter().flat_map(blocks).collect();
    assert!(distinct.len() > NUM_BLOCKS as usize, "{} blocks were to be kept", distinct.len());
    let counts = [with, without].map(|engine| engine.snapshot().counts);
    assert!(counts.iter().all(|counts| counts.free_blocks == NUM_BLOCKS), "{counts:?}");
    assert!(counts[0].cached_blocks > 0 && counts[0].cache_hits > 500, "{counts:?}");
    assert_eq!((counts[1].cached_blocks, counts[1].cache_hits), (0, 0));
}

#[test]
fn who_has_another_salt_finds_nothing() {
    let rig = Rig::free();
    let found = |salt: Option<&str>| {
        let cache_salt = salt.map(Arc::from);
        let mut stream = rig.submit(Submission { cache_salt, ..submission(&[50, 33], 2, 3) });
        while rig.next(&mut stream).is_some() {}
        stream.cached_tokens()
    };
    // Of 50 and 33 tokens 48 and 32 fill blocks of 16. The two prompts begin alike.
    for salt in [None, Some("a"), Some("b"), Some("c")] {
        let first = found(salt);
        assert!(first <= 32, "{salt:?} found {first}");
        assert_eq!(found(salt), 48 + 32, "{salt:?}");
    }
    assert_eq!(rig.handle.snapshot().outstanding, [Micros(0); 2]);
}
