//! The text of `/metrics`, as scrapers and dashboards see it.

use engine::record::RecordStatus;
use scheduler::{
    Counts, Deadline, Forecast, Quantity, RequestId, Rule, Settled, Shed, ShedReason, StepLoad,
    TenantId, Terminal,
};

use super::catalogue::{CATALOGUE, Kind};
use super::*;

fn metrics() -> Metrics {
    let model_name = "tiny".to_owned();
    Metrics::new(&Facts {
        model_name,
        max_model_len: 256,
        block_size: 32,
        num_blocks: 8,
        prefix_caching: true,
        promises: true,
        tenants: vec![("default", 0), ("gold", 250)],
    })
}

fn report(terminal: Terminal) -> RequestReport {
    RequestReport {
        id: RequestId(1),
        name: "one".into(),
        class: Class::Latency,
        tenant: TenantId::DEFAULT,
        terminal,
        failure: None,
        deadline: Deadline { first_token: Some(Micros(500_000)), ..Deadline::default() },
        settled: Some(Settled {
            forecast: Forecast {
                first_token: Micros(200_000),
                last_token: Micros(500_000),
                upper_first: Micros(300_000),
                upper_last: Micros(650_000),
                work: Micros(1),
            },
            carried_first: Micros(400_000),
            carried_last: Micros(480_000),
            exact: true,
            displaced: false,
        }),
        arrival: Micros(0),
        scheduled: Some(Micros(100_000)),
        first_token: Some(Micros(400_000)),
        last_token: Some(Micros(600_000)),
        ended: Micros(600_000),
        prompt_tokens: 10,
        cached_tokens: 4,
        output_tokens: 5,
        max_tokens: 16,
        num_sequences: 1,
        finished: [1, 0],
        preemptions: 0,
    }
}

#[test]
fn the_record_is_seen() {
    let metrics = metrics();
    let mut snapshot = Snapshot::default();
    assert_eq!(line(&metrics.render(&snapshot), "inference_recorder_up"), "0.0");
    for (bytes, lost, failed, up) in [(10, 0, false, "1.0"), (30, 4, true, "0.0")] {
        snapshot.record = Some(RecordStatus { bytes, lost, failed });
        let text = metrics.render(&snapshot);
        assert_eq!(line(&text, "inference_recorder_bytes_total"), bytes.to_string());
        assert_eq!(line(&text, "inference_recorder_lost_events_total"), lost.to_string());
        assert_eq!(line(&text, "inference_recorder_up"), up);
    }
}

fn line<'a>(text: &'a str, series: &str) -> &'a str {
    let found = text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
    found.unwrap_or_else(|| panic!("no series {series} in\n{text}"))
}

#[test]
fn every_entry_of_the_catalogue_exists_from_the_start() {
    let text = metrics().render(&Snapshot::default());
    for entry in CATALOGUE {
        let kind = match entry.kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram(_) => "histogram",
        };
        assert!(text.contains(&format!("# TYPE {} {kind}\n", entry.name)), "{}", entry.name);
        let series = text.lines().find(|line| {
            let rest = line.strip_prefix(entry.name);
            rest.is_some_and(|rest| rest.starts_with([' ', '{']) || rest.starts_with("_bucket"))
        });
        let series = series.unwrap_or_else(|| panic!("no series of {}", entry.name));
        for label in entry.labels {
            assert!(series.contains(&format!("{label}=\"")), "{series}");
        }
    }
    let types = text.lines().filter(|line| line.starts_with("# TYPE")).count();
    assert_eq!(types, CATALOGUE.len(), "a metric that is not in the catalogue");
}

#[test]
fn bucket_bounds_read_as_vllm_writes_them() {
    let text = metrics().render(&Snapshot::default());
    for bound in ["0.001", "1.0", "2560.0", "+Inf"] {
        let name = "vllm:time_to_first_token_seconds_bucket";
        let bucket = format!("{name}{{model_name=\"tiny\",le=\"{bound}\"}} 0\n");
        assert!(text.contains(&bucket), "no {bucket} in\n{text}");
    }
}

#[test]
fn an_ended_request_is_counted_once_everywhere() {
    let metrics = metrics();
    metrics.request(&report(Terminal::Completed));
    let text = metrics.render(&Snapshot::default());
    let model = "{model_name=\"tiny\"}";
    assert_eq!(line(&text, &format!("vllm:e2e_request_latency_seconds_count{model}")), "1");
    assert_eq!(line(&text, &format!("vllm:request_generation_tokens_sum{model}")), "5.0");
    let completed = "inference_requests_total{outcome=\"completed\",class=\"latency\"}";
    assert_eq!(line(&text, completed), "1");
    assert_eq!(line(&text, "inference_slo_met_total{class=\"latency\"}"), "1");
    let ratio = |quantity: &str, basis: &str| {
        let labels = format!("class=\"latency\",quantity=\"{quantity}\",basis=\"{basis}\"");
        line(&text, &format!("inference_forecast_ratio_sum{{{labels}}}")).to_owned()
    };
    assert_eq!(
        (ratio("ttft", "admission"), ratio("ttft", "carried")),
        ("2.0".into(), "1.0".into())
    );
    assert_eq!((ratio("e2e", "admission"), ratio("e2e", "carried")), ("1.2".into(), "1.25".into()));
}

/// Tokens are counted when they come, not when their request ends.
#[test]
fn a_first_token_and_a_step_are_counted_at_once() {
    let metrics = metrics();
    let (arrival, scheduled, at) = (Micros(1_000_000), Micros(1_500_000), Micros(3_500_000));
    let (prompt_tokens, cached_tokens) = (30, 16);
    metrics.first_token(&FirstToken { arrival, scheduled, at, prompt_tokens, cached_tokens });
    for preemptions in [1, 1, 4] {
        metrics.step(&StepReport {
            duration: Micros(1_000),
            predicted: Micros(1_000),
            load: StepLoad::default(),
            tokens: 7,
            generated: 2,
            counts: Counts {
                preemptions,
                cache_queries: preemptions * 100,
                cache_hits: preemptions * 25,
                ..Counts::default()
            },
        });
    }
    let text = metrics.render(&Snapshot::default());
    for (name, value) in [
        ("vllm:prompt_tokens_total", "30"),
        ("vllm:prompt_tokens_cached_total", "16"),
        ("vllm:prefix_cache_queries_total", "400"),
        ("vllm:prefix_cache_hits_total", "100"),
        ("vllm:request_prefill_kv_computed_tokens_sum", "14.0"),
        ("vllm:generation_tokens_total", "6"),
        ("vllm:num_preemptions_total", "4"),
        ("vllm:time_to_first_token_seconds_sum", "2.5"),
        ("vllm:request_queue_time_seconds_sum", "0.5"),
        ("vllm:request_prefill_time_seconds_sum", "2.0"),
    ] {
        assert_eq!(line(&text, &format!("{name}{{model_name=\"tiny\"}}")), value, "{name}");
    }
}

/// The last token where the length was known, the first where it was not; a client that left
/// early shows nothing of a last token.
#[test]
fn coverage_counts_what_can_be_told() {
    let metrics = metrics();
    let settled = report(Terminal::Completed).settled.expect("planted");
    let learned = Some(Settled { exact: false, ..settled });
    metrics.request(&report(Terminal::Completed));
    metrics.request(&report(Terminal::Cancelled));
    metrics.request(&RequestReport { settled: learned, ..report(Terminal::Cancelled) });
    metrics.request(&report(Terminal::Expired));
    let text = metrics.render(&Snapshot::default());
    let share: f64 = line(&text, "inference_forecast_coverage_ratio{class=\"latency\"}")
        .parse()
        .expect("a number");
    assert!((share - 1.0 / 3.0).abs() < 0.01, "{share}");
}

#[test]
fn targets_are_missed_by_lateness_and_by_expiry_but_not_by_a_client_that_left() {
    let metrics = metrics();
    metrics.request(&report(Terminal::Expired));
    metrics.request(&report(Terminal::Cancelled));
    let mut late = report(Terminal::Completed);
    late.first_token = Some(Micros(500_001));
    metrics.request(&late);
    metrics.request(&report(Terminal::Failed));
    let gone = RequestReport { first_token: None, ..report(Terminal::Cancelled) };
    metrics.request(&gone);
    let text = metrics.render(&Snapshot::default());
    assert_eq!(line(&text, "inference_slo_missed_total{class=\"latency\"}"), "4");
    assert_eq!(
        line(&text, "inference_promises_broken_total{class=\"latency\"}"),
        "3",
        "a failure is not the forecast's fault; a client that waited in vain has a right to it"
    );
    assert_eq!(line(&text, "inference_slo_met_total{class=\"latency\"}"), "0");
}

#[test]
fn refusals_are_counted_by_reason_and_attempt() {
    let metrics = metrics();
    let refusal = Refusal::NeverFits { needed: 9, available: 8 };
    metrics.admission(Class::Throughput, 2, Duration::from_micros(3), Some(&refusal));
    metrics.admission(Class::Throughput, 0, Duration::from_micros(3), None);
    let text = metrics.render(&Snapshot::default());
    let rejected = "inference_admission_rejected_total\
                    {reason=\"never_fits\",class=\"throughput\",attempt=\"retry\"}";
    assert_eq!(line(&text, rejected), "1");
    let accepted = "inference_admission_accepted_total{class=\"throughput\",attempt=\"first\"}";
    assert_eq!(line(&text, accepted), "1");
}

#[test]
fn sheds_are_counted_by_rule_and_as_a_share_of_first_attempts() {
    let metrics = metrics();
    let took = Duration::from_micros(3);
    let shed = |rule, reason| {
        Refusal::Shed(Shed {
            reason,
            rule,
            quantity: Quantity::FirstToken,
            retry_after: Micros(1_500_000),
            should_retry: true,
            predicted: Micros(1),
            budget: Micros(1),
            position: 0,
        })
    };
    for retry in [0, 1] {
        let harm = shed(Rule::Harm, ShedReason::SloMiss);
        metrics.admission(Class::Latency, retry, took, Some(&harm));
        let draining = shed(Rule::Bound, ShedReason::Draining);
        metrics.admission(Class::Latency, retry, took, Some(&draining));
    }
    (0..3).for_each(|_| metrics.admission(Class::Latency, 0, took, None));
    let text = metrics.render(&Snapshot::default());
    let by_rule = |rule: &str| {
        let series = format!("inference_admission_shed_total{{rule=\"{rule}\",class=\"latency\"}}");
        line(&text, &series).to_owned()
    };
    assert_eq!(
        ["bound", "own", "harm", "kind", "expected"].map(by_rule),
        ["2", "0", "2", "0", "0"]
    );
    assert_eq!(line(&text, "inference_admission_rejected_ratio"), "0.25");
    assert_eq!(line(&text, "inference_retry_after_seconds_sum"), "6.0");
}

#[test]
fn gauges_follow_the_snapshot() {
    let metrics = metrics();
    let counts = Counts { running: 3, free_blocks: 2, num_blocks: 8, ..Counts::default() };
    let outstanding = [Micros(1_500_000), Micros(0)];
    let margin_permille = [1_250, 1_050];
    let snapshot = Snapshot { counts, outstanding, margin_permille, ..Snapshot::default() };
    let text = metrics.render(&snapshot);
    assert_eq!(line(&text, "inference_admission_margin_ratio{class=\"throughput\"}"), "1.05");
    assert_eq!(line(&text, "vllm:num_requests_running{model_name=\"tiny\"}"), "3.0");
    assert_eq!(line(&text, "vllm:kv_cache_usage_perc{model_name=\"tiny\"}"), "0.75");
    assert_eq!(line(&text, "inference_outstanding_work_seconds{class=\"latency\"}"), "1.5");
}

#[test]
fn leases_are_summed_by_tier() {
    let metrics = metrics();
    let text = metrics.render(&Snapshot::default());
    assert_eq!(line(&text, "inference_coordinator_lease_units{tier=\"gold\"}"), "0.0");
    for (units, of_gold) in [([3, 4], "4.0"), ([3, 0], "0.0")] {
        metrics.tenant_leases([TenantId(0), TenantId(1)].into_iter().zip(units));
        let text = metrics.render(&Snapshot::default());
        assert_eq!(line(&text, "inference_coordinator_lease_units{tier=\"gold\"}"), of_gold);
        assert_eq!(line(&text, "inference_coordinator_lease_units{tier=\"default\"}"), "3.0");
    }
}

/// The user guide lists exactly what is exported.
#[test]
fn the_guide_lists_exactly_the_catalogue() {
    let guide = include_str!("../../docs/metrics.md");
    let mut listed: Vec<&str> =
        guide.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next()).collect();
    let mut exported: Vec<&str> = CATALOGUE.iter().map(|entry| entry.name).collect();
    listed.sort_unstable();
    exported.sort_unstable();
    assert_eq!(listed, exported);
}
