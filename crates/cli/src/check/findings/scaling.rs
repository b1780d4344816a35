//! Reports what keeps Rouse from scaling workloads: the controller, its certificate, its leader, the reports of gateways, and
//! the routes that are not scaled.

use std::time::{Duration, SystemTime};

use rouse_config::duration::HumanDuration;
use rouse_kube::survey::{
    CONTROLLER, InstalledController, InstalledGateway, Leader, PermissionCheck, ReportService, ReportSurvey,
    RouteScaling, RouteSurvey, ScalingStatus, Survey, SurveyError,
};

use super::super::report::{Check, Outcome, Section};
use super::{Advice, access, certificates, listed, unknown};

/// The section about scaling. These are warnings: requests are served, and workloads are woken, without the controller.
pub(super) fn section(survey: &Survey, gateway: &InstalledGateway, advice: &Advice) -> Section {
    let nothing = RouteSurvey::default();
    let routes = &*survey.routes.as_ref().unwrap_or(&nothing).scaling;
    let checks = match &survey.controller {
        Err(unseen) => vec![unknown(format!("Deployment {CONTROLLER}"), unseen, advice)],
        Ok(None) => vec![without_controller(routes, advice)],
        Ok(Some(controller)) => {
            let asked = controller.scales_by_default || !routes.is_empty();
            let mut checks = vec![deployment(controller, advice)];
            checks.extend(reports(controller, gateway, asked, survey.now, advice));
            checks.push(leader(controller, advice));
            checks.extend(permissions(controller, advice));
            checks.extend(scaled(routes, advice));
            checks
        }
    };
    Section::new("Scaling", checks)
}

fn without_controller(routes: &[RouteScaling], advice: &Advice) -> Check {
    let asking = routes.iter().filter(|route| route.status == ScalingStatus::Unknown).count();
    match asking {
        0 => Check::pass("the controller is not installed, and no route asks for scaling")
            .because("Rouse wakes workloads and does not scale them down; docs/controller.md"),
        count => Check::warning(format!("a controller scales the routes that ask for it ({count})"))
            .because(format!("there is no Deployment {CONTROLLER} in {}", advice.gateway))
            .next(again("without --no-controller, and with --controller-secret", advice)),
    }
}

fn deployment(controller: &InstalledController, advice: &Advice) -> Check {
    let InstalledController { wanted, available, .. } = *controller;
    let name = format!("Deployment {CONTROLLER} is available ({available} of {wanted})");
    let at = format!("{} -n {}", advice.kubectl, controller.namespace);
    let said = controller.stuck.clone().unwrap_or_default();
    match (wanted, available) {
        (0, _) => Check::warning(name)
            .because("it is scaled to 0, so nothing is scaled, and KEDA gets no answer")
            .next(format!("{at} scale deployment {CONTROLLER} --replicas=2")),
        (_, 0) => Check::warning(name)
            .because(if said.is_empty() { "none of its pods is ready".to_owned() } else { said })
            .next(format!("{at} describe deployment {CONTROLLER}\n{at} logs deployment/{CONTROLLER}")),
        (wanted, available) if available < wanted => {
            Check::warning(name).because(said).next(format!("{at} rollout status deployment {CONTROLLER}"))
        }
        _ => Check::pass(name),
    }
}

/// Whether gateways can report their load. `asked`: routes are to be scaled.
fn reports(
    controller: &InstalledController,
    gateway: &InstalledGateway,
    asked: bool,
    now: SystemTime,
    advice: &Advice,
) -> Vec<Check> {
    const TITLE: &str = "gateways report their load to the controller";
    let Some(seen) = &controller.reports else {
        let lost = "the controller has no certificate (--report-listen), so it scales nothing down, and KEDA gets no answer";
        return vec![if asked {
            Check::warning(TITLE).because(lost).next(again(
                "with --generate-keys or --controller-secret, or controller.secretName of the chart,",
                advice,
            ))
        } else {
            Check::pass("no route asks for scaling, and gateways report no load")
                .because(format!("{lost}; docs/controller.md"))
        }];
    };
    let told = match &gateway.reports_to {
        Some(url) => Check::pass(format!("{TITLE} ({url})")),
        None if gateway.has_file => Check::not_checked(TITLE)
            .because("--report-to is not set, unless the gateway's configuration file sets it"),
        None => Check::warning(TITLE)
            .because(
                "--report-to of the gateways is not set, so nothing is scaled down, and KEDA gets no answer",
            )
            .next(again("with --controller-secret, or controller.secretName of the chart,", advice)),
    };
    let mut checks = vec![told, service(seen, advice)];
    checks.push(match &seen.secret {
        Some(secret) => certificates::check(secret, now, certificates::REPORTS, advice),
        None => Check::not_checked("the certificate for load reports is valid")
            .because("the Deployment does not mount it from a Secret"),
    });
    checks
}

fn service(seen: &ReportSurvey, advice: &Advice) -> Check {
    let title = format!("Service {CONTROLLER} leads gateways to every controller");
    let found = match &seen.service {
        Err(unseen) => return unknown(title, unseen, advice),
        Ok(found) => found,
    };
    let problem = match found {
        None => "there is no such Service, so gateways find no controller",
        Some(ReportService { headless: false, .. }) => {
            "it is not headless (clusterIP: None), so a gateway reports to one controller only"
        }
        Some(ReportService { unready: false, .. }) => {
            "it lists only pods that are ready (publishNotReadyAddresses: false), and a controller gets ready by reports"
        }
        Some(ReportService { selects: false, .. }) => {
            "its selector does not match the pods of the controller"
        }
        Some(ReportService { port: false, .. }) => {
            "its port 9444 does not lead to the port of --report-listen"
        }
        Some(_) => return Check::pass(title),
    };
    Check::warning(title)
        .because(problem)
        .next(again("with --controller-secret, or controller.secretName of the chart,", advice))
}

fn leader(controller: &InstalledController, advice: &Advice) -> Check {
    const TITLE: &str = "a controller leads";
    let get = format!("{} -n {} get lease {CONTROLLER} -o yaml", advice.kubectl, controller.namespace);
    match &controller.leader {
        Ok(Leader::Holds(holder)) => Check::pass(format!("{TITLE} ({holder})")),
        Ok(Leader::Stopped { holder, since }) => {
            let since = HumanDuration::from(Duration::from_secs(since.as_secs()));
            let detail = format!(
                "{holder} has not renewed the Lease {CONTROLLER} for {since}, and no other one has taken it: nothing is scaled"
            );
            Check::warning(TITLE).because(detail).next(get)
        }
        Ok(Leader::Vacant) => {
            let detail = format!("no controller holds the Lease {CONTROLLER}: nothing is scaled");
            Check::warning(TITLE).because(detail).next(get)
        }
        Err(SurveyError::Forbidden(words)) => Check::not_checked(TITLE).because(words).next(get),
        Err(unseen) => unknown(TITLE, unseen, advice),
    }
}

/// One check if nothing is missing, else one for each missing permission.
fn permissions(controller: &InstalledController, advice: &Advice) -> Vec<Check> {
    let account = &controller.account;
    let grants = match &controller.grants {
        Ok(grants) => grants,
        Err(SurveyError::Forbidden(words)) => {
            return vec![
                Check::not_checked("the controller has its permissions")
                    .because(words)
                    .next(format!("{} auth can-i --list --as={account}", advice.kubectl)),
            ];
        }
        Err(unseen) => return vec![unknown("the controller has its permissions", unseen, advice)],
    };
    let denied: Vec<&PermissionCheck> = grants.iter().filter(|grant| !grant.denied.is_empty()).collect();
    if denied.is_empty() {
        return vec![Check::pass(format!("the controller has its permissions ({})", grants.len()))];
    }
    let check = |grant: &&PermissionCheck| {
        let check = access::check(grant, Some(account), advice);
        // The gateway works without the controller.
        Check { name: format!("controller: {}", check.name), result: Outcome::Warning, ..check }
    };
    listed(&denied, check, |more| Check::warning(format!("controller: {more} more permissions")))
}

/// What the controller says about routes.
fn scaled(routes: &[RouteScaling], advice: &Advice) -> Vec<Check> {
    let count = |status: &ScalingStatus| routes.iter().filter(|route| route.status == *status).count();
    let (scaled, owned) = (count(&ScalingStatus::Scaled), count(&ScalingStatus::Owned));
    let wrong: Vec<&RouteScaling> = routes
        .iter()
        .filter(|route| !matches!(route.status, ScalingStatus::Scaled | ScalingStatus::Owned))
        .collect();
    let mut checks = Vec::new();
    if scaled + owned > 0 || wrong.is_empty() {
        let owned = match owned {
            0 => String::new(),
            owned => format!("; {owned} are left to an HPA or a ScaledObject"),
        };
        checks.push(Check::pass(match scaled {
            0 => format!("no route is scaled by Rouse{owned}"),
            scaled => format!("the workloads of routes are scaled ({scaled}{owned})"),
        }));
    }
    checks.extend(listed(
        &wrong,
        |route| not_scaled(route, advice),
        |more| Check::warning(format!("{more} more routes are scaled")),
    ));
    checks
}

fn not_scaled(route: &RouteScaling, advice: &Advice) -> Check {
    let RouteScaling { route, status } = route;
    let name = format!("{} {route} is scaled", route.kind.name());
    let (namespace, kind) = (&route.namespace, route.kind.name().to_lowercase());
    let describe = format!("{} -n {namespace} describe {kind} {}", advice.kubectl, route.name);
    match status {
        ScalingStatus::NotScaled(words) => Check::warning(name).because(words).next(describe),
        _ => Check::not_checked(name)
            .because("the controller has not said anything about it yet")
            .next(describe),
    }
}

/// Advice to install again with something.
fn again(with: &str, advice: &Advice) -> String {
    let install = advice.install();
    let install = if advice.there.gateway { install } else { format!("by\n{install}") };
    format!("install again {with} {install}")
}
