//! `rouse check` of push and certificates: what it reads of a cluster, and what it says about it.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rouse_testkit::certificates::{Authority, Leaf};

use super::*;

const NAMES: [&str; 2] = ["rouse-register.rouse-system.svc.cluster.local", "rouse-register.rouse-system.svc"];
const IN_SYSTEM: &str = "/api/v1/namespaces/rouse-system";
const IN_SHOP: &str = "/api/v1/namespaces/shop";

fn secret(leaf: &Leaf, key: &str) -> Value {
    let data = json!({"tls.crt": STANDARD.encode(&leaf.chain), "tls.key": STANDARD.encode(key)});
    json!({"metadata": {"name": "s"}, "type": "kubernetes.io/tls", "data": data})
}

fn register_service(cluster_ip: &str) -> Value {
    json!({"metadata": {"name": "rouse-register", "namespace": "rouse-system"},
           "spec": {"clusterIP": cluster_ip, "selector": {"app": "gateway"},
                    "ports": [{"name": "register", "port": 9443, "targetPort": "register"}]}})
}

/// Put together as `rouse inject` does.
fn injected(name: &str) -> Value {
    let volume = json!({"name": "rouse-register", "projected": {"sources": [
        {"serviceAccountToken": {"path": "token"}}, {"configMap": {"name": "rouse-ca", "items": []}}]}});
    let sidecar = json!({"name": "rouse-sidecar", "args": ["sidecar", "--service=cart"],
                         "ports": [{"name": "rouse-http", "containerPort": 8012}]});
    json!({"metadata": {"name": name, "namespace": "shop", "annotations": {"rouse.dev/injected": "{}"}},
           "spec": {"selector": {}, "template": {"spec": {"containers": [{"name": "app"}, sidecar], "volumes": [volume]}}}})
}

fn cart(target: u16) -> Value {
    json!({"metadata": {"name": "cart", "namespace": "shop"},
           "spec": {"selector": {"app": "cart"}, "ports": [{"name": "http", "port": 80, "targetPort": target}]}})
}

/// A cluster where push is on and lacks nothing, with these variables in addition.
fn cluster_with_push(authority: &Authority, variables: &[(&str, &str)]) -> ApiServer {
    let api = good_cluster();
    let set = [
        ("ROUSE_REGISTER_LISTEN", "0.0.0.0:9443"),
        ("ROUSE_REGISTER_TLS_CERT", "/register-certs/tls.crt"),
        ("ROUSE_TLS_CERT_DIR", "/certs"),
    ];
    let env: Vec<Value> =
        set.iter().chain(variables).map(|(name, value)| json!({"name": name, "value": value})).collect();
    let mounts = json!([{"name": "r", "mountPath": "/register-certs"}, {"name": "c", "mountPath": "/certs"}]);
    let volumes = json!([{"name": "r", "secret": {"secretName": "register-tls"}}, {"name": "c", "secret": {"secretName": "web"}}]);
    api.object_at(
        "/apis/apps/v1/namespaces/rouse-system/deployments/rouse-gateway",
        json!({"metadata": {"name": "rouse-gateway"},
               "spec": {"replicas": 2, "selector": {"matchLabels": {"app": "gateway"}},
                        "template": {"metadata": {"labels": {"app": "gateway"}},
                                     "spec": {"serviceAccountName": "rouse-gateway", "volumes": volumes,
                                              "containers": [{"name": "gateway", "env": env, "volumeMounts": mounts}]}}},
               "status": {"availableReplicas": 2}}),
    );
    let leaf = authority.leaf(&NAMES);
    api.object_at(&format!("{IN_SYSTEM}/secrets/register-tls"), secret(&leaf, &leaf.key));
    let web = authority.leaf(&["shop.example.com"]);
    api.object_at(&format!("{IN_SYSTEM}/secrets/web"), secret(&web, &web.key));
    api.object_at(&format!("{IN_SYSTEM}/services/rouse-register"), register_service("None"));
    api.list_at(
        "/apis/apps/v1/deployments",
        vec![
            injected("cart"),
            json!({"metadata": {"name": "plain"}, "spec": {"selector": {}, "template": {}}}),
        ],
    );
    api.list_at(&format!("{IN_SHOP}/services"), vec![cart(8012)]);
    bundle(&api, &authority.pem());
    api
}

fn bundle(api: &ApiServer, pem: &str) {
    let map = json!({"metadata": {"name": "rouse-ca", "namespace": "shop"}, "data": {"ca.crt": pem}});
    api.object_at(&format!("{IN_SHOP}/configmaps/rouse-ca"), map);
}

/// The warnings of `rouse check`, which must not fail.
async fn warnings(api: &ApiServer) -> (Vec<String>, String) {
    let said = check(api, &[]).await;
    (said.passed().into_iter().map(str::to_owned).collect(), said.out)
}

#[tokio::test(flavor = "multi_thread")]
async fn push_that_lacks_nothing_passes() {
    let authority = Authority::new();
    let (warnings, out) = warnings(&cluster_with_push(&authority, &[("ROUSE_PUSH", "observe")])).await;
    assert_eq!(warnings, Vec::<String>::new(), "{out}");
    for part in [
        "✔ registrations of pods are accepted (push: observe)",
        "✔ Service rouse-register leads sidecars to every gateway",
        "✔ the certificate for registrations is valid (Secret register-tls)",
        "✔ the certificate for requests over TLS is valid (Secret web)",
        "✔ sidecars in shop trust the gateway (ConfigMap rouse-ca)",
        "✔ requests reach the sidecars of injected workloads (1)",
    ] {
        assert!(out.contains(part), "{part}: {out}");
    }
    assert!(!out.contains("tokenreviews"), "{out}");
    let (_, out) = self::warnings(&good_cluster()).await;
    assert!(out.contains("✔ registrations of pods are off"), "{out}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_for_another_name_of_another_key_or_expired_is_told() {
    let authority = Authority::new();
    let api = cluster_with_push(&authority, &[]);
    let name = "the certificate for registrations is valid (Secret register-tls)";
    let at = format!("{IN_SYSTEM}/secrets/register-tls");
    let other = authority.leaf(&["rouse-register.edge.svc"]);
    api.object_at(&at, secret(&other, &other.key));
    let (told, out) = warnings(&api).await;
    assert_eq!(told, [name]);
    assert!(out.contains("it is not for rouse-register.rouse-system.svc.cluster.local or"), "{out}");

    let expired = authority.leaf_of(&NAMES, [2020, 2021]);
    api.object_at(&at, secret(&expired, &expired.key));
    let (told, out) = warnings(&api).await;
    assert_eq!(told, [name], "trust is another question: {out}");
    assert!(out.contains("it expired "), "{out}");

    let leaf = authority.leaf(&NAMES);
    api.object_at(&at, secret(&leaf, &other.key));
    let said = check(&api, &[]).await;
    assert_eq!(said.failed(), [name]);
    assert!(said.out.contains("tls.key: the key does not match"), "{}", said.out);

    api.remove_at(&at);
    assert_eq!(check(&api, &[]).await.failed(), [name]);
}

#[tokio::test(flavor = "multi_thread")]
async fn bundles_services_and_workloads_that_do_not_fit_are_warnings() {
    let authority = Authority::new();
    let api = cluster_with_push(&authority, &[]);
    bundle(&api, &Authority::named("other").pem());
    api.object_at(&format!("{IN_SYSTEM}/services/rouse-register"), register_service("10.96.0.9"));
    api.list_at(&format!("{IN_SHOP}/services"), vec![cart(8080)]);
    let (told, out) = warnings(&api).await;
    let expected = [
        "Service rouse-register leads sidecars to every gateway",
        "sidecars in shop trust the gateway (ConfigMap rouse-ca)",
        "requests reach the sidecar of Deployment shop/cart",
    ];
    assert_eq!(told, expected, "{out}");
    assert!(out.contains("no port of Service cart has the target port of the sidecar, 8012"), "{out}");
    // During a rotation the bundle has the old and the new CA.
    bundle(&api, &format!("{}{}", Authority::named("other").pem(), authority.pem()));
    assert_eq!(warnings(&api).await.0, [expected[0], expected[2]]);
}

#[tokio::test(flavor = "multi_thread")]
async fn secrets_that_the_user_may_not_read_are_not_checked_and_the_rest_is() {
    let api = cluster_with_push(&Authority::new(), &[]);
    forbid(&api, &format!("{IN_SYSTEM}/secrets/"));
    let said = check(&api, &[]).await;
    assert_eq!(said.passed(), Vec::<&str>::new(), "{}", said.out);
    let unread = [
        "the certificate for requests over TLS is valid (Secret web)",
        "the certificate for registrations is valid (Secret register-tls)",
        "sidecars in shop trust the gateway (ConfigMap rouse-ca)",
    ];
    assert_eq!(said.lines_with('-'), unread, "{}", said.out);
    assert!(said.out.contains("✔ requests reach the sidecars"), "{}", said.out);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_permission_to_review_tokens_is_asked_for_only_if_the_gateway_uses_it() {
    let authority = Authority::new();
    let api = cluster_with_push(&authority, &[("ROUSE_REGISTER_TOKEN_CHECK", "tokenreview")]);
    assert_eq!(warnings(&api).await.0, Vec::<String>::new());
    api.deny("create tokenreviews");
    let said = check(&api, &[]).await;
    let told = said.out.lines().find(|line| line.contains("create tokenreviews"));
    assert!(told.is_some_and(|line| !line.starts_with('✔')), "{}", said.out);
}
