//! Streams say the same as whole answers, piece by piece.

use harness::Server;
use serde_json::{Value, json};

/// The text of choice `index`, put together from chunks.
fn joined(chunks: &[Value], index: u64) -> String {
    let choices = chunks.iter().flat_map(|chunk| chunk["choices"].as_array().unwrap());
    let mine = choices.filter(|choice| choice["index"] == index);
    mine.filter_map(|choice| choice["text"].as_str().or(choice["delta"]["content"].as_str()))
        .collect()
}

fn finishes(chunks: &[Value], index: u64) -> Vec<&Value> {
    let choices = chunks.iter().flat_map(|chunk| chunk["choices"].as_array().unwrap());
    let mine = choices.filter(|choice| choice["index"] == index);
    mine.map(|choice| &choice["finish_reason"]).filter(|reason| !reason.is_null()).collect()
}

#[tokio::test]
async fn a_stream_says_what_the_whole_answer_says() {
    let server = Server::demo_model(&[]);
    let chat = json!({"messages": [{"role": "user", "content": "Write one line about rain ☔."}],
        "temperature": 0, "max_tokens": 40});
    let completion = json!({"prompt": ["Once upon", "Il était"], "temperature": 0,
        "max_tokens": 24, "stop": ["the end"]});
    for (path, mut body) in [("/v1/chat/completions", chat), ("/v1/completions", completion)] {
        let whole = server.post(path, &body).await.json();
        body["stream"] = json!(true);
        let chunks = server.post(path, &body).await.chunks();
        for choice in whole["choices"].as_array().unwrap() {
            let index = choice["index"].as_u64().unwrap();
            let text = choice["text"].as_str().or(choice["message"]["content"].as_str());
            assert_eq!(joined(&chunks, index), text.unwrap());
            assert_eq!(finishes(&chunks, index), [&choice["finish_reason"]]);
        }
    }
}

#[tokio::test]
async fn the_role_comes_first_and_only_once() {
    let server = Server::demo_model(&[]);
    let body = json!({"messages": [{"role": "user", "content": "Hi"}], "n": 3, "max_tokens": 5,
        "stream": true});
    let chunks = server.post("/v1/chat/completions", &body).await.chunks();
    for index in 0..3 {
        let choices = chunks.iter().flat_map(|chunk| chunk["choices"].as_array().unwrap());
        let mine: Vec<&Value> = choices.filter(|choice| choice["index"] == index).collect();
        let roles = mine.iter().map(|choice| &choice["delta"]["role"]);
        let roles: Vec<usize> =
            (0..).zip(roles).filter(|(_, r)| !r.is_null()).map(|(i, _)| i).collect();
        assert_eq!(roles, [0], "choice {index}");
    }
}

#[tokio::test]
async fn all_chunks_of_a_stream_belong_together() {
    let server = Server::simulated(&[]);
    let body = json!({"prompt": "x", "max_tokens": 9, "ignore_eos": true, "stream": true});
    let chunks = server.post("/v1/completions", &body).await.chunks();
    assert!(chunks.len() > 3, "not streamed: {chunks:?}");
    for member in ["id", "created", "model", "object"] {
        assert!(chunks.iter().all(|chunk| chunk[member] == chunks[0][member]), "{member}");
    }
}

#[tokio::test]
async fn usage_comes_last_and_only_if_asked_for() {
    let server = Server::simulated(&[]);
    let mut body = json!({"prompt": "x", "max_tokens": 9, "ignore_eos": true, "stream": true});
    let chunks = server.post("/v1/completions", &body).await.chunks();
    assert!(chunks.iter().all(|chunk| chunk.get("usage").is_none_or(Value::is_null)));
    body["stream_options"] = json!({"include_usage": true});
    let mut chunks = server.post("/v1/completions", &body).await.chunks();
    let last = chunks.pop().unwrap();
    assert_eq!((&last["choices"], &last["usage"]["completion_tokens"]), (&json!([]), &json!(9)));
    assert!(chunks.iter().all(|chunk| chunk["usage"].is_null()));
}

#[tokio::test]
async fn a_refused_stream_has_its_real_status() {
    let server = Server::simulated(&[]);
    let body = json!({"prompt": "x", "max_tokens": 4, "stream": true});
    let reply = server.post_with("/v1/completions", &body, &["x-request-deadline-ms: 0"]).await;
    assert_eq!(reply.status, 429, "{}", reply.text());
    assert_eq!(reply.error()["code"], "expired");
}
