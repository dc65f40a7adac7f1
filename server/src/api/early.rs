//! Refusing before the prompt is tokenised: by what a text's bytes say of its tokens at least.

use std::time::Instant;

use engine::{Outline, Refusal};

use super::admit;
use super::call::Call;
use super::prepare::SharedFields;
use crate::error::ApiError;
use crate::journal::Asked;
use crate::state::Service;

/// Lets a request go on to be tokenised, unless it would be refused whatever its tokens are.
/// `prompts` are the tokens that each of its prompts has at least.
///
/// # Errors
/// The refusal, counted and noted; or a target or a number of choices that makes no sense.
pub fn check(
    service: &Service,
    call: &Call,
    shared: &SharedFields,
    prompts: &[u32],
) -> Result<(), ApiError> {
    let Call { terms, arrival, .. } = *call;
    let common = &shared.common;
    let class = shared.class;
    let slo = service.engine.slo(terms.tenant, class);
    let streaming = common.streaming()?.is_some();
    let targets = common.slo.unwrap_or_default();
    let outline = Outline {
        class,
        tenant: terms.tenant,
        arrival,
        deadline: terms.deadline(&targets, streaming, arrival, &slo)?,
        retry: terms.retry,
        origin: terms.origin,
        prompts,
        n: common.choices(prompts.len())?,
    };
    let began = Instant::now();
    let Some(shed) = service.engine.refuse_early(&outline) else { return Ok(()) };
    let asked = Asked {
        name: call.name.as_str().into(),
        class,
        tenant: terms.tenant,
        retry: terms.retry,
        prompt_tokens: prompts.iter().fold(0, |sum, tokens| sum.saturating_add(*tokens)),
        max_tokens: None,
    };
    Err(admit::refuse(service, &asked, began.elapsed(), Refusal::Shed(shed)))
}
