//! One tenant bursts to ten times its reservation; the other stays within its own.

use sim::experiment::Effort;
use sim::tenants::{Case, Offer, Rules};

const EFFORT: Effort = Effort { first_seed: 1, seeds: 3, requests: 0, threads: 1 };

/// Per mille of what the steady tenant would have kept on a device of its own: lost with
/// reservations, and without.
fn lost(workload: &str, target: &str) -> [usize; 2] {
    let offer = Offer { steady: 0.8, burst: 10.0, seconds: 60.0 };
    let case = Case::new(workload, target.parse().unwrap()).unwrap();
    [Rules::Tenants, Rules::Gate].map(|rules| {
        let outcomes = case.run(&offer, rules, &EFFORT);
        let [lost, alone]: [usize; 2] = [
            outcomes.iter().map(|outcome| outcome.lost).sum(),
            outcomes.iter().map(|outcome| outcome.alone).sum(),
        ];
        assert!(alone > 500, "{outcomes:?}");
        println!("{workload} {rules:?}: {lost} of {alone}");
        lost * 1_000 / alone
    })
}

#[test]
fn a_burst_costs_nothing_of_what_a_device_of_its_own_would_have_kept() {
    let [with, without] = lost("8b-conv", "1.5s+60ms");
    assert!(with == 0 && without > 300, "{with} and {without} per mille");
}

/// Where the whole answer is due, those who borrow are held to the pace of what is reserved.
#[test]
fn nor_much_where_only_the_whole_answer_is_due() {
    let [with, without] = lost("8b-code", "8x");
    assert!(with <= 30 && without > 300, "{with} and {without} per mille");
}
