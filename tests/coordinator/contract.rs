//! What every coordinator has to do, asked of the books in memory and of those in Redis.

use std::collections::BTreeSet;
use std::time::Duration;

use harness::redis::RedisServer;
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64;
use scheduler::cluster::Report;
use server::coordinator::address::{Address, Target};
use server::coordinator::record::Decoded;
use server::coordinator::{Call, Claim, Coordinator, Memory, Redis, Reply, record};

/// Long enough to outlive a test.
const LONG: u32 = 60_000;

pub(super) fn books(redis: &RedisServer) -> Redis {
    let address: Address = redis.url().parse().unwrap();
    connect(address.target(None).unwrap())
}

pub(super) fn connect(target: Target) -> Redis {
    Redis::new(target, "test:", "cluster/model")
}

pub(super) fn call(member: &str, seq: u32, epoch: u64, life_ms: u32, claims: &[Claim]) -> Call {
    let decoded = Decoded { seq, life_ms, report: Report { waiting: seq, ..Report::default() } };
    Call {
        member: member.into(),
        seq,
        epoch,
        life_ms,
        leaves: false,
        record: record::encode(&decoded),
        claims: claims.to_vec(),
    }
}

async fn tick(books: &mut dyn Coordinator, call: &Call) -> Reply {
    books.tick(call).await.unwrap()
}

fn names(reply: &Reply) -> Vec<&str> {
    let names: BTreeSet<&str> = reply.members.iter().map(|member| &*member.name).collect();
    names.into_iter().collect()
}

const fn claim(held: u32, want: u32) -> Claim {
    // With bytes that a careless script would take for text.
    Claim { tenant: 0xff00_0a0d_0025_7b7d, cap: 10, held, want, demand: want }
}

/// Two connections to the same books.
async fn keeps_the_contract(mut a: impl Coordinator, mut b: impl Coordinator) {
    a.connect().await.unwrap();
    b.connect().await.unwrap();
    // Who joins is seen with what it said.
    let first = tick(&mut a, &call("a", 1, 0, LONG, &[])).await;
    assert!(first.epoch > 0 && !first.steady && !first.stale);
    let reply = tick(&mut b, &call("b", 1, first.epoch, LONG, &[])).await;
    assert_eq!((names(&reply), reply.epoch), (vec!["a", "b"], first.epoch));
    let seen = reply.members.iter().find(|member| &*member.name == "a").unwrap();
    assert_eq!(seen.record, call("a", 1, 0, LONG, &[]).record);
    assert!((1..=u64::from(LONG)).contains(&seen.expires_in_ms), "{}", seen.expires_in_ms);

    // A call that comes behind a newer one changes nothing.
    let newer = tick(&mut a, &call("a", 3, first.epoch, LONG, &[claim(0, 4)])).await;
    assert!(newer.steady && newer.grants == [4], "{newer:?}");
    let older = tick(&mut a, &call("a", 2, first.epoch, LONG, &[claim(0, 9)])).await;
    assert!(older.stale, "{older:?}");

    // No more than the cap, whoever asks, and no more than was held by who was not there before.
    let rest = tick(&mut b, &call("b", 2, first.epoch, LONG, &[claim(0, 9)])).await;
    assert_eq!(rest.grants, [6]);
    let newcomer = tick(&mut b, &call("c", 1, first.epoch, LONG, &[claim(0, 9)])).await;
    assert_eq!((newcomer.steady, newcomer.grants), (false, vec![0]));
    let stranger = tick(&mut b, &call("b", 3, 1, LONG, &[claim(2, 9)])).await;
    assert_eq!((stranger.steady, stranger.grants), (false, vec![2]), "other books");

    // Who leaves is gone, and so is what it held.
    let leaves = Call { leaves: true, ..call("a", 4, first.epoch, LONG, &[]) };
    assert_eq!(names(&tick(&mut a, &leaves).await), ["b", "c"]);
    let freed = tick(&mut b, &call("b", 4, first.epoch, LONG, &[claim(2, 9)])).await;
    assert_eq!(freed.grants, [9]);

    // Who is not heard of any more is gone too, and may not come back as if nothing had been.
    let brief = tick(&mut a, &call("d", 1, first.epoch, 60, &[])).await;
    assert_eq!(names(&brief), ["b", "c", "d"]);
    tokio::time::sleep(Duration::from_millis(100)).await;
    let after = tick(&mut b, &call("b", 5, first.epoch, LONG, &[])).await;
    assert_eq!((names(&after), after.steady), (vec!["b", "c"], true));
    let back = tick(&mut a, &call("d", 2, first.epoch, LONG, &[claim(0, 1)])).await;
    assert_eq!((back.steady, back.grants), (false, vec![0]));

    // Half of the others are over at once: nothing is handed out on that.
    for name in ["e", "f", "g"] {
        tick(&mut a, &call(name, 1, first.epoch, 60, &[])).await;
    }
    tokio::time::sleep(Duration::from_millis(100)).await;
    let split = tick(&mut b, &call("b", 6, first.epoch, LONG, &[claim(3, 9)])).await;
    assert_eq!((split.steady, split.grants), (false, vec![3]));
}

#[tokio::test]
async fn memory_keeps_the_contract() {
    let books = Memory::default();
    keeps_the_contract(books.clone(), books).await;
}

#[tokio::test]
async fn redis_keeps_the_contract() {
    let redis = RedisServer::start();
    keeps_the_contract(books(&redis), books(&redis)).await;
    assert!(redis.cli(&["function", "list"]).contains("sluice_tick_"), "as a function");
}

/// A user that may not load functions gets by with `EVALSHA`.
#[tokio::test]
async fn redis_without_functions_keeps_the_contract() {
    let redis = RedisServer::start();
    let rule = ["acl", "setuser", "eve", "on", ">pw", "~test:*", "+@all", "-function", "-fcall"];
    assert_eq!(redis.cli(&rule), "OK");
    let url = redis.url().replace("redis://", "redis://eve:pw@");
    let address: Address = url.parse().unwrap();
    let target = address.target(None).unwrap();
    keeps_the_contract(connect(target.clone()), connect(target)).await;
    assert_eq!(redis.cli(&["function", "list"]), "");
}

/// The model in Rust and the script in Redis answer every call alike.
#[tokio::test]
async fn model_and_script_agree_on_any_calls() {
    let server = RedisServer::start();
    let (memory, mut redis) = (Memory::default(), books(&server));
    let mut model = memory.clone();
    redis.connect().await.unwrap();
    let mut rng = Pcg64::seed_from_u64(5);
    let mut epochs = [0, 0];
    for round in 0..600u32 {
        if rng.random_range(0..60) == 0 {
            memory.flush();
            assert_eq!(server.cli(&["flushall"]), "OK");
        }
        let member = ["a", "b", "c", "d\u{e9}"][rng.random_range(0..4)];
        let claims: Vec<Claim> = (0..rng.random_range(0..4))
            .map(|tenant| Claim {
                tenant,
                cap: rng.random_range(0..20),
                held: rng.random_range(0..20),
                want: rng.random_range(0..30),
                demand: rng.random_range(0..30),
            })
            .collect();
        let late = rng.random_range(0..10) == 0;
        let seq = if late { round.saturating_sub(20) } else { round + 1 };
        let mut asked = call(member, seq, 0, LONG, &claims);
        asked.leaves = rng.random_range(0..20) == 0;
        let knows = rng.random_range(0..8) > 0;
        let ask = |epoch: u64| Call { epoch: if knows { epoch } else { 1 }, ..asked.clone() };
        let mut replies = [
            model.tick(&ask(epochs[0])).await.unwrap(),
            redis.tick(&ask(epochs[1])).await.unwrap(),
        ];
        epochs = [replies[0].epoch, replies[1].epoch];
        // Clocks and names of books differ, nothing else does.
        for reply in &mut replies {
            (reply.now_ms, reply.epoch) = (0, 0);
            reply.members.sort_by(|a, b| a.name.cmp(&b.name));
            reply.members.iter_mut().for_each(|member| member.expires_in_ms = 0);
        }
        assert_eq!(replies[0], replies[1], "round {round}: {asked:?}");
    }
}

/// Books that nobody opens any more go away by themselves.
#[tokio::test]
async fn abandoned_books_leave_nothing_behind() {
    let server = RedisServer::start();
    let mut books = books(&server);
    books.connect().await.unwrap();
    books.tick(&call("a", 1, 0, 50, &[claim(0, 1)])).await.unwrap();
    assert_ne!(server.cli(&["dbsize"]), "0");
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(server.cli(&["keys", "*"]), "");
}
