//! The end, in order: say so, go on for a moment, refuse new work, finish what runs, cut the rest.

use std::sync::Arc;
use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

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

/// Drains the service; a second signal skips what is left of a stage. Afterwards no answer is being
/// produced: those that had time left are complete, the others ended in an error event.
pub async fn drain(app: &App, service: &Service, patience: Patience, signals: &mut Signals) {
    app.begin_drain();
    tracing::info!(delay = ?patience.delay, "shutting down; still accepting");
    tokio::select! {
        () = sleep(patience.delay) => {}
        () = signals.next() => {}
    }
    service.engine.drain();
    let mut in_flight = service.in_flight.subscribe();
    let running = *in_flight.borrow();
    tracing::info!(running, grace = ?patience.grace, "finishing running answers");
    tokio::select! {
        _ = timeout(patience.grace, in_flight.wait_for(|count| *count == 0)) => {}
        () = signals.next() => {}
    }
    let cut = *in_flight.borrow();
    if cut > 0 {
        tracing::warn!(cut, "out of time; ending the rest with an error");
    }
    service.closing.send_replace(true);
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
