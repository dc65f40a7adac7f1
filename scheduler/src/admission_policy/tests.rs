//! Names read back; each policy refuses exactly what its rule says, with a true wait.

use alloc::string::ToString;
use alloc::vec;

use proptest::prelude::*;

use super::*;
use crate::class::{Class, ClassConfig, ClassTable};
use crate::cost::CostModel;
use crate::request::{Deadline, OutputLength, SequenceSpec};
use crate::scheduler::SchedulerConfig;
use crate::tenants::TenantId;

/// A millisecond a step, and one for each prompt token.
const COST: CostModel = CostModel {
    fixed_ns: 1_000_000,
    per_seq_ns: 0,
    per_context_token_ps: 0,
    per_prefill_token_ns: 1_000_000,
    per_prefill_span_ps: 0,
};

fn config() -> SchedulerConfig {
    let class = ClassConfig { max_waiting: 10, ..ClassConfig::default() };
    SchedulerConfig {
        num_blocks: 100,
        block_size: 16,
        max_num_seqs: 8,
        max_num_batched_tokens: 1_000,
        max_model_len: 1_000,
        classes: ClassTable([class; 2]),
    }
}

fn request(id: u64, prompt_tokens: u32, predicted: u32, last: Option<u64>) -> Request {
    let output = OutputLength { min: 0, max: predicted, predicted, hint: None, exact: true };
    Request {
        id: RequestId(id),
        class: Class::Latency,
        tenant: TenantId::DEFAULT,
        borrows: false,
        arrival: Micros(0),
        deadline: Deadline { last_token: last.map(Micros::from_millis), ..Deadline::default() },
        retry: 0,
        origin: 0,
        prefixes: Vec::new(),
        sequences: vec![SequenceSpec { prompt: 0, prompt_tokens, output }],
    }
}

/// Asks `policy`, and books the request if it enters.
fn offer(
    policy: &mut dyn AdmissionPolicy,
    now: Micros,
    request: &Request,
    inside: Inside,
) -> Answer {
    let config = config();
    let view = View { now, config: &config, cost: &COST };
    let offer = Offer { view, request, inside };
    let answer = policy.judge(&offer);
    if answer == Answer::Enter {
        policy.entered(&offer);
    }
    answer
}

fn reason(answer: Answer) -> Option<ShedReason> {
    match answer {
        Answer::Refuse(refused) => Some(refused.reason),
        Answer::Enter | Answer::Forecast => None,
    }
}

#[test]
fn policies_are_written_as_they_are_read() {
    for text in [
        "deadline",
        "none",
        "queue-cap=64",
        "token-bucket=2000:8000",
        "saturation=5:0.8",
        "article=0.75",
        "article=1",
    ] {
        let mode: AdmissionMode = text.parse().unwrap();
        assert_eq!(mode.to_string(), text);
        assert_eq!(mode.policy().mode(), mode);
    }
    let read = |text: &str| text.parse::<AdmissionMode>();
    assert_eq!(read("saturation"), read("saturation=5:0.8"));
    assert_eq!(read("article"), read("article=0.8"));
    for (bad, told) in [
        ("", "known: deadline, none, queue-cap=REQUESTS"),
        ("lifo", "known: deadline, none, queue-cap=REQUESTS"),
        ("none=1", "has no parameter"),
        ("queue-cap", "queue-cap=64"),
        ("queue-cap=0", "queue-cap=64"),
        ("token-bucket=5", "token-bucket=2000:8000"),
        ("token-bucket=5:0", "token-bucket=2000:8000"),
        ("saturation=5:80", "saturation=5:0.8"),
        ("article=1.1", "article=0.8"),
        ("article=0.8x", "article=0.8"),
        ("article=", "article=0.8"),
    ] {
        let problem = read(bad).unwrap_err().to_string();
        assert!(problem.contains(told), "{bad}: {problem}");
    }
}

#[test]
fn a_cap_and_a_threshold_look_at_what_is_inside() {
    let any = request(0, 10, 10, Some(1));
    let ask = |mode: &str, inside: Inside| {
        let mut policy = mode.parse::<AdmissionMode>().unwrap().policy();
        reason(offer(&mut *policy, Micros(0), &any, inside))
    };
    let inside = |requests, waiting, held_blocks| Inside { requests, waiting, held_blocks };
    assert_eq!(ask("queue-cap=3", inside(2, 9, 99)), None);
    assert_eq!(ask("queue-cap=3", inside(3, 0, 0)), Some(ShedReason::QueueFull));
    assert_eq!(ask("saturation", inside(9, 4, 79)), None);
    assert_eq!(ask("saturation", inside(9, 5, 0)), Some(ShedReason::QueueFull));
    assert_eq!(ask("saturation", inside(9, 0, 80)), Some(ShedReason::KvPressure));
}

#[test]
fn the_article_counts_whole_answers_of_everybody_inside() {
    let mut article = AdmissionMode::Article { permille: 800 }.policy();
    let inside = Inside::default();
    let mut ask = |id, last| offer(&mut *article, Micros(0), &request(id, 9, 11, last), inside);
    // 10 ms to the first token, and 10 more: 20 of at most 0.8 x 25.
    assert_eq!(ask(1, Some(25)), Answer::Enter);
    let (late, predicted, most) = (ask(2, Some(49)), Micros(40_000), Micros(39_200));
    assert_eq!(
        late,
        Answer::Refuse(Refused {
            reason: ShedReason::SloMiss,
            wait: Micros(800),
            predicted: Some((Quantity::LastToken, predicted, most)),
        })
    );
    assert_eq!(ask(3, Some(50)), Answer::Enter);
    assert_eq!(ask(4, None), Answer::Enter, "nothing is due");
    article.ended(RequestId(1));
    article.ended(RequestId(4));
    let mut ask = |id, last| offer(&mut *article, Micros(0), &request(id, 9, 11, last), inside);
    assert_eq!(ask(5, Some(50)), Answer::Enter);
    assert_eq!(reason(ask(6, Some(50))), Some(ShedReason::SloMiss), "idle or not");
}

proptest! {
    /// Over any time no more tokens enter than the burst and what flowed in, but for the one
    /// request that may leave the bucket in debt; who waits as long as it was told is let in.
    #[test]
    fn a_bucket_holds_its_rate_and_its_word(
        rate in 1..2_000u32,
        burst in 1..4_000u32,
        arrivals in prop::collection::vec((0..2_000_000u64, 1..600u32, 1..600u32), 1..60),
    ) {
        let mut policy = AdmissionMode::TokenBucket { rate, burst }.policy();
        let (mut now, mut entered, mut largest) = (Micros(0), 0_u64, 0);
        for (gap, prompt, output) in arrivals {
            now = now.plus(Micros(gap));
            let request = request(0, prompt, output, None);
            let mut answer = offer(&mut *policy, now, &request, Inside::default());
            if let Answer::Refuse(refused) = answer {
                prop_assert_eq!(refused.reason, ShedReason::RateLimit);
                let early = now.plus(refused.wait.minus(Micros(1)));
                let still = offer(&mut *policy, early, &request, Inside::default());
                prop_assert!(matches!(still, Answer::Refuse(_)), "it was told no longer than true");
                now = now.plus(refused.wait);
                answer = offer(&mut *policy, now, &request, Inside::default());
            }
            prop_assert_eq!(answer, Answer::Enter);
            entered += u64::from(prompt + output);
            largest = largest.max(u64::from((prompt + output).saturating_sub(burst)));
            let flowed = now.0 * u64::from(rate) / 1_000_000;
            prop_assert!(entered <= u64::from(burst) + flowed + largest + 1);
        }
    }

    /// What is refused before it is tokenised would be refused after: a longer request never enters
    /// where a shorter one does not.
    #[test]
    fn a_longer_request_never_does_better(
        mode in prop::sample::select(vec!["token-bucket=100:300", "article", "queue-cap=2"]),
        shorter in (1..90u32, 1..90u32),
        more in (0..90u32, 0..90u32),
        spans in (1..600u64, prop::option::of(1..600u64), prop::option::of(1..50u64)),
        taken in 0..400u32,
    ) {
        let mut policy = mode.parse::<AdmissionMode>().unwrap().policy();
        offer(&mut *policy, Micros(0), &request(0, 1 + taken, 1, None), Inside::default());
        let of = |prompt, output| {
            let (first, last, tpot) = spans;
            let mut request = request(1, prompt, output, last);
            request.deadline.first_token = Some(Micros::from_millis(first));
            request.deadline.tpot = tpot.map(Micros::from_millis);
            request
        };
        let config = config();
        let view = View { now: Micros(9), config: &config, cost: &COST };
        let judge = |request: &Request| {
            policy.judge(&Offer { view, request, inside: Inside::default() }) == Answer::Enter
        };
        let longer = of(shorter.0 + more.0, shorter.1 + more.1);
        prop_assert!(judge(&of(shorter.0, shorter.1)) || !judge(&longer));
    }

    /// What is written down is all there is: a policy that takes it over decides as the other.
    #[test]
    fn a_restored_policy_goes_on_as_the_one_it_was(
        mode in prop::sample::select(vec!["token-bucket=100:300", "article", "saturation", "none"]),
        arrivals in prop::collection::vec((0..900_000u64, 1..90u32, any::<bool>()), 1..40),
        cut in 0..40usize,
    ) {
        let mode: AdmissionMode = mode.parse().unwrap();
        let (mut policy, mut restored) = (mode.policy(), mode.policy());
        let mut now = Micros(0);
        for (i, (gap, tokens, ends)) in arrivals.into_iter().enumerate() {
            if i == cut {
                restored = mode.policy();
                prop_assert!(restored.restore(&policy.state()));
            }
            now = now.plus(Micros(gap));
            let mut request = request(i as u64, tokens, tokens, None);
            request.arrival = now;
            request.deadline.last_token = Some(now.plus(Micros(500_000)));
            let inside = Inside { waiting: tokens / 20, ..Inside::default() };
            let answer = offer(&mut *policy, now, &request, inside);
            let again = offer(&mut *restored, now, &request, inside);
            prop_assert_eq!(answer, again);
            if ends {
                policy.ended(RequestId(i as u64 / 2));
                restored.ended(RequestId(i as u64 / 2));
            }
        }
        prop_assert_eq!(policy.state(), restored.state());
    }
}
