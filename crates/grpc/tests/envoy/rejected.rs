//! What Envoy rejects changes nothing.

use rouse_core::envoy::EnvoyHealth;
use rouse_grpc::xds::resource_type::ResourceType;
use rouse_grpc::xds::resources::{PodProtocol, PodRoots, PodTls, cluster};
use rouse_testkit::envoy::eventually;

use crate::client::ask;
use crate::pods::{Pod, Speaks};
use crate::scene::{Scene, pod, spec};

pub(crate) async fn bad_cluster() {
    let scene = Scene::start().await;
    let (first, second) = (Pod::numbered(1, Speaks::Http1).await, Pod::numbered(2, Speaks::Http1).await);
    scene.cluster("shop/web", PodProtocol::Http1);
    scene.cluster("shop/other", PodProtocol::Http1);
    let listener = scene.listen_for(&["shop/web", "shop/other"]).await;
    scene.endpoints("shop/web", &[pod(first.address, EnvoyHealth::Healthy)], false).await;
    scene.endpoints("shop/other", &[pod(second.address, EnvoyHealth::Healthy)], false).await;

    let roots = PodRoots::Pem("these are no certificates".into());
    let bad = PodTls { server_name: "web.shop.svc".to_owned(), accepted: Vec::new(), roots };
    let bad = spec("shop/web", PodProtocol::Http1, Some(bad));
    scene.set(ResourceType::Cluster, "shop/web", cluster(&bad));
    eventually("the rejection", async || {
        scene.metrics().contains("rouse_xds_nacks_total{type=\"cds\"} 1").then_some(())
    })
    .await;
    assert_eq!(ask(listener, "shop.web", "/").await, (200, first.address.to_string()));

    // Changes of others, and of the endpoints of this one, still arrive.
    scene.endpoints("shop/other", &[pod(first.address, EnvoyHealth::Healthy)], false).await;
    scene.endpoints("shop/web", &[pod(second.address, EnvoyHealth::Healthy)], false).await;
    assert_eq!(ask(listener, "shop.web", "/").await, (200, second.address.to_string()));
    assert_eq!(ask(listener, "shop.other", "/").await, (200, first.address.to_string()));
    assert!(scene.metrics().contains("rouse_xds_nacks_total{type=\"cds\"} 1"), "it was sent again");

    // A version that is right replaces the old one.
    let warmed = scene.envoy.stat("cluster_manager.cluster_modified").await;
    scene.set(ResourceType::Cluster, "shop/web", cluster(&spec("shop/web", PodProtocol::Http2, None)));
    scene.envoy.wait_for_stat("cluster_manager.cluster_modified", |now| now > warmed).await;
}
