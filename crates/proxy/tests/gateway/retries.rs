//! What is tried again, and what must not be.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::Request;
use rouse_proxy::gateway::Timeouts;
use rouse_testkit::fakes::READY;
use tokio::net::TcpListener;

use crate::h2kit::{self, H2Client, answer, h2c, upload};
use crate::rig::{Options, Pod, Rig, eventually};

/// An address where nobody listens.
async fn nobody() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap()
}

const UPSTREAM_RESET: &str = "\r\nx-rouse-error: upstream_reset\r\n";

#[tokio::test]
async fn a_refused_connection_is_tried_on_another_pod_with_any_method() {
    let rig = Rig::new(Options::default());
    let pod = Pod::new(1).await;
    rig.slices(&[(1, pod.address, READY), (2, nobody().await, READY)]);
    let serving = async {
        loop {
            let mut wire = pod.accept().await;
            let head = wire.head().await;
            wire.until("abc").await;
            wire.answer("taken").await;
            assert!(head.starts_with("POST /"), "{head}");
            if rig.metric("rouse_ejections_total") > 0 {
                return;
            }
        }
    };
    let asking = async {
        // Which of the two is asked first is a matter of luck.
        while rig.metric("rouse_ejections_total") == 0 {
            let mut client = rig.connect().await;
            client
                .write(
                    "POST / HTTP/1.1\r\nHost: cart.test\r\nContent-Length: 3\r\nConnection: close\r\n\r\nabc",
                )
                .await;
            let answer = client.rest().await;
            assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
        }
    };
    tokio::select! {
        () = async { tokio::join!(asking, serving); } => {}
        () = async { eventually("one of them was refused", || false).await } => {}
    }
    assert_eq!(rig.metric(r#"rouse_retries_total{reason="connect"}"#), 1);
}

#[tokio::test]
async fn a_connection_that_was_closed_while_idle_costs_a_request_nothing() {
    let rig = Rig::new(Options::default());
    let pod = Pod::new(1).await;
    rig.pods(&[(&pod, READY)]);
    for _ in 0..20 {
        let serving = async {
            let mut wire = pod.accept().await;
            wire.head().await;
            wire.answer("hello").await;
            // Closed here, as a server does that has waited long enough: at any moment of the next request.
        };
        let mut client = rig.connect().await;
        client
            .write("POST / HTTP/1.1\r\nHost: cart.test\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
            .await;
        let (answer, ()) = tokio::join!(client.rest(), serving);
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
    }
}

#[tokio::test]
async fn a_get_that_was_lost_with_its_pod_is_sent_once_more_and_not_twice() {
    let rig = Rig::new(Options::default());
    let (first, second) = (Pod::new(1).await, Pod::new(2).await);
    rig.pods(&[(&first, READY), (&second, READY)]);
    let serving = async {
        for _ in 0..2 {
            let mut wire = tokio::select! {
                wire = first.accept() => wire,
                wire = second.accept() => wire,
            };
            wire.head().await;
        }
    };
    let (answer, ()) = tokio::join!(rig.get("/"), serving);
    assert!(answer.starts_with("HTTP/1.1 502 ") && answer.contains(UPSTREAM_RESET), "{answer}");
    assert_eq!(rig.metric(r#"rouse_retries_total{reason="reset"}"#), 1);
}

#[tokio::test]
async fn a_post_that_was_sent_is_never_sent_twice() {
    let rig = Rig::new(Options::default());
    let (first, second) = (Pod::new(1).await, Pod::new(2).await);
    rig.pods(&[(&first, READY), (&second, READY)]);
    for body in ["c", "abc"] {
        let serving = async {
            let mut wire = tokio::select! {
                wire = first.accept() => wire,
                wire = second.accept() => wire,
            };
            wire.head().await;
            wire.until(body).await;
        };
        let mut client = rig.connect().await;
        let length = body.len();
        client
            .write(&format!("POST / HTTP/1.1\r\nHost: cart.test\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"))
            .await;
        let (answer, ()) = tokio::join!(client.rest(), serving);
        assert!(answer.starts_with("HTTP/1.1 502 ") && answer.contains(UPSTREAM_RESET), "{answer}");
    }
    assert_eq!(rig.metric(r#"rouse_retries_total{reason="reset"}"#), 0);
}

#[tokio::test]
async fn when_every_pod_refuses_the_request_waits_and_fails_at_its_deadline() {
    let timeouts = Timeouts { readiness: Some(Duration::from_millis(400)), ..Timeouts::default() };
    let rig = Rig::new(Options { timeouts, ..Options::default() });
    rig.slices(&[(1, nobody().await, READY), (2, nobody().await, READY)]);
    let answer = rig.get("/").await;
    assert!(answer.starts_with("HTTP/1.1 502 "), "{answer}");
    assert!(answer.contains("\r\nx-rouse-error: connect_failed\r\n"), "{answer}");
    assert!(rig.metric("rouse_ejections_total") >= 2);
    assert_eq!(rig.service.holds(), 0);
}

#[tokio::test]
async fn a_request_that_was_refused_by_all_is_served_by_the_pod_that_comes() {
    let rig = Rig::new(Options::default());
    rig.slices(&[(1, nobody().await, READY)]);
    let pod = Pod::new(2).await;
    let serving = async {
        eventually("it was refused", || rig.metric("rouse_ejections_total") > 0).await;
        rig.pods(&[(&pod, READY)]);
        let mut wire = pod.accept().await;
        wire.head().await;
        wire.answer("hello").await;
    };
    let (answer, ()) = tokio::join!(rig.get("/"), serving);
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
}

#[tokio::test]
async fn a_get_whose_response_had_begun_is_not_sent_again() {
    let (rig, pod) = Rig::with_pod(Options::default()).await;
    let serving = async {
        let mut wire = pod.accept().await;
        wire.head().await;
        wire.write("HTTP/1.1 200 OK\r\nContent-Le").await;
        drop(wire);
        pod.accept().await.head().await
    };
    let answer = tokio::select! {
        answer = rig.get("/") => answer,
        again = serving => again,
    };
    assert!(answer.starts_with("HTTP/1.1 502 ") && answer.contains(UPSTREAM_RESET), "{answer}");
    assert_eq!(rig.metric(r#"rouse_retries_total{reason="reset"}"#), 0);
}

#[tokio::test]
async fn a_get_that_meets_the_closing_of_an_idle_connection_is_sent_again_without_a_wait() {
    let (rig, pod) = Rig::with_pod(Options::default()).await;
    let mut client = rig.connect().await;
    client.write("GET / HTTP/1.1\r\nHost: cart.test\r\n\r\n").await;
    let mut wire = pod.accept().await;
    wire.head().await;
    wire.answer("one").await;
    client.until("one").await;
    client.write("GET / HTTP/1.1\r\nHost: cart.test\r\n\r\n").await;
    // The pod closes just as the request arrives.
    wire.head().await;
    drop(wire);
    let mut wire = pod.accept().await;
    wire.head().await;
    wire.answer("two").await;
    client.until("two").await;
    assert_eq!(rig.metric(r#"rouse_retries_total{reason="idle"}"#), 1);
    // Nothing is wrong with the pod: it gets the request at once, and others as well.
    assert_eq!(rig.metric(r#"rouse_hold_duration_seconds_count{service="shop/cart",outcome="served"}"#), 0);
    assert_eq!(rig.metric("rouse_ejections_total"), 0);
}

#[tokio::test]
async fn a_refused_stream_is_tried_again_with_its_body_and_nothing_is_held_against_the_pod() {
    for body in ["", "hello"] {
        let (rig, pod) = Rig::with_pod(h2c()).await;
        let refused = Arc::new(AtomicBool::new(false));
        let _serving = pod.serve_h2(h2::server::Builder::new(), move |request, mut respond| {
            let refused = Arc::clone(&refused);
            async move {
                if !refused.swap(true, Ordering::Relaxed) {
                    return respond.send_reset(h2::Reason::REFUSED_STREAM);
                }
                let body = h2kit::read(request.into_body()).await;
                upload(&mut h2kit::begin(&mut respond), [b"taken: ", &*body].concat().into(), true).await;
            }
        });
        let client = H2Client::new(&rig).await;
        let (response, mut sending) = client.send(Request::post("http://cart.test/"), body.is_empty()).await;
        upload(&mut sending, Bytes::from_static(body.as_bytes()), true).await;
        assert_eq!(response.body().await, format!("taken: {body}").as_bytes());
        assert_eq!(rig.metric(r#"rouse_retries_total{reason="refused_stream"}"#), 1);
        assert_eq!(rig.metric("rouse_ejections_total"), 0);
    }
}

#[tokio::test]
async fn a_stream_that_meets_the_farewell_of_its_connection_is_served_by_a_new_one() {
    let (rig, pod) = Rig::with_pod(h2c()).await;
    let client = H2Client::new(&rig).await;
    let serving = async {
        for _ in 0..20 {
            let mut connection = pod.accept_h2().await;
            let (_request, mut respond) = connection.accept().await.unwrap().unwrap();
            answer(&mut respond, "hello");
            connection.graceful_shutdown();
            while connection.accept().await.is_some() {}
        }
    };
    let asking = async {
        for _ in 0..20 {
            let response = client.send(Request::post("http://cart.test/"), true).await.0;
            assert_eq!(response.body().await, b"hello");
        }
    };
    tokio::join!(asking, serving);
    assert_eq!(rig.metric("rouse_ejections_total"), 0);
}
