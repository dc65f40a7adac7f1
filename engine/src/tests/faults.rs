//! Faults: each fails what it must and nothing else.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use scheduler::{FinishReason, Terminal};

use super::rig::{Answer, Fault, LIMITS, Rig, submission};
use crate::*;

/// Six requests on three slots; the `k`-th step has the fault. Returns the answers and how many
/// chunks the broken step had.
fn run_with(fault: Fault, k: usize) -> (Rig, Vec<Answer>, usize) {
    let (calls, broken) = (AtomicUsize::new(0), Arc::new(Mutex::new(0)));
    let chunks_in_broken = Arc::clone(&broken);
    let script = move |chunks: &[models::Chunk<'_>]| {
        if calls.fetch_add(1, Ordering::SeqCst) + 1 != k {
            return Fault::None;
        }
        *chunks_in_broken.lock().expect("not poisoned") = chunks.len();
        fault
    };
    let rig = Rig::new(3, LIMITS, Box::new(script));
    let streams: Vec<TokenStream> =
        (0..6u32).map(|i| rig.submit(submission(&[4 + i as usize], 1, 4 + i))).collect();
    let rig = rig.run_freely();
    let answers = streams.into_iter().map(|stream| rig.read(stream)).collect();
    let broken = *broken.lock().expect("not poisoned");
    (rig, answers, broken)
}

/// A step of every kind (first prefills, mixed, last decodes) is hit by some `k`.
const STEPS: std::ops::RangeInclusive<usize> = 1..=14;

#[test]
fn a_failing_step_fails_its_own_requests_only() {
    let (_, sound, _) = run_with(Fault::None, 1);
    for fault in [Fault::Error, Fault::Panic, Fault::TooFewRows] {
        for k in STEPS {
            let (rig, answers, broken) = run_with(fault, k);
            let failed = answers.iter().filter(|answer| answer.failed.is_some()).count();
            assert_eq!(failed, broken, "{fault:?} at step {k}");
            for (answer, sound) in answers.iter().zip(&sound) {
                if answer.failed.is_none() {
                    assert_eq!(answer, sound, "{fault:?} at step {k}");
                }
            }
            let after = rig.read(rig.submit(submission(&[9], 1, 5)));
            assert_eq!(after.finished, [Some(FinishReason::Length)], "the engine lives on");
            let reports = rig.check_idle(7);
            let reported = reports.iter().filter(|report| report.terminal == Terminal::Failed);
            assert_eq!(reported.count(), failed);
        }
    }
}

#[test]
fn logits_that_are_not_finite_fail_one_request() {
    let (_, sound, _) = run_with(Fault::None, 1);
    for k in STEPS {
        let (rig, answers, broken) = run_with(Fault::NotFinite, k);
        let failed = answers.iter().filter(|answer| answer.failed.is_some()).count();
        assert_eq!(failed, broken.min(1), "step {k}");
        for (answer, sound) in answers.iter().zip(&sound) {
            if answer.failed.is_none() {
                assert_eq!(answer, sound, "step {k}");
            }
        }
        rig.check_idle(6);
    }
}

#[test]
fn a_lost_device_ends_the_engine() {
    for k in [1, 3, 6] {
        let (rig, answers, broken) = run_with(Fault::DeviceLost, k);
        let failed = answers.iter().filter(|answer| answer.failed.is_some()).count();
        assert!(failed >= broken && broken > 0);
        assert!(
            answers
                .iter()
                .all(|a| a.failed.is_some() != a.finished.contains(&Some(FinishReason::Length)))
        );
        assert!(!rig.handle.snapshot().alive);
        let refusal = rig.handle.submit(submission(&[4], 1, 4)).expect_err("dead");
        assert!(matches!(refusal, Refusal::EngineDead));
        rig.check_idle(6);
        rig.handle.shutdown();
    }
}

#[test]
fn a_panic_of_the_engine_itself_leaves_nobody_without_an_answer() {
    let rig = Rig::new(2, LIMITS, Box::new(|_| Fault::None));
    rig.log.panic_at_step.store(true, Ordering::SeqCst);
    let streams: Vec<TokenStream> = (0..5).map(|_| rig.submit(submission(&[10], 2, 10))).collect();
    let rig = rig.run_freely();
    for stream in streams {
        assert!(rig.read(stream).failed.is_some());
    }
    rig.check_idle(5);
    assert!(!rig.handle.snapshot().alive);
}
