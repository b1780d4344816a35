//! `rouse install --xds`: its permissions, its ports, its certificates, and what it needs to report the load of Envoys.

use rouse_config::settings::{Environment, Values};
use rouse_daemon::xds::settings as set;
use rouse_daemon::xds::{XdsArgs, read_settings};
use rouse_kube::client::permissions::{PermissionRole, Scope};
use serde_json::{Value, json};

use crate::push::named;
use crate::support::{install, key, printed, text};
use crate::{CONTAINER, rights, table, variables};

const SECURE: &str = "--xds --xds-secret rouse-xds-tls";

/// The settings of what the Deployment starts, in a pod with this address.
fn settings_of(deployment: &Value, pod: &str) -> Values {
    let env = variables(deployment).into_iter().map(|(name, value)| match &*name {
        "POD_IP" => (name, pod.to_owned()),
        "ROUSE_POD_NAMESPACE" => (name, "edge".to_owned()),
        _ => (name, value.replace("$(POD_IP)", pod)),
    });
    let (values, warnings) = read_settings(&XdsArgs::default(), &Environment::new(env)).unwrap();
    assert!(warnings.is_empty(), "{warnings:?}");
    values
}

fn deployment(all: &[Value]) -> &Value {
    named(all, "Deployment edge/rouse-xds")
}

#[test]
fn it_is_off_by_default_and_adds_objects_and_changes_none_but_the_controllers_accounts() {
    assert!(!install("").out.contains("rouse-xds"));
    let (plain, with) =
        (printed("--controller-secret c"), printed(&format!("--controller-secret c {SECURE}")));
    assert!(with.len() > plain.len());
    let changed: Vec<String> = plain.iter().filter(|object| !with.contains(object)).map(key).collect();
    assert_eq!(changed, ["Deployment rouse-system/rouse-controller"]);
    let controller = named(&with, "Deployment rouse-system/rouse-controller");
    let accounts =
        variables(controller).into_iter().find(|(name, _)| name == "ROUSE_REPORT_ACCOUNTS").unwrap().1;
    assert_eq!(accounts, "rouse-system/rouse-gateway,rouse-system/rouse-xds");
}

#[test]
fn it_may_read_what_it_reads_and_nothing_else() {
    let (watched, own) = (table(PermissionRole::Xds, Scope::Watched), table(PermissionRole::Xds, Scope::Own));
    let all = printed(&format!("--namespace edge {SECURE}"));
    assert_eq!(rights(named(&all, "ClusterRole /rouse-xds.edge")), watched);
    assert_eq!(rights(named(&all, "Role edge/rouse-xds")), own);
    for namespace in ["shop", "edge"] {
        let all = printed(&format!("--namespace edge --watch-namespace {namespace} {SECURE}"));
        assert_eq!(rights(named(&all, &format!("Role {namespace}/rouse-xds.edge"))), watched);
        assert!(!all.iter().any(|object| key(object).starts_with("ClusterRole")), "{namespace}");
    }
    let flags = "--namespace edge --configmaps-of shop --secrets-of till";
    let all = printed(&format!("{flags} {SECURE}"));
    let [configmaps, secrets] = ["shop/rouse-xds-configmaps.edge", "till/rouse-xds-secrets.edge"]
        .map(|name| rights(named(&all, &format!("Role {name}"))));
    assert_eq!(
        configmaps.union(&secrets).cloned().collect::<std::collections::BTreeSet<_>>(),
        table(PermissionRole::Xds, Scope::Named)
    );
    let account = json!([{"kind": "ServiceAccount", "name": "rouse-xds", "namespace": "edge"}]);
    for binding in
        all.iter().filter(|object| key(object).contains("Binding") && key(object).contains("rouse-xds"))
    {
        assert_eq!(binding.get("subjects"), Some(&account), "{}", key(binding));
    }
    assert_eq!(text(deployment(&all), "/spec/template/spec/serviceAccountName"), "rouse-xds");
}

#[test]
fn it_listens_where_probes_and_envoys_look_for_it_and_asks_envoys_for_certificates() {
    for (flags, pod, everywhere) in [("", "10.1.2.3", "0.0.0.0"), ("--ip-family ipv6", "fd00::7", "[::]")] {
        let all = printed(&format!("--namespace edge --xds --xds-secret mine {flags}"));
        let deployment = deployment(&all);
        let settings = settings_of(deployment, pod);
        assert_eq!(settings.get(&set::XDS_LISTEN).to_string(), format!("{everywhere}:18000"));
        assert_eq!(settings.get(&set::ADMIN).ip().to_string(), pod);
        for (setting, file) in
            [(&set::XDS_TLS_CERT, "tls.crt"), (&set::XDS_TLS_KEY, "tls.key"), (&set::XDS_CLIENT_CA, "ca.crt")]
        {
            assert_eq!(settings.get(setting), Some(format!("/xds-certs/{file}").into()));
        }
        let volumes = json!([{"name": "xds-certs", "secret": {"secretName": "mine"}}]);
        assert_eq!(deployment.pointer("/spec/template/spec/volumes"), Some(&volumes));
        let mounts = json!([{"name": "xds-certs", "mountPath": "/xds-certs", "readOnly": true}]);
        assert_eq!(deployment.pointer(&format!("{CONTAINER}/volumeMounts")), Some(&mounts));
        assert_eq!(deployment.pointer("/spec/replicas"), Some(&json!(2)));
        let service = named(&all, "Service edge/rouse-xds");
        assert_eq!(text(service, "/spec/clusterIP"), "None");
        let port = json!({"name": "xds", "port": 18000, "targetPort": "xds"});
        assert_eq!(service.pointer("/spec/ports/0"), Some(&port));
        for object in [service, named(&all, "PodDisruptionBudget edge/rouse-xds")] {
            let selector = object.pointer("/spec/selector").unwrap();
            let selector = selector.get("matchLabels").unwrap_or(selector);
            assert_eq!(Some(selector), deployment.pointer("/spec/selector/matchLabels"), "{}", key(object));
        }
    }
}

#[test]
fn it_reports_to_the_controllers_and_has_the_gateways_settings_about_routes_and_pods() {
    let all = printed(&format!(
        "--namespace edge {SECURE} --controller-secret c --watch-namespace shop --env ROUSE_DIRECT_POD_ROUTING=disabled \
         --env ROUSE_WORKERS=3 --env KEDA_HTTP_REQUEST_TIMEOUT=7s"
    ));
    let deployment = deployment(&all);
    let settings = settings_of(deployment, "10.1.2.3");
    let url = settings.get(&rouse_daemon::gateway::settings::REPORT_TO).unwrap().to_string();
    assert_eq!(url, "https://rouse-controller.edge.svc.cluster.local:9444");
    let gateway = named(&all, "Deployment edge/rouse-gateway");
    let report = |deployment: &Value| {
        let volumes = deployment.pointer("/spec/template/spec/volumes").unwrap().as_array().unwrap();
        volumes.iter().find(|volume| text(volume, "/name") == "report").cloned()
    };
    assert!(report(deployment).is_some() && report(deployment) == report(gateway), "the same token and CA");
    let env = variables(deployment);
    let value = |name: &str| env.iter().find(|(known, _)| known == name).map(|(_, value)| &**value);
    assert_eq!(value("ROUSE_DIRECT_POD_ROUTING"), Some("disabled"));
    assert_eq!(value("ROUSE_WATCH_NAMESPACE"), Some("shop"));
    assert_eq!(value("ROUSE_REQUEST_TIMEOUT"), Some("7s"), "also by KEDA's name");
    assert_eq!(value("ROUSE_WORKERS"), None, "that is the gateways' own");
}

#[test]
fn it_needs_a_certificate() {
    for (flags, part) in [("--xds", "--xds-secret"), ("--xds-secret s", "--xds")] {
        let answer = install(flags);
        assert_eq!(answer.code, 2, "{flags}");
        assert!(answer.err.contains(part), "{flags}: {}", answer.err);
    }
}
