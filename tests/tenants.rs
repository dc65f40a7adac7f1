//! Tenants, as clients see them: whose key it is, a burst that takes nothing from others, caps.

use std::sync::Arc;

use harness::{Reply, Server};
use serde_json::{Value, json};
use tokio::task::JoinSet;

/// A prompt of 100 tokens takes a tenth of a second.
const SLOW: &str = "[simulated]\nnoise_permille = 0\n[simulated.cost]\nfixed_ns = 1_000_000\n\
    per_seq_ns = 500_000\nper_prefill_token_ns = 1_000_000\n";

fn serve(config: &str, args: &[&str]) -> Arc<Server> {
    let args = [&["--runner", "simulated", "--slo-tpot", "none"], args].concat();
    Arc::new(Server::configured(&format!("{config}\n{SLOW}"), &args))
}

fn body(number: u32) -> Value {
    let prompt: Vec<u32> = (0..100).map(|i| 40 + (number * 7 + i * (number + 1)) % 80).collect();
    json!({"prompt": prompt, "max_tokens": 4, "ignore_eos": true})
}

/// Sends requests at once with this header.
fn send(server: &Arc<Server>, clients: &mut JoinSet<(u32, Reply)>, numbers: std::ops::Range<u32>) {
    for number in numbers {
        let server = Arc::clone(server);
        clients.spawn(async move {
            let key = if number < 1_000 {
                "authorization: Bearer burst"
            } else {
                "authorization: Bearer steady"
            };
            (number, server.post_with("/v1/completions", &body(number), &[key]).await)
        });
    }
}

fn statuses(replies: &[(u32, Reply)], of: impl Fn(u32) -> bool, status: u16) -> usize {
    replies.iter().filter(|(number, reply)| of(*number) && reply.status == status).count()
}

/// One tenant asks for some twenty times what the others leave; those of the other, within its
/// reservation, are all served.
#[tokio::test]
async fn a_burst_of_one_tenant_never_costs_another_its_share() {
    let config = "[tenant.burst]\napi_keys = [\"burst\"]\nreserved = 0.25\n\
        [tenant.steady]\napi_keys = [\"steady\"]\nreserved = 0.5\ntier = \"gold\"\n";
    let server = serve(config, &["--slo-ttft", "4s", "--log-format", "json"]);
    let mut clients = JoinSet::new();
    send(&server, &mut clients, 0..200);
    send(&server, &mut clients, 1_000..1_008);
    let replies = clients.join_all().await;
    let steady = |number| number >= 1_000;
    assert_eq!(statuses(&replies, steady, 200), 8, "all of the steady tenant are served");
    let refused = statuses(&replies, |number| !steady(number), 429);
    assert!(refused > 100, "{refused} of 200 were refused");
    let metrics = server.get("/metrics").await.text().to_owned();
    for line in [
        "inference_tenant_accepted_total{tier=\"gold\"} 8",
        "inference_tenant_rejected_total{tier=\"gold\"} 0",
        "inference_tenant_reserved_ratio{tier=\"gold\"} 0.5",
    ] {
        assert!(metrics.contains(line), "{line} in {metrics}");
    }
    let named = |line: &&str| line.contains("\"tenant\":\"steady\"");
    for _ in 0..1_000 {
        if server.log().lines().filter(named).count() == 8 {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    panic!("lines of the steady tenant are missing:\n{}", server.log());
}

#[tokio::test]
async fn a_tenant_with_enough_inside_is_told_to_wait() {
    let config = "[tenant.burst]\napi_keys = [\"burst\"]\nmax_requests = 2\n";
    let server = serve(config, &["--tenant", "steady:0.1=steady"]);
    let mut clients = JoinSet::new();
    send(&server, &mut clients, 0..10);
    let replies = clients.join_all().await;
    let over: Vec<&Reply> =
        replies.iter().map(|(_, reply)| reply).filter(|reply| reply.status == 429).collect();
    assert!(!over.is_empty(), "ten at once, and two may be inside");
    for reply in over {
        assert_eq!(reply.error()["code"], "tenant_budget", "{}", reply.text());
        let seconds: u64 = reply.header("retry-after").parse().unwrap();
        assert!((1..=60).contains(&seconds));
    }
}

#[tokio::test]
async fn keys_and_trusted_headers_say_who_it_is() {
    let config = "[tenant.acme]\napi_keys = [\"sk-acme\"]\n";
    let closed = serve(config, &["--api-key", "sk-any"]);
    let post = async |server: &Server, headers: &[&str]| {
        server.post_with("/v1/completions", &body(1), headers).await
    };
    for (key, status) in [("sk-acme", 200), ("sk-any", 200), ("sk-other", 401)] {
        let header = format!("authorization: Bearer {key}");
        assert_eq!(post(&closed, &[&header]).await.status, status, "{key}");
    }
    let unasked = post(&closed, &["authorization: Bearer sk-any", "x-sluice-tenant: acme"]).await;
    assert_eq!((unasked.status, &unasked.error()["param"]), (400, &json!("x-sluice-tenant")));
    let models = closed.get("/v1/models").await;
    assert_eq!(models.status, 401, "with a tenant's key there is no way around keys");
}
