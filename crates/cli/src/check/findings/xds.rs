//! Reports what keeps Envoys from their configuration, or the controller from the load that passes them.

use std::time::SystemTime;

use rouse_kube::survey::{
    InstalledController, InstalledXds, PermissionCheck, Survey, SurveyError, XDS, XdsService,
};

use super::super::report::{Check, Outcome, Section};
use super::{Advice, access, certificates, listed, unknown};

/// The section about Envoys; `None` if they are not served. These are warnings: requests to the gateways do not need it.
pub(super) fn section(survey: &Survey, advice: &Advice) -> Option<Section> {
    let checks = match &survey.xds {
        Err(unseen) => vec![unknown(format!("Deployment {XDS}"), unseen, advice)],
        Ok(None) => return None,
        Ok(Some(xds)) => {
            let controller = survey.controller.as_ref().ok().and_then(Option::as_ref);
            let mut checks = vec![deployment(xds, advice), service(xds, advice)];
            checks.extend(certificate(xds, survey.now, advice));
            checks.push(reports(xds, controller, advice));
            checks.extend(permissions(xds, advice));
            checks
        }
    };
    Some(Section::new("Envoy", checks))
}

fn deployment(xds: &InstalledXds, advice: &Advice) -> Check {
    let InstalledXds { wanted, available, .. } = *xds;
    let name = format!("Deployment {XDS} is available ({available} of {wanted})");
    let at = format!("{} -n {}", advice.kubectl, xds.namespace);
    let said = xds.stuck.clone().unwrap_or_default();
    match (wanted, available) {
        (0, _) => Check::warning(name)
            .because(
                "it is scaled to 0, so Envoys keep what they have, and send requests to pods that are gone",
            )
            .next(format!("{at} scale deployment {XDS} --replicas=2")),
        (_, 0) => Check::warning(name)
            .because(if said.is_empty() { "none of its pods is ready".to_owned() } else { said })
            .next(format!("{at} describe deployment {XDS}\n{at} logs deployment/{XDS}")),
        (wanted, available) if available < wanted => {
            Check::warning(name).because(said).next(format!("{at} rollout status deployment {XDS}"))
        }
        _ => Check::pass(name),
    }
}

fn service(xds: &InstalledXds, advice: &Advice) -> Check {
    let title = format!("Service {XDS} leads Envoys to every replica");
    let problem = match &xds.service {
        Err(unseen) => return unknown(title, unseen, advice),
        Ok(None) => "there is no such Service, so Envoys find no replica by it",
        Ok(Some(XdsService { headless: false, .. })) => {
            "it is not headless (clusterIP: None), so an Envoy does not see which replicas there are"
        }
        Ok(Some(XdsService { selects: false, .. })) => {
            "its selector does not match the pods of the Deployment"
        }
        Ok(Some(_)) => return Check::pass(title),
    };
    Check::warning(title).because(problem).next(again("with --xds", advice))
}

fn certificate(xds: &InstalledXds, now: SystemTime, advice: &Advice) -> [Check; 2] {
    const ASKS: &str = "Envoys prove who they are by a client certificate";
    let own = match &xds.secret {
        Some(secret) => certificates::check(secret, now, certificates::ENVOYS, advice),
        None => Check::not_checked("the certificate for Envoys is valid")
            .because("the Deployment does not mount it from a Secret"),
    };
    let asks = if xds.asks_clients {
        Check::pass(ASKS)
    } else {
        Check::warning(ASKS)
            .because("--xds-client-ca is not set: any client that reaches the port can read all routes and addresses, and report load")
            .next(again("with --xds-secret or --generate-keys", advice))
    };
    [own, asks]
}

/// Whether the load that passes Envoys reaches the controller.
fn reports(xds: &InstalledXds, controller: Option<&InstalledController>, advice: &Advice) -> Check {
    const TITLE: &str = "the load that passes Envoys reaches the controller";
    let Some(controller) = controller.filter(|controller| controller.reports.is_some()) else {
        return Check::pass("no controller takes the load that passes Envoys")
            .because("so Rouse scales nothing down; docs/envoy.md");
    };
    let Some(url) = &xds.reports_to else {
        return Check::warning(TITLE)
            .because(format!("--report-to of {XDS} is not set: workloads may be scaled down while Envoys send them requests"))
            .next(again("with --xds and --controller-secret", advice));
    };
    let own = format!("{}/{}", xds.account.namespace, xds.account.name);
    if controller.report_accounts.contains(&own) {
        return Check::pass(format!("{TITLE} ({url})"));
    }
    Check::warning(TITLE)
        .because(format!(
            "--report-accounts of the controller does not name {own}, so its reports are refused"
        ))
        .next(again("with --xds and --controller-secret", advice))
}

/// One check if nothing is missing, else one for each missing permission.
fn permissions(xds: &InstalledXds, advice: &Advice) -> Vec<Check> {
    let title = format!("{XDS} has its permissions");
    let grants = match &xds.grants {
        Ok(grants) => grants,
        Err(SurveyError::Forbidden(words)) => {
            let next = format!("{} auth can-i --list --as={}", advice.kubectl, xds.account);
            return vec![Check::not_checked(title).because(words).next(next)];
        }
        Err(unseen) => return vec![unknown(title, unseen, advice)],
    };
    let denied: Vec<&PermissionCheck> = grants.iter().filter(|grant| !grant.denied.is_empty()).collect();
    if denied.is_empty() {
        return vec![Check::pass(format!("{title} ({})", grants.len()))];
    }
    let check = |grant: &&PermissionCheck| {
        let check = access::check(grant, Some(&xds.account), advice);
        // The gateways work without it.
        Check { name: format!("{XDS}: {}", check.name), result: Outcome::Warning, ..check }
    };
    listed(&denied, check, |more| Check::warning(format!("{XDS}: {more} more permissions")))
}

/// Advice to install again with something.
fn again(with: &str, advice: &Advice) -> String {
    let install = advice.install();
    let install = if advice.there.gateway { install } else { format!("by\n{install}") };
    format!("install again {with} {install}")
}
