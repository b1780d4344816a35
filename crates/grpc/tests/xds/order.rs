//! The order in which a client gets resources: what others refer to comes first, and goes last.

use crate::harness::{Cds, Eds, Envoy, Lds, Rds, Scene, remove, set};

/// A client that has the cluster `a`, a listener, and a route to `a`.
async fn settled(scene: &Scene) -> Envoy {
    scene.cache.update([set(Rds, "r", "to-a"), set(Lds, "l", "1"), set(Eds, "a", "1"), set(Cds, "a", "1")]);
    let mut envoy = scene.envoy().await;
    envoy.subscribe(Cds, &[]).await;
    envoy.accept("cds a=1").await;
    envoy.subscribe(Eds, &["a"]).await;
    envoy.accept("eds a=1").await;
    envoy.subscribe(Lds, &[]).await;
    envoy.accept("lds l=1").await;
    envoy.subscribe(Rds, &["r"]).await;
    envoy.accept("rds r=to-a").await;
    envoy.expect_nothing().await;
    envoy
}

#[tokio::test]
async fn a_route_waits_until_its_cluster_is_accepted() {
    let scene = Scene::new();
    let mut envoy = settled(&scene).await;
    scene.cache.update([
        set(Rds, "r", "to-b"),
        set(Lds, "l", "2"),
        set(Eds, "b", "1"),
        set(Eds, "a", "2"),
        set(Cds, "b", "1"),
    ]);
    let clusters = envoy.expect("cds b=1").await;
    // Endpoints never wait: the client does not accept the cluster before it has them.
    envoy.accept("eds a=2").await;
    envoy.subscribe(Eds, &["b"]).await;
    envoy.accept("eds b=1").await;
    envoy.expect_nothing().await;
    envoy.ack(&clusters).await;
    let listeners = envoy.expect("lds l=2").await;
    let routes = envoy.expect("rds r=to-b").await;
    envoy.ack(&listeners).await;
    envoy.ack(&routes).await;
    envoy.expect_nothing().await;
}

#[tokio::test]
async fn a_route_also_waits_for_a_cluster_that_waits_for_the_answer_to_an_earlier_one() {
    let scene = Scene::new();
    let mut envoy = settled(&scene).await;
    scene.set(Cds, "b", "1");
    let first = envoy.expect("cds b=1").await;
    scene.cache.update([set(Cds, "c", "1"), set(Rds, "r", "to-c")]);
    envoy.expect_nothing().await;
    envoy.ack(&first).await;
    let second = envoy.expect("cds c=1").await;
    envoy.expect_nothing().await;
    envoy.ack(&second).await;
    envoy.accept("rds r=to-c").await;
}

#[tokio::test]
async fn clusters_go_after_the_routes_that_named_them_and_their_endpoints_after_them() {
    let scene = Scene::new();
    let mut envoy = settled(&scene).await;
    scene.cache.update([remove(Eds, "a"), remove(Cds, "a"), remove(Lds, "l"), set(Rds, "r", "nowhere")]);
    let listeners = envoy.expect("lds -l").await;
    let routes = envoy.expect("rds r=nowhere").await;
    envoy.expect_nothing().await;
    envoy.ack(&listeners).await;
    envoy.expect_nothing().await;
    envoy.ack(&routes).await;
    let clusters = envoy.expect("cds -a").await;
    envoy.expect_nothing().await;
    envoy.ack(&clusters).await;
    envoy.accept("eds -a").await;
    envoy.expect_nothing().await;
}

#[tokio::test]
async fn moving_a_route_adds_the_new_cluster_first_and_removes_the_old_one_last() {
    let scene = Scene::new();
    let mut envoy = settled(&scene).await;
    scene.cache.update([
        remove(Cds, "a"),
        remove(Eds, "a"),
        set(Rds, "r", "to-b"),
        set(Cds, "b", "1"),
        set(Eds, "b", "1"),
    ]);
    envoy.accept("cds b=1").await;
    envoy.subscribe(Eds, &["b"]).await;
    // The answer to the cluster and the subscription come in this order.
    envoy.accept("rds r=to-b").await;
    envoy.accept("eds b=1").await;
    envoy.accept("cds -a").await;
    envoy.accept("eds -a").await;
    envoy.expect_nothing().await;
}

#[tokio::test]
async fn a_client_that_brings_its_own_clusters_loses_endpoints_at_once() {
    let scene = Scene::new();
    scene.set(Eds, "a", "1");
    let mut envoy = scene.envoy().await;
    envoy.subscribe(Eds, &["a"]).await;
    envoy.accept("eds a=1").await;
    scene.remove(Eds, "a");
    envoy.accept("eds -a").await;
    envoy.expect_nothing().await;
}

#[tokio::test]
async fn a_cluster_that_is_sent_is_followed_by_its_endpoints_even_if_they_have_not_changed() {
    let scene = Scene::new();
    let mut envoy = settled(&scene).await;
    scene.set(Cds, "a", "2");
    let clusters = envoy.expect("cds a=2").await;
    envoy.accept("eds a=1").await;
    envoy.ack(&clusters).await;
    envoy.expect_nothing().await;
    // Also those that the client has asked for and that do not exist: it would wait for them.
    scene.cache.update([remove(Eds, "a"), set(Cds, "a", "3")]);
    let clusters = envoy.expect("cds a=3").await;
    envoy.accept("eds -a").await;
    envoy.ack(&clusters).await;
    envoy.expect_nothing().await;
}

#[tokio::test]
async fn endpoints_that_were_sent_before_the_cluster_and_are_not_answered_yet_are_sent_after_it() {
    let scene = Scene::new();
    let mut envoy = settled(&scene).await;
    scene.set(Eds, "a", "2");
    let endpoints = envoy.expect("eds a=2").await;
    scene.set(Cds, "a", "2");
    let clusters = envoy.expect("cds a=2").await;
    envoy.expect_nothing().await;
    envoy.ack(&endpoints).await;
    envoy.accept("eds a=2").await;
    envoy.ack(&clusters).await;
    envoy.expect_nothing().await;
}
