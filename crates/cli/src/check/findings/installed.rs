//! Reports problems of the installed gateway (Deployment, pods, Services, certificates) and of the routes.

use std::time::SystemTime;

use rouse_kube::objects::route::RouteKey;
use rouse_kube::survey::{GATEWAY, GatewayPod, GatewayService, InstalledGateway, RouteSurvey, SurveyError};

use super::super::report::{Check, Outcome, Section};
use super::{Advice, certificates, listed, unknown};

/// The section about the gateway's Deployment, pods and Services.
pub(super) fn gateway(
    seen: &Result<Option<InstalledGateway>, SurveyError>,
    now: SystemTime,
    advice: &Advice,
) -> Section {
    let name = format!("Gateway in {}", advice.gateway);
    let checks = match seen {
        Err(unseen) => vec![unknown(format!("Deployment {GATEWAY}"), unseen, advice)],
        Ok(None) => {
            let check = Check::warning("it is installed");
            let detail = format!("not installed yet: there is no Deployment {GATEWAY} in {}", advice.gateway);
            vec![check.because(detail).next(advice.install())]
        }
        Ok(Some(gateway)) => {
            let mut checks = vec![deployment(gateway, advice)];
            checks.extend(pods(gateway, advice));
            checks.extend(services(gateway, advice));
            let certificates = gateway.certificates.iter();
            checks
                .extend(certificates.map(|it| certificates::check(it, now, certificates::REQUESTS, advice)));
            checks
        }
    };
    Section::new(name, checks)
}

fn deployment(gateway: &InstalledGateway, advice: &Advice) -> Check {
    let InstalledGateway { wanted, available, .. } = *gateway;
    let name = format!("Deployment {GATEWAY} is available ({available} of {wanted})");
    let at = format!("{} -n {}", advice.kubectl, gateway.namespace);
    let said = gateway.stuck.clone().unwrap_or_default();
    match (wanted, available) {
        (0, _) => Check::failure(name)
            .because("it is scaled to 0, so requests are not answered")
            .next(format!("{at} scale deployment {GATEWAY} --replicas=2")),
        (_, 0) => Check::failure(name)
            .because(if said.is_empty() { "none of its pods is ready".to_owned() } else { said })
            .next(format!("{at} describe deployment {GATEWAY}")),
        (wanted, available) if available < wanted => {
            Check::warning(name).because(said).next(format!("{at} rollout status deployment {GATEWAY}"))
        }
        _ => Check::pass(name),
    }
}

fn pods(gateway: &InstalledGateway, advice: &Advice) -> Vec<Check> {
    let pods = match &gateway.pods {
        Ok(pods) => pods,
        Err(unseen) => return vec![unknown("its pods are ready", unseen, advice)],
    };
    let unready: Vec<&GatewayPod> = pods.iter().filter(|pod| pod.trouble.is_some()).collect();
    if unready.is_empty() && !pods.is_empty() {
        return vec![Check::pass(format!("its pods are ready ({})", pods.len()))];
    }
    // A pod that is not ready is only a warning while others serve.
    let bad = |name: String| if gateway.available == 0 { Check::failure(name) } else { Check::warning(name) };
    let at = format!("{} -n {}", advice.kubectl, gateway.namespace);
    listed(
        &unready,
        |pod| {
            let next = format!("{at} describe pod {name}\n{at} logs {name}", name = pod.name);
            bad(format!("pod {} is ready", pod.name))
                .because(pod.trouble.clone().unwrap_or_default())
                .next(next)
        },
        |more| bad(format!("{more} more pods are ready")).next(format!("{at} get pods")),
    )
}

fn services(gateway: &InstalledGateway, advice: &Advice) -> Vec<Check> {
    let services = match &gateway.services {
        Ok(services) => services,
        Err(unseen) => return vec![unknown("its Services have endpoints", unseen, advice)],
    };
    if services.is_empty() {
        let detail = "no Service selects its pods, so clients do not find them";
        return vec![Check::warning("a Service leads to it").because(detail).next(advice.install())];
    }
    let check = |GatewayService { name, ready }: &GatewayService| {
        let title = format!("Service {name} has ready endpoints ({ready})");
        let (kubectl, namespace) = (&advice.kubectl, &gateway.namespace);
        let next =
            format!("{kubectl} -n {namespace} get endpointslices -l kubernetes.io/service-name={name}");
        match ready {
            0 => Check::failure(title).because("requests to it are refused").next(next),
            _ => Check::pass(title),
        }
    };
    services.iter().map(check).collect()
}

/// The section about routes that do not serve. These are warnings: the gateway itself works.
pub(super) fn routes(seen: &Result<RouteSurvey, SurveyError>, advice: &Advice) -> Section {
    let seen = match seen {
        Ok(seen) => seen,
        Err(unseen) => return Section::new("Routes", vec![unknown("routes can be seen", unseen, advice)]),
    };
    let kubectl = &advice.kubectl;
    let describe = |route: &RouteKey| {
        format!(
            "{kubectl} -n {} describe {} {}",
            route.namespace,
            route.kind.name().to_lowercase(),
            route.name
        )
    };
    let mut checks = listed(
        &seen.problems,
        |problems| {
            let name = format!("{} {} serves", problems.route.kind.name(), problems.route);
            Check::warning(name).because(&problems.words).next(describe(&problems.route))
        },
        |more| {
            Check::warning(format!("{more} more routes serve")).because("the status of each has the reason")
        },
    );
    checks.extend(listed(
        &seen.contested,
        |contested| {
            let others: Vec<String> = contested.others.iter().map(ToString::to_string).collect();
            // The gateway's host settings are not known here; within one namespace they do not matter.
            let foreign = contested.others.iter().any(|other| other.namespace != contested.owner.namespace);
            let unless = if foreign {
                ", unless the gateway's --assigned-hosts or --host-overlap decides otherwise"
            } else {
                ""
            };
            let others = others.join(", ");
            let first = if foreign { "which claimed it first" } else { "as the older one" };
            let detail = format!("{} has it, {first}; {others} does not{unless}", contested.owner);
            let check = Check::warning(format!("{} is claimed once", contested.host)).because(detail);
            match contested.others.first() {
                Some(other) => check.next(describe(other)),
                None => check,
            }
        },
        |more| Check::warning(format!("{more} more hosts are claimed once")),
    ));
    if checks.iter().all(|check| check.result == Outcome::Pass) {
        checks.push(match seen.count {
            0 => Check::pass("there are no routes yet"),
            1 => Check::pass("the only route has no problem"),
            count => Check::pass(format!("none of the {count} routes has a problem")),
        });
    }
    Section::new("Routes", checks)
}
