//! Builds the data plane's route table from the routes of a cluster.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Method, StatusCode};
use rouse_core::load_meter::LoadMeter;
use rouse_core::registry::Registry;
use rouse_core::routing_mode::RoutingMode;
use rouse_kube::objects::route::{NoWakeSpec, RouteKey, RouteSpec, RuleSpec, StaticMode};
use rouse_kube::objects::service_summary::{PortFault, ResolvedPort};
use rouse_kube::routes::hosts::AssignedHosts;
use rouse_kube::routes::plan::{ResponsePlan, RoutePlan};
use rouse_proxy::routing::{
    FixedResponse, HeaderMatch, HostPattern, NoPodPolicy, PassiveRequests, PendingLimit, Route, RouteTable,
    Rule, StaticResponse, Target,
};
use rouse_proxy::telemetry::metrics::RouteName;
use rouse_proxy::upstream::{Backend, ClusterIp, Timeouts};

use super::upstream::Upstreams;

/// How long a request waits for a pod if there is a fallback and no readiness timeout.
const WITH_FALLBACK: Duration = Duration::from_secs(30);

/// The values for what a route does not set.
#[derive(Debug, Clone, Copy)]
pub struct RouteDefaults {
    /// How long requests may take.
    pub timeouts: Timeouts,
    /// When requests go straight to a pod.
    pub direct: RoutingMode,
}

/// Builds route tables, and keeps the state that survives a rebuild: health of `ClusterIP`s, counts of pending requests, and
/// meters of load.
#[derive(Debug)]
pub struct RouteTableBuilder {
    registry: Arc<Registry>,
    defaults: RouteDefaults,
    upstreams: Upstreams,
    /// Hosts that the operator assigns to namespaces.
    owners: Arc<[(HostPattern, Arc<str>)]>,
    cluster_ips: HashMap<Arc<[SocketAddr]>, Arc<ClusterIp>>,
    pending: HashMap<RouteKey, Arc<PendingLimit>>,
    meters: HashMap<RouteKey, Arc<LoadMeter>>,
}

impl RouteTableBuilder {
    /// Builds tables for the services of `registry`. An `assigned` host never leads to another namespace, even while its own
    /// has no route for it.
    pub fn new(
        registry: Arc<Registry>,
        defaults: RouteDefaults,
        upstreams: Upstreams,
        assigned: &AssignedHosts,
    ) -> Self {
        let owner = |(host, namespace): (&String, &String)| Some((host.parse().ok()?, (**namespace).into()));
        let owners = assigned.iter().filter_map(owner).collect();
        let (cluster_ips, pending, meters) = (HashMap::new(), HashMap::new(), HashMap::new());
        Self { registry, defaults, upstreams, owners, cluster_ips, pending, meters }
    }

    /// The table of all `plans`.
    pub fn table(&mut self, plans: &[Arc<RoutePlan>]) -> RouteTable<Arc<Route>> {
        let mut fresh = Self {
            registry: Arc::clone(&self.registry),
            defaults: self.defaults,
            upstreams: self.upstreams.clone(),
            owners: Arc::clone(&self.owners),
            cluster_ips: HashMap::new(),
            pending: HashMap::new(),
            meters: HashMap::new(),
        };
        let mut rules = Vec::new();
        for plan in plans {
            fresh.enter(self, plan, &mut rules);
        }
        let before = std::mem::replace(self, fresh);
        for (_, meter) in before.meters.into_iter().filter(|(key, _)| !self.meters.contains_key(key)) {
            meter.retire();
        }
        RouteTable::with_owners(rules, self.owners.iter().cloned())
    }

    fn enter(&mut self, before: &Self, plan: &RoutePlan, rules: &mut Vec<Rule<Arc<Route>>>) {
        let spec = &plan.spec;
        let name = spec.key.to_string();
        let target = self.target(before, spec, &plan.target);
        let fallback = plan.fallback.as_ref().map(|fallback| self.target(before, spec, fallback));
        let timeouts = timeouts(spec, self.defaults.timeouts);
        let meter = self.meter(before, spec);
        let route = |no_pod| {
            Arc::new(Route {
                name: RouteName::from(&*name),
                service: spec.target.service.clone(),
                target: target.clone(),
                timeouts,
                no_pod,
                meter: Some(Arc::clone(&meter)),
            })
        };
        // Add these before the route's own rules: of equal rules the first one matches.
        for fixed in &plan.statics {
            let when_unavailable = fixed.mode == StaticMode::WhenUnavailable;
            let response = Arc::new(static_response(&fixed.response));
            let no_pod = self.no_pod(before, plan, fallback.clone());
            let route =
                route(NoPodPolicy { fixed: Some(FixedResponse { response, when_unavailable }), ..no_pod });
            rules.extend(fixed.rules.iter().filter_map(|rule| entry(spec, &name, rule, &route)));
        }
        let route = route(self.no_pod(before, plan, fallback));
        rules.extend(plan.rules.iter().filter_map(|rule| entry(spec, &name, rule, &route)));
    }

    fn target(&mut self, before: &Self, spec: &RouteSpec, port: &Result<ResolvedPort, PortFault>) -> Target {
        let found = match port {
            Ok(found) => found,
            Err(PortFault::BadPort { .. }) => return Target::BadPort,
            Err(PortFault::NoService(_) | PortFault::ExternalName(_) | PortFault::Faulty(_)) => {
                return Target::NoService;
            }
        };
        let Some(service) = self.registry.get(&found.service) else { return Target::NoService };
        let Some(port) = service.port(&found.port) else { return Target::BadPort };
        let (protocol, over_tls) = self.upstreams.of(found, spec.verify_upstream);
        let addresses = found.cluster_ips.iter().map(|ip| SocketAddr::new(*ip, found.number)).collect();
        let direct = spec.direct.unwrap_or(self.defaults.direct);
        let cluster_ip = self.cluster_ip(before, addresses);
        Target::Backend(Backend { service, port, protocol, over_tls, direct, cluster_ip })
    }

    /// Reuses the `ClusterIP` while its addresses stay the same, because it knows whether they answer.
    fn cluster_ip(&mut self, before: &Self, addresses: Arc<[SocketAddr]>) -> Option<Arc<ClusterIp>> {
        let known = self.cluster_ips.get(&addresses).or_else(|| before.cluster_ips.get(&addresses)).cloned();
        let ip = known.or_else(|| ClusterIp::new(Arc::clone(&addresses)))?;
        self.cluster_ips.insert(addresses, Arc::clone(&ip));
        Some(ip)
    }

    fn no_pod(&mut self, before: &Self, plan: &RoutePlan, fallback: Option<Target>) -> NoPodPolicy {
        let answer = |response: &Option<ResponsePlan>| response.as_ref().map(static_response).map(Arc::new);
        NoPodPolicy {
            fixed: None,
            placeholder: answer(&plan.placeholder),
            overflow: answer(&plan.overflow),
            fallback,
            pending: self.pending(before, &plan.spec),
            passive: passive(&plan.spec.no_wake),
        }
    }

    /// Reuses the meter while the route exists: what is reported are differences.
    fn meter(&mut self, before: &Self, spec: &RouteSpec) -> Arc<LoadMeter> {
        let known = self.meters.get(&spec.key).or_else(|| before.meters.get(&spec.key)).cloned();
        let meter = known.unwrap_or_else(|| self.registry.route_meter(spec.key.load_name()));
        self.meters.insert(spec.key.clone(), Arc::clone(&meter));
        meter
    }

    /// Reuses the counter while the limit stays the same, so that waiting requests stay counted.
    fn pending(&mut self, before: &Self, spec: &RouteSpec) -> Option<Arc<PendingLimit>> {
        let most = usize::try_from(spec.cold_start.max_pending.filter(|most| *most > 0)?).ok()?;
        let known = self.pending.get(&spec.key).or_else(|| before.pending.get(&spec.key));
        let known = known.filter(|pending| pending.most() == most).cloned();
        let pending = known.unwrap_or_else(|| PendingLimit::new(most));
        self.pending.insert(spec.key.clone(), Arc::clone(&pending));
        Some(pending)
    }
}

/// One rule of the table. A rule that cannot be read is reported in the route's status, and matches nothing.
fn entry(spec: &RouteSpec, name: &str, rule: &RuleSpec, route: &Arc<Route>) -> Option<Rule<Arc<Route>>> {
    let header =
        |(name, value): &(_, Option<_>)| HeaderMatch { name: Clone::clone(name), value: value.clone() };
    Some(Rule {
        hosts: rule.hosts.iter().map(|host| host.parse()).collect::<Result<_, _>>().ok()?,
        paths: rule.paths.iter().map(|path| path.parse()).collect::<Result<_, _>>().ok()?,
        headers: rule.headers.iter().map(header).collect(),
        created: spec.created,
        name: name.to_owned(),
        owner: Arc::clone(&spec.key.namespace),
        target: Arc::clone(route),
    })
}

fn timeouts(spec: &RouteSpec, default: Timeouts) -> Timeouts {
    // Zero means no limit; a missing value means the gateway's default.
    let own = |own: Option<Duration>, default: Option<Duration>| match own {
        Some(own) => (!own.is_zero()).then_some(own),
        None => default,
    };
    let readiness = own(spec.timeouts.readiness, default.readiness);
    Timeouts {
        readiness: readiness.or_else(|| spec.cold_start.fallback.is_some().then_some(WITH_FALLBACK)),
        request: own(spec.timeouts.request, default.request),
        response_header: own(spec.timeouts.response_header, default.response_header),
        connect: default.connect,
    }
}

fn static_response(plan: &ResponsePlan) -> StaticResponse {
    let status = StatusCode::from_u16(plan.status).unwrap_or(StatusCode::SERVICE_UNAVAILABLE);
    StaticResponse::new(status, plan.headers.iter().cloned(), Bytes::copy_from_slice(plan.body.as_bytes()))
}

fn passive(spec: &NoWakeSpec) -> PassiveRequests {
    PassiveRequests {
        paths: spec.paths.iter().filter_map(|path| path.parse().ok()).collect(),
        methods: spec.methods.iter().filter_map(|name| Method::from_bytes(name.as_bytes()).ok()).collect(),
        agents: spec.agents.iter().map(ToString::to_string).collect(),
    }
}
