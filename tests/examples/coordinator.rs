//! What a request feels of a Redis in trouble: the same light load on one of several real replicas
//! (simulated runner) while Redis is well, stopped, slow, down and so on. One table. Run it by
//! `benches/coordinator.sh`.
#![allow(clippy::panic, clippy::unwrap_used, reason = "a broken set-up should end it")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use harness::Server;
use harness::prometheus::Scrape;
use harness::proxy::Proxy;
use harness::redis::RedisServer;
use http_body_util::BodyExt;
use hyper::Method;
use load::client::Client;
use scheduler::Micros;
use scheduler::cluster::{Pace, Report, Stage};
use serde_json::json;
use server::coordinator::address::Address;
use server::coordinator::record::{self, Decoded};
use server::coordinator::{Call, Coordinator, Redis};
use tokio::task::JoinSet;
use tokio::time::{interval, sleep, timeout};

const PATH: &str = "/v1/completions";
const DECISIONS: &str = "inference_admission_decision_seconds_bucket";

/// Requests a second, a tenth of what the replica can do.
const RATE: u64 = 100;

/// A request that takes longer has failed.
const LONGEST: Duration = Duration::from_secs(10);

/// What the measured replica has between itself and Redis.
struct World {
    redis: RedisServer,
    /// Follows the first one, until it is cut loose.
    second: RedisServer,
    proxies: Vec<Proxy>,
    replicas: Vec<Server>,
    length: Duration,
}

#[derive(Clone, Copy, PartialEq)]
enum Trouble {
    None,
    Stopped,
    Slow,
    Down,
    Flushed,
    FailedOver,
    Partitioned,
    Full,
    Password,
    Fakes,
}

const ALL: [(&str, Trouble); 10] = [
    ("healthy", Trouble::None),
    ("stopped (SIGSTOP)", Trouble::Stopped),
    ("slow (200 ms there and back)", Trouble::Slow),
    ("down", Trouble::Down),
    ("flushed every 100 ms", Trouble::Flushed),
    ("failed over, last 500 ms lost", Trouble::FailedOver),
    ("half of the replicas cut off", Trouble::Partitioned),
    ("memory full (noeviction)", Trouble::Full),
    ("password wrong", Trouble::Password),
    ("256 fake replicas beside", Trouble::Fakes),
];

impl World {
    async fn new(length: Duration, trouble: Trouble) -> World {
        let (redis, second) = (RedisServer::start(), RedisServer::start());
        let count = if trouble == Trouble::Partitioned { 4 } else { 2 };
        let proxies: Vec<Proxy> = (0..count).map(|_| Proxy::start(redis.port())).collect();
        let start = |proxy: &Proxy| Server::simulated(&["--coordinator", &proxy.url()]);
        let replicas = proxies.iter().map(start).collect();
        let world = World { redis, second, proxies, replicas, length };
        world.all_there().await;
        world
    }

    /// Until everybody sees everybody.
    async fn all_there(&self) {
        let count = self.replicas.len() as f64;
        for replica in &self.replicas {
            let seen = |scrape: &Scrape| {
                scrape.sum("inference_coordinator_peers", &["state=\"ready\""]) >= count
                    && scrape.sum("inference_coordinator_up", &[]) == 1.0
            };
            replica.metrics_where("whole", seen).await;
        }
    }

    fn cli(&self, args: &[&str]) {
        assert!(!self.redis.cli(args).contains("ERR"), "{args:?}");
    }

    async fn begin(&mut self, trouble: Trouble) {
        match trouble {
            Trouble::None | Trouble::Fakes | Trouble::Flushed => {}
            Trouble::Stopped => self.redis.signal("STOP"),
            Trouble::Slow => {
                self.proxies.iter().for_each(|proxy| proxy.delay(Duration::from_millis(100)));
            }
            Trouble::Down => self.redis.kill(),
            Trouble::FailedOver => {
                let port = self.redis.port().to_string();
                assert_eq!(self.second.cli(&["replicaof", "127.0.0.1", &port]), "OK");
                sleep(Duration::from_secs(2)).await;
                assert_eq!(self.second.cli(&["replicaof", "no", "one"]), "OK");
                sleep(Duration::from_millis(500)).await;
                self.redis.kill();
                let port = self.second.port();
                self.proxies.iter().for_each(|proxy| proxy.turn(port));
            }
            Trouble::Partitioned => {
                self.proxies.iter().take(2).for_each(|proxy| proxy.cut(true));
            }
            Trouble::Full => self.cli(&["config", "set", "maxmemory", "1"]),
            Trouble::Password => {
                self.cli(&["config", "set", "requirepass", "other"]);
                let kill = ["-a", "other", "client", "kill", "type", "normal", "skipme", "yes"];
                self.cli(&kill);
            }
        }
    }

    fn end(&mut self, trouble: Trouble) {
        match trouble {
            Trouble::None | Trouble::Fakes | Trouble::Flushed | Trouble::FailedOver => {}
            Trouble::Stopped => self.redis.signal("CONT"),
            Trouble::Slow => self.proxies.iter().for_each(|proxy| proxy.delay(Duration::ZERO)),
            Trouble::Down => self.redis.restart(),
            Trouble::Partitioned => self.proxies.iter().for_each(|proxy| proxy.cut(false)),
            Trouble::Full => self.cli(&["config", "set", "maxmemory", "0"]),
            Trouble::Password => {
                self.cli(&["-a", "other", "config", "set", "requirepass", ""]);
            }
        }
    }

    /// A light load on the first replica; its latencies in order, and how many failed.
    async fn load(&self, trouble: Trouble) -> (Vec<Duration>, usize) {
        let body = json!({"prompt": "x", "max_tokens": 4, "ignore_eos": true});
        let client = Arc::new(Client::new(self.replicas[0].url(), None, &[]).unwrap());
        let mut requests = JoinSet::new();
        let mut ticks = interval(Duration::from_micros(1_000_000 / RATE));
        let began = Instant::now();
        let mut flushed = began;
        while began.elapsed() < self.length {
            ticks.tick().await;
            if trouble == Trouble::Flushed && flushed.elapsed() > Duration::from_millis(100) {
                flushed = Instant::now();
                self.cli(&["flushall"]);
            }
            let (client, body) = (Arc::clone(&client), body.to_string());
            requests.spawn(async move {
                let sent = Instant::now();
                let answered = timeout(LONGEST, async {
                    let exchange = client.send(Method::POST, PATH, body.into()).await.ok()?;
                    let status = exchange.response.status();
                    exchange.response.into_body().collect().await.ok()?;
                    (status == 200).then_some(())
                });
                let fine = matches!(answered.await, Ok(Some(())));
                (sent.elapsed(), fine)
            });
        }
        let outcomes = requests.join_all().await;
        let mut times: Vec<Duration> =
            outcomes.iter().filter_map(|(took, fine)| fine.then_some(*took)).collect();
        times.sort_unstable();
        let failed = outcomes.len() - times.len();
        (times, failed)
    }
}

fn quantile(times: &[Duration], part: f64) -> f64 {
    let index = ((times.len() as f64 * part) as usize).min(times.len().saturating_sub(1));
    times.get(index).map_or(f64::NAN, |time| time.as_secs_f64() * 1e3)
}

/// The upper bound, in microseconds, of a quantile of what came between two scrapes.
fn decided(before: &Scrape, after: &Scrape, part: f64) -> f64 {
    let mut bounds: Vec<(f64, f64)> = after
        .0
        .iter()
        .filter_map(|(name, count)| {
            let bound = name.strip_prefix(DECISIONS)?.split('"').nth(1)?;
            let bound = if bound == "+Inf" { f64::INFINITY } else { bound.parse().ok()? };
            Some((bound, count - before.0.get(name).copied().unwrap_or(0.0)))
        })
        .collect();
    bounds.sort_by(|a, b| a.0.total_cmp(&b.0));
    let all = bounds.last().map_or(0.0, |last| last.1);
    let found = bounds.iter().find(|(_, count)| *count >= all * part);
    found.map_or(f64::NAN, |(bound, _)| bound * 1e6)
}

/// Replicas that are nothing but their calls.
fn fakes(redis: &RedisServer) -> JoinSet<()> {
    let mut tasks = JoinSet::new();
    for number in 0..256 {
        let address: Address = redis.url().parse().unwrap();
        let mut books = Redis::new(address.target(None).unwrap(), "sluice:", "default");
        tasks.spawn(async move {
            let Pace { tick, life } = Pace::of(258);
            let life_ms = life.as_millis() as u32;
            sleep(Duration::from_micros(tick.0 * number / 256)).await;
            if books.connect().await.is_err() {
                return;
            }
            let report = Report { stage: Stage::Ready, ..Report::default() };
            for seq in 1.. {
                let record = record::encode(&Decoded { seq, life_ms, report });
                let member = format!("fake-{number}").into();
                let claims = Vec::new();
                let call = Call { member, seq, epoch: 0, life_ms, leaves: false, record, claims };
                // A fake that fails is one fake less for a moment.
                let _ = books.tick(&call).await;
                sleep(Duration::from_micros(tick.0)).await;
            }
        });
    }
    tasks
}

async fn measure(name: &str, trouble: Trouble, length: Duration) {
    let mut world = World::new(length, trouble).await;
    let mut crowd = JoinSet::new();
    if trouble == Trouble::Fakes {
        crowd = fakes(&world.redis);
        sleep(Duration::from_secs(5)).await;
    }
    world.begin(trouble).await;
    let before = world.replicas[0].metrics().await;
    let (times, failed) = world.load(trouble).await;
    let after = world.replicas[0].metrics().await;
    let lines = world.replicas[0].log().lines().filter(|line| line.contains("coordinator")).count();
    world.end(trouble);
    let ended = Instant::now();
    world.all_there().await;
    let back = ended.elapsed();
    crowd.shutdown().await;
    let age = Micros((after.sum("inference_coordinator_view_age_seconds", &[]) * 1e6) as u64);
    println!(
        "| {name} | {} | {failed} | {:.2} | {:.2} | {:.1} | {:.1} | {} | {:.1} | {lines} | {:.1} |",
        times.len(),
        quantile(&times, 0.5),
        quantile(&times, 0.99),
        decided(&before, &after, 0.5),
        decided(&before, &after, 0.99),
        after.sum("inference_coordinator_up", &[]),
        age.0 as f64 / 1e6,
        back.as_secs_f64(),
    );
}

#[tokio::main]
async fn main() {
    let quick = std::env::var_os("QUICK").is_some();
    let length = Duration::from_secs(if quick { 3 } else { 30 });
    println!(
        "| Redis is | served | failed | p50, ms | p99, ms | decision p50, us | decision p99, us | \
         `up` | view age, s | log lines | well again after, s |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|---|");
    for (name, trouble) in ALL {
        measure(name, trouble, length).await;
    }
}
