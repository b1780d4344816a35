//! Who is connected, and what every client has accepted.

use rouse_grpc::xds::Access;
use rouse_grpc::xds::XdsLimits;
use tokio::time::timeout;

use crate::harness::{Eds, Envoy, GENEROUS, Scene, peer};

/// A client that is subscribed to `a`, and has accepted it.
async fn subscribed(scene: &Scene, content: &str) -> Envoy {
    let mut envoy = scene.envoy().await;
    envoy.subscribe(Eds, &["a"]).await;
    envoy.accept(&format!("eds {content}")).await;
    envoy.expect_nothing().await;
    envoy
}

/// Whether all have accepted what there is now.
fn acknowledged(scene: &Scene) -> bool {
    scene.server.acknowledged_endpoints("a", scene.cache.version(Eds, "a"))
}

#[tokio::test]
async fn clients_are_listed_with_what_they_say_and_what_they_are() {
    let scene = Scene::new();
    assert_eq!(scene.server.clients(), []);
    let mut first = scene.envoy().await;
    let _second = subscribed(&scene, "-a").await;
    first.subscribe(Eds, &["c", "b"]).await;
    first.accept("eds -b -c").await;
    let clients = scene.server.clients();
    let endpoints: Vec<Vec<&str>> =
        clients.iter().map(|client| client.endpoints.iter().map(|name| &**name).collect()).collect();
    assert_eq!(endpoints, [vec!["b", "c"], vec!["a"]]);
    assert!(clients.iter().all(|client| client.node_id == "envoy-1" && client.identity.peer == peer()));
    assert!(clients[0].stream < clients[1].stream);
    assert_eq!(clients[0].identity.san, None);
}

#[tokio::test]
async fn a_version_is_acknowledged_when_every_subscribed_client_has_accepted_it() {
    let scene = Scene::with(XdsLimits::default(), Access::Any);
    assert!(acknowledged(&scene), "no client is subscribed");
    let (mut first, mut second) = (subscribed(&scene, "-a").await, subscribed(&scene, "-a").await);
    let mut other = scene.envoy().await;
    other.subscribe(Eds, &["b"]).await;
    other.accept("eds -b").await;
    assert!(acknowledged(&scene));
    scene.set(Eds, "a", "1");
    let before = scene.cache.version(Eds, "a");
    assert!(!acknowledged(&scene), "no client has it");
    first.accept("eds a=1").await;
    let nonce = second.expect("eds a=1").await;
    first.expect_nothing().await;
    assert!(!acknowledged(&scene), "one has not accepted it");
    second.nack(&nonce, "bad").await;
    second.expect_nothing().await;
    assert!(!acknowledged(&scene), "one has rejected it");
    scene.set(Eds, "a", "2");
    first.accept("eds a=2").await;
    second.accept("eds a=2").await;
    first.expect_nothing().await;
    second.expect_nothing().await;
    assert!(acknowledged(&scene));
    assert!(!scene.server.acknowledged_endpoints("a", before), "all have a newer one");
    assert!(!scene.server.acknowledged_endpoints("a", None));
}

#[tokio::test]
async fn a_client_that_leaves_is_not_waited_for() {
    let scene = Scene::new();
    let (mut first, second) = (subscribed(&scene, "-a").await, subscribed(&scene, "-a").await);
    scene.set(Eds, "a", "1");
    first.accept("eds a=1").await;
    first.expect_nothing().await;
    assert!(!acknowledged(&scene));
    let mut changes = scene.server.watch_clients();
    drop(second);
    timeout(GENEROUS, changes.wait_for(|_| acknowledged(&scene))).await.unwrap().unwrap();
    assert_eq!(scene.server.clients().len(), 1);
}

#[tokio::test]
async fn what_a_client_has_after_a_reconnect_is_acknowledged() {
    let scene = Scene::new();
    scene.set(Eds, "a", "1");
    let before = subscribed(&scene, "a=1").await;
    let mut envoy = scene.envoy().await;
    envoy.resume(Eds, &["a"], &before).await;
    envoy.expect_nothing().await;
    assert!(acknowledged(&scene));
    envoy.unsubscribe(Eds, &["a"]).await;
    envoy.expect_nothing().await;
    scene.set(Eds, "a", "2");
    drop(before);
    let mut changes = scene.server.watch_clients();
    timeout(GENEROUS, changes.wait_for(|_| acknowledged(&scene))).await.unwrap().unwrap();
}
