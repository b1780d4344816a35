//! HTTP/2 streams that share connections, to clients and to pods.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use http::{HeaderMap, Request};
use rouse_proxy::budget::{ConnectionLimits, HeadLimits};
use rouse_testkit::fakes::READY;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::http2_peers::{H2Client, answer, begin, h2c, upload};
use crate::rig::{Options, PATIENCE, Pod, Rig, eventually};

#[tokio::test]
async fn a_pod_with_few_streams_per_connection_gets_more_connections_and_not_a_queue() {
    let (rig, pod) = Rig::with_pod(h2c()).await;
    let mut builder = h2::server::Builder::new();
    builder.max_concurrent_streams(2);
    let _serving = pod.serve_h2(builder, |_, mut respond| async move {
        // A stream that never ends.
        let _body = begin(&mut respond);
        std::future::pending::<()>().await;
    });
    let client = H2Client::new(&rig).await;
    let mut endless = Vec::new();
    for _ in 0..8 {
        endless.push(client.get("http://cart.test/").await.head().await);
    }
}

#[tokio::test]
async fn a_herd_that_is_released_at_once_shares_connections() {
    let rig = Rig::new(h2c());
    let pod = Pod::new(1).await;
    let client = H2Client::new(&rig).await;
    let mut max_released = Vec::new();
    for number in 1..=50 {
        max_released.push(client.get("http://cart.test/").await);
        eventually("it is held", || rig.service.holds() == number).await;
    }
    rig.pods(&[(&pod, READY)]);
    let mut connected = 0;
    let serving = async {
        let mut connections = JoinSet::new();
        loop {
            let mut connection = pod.accept_h2().await;
            connected += 1;
            connections.spawn(async move {
                while let Some(Ok((_, mut respond))) = connection.accept().await {
                    answer(&mut respond, "hello");
                }
            });
        }
    };
    let asking = async {
        for response in max_released {
            assert_eq!(response.body().await, b"hello");
        }
    };
    tokio::select! {
        () = asking => {}
        () = serving => {}
    }
    assert!(connected <= 4, "{connected} connections for 50 streams");
}

#[tokio::test]
async fn hundreds_of_streams_are_under_way_at_once_and_keep_their_trailers() {
    const AT_ONCE: usize = 256;
    let (rig, pod) = Rig::with_pod(h2c()).await;
    let (arrived, gate) = (Arc::<AtomicUsize>::default(), Arc::new(Semaphore::new(0)));
    let _serving = pod.serve_h2(h2::server::Builder::new(), move |request, mut respond| {
        let (arrived, gate) = (Arc::clone(&arrived), Arc::clone(&gate));
        async move {
            if request.uri().path() != "/first" {
                if arrived.fetch_add(1, Ordering::Relaxed) + 1 == AT_ONCE {
                    gate.close();
                }
                // No request is sent before it is closed.
                drop(gate.acquire().await);
            }
            let mut body = begin(&mut respond);
            upload(&mut body, "hello".into(), false).await;
            let mut trailers = HeaderMap::new();
            trailers.insert("grpc-status", "0".parse().unwrap());
            body.send_trailers(trailers).unwrap();
        }
    });
    let client = Arc::new(H2Client::new(&rig).await);
    // After this the client knows how many streams it may have.
    assert_eq!(client.get("http://cart.test/first").await.body().await, b"hello");
    let mut asking = JoinSet::new();
    for _ in 1..300 {
        let client = Arc::clone(&client);
        asking.spawn(async move {
            let mut body = client.get("http://cart.test/").await.head().await.into_body();
            while let Some(data) = body.data().await {
                data.unwrap();
            }
            assert_eq!(body.trailers().await.unwrap().unwrap().get("grpc-status").unwrap(), "0");
        });
    }
    timeout(PATIENCE, asking.join_all()).await.expect("all should be answered");
    rig.requests_counted(200, "http2", 300).await;
    assert_eq!((rig.service.in_flight(), rig.gateway.under_way().count()), (0, 0));
}

#[tokio::test]
async fn a_stream_that_its_client_cancels_is_cancelled_at_the_pod() {
    let (rig, pod) = Rig::with_pod(h2c()).await;
    let client = H2Client::new(&rig).await;
    let (response, mut body) = client.send(Request::post("http://cart.test/"), false).await;
    let mut connection = pod.accept_h2().await;
    let (_request, mut respond) = connection.accept().await.unwrap().unwrap();
    body.send_reset(h2::Reason::CANCEL);
    drop(response);
    let reset = timeout(PATIENCE, poll_fn(|context| respond.poll_reset(context)));
    let reset = tokio::select! {
        reset = reset => reset.ok(),
        _ = connection.accept() => None,
    };
    assert!(reset.is_some(), "the pod should get a reset, on a connection that goes on");
    eventually("its slot is free", || rig.service.in_flight() == 0).await;
    rig.requests_counted(499, "http2", 1).await;
}

#[tokio::test]
async fn a_connection_that_dies_with_many_streams_leaves_nothing_behind() {
    let (rig, pod) = Rig::with_pod(h2c()).await;
    let client = H2Client::new(&rig).await;
    let mut responses = vec![client.send(Request::post("http://cart.test/"), true).await.0];
    let mut connection = pod.accept_h2().await;
    let mut streams = vec![connection.accept().await.unwrap().unwrap()];
    for _ in 1..90 {
        responses.push(client.send(Request::post("http://cart.test/"), true).await.0);
        streams.push(connection.accept().await.unwrap().unwrap());
    }
    drop((streams, connection));
    for response in responses {
        assert_eq!(response.head().await.status(), 502);
    }
    eventually("all slots are free", || rig.service.in_flight() == 0).await;
    rig.requests_counted(502, "http2", 90).await;
    assert_eq!(rig.gateway.under_way().count(), 0);
}

#[tokio::test]
async fn http_2_has_as_many_headers_and_streams_as_are_allowed() {
    let heads = HeadLimits { headers: 10, ..HeadLimits::default() };
    let limits = ConnectionLimits { heads, streams: 3, ..ConnectionLimits::default() };
    let (rig, pod) = Rig::with_pod(Options { limits, ..Options::default() }).await;
    let _pod = pod.serve();
    let client = H2Client::new(&rig).await;
    for (headers, status) in [(1, 200), (10, 200), (11, 431)] {
        let mut request = Request::get("http://cart.test/");
        for number in 0..headers {
            request = request.header(format!("x-{number}"), "y");
        }
        let response = client.send(request, true).await.0.head().await;
        assert_eq!(response.status(), status, "{headers} headers");
    }
    assert_eq!(client.most_streams(), 3);
}
