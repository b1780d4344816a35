//! Reads an `InterceptorRoute` or `HTTPScaledObject` into a [`RouteSpec`], or reports everything that is wrong with it.

mod annotations;
mod field;
mod http_scaled_object;
mod interceptor;
mod shared_fields;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderName, HeaderValue};
use rouse_core::endpoint::ServiceId;
use rouse_core::routing_mode::RoutingMode;
use rouse_core::scale::{IdlePolicy, Schedule};
use serde::Deserialize;
use serde_json::Value;

use super::Meta;
use super::service_summary::PortRef;
use super::workload::Workload;
use crate::client::ObjectKind;
use field::{Faults, Field};

/// The host pattern of a rule without hosts: any host.
pub const ANY: &str = "*";
/// The longest body that a route may carry itself.
pub const LONGEST_BODY: usize = 32_768;

/// The kind of a route object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RouteKind {
    /// `http.keda.sh/v1beta1` `InterceptorRoute`.
    InterceptorRoute,
    /// `http.keda.sh/v1alpha1` `HTTPScaledObject`.
    HttpScaledObject,
}

/// Which conditions the CRD of a route object can store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ConditionFormat {
    /// Conditions of any type, with all their fields.
    Full,
    /// Conditions of few types, without reason and observed generation: the gateway puts all problems into one message.
    OneMessage,
}

impl RouteKind {
    /// The kinds whose objects the API server has, each with its kind there. A new one needs an entry here, one in the list
    /// of watches, its reader, and its permissions. A kind whose routes come from elsewhere has no entry.
    pub(crate) const WATCHED: [(Self, ObjectKind); 2] = [
        (Self::InterceptorRoute, Self::InterceptorRoute.object_kind()),
        (Self::HttpScaledObject, Self::HttpScaledObject.object_kind()),
    ];

    /// The kind at the API server.
    pub(crate) const fn object_kind(self) -> ObjectKind {
        match self {
            Self::InterceptorRoute => ObjectKind::ROUTE,
            Self::HttpScaledObject => ObjectKind::HTTP_SCALED_OBJECT,
        }
    }

    /// The kind as texts name it.
    pub fn name(self) -> &'static str {
        self.object_kind().name
    }

    /// Which conditions its CRD can store.
    pub(crate) fn condition_format(self) -> ConditionFormat {
        match self {
            Self::InterceptorRoute => ConditionFormat::Full,
            Self::HttpScaledObject => ConditionFormat::OneMessage,
        }
    }

    /// The name of the route of this kind that a `ScaledObject`'s trigger with this `metadata` names.
    pub(crate) fn named_by(self, metadata: &Value) -> Option<&str> {
        let field = match self {
            Self::InterceptorRoute => "interceptorRoute",
            Self::HttpScaledObject => "httpScaledObject",
        };
        metadata.get(field)?.as_str()
    }

    /// Whether the workload that a route names takes precedence over that of a `ScaledObject`.
    pub(crate) fn names_its_workload(self) -> bool {
        match self {
            Self::InterceptorRoute => false,
            Self::HttpScaledObject => true,
        }
    }
}

/// Identifies a route object.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RouteKey {
    /// Its namespace.
    pub namespace: Arc<str>,
    /// Its name.
    pub name: Arc<str>,
    /// Its kind: one of each may have the same name.
    pub kind: RouteKind,
}

impl RouteKey {
    /// The name under which gateways report its load, with the kind: `InterceptorRoute/shop/cart`.
    pub fn load_name(&self) -> Arc<str> {
        format!("{}/{}/{}", self.kind.name(), self.namespace, self.name).into()
    }

    /// The route that a gateway reports as `name`.
    pub fn from_load_name(name: &str) -> Option<Self> {
        let mut parts = name.splitn(3, '/');
        let kind = parts.next()?;
        let (kind, _) = RouteKind::WATCHED.into_iter().find(|(known, _)| known.name() == kind)?;
        Some(Self { kind, namespace: parts.next()?.into(), name: parts.next()?.into() })
    }
}

impl fmt::Display for RouteKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// A route object as the API server has it: its spec is read by hand, so that all faults are found.
#[derive(Debug, Clone, Default, Deserialize)]
pub struct RouteObject {
    /// Name, age, generation and annotations.
    pub metadata: Meta,
    /// Its spec, as JSON.
    #[serde(default)]
    pub spec: Value,
    /// Its status, as the API server has it.
    #[serde(default)]
    pub status: Value,
}

/// The settings of a valid route object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RouteSpec {
    /// The route object.
    pub key: RouteKey,
    /// When it was created, in seconds since the Unix epoch: of equal rules, the older one wins.
    pub created: u64,
    /// The rules that its requests match; no rule means any request.
    pub rules: Vec<RuleSpec>,
    /// The Service port that its requests go to.
    pub target: TargetSpec,
    /// How long requests may take. `None`: the default of the gateway; zero: no limit.
    pub timeouts: TimeoutSpec,
    /// What happens while no pod is ready.
    pub cold_start: ColdStartSpec,
    /// Responses that need no pod.
    pub static_routes: Vec<StaticSpec>,
    /// How its workload is scaled.
    pub scaling: ScalingSpec,
    /// Whether requests go straight to pods or to the Service's `ClusterIP`; `None`: the default of the gateway.
    pub direct: Option<RoutingMode>,
    /// Whether its starting pods are probed; `None`: the default of the gateway.
    pub probing: Option<Probing>,
    /// Whether the certificates of its pods are verified where TLS is spoken.
    pub verify_upstream: bool,
    /// Which requests neither wake nor count as load.
    pub no_wake: NoWakeSpec,
}

/// The specs of all routes that serve, swapped as a whole.
pub type ServingRoutes = Arc<[Arc<RouteSpec>]>;

/// Matches a request that has any of the hosts, any of the paths and all of the headers.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RuleSpec {
    /// Lower case: a name, `*.name` or `*`; none means any.
    pub hosts: Vec<Arc<str>>,
    /// Each begins with a slash; none means any.
    pub paths: Vec<String>,
    /// The headers that a request must have, each with this value, or with any value.
    pub headers: Vec<(HeaderName, Option<HeaderValue>)>,
}

/// A port of a Service, in the route's own namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TargetSpec {
    /// The Service.
    pub service: ServiceId,
    /// Its port.
    pub port: PortRef,
}

/// How long requests may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TimeoutSpec {
    /// How long a request waits until a pod is ready.
    pub readiness: Option<Duration>,
    /// How long the whole request may take.
    pub request: Option<Duration>,
    /// How long a pod may take until its response begins.
    pub response_header: Option<Duration>,
}

/// What happens while no pod is ready.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ColdStartSpec {
    /// Where requests go when no pod was ready in time.
    pub fallback: Option<TargetSpec>,
    /// The response that is sent at once instead of holding the request.
    pub placeholder: Option<ResponseSpec>,
    /// How many requests may wait; `None`: the default of the gateway, 0 means no limit of the route's own.
    pub max_pending: Option<u32>,
    /// The response to requests beyond that number.
    pub overflow: Option<ResponseSpec>,
}

/// Requests that are answered without a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StaticSpec {
    /// The rules that such a request matches. A rule without hosts applies to the hosts of the route.
    pub rules: Vec<RuleSpec>,
    /// The response.
    pub response: ResponseSpec,
    /// When it is sent.
    pub mode: StaticMode,
}

/// When a static response is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum StaticMode {
    /// While no pod is ready.
    WhenUnavailable,
    /// Always.
    Always,
}

/// A response that needs no pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResponseSpec {
    /// Its status.
    pub status: u16,
    /// Its headers.
    pub headers: Vec<(HeaderName, HeaderValue)>,
    /// Its body.
    pub body: BodySpec,
}

/// The body of a response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BodySpec {
    /// As written in the route.
    Text(Arc<str>),
    /// In a `ConfigMap` of the route's own namespace.
    ConfigMap {
        /// Its name.
        name: Arc<str>,
        /// Which entry; `None`: `body`, or else the only one.
        key: Option<Arc<str>>,
    },
}

/// How a route's workload is scaled.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ScalingSpec {
    /// The workload, if the route names it.
    pub target: Option<Workload>,
    /// The least number of pods.
    pub min: u32,
    /// The greatest number of pods.
    pub max: Option<u32>,
    /// Scaled to zero after this time without requests.
    pub idle_after: Option<Duration>,
    /// Not scaled to zero for this time after its creation.
    pub initial_cooldown: Option<Duration>,
    /// The target of concurrent requests per pod.
    pub concurrency: Option<u32>,
    /// The target of requests per second per pod.
    pub rate: Option<RateSpec>,
    /// The greatest number of concurrent requests per pod.
    pub concurrency_limit: Option<u32>,
    /// Whether the controller scales the workload; `None`: its default.
    pub autoscale: Option<bool>,
    /// Whether the time until zero is fixed or learned; `None`: it does not say.
    pub idle: Option<IdlePolicy>,
    /// The least number of pods at certain times.
    pub schedule: Schedule,
}

/// Scaling by rate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RateSpec {
    /// Requests per second per pod.
    pub target: u32,
    /// The window over which the rate is measured.
    pub window: Duration,
    /// The step of the window.
    pub granularity: Duration,
}

/// Requests that neither wake nor count as load: those that match any of these.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NoWakeSpec {
    /// Path prefixes; each begins with a slash.
    pub paths: Vec<Arc<str>>,
    /// Methods.
    pub methods: Vec<Arc<str>>,
    /// Parts of the `User-Agent` header, in lower case.
    pub agents: Vec<Arc<str>>,
}

/// Whether starting pods are probed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Probing {
    /// Never.
    Disabled,
    /// With HTTP and gRPC probes only: the sidecar of a service mesh accepts every TCP connection before the app does.
    NoTcp,
    /// With every probe of the pod's spec that the gateway can send.
    Enabled,
}

impl RouteKey {
    /// The key of the object with this metadata.
    pub fn new(kind: RouteKind, meta: &Meta) -> Self {
        Self { namespace: meta.namespace().into(), name: meta.name.as_str().into(), kind }
    }
}

/// When the object was created, in seconds since the Unix epoch.
pub(crate) fn created(meta: &Meta) -> u64 {
    shared_fields::created(meta)
}

/// The readable rules of an invalid object: their hosts stay claimed. A rule none of whose hosts can be read is left out.
pub(crate) fn salvage(kind: RouteKind, object: &RouteObject) -> Vec<RuleSpec> {
    // [`read`] reports the faults.
    let faults = Faults::default();
    let Some(root) = Field::root(&object.spec, "spec", &faults).object() else { return Vec::new() };
    match kind {
        RouteKind::InterceptorRoute => interceptor::salvage(&root),
        RouteKind::HttpScaledObject => http_scaled_object::salvage(&root),
    }
}

/// A route that refuses the requests that match the `rules` of a faulty object. It counts as
/// newer than every other: otherwise an older faulty route would refuse the requests of a good one with an equal rule.
pub(crate) fn unserved(kind: RouteKind, object: &RouteObject, rules: Vec<RuleSpec>) -> Option<RouteSpec> {
    let meta = &object.metadata;
    // Only metrics and logs use this name; nothing is looked up by it.
    let service = ServiceId::new(meta.namespace(), &meta.name).ok()?;
    Some(RouteSpec {
        key: RouteKey::new(kind, meta),
        created: u64::MAX,
        rules,
        target: TargetSpec { service, port: PortRef::Number(0) },
        timeouts: TimeoutSpec::default(),
        cold_start: ColdStartSpec::default(),
        static_routes: Vec::new(),
        scaling: ScalingSpec::default(),
        direct: None,
        probing: None,
        verify_upstream: true,
        no_wake: NoWakeSpec::default(),
    })
}

/// Reads a route object. `Err` has everything that is wrong with it.
pub fn read(kind: RouteKind, object: &RouteObject) -> Result<RouteSpec, Vec<String>> {
    let faults = Faults::default();
    let root = Field::root(&object.spec, "spec", &faults);
    let mut spec = match kind {
        RouteKind::InterceptorRoute => interceptor::read(&object.metadata, &root),
        RouteKind::HttpScaledObject => http_scaled_object::read(&object.metadata, &root),
    };
    annotations::apply(&object.metadata, &faults, spec.as_mut());
    let faults = faults.into_inner();
    match spec {
        Some(spec) if faults.is_empty() => Ok(spec),
        _ => Err(faults),
    }
}
