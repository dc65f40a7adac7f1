//! Traffic of several classes: streams that are merged in order of arrival.

use scheduler::{Class, Micros, OutputLength, Request, RequestId, SequenceSpec, TenantId};

use crate::profile::Profile;
use crate::random::Random;
use crate::target::Target;
use crate::workload::{Arrivals, Job, Lengths};

/// Requests of one class.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Stream {
    /// Their class.
    pub class: Class,
    /// Who sends them.
    pub tenant: TenantId,
    /// Lengths of prompts and outputs.
    pub lengths: Lengths,
    /// The arrival process.
    pub arrivals: Arrivals,
    /// Requests a second.
    pub rate: f64,
    /// What each is promised.
    pub target: Target,
    /// The gate is told their lengths; otherwise `max_tokens` is generous.
    pub known: bool,
}

impl Stream {
    /// Chats of known lengths, as tests want them.
    #[cfg(test)]
    pub(crate) const fn chats(rate: f64, target: Target) -> Stream {
        Stream {
            class: Class::Latency,
            tenant: TenantId::DEFAULT,
            lengths: Lengths::Chat,
            arrivals: Arrivals::Poisson,
            rate,
            target,
            known: true,
        }
    }

    /// `n` requests for a device, in order of arrival and counted from zero. Drawn from `seed`
    /// alone.
    #[must_use]
    pub fn jobs(&self, n: usize, profile: &Profile, seed: u64) -> Vec<Job> {
        let mut random = Random::new(seed);
        let lengths: Vec<_> = (0..n).map(|_| self.lengths.draw(&mut random)).collect();
        let times = self.arrivals.times(n, self.rate, &mut random);
        let job = |(id, ((prompt_tokens, actual), arrival)): (usize, ((u32, u32), Micros))| {
            let max = if self.known { actual } else { self.lengths.generous() };
            let output = OutputLength { min: 0, max, predicted: 0, hint: None, exact: self.known };
            let deadline = self.target.deadline(arrival, profile.unloaded(prompt_tokens, actual));
            Job {
                request: Request {
                    id: RequestId(id as u64),
                    class: self.class,
                    tenant: self.tenant,
                    borrows: false,
                    arrival,
                    deadline,
                    retry: 0,
                    origin: id as u64,
                    prefixes: Vec::new(),
                    sequences: vec![SequenceSpec { prompt: 0, prompt_tokens, output }],
                },
                actual,
            }
        };
        lengths.into_iter().zip(times).enumerate().map(job).collect()
    }
}

/// What comes of `streams` in so many seconds, in order of arrival and counted from zero. What a
/// stream brings depends on its place and on `seed`, not on the other streams: without the last
/// ones the first bring the same.
#[must_use]
pub fn merge(streams: &[Stream], seconds: f64, profile: &Profile, seed: u64) -> Vec<Job> {
    let of_stream = |(place, stream): (u64, &Stream)| {
        let n = (stream.rate * seconds).round() as usize;
        stream.jobs(n, profile, seed.wrapping_add(place.wrapping_mul(1_000_003)))
    };
    let mut jobs: Vec<Job> = (0..).zip(streams).flat_map(of_stream).collect();
    jobs.sort_by_key(|job| job.request.arrival);
    for (id, job) in (0..).zip(&mut jobs) {
        job.request.id = RequestId(id);
        job.request.origin = id;
    }
    jobs
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::H100_8B;

    #[test]
    fn streams_are_merged_and_do_not_change_each_other() {
        let latency = Stream {
            class: Class::Latency,
            tenant: TenantId::DEFAULT,
            lengths: Lengths::Code,
            arrivals: Arrivals::Poisson,
            rate: 4.0,
            target: Target::Seconds(1.5),
            known: true,
        };
        let bulk = Stream { class: Class::Throughput, rate: 6.0, ..latency };
        let both = merge(&[latency, bulk], 20.0, &H100_8B, 3);
        assert_eq!(both.len(), 200);
        assert!(both.iter().enumerate().all(|(i, job)| job.request.id.0 as usize == i));
        assert!(both.is_sorted_by_key(|job| job.request.arrival));
        let of_class = |class| both.iter().filter(move |job| job.request.class == class);
        assert_eq!(of_class(Class::Throughput).count(), 120);
        let alone = merge(&[latency], 20.0, &H100_8B, 3);
        let arrivals = |job: &Job| (job.request.arrival, job.actual);
        assert!(of_class(Class::Latency).map(arrivals).eq(alone.iter().map(arrivals)));
    }
}
