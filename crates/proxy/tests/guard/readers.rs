//! The guard beside those that read what it lets through: httparse for heads, hyper's rules for bodies, hyper itself.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use http_body_util::Empty;
use hyper::body::Bytes;
use hyper::http::{HeaderMap, HeaderName, HeaderValue};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use rouse_proxy::guard::{Guard, Phase, Refused, Spoilt, Violation};
use rouse_proxy::headers::wanted_upgrade;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::rules::{bad, good};
use crate::{LIMITS, said};

/// Where each message of a good stream ends, its head and its body, as httparse and hyper's decoder see it.
fn ends(stream: &[u8]) -> Vec<(usize, usize)> {
    let (mut at, mut ends) = (0, Vec::new());
    loop {
        let mut room = [httparse::EMPTY_HEADER; 100];
        let mut request = httparse::Request::new(&mut room);
        let parsed = request.parse(&stream[at..]).expect("httparse takes what the guard takes");
        let httparse::Status::Complete(length) = parsed else { return ends };
        let head = at + length;
        let mut headers = HeaderMap::new();
        for header in &*request.headers {
            let name: HeaderName = header.name.parse().unwrap();
            headers.append(name, HeaderValue::from_bytes(header.value).unwrap());
        }
        if request.method == Some("CONNECT") {
            ends.push((head, usize::MAX));
            return ends;
        }
        let switches = request.version == Some(1) && wanted_upgrade(&headers).is_some();
        let body = if headers.contains_key("transfer-encoding") {
            chunked_end(stream, head)
        } else {
            let length =
                headers.get("content-length").map_or(0, |value| value.to_str().unwrap().parse().unwrap());
            head.checked_add(length).filter(|end| *end <= stream.len())
        };
        ends.push((head, body.unwrap_or(usize::MAX)));
        let Some(body) = body.filter(|_| !switches) else { return ends };
        at = body;
    }
}

fn chunked_end(stream: &[u8], mut at: usize) -> Option<usize> {
    loop {
        let status = httparse::parse_chunk_size(&stream[at..]).expect("a chunk size");
        let httparse::Status::Complete((line, size)) = status else { return None };
        at += line;
        if size == 0 {
            let mut room = [httparse::EMPTY_HEADER; 100];
            let status = httparse::parse_headers(&stream[at..], &mut room).expect("trailers");
            let httparse::Status::Complete((length, _)) = status else { return None };
            return Some(at + length);
        }
        at = at.checked_add(usize::try_from(size).unwrap())?.checked_add(2)?;
        if at > stream.len() {
            return None;
        }
    }
}

/// Where a message is over.
const ENDED: [Phase; 2] = [Phase::Between, Phase::Opaque];

/// The guard sees messages end where the others do.
pub(crate) fn same_ends(stream: &[u8]) {
    let (mut guard, mut seen) = (Guard::new(LIMITS), Vec::<(usize, usize)>::new());
    for (at, byte) in stream.iter().enumerate() {
        let before = (guard.requests(), guard.phase());
        guard.inspect(&[*byte]).unwrap();
        if guard.requests() > before.0 {
            let ended = ENDED.contains(&guard.phase()) && !stream.starts_with(b"CONNECT");
            seen.push((at + 1, if ended { at + 1 } else { usize::MAX }));
        } else if before.1 == Phase::Body && ENDED.contains(&guard.phase()) {
            seen.last_mut().unwrap().1 = at + 1;
        }
    }
    assert_eq!(seen, ends(stream), "{:?}", String::from_utf8_lossy(stream));
}

#[test]
fn messages_end_where_httparse_and_hyper_see_them_end() {
    for (stream, ..) in good() {
        same_ends(&stream);
    }
}

#[test]
fn a_spoilt_head_fails_httparse_however_it_was_cut() {
    for (stream, _) in bad() {
        let Some((at, true, _)) = said([&*stream]).refused else { continue };
        let mut spoilt = stream[..at].to_vec();
        let complete = ends_before(&spoilt);
        spoilt.push(0);
        let mut room = [httparse::EMPTY_HEADER; 100];
        let verdict = httparse::Request::new(&mut room).parse(&spoilt[complete..]);
        assert!(verdict.is_err(), "{verdict:?} {:?}", String::from_utf8_lossy(&spoilt));
    }
}

/// Where the head begins that the bytes end in; only after CONNECT is there one before it.
fn ends_before(stream: &[u8]) -> usize {
    let mut room = [httparse::EMPTY_HEADER; 100];
    match httparse::Request::new(&mut room).parse(stream) {
        Ok(httparse::Status::Complete(length)) => length,
        _ => 0,
    }
}

/// A connection that gives one piece per read, and then ends.
struct Pieces {
    read: VecDeque<Vec<u8>>,
    written: Vec<u8>,
}

impl AsyncRead for Pieces {
    fn poll_read(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if let Some(mut piece) = self.read.pop_front() {
            let rest = piece.split_off(piece.len().min(buf.remaining()));
            buf.put_slice(&piece);
            if !rest.is_empty() {
                self.read.push_front(rest);
            }
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Pieces {
    fn poll_write(mut self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.written.extend_from_slice(bytes);
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

async fn hyper_answers(pieces: Vec<Vec<u8>>) -> String {
    let mut io = TokioIo::new(Pieces { read: pieces.into(), written: Vec::new() });
    let service = service_fn(|_: Request<hyper::body::Incoming>| async {
        let mut answer = Response::new(Empty::<Bytes>::new());
        *answer.status_mut() = hyper::StatusCode::METHOD_NOT_ALLOWED;
        Ok::<_, Infallible>(answer)
    });
    let connection = hyper::server::conn::http1::Builder::new().serve_connection(&mut io, service);
    drop(connection.await);
    String::from_utf8(io.into_inner().written).unwrap()
}

/// What hyper reads after the good part of a head.
fn spoilt(seen: &[u8], violation: Violation) -> Vec<u8> {
    let refused = Refused { at: seen.len(), violation, in_head: true };
    let mut spoilt = Spoilt::new(&refused, &LIMITS, seen.last().copied());
    let mut bytes = Vec::new();
    loop {
        // In pieces, as into a buffer that is almost full.
        match spoilt.next(700) {
            [] => return bytes,
            piece => bytes.extend(piece),
        }
    }
}

#[tokio::test]
async fn hyper_answers_a_spoilt_head_with_the_status_of_its_fault_however_it_was_cut() {
    let long = [(format!("GET /{} HTTP/1.1\r\n", "a".repeat(100)).into_bytes(), Violation::LineTooLong)];
    for (stream, _) in bad().into_iter().chain(long) {
        let Some((at, true, violation)) = said([&*stream]).refused else { continue };
        for cut in 0..=at {
            let pieces = [&stream[..cut], &[&stream[cut..at], &spoilt(&stream[..at], violation)].concat()];
            let pieces = pieces.into_iter().filter(|piece| !piece.is_empty()).map(<[u8]>::to_vec);
            let answer = hyper_answers(pieces.collect()).await;
            let shown = String::from_utf8_lossy(&stream);
            let status = match violation {
                Violation::LineTooLong => 414,
                Violation::TooManyHeaders => 431,
                Violation::HeadTooLong if !stream[..at].ends_with(b"\r") => 431,
                _ => 400,
            };
            let status = format!("HTTP/1.1 {status} ");
            assert!(answer.contains(&status), "cut at {cut}: {shown:?} got {answer:?}");
            assert_eq!(
                answer.contains(" 405 "),
                ends_before(&stream[..at]) > 0,
                "only what is good is served"
            );
        }
    }
}

#[tokio::test]
async fn a_nul_alone_would_get_no_answer_if_the_head_was_cut() {
    let seen = b"GET / HTTP/1.1\r\nx: ";
    let pieces = |spoilt: &[u8]| vec![seen.to_vec(), spoilt.to_vec()];
    assert_eq!(hyper_answers(pieces(b"\0")).await, "");
    let spoilt = spoilt(seen, Violation::HeaderValue);
    assert!(hyper_answers(pieces(&spoilt)).await.starts_with("HTTP/1.1 400"));
}
