//! Reads the metadata of a trigger, as KEDA HTTP add-on defines it: which route it is about, and the names of its metrics.

use std::collections::HashMap;
use std::fmt;

use crate::proto::externalscaler::ScaledObjectRef;

const INTERCEPTOR_ROUTE: &str = "interceptorRoute";
const HTTP_SCALED_OBJECT: &str = "httpScaledObject";
const ALL_ROUTES: &str = "interceptorTargetPendingRequests";
/// The longest name of a Kubernetes object.
const MAX_NAME: usize = 253;

/// The kind of a route object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ScaledRouteKind {
    /// `http.keda.sh` `InterceptorRoute`.
    InterceptorRoute,
    /// `http.keda.sh` `HTTPScaledObject`.
    HttpScaledObject,
}

/// A route object, as a trigger names it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ScaledRoute {
    /// Its kind.
    pub kind: ScaledRouteKind,
    /// Its namespace: that of the `ScaledObject`.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

/// What a trigger is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Trigger {
    /// One route.
    Route(ScaledRoute),
    /// All routes together: for the interceptors themselves.
    AllRoutes {
        /// The requests that one replica is for.
        target: i64,
        metric: String,
    },
}

/// The metadata of a trigger cannot be used. The text goes to KEDA's log and to the events of the `ScaledObject`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum BadTrigger {
    #[error("the request names no ScaledObject")]
    NoScaledObject,
    #[error(
        "the trigger names no route: set {INTERCEPTOR_ROUTE}, {HTTP_SCALED_OBJECT} or {ALL_ROUTES} in its metadata (it has: {0})"
    )]
    NoRoute(String),
    #[error("{key}: {value:?} is not the name of a Kubernetes object")]
    Name { key: &'static str, value: String },
    #[error(
        "{ALL_ROUTES}: {0:?} is not a number: expected the requests that one replica is for, such as \"200\""
    )]
    Target(String),
}

impl Trigger {
    /// Reads the metadata. If it has several keys, the first of the three above counts, as in KEDA HTTP add-on.
    pub(crate) fn read(scaled_object: Option<&ScaledObjectRef>) -> Result<Self, BadTrigger> {
        let scaled_object = scaled_object.ok_or(BadTrigger::NoScaledObject)?;
        let ScaledObjectRef { name, namespace, scaler_metadata } = scaled_object;
        for (key, value) in [("name", name), ("namespace", namespace)] {
            if !is_object_name(value) {
                return Err(BadTrigger::Name { key, value: shortened(value) });
            }
        }
        let route = |kind, key, value: &String| {
            let route = ScaledRoute { kind, namespace: namespace.clone(), name: value.clone() };
            if is_object_name(value) {
                Ok(Self::Route(route))
            } else {
                Err(BadTrigger::Name { key, value: shortened(value) })
            }
        };
        if let Some(value) = scaler_metadata.get(INTERCEPTOR_ROUTE) {
            return route(ScaledRouteKind::InterceptorRoute, INTERCEPTOR_ROUTE, value);
        }
        if let Some(value) = scaler_metadata.get(HTTP_SCALED_OBJECT) {
            return route(ScaledRouteKind::HttpScaledObject, HTTP_SCALED_OBJECT, value);
        }
        let Some(value) = scaler_metadata.get(ALL_ROUTES) else {
            return Err(BadTrigger::NoRoute(keys(scaler_metadata)));
        };
        let target = value.parse().map_err(|_| BadTrigger::Target(shortened(value)))?;
        Ok(Self::AllRoutes { target, metric: object_metric(namespace, name) })
    }
}

impl ScaledRoute {
    /// The name of its concurrency metric.
    pub(super) fn concurrency_metric(&self) -> String {
        format!("http_{}_concurrency", self.name)
    }

    /// The name of its request rate metric.
    pub(super) fn rate_metric(&self) -> String {
        format!("http_{}_rate", self.name)
    }

    /// The name of its only metric, if it is an `HTTPScaledObject`.
    pub(super) fn object_metric(&self) -> String {
        object_metric(&self.namespace, &self.name)
    }
}

impl fmt::Display for ScaledRoute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            ScaledRouteKind::InterceptorRoute => "InterceptorRoute",
            ScaledRouteKind::HttpScaledObject => "HTTPScaledObject",
        };
        write!(f, "{kind} {}/{}", self.namespace, self.name)
    }
}

/// As KEDA HTTP add-on names it: `http-NAMESPACE/NAME`, with the slash as the number of its character.
fn object_metric(namespace: &str, name: &str) -> String {
    format!("http-{namespace}_002F{name}")
}

fn is_object_name(name: &str) -> bool {
    let allowed =
        |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'-' | b'.');
    (1..=MAX_NAME).contains(&name.len()) && name.bytes().all(allowed)
}

/// The keys of the metadata. Not the values: some may be secret.
fn keys(metadata: &HashMap<String, String>) -> String {
    let mut keys: Vec<String> = metadata.keys().map(|key| shortened(key)).take(16).collect();
    keys.sort_unstable();
    if keys.is_empty() { "nothing".to_owned() } else { keys.join(", ") }
}

fn shortened(text: &str) -> String {
    text.chars().filter(|letter| !letter.is_control()).take(64).collect()
}
