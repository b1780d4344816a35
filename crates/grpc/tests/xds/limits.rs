//! Limits, and requests that cannot be read: they end one stream, with a status, and nothing else.

use http_body_util::{BodyExt as _, Full};
use rouse_grpc::xds::resource_type::ResourceType;
use rouse_grpc::xds::{Access, XdsLimits};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tonic::{Code, Status};

use crate::harness::{Cds, Connection, Eds, Envoy, GENEROUS, Lds, Scene, request};
use crate::proto::service::discovery::v3::DeltaDiscoveryRequest;

/// A server with a limit.
fn limited(change: impl FnOnce(&mut XdsLimits)) -> Scene {
    let mut limits = XdsLimits::default();
    change(&mut limits);
    Scene::with(limits, Access::Any)
}

/// Checks that another stream still works.
async fn check_works(scene: &Scene, envoy: &mut Envoy) {
    scene.set(Cds, "checked", "1");
    envoy.subscribe(Cds, &["checked"]).await;
    envoy.accept("cds checked=1").await;
}

/// A stream that the server refuses at once.
async fn refused(connection: Connection) -> Status {
    connection.delta().await.err().unwrap()
}

#[tokio::test]
async fn one_stream_more_than_the_limit_is_refused_until_one_ends() {
    for (limits, reason) in [
        (XdsLimits { streams: 2, ..XdsLimits::default() }, "too_many_streams"),
        (XdsLimits { streams_per_client: 2, ..XdsLimits::default() }, "too_many_streams_of_client"),
    ] {
        let scene = Scene::with(limits, Access::Any);
        let connection = scene.connect().await;
        let again = || Connection { channel: connection.channel.clone(), _task: JoinSet::new() };
        let mut first = again().delta().await.unwrap();
        let second = again().delta_endpoints().await.unwrap();
        let status = refused(again()).await;
        assert_eq!(status.code(), Code::ResourceExhausted);
        assert!(status.message().contains("2 streams"), "{status:?}");
        assert_eq!((scene.ended(reason), scene.metric("rouse_xds_streams")), (1, 2));
        check_works(&scene, &mut first).await;
        let mut changes = scene.server.watch_clients();
        changes.mark_unchanged();
        drop(second);
        timeout(GENEROUS, changes.wait_for(|_| scene.server.clients().len() == 1)).await.unwrap().unwrap();
        let mut third = again().delta().await.unwrap();
        check_works(&scene, &mut third).await;
    }
}

#[tokio::test]
async fn more_names_than_the_limit_end_the_stream_and_no_other() {
    let scene = limited(|limits| limits.names_per_stream = 3);
    let mut other = scene.envoy().await;
    let mut envoy = scene.envoy().await;
    envoy.subscribe(Eds, &["a", "b", "c"]).await;
    envoy.accept("eds -a -b -c").await;
    envoy.change(Eds, &["d"], &["a"]).await;
    envoy.accept("eds -d").await;
    // Of all types together.
    envoy.subscribe(Lds, &["e"]).await;
    let (code, message) = envoy.end().await;
    assert_eq!(code, Code::ResourceExhausted);
    assert!(message.contains("more than 3 names"), "{message}");
    assert_eq!(scene.ended("too_many_names"), 1);
    check_works(&scene, &mut other).await;
}

#[tokio::test]
async fn a_request_with_too_many_bytes_ends_its_stream_and_no_other() {
    let scene = limited(|limits| limits.request_bytes = 4096);
    let mut other = scene.envoy().await;
    let mut envoy = scene.envoy().await;
    let name = "x".repeat(5000);
    envoy.subscribe(Eds, &[&name]).await;
    let (code, message) = envoy.end().await;
    assert_eq!(code, Code::ResourceExhausted);
    assert!(message.contains("more than 4096 bytes"), "{message}");
    assert_eq!(scene.ended("oversized"), 1);
    check_works(&scene, &mut other).await;
}

/// Sends these bytes as the body of a call, and returns its status.
async fn raw(scene: &Scene, path: &str, body: &'static [u8]) -> Status {
    let mut connection = scene.connect().await;
    let request = http::Request::post(format!("http://xds:18000{path}"))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .body(tonic::body::Body::new(Full::from(body)))
        .unwrap();
    let sent = tower_service::Service::call(&mut connection.channel, request);
    let (head, body) = timeout(GENEROUS, sent).await.unwrap().unwrap().into_parts();
    let body = timeout(GENEROUS, body.collect()).await.unwrap().unwrap();
    Status::from_header_map(body.trailers().unwrap_or(&head.headers)).unwrap()
}

#[tokio::test]
async fn garbage_ends_its_stream_and_no_other() {
    const ADS: &str = "/envoy.service.discovery.v3.AggregatedDiscoveryService/DeltaAggregatedResources";
    let scene = Scene::new();
    let mut other = scene.envoy().await;
    // No message of protobuf; a text that is no UTF-8; a compressed message; a length without its message.
    for body in [
        &b"\0\0\0\0\x03\xff\xff\xff"[..],
        b"\0\0\0\0\x03\x12\x01\xff",
        b"\x01\0\0\0\x01\0",
        b"\0\0\0\0\x09\x12",
    ] {
        let status = raw(&scene, ADS, body).await;
        assert_ne!(status.code(), Code::Ok, "{body:?}");
    }
    assert!(scene.ended("malformed") >= 3, "{}", scene.ended("malformed"));
    for path in ["/", "/envoy.service.discovery.v3.AggregatedDiscoveryService/Fetch", "/x.y/z"] {
        assert_eq!(raw(&scene, path, b"").await.code(), Code::Unimplemented, "{path}");
    }
    // Load reports are only served when they are there.
    let loads = "/envoy.service.load_stats.v3.LoadReportingService/StreamLoadStats";
    assert_eq!(raw(&scene, loads, b"").await.code(), Code::Unimplemented);
    check_works(&scene, &mut other).await;
    assert_eq!(scene.server.clients().len(), 1);
}

#[tokio::test]
async fn a_request_without_a_type_ends_the_aggregated_stream() {
    let scene = Scene::new();
    let mut envoy = scene.envoy().await;
    envoy.send(DeltaDiscoveryRequest::default()).await;
    let (code, message) = envoy.end().await;
    assert_eq!((code, message.as_str()), (Code::InvalidArgument, "the request has no type URL"));
}

#[tokio::test]
async fn a_stream_of_endpoints_has_no_other_type() {
    for kind in [Cds, Lds, ResourceType::Routes] {
        let scene = Scene::new();
        scene.set(Eds, "a", "1");
        let mut envoy = scene.connect().await.delta_endpoints().await.unwrap();
        envoy.send(DeltaDiscoveryRequest { type_url: String::new(), ..request(Eds, &["a"], &[]) }).await;
        envoy.accept("eds a=1").await;
        envoy.subscribe(kind, &[]).await;
        let (code, message) = envoy.end().await;
        assert_eq!(code, Code::InvalidArgument);
        assert!(message.contains(kind.url()) && message.contains(Eds.url()), "{message}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_stream_without_a_request_ends() {
    let scene = Scene::new();
    let mut envoy = scene.envoy().await;
    assert_eq!(envoy.end().await.0, Code::DeadlineExceeded);
    assert_eq!(scene.ended("no_request"), 1);
}
