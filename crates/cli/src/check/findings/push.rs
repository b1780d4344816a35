//! Reports what keeps pods from registering (push): the Service, the certificate, the CAs of sidecars, and injected workloads.

use std::time::SystemTime;

use rouse_kube::survey::{
    BundleSurvey, BundleTrust, InjectedWorkload, InstalledGateway, RegistrationService, RegistrationSurvey,
    SidecarReach, SurveyError,
};

use super::super::report::{Check, Section};
use super::{Advice, access, certificates, listed, unknown};

/// The section about push. These are warnings: without push, pods are found by `EndpointSlice`s.
pub(super) fn section(gateway: &InstalledGateway, now: SystemTime, advice: &Advice) -> Section {
    let Some(seen) = &gateway.registration else {
        let file = if gateway.has_file { ", unless its configuration file says otherwise" } else { "" };
        let check = Check::pass("registrations of pods are off");
        let detail = format!("pods are found by EndpointSlices{file}; docs/inject.md turns push on");
        return Section::new("Push", vec![check.because(detail)]);
    };
    let mode = seen.mode.as_deref().unwrap_or("on");
    let mut checks = vec![Check::pass(format!("registrations of pods are accepted (push: {mode})"))];
    checks.push(service(seen, advice));
    match &seen.secret {
        Some(secret) => {
            checks.push(certificates::check(secret, now, certificates::REGISTRATIONS, advice));
        }
        None => checks.push(
            Check::not_checked("the certificate for registrations is valid")
                .because("the Deployment does not mount it from a Secret"),
        ),
    }
    checks.extend(reviews(seen, gateway, advice));
    checks.extend(listed(
        &seen.bundles,
        |seen| bundle(seen, advice),
        |more| Check::not_checked(format!("{more} more ConfigMaps with a CA")),
    ));
    checks.extend(workloads(seen, advice));
    Section::new("Push", checks)
}

fn service(seen: &RegistrationSurvey, advice: &Advice) -> Check {
    let title = format!("Service {} leads sidecars to every gateway", seen.service_name);
    let found = match &seen.service {
        Err(unseen) => return unknown(title, unseen, advice),
        Ok(found) => found,
    };
    let again = format!("install again with --register-secret, or push.enabled of the chart, {}", {
        let install = advice.install();
        if advice.there.gateway { install } else { format!("by\n{install}") }
    });
    let problem = match found {
        None => "there is no such Service, so sidecars find no gateway",
        Some(RegistrationService { headless: false, .. }) => {
            "it is not headless (clusterIP: None), so a pod registers with one gateway only"
        }
        Some(RegistrationService { selects: false, .. }) => {
            "its selector does not match the pods of the gateway"
        }
        Some(RegistrationService { port: false, .. }) => {
            "its port 9443 does not lead to the port of --register-listen, or the gateway listens on another port"
        }
        Some(_) => return Check::pass(title),
    };
    Check::warning(title).because(problem).next(again)
}

fn reviews(seen: &RegistrationSurvey, gateway: &InstalledGateway, advice: &Advice) -> Vec<Check> {
    match &seen.reviews {
        None => Vec::new(),
        Some(Ok(grants)) => {
            grants.iter().map(|grant| access::check(grant, Some(&gateway.account), advice)).collect()
        }
        Some(Err(SurveyError::Forbidden(words))) => {
            vec![Check::not_checked("the gateway may create tokenreviews").because(words).next(format!(
                "{} auth can-i create tokenreviews.authentication.k8s.io --as={}",
                advice.kubectl, gateway.account
            ))]
        }
        Some(Err(unseen)) => vec![unknown("the gateway may create tokenreviews", unseen, advice)],
    }
}

fn bundle(seen: &BundleSurvey, advice: &Advice) -> Check {
    let BundleSurvey { namespace, name, trust } = seen;
    let title = format!("sidecars in {namespace} trust the gateway (ConfigMap {name})");
    let next = format!(
        "put the CA of the certificate into the key ca.crt:\n\
         {} -n {namespace} create configmap {name} --from-file=ca.crt --dry-run=client -o yaml | {} apply -f -",
        advice.kubectl, advice.kubectl
    );
    match trust {
        Ok(BundleTrust::Trusted) => Check::pass(title),
        Ok(BundleTrust::Unknown) => Check::not_checked(title)
            .because("it exists, but the certificate for registrations could not be read"),
        Ok(BundleTrust::Missing) => Check::warning(title)
            .because(
                "there is no such ConfigMap with a key ca.crt, and new pods with the sidecar wait for it",
            )
            .next(next),
        Ok(BundleTrust::Refused(words)) => Check::warning(title)
            .because(format!("its certificates do not verify that of the gateway: {words}"))
            .next(next),
        Err(unseen) => unknown(title, unseen, advice),
    }
}

fn workloads(seen: &RegistrationSurvey, advice: &Advice) -> Vec<Check> {
    let all = match &seen.workloads {
        Ok(all) => all,
        Err(unseen) => return vec![unknown("injected workloads can be seen", unseen, advice)],
    };
    let wrong: Vec<&InjectedWorkload> =
        all.iter().filter(|workload| workload.sidecar != SidecarReach::Reached).collect();
    if wrong.is_empty() {
        let name = match all.len() {
            0 => "no workload has the sidecar yet".to_owned(),
            count => format!("requests reach the sidecars of injected workloads ({count})"),
        };
        return vec![Check::pass(name)];
    }
    listed(
        &wrong,
        |workload| reach(workload, advice),
        |more| Check::warning(format!("requests reach the sidecars of {more} more workloads")),
    )
}

fn reach(workload: &InjectedWorkload, advice: &Advice) -> Check {
    let InjectedWorkload { kind, namespace, name, sidecar } = workload;
    let lower = kind.to_lowercase();
    let (detail, service) = match sidecar {
        SidecarReach::Reached => (String::new(), None),
        SidecarReach::NoSidecar => (
            "it has the annotation rouse.dev/injected, but no container rouse-sidecar: it was changed afterwards".to_owned(),
            None,
        ),
        SidecarReach::NoService(service) => (format!("there is no Service {service}"), None),
        SidecarReach::Bypassed { service, port } => (
            format!(
                "no port of Service {service} has the target port of the sidecar, {port}: requests bypass its queue and drain, \
                 and its registrations are refused"
            ),
            Some(service),
        ),
    };
    let service = service.map(|service| format!(" service/{service}")).unwrap_or_default();
    let kubectl = &advice.kubectl;
    Check::warning(format!("requests reach the sidecar of {kind} {namespace}/{name}")).because(detail).next(format!(
        "inject it again, with its Service:\n\
         {kubectl} -n {namespace} get {lower}/{name}{service} -o yaml | rouse inject -f - | {kubectl} apply -f -"
    ))
}
