//! Pods over TLS beside gateways in plain text.

use std::collections::BTreeSet;
use std::sync::Arc;

use rouse_core::envoy::EnvoyHealth;
use rouse_grpc::xds::resource_type::ResourceType;
use rouse_grpc::xds::resources::{PodProtocol, PodRoots, PodTls, cluster};
use rouse_net::tls::{Alpn, CertEntry, ServerSettings, ServerTls, TlsVersion, Versions};
use rouse_testkit::certificates::{Authority, Leaf};

use crate::client::{ask, who_answers};
use crate::pods::{Pod, Speaks};
use crate::scene::{Scene, gateway, pod, spec};

const NAME: &str = "web.shop.svc";

fn speaks(leaf: &Leaf, version: TlsVersion) -> Speaks {
    let entry = CertEntry { identity: leaf.identity(), names: Vec::new() };
    let versions = Versions::new(version, version).unwrap();
    let settings = ServerSettings { versions, ..ServerSettings::new(vec![entry]) };
    let (tls, _) = ServerTls::new(settings).unwrap();
    Speaks::Tls(Arc::new(tls))
}

fn trusts(authority: &Authority) -> PodTls {
    PodTls {
        server_name: NAME.to_owned(),
        accepted: vec!["web.shop".to_owned(), "web.shop.svc.cluster.local".to_owned()],
        roots: PodRoots::Pem(authority.pem().into()),
    }
}

pub(crate) async fn both_transports() {
    let (scene, authority) = (Scene::start().await, Authority::new());
    let rows = [
        ("shop/one", PodProtocol::Http1, Speaks::Http1, Alpn::Http1),
        ("shop/two", PodProtocol::Http2, Speaks::Http2, Alpn::H2),
    ];
    let listener = scene.listen_for(&["shop/one", "shop/two"]).await;
    for (number, (name, protocol, gateway_speaks, alpn)) in (1..).zip(rows) {
        let spec = spec(name, protocol, Some(trusts(&authority)));
        scene.set(ResourceType::Cluster, name, cluster(&spec));
        let at = Pod::numbered(number, gateway_speaks).await;
        // The name that is sent is one of those in the certificate only in the first: one of the others is enough.
        let pods = [(NAME, TlsVersion::Tls12), ("web.shop", TlsVersion::Tls13)];
        for (of, (name_of_pod, version)) in (10 * number..).zip(pods) {
            let by = Pod::numbered(of, speaks(&authority.leaf(&[name_of_pod]), version)).await;
            scene.endpoints(name, &[gateway(at.address), pod(by.address, EnvoyHealth::Healthy)], true).await;
            let answered = who_answers(listener, &name.replace('/', ".")).await;
            assert_eq!(answered, BTreeSet::from([at.address, by.address]), "{name} {name_of_pod}");
            for handshake in by.handshakes() {
                assert_eq!(handshake, (Some(NAME.to_owned()), Some(alpn)), "{name}");
            }
        }
    }
}

pub(crate) async fn wrong_certificates() {
    let (scene, authority, other) = (Scene::start().await, Authority::new(), Authority::named("other"));
    let listener = scene.listen_for(&["shop/web"]).await;
    let unverified = PodTls { roots: PodRoots::Unverified, ..trusts(&authority) };
    let system = PodTls { roots: PodRoots::System, ..trusts(&authority) };
    // The counter of Envoy that tells why a certificate is refused.
    let (name, chain) = (Some("fail_verify_san"), Some("fail_verify_error"));
    let rows = [
        ("the right one", trusts(&authority), authority.leaf(&[NAME]), None),
        ("another name", trusts(&authority), authority.leaf(&["cart.shop.svc"]), name),
        ("another authority", trusts(&authority), other.leaf(&[NAME]), chain),
        ("none of the system's authorities", system, authority.leaf(&[NAME]), chain),
        ("any, unverified", unverified, Leaf::self_signed(&["else.test"]), None),
    ];
    for (number, (what, tls, leaf, refused)) in (1..).zip(rows) {
        scene.set(
            ResourceType::Cluster,
            "shop/web",
            cluster(&spec("shop/web", PodProtocol::Http1, Some(tls))),
        );
        let served = Pod::numbered(number, speaks(&leaf, TlsVersion::Tls13)).await;
        // A cluster that is changed has no endpoints until they are sent to it: these are new.
        scene.endpoints("shop/web", &[pod(served.address, EnvoyHealth::Healthy)], true).await;
        let counter = refused.map(|counter| format!("cluster.shop/web.ssl.{counter}"));
        let counter = counter.as_deref().unwrap_or("cluster.shop/web.ssl.handshake");
        let before = scene.envoy.stat(counter).await;
        let (status, body) = ask(listener, "shop.web", "/").await;
        let expected = if refused.is_some() { 503 } else { 200 };
        assert_eq!(status, expected, "{what}: {body}");
        assert_eq!(scene.envoy.stat(counter).await, before + 1, "{what}: {counter}");
        assert_eq!(served.handshakes().len(), usize::from(refused.is_none()), "{what}");
    }
}
