//! The prefix cache on a trace of conversations: what it finds is what an independent model finds,
//! and the gate admits more by knowing it.

use scheduler::{AdmissionMode, KindConfig};
use sim::mooncake::{TURNS, jobs};
use sim::prefix::{Use, model_hits, run, scheduler_hits};
use sim::profile::H100_8B;
use sim::{Admitting, Setup, Target};

const TARGET: Target = Target::Tokens(1.0, 30.0);

#[test]
fn hits_are_those_of_a_least_recently_used_cache() {
    let turns = &TURNS[..3_000];
    let unbounded = model_hits(turns, u32::MAX);
    let mut last = 0;
    for pool in [50, 300, 1_000, 5_000, 20_000, 100_000] {
        let hits = scheduler_hits(turns, pool);
        assert_eq!(hits, model_hits(turns, pool), "{pool} blocks");
        assert!(hits.found >= last, "{pool} blocks");
        last = hits.found;
    }
    assert_eq!(last, unbounded.found, "a pool that holds everything loses nothing");
    assert!(unbounded.share() > 0.2, "{unbounded:?}");
}

/// The driver checks its invariants at each event: nobody that is refused early is admitted, the
/// ledger is empty when nobody is inside.
#[test]
fn a_small_pool_under_load_keeps_every_invariant() {
    let rule = Admitting::Gate(AdmissionMode::Deadline, KindConfig::default());
    let mut setup = Setup::new(&H100_8B, "deadline", rule, 3);
    setup.config.num_blocks = 1_500;
    let jobs = jobs(&H100_8B, 400, 30.0, TARGET, 11);
    let first = setup.run(&jobs);
    assert!(first.cached_tokens > 0);
    assert_eq!(first, setup.run(&jobs), "a run is a function of its seed");
}

#[test]
fn a_gate_that_knows_the_cache_lets_more_in_and_keeps_its_promises() {
    let jobs = jobs(&H100_8B, 1_000, 40.0, TARGET, 7);
    let [off, known] = [Use::Off, Use::Known].map(|cache| run(&jobs, cache, 7).0);
    let (without, with) = (off.attainment, known.attainment);
    assert!(with > without && known.kept > 0.95, "{without} {with} {}", known.kept);
}
