//! What a client is subscribed to: the wildcard in its forms, names, and what does not exist.

use rouse_grpc::xds::resource_type::ResourceType;
use rouse_grpc::xds::{Access, XdsLimits};

use crate::harness::{Cds, Eds, Lds, Rds, Scene, request, set, shown};
use crate::proto::service::discovery::v3::{DeltaDiscoveryRequest, Status};

/// A first request that is a wildcard, for each type that has one.
async fn check_wildcard(subscribe: &[&str], unsubscribe: &[&str]) {
    for kind in [Cds, Lds] {
        let scene = Scene::new();
        let mut envoy = scene.envoy().await;
        envoy.change(kind, subscribe, unsubscribe).await;
        // Without an answer, Envoy would wait until its timeout.
        envoy.accept(kind.as_str()).await;
        scene.set(kind, "a", "1");
        envoy.accept(&format!("{} a=1", kind.as_str())).await;
        scene.set(kind, "b", "1");
        envoy.accept(&format!("{} b=1", kind.as_str())).await;
        scene.remove(kind, "a");
        envoy.accept(&format!("{} -a", kind.as_str())).await;
        envoy.expect_nothing().await;
    }
}

#[tokio::test]
async fn an_empty_first_request_of_clusters_or_listeners_is_a_wildcard_and_is_answered_even_if_there_is_nothing()
 {
    check_wildcard(&[], &[]).await;
}

#[tokio::test]
async fn a_first_request_that_only_unsubscribes_is_a_wildcard() {
    check_wildcard(&[], &["gone"]).await;
}

#[tokio::test]
async fn a_star_is_a_wildcard() {
    check_wildcard(&["*"], &[]).await;
}

#[tokio::test]
async fn endpoints_and_routes_have_no_wildcard() {
    for kind in [Eds, Rds] {
        let scene = Scene::new();
        scene.set(kind, "a", "1");
        let mut envoy = scene.envoy().await;
        envoy.subscribe(kind, &[]).await;
        envoy.expect_nothing().await;
        // A star is a name as any other, and there is nothing of this name.
        envoy.subscribe(kind, &["*"]).await;
        envoy.accept(&format!("{} -*", kind.as_str())).await;
        envoy.expect_nothing().await;
    }
}

#[tokio::test]
async fn a_first_request_with_a_name_is_no_wildcard_and_only_a_star_makes_it_one() {
    let scene = Scene::new();
    for name in ["a", "b"] {
        scene.set(Cds, name, "1");
    }
    let mut envoy = scene.envoy().await;
    envoy.subscribe(Cds, &["a"]).await;
    envoy.accept("cds a=1").await;
    envoy.unsubscribe(Cds, &["a"]).await;
    envoy.subscribe(Cds, &[]).await;
    envoy.expect_nothing().await;
    envoy.subscribe(Cds, &["*"]).await;
    envoy.accept("cds a=1 b=1").await;
    envoy.expect_nothing().await;
}

#[tokio::test]
async fn a_wildcard_stays_beside_names_until_it_is_unsubscribed() {
    let scene = Scene::new();
    for name in ["a", "b"] {
        scene.set(Cds, name, "1");
    }
    let mut envoy = scene.envoy().await;
    envoy.subscribe(Cds, &[]).await;
    envoy.accept("cds a=1 b=1").await;
    // The client asks for it by name, and gets it again.
    envoy.subscribe(Cds, &["a"]).await;
    envoy.accept("cds a=1").await;
    scene.set(Cds, "b", "2");
    envoy.accept("cds b=2").await;
    envoy.unsubscribe(Cds, &["*"]).await;
    envoy.expect_nothing().await;
    scene.cache.update([("a", "3"), ("b", "3")].map(|(name, content)| set(Cds, name, content)));
    envoy.accept("cds a=3").await;
    envoy.unsubscribe(Cds, &["a"]).await;
    envoy.expect_nothing().await;
    scene.set(Cds, "a", "4");
    envoy.expect_nothing().await;
}

#[tokio::test]
async fn unsubscribing_a_name_of_a_wildcard_tells_what_it_is_now() {
    let scene = Scene::new();
    scene.set(Cds, "a", "1");
    let mut envoy = scene.envoy().await;
    envoy.subscribe(Cds, &["*", "a", "gone"]).await;
    envoy.accept("cds a=1 -gone").await;
    // The client cannot know whether the wildcard has it.
    envoy.unsubscribe(Cds, &["a", "gone"]).await;
    envoy.accept("cds a=1 -gone").await;
    envoy.expect_nothing().await;
}

#[tokio::test]
async fn a_star_again_sends_everything_again() {
    let scene = Scene::new();
    scene.set(Lds, "a", "1");
    let mut envoy = scene.envoy().await;
    envoy.subscribe(Lds, &["*"]).await;
    envoy.accept("lds a=1").await;
    envoy.subscribe(Lds, &["*"]).await;
    envoy.accept("lds a=1").await;
    envoy.expect_nothing().await;
}

#[tokio::test]
async fn what_does_not_exist_is_removed_once_and_again_for_each_subscription() {
    for kind in ResourceType::ALL {
        let (scene, label) = (Scene::new(), kind.as_str());
        let mut envoy = scene.envoy().await;
        envoy.subscribe(kind, &["a"]).await;
        envoy.accept(&format!("{label} -a")).await;
        envoy.expect_nothing().await;
        envoy.subscribe(kind, &["a"]).await;
        envoy.accept(&format!("{label} -a")).await;
        scene.set(kind, "a", "1");
        envoy.accept(&format!("{label} a=1")).await;
        scene.remove(kind, "a");
        envoy.accept(&format!("{label} -a")).await;
        envoy.expect_nothing().await;
    }
}

#[tokio::test]
async fn only_subscribed_names_are_sent_and_again_when_they_are_subscribed_again() {
    for kind in ResourceType::ALL {
        let (scene, label) = (Scene::new(), kind.as_str());
        for name in ["a", "b", "c"] {
            scene.set(kind, name, "1");
        }
        let mut envoy = scene.envoy().await;
        envoy.subscribe(kind, &["a", "b"]).await;
        envoy.accept(&format!("{label} a=1 b=1")).await;
        envoy.subscribe(kind, &["b"]).await;
        envoy.accept(&format!("{label} b=1")).await;
        envoy.change(kind, &["c"], &["a"]).await;
        envoy.accept(&format!("{label} c=1")).await;
        for name in ["a", "b", "c"] {
            scene.set(kind, name, "2");
        }
        let nonce = envoy.expect(&format!("{label} b=2 c=2")).await;
        envoy.ack(&nonce).await;
        envoy.subscribe(kind, &["a"]).await;
        envoy.accept(&format!("{label} a=2")).await;
        envoy.expect_nothing().await;
    }
}

#[tokio::test]
async fn an_update_without_a_change_sends_nothing() {
    let scene = Scene::new();
    scene.set(Eds, "a", "1");
    let mut envoy = scene.envoy().await;
    envoy.subscribe(Eds, &["a"]).await;
    envoy.accept("eds a=1").await;
    scene.set(Eds, "a", "1");
    scene.remove(Eds, "b");
    envoy.expect_nothing().await;
}

#[tokio::test]
async fn a_type_that_is_not_served_gets_an_answer_and_no_second_one() {
    const SECRET: &str = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret";
    let scene = Scene::new();
    let mut envoy = scene.envoy().await;
    let of = |subscribe: &[&str]| DeltaDiscoveryRequest {
        type_url: SECRET.into(),
        ..request(Cds, subscribe, &[])
    };
    envoy.send(of(&["certificate", "*"])).await;
    let answer = envoy.next().await;
    assert_eq!(shown(&answer), format!("{SECRET} -certificate"));
    for error_detail in [None, Some(Status::default())] {
        envoy
            .send(DeltaDiscoveryRequest { response_nonce: answer.nonce.clone(), error_detail, ..of(&[]) })
            .await;
    }
    envoy.expect_nothing().await;
    envoy.subscribe(Cds, &[]).await;
    envoy.accept("cds").await;
}

#[tokio::test]
async fn large_answers_are_split_and_each_part_waits_for_the_one_before() {
    let scene = Scene::with(XdsLimits { response_bytes: 100, ..XdsLimits::default() }, Access::Any);
    let (large, huge) = ("x".repeat(45), "y".repeat(300));
    for (name, content) in [("a", &large), ("b", &large), ("c", &huge), ("d", &large)] {
        scene.set(Cds, name, content);
    }
    let mut envoy = scene.envoy().await;
    envoy.subscribe(Cds, &[]).await;
    for part in [format!("cds a={large} b={large}"), format!("cds c={huge}"), format!("cds d={large}")] {
        let nonce = envoy.expect(&part).await;
        envoy.expect_nothing().await;
        envoy.ack(&nonce).await;
    }
    envoy.expect_nothing().await;
}
