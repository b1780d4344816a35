//! Compares the guard with the parsers behind it: httparse for heads, hyper's rules for bodies.

use hyper::http::{HeaderMap, HeaderName, HeaderValue};
use rouse_proxy::downstream::http1_validator::{FramingPhase, Http1Validator};
use rouse_proxy::upstream::wanted_upgrade;

use crate::LIMITS;
use crate::rules::good;

/// The ends of head and body of each message in a valid stream, according to httparse and hyper's decoder.
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

/// The phases after the end of a message.
const ENDED: [FramingPhase; 2] = [FramingPhase::Between, FramingPhase::Opaque];

/// Asserts that the guard sees the same message ends as the other parsers.
pub(crate) fn same_ends(stream: &[u8]) {
    let (mut guard, mut seen) = (Http1Validator::new(LIMITS), Vec::<(usize, usize)>::new());
    for (at, byte) in stream.iter().enumerate() {
        let before = (guard.requests(), guard.phase());
        guard.inspect(&[*byte]).unwrap();
        if guard.requests() > before.0 {
            let ended = ENDED.contains(&guard.phase()) && !stream.starts_with(b"CONNECT");
            seen.push((at + 1, if ended { at + 1 } else { usize::MAX }));
        } else if before.1 == FramingPhase::Body && ENDED.contains(&guard.phase()) {
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
