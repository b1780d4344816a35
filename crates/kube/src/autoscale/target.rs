//! What is scaled: a workload, the routes that lead to it, and whether Rouse may scale it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use rouse_core::endpoint::ServiceId;
use rouse_core::scale::ScalePolicy;

use super::policy::policy;
use crate::objects::route::{RouteKey, RouteSpec};
use crate::objects::workload::Workload;

/// Identifies a workload, in any version of its API.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TargetKey {
    /// Its namespace.
    pub namespace: Arc<str>,
    /// Its API group; empty for the core group.
    pub group: Arc<str>,
    /// Its kind.
    pub kind: Arc<str>,
    /// Its name.
    pub name: Arc<str>,
}

impl TargetKey {
    /// The key of a workload in `namespace`.
    pub fn new(namespace: &str, workload: &Workload) -> Self {
        let Workload { group, kind, name, .. } = workload;
        Self {
            namespace: namespace.into(),
            group: Arc::clone(group),
            kind: Arc::clone(kind),
            name: Arc::clone(name),
        }
    }
}

impl fmt::Display for TargetKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} in {}", self.kind, self.name, self.namespace)
    }
}

/// Another autoscaler of a workload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExternalOwner {
    /// What it is.
    pub kind: OwnerKind,
    /// Its name.
    pub name: Arc<str>,
}

/// A kind of autoscalers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OwnerKind {
    /// A `HorizontalPodAutoscaler`.
    Hpa,
    /// A `ScaledObject` of KEDA.
    ScaledObject,
}

impl fmt::Display for ExternalOwner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            OwnerKind::Hpa => write!(f, "HorizontalPodAutoscaler {}", self.name),
            OwnerKind::ScaledObject => write!(f, "ScaledObject {}", self.name),
        }
    }
}

/// Whether Rouse scales a workload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Management {
    /// It does, by this policy.
    Managed(ScalePolicy),
    /// No route asks for it.
    NotEnabled,
    /// A route turns it off.
    TurnedOff(RouteKey),
    /// Another autoscaler scales it.
    OwnedByOther(ExternalOwner),
    /// The settings of its routes cannot be used. Says why.
    BadPolicy(String),
}

/// A workload, and what its routes say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct TargetSpec {
    pub(super) workload: Workload,
    /// The routes that lead to it, the oldest first.
    pub(super) routes: Vec<Arc<RouteSpec>>,
    /// The Services of these routes.
    pub(super) services: BTreeSet<ServiceId>,
    pub(super) management: Management,
}

impl TargetSpec {
    /// The policy by which it is scaled.
    pub(super) fn managed(&self) -> Option<&ScalePolicy> {
        match &self.management {
            Management::Managed(policy) => Some(policy),
            _ => None,
        }
    }

    /// Until when it is not scaled to zero because one of its routes is new, in seconds since the Unix epoch.
    pub(super) fn cools_down_until(&self) -> Option<u64> {
        let until = |route: &Arc<RouteSpec>| {
            let cooldown = route.scaling.initial_cooldown.filter(|cooldown| *cooldown > Duration::ZERO)?;
            Some(route.created.saturating_add(cooldown.as_secs()))
        };
        self.routes.iter().filter_map(until).max()
    }
}

/// What routes are scaled if they do not say it themselves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum AutoscaleDefault {
    /// Routes with `rouse.dev/autoscale: "on"` only.
    #[default]
    Off,
    /// All routes but those to `StatefulSet`s: pods with an identity and a volume are scaled only if someone asked for it.
    On,
}

/// The targets of one namespace, and the workload of each route or why there is none.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct ResolvedNamespace {
    pub(super) targets: BTreeMap<TargetKey, TargetSpec>,
    pub(super) routes: BTreeMap<RouteKey, Result<TargetKey, String>>,
}

/// Groups routes by their workload. `find` looks up the workload of a route, and `owner` what else scales a workload.
pub(super) fn resolve(
    namespace: &str,
    routes: &[Arc<RouteSpec>],
    default: AutoscaleDefault,
    find: impl Fn(&RouteSpec) -> Result<Workload, String>,
    owner: impl Fn(&Workload) -> Option<ExternalOwner>,
) -> ResolvedNamespace {
    let mut resolved = ResolvedNamespace::default();
    let mut groups: BTreeMap<TargetKey, (Workload, Vec<Arc<RouteSpec>>)> = BTreeMap::new();
    for route in routes {
        let found = find(route).map(|workload| {
            let key = TargetKey::new(namespace, &workload);
            let group = groups.entry(key.clone()).or_insert_with(|| (workload, Vec::new()));
            group.1.push(Arc::clone(route));
            key
        });
        resolved.routes.insert(route.key.clone(), found);
    }
    for (key, (workload, mut routes)) in groups {
        routes.sort_by(|a, b| (a.created, &a.key).cmp(&(b.created, &b.key)));
        let services = routes.iter().map(|route| route.target.service.clone()).collect();
        let management = management(&workload, &routes, default, &owner);
        resolved.targets.insert(key, TargetSpec { workload, routes, services, management });
    }
    resolved
}

fn management(
    workload: &Workload,
    routes: &[Arc<RouteSpec>],
    default: AutoscaleDefault,
    owner: impl Fn(&Workload) -> Option<ExternalOwner>,
) -> Management {
    let says = |wanted: bool| routes.iter().find(|route| route.scaling.autoscale == Some(wanted));
    let by_default = default == AutoscaleDefault::On && &*workload.kind != "StatefulSet";
    match (says(false), says(true)) {
        // Not an opinion about one of its routes, but about the workload.
        (Some(off), Some(_)) => return Management::TurnedOff(off.key.clone()),
        (Some(_), None) => return Management::NotEnabled,
        (None, None) if !by_default => return Management::NotEnabled,
        _ => {}
    }
    if let Some(owner) = owner(workload) {
        return Management::OwnedByOther(owner);
    }
    match policy(routes.iter().map(|route| &route.scaling)) {
        Ok(policy) => Management::Managed(policy),
        Err(bad) => {
            let names: Vec<&str> = routes.iter().map(|route| &*route.key.name).collect();
            let whose = if names.len() == 1 { "of route" } else { "of the routes" };
            Management::BadPolicy(format!("the settings {whose} {}: {bad}", names.join(", ")))
        }
    }
}
