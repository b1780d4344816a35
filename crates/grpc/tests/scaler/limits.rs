//! Many streams, the stop, and both kinds of connections.

use std::sync::Arc;
use std::time::Duration;

use futures_util::stream;
use http::Request;
use http_body_util::StreamBody;
use hyper::body::{Bytes, Frame};
use rouse_grpc::GrpcTransport;
use rouse_net::tls::{
    Alpn, CertEntry, ClientSettings, ClientTls, Roots, ServerName, ServerSettings, ServerTls,
};
use rouse_testkit::certificates::Authority;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};
use tonic::{Code, Status};
use tower_service::Service as _;

use crate::harness::{GENEROUS, Keda, Scene, busy, idle, next, route, route_trigger};

#[tokio::test(start_paused = true)]
async fn a_thousand_streams_on_one_connection_work_beside_calls() {
    let scene = Scene::new();
    let keda = scene.keda().await;
    let mut streams = Vec::new();
    for n in 0..1000 {
        let name = format!("route-{n}");
        scene.board.publish(&route(&name), idle());
        let mut stream = keda.stream(route_trigger(&name)).await.unwrap();
        assert_eq!(next(&mut stream).await, Some(false));
        streams.push(stream);
    }
    assert_eq!(scene.metric("rouse_scaler_streams"), 1000);
    let began = Instant::now();
    for n in 0..1000 {
        scene.board.publish(&route(&format!("route-{n}")), busy(1));
    }
    for stream in &mut streams {
        assert_eq!(next(stream).await, Some(true));
    }
    assert!(began.elapsed() <= Duration::from_millis(50), "after {:?}", began.elapsed());
    assert!(keda.is_active(route_trigger("route-500")).await.unwrap());
    drop(streams);
    while scene.metric("rouse_scaler_streams") > 0 {
        assert!(began.elapsed() < GENEROUS);
        sleep_until(Instant::now() + Duration::from_millis(10)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn at_the_stop_streams_end_with_ok_and_the_connection_closes() {
    let scene = Scene::new();
    scene.board.publish(&route("cart"), busy(1));
    let mut keda = scene.keda().await;
    let mut streams = Vec::new();
    for name in ["cart", "cart", "nowhere"] {
        let mut stream = keda.stream(route_trigger(name)).await.unwrap();
        next(&mut stream).await;
        streams.push(stream);
    }
    let began = Instant::now();
    scene.stop.cancel();
    for stream in &mut streams {
        assert_eq!(next(stream).await, None);
    }
    timeout(GENEROUS, keda.connection.join_next()).await.unwrap();
    assert!(began.elapsed() <= Duration::from_secs(1), "after {:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_call_that_sends_no_message_ends_in_time_and_many_of_them_are_refused_at_once() {
    let scene = Scene::new();
    let mut keda = scene.keda().await;
    let mut calls = JoinSet::new();
    for _ in 0..5000 {
        let silent = StreamBody::new(stream::pending::<Result<Frame<Bytes>, Status>>());
        let request = Request::post("http://scaler:9090/externalscaler.ExternalScaler/IsActive")
            .header("content-type", "application/grpc")
            .body(tonic::body::Body::new(silent));
        calls.spawn(keda.channel.call(request.unwrap()));
    }
    let (began, mut late, mut refused) = (Instant::now(), 0, 0);
    while let Some(answered) = timeout(GENEROUS, calls.join_next()).await.unwrap() {
        let head = answered.unwrap().unwrap();
        let status = Status::from_header_map(head.headers()).unwrap();
        match (status.code(), began.elapsed().as_secs()) {
            (Code::DeadlineExceeded, 10) => late += 1,
            (Code::ResourceExhausted, 0) => refused += 1,
            other => panic!("{other:?}: {status:?}"),
        }
    }
    assert_eq!((late, refused), (4096, 5000 - 4096));
    assert!(!keda.is_active(route_trigger("cart")).await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn names_that_keda_makes_up_leave_nothing_behind() {
    let scene = Scene::new();
    let keda = scene.keda().await;
    for n in 0..5000 {
        let stream = keda.stream(route_trigger(&format!("made-up-{n}"))).await.unwrap();
        drop(stream);
        assert!(!keda.is_active(route_trigger(&format!("made-up-too-{n}"))).await.unwrap());
    }
    assert!(scene.board.names() <= 2500, "{} names are kept", scene.board.names());
}

#[tokio::test(start_paused = true)]
async fn a_connection_without_calls_is_closed_after_some_minutes_and_one_with_a_stream_is_not() {
    let scene = Scene::new();
    let (mut idle, busy) = (scene.keda().await, scene.keda().await);
    let mut stream = busy.stream(route_trigger("cart")).await.unwrap();
    assert_eq!(next(&mut stream).await, Some(false));
    let began = Instant::now();
    timeout(Duration::from_hours(1), idle.connection.join_next()).await.unwrap();
    let elapsed = began.elapsed();
    assert!(elapsed >= Duration::from_mins(5) && elapsed <= Duration::from_mins(11), "after {elapsed:?}");
    sleep_until(Instant::now() + Duration::from_hours(1)).await;
    assert!(!busy.is_active(route_trigger("cart")).await.unwrap());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keda_connects_over_real_sockets_without_tls_and_with_it() {
    let authority = Authority::new();
    let entry = CertEntry { identity: authority.leaf(&["localhost"]).identity(), names: Vec::new() };
    let settings = ServerSettings { alpn: vec![Alpn::H2], ..ServerSettings::new(vec![entry]) };
    let tls = Arc::new(ServerTls::new(settings).unwrap().0);
    let client =
        ClientSettings::new(ServerName::try_from("localhost").unwrap(), Roots::Pem(vec![authority.ca()]));
    let (client, _) = ClientTls::new(client).unwrap();
    for transport in [GrpcTransport::Plain, GrpcTransport::Tls(tls)] {
        let secure = matches!(transport, GrpcTransport::Tls(_));
        let scene = Scene::new();
        scene.board.publish(&route("cart"), idle());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (address, server) = (listener.local_addr().unwrap(), scene.server.clone());
        scene.tasks.lock().unwrap().spawn(async move { server.serve(listener, transport).await });
        let stream = TcpStream::connect(address).await.unwrap();
        let keda = if secure {
            let (stream, _) = client.connect(stream, Instant::now() + GENEROUS).await.unwrap();
            Keda::over(stream).await
        } else {
            Keda::over(stream).await
        };
        let mut stream = keda.stream(route_trigger("cart")).await.unwrap();
        assert_eq!(next(&mut stream).await, Some(false));
        scene.board.publish(&route("cart"), busy(1));
        assert_eq!(next(&mut stream).await, Some(true));
        scene.stop.cancel();
        assert_eq!(next(&mut stream).await, None);
        let mut tasks = std::mem::take(&mut *scene.tasks.lock().unwrap());
        timeout(GENEROUS, tasks.join_next()).await.unwrap().unwrap().unwrap();
    }
}
