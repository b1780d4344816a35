//! What a real Envoy does not show: settings that matter only under load or after a long time.

use std::time::Duration;

use bytes::Bytes;
use prost::Message;
use rouse_core::envoy::{EnvoyEndpoint, EnvoyHealth, EnvoyTarget};

use super::messages::{address, duration};
use super::*;
use crate::proto::envoy::config::address::Address as AddressKind;
use crate::proto::envoy::config::circuit_breakers::Thresholds;
use crate::proto::envoy::config::cluster::LbPolicy;
use crate::proto::envoy::config::config_source::ConfigSourceSpecifier;
use crate::proto::envoy::config::{
    Cluster, ClusterLoadAssignment, Empty, HttpConnectionManager, Listener, RouteConfiguration,
    UpstreamHttpProtocolOptions, UpstreamTlsContext, extension, route, transport_socket,
};

fn decode<M: Message + Default>(bytes: Bytes) -> M {
    M::decode(bytes).unwrap()
}

fn spec(tls: Option<PodTls>) -> ClusterSpec {
    ClusterSpec { name: "shop/web".into(), protocol: PodProtocol::Http1, tls, most_requests: 777 }
}

fn tls(server_name: &str) -> PodTls {
    let accepted = vec!["web.shop".to_owned(), "10.0.0.1".to_owned()];
    PodTls { server_name: server_name.to_owned(), accepted, roots: PodRoots::System }
}

#[test]
fn a_cluster_has_the_limits_and_timeouts_that_rouse_needs() {
    let made: Cluster = decode(cluster(&spec(None)));
    let thresholds =
        Thresholds { max_connections: Some(777), max_pending_requests: Some(777), max_requests: Some(777) };
    assert_eq!(made.circuit_breakers.unwrap().thresholds, [thresholds]);
    assert_eq!(made.common_lb_config.unwrap().healthy_panic_threshold.unwrap().value.to_bits(), 0);
    assert_eq!(made.lb_policy, i32::from(LbPolicy::LeastRequest));
    assert!(made.ignore_health_on_host_removal);
    assert_eq!(made.connect_timeout, Some(duration(Duration::from_secs(5))));
    let source = made.eds_cluster_config.unwrap().eds_config.unwrap().config_source_specifier;
    assert_eq!(source, Some(ConfigSourceSpecifier::Ads(Empty {})));
    let source = made.lrs_server.unwrap().config_source_specifier;
    assert_eq!(source, Some(ConfigSourceSpecifier::Self_(Empty {})));
    let (_, options) = made.typed_extension_protocol_options.into_iter().next().unwrap();
    let options = UpstreamHttpProtocolOptions::decode(&*options.value).unwrap();
    let idle = options.common_http_protocol_options.unwrap().idle_timeout;
    assert_eq!(idle, Some(duration(Duration::from_secs(3))));
}

#[test]
fn streams_may_be_idle_for_an_hour_and_last_for_ever() {
    let made: Listener = decode(listener("http", "[::]:80".parse().unwrap(), "routes"));
    let Some(extension::ConfigType::TypedConfig(filter)) =
        made.filter_chains[0].filters[0].config_type.clone()
    else {
        panic!("{made:?}")
    };
    let manager = HttpConnectionManager::decode(&*filter.value).unwrap();
    assert_eq!(manager.stream_idle_timeout, Some(duration(Duration::from_hours(1))));
    assert_eq!(manager.use_remote_address, Some(true));

    let action = RouteAction::Forward { cluster: "shop/web".into(), timeout: None };
    let forward = PathRoute { name: "web".into(), prefix: "/shop".into(), headers: vec![], action };
    let hosts = [HostRoutes { domain: "a.test".into(), routes: vec![forward] }];
    let made: RouteConfiguration = decode(routes("http", &hosts));
    let Some(route::Action::Route(action)) = made.virtual_hosts[0].routes[0].action.clone() else {
        panic!("{made:?}")
    };
    assert_eq!(action.timeout, Some(duration(Duration::ZERO)));
    assert_eq!(action.idle_timeout, None, "it would shorten that of the listener");
    assert_eq!(made.virtual_hosts[0].domains, ["a.test", "a.test."]);
}

#[test]
fn an_address_is_not_sent_as_a_server_name() {
    for (server_name, sent) in [("web.shop.svc", "web.shop.svc"), ("10.0.0.9", ""), ("fd00::9", "")] {
        let made: Cluster = decode(cluster(&spec(Some(tls(server_name)))));
        let [matched] = &made.transport_socket_matches[..] else { panic!("{made:?}") };
        let socket = matched.transport_socket.clone().unwrap();
        let Some(transport_socket::ConfigType::TypedConfig(config)) = socket.config_type else { panic!() };
        assert_eq!(UpstreamTlsContext::decode(&*config.value).unwrap().sni, sent);
    }
}

#[test]
fn equal_input_gives_equal_bytes() {
    let all = |from: u8| {
        let at = |last: u8| ([10, 0, 0, last], 80).into();
        let pod = |last| EnvoyEndpoint {
            target: EnvoyTarget::Pod([at(last), "[fd00::1]:80".parse().unwrap()].into()),
            health: EnvoyHealth::Draining,
        };
        endpoints("shop/web", &[pod(from), pod(2)], true)
    };
    assert_eq!(all(1), all(1));
    assert_ne!(all(1), all(3));
    assert_eq!(cluster(&spec(Some(tls("a.test")))), cluster(&spec(Some(tls("a.test")))));
    assert_ne!(cluster(&spec(Some(tls("a.test")))), cluster(&spec(Some(tls("b.test")))));
}

#[test]
fn no_endpoints_are_an_empty_list() {
    let made: ClusterLoadAssignment = decode(endpoints("shop/web", &[], false));
    assert_eq!((made.cluster_name.as_str(), made.endpoints.len()), ("shop/web", 0));
}

#[test]
fn only_the_address_of_all_of_ipv6_also_means_ipv4() {
    for (text, expected, both) in
        [("[::]:80", "::", true), ("[::1]:80", "::1", false), ("0.0.0.0:80", "0.0.0.0", false)]
    {
        let Some(AddressKind::SocketAddress(made)) = address(text.parse().unwrap()).address else { panic!() };
        assert_eq!((made.address.as_str(), made.ipv4_compat), (expected, both));
    }
}

#[test]
fn a_time_that_envoy_cannot_hold_is_cut() {
    assert_eq!(duration(Duration::MAX).seconds, 9_223_372_035);
    assert_eq!(
        duration(Duration::from_millis(1500)),
        prost_types::Duration { seconds: 1, nanos: 500_000_000 }
    );
}
