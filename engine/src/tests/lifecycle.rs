//! Ways in and out that need no fault.

use rand_pcg::Pcg64Mcg;
use rand_pcg::rand_core::{Rng, SeedableRng};
use scheduler::{AdmissionMode, Deadline, FinishReason, Micros, ShedReason, Terminal};

use super::rig::{Fault, LIMITS, Rig, submission};
use crate::*;

#[test]
fn choices_of_several_prompts_are_all_answered() {
    let rig = Rig::free();
    let answer = rig.read(rig.submit(submission(&[40, 40, 3], 3, 20)));
    assert_eq!(answer.finished, [Some(FinishReason::Length); 9]);
    assert!(answer.tokens.iter().all(|tokens| tokens.len() == 20));
    assert_eq!(answer.tokens[..3], answer.tokens[3..6], "equal prompts have equal answers");
    assert_ne!(answer.tokens[0], answer.tokens[1], "choices differ");
    let report = &rig.check_idle(1)[0];
    assert_eq!(report.terminal, Terminal::Completed);
    assert_eq!((report.prompt_tokens, report.output_tokens), (83, 180));
    assert_eq!((report.num_sequences, report.finished), (9, [0, 9]));
    assert!(report.scheduled <= report.first_token && report.first_token <= Some(report.ended));
}

#[test]
fn tokens_do_not_depend_on_company_or_room() {
    let rig = Rig::free();
    let alone = rig.read(rig.submit(submission(&[50], 1, 60)));
    let tight = models::RunnerLimits { num_blocks: 12, max_batched_tokens: 20, ..LIMITS };
    let tight = Rig::new(3, tight, Box::new(|_| Fault::None)).run_freely();
    for rig in [rig, tight] {
        let other = |i: u32| submission(&[5 + i as usize * 4], 1, 10 + i * 5);
        let mut streams: Vec<TokenStream> = (0..8).map(|i| rig.submit(other(i))).collect();
        streams.push(rig.submit(submission(&[50], 1, 60)));
        streams.extend((8..16).map(|i| rig.submit(other(i))));
        let answers: Vec<_> = streams.into_iter().map(|stream| rig.read(stream)).collect();
        assert_eq!(answers[8], alone);
        assert!(answers.iter().all(|answer| answer.finished == [Some(FinishReason::Length)]));
    }
}

#[test]
fn a_client_that_leaves_frees_slot_and_blocks_within_a_step() {
    let rig = Rig::held_up(1);
    let running = rig.submit(submission(&[100], 1, 100));
    let waiting = rig.submit(submission(&[100], 2, 100));
    // Whichever step each of them was taken in before, both are known after the second.
    (0..2).for_each(|_| rig.allow_step());
    rig.wait("both taken in", |rig| {
        let counts = rig.handle.snapshot().counts;
        (counts.running, counts.waiting) == (1, 2)
    });
    let used = rig.handle.snapshot().counts;
    assert!(used.free_blocks < used.num_blocks);
    drop(waiting);
    drop(running);
    let rig = rig.run_freely();
    let reports = rig.check_idle(2);
    assert!(reports.iter().all(|report| report.terminal == Terminal::Cancelled));
    assert!(reports.iter().all(|report| report.output_tokens < 100), "nobody computed on");
}

/// Requests come and leave at random, with a gate of this kind in front. Returns how they ended.
fn random_departures(admission: AdmissionMode) -> Vec<Terminal> {
    let rig = Rig::with_gate(admission, 4, LIMITS, Box::new(|_| Fault::None));
    let mut rng = Pcg64Mcg::seed_from_u64(1);
    let mut below = |bound: u32| rng.next_u32() % bound;
    let (mut streams, mut admitted): (Vec<TokenStream>, _) = (Vec::new(), 0);
    for _ in 0..1_000 {
        let prompt = 1 + below(60) as usize;
        let mut submission = submission(&[prompt], 1 + below(3), 1 + below(40));
        submission.arrival = rig.handle.clock().now();
        submission.deadline.last_token =
            (below(2) == 0).then(|| submission.arrival.plus(Micros(below(3_000_000).into())));
        if let Ok(stream) = rig.handle.submit(submission) {
            streams.push(stream);
            admitted += 1;
        }
        // A step for each request is too few: some wait, some run, some are complete when they are
        // left.
        rig.allow_step();
        if streams.len() > below(20) as usize {
            let mut leaver = streams.swap_remove(below(streams.len() as u32) as usize);
            for _ in 0..below(10) {
                rig.next_now(&mut leaver);
            }
            if below(4) == 0 {
                leaver.stop(0);
            }
        }
    }
    drop(streams);
    let rig = rig.run_freely();
    let ends = rig.check_idle(admitted).iter().map(|report| report.terminal).collect();
    let answer = rig.read(rig.submit(submission(&[10], 1, 5)));
    assert_eq!(answer.finished, [Some(FinishReason::Length)], "the next request is served");
    ends
}

#[test]
fn a_thousand_random_departures_leave_nothing_behind() {
    for admission in [AdmissionMode::None, AdmissionMode::Deadline] {
        let ends = random_departures(admission);
        let cancelled = ends.iter().filter(|end| **end == Terminal::Cancelled).count();
        assert!(cancelled > 20, "{cancelled} of {}", ends.len());
        assert!(!ends.contains(&Terminal::Failed));
    }
}

#[test]
fn a_stopped_choice_is_complete_and_silent() {
    let rig = Rig::held_up(4);
    let mut stream = rig.submit(submission(&[10], 2, 50));
    (0..5).for_each(|_| rig.allow_step());
    while !matches!(rig.next(&mut stream), Some(Update::Token { choice: 0, .. })) {}
    stream.stop(0);
    stream.stop(0);
    let rig = rig.run_freely();
    let answer = rig.read(stream);
    assert!(answer.tokens[0].is_empty(), "no more of it comes");
    assert_eq!(answer.finished, [None, Some(FinishReason::Length)]);
    let report = &rig.check_idle(1)[0];
    assert_eq!((report.terminal, report.finished), (Terminal::Completed, [1, 1]));
    assert!(report.output_tokens < 100, "it did not go on unseen");

    let mut stream = rig.submit(submission(&[10], 1, 200));
    rig.next(&mut stream);
    stream.stop(0);
    assert!(rig.next(&mut stream).is_none());
    drop(stream);
    assert_eq!(rig.check_idle(2)[1].terminal, Terminal::Completed);
}

#[test]
fn stop_tokens_end_a_sequence_and_are_not_shown() {
    let rig = Rig::free();
    let whole = rig.read(rig.submit(submission(&[10], 1, 30))).tokens.remove(0);
    let stop = whole[17];
    let first = whole.iter().position(|&token| token == stop).expect("it is there");
    let mut stopping = submission(&[10], 1, 30);
    stopping.sampling.stop_token_ids = vec![stop];
    let mut stream = rig.submit(stopping.clone());
    let mut tokens = Vec::new();
    loop {
        match rig.next(&mut stream).expect("not over") {
            Update::Token { token, .. } => tokens.push(token),
            Update::Finished { reason, stop_token, output_tokens, .. } => {
                assert_eq!((reason, stop_token), (FinishReason::Stop, Some(stop)));
                assert_eq!(output_tokens as usize, first + 1);
                break;
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(tokens, whole[..first]);
    stopping.sampling.min_tokens = 30;
    let answer = rig.read(rig.submit(stopping));
    assert_eq!(answer.tokens[0].len(), 30, "no end before min_tokens");
    assert!(!answer.tokens[0].contains(&stop));
}

#[test]
fn draining_sheds_what_is_new_and_finishes_what_is_not() {
    let rig = Rig::held_up(4);
    let stream = rig.submit(submission(&[10], 1, 50));
    rig.handle.drain();
    let refusal = rig.handle.submit(submission(&[10], 1, 5)).expect_err("draining");
    assert!(matches!(refusal, Refusal::Shed(shed) if shed.reason == ShedReason::Draining));
    assert!(rig.handle.snapshot().draining && rig.handle.snapshot().alive);
    let rig = rig.run_freely();
    assert_eq!(rig.read(stream).finished, [Some(FinishReason::Length)]);
    rig.check_idle(1);
}

#[test]
fn shutdown_fails_what_is_left_once() {
    let rig = Rig::held_up(4);
    let streams: Vec<TokenStream> =
        (0..20).map(|_| rig.submit(submission(&[50], 2, 150))).collect();
    let handle = rig.handle.clone();
    let shutdown = std::thread::spawn(move || handle.shutdown());
    rig.wait("the wish to end arrives", |rig| {
        !rig.handle.0.shared.mailbox.is_empty() || !rig.handle.snapshot().alive
    });
    let rig = rig.run_freely();
    rig.handle.shutdown();
    shutdown.join().expect("no panic");
    assert!(!rig.handle.snapshot().alive);
    let refusal = rig.handle.submit(submission(&[10], 1, 5)).expect_err("dead");
    assert!(matches!(refusal, Refusal::EngineDead));
    for stream in streams {
        let answer = rig.read(stream);
        assert!(answer.failed.is_some() && answer.finished.is_empty());
    }
    let reports = rig.check_idle(20);
    assert!(reports.iter().all(|report| report.terminal == Terminal::Failed));
}

#[test]
fn the_thread_ends_with_the_last_handle_and_stream() {
    let rig = Rig::free();
    let (log, stream) = (std::sync::Arc::clone(&rig.log), rig.submit(submission(&[50], 2, 200)));
    drop(rig);
    drop(stream);
    // The engine thread holds the only other reference to the observer.
    let patience = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while std::sync::Arc::strong_count(&log) > 1 {
        assert!(std::time::Instant::now() < patience, "the thread lives on");
        std::thread::yield_now();
    }
    assert_eq!(log.requests.lock().expect("not poisoned").len(), 1);
}

#[test]
fn waiting_requests_expire_when_their_deadline_is_out_of_reach() {
    let rig = Rig::held_up(1);
    let running = rig.submit(submission(&[10], 1, 3));
    rig.allow_step();
    rig.wait("it runs", |rig| rig.handle.snapshot().counts.running == 1);
    let due = rig.handle.clock().now().plus(Micros(2_000));
    let deadline = Deadline { first_token: Some(due), ..Deadline::default() };
    let doomed = rig.submit(Submission { deadline, ..submission(&[10], 2, 5) });
    rig.wait("too late", |rig| rig.handle.clock().now() > due);
    let rig = rig.run_freely();
    let answer = rig.read(doomed);
    assert!(answer.expired && answer.finished.is_empty() && answer.tokens.is_empty());
    assert_eq!(rig.read(running).finished, [Some(FinishReason::Length)]);
    let reports = rig.check_idle(2);
    assert!(reports.iter().any(|report| report.terminal == Terminal::Expired));
}

#[test]
fn submissions_that_make_no_sense_are_refused() {
    let rig = Rig::free();
    let outside = Prompt { tokens: std::sync::Arc::from([1, 257]), n: 1 };
    for bad in [
        submission(&[], 1, 5),
        submission(&[0], 1, 5),
        submission(&[10], 0, 5),
        submission(&[10], u32::MAX, 5),
        submission(&[256], 1, 5),
        Submission { prompts: vec![outside], ..submission(&[], 1, 5) },
    ] {
        let refusal = rig.handle.submit(bad).expect_err("makes no sense");
        assert!(matches!(refusal, Refusal::Invalid(_)), "{refusal:?}");
    }
    let answer = rig.read(rig.submit(submission(&[255], 1, u32::MAX)));
    assert_eq!(answer.tokens[0].len(), 1, "the answer is cut to the context length");
    rig.check_idle(1);
}
