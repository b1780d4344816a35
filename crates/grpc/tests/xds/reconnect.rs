//! Reconnects: a client says what it has, and gets the difference.

use crate::harness::{Cds, Eds, Envoy, Lds, Rds, Scene, request, set};
use crate::proto::service::discovery::v3::DeltaDiscoveryRequest;

/// A client that has two clusters with their endpoints, a listener and routes.
async fn settled(scene: &Scene) -> Envoy {
    for name in ["a", "b"] {
        scene.cache.update([set(Cds, name, "1"), set(Eds, name, "1")]);
    }
    scene.cache.update([set(Lds, "l", "1"), set(Rds, "r", "1")]);
    let mut envoy = scene.envoy().await;
    envoy.subscribe(Cds, &[]).await;
    envoy.accept("cds a=1 b=1").await;
    envoy.subscribe(Eds, &["a", "b"]).await;
    envoy.accept("eds a=1 b=1").await;
    envoy.subscribe(Lds, &[]).await;
    envoy.accept("lds l=1").await;
    envoy.subscribe(Rds, &["r"]).await;
    envoy.accept("rds r=1").await;
    envoy
}

/// Connects again, as Envoy does: all types in order, with what it has.
async fn resumed(scene: &Scene, before: &Envoy) -> Envoy {
    let mut envoy = scene.envoy().await;
    envoy.resume(Cds, &[], before).await;
    envoy.resume(Eds, &["a", "b"], before).await;
    envoy.resume(Lds, &[], before).await;
    envoy.resume(Rds, &["r"], before).await;
    envoy
}

#[tokio::test]
async fn a_client_that_has_everything_gets_nothing() {
    let scene = Scene::new();
    let before = settled(&scene).await;
    let mut envoy = resumed(&scene, &before).await;
    envoy.expect_nothing().await;
    scene.set(Eds, "a", "2");
    envoy.accept("eds a=2").await;
}

#[tokio::test]
async fn another_server_with_the_same_content_has_the_same_versions() {
    let (scene, other) = (Scene::new(), Scene::new());
    let before = settled(&scene).await;
    settled(&other).await;
    let mut envoy = resumed(&other, &before).await;
    envoy.expect_nothing().await;
}

#[tokio::test]
async fn only_the_difference_and_the_removals_are_sent() {
    let scene = Scene::new();
    let before = settled(&scene).await;
    scene.remove(Cds, "b");
    scene.remove(Eds, "b");
    scene.cache.update([set(Cds, "c", "1"), set(Eds, "a", "2"), set(Rds, "r", "2")]);
    let mut envoy = resumed(&scene, &before).await;
    envoy.accept("cds c=1").await;
    envoy.accept("eds a=2").await;
    envoy.accept("rds r=2").await;
    // The old route may have named it.
    envoy.accept("cds -b").await;
    envoy.accept("eds -b").await;
    envoy.expect_nothing().await;
}

#[tokio::test(start_paused = true)]
async fn a_client_without_listeners_loses_clusters_a_little_later() {
    let scene = Scene::new();
    let before = settled(&scene).await;
    scene.remove(Cds, "b");
    let mut envoy = scene.envoy().await;
    envoy.resume(Cds, &[], &before).await;
    // Its routes may come with the next request, and may still name the cluster.
    envoy.expect_nothing().await;
    envoy.accept("cds -b").await;
    envoy.expect_nothing().await;
}

#[tokio::test]
async fn endpoints_follow_a_changed_cluster_even_if_the_client_has_them() {
    let scene = Scene::new();
    let before = settled(&scene).await;
    scene.set(Cds, "a", "2");
    let mut envoy = scene.envoy().await;
    envoy.resume(Cds, &[], &before).await;
    let clusters = envoy.expect("cds a=2").await;
    envoy.resume(Eds, &["a", "b"], &before).await;
    envoy.accept("eds a=1").await;
    envoy.ack(&clusters).await;
    envoy.expect_nothing().await;
}

#[tokio::test]
async fn versions_of_others_are_replaced_and_versions_of_what_is_not_wanted_are_ignored() {
    let scene = Scene::new();
    settled(&scene).await;
    let mut envoy = scene.envoy().await;
    let versions = [("a", "of-another-server"), ("unwanted", "0"), ("gone", "")];
    let initial_resource_versions =
        versions.map(|(name, version)| (name.to_owned(), version.to_owned())).into();
    envoy
        .send(DeltaDiscoveryRequest { initial_resource_versions, ..request(Eds, &["a", "gone"], &[]) })
        .await;
    envoy.accept("eds a=1 -gone").await;
    envoy.expect_nothing().await;
}

#[tokio::test]
async fn versions_in_a_later_request_are_ignored() {
    let scene = Scene::new();
    let before = settled(&scene).await;
    let mut envoy = scene.envoy().await;
    envoy.subscribe(Eds, &["b"]).await;
    envoy.accept("eds b=1").await;
    envoy.resume(Eds, &["a"], &before).await;
    envoy.accept("eds a=1").await;
    envoy.expect_nothing().await;
}

#[tokio::test]
async fn when_the_server_stops_streams_end_so_that_clients_connect_again() {
    let scene = Scene::new();
    let mut before = settled(&scene).await;
    scene.stop.cancel();
    let (code, message) = before.end().await;
    assert_eq!((code, message.as_str()), (tonic::Code::Unavailable, "the server is stopping: connect again"));
    assert_eq!(scene.ended("stopping"), 1);
    let other = Scene::new();
    settled(&other).await;
    other.set(Eds, "b", "2");
    let mut envoy = resumed(&other, &before).await;
    envoy.accept("eds b=2").await;
    envoy.expect_nothing().await;
}
