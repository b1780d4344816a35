//! The routes of a listener (RDS): which cluster takes a request, or which response it gets.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::messages::{duration, encode};
use crate::proto::envoy::config::data_source::Specifier;
use crate::proto::envoy::config::header_matcher::HeaderMatchSpecifier;
use crate::proto::envoy::config::header_value_option::HeaderAppendAction;
use crate::proto::envoy::config::route::Action;
use crate::proto::envoy::config::route_action::ClusterSpecifier;
use crate::proto::envoy::config::route_match::PathSpecifier;
use crate::proto::envoy::config::string_matcher::MatchPattern;
use crate::proto::envoy::config::{
    DataSource, DirectResponseAction, HeaderMatcher, HeaderValue, HeaderValueOption, Route,
    RouteAction as ForwardAction, RouteConfiguration, RouteMatch, StringMatcher, VirtualHost,
};

/// The longest body of a direct response that Envoy takes unless the configuration says more.
const USUAL_BODY: usize = 4096;

/// The routes of a host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostRoutes {
    /// `shop.example.com`, `*.example.com` for all hosts below, or `*`. It is in a configuration once: Envoy refuses all routes
    /// otherwise. The same name with a dot at its end is added, since Rouse ignores that dot.
    pub domain: String,
    /// Its routes; the first that matches wins.
    pub routes: Vec<PathRoute>,
}

/// One route of a host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PathRoute {
    /// Its name, in Envoy's access log and its `config_dump`.
    pub name: String,
    /// Whole segments at the start of the path, without a slash at the end: `/shop` matches `/shop` and `/shop/cart`, not `/shops`.
    /// An empty prefix matches all paths.
    pub prefix: String,
    /// Headers that the request must have, all of them; `None` is any value. Envoy compares the values of a repeated header as one,
    /// with commas between. A value that is not UTF-8 never matches.
    pub headers: Vec<(String, Option<Bytes>)>,
    /// What happens to the request.
    pub action: RouteAction,
}

/// What happens to a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RouteAction {
    /// An endpoint of the cluster takes it. It is not sent again if it fails.
    Forward {
        /// The name of the cluster.
        cluster: Arc<str>,
        /// The most time from the end of the request to the end of the response; `None` does not limit it.
        timeout: Option<Duration>,
    },
    /// Envoy answers it.
    Respond {
        /// The status, from 200 to 599.
        status: u16,
        /// The headers, besides those that Envoy sets. They are text: other bytes are replaced.
        headers: Vec<(String, Bytes)>,
        /// The body.
        body: Bytes,
    },
}

/// The route configuration `name`. The port in `Host` is ignored.
pub fn routes(name: &str, hosts: &[HostRoutes]) -> Bytes {
    let actions = hosts.iter().flat_map(|host| &host.routes).map(|route| &route.action);
    let bodies = actions.filter_map(|action| match action {
        RouteAction::Respond { body, .. } => Some(body.len()),
        RouteAction::Forward { .. } => None,
    });
    let longest = bodies.filter(|length| *length > USUAL_BODY).max();
    encode(&RouteConfiguration {
        name: name.to_owned(),
        virtual_hosts: hosts.iter().map(virtual_host).collect(),
        max_direct_response_body_size_bytes: longest.map(|most| u32::try_from(most).unwrap_or(u32::MAX)),
        ignore_port_in_host_matching: true,
    })
}

fn virtual_host(host: &HostRoutes) -> VirtualHost {
    let rooted = (host.domain != "*").then(|| format!("{}.", host.domain));
    VirtualHost {
        name: host.domain.clone(),
        domains: [host.domain.clone()].into_iter().chain(rooted).collect(),
        routes: host.routes.iter().map(route).collect(),
    }
}

fn route(route: &PathRoute) -> Route {
    let path = match route.prefix.as_str() {
        "" => PathSpecifier::Prefix("/".to_owned()),
        prefix => PathSpecifier::PathSeparatedPrefix(prefix.to_owned()),
    };
    let matcher = RouteMatch {
        headers: route.headers.iter().map(|(name, value)| header_matcher(name, value.as_deref())).collect(),
        path_specifier: Some(path),
    };
    let (action, to_add, to_remove) = match &route.action {
        RouteAction::Forward { cluster, timeout } => (forward(cluster, *timeout), Vec::new(), Vec::new()),
        RouteAction::Respond { status, headers, body } => {
            (respond(*status, body), response_headers(headers), unasked_headers(*status))
        }
    };
    Route {
        name: route.name.clone(),
        r#match: Some(matcher),
        response_headers_to_add: to_add,
        response_headers_to_remove: to_remove,
        action: Some(action),
    }
}

fn header_matcher(name: &str, value: Option<&[u8]>) -> HeaderMatcher {
    let specifier = match value {
        None => HeaderMatchSpecifier::PresentMatch(true),
        Some(value) => {
            let exact = MatchPattern::Exact(String::from_utf8_lossy(value).into_owned());
            HeaderMatchSpecifier::StringMatch(StringMatcher { match_pattern: Some(exact) })
        }
    };
    HeaderMatcher { name: name.to_owned(), header_match_specifier: Some(specifier) }
}

fn forward(cluster: &str, timeout: Option<Duration>) -> Action {
    Action::Route(ForwardAction {
        cluster_specifier: Some(ClusterSpecifier::Cluster(cluster.to_owned())),
        // 0 is no limit. Without it, Envoy ends streams after 15 s.
        timeout: Some(duration(timeout.unwrap_or_default())),
        // That of the listener holds.
        idle_timeout: None,
    })
}

fn respond(status: u16, body: &Bytes) -> Action {
    let specifier = Specifier::InlineBytes(body.clone());
    let body = (!body.is_empty()).then_some(DataSource { specifier: Some(specifier) });
    Action::DirectResponse(DirectResponseAction { status: status.into(), body })
}

fn response_headers(headers: &[(String, Bytes)]) -> Vec<HeaderValueOption> {
    let option = |(name, value): &(String, Bytes)| {
        let value = String::from_utf8_lossy(value).replace('%', "%%");
        HeaderValueOption {
            // A second value of the same name (`set-cookie`) must not replace the first.
            append_action: HeaderAppendAction::AppendIfExistsOrAdd.into(),
            keep_empty_value: value.is_empty(),
            header: Some(HeaderValue { key: name.clone(), value }),
        }
    };
    headers.iter().map(option).collect()
}

/// Envoy adds the URL of the request as `location` to these. Headers are removed before others are added.
fn unasked_headers(status: u16) -> Vec<String> {
    if status == 201 || (300..400).contains(&status) { vec!["location".to_owned()] } else { Vec::new() }
}
