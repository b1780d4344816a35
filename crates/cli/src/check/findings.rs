//! Turns a survey of the cluster into a report of problems, each with its next step. Sends no requests.

mod access;
mod certificates;
mod installed;
mod push;
mod scaling;
mod xds;

use rouse_kube::survey::{KindSurvey, KubernetesVersion, Survey, SurveyError};

use super::args::NAMESPACE;
use super::report::{Check, Report, Section};

/// The most items that are listed one by one.
const LISTED: usize = 10;

/// The facts that next steps depend on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Advice {
    /// `kubectl`, with the kubeconfig and the context that we use.
    pub(super) kubectl: String,
    /// The one namespace that the gateway watches.
    pub(super) namespace: Option<String>,
    /// The namespace where the gateway is, or should be, installed.
    pub(super) gateway: String,
    /// What is installed already, and must survive the next step.
    pub(super) there: There,
}

/// The installed objects that another `rouse install` would change by accident.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct There {
    /// True if there is a gateway, or may be one that this user may not see.
    pub(super) gateway: bool,
    /// The image that it runs, if that is known.
    pub(super) image: Option<String>,
    /// True if the cluster has the CRDs of routes, possibly from KEDA HTTP add-on.
    pub(super) kinds: bool,
}

impl Advice {
    /// The command that installs, or repairs an installation.
    fn install(&self) -> String {
        self.install_with(!self.there.kinds)
    }

    /// The command that installs, with or without the CRDs of routes.
    fn install_with(&self, crds: bool) -> String {
        let mut install = "rouse install".to_owned();
        if self.there.gateway {
            // `rouse install` refuses a copied placeholder.
            install = format!("{install} --image {}", self.there.image.as_deref().unwrap_or("IMAGE"));
        }
        if self.gateway != NAMESPACE {
            install = format!("{install} --namespace {}", self.gateway);
        }
        if let Some(namespace) = &self.namespace {
            install = format!("{install} --watch-namespace {namespace}");
        }
        if !crds {
            install = format!("{install} --no-crds");
        }
        let install = format!("{install} | {} apply --server-side -f -", self.kubectl);
        if self.there.gateway {
            // A flag that is not repeated goes back to its default: variables, certificates, the number of pods.
            format!(
                "with the flags it was installed with (--env, --tls-secret, --replicas and others):\n{install}"
            )
        } else {
            install
        }
    }
}

/// The kind that the gateway requires.
const ROUTE: &str = "InterceptorRoute";
/// The group of the routes.
const ROUTES: &str = "http.keda.sh";

/// The sections that are not checked if the API server does not answer.
const LATER: [&str; 4] = ["Kinds", "Permissions", "Gateway", "Routes"];

/// Builds the report; an `Err` is the reason why the API server does not answer.
pub(super) fn judge(seen: &Result<Survey, String>, advice: &Advice) -> Report {
    let answers = "the API server answers";
    let survey = match seen {
        Ok(survey) => survey,
        Err(words) => {
            let next = format!("{} cluster-info", advice.kubectl);
            let mut sections =
                vec![Section::new("Cluster", vec![Check::failure(answers).because(words).next(next)])];
            let silent =
                |name| Section::new(name, vec![Check::not_checked("the API server does not answer")]);
            sections.extend(LATER.map(silent));
            return Report::new(sections);
        }
    };
    let there = There {
        gateway: !matches!(survey.gateway, Ok(None)),
        kinds: has_routes(survey),
        image: advice.there.image.clone(),
    };
    let advice = &Advice { namespace: survey.namespace.clone(), there, ..advice.clone() };
    let mut sections = vec![
        Section::new("Cluster", vec![Check::pass(answers), version(&survey.version)]),
        Section::new("Kinds", survey.kinds.iter().map(|seen| kind(seen, survey, advice)).collect()),
        access::section(survey, advice),
        installed::gateway(&survey.gateway, survey.now, advice),
    ];
    if let Ok(Some(gateway)) = &survey.gateway {
        sections.push(push::section(gateway, survey.now, advice));
        sections.push(scaling::section(survey, gateway, advice));
        sections.extend(xds::section(survey, advice));
    }
    sections.push(installed::routes(&survey.routes, advice));
    Report::new(sections)
}

/// The oldest Kubernetes for which the manifests are made.
const OLDEST: (u32, u32) = (1, 29);
const UPGRADE: &str = "upgrade the cluster to Kubernetes 1.29 or later";

/// `EndpointSlice`s are v1 since 1.21, and have the condition `serving` since 1.22 (always since 1.26). The CRDs of routes use
/// validation rules, which are stable since 1.29.
fn version(version: &KubernetesVersion) -> Check {
    let name = format!("Kubernetes is new enough ({})", version.text);
    match version.number {
        None => {
            Check::warning(name).because("its version cannot be read; 1.29 or later is needed").next(UPGRADE)
        }
        Some(number) if number < (1, 21) => {
            Check::failure(name).because("discovery.k8s.io/v1 exists since 1.21").next(UPGRADE)
        }
        Some(number) if number < (1, 22) => Check::warning(name)
            .because("EndpointSlices do not say which terminating pods still serve: these get no requests")
            .next(UPGRADE),
        Some(number) if number < (1, 26) => Check::warning(name)
            .because("before 1.26 EndpointSlices may not say which terminating pods still serve")
            .next(UPGRADE),
        Some(number) if number < OLDEST => Check::warning(name)
            .because("versions before 1.29 are not tested, and the validation rules of the CRDs are not stable there")
            .next(UPGRADE),
        Some(_) => Check::pass(name),
    }
}

/// True if the cluster has a CRD of routes, in any version: ours would replace the add-on's, which its operator uses.
fn has_routes(survey: &Survey) -> bool {
    let served = |kind: &KindSurvey| kind.served.as_ref().is_ok_and(|served| !served.is_empty());
    survey.kinds.iter().any(|kind| kind.group == ROUTES && served(kind))
}

fn kind(seen: &KindSurvey, survey: &Survey, advice: &Advice) -> Check {
    let name = format!("{} {}/{}", seen.name, seen.group, seen.version);
    let served = match &seen.served {
        Ok(served) => served,
        Err(unseen) => return unknown(name, unseen, advice),
    };
    if let Some(ours) = served.iter().find(|served| served.version == seen.version) {
        let reports_status = seen.group == ROUTES;
        return if ours.status || !reports_status {
            Check::pass(name)
        } else {
            Check::warning(name)
                .because("its CRD has no status subresource, so errors of routes are not reported")
                .next(crds(seen, advice))
        };
    }
    let others: Vec<&str> = served.iter().map(|served| &*served.version).collect();
    let have = match &*others {
        [] => "the cluster does not have it".to_owned(),
        others => {
            format!("the cluster has it as {}, but the gateway needs {}", others.join(", "), seen.version)
        }
    };
    match (seen.name, others.is_empty()) {
        ("HTTPScaledObject", true) => {
            Check::pass(name).because(format!("{have}, and needs it only for KEDA's older routes"))
        }
        ("ScaledObject", true) => {
            Check::pass(name).because(format!("{have}: KEDA is not installed, and not required"))
        }
        ("HTTPScaledObject" | "ScaledObject", false) => {
            Check::warning(name).because(have).next("upgrade KEDA to a version that serves it")
        }
        (ROUTE, _) => {
            let next = crds(seen, advice);
            let next = if has_routes(survey) {
                format!(
                    "upgrade KEDA HTTP add-on to a version that serves it; or, if it is uninstalled,\n{next}"
                )
            } else {
                next
            };
            Check::failure(name).because(have).next(next)
        }
        _ => Check::failure(name).because(have).next(UPGRADE),
    }
}

fn crds(seen: &KindSurvey, advice: &Advice) -> String {
    let install = advice.install_with(true);
    format!("{install}\n{} get crd {}.{}", advice.kubectl, seen.plural, seen.group)
}

/// The check for something that could not be read.
fn unknown(name: impl Into<String>, unseen: &SurveyError, advice: &Advice) -> Check {
    match unseen {
        SurveyError::Forbidden(words) => Check::warning(name)
            .because(format!("not checked: {words}"))
            .next("check as a user who may read it, with --kubeconfig or --context"),
        SurveyError::Failed(words) => {
            Check::failure(name).because(words).next(format!("{} get --raw /readyz?verbose", advice.kubectl))
        }
    }
}

/// The first [`LISTED`] of `all`, and how many more there are.
fn listed<T>(all: &[T], each: impl Fn(&T) -> Check, more: impl FnOnce(usize) -> Check) -> Vec<Check> {
    let mut checks: Vec<Check> = all.iter().take(LISTED).map(each).collect();
    if all.len() > LISTED {
        checks.push(more(all.len() - LISTED));
    }
    checks
}

#[cfg(test)]
mod tests;
