//! The whole router over a simulated engine that takes no time: what clients see, without a socket.

use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderMap, Request, StatusCode};
use http_body_util::BodyExt;
use scheduler::{Class, TenantId};
use serde_json::{Value, json};
use tokio::sync::OnceCell;
use tokio::time::timeout;
use tower::ServiceExt;

use super::*;
use crate::config::Config;
use crate::deadline::Terms;
use crate::launch;
use crate::state::Served;

/// An answer, its body read whole.
struct Answer {
    status: StatusCode,
    headers: HeaderMap,
    text: String,
}

impl Answer {
    fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|_| panic!("no JSON: {}", self.text))
    }

    /// The events of a stream.
    fn events(&self) -> Vec<&str> {
        self.text.lines().filter_map(|line| line.strip_prefix("data: ")).collect()
    }

    fn error(&self) -> Value {
        let body = self.json();
        let error = &body["error"];
        for member in ["message", "type", "param", "code"] {
            assert!(error.get(member).is_some(), "no {member} in {}", self.text);
        }
        error.clone()
    }
}

/// Steps that take no time, unless `text` says otherwise.
pub(crate) fn config(text: &str) -> Config {
    let fast = "[cost]\nfixed_ns = 100_000\nper_seq_ns = 1_000\nper_context_token_ps = 0\n\
                per_prefill_token_ns = 1_000";
    let mut flags: toml::Table = text.parse().expect("test TOML");
    flags.insert("runner".into(), "simulated".into());
    if !flags.contains_key("simulated") {
        flags.insert("simulated".into(), toml::Value::Table(fast.parse().expect("test TOML")));
    }
    Config::resolve(None, flags).expect("valid")
}

/// An answer of this server takes a minute, unless somebody ends it.
pub(crate) fn slow() -> Config {
    config(
        "[class.latency]\nslo_tpot = \"none\"\n[simulated.cost]\nfixed_ns = 15_000_000\n\
            per_seq_ns = 0",
    )
}

pub(crate) fn start(config: &Config) -> Arc<App> {
    let app = App::new(config);
    let (service, _) = launch::launch(config).expect("the simulated runner starts");
    app.ready(service);
    app
}

async fn call(app: &Arc<App>, request: Request<Body>) -> Answer {
    let response = router(Arc::clone(app)).oneshot(request).await.expect("never fails");
    let (parts, body) = response.into_parts();
    let bytes = body.collect().await.expect("a whole body").to_bytes();
    let text = String::from_utf8(bytes.to_vec()).expect("UTF-8");
    Answer { status: parts.status, headers: parts.headers, text }
}

fn post_request(path: &str, body: &Value) -> Request<Body> {
    let request = Request::post(path).header("content-type", "application/json");
    request.body(Body::from(body.to_string())).expect("a request")
}

/// A server that all tests may share: none of them changes it.
async fn shared() -> &'static Arc<App> {
    static APP: OnceCell<Arc<App>> = OnceCell::const_new();
    let aliased = "[model_alias.bulk]\nclass = \"throughput\"";
    APP.get_or_init(async || start(&config(aliased))).await
}

async fn post_to(path: &str, body: Value) -> Answer {
    call(shared().await, post_request(path, &body)).await
}

fn chat(extra: &Value) -> Value {
    let mut body = json!({"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 8});
    body.as_object_mut().expect("an object").extend(extra.as_object().expect("an object").clone());
    body
}

fn joined(events: &[&str], pointer: &str) -> String {
    let chunks = events.iter().filter_map(|event| serde_json::from_str::<Value>(event).ok());
    chunks.filter_map(|chunk| Some(chunk.pointer(pointer)?.as_str()?.to_owned())).collect()
}

#[tokio::test]
async fn a_stream_says_what_a_whole_answer_says() {
    let paths = [
        ("/v1/chat/completions", "/choices/0/message/content", "/choices/0/delta/content"),
        ("/v1/completions", "/choices/0/text", "/choices/0/text"),
    ];
    for (path, whole_text, chunk_text) in paths {
        let mut body = chat(&json!({"seed": 1, "max_tokens": 30}));
        if path.ends_with("v1/completions") {
            body = json!({"prompt": "Hi", "max_tokens": 30, "seed": 1, "echo": true});
        }
        let whole = post_to(path, body.clone()).await;
        assert_eq!(whole.status, 200, "{}", whole.text);
        body["stream"] = true.into();
        body["stream_options"] = json!({"include_usage": true});
        let stream = post_to(path, body).await;
        let events = stream.events();
        assert_eq!(events.last(), Some(&"[DONE]"));
        let whole = whole.json();
        assert_eq!(
            Some(joined(&events, chunk_text).as_str()),
            whole.pointer(whole_text).unwrap().as_str()
        );
        let usage: Value = serde_json::from_str(events[events.len() - 2]).expect("a chunk");
        assert_eq!(usage["choices"], json!([]));
        // How much is cached depends on who came before.
        for part in ["prompt_tokens", "completion_tokens", "total_tokens"] {
            assert_eq!(usage["usage"][part], whole["usage"][part]);
        }
        let finished = joined(&events, "/choices/0/finish_reason");
        assert_eq!(Some(finished.as_str()), whole["choices"][0]["finish_reason"].as_str());
    }
}

#[tokio::test]
async fn stop_strings_end_the_text_before_them_whole_and_streamed() {
    let full =
        post_to("/v1/completions", json!({"prompt": "x", "max_tokens": 40, "seed": 3})).await;
    let full = full.json()["choices"][0]["text"].as_str().expect("text").to_owned();
    let stop: String = full.chars().skip(20).take(3).collect();
    let before = &full[..full.find(&stop).expect("it is part of it")];
    let mut body = json!({"prompt": "x", "max_tokens": 40, "seed": 3, "stop": [stop]});
    let whole = post_to("/v1/completions", body.clone()).await.json();
    assert_eq!(whole["choices"][0]["text"], before);
    assert_eq!(whole["choices"][0]["finish_reason"], "stop");
    body["stream"] = true.into();
    let stream = post_to("/v1/completions", body).await;
    assert_eq!(joined(&stream.events(), "/choices/0/text"), before);
}

#[tokio::test]
async fn choices_are_numbered_prompt_by_prompt() {
    let body = json!({"prompt": ["a", "bb"], "n": 2, "max_tokens": 2, "echo": true});
    let answer = post_to("/v1/completions", body).await.json();
    let choices = answer["choices"].as_array().expect("choices");
    let begins: Vec<(u64, char)> = choices
        .iter()
        .map(|choice| {
            let text = choice["text"].as_str().expect("text");
            (choice["index"].as_u64().expect("index"), text.chars().next().expect("echo"))
        })
        .collect();
    assert_eq!(begins, [(0, 'a'), (1, 'a'), (2, 'b'), (3, 'b')]);
    assert_eq!(answer["usage"]["prompt_tokens"], 3);
    assert_eq!(answer["usage"]["completion_tokens"], 8);
}

/// The simulated runner's blocks have 32 tokens.
#[tokio::test]
async fn what_was_computed_before_is_told_to_who_has_the_same_salt() {
    let mut body = json!({"prompt": (40..120).collect::<Vec<u32>>(), "max_tokens": 3});
    for (salt, cached) in [(Some("a"), 0), (Some("a"), 64), (Some("b"), 0), (None, 0)] {
        body["cache_salt"] = salt.into();
        let answer = post_to("/v1/completions", body.clone()).await.json();
        assert_eq!(answer["usage"]["prompt_tokens_details"]["cached_tokens"], cached, "{salt:?}");
    }
    body["stream"] = true.into();
    body["stream_options"] = json!({"include_usage": true});
    let stream = post_to("/v1/completions", body).await;
    let events = stream.events();
    let usage: Value = serde_json::from_str(events[events.len() - 2]).expect("a chunk");
    assert_eq!(usage["usage"]["prompt_tokens_details"]["cached_tokens"], 64);
}

#[tokio::test]
async fn refusals_are_plain_errors_that_name_the_field() {
    for (extra, param) in [
        (json!({"temperature": "hot"}), "temperature"),
        (json!({"messages": []}), "messages"),
        (json!({"messages": [{"role": "user", "content": 5}]}), "messages[0].content"),
        (json!({"response_format": {"type": "json_object"}}), "response_format"),
        (json!({"stream_options": {}}), "stream_options"),
        (json!({"made_up": 1}), "made_up"),
        (json!({"cache_salt": ""}), "cache_salt"),
        (json!({"max_tokens": 100_000}), "max_tokens"),
        (json!({"slo": {"ttft_ms": -1}}), "slo.ttft_ms"),
    ] {
        let streamed = extra.get("stream_options").is_none();
        let mut body = chat(&extra);
        if streamed {
            body["stream"] = true.into();
        }
        let answer = post_to("/v1/chat/completions", body).await;
        assert_eq!(answer.status, 400, "{}", answer.text);
        assert_eq!(answer.error()["param"], param);
    }
}

#[tokio::test]
async fn what_is_not_served_is_404_or_405_or_415_in_the_same_shape() {
    let app = shared().await;
    let request = |method: &str, path: &str| {
        Request::builder().method(method).uri(path).body(Body::empty()).expect("a request")
    };
    let unknown = post_to("/v1/chat/completions", chat(&json!({"model": "nope"}))).await;
    assert_eq!(
        (unknown.status.as_u16(), unknown.error()["code"].as_str()),
        (404, Some("model_not_found"))
    );
    let path = call(app, request("GET", "/v1/nope")).await;
    assert_eq!(
        (path.status.as_u16(), path.error()["type"].as_str()),
        (404, Some("invalid_request_error"))
    );
    let method = call(app, request("GET", "/v1/chat/completions")).await;
    assert_eq!(
        (method.status.as_u16(), &method.headers["allow"]),
        (405, &HeaderValue::from_static("POST"))
    );
    method.error();
    let media = call(app, request("POST", "/v1/completions")).await;
    assert_eq!(media.status, 415);
    media.error();
}

#[tokio::test]
async fn names_select_classes_and_are_echoed() {
    let app = shared().await;
    let alias = post_to("/v1/chat/completions", chat(&json!({"model": "bulk"}))).await;
    assert_eq!(alias.json()["model"], "bulk");
    let get = |path: &str| Request::get(path).body(Body::empty()).expect("a request");
    let list = call(app, get("/v1/models")).await.json();
    let classes: Vec<_> =
        list["data"].as_array().expect("models").iter().map(|m| &m["class"]).collect();
    assert_eq!(classes, ["latency", "throughput"]);
    assert_eq!(call(app, get("/v1/models/bulk")).await.json()["root"], "simulated");
    let metrics = call(app, get("/metrics")).await;
    let accepted = "inference_admission_accepted_total{class=\"throughput\",attempt=\"first\"} ";
    let count = metrics.text.lines().find_map(|line| line.strip_prefix(accepted));
    assert!(count.is_some_and(|count| count != "0"), "{}", metrics.text);
}

#[tokio::test]
async fn header_then_alias_then_tenant_then_route_then_default_select_the_class() {
    use Class::{Latency, Throughput};
    let (bulk, quick) = (Some(Throughput), Some(Latency));
    let of = |header, alias, tenant: Option<&str>, routes: [Option<Class>; 2], default: &str| {
        let mut text =
            format!("default_class = \"{default}\"\n[tenant.acme]\napi_keys = [\"k\"]\n");
        text += &tenant.map(|class| format!("default_class = \"{class}\"\n")).unwrap_or_default();
        for class in Class::ALL {
            let listed = Endpoint::ALL.into_iter().zip(routes);
            let listed = listed.filter(|(_, selected)| *selected == Some(class));
            let listed: Vec<&str> = listed.map(|(endpoint, _)| endpoint.route()).collect();
            text += &format!("[class.{}]\nroutes = {listed:?}\n", class.label());
        }
        let app = start(&config(&text));
        let service = app.service().expect("ready");
        let mut terms = Terms::from_headers(&HeaderMap::new()).expect("nothing is wrong");
        (terms.class, terms.tenant) = (header, TenantId(1));
        let served = Served { name: "m".into(), class: alias };
        Endpoint::ALL.map(|endpoint| service.class(&terms, &served, endpoint))
    };
    for (header, alias, tenant, routes, default, expected) in [
        (bulk, quick, Some("latency"), [quick; 2], "latency", [Throughput; 2]),
        (None, bulk, Some("latency"), [quick; 2], "latency", [Throughput; 2]),
        (None, None, Some("throughput"), [quick; 2], "latency", [Throughput; 2]),
        (None, None, None, [None, bulk], "latency", [Latency, Throughput]),
        (None, None, None, [quick, None], "throughput", [Latency, Throughput]),
        (None, None, None, [bulk, quick], "latency", [Throughput, Latency]),
        (None, None, None, [None; 2], "throughput", [Throughput; 2]),
    ] {
        let found = of(header, alias, tenant, routes, default);
        assert_eq!(found, expected, "{header:?} {alias:?} {tenant:?} {routes:?} {default}");
    }
}

#[tokio::test]
async fn a_deadline_that_has_passed_is_shed_with_all_headers() {
    let mut request = post_request("/v1/chat/completions", &chat(&json!({"stream": true})));
    request.headers_mut().insert("x-request-deadline-ms", HeaderValue::from_static("0"));
    request.headers_mut().insert("x-request-id", HeaderValue::from_static("mine"));
    let answer = call(shared().await, request).await;
    assert_eq!(answer.status, 429);
    assert_eq!(answer.error()["code"], "expired");
    assert_eq!(answer.headers["x-request-id"], "mine");
    for header in ["retry-after", "retry-after-ms", "x-should-retry"] {
        assert!(answer.headers.contains_key(header), "no {header}");
    }
}

#[tokio::test]
async fn tokens_come_back_as_the_text_they_were() {
    let text = "Hello wörld 😀";
    let tokens = post_to("/tokenize", json!({"prompt": text})).await.json();
    assert_eq!(tokens["count"], tokens["tokens"].as_array().expect("tokens").len());
    let back = post_to("/detokenize", json!({"tokens": tokens["tokens"]})).await.json();
    assert_eq!(back["prompt"], text);
    let messages = json!({"messages": [{"role": "user", "content": "Hi"}]});
    let counted = post_to("/tokenize", messages).await.json();
    let used = post_to("/v1/chat/completions", chat(&json!({}))).await.json();
    assert_eq!(counted["count"], used["usage"]["prompt_tokens"]);
}

#[tokio::test]
async fn keys_guard_the_model_but_not_the_probes() {
    let app = start(&config("api_key = [\"secret\"]"));
    let get = |path: &str, key: Option<&str>| {
        let request = Request::get(path);
        let request = match key {
            Some(key) => request.header("authorization", format!("Bearer {key}")),
            None => request,
        };
        request.body(Body::empty()).expect("a request")
    };
    for (path, key, status) in [
        ("/v1/models", None, 401),
        ("/v1/models", Some("wrong"), 401),
        ("/v1/models", Some("secret"), 200),
        ("/health", None, 200),
        ("/readyz", None, 200),
        ("/metrics", None, 200),
    ] {
        assert_eq!(call(&app, get(path, key)).await.status.as_u16(), status, "{path} {key:?}");
    }
    let open = call(&app, post_request("/v1/chat/completions", &chat(&json!({})))).await;
    assert_eq!(
        (open.status.as_u16(), open.error()["code"].as_str()),
        (401, Some("invalid_api_key"))
    );
}

#[tokio::test]
async fn while_loading_only_liveness_is_fine() {
    let app = App::new(&config(""));
    let get = |path: &str| Request::get(path).body(Body::empty()).expect("a request");
    assert_eq!(call(&app, get("/livez")).await.status, 200);
    for path in ["/readyz", "/health", "/v1/models", "/metrics"] {
        let answer = call(&app, get(path)).await;
        assert_eq!(
            (answer.status.as_u16(), answer.error()["code"].as_str()),
            (503, Some("loading"))
        );
        assert!(answer.headers.contains_key("retry-after"));
    }
}

#[tokio::test]
async fn draining_refuses_new_work_and_closing_ends_a_stream_with_an_error() {
    let app = start(&slow());
    let service = Arc::clone(app.service().expect("ready"));
    let endless = json!({"prompt": "x", "max_tokens": 4_000, "ignore_eos": true, "stream": true});
    let running = tokio::spawn({
        let app = Arc::clone(&app);
        async move { call(&app, post_request("/v1/completions", &endless)).await }
    });
    service.in_flight.subscribe().wait_for(|count| *count == 1).await.expect("it starts");
    app.begin_drain();
    service.engine.drain();
    let ready = Request::get("/readyz").body(Body::empty()).expect("a request");
    assert_eq!(call(&app, ready).await.status, 503);
    let refused = call(&app, post_request("/v1/chat/completions", &chat(&json!({})))).await;
    assert_eq!(
        (refused.status.as_u16(), refused.error()["code"].as_str()),
        (503, Some("draining"))
    );
    service.closing.send_replace(true);
    let cut = running.await.expect("the task lives");
    let last: Value = serde_json::from_str(cut.events().last().expect("events")).expect("JSON");
    assert_eq!(last["error"]["code"], "shutting_down");
    assert_eq!(*service.in_flight.borrow(), 0);
}

#[tokio::test]
async fn a_dropped_answer_frees_everything() {
    let app = start(&slow());
    let service = Arc::clone(app.service().expect("ready"));
    for stream in [true, false] {
        let mut body = json!({"prompt": "x", "n": 3, "max_tokens": 4_000, "ignore_eos": true});
        body["stream"] = stream.into();
        let answering = tokio::spawn({
            let app = Arc::clone(&app);
            async move { call(&app, post_request("/v1/completions", &body)).await }
        });
        let mut in_flight = service.in_flight.subscribe();
        in_flight.wait_for(|count| *count == 1).await.expect("it starts");
        answering.abort();
        in_flight.wait_for(|count| *count == 0).await.expect("it ends");
        let all_free = async {
            loop {
                let counts = service.engine.snapshot().counts;
                if counts.free_blocks == counts.num_blocks {
                    return counts;
                }
                tokio::task::yield_now().await;
            }
        };
        let counts = timeout(Duration::from_secs(60), all_free).await.expect("within a step");
        assert_eq!((counts.running, counts.waiting), (0, 0));
    }
}
