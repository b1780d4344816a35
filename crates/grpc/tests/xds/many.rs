//! Many clients at once, and clients that do not read.

use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::task::JoinSet;

use crate::harness::{Cds, Eds, Envoy, Scene, set};

/// The name of endpoints.
fn name(number: usize) -> String {
    format!("service-{number:03}")
}

#[tokio::test]
async fn fifty_clients_get_all_changes() {
    const SERVICES: usize = 100;
    let scene = std::sync::Arc::new(Scene::new());
    scene.cache.update((0..SERVICES).map(|number| set(Eds, &name(number), "0")));
    let (mut clients, ready) = (JoinSet::new(), std::sync::Arc::new(AtomicUsize::new(0)));
    for _ in 0..50 {
        let mut envoy = scene.envoy().await;
        let ready = std::sync::Arc::clone(&ready);
        clients.spawn(async move {
            let names: Vec<String> = (0..SERVICES).map(name).collect();
            envoy.subscribe(Eds, &names.iter().map(String::as_str).collect::<Vec<_>>()).await;
            let (mut known, mut received) = (std::collections::BTreeMap::new(), 0_usize);
            while known.len() < SERVICES || known.values().any(|content| content != "20") {
                let response = envoy.next().await;
                for resource in &response.resources {
                    received += 1;
                    let content = resource.resource.as_ref().unwrap().value.clone();
                    known.insert(resource.name.clone(), String::from_utf8(content.to_vec()).unwrap());
                }
                let nonce = response.nonce;
                let request = crate::harness::request(Eds, &[], &[]);
                envoy
                    .send(crate::proto::service::discovery::v3::DeltaDiscoveryRequest {
                        response_nonce: nonce,
                        ..request
                    })
                    .await;
                ready.fetch_add(1, Ordering::Relaxed);
            }
            envoy.expect_nothing().await;
            received
        });
    }
    for round in 1..=20 {
        scene.cache.update((0..SERVICES).map(|number| set(Eds, &name(number), &round.to_string())));
        tokio::task::yield_now().await;
    }
    let mut finished = 0;
    while let Some(received) = clients.join_next().await {
        assert!((SERVICES..=21 * SERVICES).contains(&received.unwrap()));
        finished += 1;
    }
    assert_eq!(finished, 50);
    let version = scene.cache.version(Eds, &name(0));
    assert!(version.is_some());
}

#[tokio::test]
async fn a_client_that_does_not_read_blocks_no_other() {
    let scene = Scene::new();
    let mut deaf: Vec<Envoy> = Vec::new();
    for _ in 0..4 {
        deaf.push(scene.envoy().await);
    }
    // More than a window of HTTP/2 and the connection hold.
    let content = "x".repeat(900 * 1024);
    scene.set(Eds, "large", &content);
    for envoy in &mut deaf {
        // Without an answer, and unknown types that are answered at once.
        for round in 0..20 {
            envoy.subscribe(Eds, &["large"]).await;
            let type_url = format!("type.googleapis.com/{round}.{}", "x".repeat(1000));
            envoy
                .send(crate::proto::service::discovery::v3::DeltaDiscoveryRequest {
                    type_url,
                    ..Default::default()
                })
                .await;
        }
    }
    let mut envoy = scene.envoy().await;
    envoy.subscribe(Cds, &[]).await;
    envoy.accept("cds").await;
    for round in 0..50 {
        let round = round.to_string();
        scene.cache.update([set(Cds, "a", &round), set(Eds, "large", &format!("{content}{round}"))]);
        envoy.accept(&format!("cds a={round}")).await;
    }
    assert_eq!(scene.metric("rouse_xds_streams"), 5);
}

#[tokio::test]
async fn the_number_of_resources_and_streams_is_a_metric() {
    let scene = Scene::new();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let server = scene.server.clone();
    let mut serving = JoinSet::new();
    serving.spawn(async move { server.serve(listener, rouse_grpc::GrpcTransport::Plain).await });
    let stream = tokio::net::TcpStream::connect(address).await.unwrap();
    let mut envoy = crate::harness::Connection::over(stream).await.delta().await.unwrap();
    scene.cache.update([set(Cds, "a", "1"), set(Cds, "b", "1"), set(Eds, "a", "1")]);
    envoy.subscribe(Cds, &["a"]).await;
    envoy.accept("cds a=1").await;
    let metric = |kind| scene.metric(&format!("rouse_xds_resources{{type=\"{kind}\"}}"));
    assert_eq!((metric("cds"), metric("eds"), metric("lds")), (2, 1, 0));
    assert_eq!(scene.metric("rouse_xds_streams"), 1);
    scene.stop.cancel();
    tokio::time::timeout(crate::harness::GENEROUS, serving.join_next()).await.unwrap();
    assert_eq!(scene.metric("rouse_xds_streams"), 0);
}
