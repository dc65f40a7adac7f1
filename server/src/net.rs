//! Connections: bounded in number, and each bounded in how long it may dawdle, whether it sends or
//! is sent to.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use anyhow::Context as _;
use axum::Router;
use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::{Sleep, sleep};
use tower::util::MapRequest;

/// How long a connection may take to send the head of a request; also how long it may stay idle.
const HEAD_TIMEOUT: Duration = Duration::from_secs(75);
/// How long a client may leave its answer unread.
const WRITE_TIMEOUT: Duration = Duration::from_secs(60);
/// How long answers that are complete may take to leave when the server ends.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(2);
/// A pause after the system ran out of sockets.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Who sent a request: the other end of its connection.
#[derive(Clone, Copy, Debug)]
pub struct Peer(pub SocketAddr);

/// Opens the port.
///
/// # Errors
/// One line that says what to do if the port is taken or the address is not ours.
pub async fn bind(host: &str, port: u16) -> anyhow::Result<TcpListener> {
    let host = host.trim_start_matches('[').trim_end_matches(']');
    TcpListener::bind((host, port)).await.with_context(|| match port {
        1..1024 => format!("cannot listen on {host}:{port}; ports below 1024 need privileges"),
        _ => format!(
            "cannot listen on {host}:{port}; is another server running there? Choose another port \
             with --port, or let the system choose with --port 0"
        ),
    })
}

/// Serves connections until `stop` turns true, then lets answers that are under way leave.
pub async fn serve(
    listener: TcpListener,
    router: Router,
    max_connections: usize,
    mut stop: watch::Receiver<bool>,
) {
    let slots = Arc::new(Semaphore::new(max_connections));
    let connections = GracefulShutdown::new();
    loop {
        let accepted = tokio::select! {
            accepted = accept(&listener, &slots) => accepted,
            _ = stop.wait_for(|stop| *stop) => break,
        };
        match accepted {
            Ok((stream, peer, slot)) => spawn(stream, peer, slot, router.clone(), &connections),
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    drop(listener);
    let _late_answers_are_cut = tokio::time::timeout(FLUSH_TIMEOUT, connections.shutdown()).await;
}

/// The next connection, once there is a slot for it; until then it waits in the system's queue.
async fn accept(
    listener: &TcpListener,
    slots: &Arc<Semaphore>,
) -> io::Result<(TcpStream, Peer, OwnedSemaphorePermit)> {
    let slot = Arc::clone(slots).acquire_owned().await.expect("the semaphore is never closed");
    let (stream, peer) = listener.accept().await?;
    stream.set_nodelay(true)?;
    Ok((stream, Peer(peer), slot))
}

fn spawn(
    stream: TcpStream,
    peer: Peer,
    slot: OwnedSemaphorePermit,
    router: Router,
    connections: &GracefulShutdown,
) {
    let io = TokioIo::new(Impatient::new(stream));
    let service = MapRequest::new(router, move |mut request: Request<Incoming>| {
        request.extensions_mut().insert(peer);
        request
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .serve_connection(io, TowerToHyperService::new(service));
    let connection = connections.watch(connection);
    tokio::spawn(async move {
        if let Err(error) = connection.await {
            tracing::trace!(%error, "connection ended");
        }
        drop(slot);
    });
}

/// What the user is told to open: a wildcard address is no place to go to.
#[must_use]
pub fn url(address: SocketAddr) -> String {
    match address {
        address if !address.ip().is_unspecified() => format!("http://{address}"),
        address => format!("http://127.0.0.1:{}", address.port()),
    }
}

/// A stream that fails when the peer does not read for [`WRITE_TIMEOUT`].
struct Impatient<S> {
    stream: S,
    stalled: Option<Pin<Box<Sleep>>>,
}

impl<S> Impatient<S> {
    fn new(stream: S) -> Impatient<S> {
        Impatient { stream, stalled: None }
    }

    /// Passes on the result of a write, and measures how long there has been none.
    fn judge<T>(
        &mut self,
        context: &mut Context<'_>,
        result: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if result.is_ready() {
            self.stalled = None;
            return result;
        }
        let stalled = self.stalled.get_or_insert_with(|| Box::pin(sleep(WRITE_TIMEOUT)));
        stalled.as_mut().poll(context).map(|()| Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Impatient<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Impatient<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.judge(context, result)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        self.judge(context, result)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests;
