//! Tests of the findings about Envoys.

use rouse_kube::client::permissions::PermissionRole;
use rouse_kube::survey::{InstalledXds, XdsService};

use super::*;

/// A control plane of Envoys that lacks nothing.
fn good() -> InstalledXds {
    let grant =
        |permission| PermissionCheck { permission, place: PermissionScope::Everywhere, denied: Vec::new() };
    InstalledXds {
        namespace: "rouse-system".to_owned(),
        account: "rouse-system/rouse-xds".parse().unwrap(),
        wanted: 2,
        available: 2,
        stuck: None,
        asks_clients: true,
        secret: Some(secret("rouse-xds-tls", good_certificate())),
        service: Ok(Some(XdsService { headless: true, selects: true })),
        reports_to: Some("https://rouse-controller.rouse-system.svc.cluster.local:9444".to_owned()),
        grants: Ok(PermissionRole::Xds.permissions().iter().map(grant).collect()),
    }
}

/// Installs it, and changes something.
fn install(survey: &mut Survey, change: impl FnOnce(&mut InstalledXds)) {
    let mut xds = good();
    change(&mut xds);
    survey.xds = Ok(Some(xds));
    let controller = survey.controller.as_mut().unwrap().as_mut().unwrap();
    controller.report_accounts = ["gateway", "xds"].map(|name| format!("rouse-system/rouse-{name}")).to_vec();
}

/// The one warning after `change`, and why.
#[track_caller]
fn warns(change: impl FnOnce(&mut InstalledXds), expected: &str, because: &str) {
    let (name, detail, next) = only(Outcome::Warning, |survey| install(survey, change));
    assert_eq!(name, expected, "{detail}");
    assert!(detail.contains(because), "{name}: {detail}");
    assert!(!next.is_empty(), "{name}");
}

#[test]
fn what_is_not_installed_has_no_section_and_what_lacks_nothing_passes() {
    let named = |survey: Survey| {
        let report = judge(&Ok(survey), &asked());
        report.sections().iter().any(|section| section.name == "Envoy")
    };
    assert!(!named(super::good()));
    let mut survey = super::good();
    install(&mut survey, |_| {});
    assert!(named(survey));
    assert_eq!(wrong(|survey| install(survey, |_| {})), []);
}

#[test]
fn each_fault_is_one_warning_with_its_next_step() {
    let load = "the load that passes Envoys reaches the controller";
    let leads = "Service rouse-xds leads Envoys to every replica";
    warns(|xds| xds.available = 0, "Deployment rouse-xds is available (0 of 2)", "none of its pods");
    warns(|xds| xds.wanted = 0, "Deployment rouse-xds is available (2 of 0)", "scaled to 0");
    warns(|xds| xds.service = Ok(None), leads, "no such Service");
    let service = |headless, selects| Ok(Some(XdsService { headless, selects }));
    warns(|xds| xds.service = service(false, true), leads, "not headless");
    warns(|xds| xds.service = service(true, false), leads, "selector");
    let asks = "Envoys prove who they are by a client certificate";
    warns(|xds| xds.asks_clients = false, asks, "--xds-client-ca is not set");
    warns(|xds| xds.reports_to = None, load, "--report-to of rouse-xds");
    let (name, detail, _) = only(Outcome::Warning, |survey| {
        install(survey, |_| {});
        survey.controller.as_mut().unwrap().as_mut().unwrap().report_accounts.clear();
    });
    assert_eq!(name, load);
    assert!(detail.contains("does not name rouse-system/rouse-xds"), "{detail}");
    let expires = CertificateSurvey { expires: Some(now() + days(29)), ..CertificateSurvey::default() };
    let certificate = "the certificate for Envoys is valid (Secret rouse-xds-tls)";
    warns(|xds| xds.secret = Some(secret("rouse-xds-tls", expires)), certificate, "expires in 29 days");
}

#[test]
fn a_missing_permission_of_its_account_is_a_warning() {
    let (name, _, next) = only(Outcome::Warning, |survey| {
        install(survey, |xds| {
            let denied = Denied { verb: "watch", reason: String::new() };
            xds.grants.as_mut().unwrap()[0].denied = vec![denied];
        });
    });
    assert!(name.starts_with("rouse-xds: ") && name.contains("endpointslices"), "{name}");
    assert!(!next.is_empty());
}
