//! The text of `/metrics`, as scrapers and dashboards see it.

use scheduler::{Counts, Deadline, Forecast, RequestId, Terminal};

use super::catalogue::{CATALOGUE, Kind};
use super::*;

fn metrics() -> Metrics {
    let model_name = "tiny".to_owned();
    Metrics::new(&Facts { model_name, max_model_len: 256, block_size: 32, num_blocks: 8 })
}

fn report(terminal: Terminal) -> RequestReport {
    RequestReport {
        id: RequestId(1),
        class: Class::Latency,
        terminal,
        deadline: Deadline { first_token: Some(Micros(500_000)), ..Deadline::default() },
        forecast: Forecast {
            first_token: Micros(200_000),
            last_token: Micros(500_000),
            work: Micros(1),
        },
        arrival: Micros(0),
        scheduled: Some(Micros(100_000)),
        first_token: Some(Micros(400_000)),
        ended: Micros(600_000),
        prompt_tokens: 10,
        output_tokens: 5,
        max_tokens: 16,
        num_sequences: 1,
        finished: [1, 0],
        preemptions: 0,
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
    assert_eq!(line(&text, &format!("vllm:generation_tokens_total{model}")), "5");
    assert_eq!(line(&text, &format!("vllm:time_to_first_token_seconds_count{model}")), "1");
    let completed = "inference_requests_total{outcome=\"completed\",class=\"latency\"}";
    assert_eq!(line(&text, completed), "1");
    assert_eq!(line(&text, "inference_slo_met_total{class=\"latency\"}"), "1");
    let ratio =
        "inference_forecast_ratio_sum{class=\"latency\",quantity=\"ttft\",basis=\"admission\"}";
    assert_eq!(line(&text, ratio), "2.0");
}

#[test]
fn targets_are_missed_by_lateness_and_by_expiry_but_not_by_a_client_that_left() {
    let metrics = metrics();
    metrics.request(&report(Terminal::Expired));
    metrics.request(&report(Terminal::Cancelled));
    let mut late = report(Terminal::Completed);
    late.first_token = Some(Micros(500_001));
    metrics.request(&late);
    let text = metrics.render(&Snapshot::default());
    assert_eq!(line(&text, "inference_slo_missed_total{class=\"latency\"}"), "2");
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
fn gauges_follow_the_snapshot() {
    let metrics = metrics();
    let counts = Counts { running: 3, free_blocks: 2, num_blocks: 8, ..Counts::default() };
    let outstanding = [Micros(1_500_000), Micros(0)];
    let text = metrics.render(&Snapshot { counts, outstanding, ..Snapshot::default() });
    assert_eq!(line(&text, "vllm:num_requests_running{model_name=\"tiny\"}"), "3.0");
    assert_eq!(line(&text, "vllm:kv_cache_usage_perc{model_name=\"tiny\"}"), "0.75");
    assert_eq!(line(&text, "inference_outstanding_work_seconds{class=\"latency\"}"), "1.5");
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
