//! Differential fuzzing of the HTTP/1 path: two independent strict parsers compare what a client sent with what the pod
//! received. Both must be the same requests, byte for byte, also for malformed input.
//!
//! `make differential` runs a million cases. `ROUSE_DIFFERENTIAL_CASES` is their number, `ROUSE_DIFFERENTIAL_SEED` the seed,
//! and `ROUSE_DIFFERENTIAL_FIRST` the first case: a failure prints the three values that repeat it.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic, also in its helpers")]

mod case;
mod client;
mod grammar;
mod judge;
mod mutate;
mod pod;
mod random;
mod reader;
mod scene;
mod tally;
mod words;

use rouse_testkit::proxy::rig;

use crate::scene::Scene;

/// The default number of cases.
const CASES: u64 = 20_000;
const SEED: u64 = 1;

fn number(name: &str, otherwise: u64) -> u64 {
    let text = std::env::var(name).ok().filter(|text| !text.is_empty());
    text.map_or(otherwise, |text| text.parse().expect(name))
}

#[tokio::test]
async fn the_gateway_and_a_strict_reader_agree_where_every_request_begins_and_ends() {
    let cases = number("ROUSE_DIFFERENTIAL_CASES", CASES);
    let seed = number("ROUSE_DIFFERENTIAL_SEED", SEED);
    let first = number("ROUSE_DIFFERENTIAL_FIRST", 0);
    println!("{cases} cases from {first} with seed {seed}");
    let scene = Scene::new(seed);
    match scene.run(first, cases).await {
        Ok(tally) => {
            println!("{tally}");
            if cases >= CASES {
                tally.is_worth_something();
            }
        }
        Err(failure) => panic!("{}", scene.explain(failure).await),
    }
}

/// Tests the reader itself: input that it must not accept, or not treat as complete.
#[test]
fn the_strict_reader_of_a_client_finds_only_what_is_clear() {
    for (stream, whole, end) in [
        ("GET /a HTTP/1.1\r\nHost: cart.test\r\n\r\n", 1, "Clean"),
        (
            "\r\nPOST /a HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nokGET /b HTTP/1.0\r\n\r\nx",
            2,
            "Closed",
        ),
        ("GET /a HTTP/1.1\r\nHost: a\r\nConnection: x, Close\r\n\r\nGET /b HTTP/1.1\r\n", 1, "Closed"),
        (
            "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n2;x\r\nok\r\n0\r\nT: 1\r\n\r\n",
            1,
            "Clean",
        ),
        ("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n", 0, "InBody"),
        ("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok!", 0, "BadBody"),
        ("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n2\nok", 0, "BadBody"),
        (
            "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
            0,
            "BadHead",
        ),
        ("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\n1", 0, "BadHead"),
        ("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: +1\r\n\r\n1", 0, "BadHead"),
        ("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 0, "BadHead"),
        ("GET / HTTP/1.1\nHost: a\n\n", 0, "BadHead"),
        ("GET / HTTP/1.1\r\nHost: a\rX: b\r\n\r\n", 0, "BadHead"),
        ("GET / HTTP/1.1\r\nHost: a\r\n b\r\n\r\n", 0, "BadHead"),
        ("GET / HTTP/1.1\r\nHost : a\r\n\r\n", 0, "BadHead"),
        ("GET / HTTP/1.1\r\n\r\n", 0, "BadHead"),
        ("GET http://a/ HTTP/1.1\r\nHost: b\r\n\r\n", 0, "BadHead"),
        ("GET / HTTP/1.1\r\nHost: a\r\n", 0, "InHead"),
    ] {
        let view = reader::read(stream.as_bytes());
        let seen = format!("{:?}", view.end);
        assert!(
            view.asked.len() == whole && seen.starts_with(end),
            "{stream:?}: {} and {seen}",
            view.asked.len()
        );
    }
}

/// The same for the pod's parser.
#[test]
fn the_strict_reader_of_the_pod_takes_nothing_that_is_unclear() {
    let from = "Host: a\r\nX-Forwarded-For: 127.0.0.9\r\n";
    let whole =
        |text: &str| pod::request(text.as_bytes()).map(|got| got.map(|(got, used)| (got.whole, used)));
    for (line, rest) in [
        ("GET / HTTP/1.1\r\n", "\r\n"),
        ("POST / HTTP/1.1\r\n", "Content-Length: 2\r\n\r\nok"),
        ("POST / HTTP/1.1\r\n", "Transfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\nT: 1\r\n\r\n"),
    ] {
        let text = format!("{line}{from}{rest}");
        assert_eq!(whole(&text), Ok(Some((true, text.len()))), "{text:?}");
    }
    for (line, rest) in [
        ("\r\nGET / HTTP/1.1\r\n", "\r\n"),
        ("GET / HTTP/1.0\r\n", "\r\n"),
        ("GET  / HTTP/1.1\r\n", "\r\n"),
        ("GET / HTTP/1.1\r\n", "Host: b\r\n\r\n"),
        ("GET / HTTP/1.1\r\n", "X: a\nY: b\r\n\r\n"),
        ("GET / HTTP/1.1\r\n", "X: a\rY: b\r\n\r\n"),
        ("GET / HTTP/1.1\r\n", "X: a\r\n b\r\n\r\n"),
        ("GET / HTTP/1.1\r\n", "X : a\r\n\r\n"),
        ("POST / HTTP/1.1\r\n", "Content-Length: 1\r\nContent-Length: 1\r\n\r\n1"),
        ("POST / HTTP/1.1\r\n", "Content-Length: 1, 1\r\n\r\n1"),
        ("POST / HTTP/1.1\r\n", "Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n"),
        ("POST / HTTP/1.1\r\n", "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n"),
        ("POST / HTTP/1.1\r\n", "Transfer-Encoding: chunked\r\n\r\n2;x\r\nok\r\n0\r\n\r\n"),
        ("POST / HTTP/1.1\r\n", "Transfer-Encoding: chunked\r\n\r\n2\nok\r\n0\r\n\r\n"),
        ("POST / HTTP/1.1\r\n", "Transfer-Encoding: chunked\r\n\r\n2\r\nok!\r\n0\r\n\r\n"),
    ] {
        let text = format!("{line}{from}{rest}");
        assert!(whole(&text).is_err(), "{text:?}");
    }
}
