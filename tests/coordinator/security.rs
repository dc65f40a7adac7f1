//! Who may come in, and what is said if one may not.

use harness::Server;
use harness::process::run;
use harness::redis::RedisServer;
use serde_json::json;

use super::{logs, replica, sees, until};

#[tokio::test]
async fn a_wrong_password_is_said_once_and_stops_nobody() {
    let redis = RedisServer::with(&["--requirepass", "right"]);
    let url = redis.url().replace("redis://", "redis://:wrong@");
    let server = replica(&url, &[]);
    logs(&server, "coordinator lets nobody in", 1).await;
    let body = json!({"prompt": "x", "max_tokens": 2});
    assert_eq!(server.post("/v1/completions", &body).await.status, 200);
    until(&server, "inference_coordinator_up", &[], 0.0).await;
    logs(&server, "coordinator lets nobody in", 1).await;
    assert!(!server.log().contains("wrong"), "the password is nobody's business");
}

#[tokio::test]
async fn a_user_with_few_rights_is_enough() {
    let redis = RedisServer::start();
    let rights =
        ["+@connection", "+info", "+fcall", "+evalsha", "+eval", "+function|load", "+time"];
    let data = ["+zscore", "+zrangebyscore", "+zrem", "+hdel", "+zcard", "+get", "+set", "+hget"];
    let more = ["+hset", "+zadd", "+hgetall", "+hmget", "+pexpire", "+zrange"];
    let rule = [&["acl", "setuser", "sluice", "on", ">pw", "~sluice:*", "-@all"][..]];
    let rule = [rule[0], &rights, &data, &more].concat();
    assert_eq!(redis.cli(&rule), "OK");
    let url = redis.url().replace("redis://", "redis://sluice@");
    let args = ["--coordinator-password", "pw"];
    let (a, b) = (replica(&url, &args), replica(&url, &args));
    sees(&a, 2).await;
    sees(&b, 2).await;
}

#[tokio::test]
async fn a_redis_that_may_evict_is_warned_of() {
    let redis = RedisServer::with(&["--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru"]);
    let server = replica(&redis.url(), &[]);
    sees(&server, 1).await;
    logs(&server, "maxmemory-policy", 1).await;
}

/// Two models, two prefixes or two databases do not see each other.
#[tokio::test]
async fn other_clusters_are_not_seen() {
    let redis = RedisServer::start();
    let url = redis.url();
    let other = format!("{url}/1");
    let servers: Vec<Server> = [
        (&url, ["--served-model-name", "one"]),
        (&url, ["--served-model-name", "two"]),
        (&url, ["--coordinator-prefix", "other:"]),
        (&other, ["--served-model-name", "one"]),
    ]
    .map(|(url, args)| replica(url, &args))
    .into();
    let twin = replica(&url, &["--coordinator-cluster", "one"]);
    sees(&servers[0], 2).await;
    sees(&twin, 2).await;
    for server in &servers[1..] {
        sees(server, 1).await;
    }
}

#[test]
fn a_mistake_in_the_address_is_found_at_the_start() {
    for (url, named) in [
        ("postgres://x", "redis://"),
        ("redis+sentinel://a:1", "service"),
        ("rediss://a/#insecure", "SSL_CERT_FILE"),
    ] {
        let (status, text) = run(&["serve", "--runner", "simulated", "--coordinator", url]);
        assert!(!status.success() && text.contains(named), "{text}");
    }
}
