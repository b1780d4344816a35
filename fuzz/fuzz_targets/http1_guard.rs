//! Fuzzes the HTTP/1 guard: for a client's bytes in any pieces, it gives the verdict of the naive implementation.
#![no_main]

#[path = "../../crates/proxy/tests/guard/naive.rs"]
mod naive;

use libfuzzer_sys::fuzz_target;
use rouse_proxy::budget::HeadLimits;
use rouse_proxy::downstream::http1_validator::Http1Validator;

/// Small limits, so that the fuzzer reaches them.
const LIMITS: HeadLimits = HeadLimits { line: 64, head: 512, headers: 8, extension: 16, trailers: 128 };

// The first byte determines the lengths of the pieces, short and long ones in turns.
fuzz_target!(|input: (u8, &[u8])| {
    let (cut, stream) = input;
    let lengths = [usize::from(cut & 15) + 1, usize::from(cut >> 4) * 16 + 1];
    let (mut guard, mut at, mut refused) = (Http1Validator::new(LIMITS), 0, None);
    for length in lengths.into_iter().cycle() {
        let piece = &stream[at..(at + length).min(stream.len())];
        if piece.is_empty() {
            break;
        }
        if let Err(error) = guard.inspect(piece) {
            assert!(error.at < piece.len());
            refused = Some((at + error.at, error.in_head));
            break;
        }
        at += piece.len();
    }
    let naive = naive::judge(stream, LIMITS);
    assert_eq!((refused, guard.requests()), (naive.refused, naive.requests));
    assert!(refused.is_some() || guard.phase() == naive.phase);
});
