//! From a plan to the runner and back: the memory that a step needs, kept from step to step.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

use models::{Chunk, Logits, ModelRunner, RunnerError};
use scheduler::{Scheduler, StepPlan};

use crate::sequence::Sequence;

/// Working memory of a step.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    tokens: Vec<u32>,
    logits: Vec<f32>,
}

impl Batch {
    /// Runs the plan. Afterwards [`Batch::rows`] has a row for each chunk that is sampled.
    ///
    /// A panic in the runner, and a wrong number of rows, are failures of this step.
    pub(crate) fn run<'a>(
        &mut self,
        runner: &mut dyn ModelRunner,
        scheduler: &Scheduler,
        plan: &StepPlan,
        sequence: impl Fn(scheduler::SeqId) -> &'a Sequence,
    ) -> Result<(), RunnerError> {
        self.tokens.clear();
        for chunk in &plan.chunks {
            sequence(chunk.seq).copy_tokens(chunk.start, chunk.len, &mut self.tokens);
        }
        let mut rest = self.tokens.as_slice();
        let mut chunks = Vec::with_capacity(plan.chunks.len());
        for chunk in &plan.chunks {
            let (tokens, after) = rest.split_at(chunk.len as usize);
            rest = after;
            chunks.push(Chunk {
                tokens,
                start: chunk.start,
                blocks: scheduler.blocks(chunk.seq),
                logits: if chunk.sample { Logits::Last } else { Logits::None },
            });
        }
        let logits = &mut self.logits;
        catch_unwind(AssertUnwindSafe(|| runner.run(&chunks, logits)))
            .unwrap_or_else(|panic| Err(RunnerError::Step(panic_message(&*panic))))?;
        let rows = plan.chunks.iter().filter(|chunk| chunk.sample).count();
        let expected = rows * runner.limits().vocab_size as usize;
        if self.logits.len() != expected {
            let found = self.logits.len();
            return Err(RunnerError::Step(format!("{found} logits came, {expected} were wanted")));
        }
        Ok(())
    }

    /// The logits of the sampled chunks, in the order of the plan.
    pub(crate) fn rows(&mut self, vocab_size: u32) -> impl Iterator<Item = &mut [f32]> {
        self.logits.chunks_exact_mut(vocab_size as usize)
    }
}

/// What a panic said.
pub(crate) fn panic_message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    format!("panic: {}", text.unwrap_or("of an unknown kind"))
}
