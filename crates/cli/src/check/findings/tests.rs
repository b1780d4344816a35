//! Tests of the findings: each fault of a survey becomes the right result with its next step.

mod push;
mod scaling;
mod xds;

use std::time::{Duration, SystemTime};

use rouse_kube::client::permissions::{PERMISSIONS, Requirement};
use rouse_kube::objects::route::{RouteKey, RouteKind};
use rouse_kube::survey::{
    Account, CertificateSurvey, ContestedHost, Denied, GatewayPod, GatewayService, InstalledGateway,
    KindSurvey, KubernetesVersion, PermissionCheck, PermissionScope, RouteProblem, RouteSurvey, SecretSurvey,
    Served, Survey, SurveyError,
};

use super::super::report::Outcome;
use super::*;

/// What the gateway that is there runs.
const IMAGE: &str = "registry.example.com/rouse:9";

fn asked() -> Advice {
    let there = There { image: Some(IMAGE.to_owned()), ..There::default() };
    Advice { kubectl: "kubectl".to_owned(), namespace: None, gateway: "rouse-system".to_owned(), there }
}

fn account() -> Account {
    "rouse-system/rouse-gateway".parse().unwrap()
}

fn kind_seen(name: &'static str, group: &'static str, version: &'static str) -> KindSurvey {
    let served = Ok(vec![Served { version: version.to_owned(), status: true }]);
    KindSurvey { name, group, version, plural: "x", served }
}

/// A cluster that lacks nothing.
fn good() -> Survey {
    let grant =
        |permission| PermissionCheck { permission, place: PermissionScope::Everywhere, denied: Vec::new() };
    let pod = |n: u8| GatewayPod { name: format!("rouse-gateway-{n}"), trouble: None };
    Survey {
        now: now(),
        version: KubernetesVersion { text: "v1.36.4".to_owned(), number: Some((1, 36)) },
        kinds: vec![
            kind_seen("EndpointSlice", "discovery.k8s.io", "v1"),
            kind_seen("InterceptorRoute", "http.keda.sh", "v1beta1"),
            kind_seen("HTTPScaledObject", "http.keda.sh", "v1alpha1"),
            kind_seen("ScaledObject", "keda.sh", "v1alpha1"),
        ],
        gateway: Ok(Some(InstalledGateway {
            namespace: "rouse-system".to_owned(),
            account: account(),
            watches: None,
            wanted: 2,
            available: 2,
            stuck: None,
            pods: Ok(vec![pod(1), pod(2)]),
            services: Ok(vec![GatewayService { name: "rouse-gateway".to_owned(), ready: 2 }]),
            has_file: false,
            certificates: vec![secret("web", good_certificate())],
            registration: Some(push::good()),
            reports_to: Some("https://rouse-controller.rouse-system.svc.cluster.local:9444".to_owned()),
        })),
        controller: Ok(Some(scaling::good())),
        xds: Ok(None),
        namespace: None,
        account: Some(account()),
        grants: Ok(PERMISSIONS.iter().map(grant).collect()),
        routes: Ok(RouteSurvey { count: 3, ..RouteSurvey::default() }),
    }
}

fn now() -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_hours(24 * 365 * 56)
}

fn days(count: u64) -> Duration {
    Duration::from_hours(24 * count)
}

fn good_certificate() -> CertificateSurvey {
    CertificateSurvey { expires: Some(now() + days(90)), ..CertificateSurvey::default() }
}

fn secret(name: &str, certificate: CertificateSurvey) -> SecretSurvey {
    SecretSurvey { name: name.to_owned(), certificate: Ok(Some(certificate)) }
}

/// Everything that is not as it should be in a good cluster after `change`.
fn wrong(change: impl FnOnce(&mut Survey)) -> Vec<Check> {
    let mut survey = good();
    change(&mut survey);
    let report = judge(&Ok(survey), &asked());
    let all = report.sections().iter().flat_map(|section| section.checks.clone());
    all.filter(|check| check.result != Outcome::Pass).collect()
}

/// The one check that is not as it should be after `change`, with its outcome.
fn only(outcome: Outcome, change: impl FnOnce(&mut Survey)) -> (String, String, String) {
    let mut all = wrong(change);
    assert_eq!(all.len(), 1, "{all:?}");
    let Check { name, result, detail, next } = all.remove(0);
    assert_eq!(result, outcome, "{name}: {detail:?}");
    (name, detail.unwrap_or_default(), next.unwrap_or_default())
}

fn gateway(survey: &mut Survey) -> &mut InstalledGateway {
    survey.gateway.as_mut().unwrap().as_mut().unwrap()
}

#[test]
fn a_cluster_that_lacks_nothing_passes() {
    assert_eq!(wrong(|_| {}), []);
    let report = judge(&Ok(good()), &asked());
    assert!(report.count(Outcome::Pass) > PERMISSIONS.len());
}

#[test]
fn an_api_server_that_does_not_answer_is_one_failure_and_the_rest_is_not_checked() {
    let report = judge(&Err("the API server cannot be reached: Connection refused".to_owned()), &asked());
    let counts = [Outcome::Failure, Outcome::NotChecked, Outcome::Warning, Outcome::Pass];
    assert_eq!(counts.map(|outcome| report.count(outcome)), [1, 4, 0, 0]);
    let mut text = Vec::new();
    report.text(&mut text).unwrap();
    let text = String::from_utf8(text).unwrap();
    assert!(text.contains("Connection refused") && text.contains("→ kubectl cluster-info"), "{text}");
}

#[test]
fn old_clusters_are_refused_or_warned_of() {
    let cases = [
        (Some((1, 20)), Some(Outcome::Failure)),
        (Some((1, 21)), Some(Outcome::Warning)),
        (Some((1, 22)), Some(Outcome::Warning)),
        (Some((1, 25)), Some(Outcome::Warning)),
        (Some((1, 26)), Some(Outcome::Warning)),
        (Some((1, 28)), Some(Outcome::Warning)),
        (Some((1, 29)), None),
        (Some((2, 0)), None),
        (None, Some(Outcome::Warning)),
    ];
    for (number, expected) in cases {
        let found = wrong(|survey| survey.version.number = number);
        assert_eq!(found.first().map(|check| check.result), expected, "{number:?}");
        for check in &found {
            let next = check.next.as_deref().unwrap_or_default();
            assert_eq!(next, "upgrade the cluster to Kubernetes 1.29 or later", "{number:?}");
        }
    }
}

#[test]
fn kinds_that_are_missing_or_of_another_version_are_told_by_what_is_lost() {
    let other = || vec![Served { version: "v9".to_owned(), status: true }];
    let cases = [
        (0, Vec::new(), Some(Outcome::Failure)),
        (1, Vec::new(), Some(Outcome::Failure)),
        (1, other(), Some(Outcome::Failure)),
        (1, vec![Served { version: "v1beta1".to_owned(), status: false }], Some(Outcome::Warning)),
        (2, Vec::new(), None),
        (2, other(), Some(Outcome::Warning)),
        (3, Vec::new(), None),
        (3, other(), Some(Outcome::Warning)),
        (3, vec![Served { version: "v1alpha1".to_owned(), status: false }], None),
    ];
    for (at, served, expected) in cases {
        let found = wrong(|survey| survey.kinds[at].served = Ok(served.clone()));
        assert_eq!(found.first().map(|check| check.result), expected, "{at} {served:?}");
    }
    let (_, detail, next) = only(Outcome::Failure, |survey| survey.kinds[1].served = Ok(other()));
    assert!(detail.contains("v9") && detail.contains("v1beta1"), "{detail}");
    // The kinds of the add-on are its own: ours would take their place.
    assert!(next.starts_with("upgrade KEDA HTTP add-on to a version that serves it"), "{next}");
    let (_, _, next) = only(Outcome::Failure, |survey| {
        survey.kinds[1].served = Ok(Vec::new());
        survey.kinds[2].served = Ok(Vec::new());
    });
    assert!(
        next.contains(&format!("\nrouse install --image {IMAGE} | kubectl apply --server-side -f -")),
        "{next}"
    );
    assert!(next.starts_with("with the flags it was installed with"), "{next}");
}

#[test]
fn a_gateway_that_is_there_keeps_its_image_its_flags_and_the_kinds_of_the_cluster() {
    let deny = |survey: &mut Survey| {
        let denied = Denied { verb: "list", reason: String::new() };
        survey.grants.as_mut().unwrap()[0].denied.push(denied);
    };
    let (_, _, next) = only(Outcome::Failure, deny);
    let lines: Vec<&str> = next.lines().collect();
    let [rule, flags, install] = lines[..] else { panic!("{next}") };
    assert!(rule.starts_with("add to its ClusterRole the rule {apiGroups"), "the least first: {next}");
    assert!(flags.contains("with the flags it was installed with"), "{next}");
    let expected = format!("rouse install --image {IMAGE} --no-crds | kubectl apply --server-side -f -");
    assert_eq!(install, expected);
    // Also for a user who may not see the gateway: it may exist, with an unknown image.
    let mut survey = good();
    deny(&mut survey);
    survey.gateway = Err(SurveyError::Forbidden("you may not".to_owned()));
    let report = judge(&Ok(survey), &Advice { there: There::default(), ..asked() });
    let failed = report.sections()[2].checks.iter().find(|check| check.result == Outcome::Failure).unwrap();
    assert!(failed.next.as_ref().unwrap().contains("rouse install --image IMAGE --no-crds |"), "{failed:?}");
    let (_, _, next) = only(Outcome::Warning, |survey| gateway(survey).services = Ok(Vec::new()));
    assert!(next.ends_with(&expected) && next.starts_with("with the flags"), "{next}");
}

#[test]
fn every_permission_that_is_taken_away_is_told_with_the_rule_that_grants_it() {
    for (at, permission) in PERMISSIONS.iter().enumerate() {
        let verb = *permission.verbs.last().unwrap();
        let expected = match permission.need {
            Requirement::Required => Outcome::Failure,
            Requirement::Optional { .. } => Outcome::Warning,
        };
        let (name, detail, next) = only(expected, |survey| {
            let denied = Denied { verb, reason: "RBAC: not found".to_owned() };
            survey.grants.as_mut().unwrap()[at].denied.push(denied);
        });
        assert!(name.contains(&permission.name()), "{name}");
        assert!(detail.contains(&format!("may not {verb}")) && detail.contains(permission.why), "{detail}");
        assert!(detail.contains("RBAC: not found"), "{detail}");
        if let Requirement::Optional { lost } = permission.need {
            assert!(detail.contains(lost), "{detail}");
        }
        let rule = format!("resources: [\"{}\"], verbs: [{verb}]", permission.resource);
        assert!(next.contains(&rule) && next.contains("rouse install"), "{next}");
    }
}

#[test]
fn an_object_that_may_not_be_read_is_granted_by_a_role_in_its_namespace() {
    let secrets = PERMISSIONS.iter().find(|permission| permission.resource == "secrets").unwrap();
    let deny = |name: &str, verbs: &[&'static str]| PermissionCheck {
        permission: secrets,
        place: PermissionScope::Object { namespace: "shop".to_owned(), name: name.to_owned() },
        denied: verbs.iter().map(|verb| Denied { verb, reason: String::new() }).collect(),
    };
    let (name, _, next) = only(Outcome::Warning, |survey| {
        survey.grants.as_mut().unwrap().extend([deny("fine", &[]), deny("cart-tls", &["list", "watch"])]);
    });
    assert!(name.contains("cart-tls in shop"), "{name}");
    assert!(next.contains("-n shop create role rouse-secrets-cart-tls --verb=list,watch --resource=secrets --resource-name=cart-tls"), "{next}");
    assert!(
        next.contains("--serviceaccount=rouse-system:rouse-gateway") && !next.contains("cluster"),
        "{next}"
    );
    let many = wrong(|survey| {
        let all = (0..25).map(|n| deny(&format!("s{n}"), &["list"]));
        survey.grants.as_mut().unwrap().extend(all);
    });
    assert_eq!(many.len(), LISTED + 1, "the first few, and how many more");
    assert!(many[LISTED].name.starts_with("15 more"), "{many:?}");
}

#[test]
fn in_one_namespace_a_role_there_is_what_is_missing() {
    let mut survey = good();
    for grant in survey.grants.as_mut().unwrap() {
        grant.place = PermissionScope::Namespace("shop".to_owned());
    }
    survey.grants.as_mut().unwrap()[0].denied.push(Denied { verb: "list", reason: String::new() });
    survey.namespace = Some("shop".to_owned());
    let report = judge(&Ok(survey), &Advice { gateway: "edge".to_owned(), ..asked() });
    let failed = report.sections()[2].checks.iter().find(|check| check.result == Outcome::Failure).unwrap();
    let next = failed.next.as_ref().unwrap();
    let install = "--namespace edge --watch-namespace shop --no-crds | kubectl apply --server-side -f -";
    assert!(next.contains(install), "{next}");
    assert!(next.starts_with("add to its Role in shop the rule"), "{next}");
}

#[test]
fn whose_permissions_they_are_is_said() {
    let name = |survey: Survey| judge(&Ok(survey), &asked()).sections()[2].name.clone();
    assert!(name(good()).contains("system:serviceaccount:rouse-system:rouse-gateway"));
    let own = name(Survey { account: None, gateway: Ok(None), ..good() });
    assert_eq!(own, "Your own permissions, because there is no gateway");
}

#[test]
fn what_may_not_be_asked_is_a_warning_and_what_fails_is_a_failure() {
    let forbidden = || SurveyError::Forbidden("you may not".to_owned());
    let failed = || SurveyError::Failed("it broke".to_owned());
    for (unseen, outcome) in [(forbidden(), Outcome::Warning), (failed(), Outcome::Failure)] {
        let words = unseen.to_string();
        let changes: [&dyn Fn(&mut Survey); 5] = [
            &|survey| survey.kinds[1].served = Err(unseen.clone()),
            &|survey| survey.grants = Err(unseen.clone()),
            &|survey| survey.gateway = Err(unseen.clone()),
            &|survey| survey.routes = Err(unseen.clone()),
            &|survey| gateway(survey).pods = Err(unseen.clone()),
        ];
        for change in changes {
            let (_, detail, next) = only(outcome, change);
            assert!(detail.contains(&words) && !next.is_empty(), "{detail} {next}");
        }
    }
    let (_, _, next) = only(Outcome::Warning, |survey| survey.grants = Err(forbidden()));
    assert!(next.contains("create subjectaccessreviews"), "{next}");
}

#[test]
fn a_gateway_that_is_not_installed_yet_is_a_warning_with_the_way_to_install_it() {
    let (_, detail, next) = only(Outcome::Warning, |survey| survey.gateway = Ok(None));
    assert!(detail.contains("rouse-gateway in rouse-system"), "{detail}");
    assert_eq!(next, "rouse install --no-crds | kubectl apply --server-side -f -");
    let without = |missing: &[usize]| {
        let found = wrong(|survey| {
            survey.gateway = Ok(None);
            for &at in missing {
                survey.kinds[at].served = Ok(Vec::new());
            }
        });
        found.into_iter().find(|check| check.name == "it is installed").unwrap().next.unwrap()
    };
    assert_eq!(without(&[1, 2]), "rouse install | kubectl apply --server-side -f -");
    // An older add-on, whose definition must stay its own.
    assert_eq!(without(&[1]), "rouse install --no-crds | kubectl apply --server-side -f -");
}

#[test]
fn a_gateway_without_an_available_pod_fails_and_its_pods_say_why() {
    let found = wrong(|survey| {
        let gateway = gateway(survey);
        gateway.available = 0;
        let trouble = Some("ImagePullBackOff: no such image".to_owned());
        gateway.pods = Ok(vec![GatewayPod { name: "p".to_owned(), trouble }]);
        gateway.services = Ok(vec![GatewayService { name: "rouse-gateway".to_owned(), ready: 0 }]);
    });
    assert!(found.iter().all(|check| check.result == Outcome::Failure), "{found:?}");
    let told: Vec<&str> = found.iter().filter_map(|check| check.detail.as_deref()).collect();
    assert_eq!(
        told,
        ["none of its pods is ready", "ImagePullBackOff: no such image", "requests to it are refused"]
    );
    assert!(found[1].next.as_ref().unwrap().contains("kubectl -n rouse-system logs p"));
}

#[test]
fn one_pod_of_several_that_is_not_ready_is_a_warning() {
    let found = wrong(|survey| {
        let gateway = gateway(survey);
        gateway.available = 1;
        gateway.pods.as_mut().unwrap()[0].trouble = Some("it is Pending".to_owned());
    });
    assert_eq!(found.len(), 2);
    assert!(found.iter().all(|check| check.result == Outcome::Warning), "{found:?}");
}

#[test]
fn a_deployment_at_zero_or_stuck_fails_with_what_its_controller_says() {
    let found = wrong(|survey| (gateway(survey).wanted, gateway(survey).available) = (0, 0));
    assert!(found[0].result == Outcome::Failure && found[0].detail.as_ref().unwrap().contains("scaled to 0"));
    let (_, detail, _) = only(Outcome::Failure, |survey| {
        gateway(survey).available = 0;
        gateway(survey).stuck = Some("exceeded quota: pods".to_owned());
    });
    assert_eq!(detail, "exceeded quota: pods");
}

#[test]
fn a_service_that_leads_nowhere_fails_and_none_at_all_is_a_warning() {
    let (name, ..) = only(Outcome::Failure, |survey| gateway(survey).services.as_mut().unwrap()[0].ready = 0);
    assert!(name.contains("Service rouse-gateway"), "{name}");
    only(Outcome::Warning, |survey| gateway(survey).services = Ok(Vec::new()));
}

fn route(name: &str) -> RouteKey {
    RouteKey { namespace: "shop".into(), name: name.into(), kind: RouteKind::HttpScaledObject }
}

#[test]
fn routes_that_do_not_serve_are_warnings_and_only_the_first_are_listed() {
    let found = wrong(|survey| {
        let routes = survey.routes.as_mut().unwrap();
        let problems =
            |n: usize| RouteProblem { route: route(&format!("r{n}")), words: format!("trouble {n}") };
        routes.problems = (0..14).map(problems).collect();
    });
    assert_eq!(found.len(), LISTED + 1);
    assert!(found.iter().all(|check| check.result == Outcome::Warning));
    assert_eq!(found[0].name, "HTTPScaledObject shop/r0 serves");
    assert_eq!(found[0].detail.as_deref(), Some("trouble 0"));
    assert_eq!(found[0].next.as_deref(), Some("kubectl -n shop describe httpscaledobject r0"));
    assert!(found[LISTED].name.starts_with("4 more"), "{found:?}");
}

#[test]
fn a_host_that_is_claimed_twice_is_told_with_who_has_it() {
    let (name, detail, next) = only(Outcome::Warning, |survey| {
        let host = "a.example.com".to_owned();
        let contested =
            ContestedHost { host, owner: route("old"), others: vec![route("new"), route("newer")] };
        survey.routes.as_mut().unwrap().contested.push(contested);
    });
    assert!(name.contains("a.example.com"), "{name}");
    assert_eq!(detail, "shop/old has it, as the older one; shop/new, shop/newer does not");
    assert!(next.ends_with("describe httpscaledobject new"), "{next}");
    let (_, detail, _) = only(Outcome::Warning, |survey| {
        let other = RouteKey { namespace: "late".into(), ..route("new") };
        let host = "a.example.com".to_owned();
        let contested = ContestedHost { host, owner: route("old"), others: vec![other] };
        survey.routes.as_mut().unwrap().contested.push(contested);
    });
    assert_eq!(
        detail,
        "shop/old has it, which claimed it first; late/new does not, unless the gateway's --assigned-hosts or \
         --host-overlap decides otherwise"
    );
}

#[test]
fn json_says_the_same_as_the_text() {
    let mut survey = good();
    survey.gateway = Ok(None);
    let report = judge(&Ok(survey), &asked());
    let (mut json, mut text) = (Vec::new(), Vec::new());
    report.json(&mut json).unwrap();
    report.text(&mut text).unwrap();
    let json: serde_json::Value = serde_json::from_slice(&json).unwrap();
    let text = String::from_utf8(text).unwrap();
    assert_eq!(json["passed"], true);
    for section in json["sections"].as_array().unwrap() {
        assert!(text.contains(section["name"].as_str().unwrap()));
        for check in section["checks"].as_array().unwrap() {
            assert!(text.contains(check["name"].as_str().unwrap()), "{check}");
            assert!(["pass", "warning"].contains(&check["result"].as_str().unwrap()), "{check}");
        }
    }
    assert!(text.contains("1 with a warning"), "{text}");
}
