//! Translates the route table of the data plane into Envoy's clusters and virtual hosts.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use rouse_core::envoy::GatewayUse;
use rouse_core::routing_mode::RoutingMode;
use rouse_grpc::xds::names::{GATEWAYS_CLUSTER, cluster_name};
use rouse_grpc::xds::publisher::{EnvoyBackend, EnvoyRoutes};
use rouse_grpc::xds::resources::{HostRoutes, PathRoute, PodProtocol, PodRoots, PodTls, RouteAction};
use rouse_net::tls::{ClientSettings, Pem, Roots};
use rouse_proxy::routing::{Route, RouteTable, Rule, StaticResponse, Target, VirtualHost};
use rouse_proxy::upstream::{Backend, UpstreamProtocol};

/// The longest value of a header that Envoy takes: 16 KiB, in which each percent sign counts twice.
const LONGEST_HEADER: usize = 8 * 1024;

/// Translates all routes. `can_wake` says whether a gateway brings up the service of a route that has no pod.
pub fn translate(table: &RouteTable<Arc<Route>>, can_wake: impl Fn(&Route) -> bool) -> EnvoyRoutes {
    let mut backends = BTreeMap::new();
    for Rule { target: route, .. } in table.rules() {
        let Target::Backend(to) = &route.target else { continue };
        let new = backend(to, needs_gateway_without_pods(route) || can_wake(route));
        let key = (to.service.id().clone(), to.port.name().clone());
        backends.entry(key).and_modify(|known| merge(known, &new)).or_insert(new);
    }
    EnvoyRoutes { hosts: table.virtual_hosts().iter().map(host).collect(), backends }
}

/// Whether a gateway answers in place of the pods while there are none.
fn needs_gateway_without_pods(route: &Route) -> bool {
    let no_pod = &route.no_pod;
    let fixed = no_pod.fixed.as_ref().is_some_and(|fixed| fixed.when_unavailable);
    fixed || no_pod.placeholder.is_some() || no_pod.fallback.is_some()
}

/// Several routes lead to one port: all of them are right about when a gateway is needed.
fn merge(known: &mut EnvoyBackend, other: &EnvoyBackend) {
    // Another protocol: Envoy has one for all requests of a cluster, the gateways one for each route.
    let differs = known.protocol != other.protocol || known.tls != other.tls;
    known.gateway_use.always |= other.gateway_use.always || differs;
    known.gateway_use.without_pods |= other.gateway_use.without_pods;
}

fn backend(to: &Backend, without_pods: bool) -> EnvoyBackend {
    let dialled = match &to.protocol {
        // What the pods speak depends on how the client came to the gateway.
        _ if to.over_tls.is_some() => None,
        UpstreamProtocol::Http1 => Some((PodProtocol::Http1, None)),
        UpstreamProtocol::H2c => Some((PodProtocol::Http2, None)),
        UpstreamProtocol::Tls(tls) => pod_tls(tls.settings()).map(|tls| (PodProtocol::Http1, Some(tls))),
        UpstreamProtocol::Unusable(_) => None,
    };
    let always = dialled.is_none() || to.direct == RoutingMode::Disabled;
    let (protocol, tls) = dialled.unwrap_or((PodProtocol::Http1, None));
    EnvoyBackend { protocol, tls, gateway_use: GatewayUse { always, without_pods, parked: false } }
}

/// How Envoy can verify the pods just as a gateway does. `None`: it cannot, or would need a private key.
fn pod_tls(settings: &ClientSettings) -> Option<PodTls> {
    if settings.identity.is_some() {
        return None;
    }
    let roots = match &settings.roots {
        _ if !settings.verify => PodRoots::Unverified,
        Roots::System => PodRoots::System,
        Roots::Pem(bundles) => PodRoots::Pem(in_memory(bundles)?),
        // Envoy takes either its system's roots or those that it is given.
        Roots::SystemAnd(_) => return None,
    };
    let name = |name: &rouse_net::tls::ServerName<'static>| name.to_str().into_owned();
    Some(PodTls {
        server_name: name(&settings.server_name),
        accepted: settings.accepted.iter().map(name).collect(),
        roots,
    })
}

/// The bundles as one text. A file could change at any time, and only the gateways would notice.
fn in_memory(bundles: &[Pem]) -> Option<Bytes> {
    let mut all = String::new();
    for bundle in bundles {
        let Pem::Bytes(text) = bundle else { return None };
        all.push_str(&certificates(&String::from_utf8_lossy(text)));
    }
    (!all.is_empty()).then(|| all.into())
}

/// The certificates of a bundle. What else it has, such as a private key beside them, must not reach Envoys.
fn certificates(bundle: &str) -> String {
    const BEGIN: &str = "-----BEGIN CERTIFICATE-----";
    const END: &str = "-----END CERTIFICATE-----";
    let mut all = String::new();
    for (encoded, _) in bundle.split(BEGIN).skip(1).filter_map(|block| block.split_once(END)) {
        all.extend([BEGIN, encoded, END, "\n"]);
    }
    all
}

fn host(host: &VirtualHost<'_, Arc<Route>>) -> HostRoutes {
    let routes = host.rules.iter().map(|(prefix, rule)| path_route(prefix, rule)).collect();
    HostRoutes { domain: host.host.to_string(), routes }
}

fn path_route(prefix: &str, rule: &Rule<Arc<Route>>) -> PathRoute {
    let header = |header: &rouse_proxy::routing::HeaderMatch| {
        let value = header.value.as_ref().map(|value| Bytes::copy_from_slice(value.as_bytes()));
        (header.name.as_str().to_owned(), value)
    };
    PathRoute {
        name: rule.name.clone(),
        prefix: prefix.to_owned(),
        headers: rule.headers.iter().map(header).collect(),
        action: action(&rule.target),
    }
}

fn action(route: &Route) -> RouteAction {
    let fixed = route.no_pod.fixed.as_ref().filter(|fixed| !fixed.when_unavailable);
    if let Some(fixed) = fixed.filter(|fixed| envoy_can_send(&fixed.response)) {
        return respond(&fixed.response);
    }
    let cluster = match &route.target {
        _ if fixed.is_some() => GATEWAYS_CLUSTER.into(),
        Target::Backend(to) => cluster_name(to.service.id(), to.port.name()),
        // The gateways say what is wrong, or use the fallback.
        Target::NoService | Target::BadPort => GATEWAYS_CLUSTER.into(),
    };
    RouteAction::Forward { cluster, timeout: route.timeouts.request }
}

/// Whether Envoy accepts a response: it would refuse the routes of all hosts because of one that it cannot send.
fn envoy_can_send(response: &StaticResponse) -> bool {
    let fits = |(name, value): &(http::HeaderName, http::HeaderValue)| {
        *name != http::header::HOST && value.len() <= LONGEST_HEADER && value.to_str().is_ok()
    };
    response.headers().iter().all(fits)
}

fn respond(response: &StaticResponse) -> RouteAction {
    let header = |(name, value): &(http::HeaderName, http::HeaderValue)| {
        (name.as_str().to_owned(), Bytes::copy_from_slice(value.as_bytes()))
    };
    RouteAction::Respond {
        status: response.status().as_u16(),
        headers: response.headers().iter().map(header).collect(),
        body: response.body().clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_certificates_of_a_bundle_are_sent() {
        let key = "-----BEGIN PRIVATE KEY-----\nsecret\n-----END PRIVATE KEY-----\n";
        let certificate =
            |name: &str| format!("-----BEGIN CERTIFICATE-----\n{name}\n-----END CERTIFICATE-----\n");
        let bundle = format!("password\n{}{key}text\n{}", certificate("one"), certificate("two"));
        assert_eq!(certificates(&bundle), certificate("one") + &certificate("two"));
        assert_eq!(in_memory(&[Pem::Bytes(key.as_bytes().into())]), None);
    }
}
