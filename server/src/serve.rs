//! `sluice serve`: open the port, load the model, serve, end in order.

use std::sync::Arc;
use std::thread;

use anyhow::Context;
use tokio::sync::{oneshot, watch};

use crate::config::Config;
use crate::coordinator::task;
use crate::shutdown::{self, Signals};
use crate::state::App;
use crate::{app, launch, net, scaling};

/// Serves until a signal comes.
///
/// # Errors
/// The port cannot be opened, or the model cannot be loaded: one line that says what to do.
pub async fn run(config: Config) -> anyhow::Result<()> {
    let mut signals = Signals::catch()?;
    // The port first: if it is taken, that is known before a minute was spent on loading, and
    // probes get their answers meanwhile.
    let listener = net::bind(&config.host, config.port).await?;
    let url = net::url(listener.local_addr()?);
    let state = App::new(&config);
    let stop = watch::Sender::new(false);
    let coordinator = task::start(&config, &state)?;
    let router = app::router(state.clone());
    let connections =
        tokio::spawn(net::serve(listener, router, config.max_connections, stop.subscribe()));
    let rule = config.scaling.rule();

    let (launched, summary) = tokio::select! {
        launched = load(config) => launched?,
        () = signals.next() => {
            leave(coordinator).await;
            return Ok(());
        }
    };
    let service = state.ready(launched);
    eprintln!("{}", summary.text(&url));
    tokio::spawn(scaling::watch(Arc::clone(&state), Arc::clone(&service), rule));

    signals.next().await;
    shutdown::drain(&state, &service, &mut signals).await;
    leave(coordinator).await;
    shutdown::close(stop, connections, service).await;
    tracing::info!("ended");
    Ok(())
}

/// The others need not wait until this replica is missing.
async fn leave(coordinator: Option<task::Running>) {
    if let Some(running) = coordinator {
        running.leave().await;
    }
}

/// Loads on a thread of its own: a signal that comes meanwhile need not wait for it.
async fn load(config: Config) -> anyhow::Result<(crate::state::Service, launch::Summary)> {
    let runtime = tokio::runtime::Handle::current();
    let (done, loaded) = oneshot::channel();
    thread::Builder::new().name("sluice-load".into()).spawn(move || {
        let _guard = runtime.enter();
        // Nobody waits any more if a signal came first.
        let _unheard = done.send(launch::launch(&config));
    })?;
    loaded.await.context("loading the model ended without a result")?
}
