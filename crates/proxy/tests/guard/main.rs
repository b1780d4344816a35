//! The guard of HTTP/1 connections: every rule, with streams split at every byte, against a naive model, httparse and hyper.
#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs, reason = "tests")]

mod naive;
mod readers;
mod rules;
mod streams;

use rouse_proxy::budget::HeadLimits;
use rouse_proxy::downstream::http1_validator::{FramingPhase, Http1Validator, Violation};

/// Small limits, so that tests reach them.
const LIMITS: HeadLimits = HeadLimits { line: 64, head: 256, headers: 6, extension: 12, trailers: 64 };

/// The guard's verdict on a stream in pieces: the offset of the refused byte in the whole stream, if any.
#[derive(Debug, PartialEq, Eq)]
struct Said {
    refused: Option<(usize, bool, Violation)>,
    requests: u64,
    phase: FramingPhase,
}

fn said<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> Said {
    let (mut guard, mut before, mut refused) = (Http1Validator::new(LIMITS), 0, None);
    for piece in pieces {
        if let Err(error) = guard.inspect(piece) {
            assert!(error.at < piece.len(), "the byte is in the piece");
            refused = Some((before + error.at, error.in_head, error.violation));
            let again = guard.inspect(b"GET / HTTP/1.1\r\n").unwrap_err();
            assert_eq!((again.at, again.violation), (0, error.violation), "it stays refused");
            break;
        }
        before += piece.len();
    }
    Said { refused, requests: guard.requests(), phase: guard.phase() }
}

/// Asserts the same verdict for the whole stream, any two pieces, single bytes, and the naive model.
fn at_every_cut(stream: &[u8]) -> Said {
    let whole = said([stream]);
    let shown = String::from_utf8_lossy(stream);
    for cut in 0..=stream.len() {
        let (one, two) = stream.split_at(cut);
        assert_eq!(said([one, two]), whole, "cut at {cut}: {shown:?}");
    }
    assert_eq!(said(stream.chunks(1)), whole, "byte by byte: {shown:?}");
    agrees(stream, &whole);
    whole
}

fn agrees(stream: &[u8], said: &Said) {
    let naive = naive::judge(stream, LIMITS);
    let shown = String::from_utf8_lossy(stream);
    assert_eq!(said.refused.map(|(at, in_head, _)| (at, in_head)), naive.refused, "{said:?} {shown:?}");
    assert_eq!(said.requests, naive.requests, "{shown:?}");
    if naive.refused.is_none() {
        assert_eq!(said.phase, naive.phase, "{shown:?}");
    }
}
