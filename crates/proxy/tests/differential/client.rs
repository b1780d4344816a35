//! The client of the differential fuzz: sends the bytes of a case in its pieces, and reads the responses.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};
use tokio::task::yield_now;
use tokio::time::timeout;

use crate::judge::{Answered, Outcome};
use crate::reader::{End, View};

/// A connection with a unique source address.
pub(crate) struct Connection {
    stream: TcpStream,
    pub(crate) address: Ipv4Addr,
    read: Vec<u8>,
    /// How many cases it has carried.
    pub(crate) carried: u64,
}

impl Connection {
    /// The `number`th connection.
    pub(crate) async fn new(gateway: SocketAddr, number: u32) -> Self {
        let part = |of: u32| u8::try_from(of % 250 + 2).unwrap();
        let address = Ipv4Addr::new(127, part(number / 62_500), part(number / 250), part(number));
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind(SocketAddr::new(IpAddr::V4(address), 0)).unwrap();
        let stream = socket.connect(gateway).await.unwrap();
        stream.set_nodelay(true).unwrap();
        Self { stream, address, read: Vec::new(), carried: 0 }
    }

    /// Sends the pieces of a stream and reads the expected responses, up to the end of the connection if it must end.
    pub(crate) async fn play(&mut self, pieces: &[&[u8]], view: &View, patience: Duration) -> Outcome {
        let mut outcome = Outcome::default();
        let playing = self.exchange(pieces, view, &mut outcome);
        outcome.silent = timeout(patience, playing).await.is_err();
        outcome.stray.clone_from(&self.read);
        outcome
    }

    async fn exchange(&mut self, pieces: &[&[u8]], view: &View, outcome: &mut Outcome) {
        for (at, piece) in pieces.iter().enumerate() {
            if at > 0 {
                yield_now().await;
            }
            if self.stream.write_all(piece).await.is_err() {
                break;
            }
        }
        self.read_answers(view, view.asked.len(), outcome).await;
        match view.end {
            End::Clean if !outcome.answers.iter().any(|answers| answers.close) => return,
            // The gateway must end the connection.
            End::Clean | End::Closed | End::BadHead(_) | End::BadBody(..) => {}
            End::InHead | End::InBody(_) => drop(self.stream.shutdown().await),
        }
        self.read_answers(view, usize::MAX, outcome).await;
    }

    /// Closes the sending side, and reads what still arrives.
    pub(crate) async fn finish(&mut self, view: &View, patience: Duration) -> Outcome {
        let mut outcome = Outcome::default();
        let ending = async {
            self.stream.shutdown().await.ok();
            self.read_answers(view, usize::MAX, &mut outcome).await;
        };
        let silent = timeout(patience, ending).await.is_err();
        Outcome { silent, stray: std::mem::take(&mut self.read), ..outcome }
    }

    async fn read_answers(&mut self, view: &View, wanted: usize, outcome: &mut Outcome) {
        loop {
            while outcome.answers.len() < wanted {
                let without_body = method(view, outcome.answers.len()) == b"HEAD";
                let Some((answers, used)) = answer(&self.read, without_body) else { break };
                self.read.drain(..used);
                if answers.status >= 200 {
                    outcome.answers.push(answers);
                }
            }
            if outcome.ended || outcome.answers.len() >= wanted {
                return;
            }
            outcome.ended = matches!(self.stream.read_buf(&mut self.read).await, Ok(0) | Err(_));
        }
    }
}

fn method(view: &View, place: usize) -> &[u8] {
    match (view.asked.get(place), &view.end) {
        (Some(asked), _) => &asked.method,
        (None, End::BadBody(_, part) | End::InBody(part)) if place == view.asked.len() => &part.method,
        _ => b"",
    }
}

/// The first response in `bytes`, if it is complete, and its length.
fn answer(bytes: &[u8], without_body: bool) -> Option<(Answered, usize)> {
    let end = bytes.windows(4).position(|window| window == b"\r\n\r\n")?;
    let head = String::from_utf8_lossy(&bytes[..end]).to_ascii_lowercase();
    let mut lines = head.split("\r\n");
    let status = lines.next()?.strip_prefix("http/1.")?.get(2..5)?.parse().ok()?;
    let value = |wanted: &str| {
        let mut pairs = head.split("\r\n").filter_map(|line| line.split_once(": "));
        pairs.find(|(name, _)| *name == wanted).map(|(_, value)| value.to_owned())
    };
    let echo = value("x-echo").and_then(|echo| u64::from_str_radix(&echo, 16).ok());
    let length = value("content-length").and_then(|length| length.parse().ok()).unwrap_or(0);
    let used = end + 4 + if without_body || status < 200 { 0 } else { length };
    let close = match value("connection") {
        Some(value) => value == "close",
        None => head.starts_with("http/1.0"),
    };
    (bytes.len() >= used).then_some((Answered { status, echo, close }, used))
}
