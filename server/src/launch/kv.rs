//! The size of the KV pool and of the longest sequence, from what was asked for and what there is.

use anyhow::{bail, ensure};

/// Tokens per KV block.
pub(super) const BLOCK: u32 = 32;
/// Share of the memory left beside the weights that the pool takes unasked.
const SHARE: u64 = 4;
/// The longest context that is taken unasked: models that claim 128k tokens would otherwise fill
/// the pool with a single sequence.
const UNASKED_MODEL_LEN: u32 = 32_768;

/// What is known before the pool exists.
#[derive(Clone, Copy, Debug)]
pub(super) struct KvRequest {
    /// Bytes of one block.
    pub(super) block_bytes: u64,
    /// `--kv-cache-memory`.
    pub(super) asked_bytes: Option<u64>,
    /// Free memory, if it can be told.
    pub(super) available: Option<u64>,
    /// What the weights will take of it.
    pub(super) weights: u64,
    /// `--max-model-len`.
    pub(super) asked_len: Option<u32>,
    /// Longest context the model was made for.
    pub(super) model_len: u32,
    /// Most sequences in a step: more blocks than these can fill are of no use.
    pub(super) max_num_seqs: u32,
}

/// The pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct KvPlan {
    /// Blocks of [`BLOCK`] tokens.
    pub(super) num_blocks: u32,
    /// Longest sequence in tokens.
    pub(super) max_model_len: u32,
}

/// Decides.
///
/// # Errors
/// Not enough memory for the weights, or for one sequence of the length that was asked for; says
/// how much is missing and which flag helps.
pub(super) fn plan(request: &KvRequest) -> anyhow::Result<KvPlan> {
    if let Some(asked) = request.asked_len.filter(|asked| *asked > request.model_len) {
        bail!(
            "--max-model-len {asked} is more than the {} tokens this model was made for",
            request.model_len
        );
    }
    let left = match request.available {
        Some(available) => {
            ensure!(
                available > request.weights,
                "the weights need about {} of memory and only {} are free: stop other programs, \
                 or take a smaller or more quantised model",
                mib(request.weights),
                mib(available)
            );
            available - request.weights
        }
        None => u64::MAX,
    };
    if let Some(asked) = request.asked_bytes.filter(|asked| *asked > left) {
        bail!(
            "--kv-cache-memory {} does not fit beside the weights: {} are free",
            mib(asked),
            mib(left)
        );
    }
    let longest = request.asked_len.unwrap_or(request.model_len.min(UNASKED_MODEL_LEN));
    let budget = request.asked_bytes.unwrap_or(left / SHARE);
    let affordable = u32::try_from(budget / request.block_bytes.max(1)).unwrap_or(u32::MAX);
    let useful = longest.div_ceil(BLOCK).saturating_mul(request.max_num_seqs);
    let num_blocks =
        if request.asked_bytes.is_some() { affordable } else { affordable.min(useful) };
    check_length(request, longest, num_blocks)?;
    let max_model_len = longest.min(num_blocks.saturating_mul(BLOCK));
    Ok(KvPlan { num_blocks, max_model_len })
}

/// One sequence of the asked length, or at least a short one, must fit.
fn check_length(request: &KvRequest, longest: u32, num_blocks: u32) -> anyhow::Result<()> {
    let needed = if request.asked_len.is_some() { longest.div_ceil(BLOCK) } else { 2 };
    let bytes = |blocks: u32| mib(u64::from(blocks) * request.block_bytes);
    ensure!(
        num_blocks >= needed,
        "a sequence of {} tokens needs {} of KV cache, there are {}: raise --kv-cache-memory, \
         lower --max-model-len, or stop other programs",
        needed * BLOCK,
        bytes(needed),
        bytes(num_blocks)
    );
    Ok(())
}

/// For people: whole MiB.
#[must_use]
pub(super) fn mib(bytes: u64) -> String {
    format!("{} MiB", bytes.div_ceil(1 << 20))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn request() -> KvRequest {
        KvRequest {
            block_bytes: MIB,
            asked_bytes: None,
            available: Some(1_100 * MIB),
            weights: 100 * MIB,
            asked_len: None,
            model_len: 8_192,
            max_num_seqs: 32,
        }
    }

    #[test]
    fn unasked_it_takes_a_quarter_of_what_is_left_but_no_more_than_can_be_used() {
        let plan_of = |request| plan(&request).expect("fits");
        assert_eq!(plan_of(request()), KvPlan { num_blocks: 250, max_model_len: 8_000 });
        let short = KvRequest { asked_len: Some(64), max_num_seqs: 4, ..request() };
        assert_eq!(plan_of(short), KvPlan { num_blocks: 8, max_model_len: 64 });
        let asked = KvRequest { asked_bytes: Some(600 * MIB), ..request() };
        assert_eq!(plan_of(asked), KvPlan { num_blocks: 600, max_model_len: 8_192 });
        let untold = KvRequest { available: None, max_num_seqs: 2, ..request() };
        assert_eq!(plan_of(untold).num_blocks, 512);
    }

    #[test]
    fn what_does_not_fit_names_the_flag_that_helps() {
        let error = |request| plan(&request).unwrap_err().to_string();
        let weights = KvRequest { available: Some(50 * MIB), ..request() };
        assert!(error(weights).contains("quantised"));
        let pool = KvRequest { asked_bytes: Some(2_000 * MIB), ..request() };
        assert!(error(pool).contains("--kv-cache-memory"));
        let length = KvRequest { asked_bytes: Some(MIB), asked_len: Some(8_192), ..request() };
        assert!(error(length).contains("--max-model-len"));
        let beyond = KvRequest { asked_len: Some(9_000), ..request() };
        assert!(error(beyond).contains("8192"));
    }
}
