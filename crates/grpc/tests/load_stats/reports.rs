//! What Envoys report becomes load of services, and which Envoys are silent is known.

use std::time::Duration;

use rouse_core::scale::{EnvoyId, EnvoyServices};
use rouse_grpc::xds::load::ConnectedEnvoy;
use tokio::time::{Instant, sleep_until};
use tonic::Code;

use crate::harness::{GENEROUS, Scene, cluster, service, with_gateways};
use crate::proto::envoy::service::load_stats::v3::{ClusterStats, UpstreamLocalityStats};

async fn pass(seconds: u64) {
    sleep_until(Instant::now() + Duration::from_secs(seconds)).await;
}

#[tokio::test(start_paused = true)]
async fn an_envoy_is_asked_for_all_clusters_each_second() {
    let scene = Scene::new();
    let mut envoy = scene.stream().await;
    let answer = envoy.hello("edge-1").await;
    assert!(answer.send_all_clusters && answer.clusters.is_empty() && !answer.report_endpoint_granularity);
    let interval = answer.load_reporting_interval.unwrap();
    assert_eq!((interval.seconds, interval.nanos), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn the_requests_of_all_envoys_are_load_of_their_service() {
    let scene = Scene::new();
    let (one, other) = (scene.envoy("edge-1").await, scene.envoy("edge-2").await);
    one.report(vec![cluster("shop/cart:http", 5, 3), cluster("shop/cart:grpc", 1, 1)]).await;
    scene.until_cart(6, 4).await;
    other.report(vec![cluster("shop/cart:http", 2, 2), cluster("shop/till", 9, 0)]).await;
    scene.until_cart(8, 6).await;
    let before = scene.cart();
    pass(1).await;
    let busy = scene.cart().busy.saturating_sub(before.busy);
    assert_eq!((busy.as_secs(), scene.cart().held), (6, 0), "six requests for a second");
    // A cluster that is not named has no load.
    one.report(vec![cluster("shop/till", 0, 0)]).await;
    scene.until_cart(8, 2).await;
    assert_eq!(scene.registry.get(&service("till")).unwrap().meter().requests(), 9);
}

#[tokio::test(start_paused = true)]
async fn names_are_those_of_discovery_or_of_clusters_and_unknown_ones_are_ignored_and_counted() {
    let scene = Scene::new();
    let envoy = scene.envoy("edge-1").await;
    let named = ClusterStats { cluster_service_name: "shop/cart:http".into(), ..cluster("my-cart", 1, 1) };
    let odd = ["jaeger", "shop/unknown", "a/b/c", "", "SHOP/CART"].map(|name| cluster(name, 7, 7));
    envoy.report([vec![named], odd.into()].concat()).await;
    scene.until_cart(1, 1).await;
    assert_eq!(scene.metric("rouse_xds_load_unknown_clusters_total"), 5);
    assert!(scene.registry.get(&service("unknown")).is_none(), "a report makes no service");
}

#[tokio::test(start_paused = true)]
async fn an_old_envoy_that_does_not_say_how_many_began_is_counted_by_how_many_ended() {
    let scene = Scene::new();
    let envoy = scene.envoy("old").await;
    let stats = UpstreamLocalityStats {
        total_successful_requests: 3,
        total_error_requests: 2,
        ..UpstreamLocalityStats::default()
    };
    let stats = vec![stats, stats_without_load()];
    envoy.report(vec![ClusterStats { upstream_locality_stats: stats, ..cluster("shop/cart", 0, 0) }]).await;
    scene.until_cart(5, 0).await;
}

fn stats_without_load() -> UpstreamLocalityStats {
    UpstreamLocalityStats::default()
}

#[tokio::test(start_paused = true)]
async fn requests_that_an_envoy_sends_to_gateways_are_counted_by_those() {
    let scene = Scene::new();
    let envoy = scene.envoy("edge-1").await;
    envoy.report(vec![with_gateways(cluster("shop/cart", 2, 1), 100, 50)]).await;
    scene.until_cart(2, 1).await;
}

#[tokio::test(start_paused = true)]
async fn no_more_than_a_million_requests_are_present() {
    let scene = Scene::new();
    let (one, other) = (scene.envoy("edge-1").await, scene.envoy("edge-2").await);
    one.report(vec![cluster("shop/cart", 0, u64::MAX)]).await;
    scene.until_cart(0, 1 << 20).await;
    other.report(vec![cluster("shop/cart", 0, 1 << 30)]).await;
    other.report(vec![cluster("shop/till", 0, 1)]).await;
    scene
        .until("the report counts", || scene.registry.get(&service("till")).unwrap().meter().present() == 1)
        .await;
    scene.until_cart(0, 1 << 20).await;
    one.report(Vec::new()).await;
    scene.until_cart(0, 0).await;
}

#[tokio::test(start_paused = true)]
async fn an_envoy_whose_stream_breaks_has_no_requests_and_is_silent_for_ten_minutes() {
    let scene = Scene::new();
    let envoy = scene.envoy("edge-1").await;
    envoy.report(vec![cluster("shop/cart", 3, 3)]).await;
    scene.until_cart(3, 3).await;
    scene.until_silent("edge-1", Some(false)).await;
    envoy.cut().await;
    scene.until_cart(3, 0).await;
    scene.until_silent("edge-1", Some(true)).await;
    let services = scene.state("edge-1").unwrap().services;
    assert_eq!(services, EnvoyServices::Named([service("cart")].into()));
    assert_eq!(scene.metric("rouse_xds_load_envoys{state=\"silent\"}"), 1);
    pass(590).await;
    assert_eq!(scene.silent("edge-1"), Some(true));
    pass(20).await;
    assert_eq!(scene.silent("edge-1"), None);
}

#[tokio::test(start_paused = true)]
async fn an_envoy_that_reports_again_is_not_silent() {
    let scene = Scene::new();
    let envoy = scene.envoy("edge-1").await;
    envoy.report(vec![cluster("shop/cart", 3, 3)]).await;
    scene.until_cart(3, 3).await;
    envoy.cut().await;
    scene.until_silent("edge-1", Some(true)).await;
    let again = scene.envoy("edge-1").await;
    pass(2).await;
    assert_eq!(scene.silent("edge-1"), Some(true), "its load is not known before it says it");
    again.report(vec![cluster("shop/cart", 1, 4)]).await;
    scene.until_silent("edge-1", Some(false)).await;
    scene.until_cart(4, 4).await;
}

#[tokio::test(start_paused = true)]
async fn an_envoy_that_says_nothing_more_is_silent_while_its_stream_is_open() {
    let scene = Scene::new();
    let envoy = scene.envoy("edge-1").await;
    envoy.report(vec![cluster("shop/cart", 3, 3)]).await;
    scene.until_silent("edge-1", Some(false)).await;
    pass(8).await;
    assert_eq!((scene.silent("edge-1"), scene.cart().present), (Some(true), 3));
    envoy.report(vec![cluster("shop/cart", 0, 3)]).await;
    scene.until_silent("edge-1", Some(false)).await;
}

#[tokio::test(start_paused = true)]
async fn an_envoy_with_endpoints_and_without_load_reports_is_silent() {
    let scene = Scene::new();
    let services = EnvoyServices::Named([service("cart")].into());
    let envoy = ConnectedEnvoy { id: EnvoyId::new("", "eds-only"), services };
    scene.connected.send_replace(vec![envoy].into());
    scene.until_silent("eds-only", Some(true)).await;
    pass(3600).await;
    assert_eq!(scene.silent("eds-only"), Some(true), "for as long as it is connected");
    scene.connected.send_replace(Vec::new().into());
    pass(590).await;
    assert_eq!(scene.silent("eds-only"), Some(true));
    scene.until_silent("eds-only", None).await;
}

#[tokio::test(start_paused = true)]
async fn a_replica_that_stops_leaves_the_load_as_it_is() {
    let scene = Scene::new();
    let envoy = scene.envoy("edge-1").await;
    envoy.report(vec![cluster("shop/cart", 3, 3)]).await;
    scene.until_silent("edge-1", Some(false)).await;
    scene.stop.cancel();
    let (code, why) = envoy.end().await;
    assert_eq!((code, why.as_str()), (Code::Unavailable, "this replica is stopping"));
    assert_eq!((scene.silent("edge-1"), scene.cart().present), (Some(false), 3));
}

#[tokio::test(start_paused = true)]
async fn a_service_that_is_made_again_has_the_load_on_its_new_meter() {
    let scene = Scene::new();
    let envoy = scene.envoy("edge-1").await;
    envoy.report(vec![cluster("shop/cart", 3, 3)]).await;
    scene.until_cart(3, 3).await;
    let old = scene.registry.get(&service("cart")).unwrap();
    scene.registry.remove(&service("cart"));
    scene.registry.service(&service("cart"));
    envoy.report(vec![cluster("shop/cart", 1, 4)]).await;
    scene.until_cart(1, 4).await;
    assert_eq!(old.meter().present(), 0);
}

#[tokio::test(start_paused = true)]
async fn streams_that_break_the_rules_end_with_a_status_that_says_why() {
    let scene = Scene::new();
    let silent = scene.stream().await;
    let (code, why) = silent.end().await;
    assert_eq!((code, why.as_str()), (Code::DeadlineExceeded, "no first message within 10 s"));
    for node in ["", &"x".repeat(257), "a\nb"] {
        let envoy = scene.stream().await;
        let node =
            Some(crate::proto::envoy::service::discovery::v3::Node { id: node.into(), ..Default::default() });
        let first =
            crate::proto::envoy::service::load_stats::v3::LoadStatsRequest { node, ..Default::default() };
        envoy.outgoing.send(first).await.unwrap();
        let (code, why) = envoy.end().await;
        assert_eq!(code, Code::InvalidArgument);
        assert!(why.contains("no node id, or one of more than 256 bytes"), "{why}");
    }
    let flood = scene.envoy("edge-1").await;
    for _ in 0..101 {
        flood.report(vec![cluster("shop/cart", 1, 0)]).await;
    }
    let (code, why) = flood.end().await;
    assert_eq!(
        (code, why.starts_with("more than 10 reports per second")),
        (Code::ResourceExhausted, true),
        "{why}"
    );
    let results = ["late", "bad_node", "too_fast"];
    let counts =
        results.map(|result| scene.metric(&format!("rouse_xds_load_reports_total{{result=\"{result}\"}}")));
    assert_eq!(counts, [1, 3, 1]);
    assert!(GENEROUS > Duration::from_secs(10));
}
