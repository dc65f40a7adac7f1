//! The generator against a server that plays a script: every kind of answer is told apart, and
//! every request is accounted for.
#![allow(clippy::unwrap_used, reason = "a broken script should fail its test")]

use std::sync::Arc;
use std::time::Duration;

use load::arrivals::Arrival;
use load::client::Client;
use load::drive;
use load::exchange::{Api, Target};
use load::outcome::{End, Record, Slo};
use load::prompt::Form;
use load::summary::Summary;
use serde_json::Map;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// What the server does with a connection; picked by the request's `max_tokens`.
const SCRIPT: [(&str, bool); 9] = [
    // 1: a whole stream with two pieces of text, three tokens by the server's count
    (
        "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n\
         : keep-alive\n\ndata: {\"choices\":[{\"text\":\"a\"}],\"usage\":null}\n\n\
         data: {\"choices\":[{\"text\":\" b c\"}]}\n\ndata: {\"choices\":[{\"text\":\"\"}]}\n\n\
         data: {\"choices\":[],\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":3}}\n\n\
         data: [DONE]\n\n",
        false,
    ),
    // 2: a refusal for load
    (
        "HTTP/1.1 429 Too Many Requests\r\nretry-after: 7\r\ncontent-length: 39\r\n\r\n\
         {\"error\":{\"code\":\"slo_miss\",\"n\":12345}}",
        false,
    ),
    // 3: a request that was let in and then given up by the server
    (
        "HTTP/1.1 429 Too Many Requests\r\nretry-after: 3\r\ncontent-length: 28\r\n\r\n\
         {\"error\":{\"code\":\"expired\"}}",
        false,
    ),
    // 4: an answer that begins and never goes on
    (
        "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n\
         data: {\"choices\":[{\"text\":\"a\"}]}\n\n",
        true,
    ),
    // 5: an answer cut in the middle of an event
    (
        "HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n\
         data: {\"choices\":[{\"text\":\"a\"}]}\n\ndata: {\"cho",
        false,
    ),
    // 6: another error
    ("HTTP/1.1 400 Bad Request\r\ncontent-length: 2\r\n\r\n{}", false),
    // 7: no answer at all
    ("", false),
    // 8: like 3, after the stream had begun
    (
        "HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n\
         data: {\"error\":{\"message\":\"too late\",\"code\":\"expired\"}}\n\n",
        false,
    ),
    // 9: another error there
    (
        "HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n\
         data: {\"error\":{\"message\":\"expired\",\"code\":null}}\n\n",
        false,
    ),
];

async fn play(mut stream: TcpStream) {
    let mut request = Vec::new();
    let step = loop {
        let mut part = [0; 4096];
        let read = stream.read(&mut part).await.unwrap();
        request.extend_from_slice(&part[..read]);
        let text = String::from_utf8_lossy(&request);
        if let Some((_, rest)) = text.split_once("\"max_tokens\":") {
            let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
            break digits.parse::<usize>().unwrap();
        }
    };
    let (answer, hang) = SCRIPT[step - 1];
    stream.write_all(answer.as_bytes()).await.unwrap();
    if hang {
        // Until the client hangs up.
        while stream.read(&mut [0; 64]).await.is_ok_and(|read| read > 0) {}
    }
}

async fn serve() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            tokio::spawn(play(stream));
        }
    });
    url
}

fn target(url: &str) -> Arc<Target> {
    Arc::new(Target {
        client: Client::new(url, None, &[]).unwrap(),
        api: Api::Completions,
        model: "m".to_owned(),
        form: Form::Ids,
        extra: Map::new(),
        open_ended: None,
        timeout: Duration::from_secs(2),
    })
}

async fn run_script(url: &str) -> Vec<Record> {
    let arrivals: Vec<Arrival> = (1..=SCRIPT.len() as u32)
        .map(|step| Arrival { at: Duration::ZERO, prompt_tokens: 4, max_tokens: step })
        .collect();
    let mut records = drive::open(target(url), &arrivals, 1).await.unwrap();
    records.sort_by_key(|record| record.arrival.max_tokens);
    records
}

#[tokio::test]
async fn every_kind_of_answer_has_its_own_end() {
    let records = run_script(&serve().await).await;
    let ends: Vec<End> = records.iter().map(|record| record.end).collect();
    let expected = [
        End::Completed,
        End::Shed,
        End::Expired,
        End::TimedOut,
        End::Broken,
        End::Refused,
        End::Unreachable,
        End::Expired,
        End::Broken,
    ];
    assert_eq!(ends, expected);
    let status: Vec<Option<u16>> = records.iter().map(|record| record.status).collect();
    let ok = Some(200);
    assert_eq!(status, [ok, Some(429), Some(429), ok, ok, Some(400), None, ok, ok]);

    let done = &records[0];
    assert_eq!((done.gaps.len(), done.usage_tokens, done.prompt_tokens), (1, Some(3), Some(9)));
    assert!(done.first_text.is_some() && done.first_text <= done.last_text);
    assert_eq!(records[1].retry_after, Some(7));
    assert!(records[5].complaint.as_ref().is_some_and(|text| text.starts_with("400")));
    assert_eq!(records[3].output_tokens(), 1, "what came before the client gave up");
}

#[tokio::test]
async fn counts_sum_to_what_was_sent() {
    let records = run_script(&serve().await).await;
    let summary = Summary::of(&records, &Slo::default(), Duration::from_secs(1));
    assert_eq!(summary.counts.sent, SCRIPT.len() as u64);
    assert_eq!(summary.counts.ended(), summary.counts.sent);
    assert_eq!(summary.status.values().sum::<u64>(), 8);
    assert_eq!(summary.attainment_offered, Some(1.0 / 9.0));
    // Completed, expired, timed out and broken had been let in.
    assert_eq!(summary.attainment_admitted, Some(1.0 / 6.0));
    assert_eq!(summary.wasted_tokens, 2);
    assert_eq!(summary.retry_after_s, Some((3, 3, 7)));
}

/// The script's third answer says so: three seconds.
#[tokio::test]
async fn a_slot_that_was_refused_waits_as_it_was_told() {
    let shape = drive::ClosedLoop { concurrency: 1, per_slot: 2, prompt_tokens: 4, max_tokens: 3 };
    let records = drive::closed(target(&serve().await), shape, 1).await.unwrap();
    assert_eq!(records.len(), 2);
    assert!(records[1].arrival.at >= Duration::from_secs(3), "{:?}", records[1].arrival);
}

#[tokio::test]
async fn a_server_that_is_not_there_is_unreachable_and_not_a_crash() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    drop(listener);
    let shape = drive::ClosedLoop { concurrency: 2, per_slot: 3, prompt_tokens: 4, max_tokens: 1 };
    let records = drive::closed(target(&url), shape, 1).await.unwrap();
    assert_eq!(records.len(), 6);
    assert!(records.iter().all(|record| record.end == End::Unreachable && !record.admitted()));
}
