//! Reads Prometheus' text format, as far as the tests need it.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::process::Server;

/// The samples of one scrape: `name{labels}` as written, and the value.
#[derive(Debug, Clone)]
pub struct Scrape(pub BTreeMap<String, f64>);

impl Scrape {
    /// Parses a scrape.
    ///
    /// # Panics
    /// If a line is neither a comment nor a sample.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        let samples = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
        let read = |line: &str| {
            let (name, value) = line.rsplit_once(' ')?;
            Some((name.to_owned(), value.parse().ok()?))
        };
        Self(samples.map(|line| read(line).unwrap_or_else(|| panic!("sample `{line}`"))).collect())
    }

    /// Sum of all samples called `name` whose labels contain each of `labels` (`key="value"`).
    ///
    /// # Panics
    /// If there is no such sample: a misspelt name is not zero.
    #[must_use]
    pub fn sum(&self, name: &str, labels: &[&str]) -> f64 {
        let matches = |key: &str| {
            let (found, rest) = key.split_once('{').unwrap_or((key, ""));
            found == name && labels.iter().all(|label| rest.contains(label))
        };
        let values: Vec<f64> =
            self.0.iter().filter(|(key, _)| matches(key)).map(|(_, value)| *value).collect();
        assert!(!values.is_empty(), "no series {name} with {labels:?}");
        values.iter().sum()
    }

    /// Nothing runs, nothing waits, and no block is held.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        let gauges = [
            "vllm:num_requests_running",
            "vllm:num_requests_waiting",
            "vllm:kv_cache_usage_perc",
            "inference_outstanding_work_seconds",
        ];
        gauges.iter().all(|name| self.sum(name, &[]) == 0.0)
    }
}

impl Server {
    /// Scrapes `/metrics`.
    pub async fn metrics(&self) -> Scrape {
        Scrape::parse(&self.get("/metrics").await.text())
    }

    /// Waits until the server is idle, and gives the scrape that shows it.
    ///
    /// # Panics
    /// If it does not become idle.
    pub async fn idle(&self) -> Scrape {
        self.metrics_where("idle", Scrape::is_idle).await
    }

    /// Scrapes until `holds` is true of a scrape, and gives that one.
    ///
    /// # Panics
    /// If it does not become true in half a minute; says that it was to become `what`.
    pub async fn metrics_where(&self, what: &str, holds: impl Fn(&Scrape) -> bool) -> Scrape {
        for _ in 0..3_000 {
            let scrape = self.metrics().await;
            if holds(&scrape) {
                return scrape;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("not {what}: {:#?}", self.metrics().await);
    }
}
