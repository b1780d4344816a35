//! Ejection of a pod that accepts requests and does not answer them.

use std::time::Duration;

use rouse_proxy::upstream::Timeouts;
use rouse_testkit::fakes::READY;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::http2_peers::{self, h2c};
use crate::rig::{GET, GET_AND_CLOSE, Options, Pod, Rig, accept_either, eventually};
use crate::wire::Wire;

const EJECTIONS: &str = "rouse_ejections_total";
/// This many failures in a row eject a pod.
const IN_A_ROW: usize = 5;

/// How many of `count` requests, one after the other, got no response from a pod.
async fn unanswered(rig: &Rig, count: usize, code: &str) -> usize {
    let mut failed = 0;
    for _ in 0..count {
        // A POST is not retried.
        let post = "POST / HTTP/1.1\r\nHost: cart.test\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
        let answer = rig.send(post).await.rest().await;
        if answer.contains(&format!("\r\nx-rouse-error: {code}\r\n")) {
            failed += 1;
        } else {
            assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
        }
    }
    failed
}

/// Asserts that one pod is ejected after five failures in a row, each with `code`, and that then no request fails.
async fn is_ejected_after_five(rig: &Rig, code: &str) {
    let mut failed = 0;
    while rig.metric(EJECTIONS) == 0 {
        failed += unanswered(rig, 1, code).await;
        assert!(failed <= IN_A_ROW, "it is still asked after {failed} times {code}");
    }
    assert_eq!(failed, IN_A_ROW);
    assert_eq!(unanswered(rig, 30, code).await, 0);
}

#[tokio::test]
async fn a_pod_that_has_fallen_silent_gets_no_more_requests_after_five_response_timeouts() {
    let response_header = Some(Duration::from_secs(1));
    silence_ejects(Timeouts { response_header, ..Options::default().timeouts }, "response_timeout").await;
}

/// If the request timeout is not longer than the response timeout, it ends the request.
#[tokio::test]
async fn a_pod_that_has_fallen_silent_gets_no_more_requests_after_five_request_timeouts() {
    let request = Some(Duration::from_secs(1));
    silence_ejects(Timeouts { request, ..Options::default().timeouts }, "request_timeout").await;
}

/// The kernel accepts the silent pod's connections, as for a suspended process.
async fn silence_ejects(timeouts: Timeouts, code: &str) {
    let (rig, [_silent, alive]) = Rig::with_pods(Options { timeouts, ..Options::default() }).await;
    let alive = alive.serve();
    is_ejected_after_five(&rig, code).await;
    assert!(alive.paths().len() >= 30);
}

/// After a cold start, the rest of the request timeout may be too short for any pod.
#[tokio::test]
async fn requests_that_were_held_for_most_of_their_time_eject_no_pod() {
    let request = Some(Duration::from_secs(1));
    let rig = Rig::new(Options {
        timeouts: Timeouts { request, ..Options::default().timeouts },
        ..Options::default()
    });
    let (first, second) = (Pod::new(1).await, Pod::new(2).await);
    let mut clients = Vec::new();
    let began = Instant::now();
    for _ in 0..4 * IN_A_ROW {
        clients.push(rig.send(GET_AND_CLOSE).await);
    }
    eventually("more than half of their time is over", || began.elapsed() > Duration::from_millis(700)).await;
    rig.pods(&[(&first, READY), (&second, READY)]);
    for mut client in clients {
        assert!(client.rest().await.starts_with("HTTP/1.1 504 "));
    }
    assert_eq!(rig.metric(EJECTIONS), 0);
}

/// A pod that reads a request and closes the connection, every time.
fn resetting(pod: Pod) -> JoinSet<()> {
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        loop {
            Wire::new(pod.accept_raw().await).next_head().await;
        }
    });
    tasks
}

#[tokio::test]
async fn a_pod_that_resets_what_it_is_sent_gets_no_more_requests_after_five_of_them() {
    let (rig, [broken, alive]) = Rig::with_pods(Options::default()).await;
    let (_broken, _alive) = (resetting(broken), alive.serve());
    is_ejected_after_five(&rig, "upstream_reset").await;
}

#[tokio::test]
async fn a_pod_that_ends_its_http_2_connections_with_an_error_is_ejected_too() {
    let (rig, [broken, alive]) = Rig::with_pods(h2c()).await;
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        loop {
            let mut connection = broken.accept_h2().await;
            if let Some(Ok((_, mut respond))) = connection.accept().await {
                respond.send_reset(h2::Reason::INTERNAL_ERROR);
            }
            connection.abrupt_shutdown(h2::Reason::INTERNAL_ERROR);
            while connection.accept().await.is_some() {}
        }
    });
    let _alive = alive.serve_h2(h2::server::Builder::new(), |_, mut respond| async move {
        http2_peers::answer(&mut respond, "hello");
    });
    let mut asked = 0;
    while rig.metric(EJECTIONS) == 0 {
        unanswered(&rig, 1, "upstream_reset").await;
        asked += 1;
        assert!(asked < 100, "it is still asked");
    }
    assert_eq!(unanswered(&rig, 30, "upstream_reset").await, 0);
}

/// The last pod is never ejected: an unreliable pod is better than none.
#[tokio::test]
async fn the_only_pod_gets_requests_also_while_it_is_ejected() {
    let (rig, pod) = Rig::with_pod(Options::default()).await;
    let _pod = resetting(pod);
    assert_eq!(unanswered(&rig, 3 * IN_A_ROW, "upstream_reset").await, 3 * IN_A_ROW);
    assert_eq!(rig.metric(EJECTIONS), 0);
}

#[tokio::test]
async fn errors_of_the_app_and_clients_that_leave_eject_no_pod() {
    let (rig, pods) = Rig::with_pods(Options::default()).await;
    for _ in 0..4 * IN_A_ROW {
        let serving = async {
            let mut wire = Wire::new(accept_either(&pods).await);
            wire.head().await;
            wire.write("HTTP/1.1 503 Overloaded\r\nConnection: close\r\nContent-Length: 0\r\n\r\n").await;
        };
        let (answer, ()) = tokio::join!(rig.get("/"), serving);
        assert!(answer.starts_with("HTTP/1.1 503 Overloaded\r\n"), "{answer}");
    }
    for _ in 0..4 * IN_A_ROW {
        let client = rig.send(GET).await;
        let mut wire = Wire::new(accept_either(&pods).await);
        wire.head().await;
        client.reset();
        assert_eq!(wire.rest().await, "");
    }
    eventually("all are over", || rig.service.in_flight() == 0).await;
    assert_eq!(rig.metric(EJECTIONS), 0);
}
