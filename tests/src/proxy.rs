//! A way between two processes that can be made slow, cut, or turned to another place.

use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, tcp};
use tokio::runtime::Builder;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, sleep_until};

/// How often a cut way looks whether it is whole again.
const LOOK: Duration = Duration::from_millis(5);

#[derive(Debug, Default)]
struct Way {
    to: AtomicU16,
    delay_ms: AtomicU64,
    cut: AtomicBool,
    /// Connections made before the last turn end.
    turns: AtomicU64,
}

impl Way {
    fn turns(&self) -> u64 {
        self.turns.load(Ordering::Acquire)
    }
}

/// Hands on what comes to its port. Lives as long as the process.
#[derive(Debug)]
pub struct Proxy {
    port: u16,
    way: Arc<Way>,
}

impl Proxy {
    /// From a free port to `port`, both on this machine.
    ///
    /// # Panics
    /// If there is no port or no thread.
    #[must_use]
    pub fn start(port: u16) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let own = listener.local_addr().unwrap().port();
        let way = Arc::new(Way { to: port.into(), ..Way::default() });
        let ways = Arc::clone(&way);
        thread::spawn(move || {
            let runtime = Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(serve(listener, ways));
        });
        Proxy { port: own, way }
    }

    /// `redis://127.0.0.1:PORT`
    #[must_use]
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// From now on each way takes so much longer.
    pub fn delay(&self, delay: Duration) {
        let millis = u64::try_from(delay.as_millis()).unwrap_or(u64::MAX);
        self.way.delay_ms.store(millis, Ordering::Relaxed);
    }

    /// From now on nothing gets through, though nobody is told; or it does again.
    pub fn cut(&self, cut: bool) {
        self.way.cut.store(cut, Ordering::Relaxed);
    }

    /// From now on connections go to `port`; those there are end.
    pub fn turn(&self, port: u16) {
        self.way.to.store(port, Ordering::Release);
        self.way.turns.fetch_add(1, Ordering::AcqRel);
    }
}

async fn serve(listener: TcpListener, way: Arc<Way>) {
    let listener = tokio::net::TcpListener::from_std(listener).unwrap();
    while let Ok((client, _)) = listener.accept().await {
        let way = Arc::clone(&way);
        tokio::spawn(async move {
            let to = way.to.load(Ordering::Acquire);
            let Ok(server) = TcpStream::connect(("127.0.0.1", to)).await else { return };
            let (from_client, to_client) = client.into_split();
            let (from_server, to_server) = server.into_split();
            tokio::spawn(carry(from_client, to_server, Arc::clone(&way)));
            tokio::spawn(carry(from_server, to_client, way));
        });
    }
}

/// Carries bytes one way. They lie in between for the delay, which does not slow the flow.
async fn carry(mut from: tcp::OwnedReadHalf, mut to: tcp::OwnedWriteHalf, way: Arc<Way>) {
    let (sender, mut receiver) = mpsc::channel::<(Instant, Vec<u8>)>(1_024);
    let (delays, turns) = (Arc::clone(&way), way.turns());
    let reading = tokio::spawn(async move {
        let mut buffer = vec![0; 64 << 10];
        while let Ok(count @ 1..) = from.read(&mut buffer).await {
            let delay = Duration::from_millis(delays.delay_ms.load(Ordering::Relaxed));
            let piece = (Instant::now() + delay, buffer[..count].to_vec());
            if sender.send(piece).await.is_err() {
                break;
            }
        }
    });
    while way.turns() == turns {
        let piece = tokio::select! {
            piece = receiver.recv() => piece,
            () = sleep(LOOK) => continue,
        };
        let Some((due, bytes)) = piece else { break };
        sleep_until(due).await;
        while way.cut.load(Ordering::Relaxed) && way.turns() == turns {
            sleep(LOOK).await;
        }
        if to.write_all(&bytes).await.is_err() {
            break;
        }
    }
    reading.abort();
}
