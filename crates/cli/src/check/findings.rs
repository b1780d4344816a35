//! What was seen of a cluster → what is missing in it, and what to do about it. Asks nobody.

mod access;
mod installed;

use rouse_kube::survey::{KindSeen, Survey, Unseen, Version};

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
}

impl Advice {
    /// How to install, or to put right what was installed.
    fn install(&self) -> String {
        let mut install = "rouse install".to_owned();
        if self.gateway != NAMESPACE {
            install = format!("{install} --namespace {}", self.gateway);
        }
        if let Some(namespace) = &self.namespace {
            install = format!("{install} --watch-namespace {namespace}");
        }
        format!("{install} | {} apply -f -", self.kubectl)
    }
}

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
    let advice = &Advice { namespace: survey.namespace.clone(), ..advice.clone() };
    Report::new(vec![
        Section::new("Cluster", vec![Check::pass(answers), version(&survey.version)]),
        Section::new("Kinds", survey.kinds.iter().map(|seen| kind(seen, advice)).collect()),
        access::section(survey, advice),
        installed::gateway(&survey.gateway, advice),
        installed::routes(&survey.routes, advice),
    ])
}

/// `EndpointSlice`s are v1 from 1.21 on, and say whether a terminating pod still serves from 1.22 (always: 1.26).
fn version(version: &Version) -> Check {
    let name = format!("Kubernetes is new enough ({})", version.text);
    let next = "upgrade the cluster to Kubernetes 1.26 or later";
    match version.number {
        None => Check::warning(name).because("its version cannot be read; 1.26 or later is needed"),
        Some(number) if number < (1, 21) => {
            Check::failure(name).because("discovery.k8s.io/v1 is there from 1.21 on").next(next)
        }
        Some(number) if number < (1, 22) => Check::warning(name)
            .because("EndpointSlices do not say which terminating pods still serve: these get no requests")
            .next(next),
        Some(number) if number < (1, 26) => Check::warning(name)
            .because("before 1.26 EndpointSlices may not say which terminating pods still serve")
            .next(next),
        Some(_) => Check::pass(name),
    }
}

fn kind(seen: &KindSeen, advice: &Advice) -> Check {
    let name = format!("{} {}/{}", seen.name, seen.group, seen.version);
    let served = match &seen.served {
        Ok(served) => served,
        Err(unseen) => return unknown(name, unseen, advice),
    };
    if let Some(ours) = served.iter().find(|served| served.version == seen.version) {
        let told = seen.group == "http.keda.sh";
        return if ours.status || !told {
            Check::pass(name)
        } else {
            Check::warning(name)
                .because("it has no status of its own, so nobody is told what is wrong with a route")
                .next(crds(advice))
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
        ("InterceptorRoute", _) => Check::failure(name).because(have).next(crds(advice)),
        _ => Check::failure(name).because(have).next("upgrade the cluster to Kubernetes 1.26 or later"),
    }
}

fn crds(advice: &Advice) -> String {
    format!("{}\n{} get crd interceptorroutes.http.keda.sh", advice.install(), advice.kubectl)
}

/// Something that could not be looked at.
fn unknown(name: impl Into<String>, unseen: &Unseen, advice: &Advice) -> Check {
    match unseen {
        Unseen::Forbidden(words) => Check::warning(name)
            .because(format!("not checked: {words}"))
            .next("check as somebody who may see it, by --kubeconfig or --context"),
        Unseen::Failed(words) => {
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
