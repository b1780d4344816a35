//! Tables of refused and accepted streams, one line per rule of the guard.

use std::collections::HashSet;

use rouse_proxy::budget::HeadLimits;
use rouse_proxy::downstream::http1_validator::FramingPhase::{Between, Body, Head, Opaque};
use rouse_proxy::downstream::http1_validator::{FramingPhase, Http1Validator, Violation as V};

use crate::at_every_cut;

/// Refused streams, and the reasons.
#[allow(clippy::too_many_lines, reason = "a table")]
pub(crate) fn bad() -> Vec<(Vec<u8>, V)> {
    let head = |lines: &str| format!("GET / HTTP/1.1\r\n{lines}\r\n\r\n").into_bytes();
    let with = |lines: &str| head(&format!("Host: a\r\n{lines}"));
    let first = |line: &str| format!("{line}\r\nHost: a\r\n\r\n").into_bytes();
    let chunked = |body: &str| with(&format!("Transfer-Encoding: chunked\r\n\r\n{body}"));
    let mut bad = vec![
        (b"\r\n\r\nGET / HTTP/1.1\r\n".to_vec(), V::EmptyLines),
        (b"\n".to_vec(), V::BareLf),
        (b"\x16\x03\x01\x02\0".to_vec(), V::Tls),
        (b"GET / HTTP/1.1\nHost: a\r\n\r\n".to_vec(), V::BareLf),
        (b"GET / HTTP/1.1\r\nHost: a\n\r\n".to_vec(), V::BareLf),
        (b"GET / HTTP/1.1\r\nHost: a\r\n\n".to_vec(), V::BareLf),
        (b"GET /\rx HTTP/1.1\r\n".to_vec(), V::BareCr),
        (b"\rGET / HTTP/1.1\r\n".to_vec(), V::BareCr),
        (b"GET / HTTP/1.1\r\r\n".to_vec(), V::BareCr),
        (with("x: a\rb"), V::BareCr),
        (with("x\r: a"), V::BareCr),
        (with("x: é\x7f"), V::HeaderValue),
        (b"POST / HTTP/1.1\r\nHost: a\r\nConnection: up\xff\r\n\r\n".to_vec(), V::HeaderValue),
        (b"GET /\xff HTTP/1.1\r\nHost: a\r\n\r\n".to_vec(), V::Target),
    ];
    bad.extend(
        [
            ("GET  / HTTP/1.1", V::RequestLine),
            ("GET /  HTTP/1.1", V::RequestLine),
            (" GET / HTTP/1.1", V::RequestLine),
            ("GET / HTTP/1.1 ", V::RequestLine),
            ("GET /", V::RequestLine),
            ("G@T / HTTP/1.1", V::RequestLine),
            ("GET\t/ HTTP/1.1", V::RequestLine),
            ("GET /a\tb HTTP/1.1", V::Target),
            ("GET /a\0 HTTP/1.1", V::Target),
            ("GET /a#b HTTP/1.1", V::Target),
            ("GET / HTTP/2.0", V::Version),
            ("GET / HTTP/1.2", V::Version),
            ("GET / http/1.1", V::Version),
            ("GET a HTTP/1.1", V::TargetForm),
            ("GET a:80 HTTP/1.1", V::TargetForm),
            ("GET * HTTP/1.1", V::TargetForm),
            ("GET http:/a HTTP/1.1", V::TargetForm),
            ("CONNECT / HTTP/1.1", V::TargetForm),
            ("CONNECT a HTTP/1.1", V::TargetForm),
            ("CONNECT [::1] HTTP/1.1", V::TargetForm),
            ("CONNECT http://a/ HTTP/1.1", V::TargetForm),
            ("GET ftp://a/ HTTP/1.1", V::Scheme),
            ("GET http://b/ HTTP/1.1", V::OtherHost),
            ("GET http://a:80/ HTTP/1.1", V::OtherHost),
            ("GET http://u@a/ HTTP/1.1", V::Target),
            ("GET http:///a HTTP/1.1", V::Target),
        ]
        .map(|(line, rule)| (first(line), rule)),
    );
    bad.extend(
        [
            ("x : a", V::HeaderName),
            (": a", V::HeaderName),
            ("x", V::HeaderName),
            ("x@y: a", V::HeaderName),
            (" x: a", V::Folded),
            ("x: a\r\n\tb", V::Folded),
            ("x: a\0b", V::HeaderValue),
            ("x: a\x0bb", V::HeaderValue),
            ("x: a\x7f", V::HeaderValue),
            ("Content-Length: 5\r\nContent-Length: 5", V::RepeatedContentLength),
            ("Content-Length: 5, 5", V::ContentLength),
            ("Content-Length: +5", V::ContentLength),
            ("Content-Length: -0", V::ContentLength),
            ("Content-Length: 0x5", V::ContentLength),
            ("Content-Length:", V::ContentLength),
            ("Content-Length: 9223372036854775808", V::ContentLength),
            ("Content-Length: 99999999999999999999999", V::ContentLength),
            ("Transfer-Encoding: gzip, chunked", V::TransferEncoding),
            ("Transfer-Encoding: chunked, chunked", V::TransferEncoding),
            ("Transfer-Encoding: identity", V::TransferEncoding),
            ("Transfer-Encoding:", V::TransferEncoding),
            ("Transfer-Encoding: chunked;a=b", V::TransferEncoding),
            ("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked", V::RepeatedTransferEncoding),
            ("Content-Length: 5\r\nTransfer-Encoding: chunked", V::BothLengths),
            ("transfer-encoding: chunked\r\ncontent-length: 5", V::BothLengths),
            ("host: a", V::RepeatedHost),
            ("a: \r\nb: \r\nc: \r\nd: \r\ne: \r\nf:", V::TooManyHeaders),
        ]
        .map(|(lines, rule)| (with(lines), rule)),
    );
    bad.extend(
        [
            "Host:",
            "Host: a b",
            "Host: a,b",
            "Host: a:",
            "Host: a:x",
            "Host: a:65536",
            "Host: a:000080",
            "Host: :80",
        ]
        .into_iter()
        .chain([
            "Host: [::1",
            "Host: [::g]",
            "Host: [::1]x",
            "Host: ::1",
            "Host: a/b",
            "Host: u@a",
            "Host: %61",
            "Host: a~b",
            "Host: a..b",
        ])
        .map(|line| (head(line), V::Host)),
    );
    bad.extend([
        (b"GET / HTTP/1.1\r\n\r\n".to_vec(), V::MissingHost),
        (head("x: a"), V::MissingHost),
        (b"GET / HTTP/1.0\r\nHost: a\r\nhost: a\r\n\r\n".to_vec(), V::RepeatedHost),
        (b"GET / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n".to_vec(), V::OldTransferEncoding),
        (b"CONNECT a:1 HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n".to_vec(), V::ConnectBody),
        (b"CONNECT a:1 HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n".to_vec(), V::ConnectBody),
        (b"CONNECT a:1 HTTP/1.1\r\nHost: a\r\n\r\nGET".to_vec(), V::AfterConnect),
        (b"CONNECT a:1 HTTP/1.1\r\nHost: a\r\n\r\n\r\n".to_vec(), V::AfterConnect),
        (format!("GET /{} HTTP/1.1\r\n", "a".repeat(51)).into_bytes(), V::RequestLine),
        (format!("GET /{} HTTP/1.1\r\n", "a".repeat(61)).into_bytes(), V::LineTooLong),
        (format!("{} /{} HTTP/1.1\r\n", "a".repeat(62), "a".repeat(9)).into_bytes(), V::LineTooLong),
        (vec![b'a'; 70], V::RequestLine),
        (with(&format!("x: {}", "a".repeat(300))), V::HeadTooLong),
        (with(&format!("x: {}", "a".repeat(256 - 16 - 9 - 5 - 1))), V::HeadTooLong),
    ]);
    bad.extend(
        [
            ("x", V::ChunkSize),
            ("", V::ChunkSize),
            ("+5", V::ChunkSize),
            ("0x5", V::ChunkSize),
            (" 5", V::ChunkSize),
            ("5 ", V::ChunkSize),
            ("5 ;a", V::ChunkSize),
            ("8000000000000000", V::ChunkSize),
            ("00000000000000001", V::ChunkSize),
            (";a", V::ChunkSize),
            ("5\rx", V::BareCr),
            ("5;a\rx", V::BareCr),
            ("5;a\0", V::ChunkExtension),
            ("5;é", V::ChunkExtension),
            ("5;abcdefghijkl", V::ChunkLine),
            ("5;abcdefghijklmnopqrstuvwxyzabcdefg", V::ChunkLine),
            ("1\r\nab", V::ChunkEnd),
            ("1\r\na\r\r", V::ChunkEnd),
            ("1\r\na\n", V::ChunkEnd),
            ("0\r\nContent-Length: 5", V::Trailer),
            ("0\r\ntransfer-encoding: chunked", V::Trailer),
            ("0\r\nHOST: a", V::Trailer),
            ("0\r\nx : a", V::HeaderName),
            ("0\r\nx: a\r\n b", V::Folded),
            ("0\r\nx: a\0", V::HeaderValue),
            ("0\r\na:\r\na:\r\na:\r\na:\r\na:\r\na:\r\na:", V::TooManyHeaders),
        ]
        .map(|(body, rule)| (chunked(body), rule)),
    );
    bad.push((chunked("5\nhello"), V::BareLf));
    bad.push((chunked("0\r\nx: a\n"), V::BareLf));
    bad.push((chunked(&format!("0\r\nx: {}", "a".repeat(58))), V::TrailersTooLong));
    bad
}

/// Accepted streams: the number of requests, and the phase at the end.
pub(crate) fn good() -> Vec<(Vec<u8>, u64, FramingPhase)> {
    let head = |lines: &str| format!("GET / HTTP/1.1\r\nHost: a\r\n{lines}\r\n").into_bytes();
    let chunked = |body: &str| head(&format!("Transfer-Encoding: chunked\r\n\r\n{body}"));
    let first = |line: &str, host: &str| format!("{line}\r\nHost: {host}\r\n\r\n").into_bytes();
    let upgrade = "Connection: keep-alive, Upgrade\r\nUpgrade: websocket\r\n";
    let mut good = vec![
        (Vec::new(), 0, Between),
        (b"\r".to_vec(), 0, Between),
        (b"\r\n".to_vec(), 0, Between),
        (b"G".to_vec(), 0, Head),
        (b"\r\nG".to_vec(), 0, Head),
        (head(""), 1, Between),
        ([b"\r\n", &*head("")].concat(), 1, Between),
        ([head(""), b"\r\n".to_vec(), head("")].concat(), 2, Between),
        (b"GET / HTTP/1.0\r\n\r\n".to_vec(), 1, Between),
        (b"GET http://a/ HTTP/1.0\r\n\r\n".to_vec(), 1, Between),
        (b"GET / HTTP/1.0\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n".to_vec(), 1, Between),
        ([head("Content-Length: 2\r\n"), b"\0\n".to_vec(), head("")].concat(), 2, Between),
        (head("Content-Length: 0\r\n"), 1, Between),
        (head("Content-Length: 9223372036854775807\r\n"), 1, Body),
        (head("content-LENGTH:\t 007 \t\r\n"), 1, Body),
        (head("Transfer-Encoding: \tChunked \r\n"), 1, Body),
        (b"GET / HTTP/1.1\r\nHost: a\r\nx:\xff\ty \r\n\r\n".to_vec(), 1, Between),
        (head("x:\r\ny: : \r\n"), 1, Between),
        ([head(upgrade), b"\0\n\xff".to_vec()].concat(), 1, Opaque),
        ([head(&format!("Content-Length: 1\r\n{upgrade}")), b"\0\n\xff".to_vec()].concat(), 1, Opaque),
        (head(&format!("Content-Length: 1\r\n{upgrade}")), 1, Body),
        (
            [head(&format!("Transfer-Encoding: chunked\r\n{upgrade}")), b"1\r\na\r\n0\r\n\r\n\xff".to_vec()]
                .concat(),
            1,
            Opaque,
        ),
        (head("Connection: upgrade\r\nUpgrade: h2c\r\n"), 1, Between),
        (head("Connection: upgrade\r\n"), 1, Between),
        (head("Upgrade: websocket\r\n"), 1, Between),
        (b"CONNECT a:443 HTTP/1.1\r\nHost: a:443\r\n\r\n".to_vec(), 1, Between),
        (first(&format!("GET /{} HTTP/1.1", "a".repeat(50)), "a"), 1, Between),
        (head(&format!("x: {}\r\n", "a".repeat(256 - 16 - 9 - 5 - 2))), 1, Between),
        (head("a: \r\nb: \r\nc: \r\nd: \r\ne: \r\n"), 1, Between),
        (chunked("0\r\n"), 1, Between),
        (chunked("5\r\nhello\r\n0\r\n"), 1, Between),
        (chunked("000000000000001;a=\"b\t \"\r\n\n\r\n0;abcdefghijk\r\nx: y\r\n"), 1, Between),
        (chunked(&format!("0\r\nx: {}\r\n", "a".repeat(57))), 1, Between),
        (chunked("7fffffffffffffff\r\n"), 1, Body),
    ];
    // The closures end a head with an empty line, which here ends the trailers or is data.
    good.extend(
        [
            ("OPTIONS * HTTP/1.1", "a"),
            ("GET HTTP://a HTTP/1.1", "A"),
            ("GET https://a.b:8080?x HTTP/1.1", "A.b:8080"),
            ("GET http://[::1]:80/ HTTP/1.1", "[::1]:80"),
            ("x-y /?a=/:://b HTTP/1.1", "a_b-c.d."),
            ("GET / HTTP/1.1", "127.0.0.1:65535"),
        ]
        .map(|(line, host)| (first(line, host), 1, Between)),
    );
    good
}

#[test]
fn every_rule_refuses_at_every_cut() {
    let mut seen = HashSet::new();
    for (stream, rule) in bad() {
        let said = at_every_cut(&stream);
        let shown = String::from_utf8_lossy(&stream);
        assert_eq!(said.refused.map(|(_, _, violation)| violation), Some(rule), "{shown:?}");
        seen.insert(rule.code());
        assert!(!rule.to_string().is_empty());
    }
    assert_eq!(seen.len(), 33, "a case for every rule");
}

#[test]
fn what_is_clear_passes_at_every_cut() {
    for (stream, requests, phase) in good() {
        let said = at_every_cut(&stream);
        let shown = String::from_utf8_lossy(&stream);
        assert_eq!((said.refused, said.requests, said.phase), (None, requests, phase), "{shown:?}");
    }
}

#[test]
fn a_fault_in_a_chunk_is_not_one_of_a_head() {
    let mut guard = Http1Validator::default();
    guard.inspect(b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n").unwrap();
    let refused = guard.inspect(b"5\r\nhello0\r\n").unwrap_err();
    assert_eq!((refused.at, refused.violation, refused.in_head), (8, V::ChunkEnd, false));
}

#[test]
fn the_usual_limits_hold_the_usual_requests() {
    let mut guard = Http1Validator::new(HeadLimits::default());
    let head =
        format!("GET /{} HTTP/1.1\r\nHost: a\r\nCookie: {}\r\n\r\n", "a".repeat(16_000), "b".repeat(40_000));
    guard.inspect(head.as_bytes()).unwrap();
    assert_eq!(guard.requests(), 1);
}
