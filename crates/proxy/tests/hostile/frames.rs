//! Raw HTTP/2 frames that a library would not send.

use tokio::io::AsyncReadExt as _;
use tokio::time::timeout;

use crate::kit::Attacker;
use crate::rig::{PATIENCE, Rig};

pub(crate) const DATA: u8 = 0;
pub(crate) const HEADERS: u8 = 1;
pub(crate) const RST_STREAM: u8 = 3;
pub(crate) const SETTINGS: u8 = 4;
pub(crate) const PING: u8 = 6;
pub(crate) const GOAWAY: u8 = 7;
pub(crate) const CONTINUATION: u8 = 9;
pub(crate) const END_STREAM: u8 = 1;
pub(crate) const END_HEADERS: u8 = 4;

/// One frame.
pub(crate) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let mut bytes = length[1..].to_vec();
    bytes.extend([kind, flags]);
    bytes.extend(stream.to_be_bytes());
    bytes.extend(payload);
    bytes
}

/// Headers as HPACK literals without indexing.
pub(crate) fn block(headers: &[(&str, &[u8])]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (name, value) in headers {
        bytes.push(0);
        text(&mut bytes, name.as_bytes());
        text(&mut bytes, value);
    }
    bytes
}

/// A string without Huffman coding; its length has a prefix of seven bits.
fn text(bytes: &mut Vec<u8>, text: &[u8]) {
    match text.len().checked_sub(127) {
        None => bytes.push(u8::try_from(text.len()).unwrap()),
        Some(mut rest) => {
            bytes.push(127);
            while rest >= 128 {
                bytes.push(u8::try_from(rest % 128).unwrap() | 128);
                rest /= 128;
            }
            bytes.push(u8::try_from(rest).unwrap());
        }
    }
    bytes.extend(text);
}

/// A request for `path` at `cart.test`, with more headers.
pub(crate) fn get(path: &str, more: &[(&str, &[u8])]) -> Vec<u8> {
    let usual: [(&str, &[u8]); 4] =
        [(":method", b"GET"), (":scheme", b"http"), (":authority", b"cart.test"), (":path", path.as_bytes())];
    block(&[&usual, more].concat())
}

impl Attacker {
    /// A connection that speaks HTTP/2, with these settings.
    pub(crate) async fn h2(rig: &Rig, settings: &[u8]) -> Self {
        let mut attacker = Self::new(rig).await;
        attacker.send(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await;
        attacker.send(frame(SETTINGS, 0, 0, settings)).await;
        attacker
    }

    /// The verdict on a request without a body, sent as this header block.
    pub(crate) async fn verdict_on(rig: &Rig, head: &[u8]) -> Verdict {
        let mut attacker = Self::h2(rig, &[]).await;
        attacker.send(frame(HEADERS, END_HEADERS | END_STREAM, 1, head)).await;
        attacker.verdict().await
    }

    /// The next frame as its kind and its payload; `None` at the end of the connection.
    pub(crate) async fn frame(&mut self) -> Option<(u8, Vec<u8>)> {
        let reading = async {
            let mut head = [0; 9];
            self.0.read_exact(&mut head).await.ok()?;
            let [long, longer, longest, kind, ..] = head;
            let mut payload = vec![0; u32::from_be_bytes([0, long, longer, longest]) as usize];
            self.0.read_exact(&mut payload).await.ok()?;
            Some((kind, payload))
        };
        timeout(PATIENCE, reading).await.expect("a frame or the end should come")
    }

    /// The verdict on one request.
    pub(crate) async fn verdict(&mut self) -> Verdict {
        loop {
            match self.frame().await {
                None => return Verdict::Ended,
                Some((GOAWAY, payload)) => {
                    return Verdict::GoAway(payload.get(7).copied().unwrap_or(0));
                }
                Some((RST_STREAM, ..)) => return Verdict::Reset,
                // Status 200 is entry 8 of HPACK's static table; no other response begins with it.
                Some((HEADERS, block)) if block.first() == Some(&0x88) => return Verdict::Served,
                Some((HEADERS, ..)) => return Verdict::Refused,
                Some(_) => {}
            }
        }
    }
}

/// The verdict on a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    Served,
    Refused,
    Reset,
    GoAway(u8),
    Ended,
}
