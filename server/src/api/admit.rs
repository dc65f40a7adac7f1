//! Asking the gate, and noting what it said: the one way by which requests enter.

use std::time::{Duration, Instant};

use engine::{Refusal, Submission, TokenStream};

use crate::error::ApiError;
use crate::journal::Asked;
use crate::state::Service;

/// Submits a request to the engine.
///
/// # Errors
/// The gate's refusal, counted and noted.
pub fn admit(service: &Service, submission: Submission) -> Result<TokenStream, ApiError> {
    let prompt_tokens: usize = submission.prompts.iter().map(|prompt| prompt.tokens.len()).sum();
    let asked = Asked {
        name: submission.name.clone(),
        class: submission.class,
        tenant: submission.tenant,
        retry: submission.retry,
        prompt_tokens: u32::try_from(prompt_tokens).unwrap_or(u32::MAX),
        max_tokens: Some(submission.sampling.max_tokens),
    };
    let began = Instant::now();
    match service.engine.submit(submission) {
        Ok(tokens) => {
            service.metrics.admission(asked.class, asked.retry, began.elapsed(), None);
            service.metrics.tenant(asked.tenant, false);
            Ok(tokens)
        }
        Err(refusal) => Err(refuse(service, &asked, began.elapsed(), refusal)),
    }
}

/// Counts a refusal and notes it in the journal.
pub fn refuse(service: &Service, asked: &Asked, took: Duration, refusal: Refusal) -> ApiError {
    service.metrics.admission(asked.class, asked.retry, took, Some(&refusal));
    service.metrics.tenant(asked.tenant, true);
    service.journal.refused(asked, &refusal);
    ApiError::Refused(refusal, service.overload)
}
