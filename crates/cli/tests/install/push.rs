//! `rouse install --register-secret`: the port, the Service, the certificate and the permissions of push.

use rouse_daemon::gateway::settings::{self, TokenCheckMode};
use rouse_kube::client::permissions::{PermissionRole, Scope};
use rouse_net::auth::PushMode;
use rouse_net::peers::PeerHost;
use rouse_register::client::{DEFAULT_PORT, GatewayUrl};
use serde_json::{Value, json};

use crate::support::{gateway, key, printed, text};
use crate::{CONTAINER, rights, settings_of, table};

/// The only object with this key.
pub(crate) fn named<'o>(objects: &'o [Value], wanted: &str) -> &'o Value {
    let mut found = objects.iter().filter(|object| key(object) == wanted);
    let first = found.next().unwrap_or_else(|| panic!("{wanted} is not printed"));
    assert!(found.next().is_none(), "{wanted} is printed twice");
    first
}

#[test]
fn a_register_secret_opens_the_port_where_sidecars_register() {
    let all = printed("--register-secret r --namespace edge");
    let service = named(&all, "Service edge/rouse-register");
    let expected = json!({
        "clusterIP": "None",
        "publishNotReadyAddresses": false,
        "selector": {"app.kubernetes.io/name": "rouse", "app.kubernetes.io/component": "gateway"},
        "ports": [{"name": "register", "port": DEFAULT_PORT, "targetPort": "register"}],
    });
    assert_eq!(service.get("spec"), Some(&expected));
    let url = GatewayUrl::of_namespace("edge").unwrap();
    let name = format!("{}.edge.svc.cluster.local", text(service, "/metadata/name"));
    assert_eq!((url.host(), url.port()), (&PeerHost::Name(name), DEFAULT_PORT));

    let deployment = gateway(&all, "Deployment");
    let volumes = json!([{"name": "register-certs", "secret": {"secretName": "r"}}]);
    assert_eq!(deployment.pointer("/spec/template/spec/volumes"), Some(&volumes));
    let mounts = json!([{"name": "register-certs", "mountPath": "/register-certs", "readOnly": true}]);
    assert_eq!(deployment.pointer(&format!("{CONTAINER}/volumeMounts")), Some(&mounts));
    let settings = settings_of(deployment, "10.1.2.3");
    assert_eq!(settings.get(&settings::REGISTER_LISTEN), Some("0.0.0.0:9443".parse().unwrap()));
    for (setting, file) in
        [(&settings::REGISTER_TLS_CERT, "tls.crt"), (&settings::REGISTER_TLS_KEY, "tls.key")]
    {
        assert_eq!(settings.get(setting), Some(format!("/register-certs/{file}").into()));
    }
    assert_eq!(settings.get(&settings::REGISTER_SERVICE), Some("edge/rouse-register".parse().unwrap()));
    assert_eq!(settings.get(&settings::PUSH), PushMode::On);
}

#[test]
fn push_adds_its_service_and_changes_nothing_but_the_deployment() {
    let (plain, push) = (printed(""), printed("--register-secret r"));
    let mut added = Vec::new();
    for object in &push {
        match plain.iter().find(|other| key(other) == key(object)) {
            None => added.push(key(object)),
            Some(before) => assert!(before == object || text(object, "/kind") == "Deployment", "{object}"),
        }
    }
    assert_eq!(added, ["Service rouse-system/rouse-register"]);
    assert_eq!(push.len(), plain.len() + 1);
}

#[test]
fn the_mode_of_push_is_that_of_the_flag() {
    for (flags, mode) in [
        ("--register-secret r --push observe", PushMode::Observe),
        ("--register-secret r --push off", PushMode::Off),
        ("--register-secret r --push on", PushMode::On),
    ] {
        let all = printed(flags);
        let settings = settings_of(gateway(&all, "Deployment"), "10.1.2.3");
        assert_eq!(settings.get(&settings::PUSH), mode, "{flags}");
    }
}

#[test]
fn reviews_of_tokens_are_granted_only_if_the_gateway_asks_for_them() {
    for (flags, reviews) in [
        ("--register-secret r", false),
        ("--register-secret r --register-token-check jwks", false),
        ("--register-secret r --register-token-check tokenreview", true),
        ("--register-secret r --env ROUSE_REGISTER_TOKEN_CHECK=tokenreview", true),
        ("--env ROUSE_REGISTER_TOKEN_CHECK=tokenreview", false),
    ] {
        let all = printed(flags);
        let role = "ClusterRole /rouse-gateway-tokenreviews.rouse-system";
        assert_eq!(all.iter().any(|object| key(object) == role), reviews, "{flags}");
        if !reviews {
            continue;
        }
        let settings = settings_of(gateway(&all, "Deployment"), "10.1.2.3");
        assert_eq!(settings.get(&settings::REGISTER_TOKEN_CHECK), TokenCheckMode::TokenReview, "{flags}");
        let role = named(&all, role);
        assert_eq!(rights(role), table(PermissionRole::Gateway, Scope::OnDemand), "{flags}");
        let binding = named(&all, "ClusterRoleBinding /rouse-gateway-tokenreviews.rouse-system");
        assert_eq!(text(binding, "/roleRef/name"), text(role, "/metadata/name"));
        assert_eq!(text(binding, "/subjects/0/name"), "rouse-gateway");
        assert_eq!(text(binding, "/subjects/0/namespace"), "rouse-system");
    }
}
