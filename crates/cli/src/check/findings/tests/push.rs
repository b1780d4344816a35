//! Tests of the findings about certificates and push.

use rouse_kube::client::permissions::Scope;
use rouse_kube::survey::{
    BundleSurvey, BundleTrust, InjectedWorkload, RegistrationService, RegistrationSurvey, SidecarReach,
};

use super::*;

const NAME: &str = "rouse-register.rouse-system.svc.cluster.local";

/// Push that lacks nothing.
pub(super) fn good() -> RegistrationSurvey {
    let review = PERMISSIONS.iter().filter(|permission| permission.scope == Scope::OnDemand);
    let grant =
        |permission| PermissionCheck { permission, place: PermissionScope::Everywhere, denied: Vec::new() };
    let bundle = |namespace: &str| BundleSurvey {
        namespace: namespace.to_owned(),
        name: "rouse-ca".to_owned(),
        trust: Ok(BundleTrust::Trusted),
    };
    RegistrationSurvey {
        mode: None,
        service_name: "rouse-register".to_owned(),
        service: Ok(Some(RegistrationService { headless: true, port: true, selects: true })),
        secret: Some(secret("rouse-register-tls", good_certificate())),
        reviews: Some(Ok(review.map(grant).collect())),
        bundles: vec![bundle("shop"), bundle("pay")],
        workloads: Ok(vec![workload(SidecarReach::Reached)]),
    }
}

fn workload(sidecar: SidecarReach) -> InjectedWorkload {
    InjectedWorkload { kind: "Deployment", namespace: "shop".to_owned(), name: "cart".to_owned(), sidecar }
}

fn registration(survey: &mut Survey) -> &mut RegistrationSurvey {
    gateway(survey).registration.as_mut().unwrap()
}

/// The checks of the section about push after `change`, as lines.
fn section(change: impl FnOnce(&mut Survey)) -> Vec<String> {
    let mut survey = super::good();
    change(&mut survey);
    let report = judge(&Ok(survey), &asked());
    let push = report.sections().iter().find(|section| section.name == "Push").unwrap();
    push.checks.iter().map(|check| format!("{:?} {}", check.result, check.name)).collect()
}

#[test]
fn whether_registrations_are_accepted_is_said() {
    assert_eq!(section(|_| {})[0], "Pass registrations of pods are accepted (push: on)");
    let observed = section(|survey| registration(survey).mode = Some("observe".to_owned()));
    assert_eq!(observed[0], "Pass registrations of pods are accepted (push: observe)");
    let off = section(|survey| gateway(survey).registration = None);
    assert_eq!(off, ["Pass registrations of pods are off"]);
    let mut survey = super::good();
    (gateway(&mut survey).registration, gateway(&mut survey).has_file) = (None, true);
    let report = judge(&Ok(survey), &asked());
    let push = report.sections().iter().find(|section| section.name == "Push").unwrap();
    let detail = push.checks[0].detail.as_ref().unwrap();
    assert!(detail.contains("unless its configuration file says otherwise"), "{detail}");
    let without = judge(&Ok(Survey { gateway: Ok(None), ..super::good() }), &asked());
    assert!(without.sections().iter().all(|section| section.name != "Push"), "there is no gateway");
}

#[test]
fn a_certificate_is_warned_of_thirty_days_before_it_expires() {
    let cases = [
        (days(30), None),
        (Duration::from_secs(30 * 86_400 - 1), Some("it expires in 29 days")),
        (days(1), Some("it expires in 1 day:")),
        (Duration::from_secs(5), Some("it expires in less than a day")),
    ];
    for (left, expected) in cases {
        let ends = |survey: &mut Survey| {
            let certificate =
                CertificateSurvey { expires: Some(now() + left), ..CertificateSurvey::default() };
            registration(survey).secret = Some(secret("rouse-register-tls", certificate));
        };
        let Some(expected) = expected else {
            assert_eq!(wrong(ends), [], "{left:?}");
            continue;
        };
        let (name, detail, next) = only(Outcome::Warning, ends);
        assert!(name.contains("rouse-register-tls") && detail.starts_with(expected), "{name} {detail}");
        assert!(next.contains("without a restart"), "{next}");
    }
}

#[test]
fn a_certificate_that_clients_refuse_fails_for_requests_and_is_a_warning_for_registrations() {
    let expired = CertificateSurvey { expires: Some(now() - days(2)), ..CertificateSurvey::default() };
    let (name, detail, _) = only(Outcome::Failure, |survey| {
        gateway(survey).certificates = vec![secret("web", expired.clone())];
    });
    assert!(name.contains("requests over TLS") && detail.starts_with("it expired 2 days ago"), "{detail}");
    let set = |certificate: &CertificateSurvey| {
        let secret = secret("r", certificate.clone());
        move |survey: &mut Survey| registration(survey).secret = Some(secret)
    };
    let (_, detail, _) = only(Outcome::Warning, set(&expired));
    assert!(detail.contains("sidecars do not register"), "{detail}");
    let other = CertificateSurvey { not_for: vec![NAME.to_owned()], ..good_certificate() };
    let (_, detail, _) = only(Outcome::Warning, set(&other));
    assert!(detail.contains(&format!("it is not for {NAME}")), "{detail}");
    let broken = CertificateSurvey { fault: Some("it has no tls.key".to_owned()), ..good_certificate() };
    let (_, detail, _) = only(Outcome::Failure, set(&broken));
    assert!(detail.starts_with("it has no tls.key"), "{detail}");
    let unread = CertificateSurvey { expires: None, ..good_certificate() };
    only(Outcome::Warning, set(&unread));
}

#[test]
fn a_secret_that_is_missing_fails_and_one_that_may_not_be_read_is_not_checked() {
    let found = |certificate| {
        move |survey: &mut Survey| {
            let name = "rouse-register-tls".to_owned();
            registration(survey).secret = Some(SecretSurvey { name, certificate });
        }
    };
    let (_, detail, next) = only(Outcome::Failure, found(Ok(None)));
    assert!(
        detail.contains("there is no such Secret") && next.ends_with("get secret rouse-register-tls"),
        "{next}"
    );
    let forbidden = SurveyError::Forbidden("secrets is forbidden".to_owned());
    let (_, detail, next) = only(Outcome::NotChecked, found(Err(forbidden)));
    assert!(detail.contains("forbidden"), "{detail}");
    assert!(next.contains("rouse_tls_certificate_expiry_timestamp_seconds"), "{next}");
    only(Outcome::NotChecked, |survey| registration(survey).secret = None);
    let other = CertificateSurvey { other_keys: true, ..CertificateSurvey::default() };
    let (_, detail, _) = only(Outcome::NotChecked, found(Ok(Some(other))));
    assert!(detail.contains("no tls.crt"), "{detail}");
}

#[test]
fn a_registration_service_that_leads_sidecars_astray_is_a_warning() {
    let good = RegistrationService { headless: true, port: true, selects: true };
    for (service, expected) in [
        (None, "there is no such Service"),
        (Some(RegistrationService { headless: false, ..good }), "not headless"),
        (Some(RegistrationService { selects: false, ..good }), "selector does not match"),
        (Some(RegistrationService { port: false, ..good }), "port 9443"),
    ] {
        let (name, detail, next) =
            only(Outcome::Warning, |survey| registration(survey).service = Ok(service));
        assert!(name.contains("Service rouse-register") && detail.contains(expected), "{name} {detail}");
        assert!(next.contains("--register-secret") && next.contains("rouse install --image"), "{next}");
    }
}

#[test]
fn reviews_of_tokens_that_the_gateway_may_not_create_fail() {
    let denied = |survey: &mut Survey| {
        let grants = registration(survey).reviews.as_mut().unwrap().as_mut().unwrap();
        grants[0].denied.push(Denied { verb: "create", reason: String::new() });
    };
    let found = wrong(denied);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].name.contains("create tokenreviews"), "{found:?}");
    let forbidden = SurveyError::Forbidden("you may not".to_owned());
    let (_, _, next) =
        only(Outcome::NotChecked, |survey| registration(survey).reviews = Some(Err(forbidden)));
    assert!(next.contains("auth can-i create tokenreviews.authentication.k8s.io --as=system:"), "{next}");
}

#[test]
fn sidecars_that_do_not_trust_the_gateway_are_a_warning_with_their_namespace() {
    for (trust, expected) in [
        (Ok(BundleTrust::Missing), "no such ConfigMap"),
        (Ok(BundleTrust::Refused("unknown issuer".to_owned())), "unknown issuer"),
        (Err(SurveyError::Forbidden("you may not".to_owned())), "you may not"),
    ] {
        let (name, detail, _) =
            only(Outcome::Warning, |survey| registration(survey).bundles[1].trust = trust);
        assert!(name.contains("in pay") && detail.contains(expected), "{name} {detail}");
    }
    only(Outcome::NotChecked, |survey| registration(survey).bundles[0].trust = Ok(BundleTrust::Unknown));
}

#[test]
fn an_injected_workload_whose_service_bypasses_the_sidecar_is_a_warning() {
    for (sidecar, expected) in [
        (SidecarReach::NoSidecar, "no container rouse-sidecar"),
        (SidecarReach::NoService("cart".to_owned()), "there is no Service cart"),
        (
            SidecarReach::Bypassed { service: "cart".to_owned(), port: 8012 },
            "target port of the sidecar, 8012",
        ),
    ] {
        let (name, detail, next) = only(Outcome::Warning, |survey| {
            registration(survey).workloads = Ok(vec![workload(SidecarReach::Reached), workload(sidecar)]);
        });
        assert!(name.ends_with("Deployment shop/cart") && detail.contains(expected), "{name} {detail}");
        assert!(next.contains("kubectl -n shop get deployment/cart"), "{next}");
        assert!(next.contains("| rouse inject -f - | kubectl apply -f -"), "{next}");
    }
    let none = section(|survey| registration(survey).workloads = Ok(Vec::new()));
    assert_eq!(none.last().unwrap(), "Pass no workload has the sidecar yet");
    let forbidden = SurveyError::Forbidden("you may not".to_owned());
    only(Outcome::Warning, |survey| registration(survey).workloads = Err(forbidden));
}
