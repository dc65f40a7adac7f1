//! One tenant bursts to ten times its reservation; the other stays within its own.

use sim::experiment::Effort;
use sim::tenants::{Case, Offer, Rules};

const EFFORT: Effort = Effort { first_seed: 1, seeds: 3, requests: 0, threads: 1 };

/// Of what the steady tenant would have kept on a device of its own nearly all is kept; without
/// reservations most of it is lost.
#[test]
fn a_burst_costs_little_of_what_a_device_of_its_own_would_have_kept() {
    let offer = Offer { steady: 0.8, burst: 10.0, seconds: 60.0 };
    let case = Case::new("8b-conv", "1.5s+60ms".parse().unwrap()).unwrap();
    let lost = |rules| {
        let outcomes = case.run(&offer, rules, &EFFORT);
        let [lost, alone]: [usize; 2] = [
            outcomes.iter().map(|outcome| outcome.lost).sum(),
            outcomes.iter().map(|outcome| outcome.alone).sum(),
        ];
        assert!(alone > 500, "{outcomes:?}");
        lost * 1_000 / alone
    };
    let (with, without) = (lost(Rules::Tenants), lost(Rules::Gate));
    println!("{with} per mille lost with reservations, {without} without");
    assert!(with <= 40 && with * 3 < without, "{with} and {without} per mille");
}
