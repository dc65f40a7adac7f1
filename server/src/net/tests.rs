//! Real sockets: who hangs up, who does not read, and how it all ends.

use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};
use tokio::time::timeout;

use super::*;
use crate::app;
use crate::app::tests::{slow, start};

/// Long enough for any machine; nothing waits for it unless a test fails.
const PATIENCE: Duration = Duration::from_secs(60);

fn completion(stream: bool) -> String {
    let body =
        format!(r#"{{"prompt": "x", "max_tokens": 4000, "ignore_eos": true, "stream": {stream}}}"#);
    let length = body.len();
    format!(
        "POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n\
         content-length: {length}\r\n\r\n{body}"
    )
}

/// Waits until so many answers are being produced.
async fn reach(in_flight: &mut watch::Receiver<usize>, wanted: usize) {
    let reached = in_flight.wait_for(|count| *count == wanted);
    timeout(PATIENCE, reached).await.expect("in time").expect("the service lives");
}

#[tokio::test]
async fn a_taken_port_says_what_to_do() {
    let first = bind("127.0.0.1", 0).await.expect("a free port");
    let port = first.local_addr().expect("bound").port();
    let error = bind("127.0.0.1", port).await.unwrap_err();
    assert!(format!("{error:#}").contains("--port"));
}

#[test]
fn the_url_can_be_opened() {
    assert_eq!(url("0.0.0.0:80".parse().expect("an address")), "http://127.0.0.1:80");
    assert_eq!(url("[::1]:80".parse().expect("an address")), "http://[::1]:80");
}

#[tokio::test]
async fn a_client_that_hangs_up_frees_its_request_even_if_nothing_was_sent_to_it() {
    let app = start(&slow());
    let service = Arc::clone(app.service().expect("ready"));
    let listener = bind("127.0.0.1", 0).await.expect("a free port");
    let address = listener.local_addr().expect("bound");
    let stop = watch::Sender::new(false);
    let serving = tokio::spawn(serve(listener, app::router(app), 2, stop.subscribe()));
    let mut in_flight = service.in_flight.subscribe();
    // More rounds than connections are allowed: a slot comes back each time.
    for round in 0..6 {
        let mut client = TcpStream::connect(address).await.expect("it listens");
        client.write_all(completion(round % 2 == 0).as_bytes()).await.expect("sent");
        reach(&mut in_flight, 1).await;
        drop(client);
        reach(&mut in_flight, 0).await;
    }
    stop.send_replace(true);
    timeout(PATIENCE, serving).await.expect("it stops").expect("in order");
}

#[tokio::test]
async fn an_answer_under_way_leaves_before_the_server_ends() {
    let app = start(&slow());
    let listener = bind("127.0.0.1", 0).await.expect("a free port");
    let address = listener.local_addr().expect("bound");
    let stop = watch::Sender::new(false);
    let serving = tokio::spawn(serve(listener, app::router(Arc::clone(&app)), 2, stop.subscribe()));
    let mut client = TcpStream::connect(address).await.expect("it listens");
    client.write_all(completion(true).as_bytes()).await.expect("sent");
    let mut head = [0; 16];
    client.read_exact(&mut head).await.expect("headers");
    assert_eq!(&head, b"HTTP/1.1 200 OK\r");
    app.service().expect("ready").closing.send_replace(true);
    stop.send_replace(true);
    let mut rest = String::new();
    client.read_to_string(&mut rest).await.expect("the rest");
    assert!(rest.contains("shutting_down"), "{rest}");
    timeout(PATIENCE, serving).await.expect("it stops").expect("in order");
}

#[tokio::test(start_paused = true)]
async fn a_client_that_does_not_read_is_given_up() {
    let (server, mut client) = duplex(8);
    let mut server = Impatient::new(server);
    server.write_all(b"12345678").await.expect("room");
    let mut some = [0; 4];
    client.read_exact(&mut some).await.expect("four bytes");
    server.write_all(b"1234").await.expect("room again");
    let began = tokio::time::Instant::now();
    let error = server.write_all(b"5").await.unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    assert!(began.elapsed() >= WRITE_TIMEOUT);
}
