//! The output of `rouse install`: it matches the files of `deploy/`, and grants the least permissions.

#![allow(clippy::unwrap_used, clippy::panic, missing_docs, reason = "tests, also in their helpers")]

mod controller;
mod keys;
mod push;
mod support;
mod xds;

use std::collections::BTreeSet;
use std::process::Command;
use std::time::Duration;

use rouse_config::settings::{Environment, Values};
use rouse_daemon::gateway::settings::{self, UpstreamTls};
use rouse_daemon::gateway::{GatewayArgs, read_settings};
use rouse_daemon::settings::MAX_CONNECTIONS;
use rouse_kube::client::permissions::{Permission, PermissionRole, Scope};
use serde_json::{Value, json};
use support::{deployed, gateway, install, key, one, printed, run, sorted, text};

const CONTAINER: &str = "/spec/template/spec/containers/0";

/// Group, resource and verb.
type Right = (String, String, String);

fn rights(role: &Value) -> BTreeSet<Right> {
    let mut all = BTreeSet::new();
    let list = |rule: &Value, field: &str| -> Vec<String> {
        let values = rule.get(field).unwrap().as_array().unwrap().iter();
        values.map(|value| value.as_str().unwrap().to_owned()).collect()
    };
    for rule in role.get("rules").unwrap().as_array().unwrap() {
        for group in list(rule, "apiGroups") {
            for resource in list(rule, "resources") {
                for verb in list(rule, "verbs") {
                    let right = (group.clone(), resource.clone(), verb);
                    assert!(all.insert(right.clone()), "{right:?} is there twice");
                }
            }
        }
    }
    all
}

fn table(role: PermissionRole, scope: Scope) -> BTreeSet<Right> {
    of_scopes(role.permissions(), &[scope])
}

/// The rights of a table that hold in these places.
fn of_scopes(permissions: &[Permission], scopes: &[Scope]) -> BTreeSet<Right> {
    let permissions = permissions.iter().filter(|permission| scopes.contains(&permission.scope));
    permissions
        .flat_map(|it| it.verbs.iter().map(|verb| (it.group.into(), it.resource.into(), (*verb).into())))
        .collect()
}

fn variables(deployment: &Value) -> Vec<(String, String)> {
    let env = deployment.pointer(&format!("{CONTAINER}/env")).unwrap().as_array().unwrap();
    env.iter().map(|it| (text(it, "/name").to_owned(), text(it, "/value").to_owned())).collect()
}

#[test]
fn without_flags_the_files_of_deploy_are_printed() {
    let files = [deployed("manifests"), deployed("crds")].concat();
    assert_eq!(sorted(printed("")), sorted(files));
    assert_eq!(sorted(printed("--crds")), sorted(printed("")));
    assert_eq!(sorted(printed("--no-crds")), sorted(deployed("manifests")));
    assert_eq!(printed("--crds --no-crds"), printed("--no-crds"), "the last one counts");
    assert_eq!(printed("--no-crds --crds"), printed(""), "the last one counts");
}

#[test]
fn everything_comes_after_what_it_needs() {
    let before = ["Namespace", "CustomResourceDefinition"];
    let gateway = [
        "ServiceAccount",
        "ClusterRole",
        "ClusterRoleBinding",
        "Deployment",
        "PodDisruptionBudget",
        "Service",
    ];
    let controller = [&gateway[..3], &["Role", "RoleBinding"], &gateway[3..]].concat();
    let kinds = |flags: &str| {
        let mut kinds: Vec<String> =
            printed(flags).iter().map(|object| text(object, "/kind").to_owned()).collect();
        kinds.dedup();
        kinds
    };
    assert_eq!(kinds("--no-controller"), [&before[..], &gateway].concat());
    assert_eq!(kinds(""), [&before[..], &gateway, &controller].concat());
    assert_eq!(kinds("--xds --xds-secret s"), [&before[..], &gateway, &controller, &controller].concat());
}

#[test]
fn every_object_has_a_version_a_kind_and_a_name_and_none_is_there_twice() {
    let all = printed(
        "--configmaps-of shop --configmaps-of till --secrets-of shop --tls-secret w --register-secret r --register-token-check tokenreview --controller-secret c --xds --xds-secret x",
    );
    let keys: BTreeSet<String> = all.iter().map(key).collect();
    assert_eq!(keys.len(), all.len());
    for object in &all {
        for pointer in ["/apiVersion", "/kind", "/metadata/name"] {
            assert!(!text(object, pointer).is_empty(), "{pointer} of {object}");
        }
    }
}

#[test]
fn the_gateway_may_do_what_it_does_and_nothing_else() {
    let granted = rights(gateway(&printed(""), "ClusterRole"));
    let table = table(PermissionRole::Gateway, Scope::Watched);
    assert_eq!(granted, table);
    assert_eq!(rights(gateway(&printed("--watch-namespace shop"), "Role")), table);
    assert!(!granted.iter().any(|(_, resource, _)| resource == "secrets" || resource.contains('*')));
}

#[test]
fn configmaps_and_secrets_are_granted_in_their_namespaces_alone() {
    let flags = "--configmaps-of shop --secrets-of shop --secrets-of till --namespace edge --no-controller";
    let all = printed(flags);
    let roles: Vec<&Value> = all.iter().filter(|object| text(object, "/kind") == "Role").collect();
    let keys: Vec<String> = roles.iter().map(|role| key(role)).collect();
    let expected = [
        "Role shop/rouse-gateway-configmaps.edge",
        "Role shop/rouse-gateway-secrets.edge",
        "Role till/rouse-gateway-secrets.edge",
    ];
    assert_eq!(keys, expected);
    let granted: BTreeSet<Right> = roles.iter().flat_map(|role| rights(role)).collect();
    assert_eq!(granted, table(PermissionRole::Gateway, Scope::Named));
    let bindings: Vec<&Value> = all.iter().filter(|object| text(object, "/kind") == "RoleBinding").collect();
    assert_eq!(bindings.len(), roles.len());
    for (binding, role) in bindings.iter().zip(roles) {
        let same = |of_binding, of_role| text(binding, of_binding) == text(role, of_role);
        assert!(
            same("/roleRef/name", "/metadata/name") && same("/metadata/namespace", "/metadata/namespace")
        );
        assert_eq!(text(binding, "/subjects/0/namespace"), "edge");
    }
    let example: BTreeSet<Right> = rights(one(&deployed("optional"), "Role"));
    assert_eq!(example, table(PermissionRole::Gateway, Scope::Named), "deploy/optional/named-objects.yaml");
}

#[test]
fn with_one_namespace_to_watch_nothing_is_granted_beyond_it() {
    let all = printed("--namespace edge --watch-namespace shop --no-crds --no-namespace");
    for object in &all {
        assert!(!text(object, "/kind").starts_with("Cluster"), "{}", key(object));
        assert!(!text(object, "/metadata/namespace").is_empty(), "{}", key(object));
    }
    let (role, binding) = (gateway(&all, "Role"), gateway(&all, "RoleBinding"));
    assert_eq!(key(role), "Role shop/rouse-gateway.edge");
    assert_eq!(key(binding), "RoleBinding shop/rouse-gateway.edge");
    let leads =
        json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "rouse-gateway.edge"});
    assert_eq!(binding.get("roleRef"), Some(&leads));
    assert_eq!(text(binding, "/subjects/0/namespace"), "edge");
    let watched = ("ROUSE_WATCH_NAMESPACE".to_owned(), "shop".to_owned());
    assert!(variables(gateway(&all, "Deployment")).contains(&watched));
}

#[test]
fn values_are_put_in_everywhere() {
    let image = "registry.example.com:5000/team/rouse@sha256:0123";
    let answer = install(&format!(
        "--namespace edge --image {image} --replicas 7 --keda-compat --no-crds --controller-secret c"
    ));
    for old in ["rouse-system", "localhost/"] {
        assert!(!answer.out.contains(old), "{old} is still there:\n{}", answer.out);
    }
    let all = support::objects(&answer.out);
    let deployment = gateway(&all, "Deployment");
    assert_eq!(deployment.pointer("/spec/replicas"), Some(&json!(7)));
    assert_eq!(text(deployment, &format!("{CONTAINER}/image")), image);
    assert!(variables(deployment).contains(&("ROUSE_KEDA_COMPAT".to_owned(), "true".to_owned())));
    assert_eq!(text(one(&all, "Namespace"), "/metadata/name"), "edge");
    for object in all.iter().filter(|object| object.pointer("/metadata/namespace").is_some()) {
        assert_eq!(text(object, "/metadata/namespace"), "edge", "{}", key(object));
    }
    assert_eq!(text(gateway(&all, "ClusterRoleBinding"), "/roleRef/name"), "rouse-gateway.edge");
    assert_eq!(text(gateway(&all, "ClusterRole"), "/metadata/name"), "rouse-gateway.edge");
    assert_eq!(answer.err, "", "no hints when every option is set");
}

#[test]
fn a_tls_secret_opens_a_door_from_the_service_to_the_process() {
    let all = printed("--tls-secret wildcard");
    let deployment = gateway(&all, "Deployment");
    let has = |object: &Value, pointer: &str, wanted: Value| {
        let found = object.pointer(pointer).and_then(Value::as_array).unwrap();
        assert!(found.contains(&wanted), "{pointer}: {wanted} is not in {found:?}");
    };
    has(
        deployment,
        "/spec/template/spec/volumes",
        json!({"name": "certs", "secret": {"secretName": "wildcard"}}),
    );
    let mount = json!({"name": "certs", "mountPath": "/certs", "readOnly": true});
    has(deployment, &format!("{CONTAINER}/volumeMounts"), mount);
    has(deployment, &format!("{CONTAINER}/ports"), json!({"name": "https", "containerPort": 8443}));
    let services: Vec<&Value> =
        all.iter().filter(|object| key(object).starts_with("Service rouse-system/rouse-gateway")).collect();
    has(services[0], "/spec/ports", json!({"name": "https", "port": 443, "targetPort": "https"}));
    assert_eq!(services[1].pointer("/spec/ports").and_then(Value::as_array).map(Vec::len), Some(1));
    for (name, value) in [("ROUSE_TLS_LISTEN", "0.0.0.0:8443"), ("ROUSE_TLS_CERT_DIR", "/certs")] {
        assert!(variables(deployment).contains(&(name.to_owned(), value.to_owned())), "{name}");
    }
}

/// The settings of a gateway that the Deployment starts, in a pod with this address.
fn settings_of(deployment: &Value, pod: &str) -> Values {
    let env = variables(deployment).into_iter().map(|(name, value)| match &*name {
        "POD_IP" => (name, pod.to_owned()),
        _ => (name, value.replace("$(POD_IP)", pod)),
    });
    let no_file = |_: &std::path::Path| unreachable!("no file is named");
    read_settings(&GatewayArgs::default(), &Environment::new(env), no_file).unwrap().0
}

#[test]
fn the_process_listens_where_probes_and_services_look_for_it() {
    for (flags, pod, admin, listen) in [
        ("", "10.1.2.3", "10.1.2.3:9090", "0.0.0.0:8080"),
        ("--ip-family ipv6 --tls-secret w --register-secret r", "fd00::7", "[fd00::7]:9090", "[::]:8080"),
    ] {
        let all = printed(&format!("--no-controller {flags}"));
        let deployment = gateway(&all, "Deployment");
        let settings = settings_of(deployment, pod);
        assert_eq!(settings.get(&settings::ADMIN), admin.parse().unwrap());
        assert_eq!(settings.get(&settings::LISTEN), [listen.parse().unwrap()]);
        let port = |name: &str| {
            let ports = deployment.pointer(&format!("{CONTAINER}/ports")).unwrap().as_array().unwrap();
            ports
                .iter()
                .find(|port| text(port, "/name") == name)
                .and_then(|port| port.get("containerPort")?.as_u64())
        };
        assert_eq!(port("admin"), Some(settings.get(&settings::ADMIN).port().into()));
        assert_eq!(port("http"), Some(settings.get(&settings::LISTEN)[0].port().into()));
        assert_eq!(
            port("https"),
            settings.get(&settings::TLS_LISTEN).first().map(|address| address.port().into())
        );
        assert_eq!(
            port("register"),
            settings.get(&settings::REGISTER_LISTEN).map(|address| address.port().into())
        );
        for (probe, path) in [("startup", "/livez"), ("readiness", "/readyz"), ("liveness", "/livez")] {
            let get = deployment.pointer(&format!("{CONTAINER}/{probe}Probe/httpGet"));
            assert_eq!(get, Some(&json!({"path": path, "port": "admin"})), "{probe}");
        }
        for service in all.iter().filter(|object| text(object, "/kind") == "Service") {
            for target in service.pointer("/spec/ports").unwrap().as_array().unwrap() {
                assert!(port(text(target, "/targetPort")).is_some(), "{service}");
            }
            assert_eq!(service.pointer("/spec/selector"), deployment.pointer("/spec/selector/matchLabels"));
        }
    }
}

#[test]
fn a_pod_has_time_to_drain_before_it_is_killed() {
    for (flags, seconds) in [
        ("", 45),
        ("--env ROUSE_DRAIN_TIMEOUT=2m", 135),
        ("--env ROUSE_SHUTDOWN_DELAY=0s --env KEDA_HTTP_DRAIN_TIMEOUT=1500ms", 12),
        ("--env ROUSE_DRAIN_TIMEOUT=2h", 7215),
    ] {
        let all = printed(flags);
        let deployment = gateway(&all, "Deployment");
        let settings = settings_of(deployment, "10.1.2.3");
        let grace = deployment.pointer("/spec/template/spec/terminationGracePeriodSeconds");
        assert_eq!(grace, Some(&json!(seconds)), "{flags}");
        let needs = settings.get(&settings::SHUTDOWN_DELAY)
            + settings.get(&settings::DRAIN_TIMEOUT)
            + Duration::from_secs(10);
        assert!(needs <= Duration::from_secs(seconds), "{flags}");
    }
}

#[test]
fn kedas_drain_without_end_is_bounded_by_the_pod_and_a_long_one_is_told() {
    for (flags, seconds) in [
        ("--env KEDA_HTTP_DRAIN_TIMEOUT=0", 45),
        ("--env KEDA_HTTP_DRAIN_TIMEOUT=0s --env ROUSE_SHUTDOWN_DELAY=20s", 60),
        ("--env KEDA_HTTP_DRAIN_TIMEOUT=0 --env ROUSE_DRAIN_TIMEOUT=1m", 75),
    ] {
        let answer = install(flags);
        let all = support::objects(&answer.out);
        let grace = gateway(&all, "Deployment").pointer("/spec/template/spec/terminationGracePeriodSeconds");
        assert_eq!(grace, Some(&json!(seconds)), "{flags}");
        let told = answer.err.contains(&format!("terminationGracePeriodSeconds stays {seconds}"));
        assert_eq!(told, !flags.contains("ROUSE_DRAIN"), "{}", answer.err);
    }
    for (flags, long) in [
        ("--env ROUSE_DRAIN_TIMEOUT=2h", true),
        ("--env KEDA_HTTP_DRAIN_TIMEOUT=61m", true),
        ("--env ROUSE_DRAIN_TIMEOUT=1h", false),
    ] {
        let told = install(flags).err.contains("the drain of a node may take that long");
        assert_eq!(told, long, "{flags}");
    }
}

#[test]
fn the_number_of_gateways_can_be_left_to_an_autoscaler() {
    let all = printed("--replicas none");
    assert_eq!(gateway(&all, "Deployment").pointer("/spec/replicas"), None);
    let mut expected = printed("");
    let is_gateway = |object: &&mut Value| key(object) == "Deployment rouse-system/rouse-gateway";
    let deployment = expected.iter_mut().find(is_gateway).unwrap();
    deployment.get_mut("spec").unwrap().as_object_mut().unwrap().remove("replicas");
    assert_eq!(all, expected, "and nothing else");
}

#[test]
fn there_are_as_many_connections_as_there_is_memory_for_unless_the_operator_says_otherwise() {
    for (flags, expected) in [("", 30_000), ("--env ROUSE_MAX_CONNECTIONS=5", 5)] {
        let all = printed(flags);
        let deployment = gateway(&all, "Deployment");
        let settings = settings_of(deployment, "10.1.2.3");
        assert_eq!(settings.get(&MAX_CONNECTIONS), Some(expected));
        let limit = text(deployment, &format!("{CONTAINER}/resources/limits/memory"));
        assert_eq!(limit, "1Gi", "with other memory, another number of connections fits");
    }
}

#[test]
fn with_kedas_names_a_tls_door_speaks_to_pods_as_kedas_does() {
    let upstream = |flags: &str| {
        let all = printed(flags);
        settings_of(gateway(&all, "Deployment"), "10.1.2.3").get(&settings::UPSTREAM_TLS)
    };
    assert_eq!(upstream("--tls-secret w --keda-compat"), UpstreamTls::AsReceived);
    assert_eq!(upstream("--tls-secret w --keda-compat --env ROUSE_UPSTREAM_TLS=off"), UpstreamTls::Off);
    assert_eq!(upstream("--tls-secret w"), UpstreamTls::Off);
    assert_eq!(upstream("--keda-compat"), UpstreamTls::Off);
}

#[test]
fn files_that_kubernetes_or_a_flag_mounts_may_be_named() {
    for flags in [
        "--env ROUSE_UPSTREAM_CA=/var/run/secrets/kubernetes.io/serviceaccount/ca.crt",
        "--tls-secret w --env ROUSE_TLS_CLIENT_CA=/certs/ca.crt --env ROUSE_TLS_CLIENT_AUTH=optional",
        "--register-secret r --env ROUSE_REGISTER_AUTH=token,mtls --env ROUSE_REGISTER_CLIENT_CA=/register-certs/ca.crt",
    ] {
        printed(flags);
    }
}

#[test]
fn pods_run_under_the_restricted_standard() {
    let all = deployed("manifests");
    for deployment in [gateway(&all, "Deployment"), support::controller(&all, "Deployment")] {
        let pod = deployment.pointer("/spec/template/spec/securityContext").unwrap();
        assert_eq!(pod.get("runAsNonRoot"), Some(&json!(true)));
        assert_eq!(pod.pointer("/seccompProfile/type"), Some(&json!("RuntimeDefault")));
        let container = deployment.pointer(&format!("{CONTAINER}/securityContext")).unwrap();
        let expected = json!({
            "allowPrivilegeEscalation": false,
            "readOnlyRootFilesystem": true,
            "capabilities": {"drop": ["ALL"]},
        });
        assert_eq!(container, &expected);
        // Otherwise the kubelet sets variables that look like settings: ROUSE_GATEWAY_PORT.
        assert_eq!(deployment.pointer("/spec/template/spec/enableServiceLinks"), Some(&json!(false)));
    }
    let enforced = "/metadata/labels/pod-security.kubernetes.io~1enforce";
    assert_eq!(text(one(&all, "Namespace"), enforced), "restricted");
}

#[test]
fn bad_values_are_refused_with_what_is_expected() {
    let cases = [
        ("--namespace Shop", "lower-case letters"),
        ("--namespace a.b", "lower-case letters"),
        ("--watch-namespace -", "lower-case letters"),
        ("--secrets-of *", "lower-case letters"),
        ("--image rouse", "a tag or a digest"),
        ("--replicas 0", "a number from 1 to 1000, or none"),
        ("--replicas many", "a number from 1 to 1000, or none"),
        ("--tls-secret a/b", "an object's name"),
        ("--ip-family 6", "ipv4, ipv6"),
        ("--env ROUSE_MAX_HOLD", "NAME=VALUE"),
        ("--env ROUSE_MAX_HOLD=soon", "a duration from 1ms"),
        ("--env POD_IP=10.0.0.1", "the manifests set it already"),
        ("--env A=1 --env A=2", "given twice"),
        ("--env ROUSE_ADMIN=127.0.0.1:9090", "the manifests set it already"),
        ("--env ROUSE_LISTEN=0.0.0.0:80", "port 8080"),
        ("--env KEDA_HTTP_PROXY_PORT=80", "port 8080"),
        ("--env ROUSE_WATCH_NAMESPACE=shop", "use --watch-namespace"),
        ("--env KEDA_HTTP_WATCH_NAMESPACE=shop", "use --watch-namespace"),
        ("--env KEDA_HTTP_PROXY_TLS_ENABLED=true", "use --tls-secret"),
        ("--env ROUSE_CONFIG=/etc/gateway.yaml", "do not mount it; give settings by --env"),
        ("--env ROUSE_UPSTREAM_CA=/ca.crt", "do not mount /ca.crt; give settings by --env"),
        ("--env ROUSE_KUBECONFIG=/kubeconfig", "the chart's volumes"),
        ("--env ROUSE_TLS_CERT=/certs/a --env ROUSE_TLS_KEY=/certs/b", "by --tls-secret"),
        ("--tls-secret w --env ROUSE_TLS_CERT=/certs/a --env ROUSE_TLS_KEY=/certs/../b", "mount /certs/../b"),
        (
            "--tls-secret w --env KEDA_HTTP_PROXY_TLS_ENABLED=1 --env KEDA_HTTP_PROXY_TLS_CERT_PATH=/a",
            "--env KEDA_HTTP_PROXY_TLS_CERT_PATH: the manifests do not mount /a",
        ),
        ("--env KEDA_HTTP_ADMIN_PORT=9091", "--env KEDA_HTTP_ADMIN_PORT: the manifests set admin"),
        ("--ip-family ipv6 --env KEDA_HTTP_PROXY_PORT=80", "port 8080"),
        ("--tls-secret w --env KEDA_HTTP_PROXY_TLS_PORT=443", "--env KEDA_HTTP_PROXY_TLS_PORT"),
        ("--watch-namespace a --env KEDA_HTTP_WATCH_NAMESPACE=b", "use --watch-namespace"),
        ("--register-secret a/b", "an object's name"),
        ("--push observe", "--register-secret <SECRET>"),
        ("--register-token-check jwks", "--register-secret <SECRET>"),
        ("--register-secret r --push maybe", "on, observe, off"),
        (
            "--env ROUSE_REGISTER_LISTEN=0.0.0.0:9443 --env ROUSE_REGISTER_AUTH=hmac --env ROUSE_REGISTER_KEYS=/keys",
            "use --register-secret",
        ),
        ("--register-secret r --env ROUSE_REGISTER_TLS_KEY=/certs/a", "the manifests set it already"),
        ("--env ROUSE_REPORT_TO=https://c.example.com:9444", "use --controller-secret"),
        ("--controller-secret c --env ROUSE_REPORT_CA=/ca.crt", "the manifests set it already"),
        (
            "--controller-secret c --env ROUSE_REPORT_TOKEN=/token",
            "do not mount /token; give settings by --env",
        ),
        ("--controller-secret a/b", "an object's name"),
        ("--autoscale-default maybe", "on, off"),
        ("--no-controller --controller-secret c", "cannot be used with"),
        ("--no-controller --autoscale-default on", "cannot be used with"),
        (
            "--register-secret r --env ROUSE_REGISTER_AUTH=token,hmac --env ROUSE_REGISTER_KEYS=/keys",
            "do not mount /keys; give settings by --env",
        ),
    ];
    for (arguments, expected) in cases {
        let answer = install(arguments);
        assert_eq!(answer.code, 2, "{arguments}: {}", answer.err);
        assert!(answer.err.contains(expected), "{arguments}: {}", answer.err);
        assert_eq!(answer.out, "", "{arguments}: half of it may be applied");
    }
}

#[test]
fn kedas_variables_that_say_what_the_manifests_say_are_taken() {
    let same =
        "--env KEDA_HTTP_ADMIN_PORT=9090 --env KEDA_HTTP_PROXY_PORT=8080 --env KEDA_HTTP_PROXY_TLS_PORT=8443";
    printed(&format!("{same} --tls-secret w --watch-namespace a --env KEDA_HTTP_WATCH_NAMESPACE=a"));
    printed("--env KEDA_HTTP_ADMIN_PORT=");
}

#[test]
fn what_should_be_known_is_said_beside_the_manifests() {
    let told = install("--env ROUSE_MAXHOLD=2m --env OTEL_SERVICE_NAME=x").err;
    for expected in [
        "OTEL_SERVICE_NAME: this variable has no effect",
        "did you mean ROUSE_MAX_HOLD",
        "must already be on the nodes",
        "use --no-crds",
    ] {
        assert!(told.contains(expected), "{told}");
    }
}

#[test]
fn variables_of_the_operators_shell_change_nothing() {
    let mut rouse = Command::new(env!("CARGO_BIN_EXE_rouse"));
    rouse.arg("install").envs([
        ("ROUSE_LISTEN", "0.0.0.0:1"),
        ("KEDA_HTTP_PROXY_PORT", "2"),
        ("ROUSE_ADMIN", "x"),
    ]);
    let answer = run(&mut rouse);
    assert_eq!((answer.code, answer.out), (0, install("").out), "{}", answer.err);
}

#[test]
fn the_image_of_the_files_is_of_this_version() {
    let image = format!("localhost/rouse:{}", env!("CARGO_PKG_VERSION"));
    let files = deployed("manifests");
    for deployment in [gateway(&files, "Deployment"), support::controller(&files, "Deployment")] {
        assert_eq!(text(deployment, &format!("{CONTAINER}/image")), image);
    }
}

#[test]
fn the_kustomization_has_every_file() {
    let root = support::root().join("deploy");
    let kustomization = support::objects(&std::fs::read_to_string(root.join("kustomization.yaml")).unwrap());
    let listed = kustomization[0].get("resources").unwrap().as_array().unwrap();
    let listed: BTreeSet<String> = listed.iter().map(|it| it.as_str().unwrap().to_owned()).collect();
    let mut there = BTreeSet::new();
    for folder in ["crds", "manifests"] {
        for file in std::fs::read_dir(root.join(folder)).unwrap() {
            there.insert(format!("{folder}/{}", file.unwrap().file_name().to_str().unwrap()));
        }
    }
    assert_eq!(listed, there);
}

#[test]
fn the_kustomization_says_where_the_image_is() {
    let root = support::root().join("deploy");
    let kustomization = support::objects(&std::fs::read_to_string(root.join("kustomization.yaml")).unwrap());
    let image = |field: &str| text(&kustomization[0], &format!("/images/0/{field}"));
    let (name, tag) = (image("newName"), image("newTag"));
    let files = deployed("manifests");
    let deployed = text(gateway(&files, "Deployment"), &format!("{CONTAINER}/image"));
    assert_eq!(deployed, format!("{}:{tag}", image("name")), "otherwise it finds nothing to replace");
    assert_eq!((name, tag), (image("name"), env!("CARGO_PKG_VERSION")), "it changes nothing by itself");
}

#[test]
fn what_the_examples_name_is_granted_by_the_optional_file() {
    let optional = deployed("optional");
    let role = one(&optional, "Role");
    let granted: BTreeSet<(String, String, String)> = role
        .get("rules")
        .unwrap()
        .as_array()
        .unwrap()
        .iter()
        .flat_map(|rule| {
            let names = rule.get("resourceNames").unwrap().as_array().unwrap();
            names.iter().map(|name| (text(rule, "/resources/0"), name.as_str().unwrap()))
        })
        .map(|(resource, name)| (text(role, "/metadata/namespace").into(), resource.into(), name.into()))
        .collect();
    let mut named = BTreeSet::new();
    for object in deployed("examples") {
        let namespace = text(&object, "/metadata/namespace").to_owned();
        let annotation =
            |name: &str| text(&object, &format!("/metadata/annotations/rouse.dev~1{name}")).to_owned();
        if let Some((kind, name)) = annotation("upstream-ca").split_once('/') {
            named.insert((namespace.clone(), format!("{kind}s"), name.to_owned()));
        }
        let client = annotation("upstream-client-cert");
        if !client.is_empty() {
            named.insert((namespace, "secrets".to_owned(), client));
        }
    }
    assert_eq!(granted, named);
}

/// The release binary is stripped: with symbols it was 99 MB.
#[test]
fn a_release_has_no_symbols_and_there_is_a_way_to_get_them() {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
    let manifest = std::fs::read_to_string(format!("{root}/Cargo.toml")).unwrap();
    let profile = |name: &str| {
        let rest = manifest.split_once(&format!("[profile.{name}]\n")).unwrap().1;
        rest.split("\n[").next().unwrap().to_owned()
    };
    assert!(profile("release").contains("strip = \"symbols\""));
    let symbols = profile("release-with-symbols");
    assert!(symbols.contains("inherits = \"release\"") && symbols.contains("strip = \"none\""), "{symbols}");
    let image = std::fs::read_to_string(format!("{root}/deploy/Dockerfile")).unwrap();
    assert!(image.contains("cargo build --locked --release "), "the image has the one without: {image}");
}
