//! `rouse install` of the controller: its permissions, its ports, its certificate, and what gateways need to report to it.

use rouse_config::settings::{Environment, Values};
use rouse_daemon::controller::settings as controller_settings;
use rouse_daemon::controller::{ControllerArgs, read_settings};
use rouse_daemon::gateway::settings;
use rouse_kube::autoscale::AutoscaleDefault;
use rouse_kube::client::permissions::{PermissionRole, SLICE_PERMISSIONS, Scope};
use rouse_net::auth::REPORT_AUDIENCE;
use serde_json::{Value, json};

use crate::push::named;
use crate::support::{controller, deployed, gateway, install, key, printed, text};
use crate::{CONTAINER, of_scopes, rights, settings_of, table, variables};

/// The settings of a controller that the Deployment starts in `namespace`, in a pod with this address.
fn controller_settings_of(deployment: &Value, namespace: &str, pod: &str) -> Values {
    let env = variables(deployment).into_iter().map(|(name, value)| match &*name {
        "POD_IP" => (name, pod.to_owned()),
        "ROUSE_POD_NAMESPACE" => (name, namespace.to_owned()),
        _ => (name, value.replace("$(POD_IP)", pod)),
    });
    let (values, warnings) = read_settings(&ControllerArgs::default(), &Environment::new(env)).unwrap();
    assert!(warnings.is_empty(), "{warnings:?}");
    values
}

#[test]
fn the_controller_may_do_what_it_does_and_nothing_else() {
    let watched = table(PermissionRole::Controller, Scope::Watched);
    let own = table(PermissionRole::Controller, Scope::Own);
    let all = printed("--namespace edge");
    assert_eq!(rights(named(&all, "ClusterRole /rouse-controller.edge")), watched);
    assert_eq!(rights(named(&all, "Role edge/rouse-controller")), own);
    // In the namespace of the installation too: there the Role of each scope has its own name.
    for namespace in ["shop", "edge"] {
        let all = printed(&format!("--namespace edge --watch-namespace {namespace}"));
        assert_eq!(rights(named(&all, &format!("Role {namespace}/rouse-controller.edge"))), watched);
        assert_eq!(rights(named(&all, "Role edge/rouse-controller")), own);
        assert!(!all.iter().any(|object| key(object).starts_with("ClusterRole")), "{namespace}");
    }
    let both = [Scope::Watched, Scope::Own];
    let permissions = PermissionRole::Controller.permissions();
    assert!(permissions.iter().all(|it| both.contains(&it.scope)), "another scope needs a role of its own");
}

#[test]
fn with_endpointslices_it_may_write_them_and_see_nodes_and_without_it_may_not() {
    let all = printed("--namespace edge");
    assert!(!all.iter().any(|object| key(object).contains("endpointslices")));
    let every: Vec<_> = SLICE_PERMISSIONS.iter().map(|it| it.scope).collect();
    assert!(every.contains(&Scope::Watched) && every.contains(&Scope::OnDemand));
    let name = "rouse-controller-endpointslices.edge";
    let all = printed("--namespace edge --endpointslices");
    assert_eq!(
        rights(named(&all, &format!("ClusterRole /{name}"))),
        of_scopes(SLICE_PERMISSIONS, &[Scope::Watched, Scope::OnDemand])
    );
    let all = printed("--namespace edge --watch-namespace shop --endpointslices");
    assert_eq!(
        rights(named(&all, &format!("Role shop/{name}"))),
        of_scopes(SLICE_PERMISSIONS, &[Scope::Watched])
    );
    assert_eq!(
        rights(named(&all, &format!("ClusterRole /{name}"))),
        of_scopes(SLICE_PERMISSIONS, &[Scope::OnDemand])
    );
    let binding = named(&all, &format!("ClusterRoleBinding /{name}"));
    let account = json!([{"kind": "ServiceAccount", "name": "rouse-controller", "namespace": "edge"}]);
    assert_eq!(binding.get("subjects"), Some(&account));
}

#[test]
fn its_permissions_are_bound_to_its_own_account() {
    for (flags, kind, scope) in [("", "ClusterRole", ""), ("--watch-namespace shop", "Role", "shop")] {
        let all = printed(&format!("--namespace edge {flags}"));
        for (kind, namespace, name) in
            [(kind, scope, "rouse-controller.edge"), ("Role", "edge", "rouse-controller")]
        {
            let binding = named(&all, &format!("{kind}Binding {namespace}/{name}"));
            let leads = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": name});
            assert_eq!(binding.get("roleRef"), Some(&leads));
            let account =
                json!([{"kind": "ServiceAccount", "name": "rouse-controller", "namespace": "edge"}]);
            assert_eq!(binding.get("subjects"), Some(&account));
        }
        let account = named(&all, "ServiceAccount edge/rouse-controller");
        let pod = controller(&all, "Deployment").pointer("/spec/template/spec/serviceAccountName");
        assert_eq!(pod, account.pointer("/metadata/name"));
    }
}

#[test]
fn an_upgrade_changes_no_number_of_replicas_unless_the_operator_says_so() {
    for (flags, expected) in [
        ("", AutoscaleDefault::Off),
        ("--generate-keys", AutoscaleDefault::Off),
        ("--controller-secret c", AutoscaleDefault::Off),
        ("--controller-secret c --autoscale-default off", AutoscaleDefault::Off),
        ("--controller-secret c --autoscale-default on", AutoscaleDefault::On),
    ] {
        let all = printed(flags);
        let settings = controller_settings_of(controller(&all, "Deployment"), "rouse-system", "10.1.2.3");
        assert_eq!(settings.get(&controller_settings::AUTOSCALE_DEFAULT), expected, "{flags}");
    }
    let files = deployed("manifests");
    let settings = controller_settings_of(controller(&files, "Deployment"), "rouse-system", "10.1.2.3");
    assert_eq!(settings.get(&controller_settings::AUTOSCALE_DEFAULT), AutoscaleDefault::Off);
}

#[test]
fn the_controller_listens_where_probes_services_and_gateways_look_for_it() {
    for (flags, pod, everywhere) in [
        ("--watch-namespace shop", "10.1.2.3", "0.0.0.0"),
        ("--controller-secret c", "10.1.2.3", "0.0.0.0"),
        ("--controller-secret c --ip-family ipv6", "fd00::7", "[::]"),
    ] {
        let all = printed(&format!("--namespace edge {flags}"));
        let deployment = controller(&all, "Deployment");
        let settings = controller_settings_of(deployment, "edge", pod);
        let secure = flags.contains("--controller-secret");
        let at = |port: u16| format!("{everywhere}:{port}").parse().unwrap();
        assert_eq!(settings.get(&controller_settings::ADMIN).ip().to_string(), pod);
        assert_eq!(settings.get(&controller_settings::SCALER_LISTEN), Some(at(9445)));
        assert_eq!(settings.get(&controller_settings::REPORT_LISTEN), secure.then(|| at(9444)));
        assert_eq!(settings.get(&controller_settings::POD_NAMESPACE), "edge");
        let watched = flags.contains("--watch-namespace").then(|| "shop".to_owned());
        assert_eq!(settings.get(&controller_settings::WATCH_NAMESPACE), watched);
        for (probe, path) in [("startup", "/livez"), ("readiness", "/readyz"), ("liveness", "/livez")] {
            let get = deployment.pointer(&format!("{CONTAINER}/{probe}Probe/httpGet"));
            assert_eq!(get, Some(&json!({"path": path, "port": "admin"})), "{probe}");
        }
        let mut expected = vec![json!({"name": "admin", "containerPort": 9090})];
        expected.push(json!({"name": "scaler", "containerPort": 9445}));
        expected.extend(secure.then(|| json!({"name": "reports", "containerPort": 9444})));
        assert_eq!(deployment.pointer(&format!("{CONTAINER}/ports")), Some(&json!(expected)));

        let headless = named(&all, "Service edge/rouse-controller");
        assert_eq!(text(headless, "/spec/clusterIP"), "None");
        // A replica is ready only after it has heard of the load.
        assert_eq!(headless.pointer("/spec/publishNotReadyAddresses"), Some(&json!(true)));
        let mut ports = vec![json!({"name": "admin", "port": 9090, "targetPort": "admin"})];
        ports.extend(secure.then(|| json!({"name": "reports", "port": 9444, "targetPort": "reports"})));
        assert_eq!(headless.pointer("/spec/ports"), Some(&json!(ports)));
        let scaler = named(&all, "Service edge/rouse-controller-scaler");
        let ports = json!([{"name": "scaler", "port": 9445, "targetPort": "scaler"}]);
        assert_eq!(scaler.pointer("/spec/ports"), Some(&ports));
        for object in [headless, scaler, controller(&all, "PodDisruptionBudget")] {
            let selector = object.pointer("/spec/selector").unwrap();
            let selector = selector.get("matchLabels").unwrap_or(selector);
            assert_eq!(Some(selector), deployment.pointer("/spec/selector/matchLabels"), "{}", key(object));
        }
    }
}

#[test]
fn gateways_report_over_tls_with_a_token_for_nothing_else_and_do_not_get_the_key() {
    let all = printed("--namespace edge --controller-secret mine");
    let deployment = gateway(&all, "Deployment");
    let settings = settings_of(deployment, "10.1.2.3");
    let url = settings.get(&settings::REPORT_TO).unwrap().to_string();
    assert_eq!(url, "https://rouse-controller.edge.svc.cluster.local:9444");
    let volumes = json!([{"name": "report", "projected": {"sources": [
        {"serviceAccountToken": {"audience": REPORT_AUDIENCE, "expirationSeconds": 3600, "path": "token"}},
        {"secret": {"name": "mine", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
    ]}}]);
    assert_eq!(deployment.pointer("/spec/template/spec/volumes"), Some(&volumes));
    let mounts = json!([{"name": "report", "mountPath": "/var/run/secrets/rouse-report", "readOnly": true}]);
    assert_eq!(deployment.pointer(&format!("{CONTAINER}/volumeMounts")), Some(&mounts));
    for (setting, file) in [
        (Some(settings.get(&settings::REPORT_TOKEN)), "token"),
        (settings.get(&settings::REPORT_CA), "ca.crt"),
    ] {
        assert_eq!(setting, Some(format!("/var/run/secrets/rouse-report/{file}").into()));
    }

    let deployment = controller(&all, "Deployment");
    let settings = controller_settings_of(deployment, "edge", "10.1.2.3");
    let volumes = json!([{"name": "report-certs", "secret": {"secretName": "mine"}}]);
    assert_eq!(deployment.pointer("/spec/template/spec/volumes"), Some(&volumes));
    let mounts = json!([{"name": "report-certs", "mountPath": "/report-certs", "readOnly": true}]);
    assert_eq!(deployment.pointer(&format!("{CONTAINER}/volumeMounts")), Some(&mounts));
    for (setting, file) in [
        (&controller_settings::REPORT_TLS_CERT, "tls.crt"),
        (&controller_settings::REPORT_TLS_KEY, "tls.key"),
    ] {
        assert_eq!(settings.get(setting), Some(format!("/report-certs/{file}").into()));
    }
}

#[test]
fn without_a_certificate_gateways_are_as_before_and_a_note_says_what_does_not_work() {
    let blind = "the controller has no certificate, so gateways cannot report their load to it";
    let (plain, without) = (install(""), install("--no-controller"));
    assert!(plain.err.contains(blind) && plain.err.contains("--generate-keys"), "{}", plain.err);
    for flags in ["--no-controller", "--controller-secret c", "--generate-keys"] {
        assert!(!install(flags).err.contains(blind), "{flags}");
    }
    assert!(!without.out.contains("rouse-controller"), "{}", without.out);
    assert!(plain.out.starts_with(&without.out), "the controller is added, and nothing else is changed");
}

#[test]
fn a_certificate_changes_the_two_deployments_and_the_headless_service_and_adds_nothing() {
    let (plain, secure) = (printed(""), printed("--controller-secret c"));
    assert_eq!(plain.len(), secure.len());
    let differ: Vec<String> = plain
        .iter()
        .zip(&secure)
        .filter(|(before, after)| before != after)
        .map(|(before, after)| {
            assert_eq!(key(before), key(after));
            key(before)
        })
        .collect();
    let expected = [
        "Deployment rouse-system/rouse-gateway",
        "Deployment rouse-system/rouse-controller",
        "Service rouse-system/rouse-controller",
    ];
    assert_eq!(differ, expected);
}
