//! The end, in order: say so, go on for a moment, refuse new work, finish what runs, cut the rest.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Request, State};
use axum::http::HeaderValue;
use axum::http::header::CONNECTION;
use axum::middleware::Next;
use axum::response::Response;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until, timeout_at};

use crate::state::{App, Service};

/// SIGTERM and SIGINT.
#[derive(Debug)]
pub struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    /// From now on the signals do not end the process by themselves.
    ///
    /// # Errors
    /// The system refuses a handler.
    pub fn catch() -> anyhow::Result<Signals> {
        let terminate = signal(SignalKind::terminate())?;
        let interrupt = signal(SignalKind::interrupt())?;
        Ok(Signals { terminate, interrupt })
    }

    /// The next one.
    pub async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

/// How long each stage may take.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// Load balancers need this long to see that we are not ready any more.
    pub delay: Duration,
    /// Running answers may take this long to finish.
    pub grace: Duration,
}

impl Patience {
    /// The points in time at which they are over if draining began `since`.
    fn ends(self, since: Instant) -> (Instant, Instant) {
        (since + self.delay, since + self.delay + self.grace)
    }
}

/// Drains the service; a second signal skips what is left of a stage. What `POST /drain` has waited
/// for already is not waited for again. Afterwards no answer is being produced: those that had time
/// left are complete, the others ended in an error event.
pub async fn drain(app: &App, service: &Service, signals: &mut Signals) {
    let (noticed, over) = app.patience.ends(app.begin_drain());
    tracing::info!(delay = ?app.patience.delay, "shutting down; still accepting");
    tokio::select! {
        () = sleep_until(noticed) => {}
        () = signals.next() => {}
    }
    service.engine.drain();
    let mut in_flight = service.in_flight.subscribe();
    let running = *in_flight.borrow();
    tracing::info!(running, grace = ?app.patience.grace, "finishing running answers");
    tokio::select! {
        _ = timeout_at(over, in_flight.wait_for(|count| *count == 0)) => {}
        () = signals.next() => {}
    }
    let cut = *in_flight.borrow();
    if cut > 0 {
        tracing::warn!(cut, "out of time; ending the rest with an error");
    }
    service.closing.send_replace(true);
}

/// The same without the end: from now on not ready, a moment later nothing new is taken. Returns
/// when nothing is in flight any more, or when the time for it is over: how much still is.
pub async fn quiesce(app: &App) -> usize {
    let (noticed, over) = app.patience.ends(app.begin_drain());
    let Some(service) = app.service() else { return 0 };
    sleep_until(noticed).await;
    service.engine.drain();
    let mut in_flight = service.in_flight.subscribe();
    let idle = timeout_at(over, in_flight.wait_for(|count| *count == 0)).await.is_ok();
    if idle { 0 } else { *in_flight.borrow() }
}

/// A layer: a server that ends parts from its clients after each answer, so that pools of
/// connections move to another one.
pub async fn part(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    let mut response = next.run(request).await;
    if app.is_draining() {
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

/// Closes the listener and waits for the last bytes, then stops the engine, and waits for the last
/// log lines.
pub async fn close(
    stop: watch::Sender<bool>,
    connections: tokio::task::JoinHandle<()>,
    service: Arc<Service>,
) {
    stop.send_replace(true);
    if let Err(error) = connections.await {
        tracing::error!(%error, "the connections did not end in order");
    }
    let engine = service.engine.clone();
    let stopped = tokio::task::spawn_blocking(move || engine.shutdown()).await;
    if let Err(error) = stopped {
        tracing::error!(%error, "the engine did not end in order");
    }
    service.journal.flush().await;
}
