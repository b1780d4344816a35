//! What a survey of the cluster saw → what is missing, and what to do about it. Sends no requests.

mod access;
mod installed;

use rouse_kube::survey::{KindSurvey, KubernetesVersion, Survey, SurveyError};

use super::args::NAMESPACE;
use super::report::{Check, Report, Section};

/// So many of a kind are listed one by one.
const LISTED: usize = 10;

/// What the advice needs to know of how we were asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Advice {
    /// `kubectl`, with the kubeconfig and the context that we use.
    pub(super) kubectl: String,
    /// The one namespace that the gateway watches.
    pub(super) namespace: Option<String>,
    /// Where the gateway is, or should be, installed.
    pub(super) gateway: String,
    /// What is there already, and must not be taken away by what we say.
    pub(super) there: There,
}

/// What another `rouse install` would change by accident.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct There {
    /// True if there is a gateway, or may be one that this user may not see.
    pub(super) gateway: bool,
    /// The image that it runs, if that is known.
    pub(super) image: Option<String>,
    /// Whether the cluster has the kinds that routes are, maybe from KEDA HTTP add-on.
    pub(super) kinds: bool,
}

impl Advice {
    /// How to install, or to put right what was installed.
    fn install(&self) -> String {
        self.install_with(!self.there.kinds)
    }

    /// The same, with or without the definitions of routes.
    fn install_with(&self, crds: bool) -> String {
        let mut install = "rouse install".to_owned();
        if self.there.gateway {
            // `rouse install` refuses the placeholder itself, if it is copied.
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
            // Flags that are not repeated are reset to their defaults: variables, certificates, the number of pods.
            format!(
                "with the flags it was installed with (--env, --tls-secret, --replicas and others):\n{install}"
            )
        } else {
            install
        }
    }
}

/// The kind without which there is nothing to serve.
const ROUTE: &str = "InterceptorRoute";
/// The group of the routes.
const ROUTES: &str = "http.keda.sh";

/// The sections of which nothing is known if the API server does not answer.
const LATER: [&str; 4] = ["Kinds", "Permissions", "Gateway", "Routes"];

/// Judges what was seen; `Err` says why the API server does not answer.
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
    Report::new(vec![
        Section::new("Cluster", vec![Check::pass(answers), version(&survey.version)]),
        Section::new("Kinds", survey.kinds.iter().map(|seen| kind(seen, survey, advice)).collect()),
        access::section(survey, advice),
        installed::gateway(&survey.gateway, advice),
        installed::routes(&survey.routes, advice),
    ])
}

/// The oldest Kubernetes for which the manifests are made.
const OLDEST: (u32, u32) = (1, 29);
const UPGRADE: &str = "upgrade the cluster to Kubernetes 1.29 or later";

/// `EndpointSlice`s are v1 from 1.21 on, and say whether a terminating pod still serves from 1.22 (always: 1.26). The
/// definitions of routes have rules, which are stable from 1.29 on.
fn version(version: &KubernetesVersion) -> Check {
    let name = format!("Kubernetes is new enough ({})", version.text);
    match version.number {
        None => {
            Check::warning(name).because("its version cannot be read; 1.29 or later is needed").next(UPGRADE)
        }
        Some(number) if number < (1, 21) => {
            Check::failure(name).because("discovery.k8s.io/v1 is there from 1.21 on").next(UPGRADE)
        }
        Some(number) if number < (1, 22) => Check::warning(name)
            .because("EndpointSlices do not say which terminating pods still serve: these get no requests")
            .next(UPGRADE),
        Some(number) if number < (1, 26) => Check::warning(name)
            .because("before 1.26 EndpointSlices may not say which terminating pods still serve")
            .next(UPGRADE),
        Some(number) if number < OLDEST => Check::warning(name)
            .because("before 1.29 it is not tried, and the rules in the definitions of routes are not stable")
            .next(UPGRADE),
        Some(_) => Check::pass(name),
    }
}

/// Whether any kind of route is there, in any version: ours would take the place of the add-on's, which its operator
/// writes to.
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
                .because("it has no status of its own, so errors of routes are reported nowhere")
                .next(crds(seen, advice))
        };
    }
    let others: Vec<&str> = served.iter().map(|served| &*served.version).collect();
    let have = match &*others {
        [] => "the cluster does not have it".to_owned(),
        others => {
            format!("the cluster has it as {}, and the gateway asks for {}", others.join(", "), seen.version)
        }
    };
    match (seen.name, others.is_empty()) {
        ("HTTPScaledObject", true) => {
            Check::pass(name).because(format!("{have}, and needs it only for KEDA's older routes"))
        }
        ("ScaledObject", true) => {
            Check::pass(name).because(format!("{have}: KEDA is not installed, or needed"))
        }
        ("HTTPScaledObject" | "ScaledObject", false) => {
            Check::warning(name).because(have).next("upgrade KEDA to a version that serves it")
        }
        (ROUTE, _) => {
            let next = crds(seen, advice);
            let next = if has_routes(survey) {
                format!("upgrade KEDA HTTP add-on to a version that serves it; or, where it is gone,\n{next}")
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

/// Something that could not be looked at.
fn unknown(name: impl Into<String>, unseen: &SurveyError, advice: &Advice) -> Check {
    match unseen {
        SurveyError::Forbidden(words) => Check::warning(name)
            .because(format!("not checked: {words}"))
            .next("check as a user who may see it, by --kubeconfig or --context"),
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
