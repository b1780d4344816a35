//! Attacking clients: each holds as many resources as it can, and reconnects when the gateway closes its connection.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::{Interval, MissedTickBehavior, interval};

/// An answer that is too large for memory.
pub(crate) const LARGE: &str = "/bytes/100000000";
/// The app reads nothing of what is sent here.
pub(crate) const UNTAKEN: &str = "/sink/next";
/// The app does not answer here.
pub(crate) const UNANSWERED: &str = "/hang";

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const PRIORITY: u8 = 2;
const SETTINGS: u8 = 4;
const WINDOW_UPDATE: u8 = 8;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
/// Indexes of methods in HPACK's static table.
const GET: u8 = 2;
const POST: u8 = 3;

/// The window of each stream: 2 MB.
const WINDOW: u32 = 2 << 20;
/// How often an attacker sends or reads a little, and notices that its connection is closed.
const PACE: Duration = Duration::from_millis(100);

/// What one attacker does on each of its connections.
#[derive(Debug, Clone)]
pub(crate) struct Attack {
    first: Vec<u8>,
    then: Then,
}

#[derive(Debug, Clone)]
enum Then {
    /// Reads nothing, and sends these bytes every [`PACE`].
    Stall(Vec<u8>),
    /// Reads this many bytes every [`PACE`], and sends nothing.
    ReadSlowly(usize),
    /// Sends these bytes again and again, as fast as the gateway takes them.
    SendOn(Vec<u8>),
}

impl Attack {
    /// Requests a large response on each of `streams` HTTP/2 streams, and reads nothing.
    pub(crate) fn downloads_over_http2(host: &str, streams: u32) -> Self {
        Self { first: requests(GET, host, LARGE, streams, &[]), then: Then::Stall(nothing()) }
    }

    /// The same, but it reads a little.
    pub(crate) fn slow_downloads_over_http2(host: &str, streams: u32) -> Self {
        // 50 KiB each second.
        let then = Then::ReadSlowly(5 * 1024);
        Self { then, ..Self::downloads_over_http2(host, streams) }
    }

    /// Begins a body on each of `streams` HTTP/2 streams, and never ends it.
    pub(crate) fn uploads_over_http2(host: &str, path: &str, streams: u32, frames: usize) -> Self {
        Self { first: requests(POST, host, path, streams, &vec![0; frames]), then: Then::Stall(nothing()) }
    }

    /// Sends whole bodies on `streams` HTTP/2 streams to an app that does not answer.
    pub(crate) fn unanswered_uploads_over_http2(host: &str, streams: u32) -> Self {
        let flags = [0, 0, END_STREAM];
        Self { first: requests(POST, host, UNANSWERED, streams, &flags), then: Then::Stall(nothing()) }
    }

    /// Requests a large response, and reads nothing.
    pub(crate) fn download(host: &str) -> Self {
        let first = format!("GET {LARGE} HTTP/1.1\r\nHost: {host}\r\n\r\n").into_bytes();
        Self { first, then: Then::Stall(b"\r\n".to_vec()) }
    }

    /// Sends a body without end, as fast as the gateway takes it.
    pub(crate) fn upload(host: &str) -> Self {
        let first = format!("POST {UNTAKEN} HTTP/1.1\r\nHost: {host}\r\nContent-Length: 1000000000\r\n\r\n");
        Self { first: first.into_bytes(), then: Then::SendOn(vec![b'a'; 16 * 1024]) }
    }

    /// Sends most of a long head, and then a byte every [`PACE`].
    pub(crate) fn incomplete_head(host: &str) -> Self {
        let first = format!("GET / HTTP/1.1\r\nHost: {host}\r\nX-Long: {}", "a".repeat(60 * 1024));
        Self { first: first.into_bytes(), then: Then::Stall(b"a".to_vec()) }
    }

    /// Sends a long head to an app that does not answer.
    pub(crate) fn long_head(host: &str) -> Self {
        let long = "a".repeat(60 * 1024);
        let first = format!("GET {UNANSWERED} HTTP/1.1\r\nHost: {host}\r\nX-Long: {long}\r\n\r\n");
        Self { first: first.into_bytes(), then: Then::Stall(b"\r\n".to_vec()) }
    }

    /// Requests metrics of the admin API again and again, and reads nothing.
    pub(crate) fn unread_metrics(admin: SocketAddr) -> Self {
        let request = format!("GET /metrics HTTP/1.1\r\nHost: {admin}\r\n\r\n").into_bytes();
        Self { first: request.clone(), then: Then::SendOn(request) }
    }

    /// Attacks until it is dropped.
    pub(crate) async fn keep_up(self, address: SocketAddr) {
        let mut pace = pace();
        loop {
            if let Ok(stream) = connect(address).await {
                // However the connection ends, the attacker opens the next one.
                self.once(stream).await.ok();
            }
            pace.tick().await;
        }
    }

    async fn once(&self, mut stream: TcpStream) -> std::io::Result<()> {
        stream.write_all(&self.first).await?;
        let mut pace = pace();
        loop {
            match &self.then {
                Then::Stall(bytes) => stream.write_all(bytes).await?,
                Then::SendOn(bytes) => {
                    stream.write_all(bytes).await?;
                    continue;
                }
                Then::ReadSlowly(bytes) => {
                    stream.read_exact(&mut vec![0; *bytes]).await?;
                }
            }
            pace.tick().await;
        }
    }
}

fn pace() -> Interval {
    let mut pace = interval(PACE);
    pace.set_missed_tick_behavior(MissedTickBehavior::Delay);
    pace
}

/// A connection with a small receive buffer, so that the client's kernel takes little off the gateway.
async fn connect(address: SocketAddr) -> std::io::Result<TcpStream> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    socket.set_recv_buffer_size(16 * 1024)?;
    let stream = socket.connect(address).await?;
    // Closing sends a reset: the gateway would take an orderly close for a client that still waits for its response.
    rustix::net::sockopt::set_socket_linger(&stream, Some(Duration::ZERO))?;
    Ok(stream)
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let mut frame = vec![length[1], length[2], length[3], kind, flags];
    frame.extend(stream.to_be_bytes());
    frame.extend(payload);
    frame
}

/// A frame without effect.
fn nothing() -> Vec<u8> {
    frame(PRIORITY, 0, 1, &[0, 0, 0, 0, 16])
}

/// A request head as HPACK literals.
fn head(method: u8, host: &str, path: &str) -> Vec<u8> {
    let mut block = vec![0x80 | method, 0x86];
    for (index, value) in [(4, path), (1, host)] {
        block.extend([index, u8::try_from(value.len()).unwrap()]);
        block.extend(value.as_bytes());
    }
    block
}

/// An HTTP/2 connection with `streams` requests, each with a data frame for each of `flags`.
fn requests(method: u8, host: &str, path: &str, streams: u32, flags: &[u8]) -> Vec<u8> {
    let mut all = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    let window = [&[0, 4][..], &WINDOW.to_be_bytes()].concat();
    all.extend(frame(SETTINGS, 0, 0, &window));
    all.extend(frame(WINDOW_UPDATE, 0, 0, &((1u32 << 31) - 1 - 65_535).to_be_bytes()));
    for id in (0..streams).map(|number| 2 * number + 1) {
        let end = if method == GET { END_STREAM } else { 0 };
        all.extend(frame(HEADERS, END_HEADERS | end, id, &head(method, host, path)));
        for flags in flags {
            all.extend(frame(DATA, *flags, id, &[b'a'; 16 * 1024]));
        }
    }
    all
}
