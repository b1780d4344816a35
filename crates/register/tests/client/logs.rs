//! What the client logs about failures, and what it never logs (paused time).

use std::cell::RefCell;
use std::io;
use std::sync::Once;

use rouse_core::merge::PushEvent;
use rouse_net::tls::Roots;
use rouse_register::client::{PushClientSettings, PushCredential};
use rouse_testkit::certificates::Authority;

use crate::credentials::{server_tls, token_file};
use crate::harness::{Link, Network, SECRET, Sidecar, default_url, now, pass, plain, seconds, token};

thread_local! {
    /// What the test of this thread has logged, while it listens.
    static LINES: RefCell<Option<Vec<u8>>> = const { RefCell::new(None) };
}

/// Writes to the lines of the thread. One subscriber serves all tests: with one per test, `tracing` may remember of a place
/// in the code that no subscriber wants it, because another test got there first.
struct ThreadLines;

impl io::Write for ThreadLines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        LINES.with_borrow_mut(|lines| lines.iter_mut().for_each(|lines| lines.extend_from_slice(bytes)));
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The log at every level, while `work` runs.
async fn log_of(work: impl Future<Output = ()>) -> String {
    static SUBSCRIBED: Once = Once::new();
    SUBSCRIBED.call_once(|| {
        tracing_subscriber::fmt()
            .with_ansi(false)
            .with_writer(|| ThreadLines)
            .with_max_level(tracing::Level::TRACE)
            .init();
    });
    LINES.set(Some(Vec::new()));
    work.await;
    String::from_utf8(LINES.take().unwrap()).unwrap()
}

/// The lines of the client.
fn ours(log: &str) -> Vec<&str> {
    log.lines().filter(|line| line.contains("rouse_register::client")).collect()
}

#[tokio::test(start_paused = true)]
async fn failures_are_logged_with_their_reason_at_the_level_of_their_kind() {
    let answers = |status, reason: &str| Link::Answers(status, None, reason.into());
    let cases = [
        (Link::Down, "ERROR", "cannot connect: connection refused"),
        (Link::BlackHole, "WARN", "no answer within 2 s"),
        (answers(403, "the port is not yours"), "WARN", "answered 403: the port is not yours"),
        (answers(429, "too many"), "WARN", "answered 429: too many"),
        (answers(500, "broken"), "ERROR", "answered 500: broken"),
        (answers(503, "cannot check"), "ERROR", "answered 503: cannot check"),
        (answers(200, ""), "ERROR", "answer cannot be read"),
        (answers(200, "x\nERROR forged"), "ERROR", "answer cannot be read"),
    ];
    for (link, level, reason) in cases {
        let log = log_of(async {
            let network = Network::of(&[1]);
            network.link(1, link);
            let sidecar = Sidecar::start(&network);
            sidecar.reporter.report(PushEvent::Ready);
            pass(seconds(4)).await;
        });
        let log = log.await;
        let first = ours(&log)[0];
        for part in [level, "10.1.0.1:9443", reason, "a registration failed"] {
            assert!(first.contains(part), "{part:?} is not in {first}");
        }
        assert!(!log.lines().any(|line| line.starts_with("ERROR forged")), "an answer adds no line: {log}");
    }
    let log = log_of(async {
        let network = Network::of(&[1]);
        network.break_dns();
        let sidecar = Sidecar::start(&network);
        sidecar.reporter.report(PushEvent::Ready);
        pass(seconds(1)).await;
    });
    let log = log.await;
    let first = ours(&log)[0];
    assert!(
        first.contains("ERROR") && first.contains("no such name") && first.contains("rouse-register"),
        "{first}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_hundred_seconds_of_failures_are_few_lines_and_the_rest_is_counted() {
    let many: Vec<u8> = (1..=50).collect();
    let network = Network::of(&many);
    let log = log_of(async {
        for n in &many {
            network.link(*n, Link::Down);
        }
        let sidecar = Sidecar::start(&network);
        sidecar.reporter.report(PushEvent::Ready);
        pass(seconds(100)).await;
        for n in &many {
            network.link(*n, Link::Up);
        }
        sidecar.delivered().await;
    });
    let log = log.await;
    let failures: Vec<_> = ours(&log).into_iter().filter(|line| line.contains("failed")).collect();
    assert!((10..=16).contains(&failures.len()), "{log}");
    assert!(failures.iter().any(|line| !line.contains("suppressed=0")), "{log}");
    assert!(log.contains("acknowledges registrations again"), "{log}");
}

#[tokio::test(start_paused = true)]
async fn no_credential_is_ever_logged_not_even_if_the_gateway_repeats_it() {
    let (folder, authority) = (tempfile::tempdir().unwrap(), Authority::new());
    let tls = default_url().tls(Roots::Pem(vec![authority.ca()]), None);
    let credential = PushCredential::Token(token_file(folder.path(), 0));
    let by_token = PushClientSettings { gateways: default_url(), credential, tls, ..plain() };
    let cases = [
        (401, None, plain()),
        (200, None, plain()),
        (401, Some(server_tls(&authority, None)), by_token.clone()),
        (200, Some(server_tls(&authority, None)), by_token),
    ];
    for (status, server, settings) in cases {
        let network = Network::new(server);
        let shown = format!("{settings:?}");
        let log = log_of(async {
            network.start(1, rouse_net::auth::PushMode::On);
            network.name(&[1]);
            network.link(1, Link::Answers(status, None, "I do not know {authorization}".into()));
            let sidecar = Sidecar::with(&network, settings, now);
            sidecar.reporter.report(PushEvent::Ready);
            pass(seconds(30)).await;
        });
        let log = log.await;
        assert!(log.contains("hidden"), "{log}");
        for text in [&log, &shown] {
            for secret in [str::from_utf8(SECRET).unwrap(), token(0), "signature="] {
                assert!(!ours(text).iter().any(|line| line.contains(secret)), "{secret}");
                assert!(text != &shown || !text.contains(secret), "{secret} in {shown}");
            }
        }
    }
}
