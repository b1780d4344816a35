//! Finds the workload of a route: the one that it names, that a `ScaledObject` or an annotation names, or the only one
//! whose pods its Service selects.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use kube::Client;
use kube::api::ListParams;
use kube::core::Request;
use rouse_core::slices::Labels;
use rouse_core::start_failure::{StartFailure, StartFailureCause};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::scale;
use crate::client::{self, ObjectKind, describe, has_code};
use crate::objects::route::{RouteKey, RouteSpec};
use crate::objects::scaled_object::ScaledObject;
use crate::objects::service_summary::ServiceSummary;
use crate::objects::workload::Workload;
use crate::objects::workload_object::WorkloadObject;

/// How long a list may take when no request waits for it.
const ANSWER: Duration = Duration::from_secs(30);
/// The most workloads that are read in one namespace.
const MOST: usize = 10_000;

/// The objects of one namespace that may be, or name, the workload of a route.
pub(crate) trait Candidates {
    /// The first `ScaledObject` with a trigger that names this route.
    fn naming(&self, route: &RouteKey) -> Option<&ScaledObject>;
    /// The workloads whose pods have all labels of `selector`.
    fn with_pods_of(&self, selector: &Labels) -> Vec<&WorkloadObject>;
}

/// The workload of `route`, paused or not, or why there is none.
pub(crate) fn find(
    route: &RouteSpec,
    service: Option<&ServiceSummary>,
    candidates: &impl Candidates,
) -> Result<Workload, String> {
    if route.key.kind.names_its_workload()
        && let Some(named) = &route.scaling.target
    {
        return Ok(named.clone());
    }
    if let Some(owner) = candidates.naming(&route.key) {
        return owner.target.clone();
    }
    if let Some(named) = &route.scaling.target {
        return Ok(named.clone());
    }
    let advice = "name one by the annotation rouse.dev/scale-target: apps/v1/Deployment/name";
    let id = &route.target.service;
    let Some(service) = service else { return Err(format!("there is no Service {id}")) };
    let Some(selector) = service.pod_selector().filter(|selector| !selector.is_empty()) else {
        return Err(format!("Service {id} has no selector to find its workload by; {advice}"));
    };
    match *candidates.with_pods_of(selector) {
        [only] => Workload::new("apps/v1", only.kind, &only.metadata.name)
            .ok_or_else(|| format!("{} {} has an invalid name", only.kind, only.metadata.name)),
        [] => Err(format!("no Deployment or StatefulSet has the pods of Service {id}; {advice}")),
        [one, other, ..] => Err(format!(
            "both {} {} and {} {} have the pods of Service {id}; {advice}",
            one.kind, one.metadata.name, other.kind, other.metadata.name
        )),
    }
}

/// Why `workload` must not be scaled from 0: any paused `ScaledObject` that scales it counts.
fn pause(scaled: &[ScaledObject], workload: &Workload) -> Option<String> {
    let paused = scaled.iter().find(|scaled| scaled.paused && scaled.scales(workload))?;
    Some(format!("ScaledObject {} is paused", paused.name))
}

/// The candidates of one namespace, as listed just now.
#[derive(Debug)]
struct ListedCandidates {
    scaled: Vec<ScaledObject>,
    workloads: Vec<WorkloadObject>,
}

#[derive(Deserialize)]
struct Page<T> {
    metadata: Next,
    #[serde(default = "Vec::new")]
    items: Vec<T>,
}

#[derive(Deserialize)]
struct Next {
    #[serde(default, rename = "continue")]
    next: Option<String>,
}

impl Candidates for ListedCandidates {
    fn naming(&self, route: &RouteKey) -> Option<&ScaledObject> {
        self.scaled.iter().find(|scaled| scaled.names(route))
    }

    fn with_pods_of(&self, selector: &Labels) -> Vec<&WorkloadObject> {
        self.workloads.iter().filter(|workload| workload.has_pods_of(selector)).collect()
    }
}

impl ListedCandidates {
    /// Lists a namespace. Workloads are listed only if `all`: most routes name theirs.
    async fn look(
        client: &Client,
        namespace: &str,
        all: bool,
        limit: Duration,
    ) -> Result<Self, StartFailure> {
        let scaled = scaled_objects(client, namespace, limit).await.map_err(|error| failure(&error))?;
        let mut workloads = Vec::new();
        if all {
            for kind in [ObjectKind::DEPLOYMENT, ObjectKind::STATEFUL_SET] {
                let found = list(client, kind.path(Some(namespace)), limit).await;
                let found: Vec<WorkloadObject> = found.map_err(|error| failure(&error))?;
                workloads.extend(found.into_iter().map(|found| WorkloadObject { kind: kind.name, ..found }));
            }
        }
        Ok(Self { scaled, workloads })
    }
}

fn failure(error: &kube::Error) -> StartFailure {
    StartFailure::new(scale::cause(error), &describe(error))
}

async fn scaled_objects(
    client: &Client,
    namespace: &str,
    limit: Duration,
) -> Result<Vec<ScaledObject>, kube::Error> {
    match list(client, ObjectKind::SCALED_OBJECT.path(Some(namespace)), limit).await {
        // KEDA is not installed, or the permission to list is missing: assume that there are no ScaledObjects.
        Err(error) if has_code(&error, 404) || has_code(&error, 403) => Ok(Vec::new()),
        other => other,
    }
}

/// Lists all objects at a path. `limit` is the timeout of each page.
async fn list<T: DeserializeOwned>(
    client: &Client,
    path: String,
    limit: Duration,
) -> Result<Vec<T>, kube::Error> {
    let request = Request::new(path);
    let (mut all, mut next) = (Vec::new(), None);
    loop {
        let params = ListParams { limit: Some(500), continue_token: next, ..ListParams::default() };
        let page = request.list(&params).map_err(kube::Error::BuildRequest)?;
        let page: Page<T> = client::within(limit, client.request(page)).await?;
        all.extend(page.items);
        next = page.metadata.next.filter(|next| !next.is_empty());
        if next.is_none() || all.len() >= MOST {
            return Ok(all);
        }
    }
}

/// A route, and the Service that it leads to.
type RouteAndService = (Arc<RouteSpec>, Option<Arc<ServiceSummary>>);

/// The workloads of all routes, as last looked up.
#[derive(Debug, Default)]
pub(crate) struct Targets {
    by_route: Mutex<HashMap<RouteKey, Target>>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Target {
    found: Result<Workload, StartFailure>,
    /// A `ScaledObject` scales it, so its owner may pause it.
    scaled: bool,
    /// Why it must not be taken from 0, as last seen.
    paused: Option<String>,
}

impl Targets {
    pub(crate) fn get(&self, route: &RouteKey) -> Option<Result<Workload, StartFailure>> {
        self.by_route().get(route).map(|target| target.found.clone())
    }

    fn by_route(&self) -> MutexGuard<'_, HashMap<RouteKey, Target>> {
        self.by_route.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks up the workloads of these routes, all of one namespace. Returns whether anything is new.
    pub(crate) async fn look_up(&self, client: &Client, namespace: &str, routes: &[RouteAndService]) -> bool {
        self.look_up_within(ANSWER, client, namespace, routes).await
    }

    /// The same, with a shorter deadline, while a request is held.
    pub(crate) async fn look_up_now(
        &self,
        client: &Client,
        namespace: &str,
        routes: &[RouteAndService],
    ) -> bool {
        self.look_up_within(scale::ANSWER, client, namespace, routes).await
    }

    async fn look_up_within(
        &self,
        limit: Duration,
        client: &Client,
        namespace: &str,
        routes: &[RouteAndService],
    ) -> bool {
        let named = |route: &RouteSpec| route.scaling.target.is_some();
        let all = routes.iter().any(|(route, _)| !named(route));
        let candidates = ListedCandidates::look(client, namespace, all, limit).await;
        let mut changed = false;
        for (route, service) in routes {
            let target = match &candidates {
                Ok(seen) => {
                    let found = find(route, service.as_deref(), seen)
                        .map_err(|words| StartFailure::new(StartFailureCause::NoScaleTarget, &words));
                    let by_any = |workload: &Workload| seen.scaled.iter().any(|one| one.scales(workload));
                    let scaled = found.as_ref().is_ok_and(by_any);
                    let paused = found.as_ref().ok().and_then(|workload| pause(&seen.scaled, workload));
                    Target { found, scaled, paused }
                }
                Err(failure) => Target { found: Err(failure.clone()), scaled: false, paused: None },
            };
            let mut by_route = self.by_route();
            let known = by_route.get(&route.key).map(|known| &known.found);
            // What was found stays while the API server cannot be asked.
            if candidates.is_err() && known.is_some_and(Result::is_ok) {
                continue;
            }
            changed |= known != Some(&target.found);
            by_route.insert(route.key.clone(), target);
        }
        changed
    }

    /// Why the `workload` of these routes must not be scaled from 0. The API server is asked again, since it may be at 0
    /// because it was paused just now; but only where a `ScaledObject` scales it, since a request waits.
    pub(crate) async fn paused(
        &self,
        client: &Client,
        namespace: &str,
        workload: &Workload,
        routes: &[Arc<RouteSpec>],
    ) -> Option<String> {
        let known = routes.iter().filter_map(|route| self.by_route().get(&route.key).cloned());
        let known = known.filter(|target| target.scaled && target.found.as_ref() == Ok(workload));
        let known: Vec<Target> = known.collect();
        if known.is_empty() {
            return None;
        }
        match scaled_objects(client, namespace, scale::ANSWER).await {
            Ok(scaled) => pause(&scaled, workload),
            // Without an answer, the last known state stands.
            Err(_) => known.into_iter().find_map(|target| target.paused),
        }
    }

    /// Forgets routes that are gone.
    pub(crate) fn retain(&self, mut exists: impl FnMut(&RouteKey) -> bool) {
        self.by_route().retain(|key, _| exists(key));
    }

    /// Forgets the workload of a route: it does not exist any more.
    pub(crate) fn forget(&self, route: &RouteKey) {
        self.by_route().remove(route);
    }
}
