//! Offers load: a closed loop of slots, or a schedule of arrivals.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};

use crate::arrivals::{Arrival, MAX_ARRIVALS};
use crate::exchange::Target;
use crate::outcome::Record;

/// What a closed loop offers.
#[derive(Debug, Clone, Copy)]
pub struct ClosedLoop {
    /// How many requests are under way at any time.
    pub concurrency: u32,
    /// How many requests each slot sends, one after the other.
    pub per_slot: u32,
    /// Length of each prompt, in tokens.
    pub prompt_tokens: u32,
    /// Length of each answer, in tokens.
    pub max_tokens: u32,
}

/// Runs a closed loop to its end. A request's scheduled arrival is the moment its slot is free. A
/// slot that was refused sends its next request when it was told to.
///
/// # Errors
/// If a count is 0 or the run would exceed [`MAX_ARRIVALS`] requests.
pub async fn closed(target: Arc<Target>, shape: ClosedLoop, seed: u64) -> Result<Vec<Record>> {
    let total = u64::from(shape.concurrency) * u64::from(shape.per_slot);
    ensure!(total > 0, "concurrency and requests per slot must be at least 1");
    ensure!(total <= MAX_ARRIVALS as u64, "more than {MAX_ARRIVALS} requests in one run");
    let start = Instant::now();
    let mut slots = JoinSet::new();
    for slot in 0..u64::from(shape.concurrency) {
        let target = Arc::clone(&target);
        slots.spawn(async move {
            let mut records = Vec::new();
            for turn in 0..u64::from(shape.per_slot) {
                let now = Instant::now();
                let arrival = Arrival {
                    at: now.duration_since(start),
                    prompt_tokens: shape.prompt_tokens,
                    max_tokens: shape.max_tokens,
                };
                let number = turn * u64::from(shape.concurrency) + slot;
                let record = target.measure(now, arrival, request_seed(seed, number)).await;
                let told = record.retry_after.filter(|_| turn + 1 < u64::from(shape.per_slot));
                records.push(record);
                if let Some(seconds) = told {
                    sleep(Duration::from_secs(seconds.into())).await;
                }
            }
            records
        });
    }
    let mut records = Vec::new();
    while let Some(slot) = slots.join_next().await {
        records.extend(slot.context("a slot of the closed loop failed")?);
    }
    Ok(records)
}

/// Sends each request at its time, whatever became of those before, and waits for all to end.
///
/// # Errors
/// If a request's task fails, which is a fault of this program.
pub async fn open(target: Arc<Target>, arrivals: &[Arrival], seed: u64) -> Result<Vec<Record>> {
    // A little lead, so that the first arrivals are not late already.
    let start = Instant::now() + Duration::from_millis(50);
    let mut running = JoinSet::new();
    for (number, &arrival) in (0u64..).zip(arrivals) {
        let scheduled = start + arrival.at;
        sleep_until(scheduled).await;
        let target = Arc::clone(&target);
        let seed = request_seed(seed, number);
        running.spawn(async move { target.measure(scheduled, arrival, seed).await });
    }
    let mut records = Vec::with_capacity(arrivals.len());
    while let Some(record) = running.join_next().await {
        records.push(record.context("a request's task failed")?);
    }
    Ok(records)
}

/// Distinct prompts within a run and between runs of different seeds.
fn request_seed(seed: u64, number: u64) -> u64 {
    (seed << 32) ^ number
}
