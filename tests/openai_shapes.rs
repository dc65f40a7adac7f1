//! Whole answers have OpenAI's shapes.

use harness::Server;
use serde_json::{Value, json};

/// The tokens that `usage` counts add up, and are as many as asked for.
fn check_usage(answer: &Value, completion_tokens: u64) {
    let count = |name: &str| answer["usage"][name].as_u64().unwrap();
    assert_eq!(count("completion_tokens"), completion_tokens, "{answer}");
    assert_eq!(count("total_tokens"), count("prompt_tokens") + completion_tokens);
    assert!(count("prompt_tokens") > 0);
}

#[tokio::test]
async fn a_chat_answer_is_an_assistants_message() {
    let server = Server::demo_model(&[]);
    let messages = json!([{"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "Hello"}]}]);
    let body = json!({"messages": messages, "max_tokens": 6, "ignore_eos": true});
    let reply = server.post("/v1/chat/completions", &body).await;
    assert_eq!(reply.status, 200, "{}", reply.text());
    let answer = reply.json();
    assert_eq!(answer["object"], "chat.completion");
    assert!(answer["id"].as_str().unwrap().starts_with("chatcmpl-"));
    assert!(answer["created"].as_u64().unwrap() > 1_600_000_000);
    let choice = &answer["choices"][0];
    assert_eq!(choice["message"]["role"], "assistant");
    assert!(!choice["message"]["content"].as_str().unwrap().is_empty());
    assert_eq!((&choice["index"], &choice["finish_reason"]), (&json!(0), &json!("length")));
    check_usage(&answer, 6);
}

#[tokio::test]
async fn every_prompt_of_a_list_gets_n_choices_in_order() {
    let server = Server::simulated(&[]);
    let lists = [json!(["one", "two", "three"]), json!([[65, 66], [67], [68, 69]])];
    for prompt in lists {
        let body = json!({"prompt": prompt, "n": 2, "max_tokens": 4, "ignore_eos": true});
        let answer = server.post("/v1/completions", &body).await.json();
        let indices: Vec<u64> = answer["choices"]
            .as_array()
            .unwrap()
            .iter()
            .map(|choice| choice["index"].as_u64().unwrap())
            .collect();
        assert_eq!(indices, [0, 1, 2, 3, 4, 5], "{answer}");
        assert_eq!(answer["object"], "text_completion");
        check_usage(&answer, 24);
    }
}

#[tokio::test]
async fn a_seed_makes_an_answer_repeatable_whatever_else_runs() {
    let server = Server::simulated(&[]);
    let body = json!({"prompt": "p", "max_tokens": 24, "temperature": 1.5, "seed": 7,
        "ignore_eos": true});
    let other = json!({"prompt": "another", "max_tokens": 40, "n": 8, "ignore_eos": true});
    let text = |answer: Value| answer["choices"][0]["text"].as_str().unwrap().to_owned();
    let alone = text(server.post("/v1/completions", &body).await.json());
    let (_, together) =
        tokio::join!(server.post("/v1/completions", &other), server.post("/v1/completions", &body));
    assert_eq!(text(together.json()), alone);
    let reseeded = json!({"prompt": "p", "max_tokens": 24, "temperature": 1.5, "seed": 8,
        "ignore_eos": true});
    assert_ne!(text(server.post("/v1/completions", &reseeded).await.json()), alone);
}

#[tokio::test]
async fn models_are_listed_by_the_names_they_are_served_under() {
    let server = Server::simulated(&["--served-model-name", "alpha", "beta"]);
    let list = server.get("/v1/models").await.json();
    let ids: Vec<&str> =
        list["data"].as_array().unwrap().iter().map(|card| card["id"].as_str().unwrap()).collect();
    assert_eq!((list["object"].as_str(), ids), (Some("list"), vec!["alpha", "beta"]));
    assert_eq!(server.get("/v1/models/beta").await.json()["object"], "model");
    let body = json!({"model": "beta", "prompt": "x", "max_tokens": 1});
    assert_eq!(server.post("/v1/completions", &body).await.json()["model"], "beta");
}

#[tokio::test]
async fn probes_and_version_answer() {
    let server = Server::simulated(&[]);
    for path in ["/health", "/livez", "/readyz"] {
        assert_eq!(server.get(path).await.status, 200, "{path}");
    }
    let version = server.get("/version").await.json();
    assert_eq!(version["version"], env!("CARGO_PKG_VERSION"));
}

#[tokio::test]
async fn text_survives_tokenising_and_back() {
    let server = Server::demo_model(&[]);
    let text = "Zwölf Boxkämpfer jagen Viktor 🥊 über den Sylter Deich.";
    let encoded = server.post("/tokenize", &json!({"prompt": text})).await.json();
    assert_eq!(
        encoded["count"].as_u64().unwrap(),
        encoded["tokens"].as_array().unwrap().len() as u64
    );
    let decoded = server.post("/detokenize", &json!({"tokens": encoded["tokens"]})).await.json();
    assert_eq!(decoded["prompt"], text);
}
