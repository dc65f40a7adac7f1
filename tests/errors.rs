//! Bad requests get OpenAI's error object with the field by name, never silence, and the server
//! lives on.

use harness::Server;
use hyper::Method;
use serde_json::{Value, json};

const CHAT: &str = "/v1/chat/completions";
const COMPLETION: &str = "/v1/completions";

#[tokio::test]
async fn a_wrong_value_is_refused_and_its_field_named() {
    let server = Server::simulated(&["--max-model-len", "256"]);
    let with = |name: &str, value: Value| {
        let mut body = json!({"prompt": "x", "max_tokens": 4});
        body[name] = value;
        (COMPLETION, body, name.to_owned())
    };
    let messages = |value: Value| (CHAT, json!({"messages": value}), "messages".to_owned());
    let cases = [
        with("temperature", json!(-1)),
        with("temperature", json!("hot")),
        with("top_p", json!(1.5)),
        with("top_k", json!(-7)),
        with("max_tokens", json!(-1)),
        with("max_tokens", json!(1.5)),
        with("max_tokens", json!(100_000)),
        with("n", json!(0)),
        with("n", json!(100_000)),
        with("logit_bias", json!({"5": 1_000})),
        with("stop", json!([""])),
        with("stop_token_ids", json!([4_000_000_000_u32])),
        with("prompt", json!({"a": 1})),
        with("prompt", json!([])),
        with("prompt", json!([4_000_000_000_u32])),
        with("prompt", json!("many words ".repeat(500))),
        with("stream_options", json!({"include_usage": true})),
        with("min_tokens", json!(99)),
        with("logprobs", json!(99)),
        messages(json!([])),
        messages(json!("hello")),
        messages(json!([{"content": "no role"}])),
    ];
    for (path, body, field) in cases {
        let reply = server.post(path, &body).await;
        assert_eq!(reply.status, 400, "{body} gave {}", reply.text());
        let error = reply.error();
        let param = error["param"].as_str().unwrap_or("");
        assert!(param.starts_with(&field), "{body}: param {param:?}, {}", error["message"]);
        assert_eq!(error["type"], "invalid_request_error");
    }
    server.idle().await;
}

#[tokio::test]
async fn fields_that_are_not_understood_are_not_swallowed() {
    let server = Server::simulated(&[]);
    let fields = [("temprature", json!(1)), ("best_of", json!(3)), ("suffix", json!("x"))];
    for (name, value) in fields {
        let mut body = json!({"prompt": "x", "max_tokens": 2});
        body[name] = value;
        let reply = server.post(COMPLETION, &body).await;
        assert_eq!(reply.status, 400, "{name}: {}", reply.text());
        assert!(reply.text().contains(name), "{}", reply.text());
    }
}

#[tokio::test]
async fn bodies_that_are_no_json_objects_are_refused() {
    let server = Server::simulated(&["--body-limit", "64KiB"]);
    let json_type = "content-type: application/json";
    for body in ["", "{", "[]", "null", "\u{0}", "{\"prompt\": \"\\ud800\"}"] {
        let reply = server.send(Method::POST, COMPLETION, body, &[json_type]).await;
        assert_eq!(reply.status, 400, "{body:?}: {}", reply.text());
        let _ = reply.error();
    }
    let latin1 = b"{\"prompt\": \"\xe9\"}".to_vec();
    assert_eq!(server.send(Method::POST, COMPLETION, latin1, &[json_type]).await.status, 400);
    let deep = "[".repeat(20_000);
    assert_eq!(server.send(Method::POST, COMPLETION, deep, &[json_type]).await.status, 400);
    let large = json!({"prompt": "x".repeat(100_000)});
    assert_eq!(server.post(COMPLETION, &large).await.status, 413);
    assert_eq!(server.get("/health").await.status, 200);
}

#[tokio::test]
async fn what_is_not_there_is_404_and_a_wrong_method_is_405() {
    let server = Server::simulated(&[]);
    let unknown = json!({"model": "gpt-17", "prompt": "x"});
    let reply = server.post(COMPLETION, &unknown).await;
    assert_eq!((reply.status, &reply.error()["code"]), (404, &json!("model_not_found")));
    assert_eq!(server.get("/v1/models/gpt-17").await.status, 404);
    let nowhere = server.get("/v2/anything").await;
    assert_eq!((nowhere.status, &nowhere.error()["type"]), (404, &json!("invalid_request_error")));
    assert_eq!(server.get(COMPLETION).await.status, 405);
}

#[tokio::test]
async fn a_key_is_asked_for_where_one_is_set() {
    let server = Server::simulated(&["--api-key", "first,second"]);
    let body = json!({"prompt": "x", "max_tokens": 1});
    let refused = server.post(COMPLETION, &body).await;
    assert_eq!((refused.status, &refused.error()["code"]), (401, &json!("invalid_api_key")));
    for (line, status) in [
        ("authorization: Bearer second", 200),
        ("authorization: Bearer secon", 401),
        ("authorization: Bearer seconds", 401),
        ("authorization: Basic second", 401),
    ] {
        assert_eq!(server.post_with(COMPLETION, &body, &[line]).await.status, status, "{line}");
    }
    assert_eq!(server.get("/v1/models").await.status, 401);
    assert_eq!(server.get("/health").await.status, 200, "probes have no key");
    assert!(!server.log().contains("second"), "keys do not belong in logs");
}

#[tokio::test]
async fn a_request_id_is_echoed_or_made() {
    let server = Server::simulated(&[]);
    let body = json!({"prompt": "x", "max_tokens": 1});
    let reply = server.post_with(COMPLETION, &body, &["x-request-id: abc-123"]).await;
    assert_eq!(reply.header("x-request-id"), "abc-123");
    let made = server.get("/no/such/path").await;
    assert!(!made.header("x-request-id").is_empty());
}
