//! Request deadlines, also for clients that do not read.

use std::time::Duration;

use bytes::Bytes;
use http::Request;
use rouse_core::snapshot::ConcurrencyLimits;
use rouse_proxy::upstream::Timeouts;
use tokio::time::timeout;

use crate::back_pressure::{long_upload, unread_response};
use crate::http2_peers::{H2Client, h2c};
use crate::rig::{Options, PATIENCE, Rig, eventually};
use crate::wire::pour;

/// Longer than a busy machine takes to reach the pod.
const LIMIT: Option<Duration> = Some(Duration::from_secs(2));

/// Asserts that the request has ended at its deadline, and that its slot is released.
async fn has_timed_out(rig: &Rig) {
    eventually("its slot is free", || rig.service.in_flight() == 0).await;
    rig.requests_counted(504, "http1", 1).await;
}

#[tokio::test]
async fn a_request_deadline_is_kept_although_the_client_does_not_read() {
    let timeouts = Timeouts { request: LIMIT, ..Timeouts::default() };
    let (rig, pod) = Rig::with_pod(Options { timeouts, ..Options::default() }).await;
    let (_client, mut raw) = unread_response(&rig, &pod).await;
    pour(&mut raw).await;
    has_timed_out(&rig).await;
}

#[tokio::test]
async fn a_pod_that_does_not_read_an_upload_meets_the_response_timeout() {
    let timeouts = Timeouts { response_header: LIMIT, ..Timeouts::default() };
    let (rig, pod) = Rig::with_pod(Options { timeouts, ..Options::default() }).await;
    let mut client = long_upload(&rig).await;
    let _stuck = pod.accept_raw().await;
    pour(&mut client).await;
    has_timed_out(&rig).await;
}

#[tokio::test]
async fn a_deadline_that_ends_an_upload_ends_the_stream_to_the_pod() {
    let timeouts = Timeouts { request: LIMIT, ..Timeouts::default() };
    let (rig, pod) = Rig::with_pod(Options { timeouts, ..h2c() }).await;
    let client = H2Client::new(&rig).await;
    let (response, mut body) = client.send(Request::post("http://cart.test/"), false).await;
    body.send_data(Bytes::from_static(b"hello"), false).unwrap();
    let mut connection = pod.accept_h2().await;
    let (request, _respond) = connection.accept().await.unwrap().unwrap();
    let mut upload = request.into_body();
    let asking = async {
        assert_eq!(response.head().await.status(), 504);
        let ended = async { while let Some(Ok(_)) = upload.data().await {} };
        timeout(PATIENCE, ended).await.expect("the pod's connection should end");
    };
    tokio::select! {
        () = asking => {}
        _ = connection.accept() => {}
    }
    assert_eq!(rig.service.in_flight(), 0);
}

/// The request was sent, so `connect_failed` would point an operator to the wrong cause.
#[tokio::test]
async fn a_get_lost_after_its_readiness_deadline_fails_with_upstream_reset() {
    let timeouts = Timeouts { readiness: LIMIT, ..Timeouts::default() };
    let options = Options { timeouts, concurrency: ConcurrencyLimits::new(0, 1), ..Options::default() };
    let (rig, pod) = Rig::with_pod(options).await;
    let serving = async {
        let wire = pod.accept_request().await;
        // A later request waits for the pod's only slot and times out, so the first one must have timed out, too.
        let answer = rig.get("/later").await;
        assert!(answer.contains("\r\nx-rouse-error: readiness_timeout\r\n"), "{answer}");
        drop(wire);
    };
    let (answer, ()) = tokio::join!(rig.get("/"), serving);
    assert!(answer.starts_with("HTTP/1.1 502 "), "{answer}");
    assert!(answer.contains("\r\nx-rouse-error: upstream_reset\r\n"), "{answer}");
}
