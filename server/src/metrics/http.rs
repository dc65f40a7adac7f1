//! `http_requests_total`.

use std::sync::Arc;

use axum::extract::{MatchedPath, Request, State};
use axum::http::{Method, StatusCode};
use axum::middleware::Next;
use axum::response::Response;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;

use super::register::Registrar;
use crate::state::App;

/// Labels of one series. The handler is a route's pattern, so its values are a closed set.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct HttpLabels {
    handler: String,
    method: &'static str,
    status: &'static str,
}

/// Counts answers.
#[derive(Debug)]
pub(crate) struct Http {
    requests: Family<HttpLabels, Counter>,
}

impl Http {
    pub(crate) fn new(r: &mut Registrar) -> Http {
        let http = Http { requests: r.family("http_requests_total") };
        for handler in ["/v1/chat/completions", "/v1/completions"] {
            for status in ["2xx", "4xx", "5xx"] {
                http.series(handler, "POST", status);
            }
        }
        http
    }

    fn series(&self, handler: &str, method: &'static str, status: &'static str) -> Counter {
        let labels = HttpLabels { handler: handler.to_owned(), method, status };
        self.requests.get_or_create_owned(&labels)
    }
}

/// Counts the request once its status is known.
pub async fn count(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    let path = request.extensions().get::<MatchedPath>().cloned();
    let method = method_label(request.method());
    let response = next.run(request).await;
    if let Some(service) = app.service() {
        let handler = path.as_ref().map_or("none", MatchedPath::as_str);
        service.metrics.http.series(handler, method, group(response.status())).inc();
    }
    response
}

fn method_label(method: &Method) -> &'static str {
    match *method {
        Method::GET => "GET",
        Method::POST => "POST",
        Method::HEAD => "HEAD",
        Method::OPTIONS => "OPTIONS",
        _ => "other",
    }
}

fn group(status: StatusCode) -> &'static str {
    match status.as_u16() / 100 {
        2 => "2xx",
        3 => "3xx",
        4 => "4xx",
        5 => "5xx",
        _ => "1xx",
    }
}
