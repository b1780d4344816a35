//! Review: HTTP/2 on both sides.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use rouse_core::endpoint::{PortName, ServiceId};
use rouse_core::service::Spec;
use rouse_core::snapshot::Spread;
use rouse_proxy::gateway::{Backend, Route, Target, Timeouts, Upstream};
use rouse_proxy::route::{Rule, Table};
use rouse_testkit::fakes::READY;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::h2kit::{H2Client, read, upload};
use crate::rig::{Options, Pod, Rig, eventually};

fn h2c() -> Options {
    Options { protocol: Upstream::H2c, ..Options::default() }
}

fn ok() -> Response<()> {
    Response::new(())
}

/// RFC 9113 8.2.3: crumbs of a cookie are joined before they go to HTTP/1.
#[tokio::test]
async fn the_crumbs_of_a_cookie_are_one_header_for_an_http1_pod() {
    let rig = Rig::new(Options::default());
    let pod = Pod::new(1).await;
    rig.pods(&[(&pod, READY)]);
    let mut client = H2Client::new(&rig).await;
    let request = Request::get("http://cart.test/").header("cookie", "a=1").header("cookie", "b=2");
    let (_response, _) = client.send(request, true).await;
    let mut wire = pod.accept().await;
    let head = wire.head().await;
    assert!(head.contains("\r\ncookie: a=1; b=2\r\n"), "{head}");
}

/// Eight clients that do not read must not stall everybody else's responses from the same pod.
#[tokio::test]
async fn responses_that_nobody_reads_do_not_stall_others_of_the_same_pod() {
    let rig = Rig::new(h2c());
    let pod = Pod::new(1).await;
    rig.pods(&[(&pod, READY)]);
    let serving = async {
        let mut connections = JoinSet::new();
        loop {
            let stream = pod.accept_raw().await;
            connections.spawn(async move {
                let mut connection = h2::server::handshake(stream).await.unwrap();
                let mut streams = JoinSet::new();
                while let Some(Ok((request, mut respond))) = connection.accept().await {
                    let big = request.uri().path() == "/big";
                    let mut body = respond.send_response(ok(), false).unwrap();
                    streams.spawn(async move {
                        let size = if big { 64 << 20 } else { 5 };
                        upload(&mut body, Bytes::from(vec![b'x'; size]), true).await;
                    });
                }
            });
        }
    };
    let asking = async {
        let mut kept = Vec::new();
        for _ in 0..4 {
            // Both workers get some of them.
            let mut client = H2Client::new(&rig).await;
            for _ in 0..16 {
                let response = client.get("http://cart.test/big").await;
                kept.push(response.await.unwrap());
            }
            kept.first().unwrap();
            std::mem::forget(client);
        }
        sleep(Duration::from_millis(500)).await;
        for _ in 0..4 {
            let mut client = H2Client::new(&rig).await;
            let response = client.get("http://cart.test/small").await;
            let response = timeout(Duration::from_secs(3), response).await.expect("a head").unwrap();
            let body = timeout(Duration::from_secs(3), read(response.into_body())).await;
            assert_eq!(body.expect("a body in time").unwrap(), b"xxxxx");
        }
    };
    tokio::select! {
        () = asking => {}
        () = serving => {}
    }
}

/// Uploads that are held (their service is cold) must not stall uploads to other services on the same connection.
#[tokio::test]
async fn held_uploads_do_not_stall_those_of_other_services_on_the_same_connection() {
    let rig = Rig::new(Options::default());
    let pod = Pod::new(1).await;
    rig.pods(&[(&pod, READY)]);
    // A second service without pods, at cold.test.
    let (id, name): (ServiceId, _) = ("shop/cold".parse().unwrap(), PortName::new("http"));
    let cold = rig.registry.declare(&id, &Spec { ports: vec![name.clone()], spread: Spread::default() });
    let backend =
        Backend { service: Arc::clone(&cold), port: cold.port(&name).unwrap(), protocol: Upstream::Http1 };
    let route = Route {
        name: "cold".into(),
        service: id,
        target: Target::Backend(backend),
        timeouts: Timeouts::default(),
    };
    let warm = Arc::clone(&rig.gateway.routes().rules()[0].target);
    let rule = |host: &str, target| Rule {
        hosts: vec![host.parse().unwrap()],
        paths: Vec::new(),
        headers: Vec::new(),
        created: 0,
        name: host.into(),
        target,
    };
    rig.gateway.set_routes(Table::new(vec![rule("cart.test", warm), rule("cold.test", Arc::new(route))]));
    let mut client = H2Client::new(&rig).await;
    let mut held = Vec::new();
    for number in 1..=20 {
        let (response, mut body) = client.send(Request::post("http://cold.test/"), false).await;
        let part = upload(&mut body, Bytes::from(vec![b'x'; 64 * 1024]), false);
        timeout(Duration::from_millis(300), part).await.ok();
        held.push((response, body));
        eventually("it is held", || cold.holds() == number).await;
    }
    let (response, mut body) = client.send(Request::post("http://cart.test/"), false).await;
    let serving = async {
        let mut wire = pod.accept().await;
        wire.until("hello").await;
        wire.answer("thanks").await;
    };
    let asking = async {
        upload(&mut body, Bytes::from_static(b"hello"), true).await;
        response.await.unwrap()
    };
    let both = async { tokio::join!(asking, serving) };
    let done = timeout(Duration::from_secs(3), both).await;
    assert!(done.is_ok(), "a warm service should not wait for a cold one");
}

/// A pod that allows few streams per connection gets more connections, not a queue.
#[tokio::test]
async fn a_pod_with_few_streams_per_connection_gets_more_connections() {
    let rig = Rig::new(h2c());
    let pod = Pod::new(1).await;
    rig.pods(&[(&pod, READY)]);
    let serving = async {
        let mut connections = JoinSet::new();
        loop {
            let stream = pod.accept_raw().await;
            connections.spawn(async move {
                let mut builder = h2::server::Builder::new();
                builder.max_concurrent_streams(2);
                let mut connection = builder.handshake::<_, Bytes>(stream).await.unwrap();
                let mut kept = Vec::new();
                while let Some(Ok((_, mut respond))) = connection.accept().await {
                    // Streams that never end.
                    kept.push(respond.send_response(ok(), false).unwrap());
                }
            });
        }
    };
    let asking = async {
        let mut client = H2Client::new(&rig).await;
        let mut kept = Vec::new();
        for number in 1..=8 {
            let response = client.get("http://cart.test/").await;
            let response = timeout(Duration::from_secs(3), response).await;
            kept.push(response.unwrap_or_else(|_| panic!("stream {number} got no answer")).unwrap());
        }
    };
    tokio::select! {
        () = asking => {}
        () = serving => {}
    }
}

/// "any method, incl. h2 REFUSED_STREAM": also with a body that has been taken already.
#[tokio::test]
async fn a_refused_stream_with_a_body_is_tried_again() {
    let rig = Rig::new(h2c());
    let pod = Pod::new(1).await;
    rig.pods(&[(&pod, READY)]);
    let serving = async {
        let mut first = true;
        let mut connections = JoinSet::new();
        loop {
            let mut connection = h2::server::handshake(pod.accept_raw().await).await.unwrap();
            let refuse = std::mem::take(&mut first);
            connections.spawn(async move {
                let mut refuse = refuse;
                while let Some(Ok((request, mut respond))) = connection.accept().await {
                    if std::mem::take(&mut refuse) {
                        respond.send_reset(h2::Reason::REFUSED_STREAM);
                        continue;
                    }
                    drop(request);
                    let mut body = respond.send_response(ok(), false).unwrap();
                    body.send_data(Bytes::from_static(b"taken"), true).unwrap();
                }
            });
        }
    };
    let asking = async {
        let mut client = H2Client::new(&rig).await;
        let (response, mut body) = client.send(Request::post("http://cart.test/"), false).await;
        upload(&mut body, Bytes::from_static(b"hello"), true).await;
        let response = timeout(Duration::from_secs(5), response).await.expect("an answer").unwrap();
        assert_eq!(response.status(), 200);
    };
    tokio::select! {
        () = asking => {}
        () = serving => {}
    }
    assert_eq!(rig.metric("rouse_ejections_total"), 0, "a refused stream is no failure to connect");
}

/// A pod that says GOAWAY to a connection is not ejected for it, and the request is served at once.
#[tokio::test]
async fn a_refused_stream_does_not_eject_the_pod() {
    let rig = Rig::new(h2c());
    let pod = Pod::new(1).await;
    rig.pods(&[(&pod, READY)]);
    let served = AtomicUsize::new(0);
    let serving = async {
        let mut connection = h2::server::handshake(pod.accept_raw().await).await.unwrap();
        while let Some(Ok((_, mut respond))) = connection.accept().await {
            if served.fetch_add(1, Ordering::Relaxed) == 0 {
                respond.send_reset(h2::Reason::REFUSED_STREAM);
                continue;
            }
            let mut body = respond.send_response(ok(), false).unwrap();
            body.send_data(Bytes::from_static(b"taken"), true).unwrap();
        }
        std::future::pending::<()>().await;
    };
    let asking = async {
        let mut client = H2Client::new(&rig).await;
        let response = client.get("http://cart.test/").await;
        let response = timeout(Duration::from_secs(5), response).await.expect("an answer").unwrap();
        assert_eq!(response.status(), 200);
    };
    tokio::select! {
        () = asking => {}
        () = serving => {}
    }
    assert_eq!(rig.metric("rouse_ejections_total"), 0, "a refused stream is no failure to connect");
}

/// A request deadline that ends an upload ends the stream to the pod, too.
#[tokio::test]
async fn a_deadline_while_uploading_resets_the_stream_to_the_pod() {
    let timeouts = Timeouts { request: Some(Duration::from_millis(300)), ..Timeouts::default() };
    let rig = Rig::new(Options { timeouts, ..h2c() });
    let pod = Pod::new(1).await;
    rig.pods(&[(&pod, READY)]);
    let mut client = H2Client::new(&rig).await;
    let (response, mut body) = client.send(Request::post("http://cart.test/"), false).await;
    body.send_data(Bytes::from_static(b"hello"), false).unwrap();
    let mut connection = h2::server::handshake(pod.accept_raw().await).await.unwrap();
    let (request, _respond) = connection.accept().await.unwrap().unwrap();
    let mut upload = request.into_body();
    let serving = async { drop(connection.accept().await) };
    let asking = async {
        let response = timeout(Duration::from_secs(5), response).await.expect("an answer").unwrap();
        assert_eq!(response.status(), 504);
        let ended = async { while let Some(Ok(_)) = upload.data().await {} };
        timeout(Duration::from_secs(2), ended).await.expect("the pod hears of it");
    };
    tokio::select! {
        () = asking => {}
        () = serving => {}
    }
    assert_eq!(rig.service.in_flight(), 0);
}

/// 300 streams at once on one client connection, through to the pod and back, with trailers.
#[tokio::test]
async fn three_hundred_streams_with_trailers() {
    let rig = Rig::new(h2c());
    let pod = Pod::new(1).await;
    rig.pods(&[(&pod, READY)]);
    let serving = async {
        let mut connections = JoinSet::new();
        loop {
            let stream = pod.accept_raw().await;
            connections.spawn(async move {
                let mut connection = h2::server::handshake(stream).await.unwrap();
                let mut streams = JoinSet::new();
                while let Some(Ok((_, mut respond))) = connection.accept().await {
                    streams.spawn(async move {
                        sleep(Duration::from_millis(300)).await;
                        let mut body = respond.send_response(ok(), false).unwrap();
                        body.send_data(Bytes::from_static(b"hello"), false).unwrap();
                        let mut trailers = http::HeaderMap::new();
                        trailers.insert("grpc-status", "0".parse().unwrap());
                        body.send_trailers(trailers).unwrap();
                    });
                }
            });
        }
    };
    let asking = async {
        let mut client = H2Client::new(&rig).await;
        // After this the client knows how many streams it may have.
        client.get("http://cart.test/").await.await.unwrap();
        let mut all = JoinSet::new();
        for _ in 0..299 {
            let mut sender = client.sender.clone();
            all.spawn(async move {
                std::future::poll_fn(|context| sender.poll_ready(context)).await.unwrap();
                let request = Request::get("http://cart.test/").body(()).unwrap();
                let (response, _) = sender.send_request(request, true).unwrap();
                let mut body = response.await.unwrap().into_body();
                while let Some(data) = body.data().await {
                    data.unwrap();
                }
                assert_eq!(body.trailers().await.unwrap().unwrap().get("grpc-status").unwrap(), "0");
            });
        }
        timeout(Duration::from_secs(15), async {
            while let Some(one) = all.join_next().await {
                one.unwrap()
            }
        })
        .await
        .expect("all are answered");
    };
    tokio::select! {
        () = asking => {}
        () = serving => {}
    }
    eventually("all are in the books", || {
        rig.metric(r#"rouse_requests_total{route="cart",code="200",protocol="http2"}"#) == 300
    })
    .await;
    assert_eq!((rig.service.in_flight(), rig.gateway.under_way().count()), (0, 0));
}

/// What is in flight on a client's HTTP/2 connection is finished after the GOAWAY of a drain.
#[tokio::test]
async fn a_drain_finishes_the_streams_of_a_connection_and_then_closes_it() {
    let mut rig = Rig::new(h2c());
    let pod = Pod::new(1).await;
    rig.pods(&[(&pod, READY)]);
    let mut client = H2Client::new(&rig).await;
    let first = client.get("http://cart.test/").await;
    let mut connection = h2::server::handshake(pod.accept_raw().await).await.unwrap();
    let (_request, mut respond) = connection.accept().await.unwrap().unwrap();
    let mut streams = JoinSet::new();
    streams.spawn(async move { drop(connection.accept().await) });
    rig.workers.drain();
    sleep(Duration::from_millis(100)).await;
    let mut body = respond.send_response(ok(), false).unwrap();
    body.send_data(Bytes::from_static(b"hello"), true).unwrap();
    let response = timeout(Duration::from_secs(3), first).await.expect("an answer").unwrap();
    assert_eq!(read(response.into_body()).await.unwrap(), b"hello");
    timeout(Duration::from_secs(3), rig.gateway.under_way().idle()).await.unwrap();
    rig.workers.close();
    timeout(Duration::from_secs(3), rig.workers.ended()).await.expect("all threads end");
}

/// A pod that reads nothing any more must not keep the workers from ending.
#[tokio::test]
async fn workers_end_although_a_pod_does_not_read() {
    let mut rig = Rig::new(h2c());
    let pod = Pod::new(1).await;
    rig.pods(&[(&pod, READY)]);
    let mut client = H2Client::new(&rig).await;
    let (response, mut body) = client.send(Request::post("http://cart.test/"), false).await;
    let stream = pod.accept_raw().await;
    let mut builder = h2::server::Builder::new();
    builder.initial_window_size(1 << 30).initial_connection_window_size(1 << 30);
    let connection = builder.handshake::<_, Bytes>(stream).await.unwrap();
    // Its windows are wide open, and it does not read: the socket fills.
    let pouring = upload(&mut body, Bytes::from(vec![b'x'; 64 << 20]), false);
    timeout(Duration::from_secs(2), pouring).await.ok();
    rig.workers.close();
    let ended = timeout(Duration::from_secs(3), rig.workers.ended()).await;
    drop((connection, response));
    assert!(ended.is_ok(), "all threads end");
}

/// A herd that is released at once shares connections.
#[tokio::test]
async fn a_herd_shares_connections() {
    let rig = Rig::new(h2c());
    let pod = Pod::new(1).await;
    let connected = AtomicUsize::new(0);
    let mut client = H2Client::new(&rig).await;
    let mut all = Vec::new();
    for number in 1..=50 {
        all.push(client.get("http://cart.test/").await);
        eventually("it is held", || rig.service.holds() == number).await;
    }
    rig.pods(&[(&pod, READY)]);
    let serving = async {
        let mut connections = JoinSet::new();
        loop {
            let stream = pod.accept_raw().await;
            connected.fetch_add(1, Ordering::Relaxed);
            connections.spawn(async move {
                let mut connection = h2::server::handshake(stream).await.unwrap();
                while let Some(Ok((_, mut respond))) = connection.accept().await {
                    let mut body = respond.send_response(ok(), false).unwrap();
                    body.send_data(Bytes::from_static(b"hello"), true).unwrap();
                }
            });
        }
    };
    let asking = async {
        for response in all {
            read(response.await.unwrap().into_body()).await.unwrap();
        }
    };
    tokio::select! {
        () = asking => {}
        () = serving => {}
    }
    let connected = connected.load(Ordering::Relaxed);
    assert!(connected <= 4, "{connected} connections for 50 streams");
}

/// A client that resets its stream is heard by the pod, and its slot is free.
#[tokio::test]
async fn a_cancelled_stream_is_cancelled_at_the_pod() {
    let rig = Rig::new(h2c());
    let pod = Pod::new(1).await;
    rig.pods(&[(&pod, READY)]);
    let mut client = H2Client::new(&rig).await;
    let (response, mut body) = client.send(Request::post("http://cart.test/"), false).await;
    let mut connection = h2::server::handshake(pod.accept_raw().await).await.unwrap();
    let (_request, mut respond) = connection.accept().await.unwrap().unwrap();
    body.send_reset(h2::Reason::CANCEL);
    drop(response);
    let heard = std::future::poll_fn(|context| respond.poll_reset(context));
    let serving = async { drop(connection.accept().await) };
    tokio::select! {
        heard = timeout(Duration::from_secs(3), heard) => drop(heard.expect("the pod hears of it")),
        () = serving => panic!("the connection ended"),
    }
    eventually("its slot is free", || rig.service.in_flight() == 0).await;
    eventually("it is in the books", || {
        rig.metric(r#"rouse_requests_total{route="cart",code="499",protocol="http2"}"#) == 1
    })
    .await;
}

/// GOAWAY above the last stream: tried again at once, on a new connection, and the pod is not ejected.
#[tokio::test]
async fn a_stream_above_a_goaway_is_served_by_a_new_connection() {
    let rig = Rig::new(h2c());
    let pod = Pod::new(1).await;
    rig.pods(&[(&pod, READY)]);
    let mut client = H2Client::new(&rig).await;
    let serving = async {
        for number in 0..20 {
            let mut connection = h2::server::handshake(pod.accept_raw().await).await.unwrap();
            let (_, mut respond) = connection.accept().await.unwrap().unwrap();
            let mut body = respond.send_response(ok(), false).unwrap();
            body.send_data(Bytes::from_static(b"hello"), true).unwrap();
            connection.graceful_shutdown();
            let ending = async { while connection.accept().await.is_some() {} };
            timeout(Duration::from_secs(5), ending).await.unwrap_or_else(|_| panic!("{number} should end"));
        }
    };
    let asking = async {
        for number in 0..20 {
            let response = client.send(Request::post("http://cart.test/"), true).await.0;
            let response = timeout(Duration::from_secs(5), response).await.expect("an answer").unwrap();
            assert_eq!(response.status(), 200, "{number}");
            read(response.into_body()).await.unwrap();
        }
        std::future::pending::<()>().await;
    };
    tokio::select! {
        () = asking => {}
        () = serving => {}
    }
    assert_eq!(rig.metric("rouse_ejections_total"), 0);
}

/// h2 ends a connection with ENHANCE_YOUR_CALM when half its window is taken up by unread DATA frames under 256
/// bytes, at 256 bytes each. One client that does not read small events must not end the streams of all others.
#[tokio::test]
async fn small_events_that_nobody_reads_do_not_end_the_streams_of_others() {
    let rig = Rig::new(h2c());
    let pod = Pod::new(1).await;
    rig.pods(&[(&pod, READY)]);
    let mut client = H2Client::new(&rig).await;
    let events = client.get("http://cart.test/events").await;
    let mut connection = h2::server::handshake(pod.accept_raw().await).await.unwrap();
    let (_, mut to_events) = connection.accept().await.unwrap().unwrap();
    let serving = async {
        let mut body = to_events.send_response(ok(), false).unwrap();
        let (_, mut to_other) = connection.accept().await.unwrap().unwrap();
        let sending = async {
            for _ in 0..12_000 {
                upload(&mut body, Bytes::from_static(&[b'x'; 20]), false).await;
            }
            sleep(Duration::from_millis(500)).await;
            let mut body = to_other.send_response(ok(), false).unwrap();
            body.send_data(Bytes::from_static(b"hello"), true).unwrap();
            std::future::pending::<()>().await;
        };
        tokio::select! {
            () = sending => {}
            _ = connection.accept() => std::future::pending().await,
        }
    };
    let asking = async {
        let _unread = events.await.unwrap();
        // A POST: a GET would be sent again.
        let other = client.send(Request::post("http://cart.test/other"), true).await.0;
        let other = timeout(Duration::from_secs(10), other).await.expect("an answer").unwrap();
        assert_eq!(other.status(), 200);
    };
    tokio::select! {
        () = asking => {}
        () = serving => {}
    }
}

/// The same for a client's connection, while its streams are held.
#[tokio::test]
async fn small_messages_of_a_held_stream_do_not_end_its_connection() {
    let rig = Rig::new(Options::default());
    let mut client = H2Client::new(&rig).await;
    let (mut response, mut body) = client.send(Request::post("http://cart.test/"), false).await;
    eventually("it is held", || rig.service.holds() == 1).await;
    let sending = async {
        for _ in 0..3_000 {
            upload(&mut body, Bytes::from_static(&[b'x'; 20]), false).await;
        }
    };
    timeout(Duration::from_secs(5), sending).await.ok();
    let ended = timeout(Duration::from_secs(1), &mut response).await;
    assert!(ended.is_err(), "it should still be held: {:?}", ended.unwrap().map(drop));
    assert_eq!(rig.service.holds(), 1);
}

/// A connection to a pod dies with a hundred streams: each has an end, and nothing is left behind.
#[tokio::test]
async fn a_connection_that_dies_with_many_streams_leaves_nothing_behind() {
    let rig = Rig::new(h2c());
    let pod = Pod::new(1).await;
    rig.pods(&[(&pod, READY)]);
    let mut client = H2Client::new(&rig).await;
    let mut responses = vec![client.send(Request::post("http://cart.test/"), true).await.0];
    let mut connection = h2::server::handshake(pod.accept_raw().await).await.unwrap();
    let mut kept = vec![connection.accept().await.unwrap().unwrap()];
    for _ in 1..90 {
        responses.push(client.send(Request::post("http://cart.test/"), true).await.0);
        kept.push(connection.accept().await.unwrap().unwrap());
    }
    drop((kept, connection));
    for response in responses {
        let response = timeout(Duration::from_secs(5), response).await.expect("an answer").unwrap();
        assert_eq!(response.status(), 502);
    }
    eventually("all slots are free", || rig.service.in_flight() == 0).await;
    assert_eq!(rig.metric(r#"rouse_requests_total{route="cart",code="502",protocol="http2"}"#), 90);
    assert_eq!(rig.gateway.under_way().count(), 0);
}

/// A client that leaves with many held streams.
#[tokio::test]
async fn held_streams_end_with_their_connection() {
    let rig = Rig::new(h2c());
    let mut client = H2Client::new(&rig).await;
    let mut kept = Vec::new();
    for number in 1..=40 {
        kept.push(client.send(Request::post("http://cart.test/"), number % 2 == 0).await);
        eventually("it is held", || rig.service.holds() == number).await;
    }
    drop((kept, client));
    eventually("all places are free", || rig.service.holds() == 0).await;
    eventually("all are in the books", || {
        rig.metric(r#"rouse_requests_total{route="cart",code="499",protocol="http2"}"#) == 40
    })
    .await;
    assert_eq!(rig.gateway.under_way().count(), 0);
}
