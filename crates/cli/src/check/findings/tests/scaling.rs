//! Tests of the findings about scaling.

use rouse_kube::client::permissions::PermissionRole;
use rouse_kube::survey::{
    InstalledController, Leader, ReportService, ReportSurvey, RouteScaling, ScalingStatus,
};

use super::*;

/// A controller that lacks nothing.
pub(super) fn good() -> InstalledController {
    let grant =
        |permission| PermissionCheck { permission, place: PermissionScope::Everywhere, denied: Vec::new() };
    let service = ReportService { headless: true, unready: true, port: true, selects: true };
    InstalledController {
        namespace: "rouse-system".to_owned(),
        account: "rouse-system/rouse-controller".parse().unwrap(),
        wanted: 2,
        available: 2,
        stuck: None,
        scales_by_default: false,
        report_accounts: Vec::new(),
        reports: Some(ReportSurvey {
            service: Ok(Some(service)),
            secret: Some(secret("rouse-controller-tls", good_certificate())),
        }),
        leader: Ok(Leader::Holds("rouse-controller-1_7".to_owned())),
        grants: Ok(PermissionRole::Controller.permissions().iter().map(grant).collect()),
    }
}

fn controller(survey: &mut Survey) -> &mut InstalledController {
    survey.controller.as_mut().unwrap().as_mut().unwrap()
}

fn reports(survey: &mut Survey) -> &mut ReportSurvey {
    controller(survey).reports.as_mut().unwrap()
}

fn says(survey: &mut Survey, all: &[(&str, ScalingStatus)]) {
    let scaling = |(name, status): &(&str, ScalingStatus)| RouteScaling {
        route: RouteKey { namespace: "shop".into(), name: (*name).into(), kind: RouteKind::InterceptorRoute },
        status: status.clone(),
    };
    survey.routes.as_mut().unwrap().scaling = all.iter().map(scaling).collect();
}

/// The checks of the section about scaling after `change`, as lines.
fn section(change: impl FnOnce(&mut Survey)) -> Vec<String> {
    let mut survey = super::good();
    change(&mut survey);
    let report = judge(&Ok(survey), &asked());
    let scaling = report.sections().iter().find(|section| section.name == "Scaling").unwrap();
    scaling.checks.iter().map(|check| format!("{:?} {}", check.result, check.name)).collect()
}

#[test]
fn a_controller_that_lacks_nothing_is_said_to_lead_with_what_it_scales() {
    let said = section(|survey| {
        says(survey, &[("a", ScalingStatus::Scaled), ("b", ScalingStatus::Owned)]);
    });
    let permissions = PermissionRole::Controller.permissions().len();
    let expected = [
        "Pass Deployment rouse-controller is available (2 of 2)".to_owned(),
        "Pass gateways report their load to the controller (https://rouse-controller.rouse-system.svc.cluster.local:9444)".to_owned(),
        "Pass Service rouse-controller leads gateways to every controller".to_owned(),
        "Pass the certificate for load reports is valid (Secret rouse-controller-tls)".to_owned(),
        "Pass a controller leads (rouse-controller-1_7)".to_owned(),
        format!("Pass the controller has its permissions ({permissions})"),
        "Pass the workloads of routes are scaled (1; 1 are left to an HPA or a ScaledObject)".to_owned(),
    ];
    assert_eq!(said, expected);
    assert_eq!(section(|_| {})[6], "Pass no route is scaled by Rouse");
}

#[test]
fn without_a_controller_only_routes_that_ask_for_it_are_a_warning() {
    let none = section(|survey| survey.controller = Ok(None));
    assert_eq!(none, ["Pass the controller is not installed, and no route asks for scaling"]);
    let (name, _, next) = only(Outcome::Warning, |survey| {
        survey.controller = Ok(None);
        says(survey, &[("a", ScalingStatus::Unknown)]);
    });
    assert_eq!(name, "a controller scales the routes that ask for it (1)");
    assert!(next.contains("without --no-controller") && next.contains(IMAGE), "{next}");
    // The gateway would not be told either.
    assert!(wrong(|survey| survey.gateway = Ok(None)).iter().all(|check| !check.name.contains("controller")));
}

#[test]
fn a_controller_without_a_certificate_is_a_warning_if_something_is_to_be_scaled() {
    let blind = |survey: &mut Survey| {
        controller(survey).reports = None;
        gateway(survey).reports_to = None;
    };
    assert_eq!(wrong(blind), []);
    assert_eq!(section(blind)[1], "Pass no route asks for scaling, and gateways report no load");
    let default_on = |survey: &mut Survey| controller(survey).scales_by_default = true;
    let route = |survey: &mut Survey| says(survey, &[("a", ScalingStatus::Scaled)]);
    for ask in [&default_on as &dyn Fn(&mut Survey), &route] {
        let (name, detail, next) = only(Outcome::Warning, |survey| {
            blind(survey);
            ask(survey);
        });
        assert_eq!(name, "gateways report their load to the controller");
        assert!(detail.contains("no certificate") && detail.contains("scales nothing down"), "{detail}");
        assert!(next.contains("--generate-keys") && next.contains("rouse install"), "{next}");
    }
}

type ReportServiceChange = fn(&mut ReportService);

#[test]
fn what_keeps_reports_from_arriving_is_a_warning_with_its_next_step() {
    let (name, detail, next) = only(Outcome::Warning, |survey| gateway(survey).reports_to = None);
    assert_eq!(name, "gateways report their load to the controller");
    assert!(detail.contains("--report-to") && next.contains("--controller-secret"), "{detail} {next}");
    let (name, ..) = only(Outcome::NotChecked, |survey| {
        gateway(survey).reports_to = None;
        gateway(survey).has_file = true;
    });
    assert_eq!(name, "gateways report their load to the controller");
    let changes: [(ReportServiceChange, &str); 4] = [
        (|it| it.headless = false, "not headless"),
        (|it| it.unready = false, "publishNotReadyAddresses"),
        (|it| it.selects = false, "selector"),
        (|it| it.port = false, "port 9444"),
    ];
    for (change, expected) in changes {
        let (name, detail, _) = only(Outcome::Warning, |survey| {
            change(reports(survey).service.as_mut().unwrap().as_mut().unwrap());
        });
        assert_eq!(name, "Service rouse-controller leads gateways to every controller");
        assert!(detail.contains(expected), "{detail}");
    }
    let (_, detail, _) = only(Outcome::Warning, |survey| reports(survey).service = Ok(None));
    assert!(detail.contains("no such Service"), "{detail}");
    let soon = CertificateSurvey { expires: Some(now() + days(3)), ..good_certificate() };
    let (name, detail, _) = only(Outcome::Warning, |survey| reports(survey).secret = Some(secret("c", soon)));
    assert_eq!(name, "the certificate for load reports is valid (Secret c)");
    assert!(detail.contains("it expires in 3 days: then gateways do not report their load"), "{detail}");
    let (_, detail, _) = only(Outcome::Failure, |survey| {
        let fault = CertificateSurvey { fault: Some("tls.key: bad".to_owned()), ..good_certificate() };
        reports(survey).secret = Some(secret("c", fault));
    });
    assert!(detail.contains("controllers that start now"), "{detail}");
}

#[test]
fn a_deployment_or_a_leader_that_is_missing_is_a_warning_and_no_failure() {
    let (_, detail, _) = only(Outcome::Warning, |survey| controller(survey).wanted = 0);
    assert!(detail.contains("scaled to 0"), "{detail}");
    let (_, detail, next) = only(Outcome::Warning, |survey| {
        controller(survey).available = 0;
        controller(survey).stuck = Some("quota".to_owned());
    });
    assert!(detail == "quota" && next.contains("logs deployment/rouse-controller"), "{detail} {next}");
    only(Outcome::Warning, |survey| controller(survey).available = 1);
    let (_, detail, _) = only(Outcome::Warning, |survey| controller(survey).leader = Ok(Leader::Vacant));
    assert!(detail.contains("no controller holds the Lease"), "{detail}");
    let (_, detail, next) = only(Outcome::Warning, |survey| {
        let since = Duration::from_millis(61_200);
        controller(survey).leader = Ok(Leader::Stopped { holder: "a".to_owned(), since });
    });
    assert!(detail.contains("a has not renewed the Lease rouse-controller for 61s"), "{detail}");
    assert!(next.contains("get lease rouse-controller"), "{next}");
    only(Outcome::NotChecked, |survey| {
        controller(survey).leader = Err(SurveyError::Forbidden("no".to_owned()));
    });
}

#[test]
fn a_permission_that_the_controller_lacks_is_a_warning_with_its_rule() {
    let (name, detail, next) = only(Outcome::Warning, |survey| {
        let grants = controller(survey).grants.as_mut().unwrap();
        let scale = grants.iter_mut().find(|grant| grant.permission.resource == "deployments/scale").unwrap();
        scale.denied.push(Denied { verb: "patch", reason: String::new() });
    });
    assert_eq!(name, "controller: patch deployments/scale.apps in all namespaces");
    assert!(detail.contains("may not patch"), "{detail}");
    assert!(next.contains("resources: [\"deployments/scale\"]"), "{next}");
}

#[test]
fn routes_that_are_not_scaled_are_told_with_the_words_of_the_controller() {
    let (name, detail, next) = only(Outcome::Warning, |survey| {
        let words = "deployment cart: a gateway is silent".to_owned();
        says(survey, &[("a", ScalingStatus::Scaled), ("cart", ScalingStatus::NotScaled(words))]);
    });
    assert_eq!(name, "InterceptorRoute shop/cart is scaled");
    assert_eq!(detail, "deployment cart: a gateway is silent");
    assert_eq!(next, "kubectl -n shop describe interceptorroute cart");
    let (_, detail, _) =
        only(Outcome::NotChecked, |survey| says(survey, &[("cart", ScalingStatus::Unknown)]));
    assert!(detail.contains("not said anything"), "{detail}");
}
